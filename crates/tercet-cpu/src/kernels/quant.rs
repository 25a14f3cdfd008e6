//! `y[m, n] = x[m, k] W[n, k]^T` with W in GGUF blocks and `x` in f32.
//!
//! The activations are never quantised: weights become floats in registers (few
//! rows) or one panel at a time in scratch (many rows), so the answer differs
//! from the dequantised product only by the order of its sums.
//!
//! Few rows: each row of W is one dot product per row of `x`, read once from
//! memory. Many rows: [`MANY_ROWS`] and more go through the packed tile kernel.

use tercet_ir::Scheme;

use super::convert::f16_bits_to_f32;
use super::gemm::{self, Epilogue, MatView, PackedB};
use super::parallel::{self, SharedMut, Threads};
use super::simd::{Simd, SimdLevel, simd_dispatch};

/// Rows of `x` from which a dequantised panel pays.
const MANY_ROWS: usize = 5;
/// Columns of y that one task covers when rows are many.
const PANEL_COLS: usize = 64;
/// Rows of W that one task covers when rows are few.
const ROWS_PER_TASK: usize = 16;

/// Packed weights of `n` rows of `k`.
#[derive(Clone, Copy, Debug)]
pub struct QuantView<'a> {
    /// The block format.
    pub scheme: Scheme,
    /// `n` rows of `scheme.row_bytes(k)` bytes.
    pub bytes: &'a [u8],
    /// Rows: outputs.
    pub n: usize,
    /// Weights of a row: whole blocks.
    pub k: usize,
}

impl QuantView<'_> {
    fn row_bytes(&self) -> usize {
        self.k / self.scheme.block_len() * self.scheme.block_bytes()
    }
}

/// Floats of scratch that [`quant_matmul`] needs for `m` rows.
#[must_use]
pub fn quant_matmul_scratch_len(level: SimdLevel, threads: Threads, m: usize, k: usize) -> usize {
    if m < MANY_ROWS {
        0
    } else {
        threads.count() * panel_scratch(level, m, k)
    }
}

/// Row-major panel, packed panel, packed A of one task.
fn panel_scratch(level: SimdLevel, m: usize, k: usize) -> usize {
    PANEL_COLS * k
        + gemm::packed_b_len(level, k, PANEL_COLS)
        + gemm::gemm_packed_scratch_len(level, Threads::Serial, m, k)
}

/// `y[i * y_stride + j] = epilogue(sum_p x[i, p] w[j, p])`.
///
/// # Panics
/// If `k` is not whole blocks, sizes disagree, `x` has a column stride other
/// than 1, or `scratch` is shorter than [`quant_matmul_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn quant_matmul(
    level: SimdLevel,
    threads: Threads,
    x: MatView<'_>,
    w: QuantView<'_>,
    y: &mut [f32],
    y_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    let (m, n, k) = (x.rows, w.n, w.k);
    x.check();
    assert!(
        x.cols == k && (x.col_stride == 1 || k <= 1),
        "x must have {k} contiguous columns"
    );
    assert_eq!(k % w.scheme.block_len(), 0, "k is not whole blocks");
    assert!(
        w.bytes.len() >= n * w.row_bytes(),
        "the weights are too short"
    );
    epilogue.check(m, n);
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        y_stride >= n && (m - 1) * y_stride + n <= y.len(),
        "y is too short"
    );
    let out = SharedMut::new(y);
    if m < MANY_ROWS {
        parallel::for_each(threads, n.div_ceil(ROWS_PER_TASK), |task| {
            let rows = task * ROWS_PER_TASK..n.min((task + 1) * ROWS_PER_TASK);
            few_rows(level, &x, &w, rows, out, y_stride, epilogue);
        });
        return;
    }
    let part = panel_scratch(level, m, k);
    parallel::for_each_with_scratch(
        threads,
        n.div_ceil(PANEL_COLS),
        scratch,
        part,
        |task, scratch| {
            let cols = task * PANEL_COLS..n.min((task + 1) * PANEL_COLS);
            let (rows, scratch) = scratch.split_at_mut(PANEL_COLS * k);
            let (panel, scratch) = scratch.split_at_mut(gemm::packed_b_len(level, k, PANEL_COLS));
            let rows = &mut rows[..cols.len() * k];
            dequantize_rows(level, &w, cols.clone(), rows);
            let view = MatView::row_major(rows, cols.len(), k).transposed();
            gemm::pack_b(level, Threads::Serial, view, panel);
            let b = PackedB::new(level, panel, k, cols.len());
            // Tasks own disjoint columns of y.
            gemm::gemm_packed_columns(level, x, b, out, y_stride, cols.start, epilogue, scratch);
        },
    );
}

/// Writes the rows `rows` of W as floats.
///
/// # Panics
/// If `out` is shorter than `rows.len() * k`.
pub fn dequantize_rows(
    level: SimdLevel,
    w: &QuantView<'_>,
    rows: std::ops::Range<usize>,
    out: &mut [f32],
) {
    dequantize_rows_simd(level, w, rows, out);
}

simd_dispatch!(
    fn dequantize_rows_simd(w: &QuantView<'_>, rows: std::ops::Range<usize>, out: &mut [f32]) = dequantize_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn dequantize_body<S: Simd>(
    w: &QuantView<'_>,
    rows: std::ops::Range<usize>,
    out: &mut [f32],
) {
    let bytes = &w.bytes[rows.start * w.row_bytes()..rows.end * w.row_bytes()];
    let out = &mut out[..rows.len() * w.k];
    let (len, size) = (w.scheme.block_len(), w.scheme.block_bytes());
    match w.scheme {
        Scheme::F16 | Scheme::BF16 => {
            let whole = out.len() / S::LANES * S::LANES;
            for i in (0..whole).step_by(S::LANES) {
                S::store(
                    out.as_mut_ptr().add(i),
                    load_half::<S>(w.scheme, bytes.as_ptr().add(2 * i)),
                );
            }
            for i in whole..out.len() {
                w.scheme
                    .dequantize_block(&bytes[2 * i..2 * i + 2], &mut out[i..i + 1]);
            }
        }
        Scheme::Q4_0
        | Scheme::Q4_1
        | Scheme::Q5_0
        | Scheme::Q5_1
        | Scheme::Q8_0
        | Scheme::Q2K
        | Scheme::Q3K
        | Scheme::Q4K
        | Scheme::Q5K
        | Scheme::Q6K => {
            for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(len)) {
                w.scheme.dequantize_block(block, out);
            }
        }
    }
}

/// # Safety
/// `p` is valid for `2 * LANES` bytes; needs the instructions of `S`.
#[inline(always)]
unsafe fn load_half<S: Simd>(scheme: Scheme, p: *const u8) -> S::V {
    if scheme == Scheme::F16 {
        S::from_f16(p.cast())
    } else {
        S::from_bf16(p.cast())
    }
}

simd_dispatch!(
    fn few_rows(
        x: &MatView<'_>,
        w: &QuantView<'_>,
        rows: std::ops::Range<usize>,
        out: SharedMut<f32>,
        stride: usize,
        epilogue: &Epilogue<'_>,
    ) = few_rows_body
);

/// # Safety
/// Needs the instructions of `S`; no other task touches the columns `rows` of y.
#[inline(always)]
unsafe fn few_rows_body<S: Simd>(
    x: &MatView<'_>,
    w: &QuantView<'_>,
    rows: std::ops::Range<usize>,
    out: SharedMut<f32>,
    stride: usize,
    epilogue: &Epilogue<'_>,
) {
    let row_bytes = w.row_bytes();
    for j in rows.clone() {
        let bytes = &w.bytes[j * row_bytes..(j + 1) * row_bytes];
        for i in 0..x.rows {
            let x = &x.data[i * x.row_stride..i * x.row_stride + w.k];
            *out.ptr().add(i * stride + j) = dot::<S>(w.scheme, bytes, x);
        }
    }
    if !epilogue.is_none() {
        for i in 0..x.rows {
            let y = out.slice(i * stride + rows.start, rows.len());
            epilogue.apply::<S>(y, i, rows.start);
        }
    }
}

/// One row of weights times one row of activations.
///
/// # Safety
/// Needs the instructions of `S`; `bytes` are the blocks of `x.len()` weights.
#[inline(always)]
unsafe fn dot<S: Simd>(scheme: Scheme, bytes: &[u8], x: &[f32]) -> f32 {
    match scheme {
        Scheme::F16 => dot_half::<S, false>(bytes, x),
        Scheme::BF16 => dot_half::<S, true>(bytes, x),
        Scheme::Q8_0 => dot_blocks::<S, Q8_0, 34, 32>(scheme, bytes, x),
        Scheme::Q4_0 => dot_blocks::<S, Q4_0, 18, 32>(scheme, bytes, x),
        Scheme::Q4K => dot_blocks::<S, Q4K, 144, 256>(scheme, bytes, x),
        Scheme::Q6K => dot_blocks::<S, Q6K, 210, 256>(scheme, bytes, x),
        Scheme::Q4_1 => dot_blocks::<S, Decoded<32>, 20, 32>(scheme, bytes, x),
        Scheme::Q5_0 => dot_blocks::<S, Decoded<32>, 22, 32>(scheme, bytes, x),
        Scheme::Q5_1 => dot_blocks::<S, Decoded<32>, 24, 32>(scheme, bytes, x),
        Scheme::Q2K => dot_blocks::<S, Decoded<256>, 84, 256>(scheme, bytes, x),
        Scheme::Q3K => dot_blocks::<S, Decoded<256>, 110, 256>(scheme, bytes, x),
        Scheme::Q5K => dot_blocks::<S, Decoded<256>, 176, 256>(scheme, bytes, x),
    }
}

/// The half at byte `at`.
#[inline(always)]
fn half_at(b: &[u8], at: usize) -> f32 {
    f16_bits_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

/// Adds one block's products to four accumulators. A trait, not a closure: its
/// body must be inlined into the function that has the level's features.
trait BlockDot<const BYTES: usize> {
    /// # Safety
    /// Needs the instructions of `S`; `x` is valid for the block's weights.
    unsafe fn add<S: Simd>(scheme: Scheme, b: &[u8; BYTES], x: *const f32, acc: &mut [S::V; 4]);
}

struct Q8_0;

impl BlockDot<34> for Q8_0 {
    #[inline(always)]
    unsafe fn add<S: Simd>(_: Scheme, b: &[u8; 34], x: *const f32, acc: &mut [S::V; 4]) {
        let scale = S::splat(half_at(b, 0));
        for (v, i) in (0..32).step_by(S::LANES).enumerate() {
            let q = S::from_i8(b.as_ptr().add(2 + i).cast());
            acc[v % 4] = S::fma(S::mul(q, S::load(x.add(i))), scale, acc[v % 4]);
        }
    }
}

struct Q4_0;

impl BlockDot<18> for Q4_0 {
    #[inline(always)]
    unsafe fn add<S: Simd>(_: Scheme, b: &[u8; 18], x: *const f32, acc: &mut [S::V; 4]) {
        let scale = S::splat(half_at(b, 0));
        let eight = S::splat(-8.0);
        for (v, i) in (0..16).step_by(S::LANES).enumerate() {
            let low = S::add(S::from_nibbles::<false>(b.as_ptr().add(2 + i)), eight);
            let high = S::add(S::from_nibbles::<true>(b.as_ptr().add(2 + i)), eight);
            acc[v] = S::fma(S::mul(low, S::load(x.add(i))), scale, acc[v]);
            acc[v + 2] = S::fma(S::mul(high, S::load(x.add(16 + i))), scale, acc[v + 2]);
        }
    }
}

struct Q4K;

impl BlockDot<144> for Q4K {
    #[inline(always)]
    unsafe fn add<S: Simd>(_: Scheme, b: &[u8; 144], x: *const f32, acc: &mut [S::V; 4]) {
        let (d, dmin) = (half_at(b, 0), half_at(b, 2));
        let packed: &[u8; 12] = &*b.as_ptr().add(4).cast();
        for pair in 0..4 {
            let (low, low_min) = tercet_ir::quant::scale_and_min(packed, 2 * pair);
            let (high, high_min) = tercet_ir::quant::scale_and_min(packed, 2 * pair + 1);
            let (sl, ml) = (
                S::splat(d * f32::from(low)),
                S::splat(-dmin * f32::from(low_min)),
            );
            let (sh, mh) = (
                S::splat(d * f32::from(high)),
                S::splat(-dmin * f32::from(high_min)),
            );
            let (q, x) = (b.as_ptr().add(16 + 32 * pair), x.add(64 * pair));
            for (v, i) in (0..32).step_by(S::LANES).enumerate() {
                let wl = S::fma(S::from_nibbles::<false>(q.add(i)), sl, ml);
                let wh = S::fma(S::from_nibbles::<true>(q.add(i)), sh, mh);
                acc[v % 2] = S::fma(wl, S::load(x.add(i)), acc[v % 2]);
                acc[2 + v % 2] = S::fma(wh, S::load(x.add(32 + i)), acc[2 + v % 2]);
            }
        }
    }
}

struct Q6K;

impl BlockDot<210> for Q6K {
    #[inline(always)]
    unsafe fn add<S: Simd>(_: Scheme, b: &[u8; 210], x: *const f32, acc: &mut [S::V; 4]) {
        let d = half_at(b, 208);
        // The six bits are put together as bytes, which the compiler
        // vectorises, then widened like those of Q8_0.
        let mut q = [0i8; 256];
        for half in 0..2 {
            let (ql, qh) = (
                &b[64 * half..64 * half + 64],
                &b[128 + 32 * half..160 + 32 * half],
            );
            let q = &mut q[128 * half..128 * half + 128];
            for i in 0..32 {
                q[i] = ((ql[i] & 15) | ((qh[i] & 3) << 4)) as i8 - 32;
                q[i + 32] = ((ql[i + 32] & 15) | (((qh[i] >> 2) & 3) << 4)) as i8 - 32;
                q[i + 64] = ((ql[i] >> 4) | (((qh[i] >> 4) & 3) << 4)) as i8 - 32;
                q[i + 96] = ((ql[i + 32] >> 4) | ((qh[i] >> 6) << 4)) as i8 - 32;
            }
        }
        for group in 0..16 {
            let scale = S::splat(d * f32::from(b[192 + group] as i8));
            for (v, i) in (0..16).step_by(S::LANES).enumerate() {
                let at = 16 * group + i;
                let product = S::mul(S::from_i8(q.as_ptr().add(at)), S::load(x.add(at)));
                let a = 2 * (group % 2) + v;
                acc[a] = S::fma(product, scale, acc[a]);
            }
        }
    }
}

/// Any scheme: a block of `LEN` is decoded to the stack, then multiplied.
struct Decoded<const LEN: usize>;

impl<const BYTES: usize, const LEN: usize> BlockDot<BYTES> for Decoded<LEN> {
    #[inline(always)]
    unsafe fn add<S: Simd>(scheme: Scheme, b: &[u8; BYTES], x: *const f32, acc: &mut [S::V; 4]) {
        let mut w = [0.0f32; LEN];
        scheme.dequantize_block(b, &mut w);
        for (v, i) in (0..LEN).step_by(S::LANES).enumerate() {
            acc[v % 4] = S::fma(S::load(w.as_ptr().add(i)), S::load(x.add(i)), acc[v % 4]);
        }
    }
}

/// # Safety
/// Needs the instructions of `S`; `bytes` are the blocks of `x.len()` weights.
#[inline(always)]
unsafe fn dot_blocks<S: Simd, B: BlockDot<BYTES>, const BYTES: usize, const LEN: usize>(
    scheme: Scheme,
    bytes: &[u8],
    x: &[f32],
) -> f32 {
    let mut acc = [S::splat(0.0); 4];
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (xs, _) = x.as_chunks::<LEN>();
    for (b, x) in blocks.iter().zip(xs) {
        B::add::<S>(scheme, b, x.as_ptr(), &mut acc);
    }
    S::sum(S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3])))
}

/// # Safety
/// Needs the instructions of `S`; `bytes` are `2 * x.len()`.
#[inline(always)]
unsafe fn dot_half<S: Simd, const BF16: bool>(bytes: &[u8], x: &[f32]) -> f32 {
    let mut acc = [S::splat(0.0); 4];
    let (p, step) = (bytes.as_ptr(), 4 * S::LANES);
    let mut i = 0;
    while i + step <= x.len() {
        for (v, acc) in acc.iter_mut().enumerate() {
            let at = i + v * S::LANES;
            *acc = S::fma(
                load_half::<S>(if BF16 { Scheme::BF16 } else { Scheme::F16 }, p.add(2 * at)),
                S::load(x.as_ptr().add(at)),
                *acc,
            );
        }
        i += step;
    }
    let mut sum = S::sum(S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3])));
    for (i, x) in x.iter().enumerate().skip(i) {
        let bits = u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        let w = if BF16 {
            f32::from_bits(u32::from(bits) << 16)
        } else {
            f16_bits_to_f32(bits)
        };
        sum = S::fmaf(w, *x, sum);
    }
    sum
}
