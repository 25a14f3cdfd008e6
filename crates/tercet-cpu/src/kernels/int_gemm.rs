//! GEMM of I32 matrices with wrapping arithmetic, so the order of a sum does not matter.
//!
//! In quantized models, elements minus their zero points fit in 16 bits. Two adjacent elements
//! along k are then packed into one 32-bit word, and a single instruction multiplies both and adds
//! the products. B is packed into panels `[ceil(n / NR)][ceil(k / 2)][NR]`, once for weights. A is
//! packed into rows of pairs at each call. An operand with larger elements is read unpacked.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::parallel::{self, DisjointChunks, KernelThreads, SharedMut};
use super::simd::{SimdLevel, SimdLevelKind};

/// Columns of a panel.
pub(crate) const NR: usize = 16;
/// Rows of a tile.
const MR: usize = 6;
/// Rows per task.
const ROWS: usize = 96;
/// Multiply-adds below which waking another thread is not profitable.
const SERIAL_WORK: usize = 1 << 17;

/// Sizes of a product `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntGemmShape {
    /// Rows of A.
    pub m: usize,
    /// Columns of A.
    pub k: usize,
    /// Columns of B.
    pub n: usize,
}

impl IntGemmShape {
    pub(crate) fn pairs(&self) -> usize {
        self.k.div_ceil(2)
    }

    /// Words of A packed as pairs.
    pub fn rows_len(&self) -> usize {
        self.m * self.pairs()
    }

    /// Words of B packed as panels.
    pub fn panels_len(&self) -> usize {
        self.n.div_ceil(NR) * self.pairs() * NR
    }
}

/// Packs two elements into a word.
#[inline(always)]
pub(crate) fn pair(low: i32, high: i32) -> i32 {
    (low & 0xffff) | (high << 16)
}

/// Unpacks the two elements of a word.
#[inline(always)]
fn unpack_pair(pair: i32) -> (i32, i32) {
    (i32::from(pair as i16), pair >> 16)
}

/// True if all elements fit in 16 bits.
fn fit(x: &[i32]) -> bool {
    // This loop has no branches, so that the compiler vectorizes it.
    x.iter()
        .fold(0, |beyond, x| beyond | (i32::from(*x as i16) ^ x))
        == 0
}

/// Packs B `[k, n]` as panels into the first words of `out`. Returns false if an element does not
/// fit in 16 bits.
///
/// # Panics
/// If `b` does not have the length of the shape, or `out` is shorter than [`IntGemmShape::panels_len`].
pub fn pack_panels(
    threads: KernelThreads,
    shape: &IntGemmShape,
    b: &[i32],
    out: &mut [i32],
) -> bool {
    /// Panels per task, whose columns are read together: four cache lines of each row.
    const PANELS: usize = 4;
    let &IntGemmShape { k, n, .. } = shape;
    assert_eq!(b.len(), k * n, "B must have k * n elements");
    let threads = match b.len() < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let len = shape.pairs() * NR;
    let fits = AtomicBool::new(true);
    let parts = DisjointChunks::new(&mut out[..shape.panels_len()], PANELS * len);
    parallel::for_each_part(threads, parts, |i, panels| {
        let first = i * PANELS * NR;
        let cols = (PANELS * NR).min(n - first);
        let mut beyond = 0;
        for p in 0..shape.pairs() {
            let low = &b[2 * p * n + first..][..cols];
            let high = match 2 * p + 1 < k {
                true => &b[(2 * p + 1) * n + first..][..cols],
                false => &[],
            };
            let halves = low
                .chunks(NR)
                .zip(high.chunks(NR).chain(std::iter::repeat(&[][..])));
            for (panel, (low, high)) in panels.chunks_exact_mut(len).zip(halves) {
                let to = &mut panel[p * NR..][..NR];
                beyond |= match (low.first_chunk(), high.first_chunk()) {
                    (Some(low), Some(high)) => pack_pairs(low, high, to),
                    _ => {
                        let mut both = [[0; NR]; 2];
                        both[0][..low.len()].copy_from_slice(low);
                        both[1][..high.len()].copy_from_slice(high);
                        pack_pairs(&both[0], &both[1], to)
                    }
                };
            }
        }
        if beyond != 0 {
            fits.store(false, Ordering::Relaxed);
        }
    });
    fits.into_inner()
}

/// Packs the elements of two rows as pairs. The result is 0 if all fit in 16 bits.
#[inline(always)]
fn pack_pairs(low: &[i32; NR], high: &[i32; NR], to: &mut [i32]) -> i32 {
    let mut beyond = 0;
    for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
        *to = pair(*low, *high);
        beyond |= (i32::from(*low as i16) ^ low) | (i32::from(*high as i16) ^ high);
    }
    beyond
}

/// Packs A `[m, k]` as rows of pairs. Returns false if an element does not fit in 16 bits.
fn pack_rows(threads: KernelThreads, shape: &IntGemmShape, a: &[i32], out: &mut [i32]) -> bool {
    /// Rows per task.
    const ROWS: usize = 8;
    let &IntGemmShape { m, k, .. } = shape;
    let own = 2 * shape.pairs();
    let fits = AtomicBool::new(true);
    let halves: &mut [i16] = bytemuck::cast_slice_mut(&mut out[..shape.rows_len()]);
    let parts = DisjointChunks::new(halves, ROWS * own);
    parallel::for_each_part(threads, parts, |i, out| {
        let rows = &a[i * ROWS * k..m.min((i + 1) * ROWS) * k];
        if !fit(rows) {
            return fits.store(false, Ordering::Relaxed);
        }
        for (row, out) in rows.chunks_exact(k).zip(out.chunks_exact_mut(own)) {
            let (out, rest) = out.split_at_mut(k);
            // Adjacent elements form a word; the first is in the low half.
            for (out, x) in out.iter_mut().zip(row) {
                *out = *x as i16;
            }
            rest.fill(0);
        }
    });
    fits.into_inner()
}

/// Computes `c = a b` for a B packed by [`pack_panels`]; `rows` has room for [`IntGemmShape::rows_len`]
/// words.
///
/// # Panics
/// If a slice does not have the length of the shape.
pub fn int_gemm(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    panels: &[i32],
    c: &mut [i32],
    rows: &mut [i32],
) {
    let &IntGemmShape { m, k, n } = shape;
    assert_eq!(
        (a.len(), c.len()),
        (m * k, m * n),
        "A must have m * k elements, C m * n"
    );
    let pairs = shape.pairs();
    assert!(panels.len() >= shape.panels_len() && rows.len() >= shape.rows_len());
    if k == 0 || c.is_empty() {
        return c.fill(0);
    }
    let threads = match m * n * k < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let packed = pack_rows(threads, shape, a, rows);
    let rows = &*rows;
    let (tall, wide) = (m.div_ceil(ROWS), n.div_ceil(NR));
    let out = SharedMut::new(c);
    parallel::for_each(threads, tall * wide, |task| {
        let (panel, first) = (task % wide, task / wide * ROWS);
        let cols = NR.min(n - panel * NR);
        let b = &panels[panel * pairs * NR..][..pairs * NR];
        for i in (first..m.min(first + ROWS)).step_by(MR) {
            let count = MR.min(m.min(first + ROWS) - i);
            let mut sums = [[0; NR]; MR];
            match packed {
                true => tile(
                    level,
                    count,
                    &rows[i * pairs..][..count * pairs],
                    b,
                    &mut sums,
                ),
                false => wide_tile(shape, &a[i * k..][..count * k], b, &mut sums),
            }
            for (r, sums) in sums[..count].iter().enumerate() {
                // SAFETY: each task writes only the columns of its panel in its rows, all within C.
                let c = unsafe { out.slice((i + r) * n + panel * NR, cols) };
                c.copy_from_slice(&sums[..cols]);
            }
        }
    });
}

/// Computes the sums of `count` rows of pairs with a panel.
fn tile(level: SimdLevel, count: usize, rows: &[i32], b: &[i32], sums: &mut [[i32; NR]; MR]) {
    match level.kind {
        SimdLevelKind::Portable => portable(count, rows, b, sums),
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => {
            use super::int_tiles_neon::{WordRows, pairs};
            let steps = b.len() / NR;
            assert!(rows.len() == count * steps && count <= MR);
            let a = WordRows {
                a: rows.as_ptr(),
                row: steps,
                step: 1,
            };
            // SAFETY: rows and panel have the same length.
            unsafe { pairs(count, a, b.as_ptr(), steps, sums.as_mut_ptr().cast()) }
        }
        #[cfg(target_arch = "x86_64")]
        _ => {
            let function = match count {
                1 => avx2::<1>,
                2 => avx2::<2>,
                3 => avx2::<3>,
                4 => avx2::<4>,
                5 => avx2::<5>,
                _ => avx2::<6>,
            };
            assert!(rows.len() * NR == count * b.len());
            // SAFETY: both other levels have AVX2, and rows and panel have the same length.
            unsafe { function(rows, b, sums) }
        }
    }
}

fn portable(count: usize, rows: &[i32], b: &[i32], sums: &mut [[i32; NR]; MR]) {
    let pairs = b.len() / NR;
    for (row, sums) in rows.chunks_exact(pairs).zip(&mut sums[..count]) {
        for (a, b) in row.iter().zip(b.chunks_exact(NR)) {
            let (low, high) = unpack_pair(*a);
            for (sum, b) in sums.iter_mut().zip(b) {
                let (b_low, b_high) = unpack_pair(*b);
                *sum = sum.wrapping_add((low * b_low).wrapping_add(high * b_high));
            }
        }
    }
}

/// Same as [`tile`], for unpacked elements of A.
fn wide_tile(shape: &IntGemmShape, a: &[i32], b: &[i32], sums: &mut [[i32; NR]; MR]) {
    for (row, sums) in a.chunks_exact(shape.k).zip(sums) {
        for (a, b) in row.chunks(2).zip(b.chunks_exact(NR)) {
            let (low, high) = (a[0], a.get(1).copied().unwrap_or(0));
            for (sum, b) in sums.iter_mut().zip(b) {
                let (b_low, b_high) = unpack_pair(*b);
                let both = low
                    .wrapping_mul(b_low)
                    .wrapping_add(high.wrapping_mul(b_high));
                *sum = sum.wrapping_add(both);
            }
        }
    }
}

/// # Safety
/// The machine has AVX2; `rows` are `R` rows of as many pairs as the panel has steps.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const R: usize>(rows: &[i32], b: &[i32], sums: &mut [[i32; NR]; MR]) {
    use std::arch::x86_64::{
        _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_storeu_si256,
    };
    let pairs = b.len() / NR;
    let mut acc = [[_mm256_setzero_si256(); 2]; R];
    let (mut b, a) = (b.as_ptr(), rows.as_ptr());
    for p in 0..pairs {
        let columns = [
            _mm256_loadu_si256(b.cast()),
            _mm256_loadu_si256(b.add(8).cast()),
        ];
        for i in 0..R {
            let x = _mm256_set1_epi32(*a.add(i * pairs + p));
            for v in 0..2 {
                acc[i][v] = _mm256_add_epi32(acc[i][v], _mm256_madd_epi16(x, columns[v]));
            }
        }
        b = b.add(NR);
    }
    for i in 0..R {
        let to = sums[i].as_mut_ptr();
        _mm256_storeu_si256(to.cast(), acc[i][0]);
        _mm256_storeu_si256(to.add(8).cast(), acc[i][1]);
    }
}

/// Computes `c = a b` for an unpacked B `[k, n]`.
///
/// # Panics
/// If a slice does not have the length of the shape.
pub fn int_gemm_wide(
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    b: &[i32],
    c: &mut [i32],
) {
    let &IntGemmShape { m, k, n } = shape;
    assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n));
    let threads = match m * n * k < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let out = SharedMut::new(c);
    parallel::for_each(threads, m, |i| {
        // SAFETY: each task writes its own row of C.
        let c = unsafe { out.slice(i * n, n) };
        c.fill(0);
        for (a, b) in a[i * k..][..k].iter().zip(b.chunks_exact(n.max(1))) {
            for (c, b) in c.iter_mut().zip(b) {
                *c = c.wrapping_add(a.wrapping_mul(*b));
            }
        }
    });
}
