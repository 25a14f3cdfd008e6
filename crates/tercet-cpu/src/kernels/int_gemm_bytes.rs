//! GEMM of I32 matrices by byte dot products (AVX-512 VNNI, `dotprod` or `i8mm`), if the elements of the
//! right-hand side span at most a byte.
//!
//! B is packed as signed bytes `b - center`, four rows of a column in one word, in panels of 64 columns, or of
//! 16 on aarch64. A row of A is packed as unsigned bytes of `a - least`; `least` is the smallest element of
//! the row. On aarch64, whose instructions multiply signed bytes, packing also subtracts 128. Elements of more
//! than 8 bits are split into at most four limbs of 8 bits. The kernel multiplies the highest limbs first and
//! shifts the sums by 8 bits before each further limb.
//! All sums wrap, so the result is exact for all elements and equal to that of [`super::int_gemm`].

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};

use super::int_gemm::IntGemmShape;
use super::parallel::{self, DisjointChunks, KernelThreads, SharedMut};
use super::simd::{SimdLevel, SimdLevelKind};
#[cfg(target_arch = "x86_64")]
use avx512::tile;
#[cfg(target_arch = "aarch64")]
use neon::tile;

/// Packing pads a panel to a multiple of this number of columns.
const LANES: usize = 16;
/// Columns of a panel.
const NR: usize = if cfg!(target_arch = "x86_64") {
    4 * LANES
} else {
    LANES
};
/// Bits to flip in the bytes of A, which makes them signed.
const FLIP: u8 = if cfg!(target_arch = "x86_64") {
    0
} else {
    0x80
};
/// Rows of a tile: with four vectors, 24 accumulators.
const MR: usize = 6;
/// Rows per task.
const ROWS: usize = 96;
/// Maximum limbs of an element.
const LIMBS: usize = 4;
/// Multiply-adds below which waking another thread is not profitable.
const SERIAL_WORK: usize = 1 << 18;

/// Number of 4-byte words along k, each with four elements. It is even on aarch64, because `i8mm`
/// multiplies two words at once.
fn steps(shape: &IntGemmShape) -> usize {
    match cfg!(target_arch = "x86_64") {
        true => shape.k.div_ceil(4),
        false => 2 * shape.k.div_ceil(8),
    }
}

/// True if the level has the instructions.
fn has_level(level: SimdLevel) -> bool {
    match level.kind {
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx512 => level.dots,
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => level.dots,
        _ => false,
    }
}

/// The center of the elements, around which all of them are signed bytes. `None` if they span more than a byte
/// or the level lacks the instructions.
#[must_use]
pub fn center(level: SimdLevel, threads: KernelThreads, b: &[i32]) -> Option<i32> {
    /// Elements per task.
    const PART: usize = 1 << 14;
    if !has_level(level) {
        return None;
    }
    let (least, most) = (AtomicI32::new(i32::MAX), AtomicI32::new(i32::MIN));
    let spans_a_byte = || {
        let [least, most] = [&least, &most].map(|end| i64::from(end.load(Ordering::Relaxed)));
        most - least <= 255
    };
    parallel::for_each(threads, b.len().div_ceil(PART), |i| {
        if spans_a_byte() {
            // SAFETY: the level has the instructions.
            let (low, high, _) = unsafe { row_range(&b[i * PART..b.len().min((i + 1) * PART)]) };
            least.fetch_min(low, Ordering::Relaxed);
            most.fetch_max(high, Ordering::Relaxed);
        }
    });
    if !spans_a_byte() {
        return None;
    }
    let (least, most) = (least.into_inner(), most.into_inner());
    Some(match least >= -128 && most <= 127 {
        true => 0,
        false => least.wrapping_add(128),
    })
}

/// Words of a packed B: panels, the sums of the columns, and the center.
#[must_use]
pub fn packed_len(shape: &IntGemmShape) -> usize {
    let columns = shape.n.next_multiple_of(LANES);
    columns * (steps(shape) + 1) + 1
}

/// Words of scratch memory for A: its limbs, and three words per row.
#[must_use]
pub fn scratch_len(shape: &IntGemmShape) -> usize {
    shape.m * (LIMBS * steps(shape) + 3)
}

/// Packs B `[k, n]` with elements around a [`center`].
///
/// # Panics
/// If a slice is shorter than the shape requires.
pub fn pack(threads: KernelThreads, shape: &IntGemmShape, b: &[i32], center: i32, out: &mut [i32]) {
    let &IntGemmShape { k, n, .. } = shape;
    assert_eq!(b.len(), k * n, "B must have k * n elements");
    let columns = n.next_multiple_of(LANES);
    let out = &mut out[..packed_len(shape)];
    let (panels, ends) = out.split_at_mut(columns * steps(shape));
    ends[columns] = center;
    let sums = DisjointChunks::new(&mut ends[..columns], NR);
    let parts = (DisjointChunks::new(panels, NR * steps(shape)), sums);
    parallel::for_each_part(threads, parts, |panel, (out, sums)| {
        let first = panel * NR;
        // SAFETY: a center exists only if the machine has the instructions.
        unsafe { pack_panel(b, n, first..n.min(first + NR), center, out, sums) };
    });
}

/// Packs some columns of B, and sums them.
///
/// # Safety
/// The machine has the instructions of [`has_level`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512bw"))]
unsafe fn pack_panel(
    b: &[i32],
    n: usize,
    columns: Range<usize>,
    center: i32,
    out: &mut [i32],
    sums: &mut [i32],
) {
    sums.fill(0);
    out.fill(0);
    let width = sums.len();
    for (four, out) in b.chunks(4 * n.max(1)).zip(out.chunks_exact_mut(width)) {
        for (i, row) in four.chunks_exact(n.max(1)).enumerate() {
            let pairs = out.iter_mut().zip(&mut *sums).zip(&row[columns.clone()]);
            for ((out, sum), b) in pairs {
                let byte = b.wrapping_sub(center);
                *sum = sum.wrapping_add(byte);
                *out |= (byte & 0xff) << (8 * i);
            }
        }
    }
}

/// Packed rows of A.
struct ByteRows<'a> {
    /// For each limb, the words of all rows.
    limbs: &'a [i32],
    count: usize,
    /// The least element of each row, then its sum.
    least: &'a [i32],
    sums: &'a [i32],
}

/// Packs A; `rows` has the words of [`scratch_len`].
fn pack_rows<'a>(
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    scratch: &'a mut [i32],
) -> ByteRows<'a> {
    /// Rows per task.
    const ROWS: usize = 8;
    let &IntGemmShape { m, k, .. } = shape;
    let (least, rest) = scratch.split_at_mut(m);
    let (sums, limbs) = rest.split_at_mut(m);
    let spans = AtomicI32::new(0);
    let parts = (
        DisjointChunks::new(&mut *least, ROWS),
        DisjointChunks::new(&mut *sums, ROWS),
    );
    parallel::for_each_part(threads, parts, |i, (least, sums)| {
        let mut all = 0;
        let rows = a[i * ROWS * k..]
            .chunks_exact(k)
            .zip(least.iter_mut().zip(sums));
        for (row, (least, sum)) in rows {
            // SAFETY: this GEMM runs only with the instructions.
            let (low, high, total) = unsafe { row_range(row) };
            (*least, *sum) = (low, total);
            all |= high.wrapping_sub(low);
        }
        spans.fetch_or(all, Ordering::Relaxed);
    });
    let bits = 32 - spans.into_inner().leading_zeros() as usize;
    let count = bits.div_ceil(8).max(1);
    let own = steps(shape);
    let least: &[i32] = least;
    for (place, limb) in limbs
        .chunks_exact_mut((m * own).max(1))
        .take(count)
        .enumerate()
    {
        let parts = DisjointChunks::new(limb, ROWS * own);
        parallel::for_each_part(threads, parts, |i, out| {
            let rows = a[i * ROWS * k..].chunks_exact(k).zip(&least[i * ROWS..]);
            for ((row, least), out) in rows.zip(out.chunks_exact_mut(own)) {
                // SAFETY: this GEMM runs only with the instructions, and the words have room for the row.
                unsafe { limb_of(row, *least, 8 * place as u32, bytemuck::cast_slice_mut(out)) };
            }
        });
    }
    ByteRows {
        limbs,
        count,
        least,
        sums,
    }
}

/// The least and the greatest element of a row, and their sum.
///
/// # Safety
/// The machine has the instructions of [`has_level`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512bw"))]
unsafe fn row_range(row: &[i32]) -> (i32, i32, i32) {
    let start = (i32::MAX, i32::MIN, 0i32);
    row.iter().fold(start, |(low, high, sum), x| {
        (low.min(*x), high.max(*x), sum.wrapping_add(*x))
    })
}

/// Writes the byte of `x - least` from bit `shift` on for each element, and zeros after them.
///
/// # Safety
/// The machine has the instructions of [`has_level`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512bw"))]
unsafe fn limb_of(row: &[i32], least: i32, shift: u32, out: &mut [u8]) {
    let (out, rest) = out.split_at_mut(row.len());
    for (out, x) in out.iter_mut().zip(row) {
        *out = (x.wrapping_sub(least) as u32 >> shift) as u8 ^ FLIP;
    }
    rest.fill(0);
}

/// Computes `c = a b` for a B packed by [`pack`].
///
/// # Panics
/// If a slice does not have the length of the shape, or the level lacks the instructions.
pub fn byte_gemm(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    packed: &[i32],
    c: &mut [i32],
    scratch: &mut [i32],
) {
    let &IntGemmShape { m, k, n } = shape;
    assert_eq!(
        (a.len(), c.len()),
        (m * k, m * n),
        "A must have m * k elements, C m * n"
    );
    assert!(has_level(level), "the level has no byte dot products");
    let packed = &packed[..packed_len(shape)];
    if k == 0 || c.is_empty() {
        return c.fill(0);
    }
    let threads = match m * n * k < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let rows = pack_rows(threads, shape, a, &mut scratch[..scratch_len(shape)]);
    let (tall, wide) = (m.div_ceil(ROWS), n.div_ceil(NR));
    let c = SharedMut::new(c);
    parallel::for_each(threads, tall * wide, |task| {
        let (panel, first) = (task % wide, task / wide * ROWS);
        for row in (first..m.min(first + ROWS)).step_by(MR) {
            let count = MR.min(m.min(first + ROWS) - row);
            // SAFETY: the level has the instructions. Each task writes only its own rectangle of C.
            unsafe { tile(level, count, shape, &rows, packed, panel, row, c) };
        }
    });
}
