//! Decompositions of Fourier transforms and spectral features. Long transforms and those of large
//! prime lengths are computed from others, and real transforms from complex ones.
//!
//! Twiddle factors are tables, computed in `f64`. Narrower operands are widened to F32.

use tercet_tensor::{Dim, Shape, Tensor, TensorType};

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::attr::FloatAttr;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::fft::{dft, root, roots, times};
use crate::ops::log_mel::{MIN_POWER, RANGE};
use crate::ops::welch_peaks::weight;
use crate::ops::{
    AxisMap, Concat, DynamicSlice, Fft, FftNorm, Gather, IndexMap, Map, MapArg, MapStep, Op,
    OpKind, Pad, PadMode, RFft, Reduce, ReduceFn, TopK,
};
use crate::scalar::{BinaryFn, ScalarOp, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "fft_in_four_steps",
        on: OpKind::Fft,
        apply: four_steps,
    },
    LegalizeRule {
        name: "fft_of_a_large_prime_as_convolution",
        on: OpKind::Fft,
        apply: convolution,
    },
    LegalizeRule {
        name: "rfft_as_fft_of_half_the_length",
        on: OpKind::RFft,
        apply: rfft,
    },
    LegalizeRule {
        name: "irfft_as_fft_of_half_the_length",
        on: OpKind::IRFft,
        apply: irfft,
    },
    LegalizeRule {
        name: "stft_as_rfft_of_frames",
        on: OpKind::Stft,
        apply: stft,
    },
    LegalizeRule {
        name: "welch_peaks_as_powers_and_top_k",
        on: OpKind::WelchPeaks,
        apply: welch_peaks,
    },
    LegalizeRule {
        name: "log_mel_as_product_and_logarithm",
        on: OpKind::LogMel,
        apply: log_mel,
    },
];

/// The largest prime factor of the transform lengths that [`four_steps`] creates.
const GREATEST_RADIX: usize = 7;

/// The largest prime factor of `n`; 1 if `n` is 1.
pub fn greatest_prime(mut n: usize) -> usize {
    let (mut greatest, mut p) = (1, 2);
    while p * p <= n {
        if n.is_multiple_of(p) {
            (greatest, n) = (p, n / p);
        } else {
            p += 1;
        }
    }
    greatest.max(n)
}

/// `[.., n, 2]` as `[rows, n, 2]`, with the number of rows and `n`.
fn as_rows(
    b: &mut LegalizeBuilder<'_>,
    x: Value,
) -> Result<Option<(Value, Dim, usize)>, crate::OpError> {
    let shape = b.shape(x);
    let [batch @ .., n, _] = &shape[..] else {
        return Ok(None);
    };
    let (Some(rows), Some(n)) = (Shape::new(batch).numel(), n.known()) else {
        return Ok(None);
    };
    let x = b.reshape(x, vec![rows.clone(), n.into(), 2.into()])?;
    Ok(Some((x, rows, n)))
}

impl LegalizeBuilder<'_> {
    fn fft(&mut self, x: Value, inverse: bool, norm: FftNorm) -> ValueResult {
        self.add(Fft { inverse, norm }, &[x])
    }

    /// The first elements of each axis.
    fn prefix(&mut self, x: Value, sizes: Shape) -> ValueResult {
        let ty = TensorType::new(crate::DType::I32, &[sizes.rank()]);
        let starts = Tensor::from_f64s(ty, &vec![0.0; sizes.rank()]);
        let starts = starts.expect("invariant: as many values as elements");
        let starts = self.constant(starts)?;
        self.add(DynamicSlice { sizes }, &[x, starts])
    }

    /// A constant table in the dtype of `like`.
    fn table(&mut self, like: Value, shape: &[usize], values: &[f64]) -> ValueResult {
        let ty = TensorType::new(self.dtype(like), shape);
        let tensor = Tensor::from_f64s(ty, values).expect("invariant: as many values as elements");
        self.constant(tensor)
    }

    /// Reads `count` elements of axis 1 of `x [rows, .., 2]` from `start` by `step`, and multiplies
    /// them by a complex table over the axes after the first. With `conjugate`, multiplies the
    /// conjugates of `x`.
    fn multiply_by_twiddles(
        &mut self,
        x: Value,
        table: &[[f64; 2]],
        conjugate: bool,
        read: SpectralAxisRead,
    ) -> ValueResult {
        let mut shape = self.shape(x);
        shape.dims_mut()[1] = read.count.into();
        let rank = shape.rank();
        let sign = if conjugate { -1.0 } else { 1.0 };
        // (re c - im s, im c + re s), computed from the pair and the reversed pair.
        let same = table.iter().flat_map(|[c, _]| [*c, sign * c]);
        let crossed = table.iter().flat_map(|[_, s]| [-sign * s, *s]);
        let sizes: Vec<usize> = shape[1..].iter().filter_map(Dim::known).collect();
        let same = self.table(x, &sizes, &same.collect::<Vec<_>>())?;
        let crossed = self.table(x, &sizes, &crossed.collect::<Vec<_>>())?;
        let mut straight = IndexMap::identity(rank);
        (straight.axes[1].start, straight.axes[1].step) = (read.start, read.step);
        let mut swapped = straight.clone();
        (swapped.axes[rank - 1].start, swapped.axes[rank - 1].step) = (1, -1);
        let of_table = IndexMap {
            axes: (1..rank).map(AxisMap::axis).collect(),
        };
        let product = ScalarOp::Binary(BinaryFn::Mul);
        let map = Map {
            shape,
            inputs: vec![straight, swapped, of_table.clone(), of_table],
            body: vec![
                MapStep::new(product, [MapArg::Input(1), MapArg::Input(3)]),
                MapStep::new(
                    ScalarOp::Fma,
                    [MapArg::Input(0), MapArg::Input(2), MapArg::Step(0)],
                ),
            ],
            results: vec![1],
        };
        self.add(map, &[x, x, same, crossed])
    }
}

/// The elements of an axis that are read.
#[derive(Clone, Copy)]
struct SpectralAxisRead {
    start: i64,
    step: i64,
    count: usize,
}

impl SpectralAxisRead {
    /// The first `count` elements.
    fn first(count: usize) -> SpectralAxisRead {
        SpectralAxisRead {
            start: 0,
            step: 1,
            count,
        }
    }
}

/// A transform of `n = n1 n2` by transforms of `n1` and of `n2` (Bailey 1990). The rule transforms
/// the columns of the numbers as a matrix `n1 x n2`, multiplies by twiddle factors, and transforms
/// the rows.
fn four_steps(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Fft(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, given) = (b.dtype(x), b.shape(x));
    let Some((x, rows, n)) = as_rows(b, x)? else {
        return Ok(None);
    };
    let near_root = (1..=n.isqrt()).rev().find(|d| n.is_multiple_of(*d));
    let n1 = near_root.unwrap_or(1);
    if greatest_prime(n) > GREATEST_RADIX || n1 == 1 {
        return Ok(None);
    }
    let n2 = n / n1;
    let x = b.widen(x)?;
    let x = b.reshape(x, vec![rows.clone(), n1.into(), n2.into(), 2.into()])?;
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let x = b.fft(x, o.inverse, o.norm)?;
    let sign = if o.inverse { -1.0 } else { 1.0 };
    let turn = |i: usize| {
        let [re, im] = root(i / n1 * (i % n1), n);
        [re, sign * im]
    };
    let table: Vec<[f64; 2]> = (0..n).map(turn).collect();
    let x = b.multiply_by_twiddles(x, &table, false, SpectralAxisRead::first(n2))?;
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let x = b.fft(x, o.inverse, o.norm)?;
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let x = b.reshape(x, given)?;
    Ok(Some(vec![b.cast(x, dtype)?]))
}

/// Bluestein's transform (1970). Since `2 j k = j^2 + k^2 - (k - j)^2`, the transform is a
/// convolution with `e^(pi i j^2 / n)`, computed with power-of-two transforms.
fn convolution(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Fft(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, given) = (b.dtype(x), b.shape(x));
    let Some((x, _, n)) = as_rows(b, x)? else {
        return Ok(None);
    };
    if greatest_prime(n) <= GREATEST_RADIX {
        return Ok(None);
    }
    let m = (2 * n - 1).next_power_of_two();
    let x = b.widen(x)?;
    let sign = if o.inverse { -1.0 } else { 1.0 };
    let chirp = |j: usize| {
        let square = (j as u128 * j as u128) % (2 * n as u128);
        let [re, im] = root(square as usize, 2 * n);
        [re, sign * im]
    };
    let chirps: Vec<[f64; 2]> = (0..n).map(chirp).collect();
    let x = b.multiply_by_twiddles(x, &chirps, false, SpectralAxisRead::first(n))?;
    let (before, after) = (vec![0; 3], vec![0, m - n, 0]);
    let pad = Pad {
        before,
        after,
        mode: PadMode::Constant,
        value: FloatAttr(0.0),
    };
    let x = b.add(pad, &[x])?;
    let x = b.fft(x, false, FftNorm::Backward)?;
    let mut against = vec![[0.0; 2]; m];
    for (j, [re, im]) in chirps.iter().enumerate() {
        against[j] = [*re, -im];
        against[(m - j) % m] = [*re, -im];
    }
    let against = dft(&against, &roots(m, false));
    let x = b.multiply_by_twiddles(x, &against, false, SpectralAxisRead::first(m))?;
    let x = b.fft(x, true, FftNorm::Backward)?;
    let scale = o.norm.scale(o.inverse, n);
    let chirps: Vec<[f64; 2]> = chirps.iter().map(|c| c.map(|v| v * scale)).collect();
    let x = b.multiply_by_twiddles(x, &chirps, false, SpectralAxisRead::first(n))?;
    let x = b.reshape(x, given)?;
    Ok(Some(vec![b.cast(x, dtype)?]))
}

/// Packs neighbours as real and imaginary parts of half as many complex numbers. The transform `Z`
/// of these complex numbers contains the transform of the even elements, `(Z[k] + conj Z[h - k]) /
/// 2`, and of the odd ones. Odd lengths use a full complex transform with zero imaginary parts.
fn rfft(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::RFft(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, mut shape) = (b.dtype(x), b.shape(x).into_dims());
    let n = match shape.pop() {
        Some(Dim::Known(n)) => n,
        Some(n @ Dim::Sym(_)) => return rfft_of_symbol(b, o, x, &n),
        None => return Ok(None),
    };
    let x = b.widen(x)?;
    let bins = n / 2 + 1;
    let Some(rows) = Shape::new(shape.clone()).numel() else {
        return Ok(None);
    };
    let y = if n.is_multiple_of(2) {
        let h = n / 2;
        let x = b.reshape(x, vec![rows, h.into(), 2.into()])?;
        let z = b.fft(x, false, FftNorm::Backward)?;
        let first = b.slice(z, 1, 0, 1, 1)?;
        let z = b.add(Concat { axis: 1 }, &[z, first])?;
        // The result is E + w^k O with E = (Z + Z') / 2 and O = -i (Z - Z') / 2.
        let scale = 0.5 * o.norm.scale(false, n);
        let turn = |k| times(root(k, n), [0.0, -1.0]);
        let own = |k| [1.0 + turn(k)[0], turn(k)[1]].map(|v| v * scale);
        let other = |k| [1.0 - turn(k)[0], -turn(k)[1]].map(|v| v * scale);
        let own: Vec<[f64; 2]> = (0..bins).map(own).collect();
        let other: Vec<[f64; 2]> = (0..bins).map(other).collect();
        let own = b.multiply_by_twiddles(z, &own, false, SpectralAxisRead::first(bins))?;
        let reversed = SpectralAxisRead {
            start: h as i64,
            step: -1,
            count: bins,
        };
        let other = b.multiply_by_twiddles(z, &other, true, reversed)?;
        b.binary(BinaryFn::Add, own, other)?
    } else {
        let x = b.reshape(x, vec![rows, n.into(), 1.into()])?;
        let pad = Pad {
            before: vec![0; 3],
            after: vec![0, 0, 1],
            mode: PadMode::Constant,
            value: FloatAttr(0.0),
        };
        let x = b.add(pad, &[x])?;
        let x = b.fft(x, false, o.norm)?;
        b.slice(x, 1, 0, bins as i64, 1)?
    };
    shape.extend([bins.into(), 2.into()]);
    let y = b.reshape(y, shape)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// The full complex transform with zero imaginary parts, without the bins of negative frequencies.
fn rfft_of_symbol(b: &mut LegalizeBuilder<'_>, o: &RFft, x: Value, n: &Dim) -> RuleResult {
    let (dtype, mut shape) = (b.dtype(x), b.shape(x).into_dims());
    let bins = n.div_floor(2).and_then(|n| n.checked_add(&Dim::Known(1)));
    let Some(bins) = bins else {
        return Ok(None);
    };
    let x = b.widen(x)?;
    shape.push(1.into());
    let rank = shape.len();
    let x = b.reshape(x, shape.clone())?;
    let (before, mut after) = (vec![0; rank], vec![0; rank]);
    after[rank - 1] = 1;
    let pad = Pad {
        before,
        after,
        mode: PadMode::Constant,
        value: FloatAttr(0.0),
    };
    let x = b.add(pad, &[x])?;
    let y = b.fft(x, false, o.norm)?;
    shape.truncate(rank - 2);
    shape.extend([bins, Dim::Known(2)]);
    let y = b.prefix(y, shape.into())?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// Inverts [`rfft`]: `Z[k] = E + i O` from `E = (X[k] + conj X[h - k]) / 2` and `O = w^-k (X[k] -
/// conj X[h - k]) / 2`. Odd lengths use the full complex transform.
fn irfft(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::IRFft(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let n = o.n;
    let (dtype, mut shape) = (b.dtype(x), b.shape(x).into_dims());
    shape.truncate(shape.len() - 2);
    let Some((x, _, bins)) = as_rows(b, x)? else {
        return Ok(None);
    };
    let x = b.widen(x)?;
    // Zeroes the imaginary parts that the transform of a real signal cannot have.
    let keep: Vec<f64> = (0..bins)
        .flat_map(|k| [1.0, f64::from(u8::from(k != 0 && 2 * k != n))])
        .collect();
    let keep = b.table(x, &[bins, 2], &keep)?;
    let x = b.binary(BinaryFn::Mul, x, keep)?;
    let y = if n.is_multiple_of(2) {
        let h = n / 2;
        // The whole scale is applied here, because the half-length transform is not scaled.
        let scale = o.norm.scale(true, n);
        let turn = |k: usize| times(root(n - k, n), [0.0, 1.0]);
        let own = |k| [1.0 + turn(k)[0], turn(k)[1]].map(|v| v * scale);
        let other = |k| [1.0 - turn(k)[0], -turn(k)[1]].map(|v| v * scale);
        let own: Vec<[f64; 2]> = (0..h).map(own).collect();
        let other: Vec<[f64; 2]> = (0..h).map(other).collect();
        let own = b.multiply_by_twiddles(x, &own, false, SpectralAxisRead::first(h))?;
        let reversed = SpectralAxisRead {
            start: h as i64,
            step: -1,
            count: h,
        };
        let other = b.multiply_by_twiddles(x, &other, true, reversed)?;
        let z = b.binary(BinaryFn::Add, own, other)?;
        b.fft(z, true, FftNorm::Forward)?
    } else {
        let conjugate = vec![[1.0, 0.0]; bins - 1];
        let reversed = SpectralAxisRead {
            start: bins as i64 - 1,
            step: -1,
            count: bins - 1,
        };
        let x = match bins {
            1 => x,
            _ => {
                let rest = b.multiply_by_twiddles(x, &conjugate, true, reversed)?;
                b.add(Concat { axis: 1 }, &[x, rest])?
            }
        };
        let y = b.fft(x, true, o.norm)?;
        b.slice(y, 2, 0, 1, 1)?
    };
    shape.push(n.into());
    let y = b.reshape(y, shape)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// Gathers frames: sample `t` of frame `f` has index `f hop + t`.
fn stft(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Stft(o), &[x, window]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let axis = b.ty(x).rank() - 1;
    let len = b.shape(x)[axis].clone();
    let beyond = len.checked_sub(&Dim::Known(o.n));
    let steps = beyond.and_then(|beyond| beyond.div_floor(o.hop));
    let Some(frames) = steps.and_then(|s| s.checked_add(&Dim::Known(1))) else {
        return Ok(None);
    };
    let first = b.iota(&frames, false)?;
    let hop = b.scalar(crate::DType::I32, o.hop as f64)?;
    let first = b.binary(BinaryFn::Mul, first, hop)?;
    let first = b.reshape(first, vec![frames, 1.into()])?;
    let place = b.iota(&Dim::Known(o.n), false)?;
    let at = b.binary(BinaryFn::Add, first, place)?;
    let frames = b.add(Gather { axis }, &[x, at])?;
    let (frames, window) = (b.widen(frames)?, b.widen(window)?);
    let frames = b.binary(BinaryFn::Mul, frames, window)?;
    let norm = FftNorm::Backward;
    let y = b.add(RFft { norm }, &[frames])?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

fn welch_peaks(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::WelchPeaks(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, shape) = (b.dtype(x), b.shape(x));
    let [batch @ .., rows, n, _] = &shape[..] else {
        return Ok(None);
    };
    let (Some(n), Some(groups)) = (n.known(), rows.div_exact(&Dim::Known(o.segments))) else {
        return Ok(None);
    };
    let (bins, axis) = (n / 2 + 1, batch.len() + 1);
    let x = b.slice(x, axis, 0, bins as i64, 1)?;
    let x = b.widen(x)?;
    let squares = b.binary(BinaryFn::Mul, x, x)?;
    let powers = b.reduce(ReduceFn::Sum, squares, &[axis + 1])?;
    let mut grouped = batch.to_vec();
    grouped.extend([groups.clone(), o.segments.into(), bins.into()]);
    let powers = b.reshape(powers, grouped)?;
    let mean = Reduce {
        f: ReduceFn::Mean,
        axes: vec![axis],
        keep_dim: false,
    };
    let powers = b.add(mean, &[powers])?;
    let weights: Vec<f64> = (0..bins).map(|bin| weight(bin, n)).collect();
    let weights = b.table(powers, &[bins], &weights)?;
    let powers = b.binary(BinaryFn::Mul, powers, weights)?;
    let top = TopK {
        k: o.k,
        axis,
        largest: true,
    };
    let top = b.add_all(top, &[powers])?;
    let &[powers, bins] = top.as_slice() else {
        return Ok(None);
    };
    Ok(Some(vec![bins, b.cast(powers, dtype)?]))
}

fn log_mel(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::LogMel(_), &[x, filters]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let (x, filters) = (b.widen(x)?, b.widen(filters)?);
    let wide = b.dtype(x);
    let mel = b.matmul(x, filters)?;
    let least = b.scalar(wide, MIN_POWER)?;
    let mel = b.binary(BinaryFn::Max, mel, least)?;
    let log = b.unary(UnaryFn::Ln, mel)?;
    let base = b.scalar(wide, std::f64::consts::LOG10_E)?;
    let log = b.binary(BinaryFn::Mul, log, base)?;
    let last = b.ty(log).rank() - 1;
    let top = b.reduce(ReduceFn::Max, log, &[last])?;
    let range = b.scalar(wide, RANGE)?;
    let floor = b.binary(BinaryFn::Sub, top, range)?;
    let log = b.binary(BinaryFn::Max, log, floor)?;
    let four = b.scalar(wide, 4.0)?;
    let quarter = b.scalar(wide, 0.25)?;
    let y = b.binary(BinaryFn::Add, log, four)?;
    let y = b.binary(BinaryFn::Mul, y, quarter)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}
