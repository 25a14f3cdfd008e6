//! Fourier transforms, window functions, and convolutions with a state.

use std::f64::consts::PI;

use tercet_ir::ops::{FftNorm, PadMode, Window};
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::elem;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("HannWindow", 17, |k| window(k, &[0.5, 0.5, 0.0])).without_folding(),
    op("HammingWindow", 17, |k| {
        window(k, &[25.0 / 46.0, 21.0 / 46.0, 0.0])
    })
    .without_folding(),
    op("BlackmanWindow", 17, |k| window(k, &[0.42, 0.5, 0.08])).without_folding(),
    op("MelWeightMatrix", 17, mel_weights).without_folding(),
    op("DFT", 17, dft),
    op("STFT", 17, stft),
    op("CausalConvWithState", 27, causal_conv),
    op("Bernoulli", 15, bernoulli).without_folding(),
];

/// `a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n)`, with `n` reduced by one for a symmetric window.
fn window(k: &mut ImportNode<'_, '_>, a: &[f64; 3]) -> NodeOutputs {
    let size = usize::try_from(k.int(0)?).map_err(|_| NodeErrorKind::operand(0, "is negative"))?;
    let dtype = elem::dtype(k.attrs.int("output_datatype", 1)?)
        .map_err(|e| NodeErrorKind::attribute("output_datatype", e))?;
    let n = match k.attrs.flag("periodic", true)? {
        true => size,
        false => size.saturating_sub(1),
    };
    if !k.c.spend(size) || n == 0 {
        return Err(NodeErrorKind::operand(
            0,
            format!("a window of {size} is not supported"),
        ));
    }
    let at = |i: usize| {
        let phase = 2.0 * PI * i as f64 / n as f64;
        a[0] - a[1] * phase.cos() + a[2] * (2.0 * phase).cos()
    };
    let values: Vec<f64> = (0..size).map(at).collect();
    Ok(vec![ImportedValue::known(Tensor::from_f64s(
        TensorType::new(dtype, &[size]),
        &values,
    )?)])
}

/// Triangular filters of the mel scale, `[dft_length / 2 + 1, bins]`. The numbers are F32, as in ONNX
/// Runtime.
fn mel_weights(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let size = |index: usize| {
        let n = usize::try_from(k.int(index)?).ok();
        let n = n.filter(|n| (1..=1 << 20).contains(n));
        n.ok_or_else(|| NodeErrorKind::operand(index, "must be from 1 to 1048576"))
    };
    let (bins, length, rate) = (size(0)?, size(1)?, size(2)?);
    let (low, high) = (k.float(3)? as f32, k.float(4)? as f32);
    let dtype = elem::dtype(k.attrs.int("output_datatype", 1)?)
        .map_err(|e| NodeErrorKind::attribute("output_datatype", e))?;
    let rows = length / 2 + 1;
    if !k.c.spend(rows.saturating_mul(bins)) {
        let text = format!("{rows} x {bins} weights are too many");
        return Err(NodeErrorKind::unsupported(text));
    }
    let mel = |hertz: f32| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f32;
    let edge = |i: usize| {
        let hertz = 700.0 * (10f32.powf((i as f32 * step + mel(low)) / 2595.0) - 1.0);
        ((length + 1) as f32 * hertz / rate as f32).floor() as i64
    };
    let edges: Vec<i64> = (0..bins + 2).map(edge).collect();
    if !edges.iter().all(|e| (0..rows as i64).contains(e)) {
        let text = format!("edges from {low} to {high} Hz are not within the spectrum");
        return Err(NodeErrorKind::operand(4, text));
    }
    let mut weights = vec![0.0; rows * bins];
    for (bin, edge) in edges.windows(3).enumerate() {
        let (lower, center, upper) = (edge[0], edge[1], edge[2]);
        for row in lower..=center {
            let weight = match center - lower {
                0 => 1.0,
                width => (row - lower) as f64 / width as f64,
            };
            weights[row as usize * bins + bin] = weight;
        }
        for row in center..upper {
            weights[row as usize * bins + bin] = (upper - row) as f64 / (upper - center) as f64;
        }
    }
    Ok(vec![ImportedValue::known(Tensor::from_f64s(
        TensorType::new(dtype, &[rows, bins]),
        &weights,
    )?)])
}

/// Crops or zero-pads an axis to a length.
fn to_length(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
    length: usize,
) -> Result<Value, NodeErrorKind> {
    let n = k.size(x, at)?;
    if length <= n {
        return Ok(if length == n {
            x
        } else {
            k.g().narrow(x, at, 0, length)?
        });
    }
    let rank = k.rank(x);
    let mut after = vec![0; rank];
    after[at] = length - n;
    Ok(k.g()
        .pad(x, &vec![0; rank], &after, PadMode::Constant, 0.0)?)
}

/// Converts real numbers `[.., 1]` to complex ones `[.., 2]`.
fn complex(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    let last = k.rank(x) - 1;
    match k.size(x, last)? {
        2 => Ok(x),
        1 => to_length(k, x, last, 2),
        n => Err(NodeErrorKind::operand(
            0,
            format!("has {n} components, expected 1 or 2"),
        )),
    }
}

fn dft(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    if rank < 2 {
        return Err(NodeErrorKind::operand(0, "must have two axes or more"));
    }
    let at = match k.opset >= 20 {
        true if k.has(2) => axis(k.int(2)?, rank)?,
        true => rank - 2,
        false => axis(k.attrs.int("axis", 1)?, rank)?,
    };
    if at == rank - 1 {
        return Err(NodeErrorKind::unsupported(
            "the axis of real and imaginary parts cannot be transformed",
        ));
    }
    let (inverse, onesided) = (
        k.attrs.flag("inverse", false)?,
        k.attrs.flag("onesided", false)?,
    );
    // The inverse of a one-sided spectrum is real.
    let is_real = inverse && onesided;
    let length = match (k.has(1), is_real) {
        (true, _) => {
            usize::try_from(k.int(1)?).map_err(|_| NodeErrorKind::operand(1, "is negative"))?
        }
        (false, true) => 2 * k.size(x, at)?.saturating_sub(1),
        (false, false) => k.size(x, at)?,
    };
    let x = match is_real {
        true => {
            let half = to_length(k, x, at, length / 2 + 1)?;
            let half = complex(k, half)?;
            mirrored(k, half, at, length)?
        }
        false => {
            let x = to_length(k, x, at, length)?;
            complex(k, x)?
        }
    };
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(at, rank - 2);
    let turned = k.g().transpose(x, &perm)?;
    let y = k.g().fft(turned, inverse, FftNorm::Backward)?;
    let y = k.g().transpose(y, &perm)?;
    one(match (inverse, onesided) {
        (true, true) => k.g().narrow(y, rank - 1, 0, 1)?,
        (false, true) => k.g().narrow(y, at, 0, length / 2 + 1)?,
        (_, false) => y,
    })
}

/// The spectrum of a real signal of `length` elements from its first half: element `length - i` is
/// the conjugate of element `i`.
fn mirrored(
    k: &mut ImportNode<'_, '_>,
    half: Value,
    at: usize,
    length: usize,
) -> Result<Value, NodeErrorKind> {
    if length == 0 || !k.c.spend(3 * length) {
        let text = format!("a transform of {length} elements is not supported");
        return Err(NodeErrorKind::unsupported(text));
    }
    let is_given = |i: usize| i <= length / 2;
    let index = (0..length).map(|i| if is_given(i) { i } else { length - i } as i64);
    let index = Tensor::from_slice(&[length], &index.collect::<Vec<_>>())?;
    let signs = (0..length).flat_map(|i| [1.0, if is_given(i) { 1.0 } else { -1.0 }]);
    let mut shape = vec![1; k.rank(half) - at];
    shape[0] = length;
    if let Some(last) = shape.last_mut() {
        *last = 2;
    }
    let ty = TensorType::new(k.dtype(half), &shape);
    let signs = Tensor::from_f64s(ty, &signs.collect::<Vec<_>>())?;
    let g = k.g();
    let (index, signs) = (g.constant(index)?, g.constant(signs)?);
    let all = g.gather(half, index, at)?;
    Ok(g.mul(all, signs)?)
}

fn stft(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let hop = usize::try_from(k.int(1)?).ok().filter(|h| *h > 0);
    let hop = hop.ok_or_else(|| NodeErrorKind::operand(1, "must be positive"))?;
    let batch = k.dims(x).first().cloned();
    let parts = match k.rank(x) {
        2 => 1,
        3 => k.size(x, 2)?,
        _ => 0,
    };
    let (Some(batch), 1 | 2) = (batch, parts) else {
        return Err(NodeErrorKind::operand(
            0,
            "must be `[batch, length, 1 or 2]`",
        ));
    };
    let (n, real) = (k.size(x, 1)?, parts == 1);
    let own = k.opt(2)?;
    let length = match (k.has(3), own) {
        (true, _) => usize::try_from(k.int(3)?).unwrap_or(0),
        (false, Some(w)) => k.size(w, 0)?,
        (false, None) => {
            return Err(NodeErrorKind::operand(
                3,
                "a window or a frame length is required",
            ));
        }
    };
    if length == 0 || length > n {
        return Err(NodeErrorKind::operand(
            3,
            format!("frames of {length} elements do not fit {n} elements"),
        ));
    }
    let frames = (n - length) / hop + 1;
    if !k.c.spend(frames.saturating_mul(length)) {
        return Err(NodeErrorKind::unsupported("there are too many frames"));
    }
    let starts = (0..frames).flat_map(|f| (0..length).map(move |i| (f * hop + i) as i64));
    let idx = Tensor::from_slice(&[frames, length], &starts.collect::<Vec<_>>())?;
    let x = reshaped(k.g(), x, &[batch, n.into(), parts.into()])?;
    let idx = k.c.place(&ImportedValue::known(idx), 0)?;
    let mut y = k.g().gather(x, idx, 1)?;
    if let Some(w) = own {
        if k.size(w, 0)? != length {
            return Err(NodeErrorKind::operand(2, "must have the length of a frame"));
        }
        let w = reshaped(k.g(), w, &[Dim::Known(length), Dim::Known(1)])?;
        y = k.g().mul(y, w)?;
    }
    let y = complex(k, y)?;
    let y = k.g().fft(y, false, FftNorm::Backward)?;
    let onesided = k.attrs.flag("onesided", true)? && real;
    one(if onesided {
        k.g().narrow(y, 2, 0, length / 2 + 1)?
    } else {
        y
    })
}

fn causal_conv(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w, bias, past) = (k.x(0)?, k.x(1)?, k.opt(2)?, k.opt(3)?);
    let (channels, taps) = (k.size(w, 0)?, k.size(w, 2)?);
    if k.rank(x) != 3 || taps == 0 {
        return Err(NodeErrorKind::operand(0, "must have three axes"));
    }
    let padded = match past {
        Some(past) => k.g().concat(&[past, x], 2)?,
        None => k
            .g()
            .pad(x, &[0, 0, taps - 1], &[0; 3], PadMode::Constant, 0.0)?,
    };
    let y = k.g().conv(padded, w, bias, Window::new(1), channels)?;
    let y = match k.attrs.string("activation", "none")?.as_str() {
        "none" => y,
        "silu" | "swish" => k.g().silu(y)?,
        other => {
            return Err(NodeErrorKind::attribute(
                "activation",
                format!("`{other}` is not supported"),
            ));
        }
    };
    let start = match taps {
        1 => i64::MAX,
        taps => 1 - taps as i64,
    };
    let state = k
        .g()
        .slice(padded, &[0, 0, start], &[i64::MAX; 3], &[1; 3])?;
    Ok(vec![y.into(), state.into()])
}

/// Returns 1 with the probability in the operand, otherwise 0.
fn bernoulli(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let own = k.dtype(x);
    let to = match k.attrs.int_opt("dtype")? {
        Some(number) => elem::dtype(number).map_err(|e| NodeErrorKind::attribute("dtype", e))?,
        None => own,
    };
    let seed = k.attrs.float("seed", 0.0)?.to_bits();
    let dims = k.dims(x);
    let random = k.g().rng_uniform(dims, DType::F32, 0.0, 1.0, seed)?;
    let x = if own == DType::F32 {
        x
    } else {
        k.g().cast(x, DType::F32)?
    };
    let hit = k.g().compare(tercet_ir::scalar::CompareFn::Lt, random, x)?;
    one(k.g().cast(hit, to)?)
}
