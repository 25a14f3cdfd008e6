//! Kernels over contiguous rows: reductions, softmax, norms, scans, RoPE.
//!
//! Sums use four vectors of lanes, which are then added as a tree, in an order that depends only on
//! the length. The number of rows is `data.len() / cols`; a row length of 0 is valid. Functions
//! over many rows run on one thread; callers distribute row ranges over threads.
//!
//! # Panics
//! All functions panic if slices disagree with the sizes.

use super::SimdLevel;
use super::simd::{Simd, simd_dispatch};
use super::vmath::scalar;

simd_dispatch!(
    /// Sum of a row; 0 if it is empty.
    pub fn sum(x: &[f32]) -> f32 = sum_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn sum_body<S: Simd>(x: &[f32]) -> f32 {
    reduce::<S>(x, |v| v)
}

/// Sum of `f` over a row; `f(0)` must be 0.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn reduce<S: Simd>(x: &[f32], f: impl Fn(S::V) -> S::V) -> f32 {
    let mut acc = [S::splat(0.0); 4];
    let p = x.as_ptr();
    let mut i = 0;
    while i + 4 * S::LANES <= x.len() {
        for (v, acc) in acc.iter_mut().enumerate() {
            *acc = S::add(*acc, f(S::load(p.add(i + v * S::LANES))));
        }
        i += 4 * S::LANES;
    }
    while i < x.len() {
        let lanes = S::LANES.min(x.len() - i);
        acc[0] = S::add(acc[0], f(S::load_n(p.add(i), lanes)));
        i += lanes;
    }
    S::sum(S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3])))
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn sum_of_squares<S: Simd>(x: &[f32]) -> f32 {
    reduce::<S>(x, |v| S::mul(v, v))
}

/// Folds into sixteen accumulators and then combines them, in a fixed order that the compiler can
/// vectorize.
#[inline(always)]
fn fold_lanes(x: &[f32], init: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [init; 16];
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        for (acc, x) in acc.iter_mut().zip(chunk) {
            *acc = f(*acc, *x);
        }
    }
    for (acc, x) in acc.iter_mut().zip(tail) {
        *acc = f(*acc, *x);
    }
    acc.into_iter().reduce(&f).unwrap_or(init)
}

/// Maximum of the elements that are not NaN; `-inf` if there is none.
#[inline(always)]
pub(crate) fn max_ignoring_nan(x: &[f32]) -> f32 {
    fold_halves(x, f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Like [`fold_lanes`], for functions that do not depend on the order: the accumulators are
/// combined as a tree.
#[inline(always)]
fn fold_halves(x: &[f32], init: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [init; 32];
    let (chunks, tail) = x.as_chunks::<32>();
    for chunk in chunks {
        for (acc, x) in acc.iter_mut().zip(chunk) {
            *acc = f(*acc, *x);
        }
    }
    for (acc, x) in acc.iter_mut().zip(tail) {
        *acc = f(*acc, *x);
    }
    let mut lanes = acc.len();
    while lanes > 1 {
        lanes /= 2;
        let (low, high) = acc.split_at_mut(lanes);
        for (low, high) in low.iter_mut().zip(high) {
            *low = f(*low, *high);
        }
    }
    acc[0]
}

/// First NaN of a row.
#[inline(always)]
fn nan(x: &[f32]) -> Option<f32> {
    x.iter().copied().find(|x| x.is_nan())
}

/// True if the row contains a zero of this sign.
#[inline(always)]
fn has(zero: f32, x: &[f32]) -> bool {
    let is = |x: &f32| x.to_bits() == zero.to_bits();
    x.iter().fold(false, |any, x| any | is(x))
}

/// Maximum of `x`, or of `-x` if `NEGATES`, over the elements that are not NaN, and whether all
/// elements are finite. If not, some may be NaN.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn extreme<S: Simd, const NEGATES: bool>(x: &[f32]) -> (f32, bool) {
    const WAYS: usize = 4;
    let mut most = [S::splat(f32::NEG_INFINITY); WAYS];
    // The products with 0 add up to NaN if an element is not finite.
    let mut zeros = [S::splat(0.0); WAYS];
    let (p, zero) = (x.as_ptr(), S::splat(0.0));
    let signed = |x: S::V| match NEGATES {
        true => S::mul(x, S::splat(-1.0)),
        false => x,
    };
    let mut i = 0;
    while i + WAYS * S::LANES <= x.len() {
        for way in 0..WAYS {
            let x = S::load(p.add(i + way * S::LANES));
            most[way] = S::max(signed(x), most[way]);
            zeros[way] = S::fma(x, zero, zeros[way]);
        }
        i += WAYS * S::LANES;
    }
    while i < x.len() {
        // The last vector may overlap with the one before it.
        let n = S::LANES.min(x.len());
        let at = i.min(x.len() - n);
        let x = S::load_n(p.add(at), n);
        zeros[0] = S::fma(x, zero, zeros[0]);
        if n < S::LANES {
            // The other lanes of the vector are 0, which may be greater than all elements.
            let mut lanes = [f32::NEG_INFINITY; MAX_LANES];
            S::store_n(lanes.as_mut_ptr(), signed(x), n);
            most[0] = S::max(S::load(lanes.as_ptr()), most[0]);
        } else {
            most[0] = S::max(signed(x), most[0]);
        }
        i += n;
    }
    let most = S::max(S::max(most[0], most[1]), S::max(most[2], most[3]));
    let zeros = S::add(S::add(zeros[0], zeros[1]), S::add(zeros[2], zeros[3]));
    (S::greatest(most), S::sum(zeros) == 0.0)
}

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;

simd_dispatch!(
    /// Maximum of a row, NaN if any element is NaN; `-inf` if it is empty.
    pub fn max(x: &[f32]) -> f32 = max_body
);
simd_dispatch!(
    /// Minimum of a row, NaN if any element is NaN; `inf` if it is empty.
    pub fn min(x: &[f32]) -> f32 = min_body
);
simd_dispatch!(
    /// Product of a row; 1 if it is empty.
    pub fn prod(x: &[f32]) -> f32 = prod_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn max_body<S: Simd>(x: &[f32]) -> f32 {
    let (most, finite) = extreme::<S, false>(x);
    match if finite { None } else { nan(x) } {
        Some(nan) => nan,
        None if most == 0.0 && has(0.0, x) => 0.0,
        None if most == 0.0 => -0.0,
        None => most,
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn min_body<S: Simd>(x: &[f32]) -> f32 {
    let (most, finite) = extreme::<S, true>(x);
    match if finite { None } else { nan(x) } {
        Some(nan) => nan,
        None if most == 0.0 && has(-0.0, x) => -0.0,
        None if most == 0.0 => 0.0,
        None => -most,
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn prod_body<S: Simd>(x: &[f32]) -> f32 {
    fold_lanes(x, 1.0, |a, b| a * b)
}

/// Mean of a row; NaN if it is empty.
#[must_use]
pub fn mean(level: SimdLevel, x: &[f32]) -> f32 {
    sum(level, x) / x.len() as f32
}

/// Index of the maximum element; ties go to the lower index, and NaN counts as the maximum. 0 if
/// the row is empty.
#[must_use]
pub fn argmax(level: SimdLevel, x: &[f32]) -> usize {
    let best = max(level, x);
    x.iter().position(|v| *v == best || v.is_nan()).unwrap_or(0)
}

/// Index of the minimum element, with the rules of [`argmax`].
#[must_use]
pub fn argmin(level: SimdLevel, x: &[f32]) -> usize {
    let best = min(level, x);
    x.iter().position(|v| *v == best || v.is_nan()).unwrap_or(0)
}

simd_dispatch!(
    /// Softmax of each row of `cols`; a row of only `-inf` becomes zeros.
    pub fn softmax(x: &[f32], cols: usize, out: &mut [f32]) = softmax_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn softmax_body<S: Simd>(x: &[f32], cols: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (x, out) in x
        .chunks_exact(cols.max(1))
        .zip(out.chunks_exact_mut(cols.max(1)))
    {
        let Some((_, sum)) = exp_row::<S>(x, out) else {
            out.fill(0.0);
            continue;
        };
        let scale = 1.0 / sum;
        out.iter_mut().for_each(|y| *y *= scale);
    }
}

/// Computes `out = e^(x - max)`. Returns the maximum and the sum of `out`; `None` if all elements
/// are `-inf`.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn exp_row<S: Simd>(x: &[f32], out: &mut [f32]) -> Option<(f32, f32)> {
    let max = max_body::<S>(x);
    (max != f32::NEG_INFINITY).then(|| (max, exp_sum_body::<S>(x, max, out)))
}

simd_dispatch!(
    /// Computes `out = e^(x - max)` for a `max` that no element exceeds, and returns the sum, added
    /// as by [`sum`].
    pub fn exp_sum(x: &[f32], max: f32, out: &mut [f32]) -> f32 = exp_sum_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn exp_sum_body<S: Simd>(x: &[f32], max: f32, out: &mut [f32]) -> f32 {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    let below = S::splat(-max);
    let mut acc = [S::splat(0.0); 4];
    let (p, to) = (x.as_ptr(), out.as_mut_ptr());
    let mut i = 0;
    while i + 4 * S::LANES <= x.len() {
        for (v, acc) in acc.iter_mut().enumerate() {
            let at = i + v * S::LANES;
            let e = scalar::exp_of_negative::<S>(S::add(S::load(p.add(at)), below));
            S::store(to.add(at), e);
            *acc = S::add(*acc, e);
        }
        i += 4 * S::LANES;
    }
    while i < x.len() {
        let lanes = S::LANES.min(x.len() - i);
        let e = scalar::exp_of_negative::<S>(S::add(S::load_n(p.add(i), lanes), below));
        S::store_n(to.add(i), e, lanes);
        // Without the lanes past the end.
        acc[0] = S::add(acc[0], S::load_n(to.add(i), lanes));
        i += lanes;
    }
    S::sum(S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3])))
}

simd_dispatch!(
    /// Computes `x - max - ln(sum(e^(x - max)))` for each row of `cols`.
    pub fn log_softmax(x: &[f32], cols: usize, out: &mut [f32]) = log_softmax_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn log_softmax_body<S: Simd>(x: &[f32], cols: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (x, out) in x
        .chunks_exact(cols.max(1))
        .zip(out.chunks_exact_mut(cols.max(1)))
    {
        let Some((max, sum)) = exp_row::<S>(x, out) else {
            // If all elements are `-inf`, all results are `-inf`.
            out.copy_from_slice(x);
            continue;
        };
        let log = scalar::ln::<S>(sum);
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - max) - log;
        }
    }
}

/// Kind of row norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowNormKind {
    /// Layer norm: `(x - mean) / sqrt(var + eps)`.
    Layer,
    /// RMS norm: `x / sqrt(mean(x^2) + eps)`.
    Rms,
}

simd_dispatch!(
    /// Normalizes each row of `gamma.len()` elements, multiplies by `gamma` and adds `beta`.
    pub fn norm(kind: RowNormKind, eps: f32, x: &[f32], gamma: &[f32], beta: Option<&[f32]>, out: &mut [f32]) = norm_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn norm_body<S: Simd>(
    kind: RowNormKind,
    eps: f32,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    let cols = gamma.len().max(1);
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
        norm_row::<S>(kind, eps, x, gamma, beta, out);
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn norm_row<S: Simd>(
    kind: RowNormKind,
    eps: f32,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    out: &mut [f32],
) {
    let n = x.len() as f32;
    let (mean, rest, square) = match kind {
        RowNormKind::Rms => (0.0, 0.0, sum_of_squares::<S>(x) / n),
        RowNormKind::Layer => {
            let mean = sum_body::<S>(x) / n;
            // The variance comes from a second pass over the deviations, which avoids cancellation.
            // The mean of the deviations is the rounding error of the mean.
            for (out, x) in out.iter_mut().zip(x) {
                *out = x - mean;
            }
            let rest = sum_body::<S>(out) / n;
            let square = sum_of_squares::<S>(out) / n - rest * rest;
            (mean, rest, if square < 0.0 { 0.0 } else { square })
        }
    };
    if !(square.is_finite() && square + eps >= MIN_MEAN_SQUARE) {
        norm_wide(kind, eps, x, gamma, beta, out);
        return;
    }
    let scale = 1.0 / (square + eps).sqrt();
    match beta {
        Some(beta) => {
            assert_eq!(beta.len(), gamma.len(), "beta and gamma differ in length");
            for (((out, x), g), b) in out.iter_mut().zip(x).zip(gamma).zip(beta) {
                *out = S::fmaf(((x - mean) - rest) * scale, *g, *b);
            }
        }
        None => {
            for ((out, x), g) in out.iter_mut().zip(x).zip(gamma) {
                *out = ((x - mean) - rest) * scale * g;
            }
        }
    }
}

/// Below this mean square, squares of elements may have underflowed in f32.
const MIN_MEAN_SQUARE: f32 = 1e-28;

/// Normalizes in f64 a row whose squares leave the range of f32, or which is not finite.
#[cold]
#[inline(never)]
fn norm_wide(
    kind: RowNormKind,
    eps: f32,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    out: &mut [f32],
) {
    let n = x.len() as f64;
    let mean = match kind {
        RowNormKind::Rms => 0.0,
        RowNormKind::Layer => x.iter().map(|x| f64::from(*x)).sum::<f64>() / n,
    };
    let square = |x: &f32| (f64::from(*x) - mean).powi(2);
    let scale = 1.0 / (x.iter().map(square).sum::<f64>() / n + f64::from(eps)).sqrt();
    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
        let y = (f64::from(*x) - mean) * scale * f64::from(gamma[i]);
        *out = (y + beta.map_or(0.0, |b| f64::from(b[i]))) as f32;
    }
}

simd_dispatch!(
    /// Computes `sum = x + residual (+ bias)` and `out = norm(sum)`; writes both.
    pub fn residual_norm(
        kind: RowNormKind,
        eps: f32,
        x: &[f32],
        residual: &[f32],
        bias: Option<&[f32]>,
        gamma: &[f32],
        beta: Option<&[f32]>,
        out: &mut [f32],
        sum: &mut [f32],
    ) = residual_norm_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "two inputs, parameters, two outputs"
)]
unsafe fn residual_norm_body<S: Simd>(
    kind: RowNormKind,
    eps: f32,
    x: &[f32],
    residual: &[f32],
    bias: Option<&[f32]>,
    gamma: &[f32],
    beta: Option<&[f32]>,
    out: &mut [f32],
    sum: &mut [f32],
) {
    let n = x.len();
    assert!(
        residual.len() == n && out.len() == n && sum.len() == n,
        "operands differ in length"
    );
    let cols = gamma.len().max(1);
    for row in (0..n).step_by(cols) {
        let at = row..row + cols;
        let sum = &mut sum[at.clone()];
        for ((s, x), r) in sum
            .iter_mut()
            .zip(&x[at.clone()])
            .zip(&residual[at.clone()])
        {
            *s = x + r;
        }
        if let Some(bias) = bias {
            for (s, b) in sum.iter_mut().zip(bias) {
                *s += b;
            }
        }
        norm_row::<S>(kind, eps, sum, gamma, beta, &mut out[at]);
    }
}

/// Options of a scan along a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowScanKind {
    /// Exclusive scan: each result omits its own element.
    pub exclusive: bool,
    /// Scans from the end to the start.
    pub reverse: bool,
}

/// Cumulative sum of each row of `cols`, in order, accumulated in f64.
pub fn cumsum(scan: RowScanKind, x: &[f32], cols: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (x, out) in x
        .chunks_exact(cols.max(1))
        .zip(out.chunks_exact_mut(cols.max(1)))
    {
        let mut sum = 0f64;
        for step in 0..cols {
            let i = if scan.reverse { cols - 1 - step } else { step };
            let before = sum;
            sum += f64::from(x[i]);
            out[i] = (if scan.exclusive { before } else { sum }) as f32;
        }
    }
}

/// Pairs of elements that RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Element `i` with `i + n_rot / 2`.
    NeoX,
    /// Element `2 i` with `2 i + 1`.
    GptJ,
}

simd_dispatch!(
    /// Applies RoPE to one head of one token. `cos` and `sin` contain `n_rot / 2` values each;
    /// elements beyond `n_rot` are copied.
    pub fn rope(pairs: RopePairs, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) = rope_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn rope_body<S: Simd>(
    pairs: RopePairs,
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    out: &mut [f32],
) {
    let half = cos.len();
    assert!(
        sin.len() == half && x.len() == out.len() && 2 * half <= x.len(),
        "sizes of rope operands disagree"
    );
    match pairs {
        RopePairs::NeoX => {
            let ((x0, x1), (out0, out1)) = (
                x[..2 * half].split_at(half),
                out[..2 * half].split_at_mut(half),
            );
            for i in 0..half {
                out0[i] = x0[i] * cos[i] - x1[i] * sin[i];
                out1[i] = x0[i] * sin[i] + x1[i] * cos[i];
            }
        }
        RopePairs::GptJ => {
            for i in 0..half {
                let (a, b) = (x[2 * i], x[2 * i + 1]);
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = a * sin[i] + b * cos[i];
            }
        }
    }
    out[2 * half..].copy_from_slice(&x[2 * half..]);
}
