//! Fourier transforms: long ones and those of large primes by others, those of real numbers by
//! complex ones; features of spectra.
//!
//! Factors on the unit circle are tables, computed in `f64`. Everything is done in F32 where operands
//! are narrower.

use super::util::Built;
use super::{Applied, Rule};
use crate::attr::Real;
use crate::dim::Dim;
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::fft::{dft, root, roots, times};
use crate::ops::log_mel::{LEAST, RANGE};
use crate::ops::welch_peaks::weight;
use crate::ops::{
    AxisMap, Concat, Fft, FftNorm, Gather, IndexMap, Map, MapArg, MapStep, Op, OpKind, Pad,
    PadMode, RFft, Reduce, ReduceFn, TopK,
};
use crate::scalar::{BinaryFn, ScalarOp, UnaryFn};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fft_in_four_steps",
        on: OpKind::Fft,
        apply: four_steps,
    },
    Rule {
        name: "fft_of_a_large_prime_as_convolution",
        on: OpKind::Fft,
        apply: convolution,
    },
    Rule {
        name: "rfft_as_fft_of_half_the_length",
        on: OpKind::RFft,
        apply: rfft,
    },
    Rule {
        name: "irfft_as_fft_of_half_the_length",
        on: OpKind::IRFft,
        apply: irfft,
    },
    Rule {
        name: "stft_as_rfft_of_frames",
        on: OpKind::Stft,
        apply: stft,
    },
    Rule {
        name: "welch_peaks_as_powers_and_top_k",
        on: OpKind::WelchPeaks,
        apply: welch_peaks,
    },
    Rule {
        name: "log_mel_as_product_and_logarithm",
        on: OpKind::LogMel,
        apply: log_mel,
    },
];

/// The greatest prime factor that [`four_steps`] leaves.
const GREATEST_RADIX: usize = 7;

/// The greatest prime factor; 1 of 1.
fn greatest_prime(mut n: usize) -> usize {
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

/// `[.., n, 2]` as `[rows, n, 2]`, and `n`.
fn as_rows(b: &mut Builder<'_>, x: Value) -> Result<Option<(Value, Dim, usize)>, crate::OpError> {
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

impl Builder<'_> {
    fn fft(&mut self, x: Value, inverse: bool, norm: FftNorm) -> Built {
        self.add(Fft { inverse, norm }, &[x])
    }

    /// Numbers in the dtype of `like`.
    fn table(&mut self, like: Value, shape: &[usize], values: &[f64]) -> Built {
        let ty = TensorType::new(self.dtype(like), shape);
        let tensor = Tensor::from_f64s(ty, values).expect("invariant: as many values as elements");
        self.constant(tensor)
    }

    /// `x [rows, .., 2]`, read along axis 1 from `start` by `step`, times a table over its axes after
    /// the first, `count` elements of axis 1. With `conjugate`, of the conjugates of `x`.
    fn turned(&mut self, x: Value, table: &[[f64; 2]], conjugate: bool, read: Read) -> Built {
        let mut shape = self.shape(x);
        shape.dims_mut()[1] = read.count.into();
        let rank = shape.rank();
        let sign = if conjugate { -1.0 } else { 1.0 };
        // (re c - im s, im c + re s), by the pair and the pair reversed.
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

/// Which elements of an axis are read.
#[derive(Clone, Copy)]
struct Read {
    start: i64,
    step: i64,
    count: usize,
}

impl Read {
    /// The first so many.
    fn first(count: usize) -> Read {
        Read {
            start: 0,
            step: 1,
            count,
        }
    }
}

/// Transforms of `n = n1 n2` by transforms of `n1` and of `n2` (Bailey 1990): over the columns of the
/// numbers as a matrix `n1 x n2`, each element turned by the product of its indices, over the rows.
fn four_steps(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
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
    let x = b.turned(x, &table, false, Read::first(n2))?;
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let x = b.fft(x, o.inverse, o.norm)?;
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let x = b.reshape(x, given)?;
    Ok(Some(vec![b.cast(x, dtype)?]))
}

/// Bluestein's transform (1970): since `2 j k = j^2 + k^2 - (k - j)^2`, it is a convolution with
/// `e^(pi i j^2 / n)`, made by transforms of a power of two.
fn convolution(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
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
    let x = b.turned(x, &chirps, false, Read::first(n))?;
    let (before, after) = (vec![0; 3], vec![0, m - n, 0]);
    let pad = Pad {
        before,
        after,
        mode: PadMode::Constant,
        value: Real(0.0),
    };
    let x = b.add(pad, &[x])?;
    let x = b.fft(x, false, FftNorm::Backward)?;
    let mut against = vec![[0.0; 2]; m];
    for (j, [re, im]) in chirps.iter().enumerate() {
        against[j] = [*re, -im];
        against[(m - j) % m] = [*re, -im];
    }
    let against = dft(&against, &roots(m, false));
    let x = b.turned(x, &against, false, Read::first(m))?;
    let x = b.fft(x, true, FftNorm::Backward)?;
    let scale = o.norm.scale(o.inverse, n);
    let chirps: Vec<[f64; 2]> = chirps.iter().map(|c| c.map(|v| v * scale)).collect();
    let x = b.turned(x, &chirps, false, Read::first(n))?;
    let x = b.reshape(x, given)?;
    Ok(Some(vec![b.cast(x, dtype)?]))
}

/// Neighbours as real and imaginary parts of half as many numbers, whose transform `Z` holds that of
/// the even ones, `(Z[k] + conj Z[h - k]) / 2`, and of the odd ones. Of an odd length, with imaginary
/// parts of zero.
fn rfft(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
    let (Op::RFft(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, mut shape) = (b.dtype(x), b.shape(x).into_dims());
    let Some(n) = shape.pop().and_then(|n| n.known()) else {
        return Ok(None);
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
        // E + w^k O with E = (Z + Z') / 2 and O = -i (Z - Z') / 2.
        let scale = 0.5 * o.norm.scale(false, n);
        let turn = |k| times(root(k, n), [0.0, -1.0]);
        let own = |k| [1.0 + turn(k)[0], turn(k)[1]].map(|v| v * scale);
        let other = |k| [1.0 - turn(k)[0], -turn(k)[1]].map(|v| v * scale);
        let own: Vec<[f64; 2]> = (0..bins).map(own).collect();
        let other: Vec<[f64; 2]> = (0..bins).map(other).collect();
        let own = b.turned(z, &own, false, Read::first(bins))?;
        let reversed = Read {
            start: h as i64,
            step: -1,
            count: bins,
        };
        let other = b.turned(z, &other, true, reversed)?;
        b.binary(BinaryFn::Add, own, other)?
    } else {
        let x = b.reshape(x, vec![rows, n.into(), 1.into()])?;
        let pad = Pad {
            before: vec![0; 3],
            after: vec![0, 0, 1],
            mode: PadMode::Constant,
            value: Real(0.0),
        };
        let x = b.add(pad, &[x])?;
        let x = b.fft(x, false, o.norm)?;
        b.slice(x, 1, 0, bins as i64, 1)?
    };
    shape.extend([bins.into(), 2.into()]);
    let y = b.reshape(y, shape)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// The way of [`rfft`] back: `Z[k] = E + i O` from `E = (X[k] + conj X[h - k]) / 2` and
/// `O = w^-k (X[k] - conj X[h - k]) / 2`. Of an odd length, by the whole transform.
fn irfft(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
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
    // Imaginary parts that no transform of real numbers has.
    let keep: Vec<f64> = (0..bins)
        .flat_map(|k| [1.0, f64::from(u8::from(k != 0 && 2 * k != n))])
        .collect();
    let keep = b.table(x, &[bins, 2], &keep)?;
    let x = b.binary(BinaryFn::Mul, x, keep)?;
    let y = if n.is_multiple_of(2) {
        let h = n / 2;
        // Both halves of the scale: the transform of half the length is not scaled.
        let scale = o.norm.scale(true, n);
        let turn = |k: usize| times(root(n - k, n), [0.0, 1.0]);
        let own = |k| [1.0 + turn(k)[0], turn(k)[1]].map(|v| v * scale);
        let other = |k| [1.0 - turn(k)[0], -turn(k)[1]].map(|v| v * scale);
        let own: Vec<[f64; 2]> = (0..h).map(own).collect();
        let other: Vec<[f64; 2]> = (0..h).map(other).collect();
        let own = b.turned(x, &own, false, Read::first(h))?;
        let reversed = Read {
            start: h as i64,
            step: -1,
            count: h,
        };
        let other = b.turned(x, &other, true, reversed)?;
        let z = b.binary(BinaryFn::Add, own, other)?;
        b.fft(z, true, FftNorm::Forward)?
    } else {
        let conjugate = vec![[1.0, 0.0]; bins - 1];
        let reversed = Read {
            start: bins as i64 - 1,
            step: -1,
            count: bins - 1,
        };
        let x = match bins {
            1 => x,
            _ => {
                let rest = b.turned(x, &conjugate, true, reversed)?;
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

/// Frames are gathered by `frame hop + place`.
fn stft(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
    let (Op::Stft(o), &[x, window]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let axis = b.ty(x).rank() - 1;
    let len = b.shape(x)[axis].clone();
    let beyond = len.checked_sub(&Dim::Known(o.n));
    let steps = beyond.and_then(|beyond| match beyond {
        Dim::Known(n) => Some(Dim::Known(n / o.hop)),
        Dim::Sym(_) => beyond.div_exact(&Dim::Known(o.hop)),
    });
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

fn welch_peaks(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
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

fn log_mel(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
    let (Op::LogMel(_), &[x, filters]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let (x, filters) = (b.widen(x)?, b.widen(filters)?);
    let wide = b.dtype(x);
    let mel = b.matmul(x, filters)?;
    let least = b.scalar(wide, LEAST)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greatest_primes() {
        let found = [1, 2, 12, 13, 49, 98, 4096, 10007].map(greatest_prime);
        assert_eq!(found, [1, 2, 3, 13, 7, 7, 2, 10007]);
    }
}
