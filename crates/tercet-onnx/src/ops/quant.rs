//! Quantization: conversion to integers and back, and integer matmuls.
//!
//! Matmuls support 8-bit integers.

use tercet_ir::ops::{QuantizedConv, ReduceFn};
use tercet_ir::{DType, Dim, Value};

use super::conv::shifted;
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::elem::{self, Narrow, OnnxDType};
use crate::emulated_dtypes;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("QuantizeLinear", 10, quantize),
    op("DequantizeLinear", 10, dequantize),
    op("DynamicQuantizeLinear", 11, dynamic_quantize),
    op("MatMulInteger", 10, matmul_integer),
    op("QLinearMatMul", 10, qlinear_matmul),
    op("QLinearConv", 10, qlinear_conv),
];

/// A scale or zero point (per tensor, per axis or per block), shaped to broadcast.
fn spread(k: &mut ImportNode<'_, '_>, v: Value, x: Value) -> Result<Value, NodeErrorKind> {
    let (dims, own) = (k.dims(x), k.dims(v));
    let block = k.attrs.int("block_size", 0)?;
    let at = k.attrs.int("axis", 1)?;
    if own.is_empty() || (own.len() == 1 && own[0].is_one()) {
        return reshaped(k.g(), v, &[]);
    }
    let at = axis(at, dims.len())?;
    if own.len() == 1 && block == 0 {
        let mut wide = own;
        wide.resize(dims.len() - at, Dim::Known(1));
        return reshaped(k.g(), v, &wide);
    }
    if own.len() != dims.len() || !(1..=1 << 24).contains(&block) {
        return Err(NodeErrorKind::operand(
            1,
            format!("{} is not a valid scale for {}", k.ty(v), k.ty(x)),
        ));
    }
    let mut wide = own.clone();
    wide.insert(at + 1, Dim::Known(1));
    let y = reshaped(k.g(), v, &wide)?;
    wide[at + 1] = Dim::Known(block as usize);
    let y = k.g().expand(y, wide)?;
    let mut joined = own;
    let blocks = k.size(v, at)?;
    joined[at] = Dim::Known(blocks * block as usize);
    let y = reshaped(k.g(), y, &joined)?;
    Ok(k.g().narrow(y, at, 0, k_size(&dims[at])?)?)
}

fn k_size(dim: &Dim) -> Result<usize, NodeErrorKind> {
    dim.known().ok_or_else(|| {
        NodeErrorKind::unsupported(format!(
            "a blocked axis must have a known size, found {dim}"
        ))
    })
}

/// Rounds to the nearest integer, ties to even, adds the zero point and clamps to the dtype. The
/// arithmetic is F32 or wider.
pub(super) fn rounded(
    k: &mut ImportNode<'_, '_>,
    scaled: Value,
    zero: Option<Value>,
    to: DType,
) -> Result<Value, NodeErrorKind> {
    let Some((least, greatest)) = to
        .int_range()
        .filter(|_| matches!(to, DType::I8 | DType::U8 | DType::I16))
    else {
        return Err(NodeErrorKind::unsupported(format!(
            "quantized values of dtype {to} are not supported"
        )));
    };
    let g = k.g();
    let mut y = g.round(scaled)?;
    if let Some(zero) = zero {
        let dtype = g.ty(y).dtype;
        let zero = g.cast(zero, dtype)?;
        y = g.plus(y, zero)?;
    }
    let y = g.clamp(y, least as f64, greatest as f64)?;
    Ok(g.cast(y, to)?)
}

/// Converts to F32, unless the dtype is wider.
pub(super) fn promote_to_f32(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    match k.dtype(x) {
        DType::F32 | DType::F64 => Ok(x),
        _ => Ok(k.g().cast(x, DType::F32)?),
    }
}

/// The quantized dtype: that of the zero point, otherwise the attribute, otherwise U8.
fn target(k: &mut ImportNode<'_, '_>) -> Result<(OnnxDType, Option<Value>), NodeErrorKind> {
    let asked = match k.attrs.int("output_dtype", 0)? {
        0 => None,
        number => {
            Some(elem::elem(number).map_err(|e| NodeErrorKind::attribute("output_dtype", e))?)
        }
    };
    if !k.has(2) {
        return Ok((asked.unwrap_or(OnnxDType::Plain(DType::U8)), None));
    }
    let (zero, own) = k.carried(2)?;
    let own = own.map_or(OnnxDType::Plain(k.dtype(zero)), OnnxDType::EmulatedDType);
    match asked {
        Some(asked) if asked != own => Err(NodeErrorKind::attribute(
            "output_dtype",
            format!("is {asked}, but the zero point has dtype {own}"),
        )),
        Some(_) | None => Ok((own, Some(zero))),
    }
}

pub(super) fn quantize(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, scale) = (k.x(0)?, k.x(1)?);
    let saturate = k.attrs.flag("saturate", true)?;
    let (to, zero) = target(k)?;
    let precision = k.attrs.int("precision", 0)?;
    if precision != 0 && elem::dtype(precision) != Ok(DType::F32) {
        return Err(NodeErrorKind::attribute(
            "precision",
            "other than float is not supported",
        ));
    }
    let scale = spread(k, scale, x)?;
    let zero = match zero {
        Some(zero) => Some(spread(k, zero, x)?),
        None => None,
    };
    let narrow = precision == 0 && k.dtype(x) == k.dtype(scale);
    let (x, scale) = match narrow {
        true => (x, scale),
        false => (promote_to_f32(k, x)?, promote_to_f32(k, scale)?),
    };
    let scaled = k.g().div(x, scale)?;
    let scaled = promote_to_f32(k, scaled)?;
    match to {
        OnnxDType::Plain(to) => one(rounded(k, scaled, zero, to)?),
        OnnxDType::EmulatedDType(to) => {
            let y = quantized(k, scaled, zero, to, saturate)?;
            Ok(vec![ImportedValue::Narrow(to, std::rc::Rc::new(y.into()))])
        }
    }
}

/// As [`rounded`], for narrow dtypes; for floats, the zero point is added before rounding.
fn quantized(
    k: &mut ImportNode<'_, '_>,
    scaled: Value,
    zero: Option<Value>,
    to: Narrow,
    saturate: bool,
) -> Result<Value, NodeErrorKind> {
    let is_float = to.float().is_some();
    let g = k.g();
    let mut y = match is_float {
        true => scaled,
        false => g.round(scaled)?,
    };
    if let Some(zero) = zero {
        let dtype = g.ty(y).dtype;
        let zero = emulated_dtypes::cast_to(g, zero, dtype)?;
        y = g.plus(y, zero)?;
    }
    match emulated_dtypes::rounded(g, to, y, saturate || to == Narrow::E2M1)? {
        Some(y) => Ok(y),
        None => emulated_dtypes::saturated(g, to, y),
    }
}

pub(super) fn dequantize(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let ((x, narrow), scale) = (k.carried(0)?, k.x(1)?);
    if narrow == Some(Narrow::U64) || (narrow.is_none() && k.dtype(x).is_float()) {
        return Err(NodeErrorKind::operand(0, "must be quantized"));
    }
    let own = k.dtype(scale);
    let to = match k.attrs.int("output_dtype", 0)? {
        0 => own,
        number => elem::dtype(number).map_err(|e| NodeErrorKind::attribute("output_dtype", e))?,
    };
    let scale = spread(k, scale, x)?;
    let between = match k.dtype(x).is_float() {
        true => DType::F32,
        false => DType::I32,
    };
    let mut wide = emulated_dtypes::cast_to(k.g(), x, between)?;
    if k.has(2) {
        let (zero, other) = k.carried(2)?;
        if other != narrow {
            return Err(NodeErrorKind::operand(
                2,
                "must have the dtype of operand 0",
            ));
        }
        let zero = spread(k, zero, x)?;
        let zero = emulated_dtypes::cast_to(k.g(), zero, between)?;
        wide = k.g().sub(wide, zero)?;
    }
    let (number, scale) = (promote_to_f32(k, wide)?, promote_to_f32(k, scale)?);
    let y = k.g().mul(number, scale)?;
    one(emulated_dtypes::cast_to(k.g(), y, to)?)
}

fn dynamic_quantize(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    Ok(dynamic(k, x)?
        .into_iter()
        .map(ImportedValue::Graph)
        .collect())
}

/// Dynamic quantization to U8: the quantized values, scale and zero point for the range of the
/// values including 0.
pub(super) fn dynamic(k: &mut ImportNode<'_, '_>, x: Value) -> Result<[Value; 3], NodeErrorKind> {
    let list: Vec<usize> = (0..k.rank(x)).collect();
    let (zero, one_, range) = (k.like(x, 0.0)?, k.like(x, 1.0)?, k.like(x, 255.0)?);
    let g = k.g();
    let (greatest, least) = (
        g.reduce(ReduceFn::Max, x, &list, false)?,
        g.reduce(ReduceFn::Min, x, &list, false)?,
    );
    let (greatest, least) = (g.max(greatest, zero)?, g.min(least, zero)?);
    let span = g.sub(greatest, least)?;
    let flat = g.compare(tercet_ir::scalar::CompareFn::Eq, span, zero)?;
    let span = g.where_(flat, one_, span)?;
    let scale = g.div(span, range)?;
    let below = g.neg(least)?;
    let point = g.div(below, scale)?;
    let point = g.clamp(point, 0.0, 255.0)?;
    let point = g.round(point)?;
    let point = g.cast(point, DType::U8)?;
    let scaled = g.div(x, scale)?;
    let y = rounded(k, scaled, Some(point), DType::U8)?;
    Ok([y, scale, point])
}

/// A zero point per row becomes a column.
pub(super) fn rows(
    k: &mut ImportNode<'_, '_>,
    x: usize,
    zero: usize,
) -> Result<Value, NodeErrorKind> {
    let rank = {
        let x = k.x(x)?;
        k.rank(x)
    };
    shifted(k, x, zero, rank.checked_sub(2))
}

fn matmul_integer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (rows(k, 0, 2)?, shifted(k, 1, 3, None)?);
    one(super::linear::vectors(k, a, b)?)
}

fn qlinear_matmul(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (rows(k, 0, 2)?, shifted(k, 3, 5, None)?);
    let (a_scale, b_scale, y_scale, zero) = (k.x(1)?, k.x(4)?, k.x(6)?, k.x(7)?);
    for v in [a_scale, y_scale] {
        if !k.dims(v).iter().all(Dim::is_one) {
            return Err(NodeErrorKind::unsupported(
                "per-row scales are not supported; expected one scale of `a` and one of `y`",
            ));
        }
    }
    let to = k.dtype(zero);
    let sum = super::linear::vectors(k, a, b)?;
    let factor = {
        let (a, b, y) = (
            promote_to_f32(k, a_scale)?,
            promote_to_f32(k, b_scale)?,
            promote_to_f32(k, y_scale)?,
        );
        let (a, y) = (reshaped(k.g(), a, &[])?, reshaped(k.g(), y, &[])?);
        // One scale, or one per column, which broadcasts along the rows.
        let b = match k.dims(b).iter().all(Dim::is_one) {
            true => reshaped(k.g(), b, &[])?,
            false => b,
        };
        let product = k.g().mul(a, b)?;
        k.g().div(product, y)?
    };
    let number = k.g().cast(sum, DType::F32)?;
    let scaled = k.g().mul(number, factor)?;
    let zero = reshaped(k.g(), zero, &[])?;
    Ok(vec![ImportedValue::Graph(rounded(
        k,
        scaled,
        Some(zero),
        to,
    )?)])
}

/// The zero point of an operand, if it is known and the same for all channels.
fn known_zero(k: &ImportNode<'_, '_>, i: usize) -> Option<i64> {
    let ImportedValue::ConstTensor(known) = k.val(i) else {
        return None;
    };
    let values = known.tensor.to_i64s();
    let first = *values.first()?;
    values.iter().all(|zero| *zero == first).then_some(first)
}

/// The convolution as one int8 operator, if all zero points are known.
fn int8_conv(k: &mut ImportNode<'_, '_>) -> Result<Option<Value>, NodeErrorKind> {
    let (x, w, zero) = (k.x(0)?, k.x(3)?, k.x(7)?);
    let to = k.dtype(zero);
    let is_code = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    let zeros = [2, 5, 7].map(|i| known_zero(k, i));
    let ([Some(x_zero), Some(w_zero), Some(y_zero)], true) =
        (zeros, [k.dtype(x), k.dtype(w), to].into_iter().all(is_code))
    else {
        return Ok(None);
    };
    let Some((lo, hi)) = to.int_range() else {
        return Ok(None);
    };
    let (x_scale, w_scale, y_scale, bias) = (k.x(1)?, k.x(4)?, k.x(6)?, k.opt(8)?);
    let (window, groups) = super::conv::conv_windows(k, x, w)?;
    let channels = vec![k.dims(w)[0].clone()];
    let (x_scale, y_scale) = (
        reshaped(k.g(), x_scale, &[])?,
        reshaped(k.g(), y_scale, &[])?,
    );
    let w_scale = match k.dims(w_scale).as_slice() {
        [n] if !n.is_one() => w_scale,
        _ => reshaped(k.g(), w_scale, &[])?,
    };
    let g = k.g();
    let product = g.mul(x_scale, w_scale)?;
    let factor = g.div(product, y_scale)?;
    let factor = g.expand(factor, channels.clone())?;
    let moved = match bias {
        Some(bias) => {
            let bias = g.cast(bias, DType::F32)?;
            g.mul(bias, factor)?
        }
        None => {
            let none = g.scalar(DType::F32, 0.0)?;
            g.expand(none, channels)?
        }
    };
    let op = QuantizedConv {
        stride: window.stride,
        pad_before: window.pad_before,
        pad_after: window.pad_after,
        dilation: window.dilation,
        groups,
        x_zero,
        w_zero,
        y_zero,
        lo,
        hi,
        to,
    };
    Ok(Some(g.quantized_conv(op, [x, w, factor, moved])?))
}

/// Integer sums, scaled and shifted. The weights have one scale, or one per output channel.
pub(super) fn qlinear_conv(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let Some(y) = int8_conv(k)? {
        return one(y);
    }
    let (x, w) = (shifted(k, 0, 2, None)?, shifted(k, 3, 5, Some(0))?);
    let (x_scale, w_scale, y_scale, zero) = (k.x(1)?, k.x(4)?, k.x(6)?, k.x(7)?);
    let (bias, rank) = (k.opt(8)?, k.rank(x));
    let to = k.dtype(zero);
    let sum = super::conv::convolved(k, x, w, bias)?;
    let (x_scale, y_scale) = (
        reshaped(k.g(), x_scale, &[])?,
        reshaped(k.g(), y_scale, &[])?,
    );
    let w_scale = match k.dims(w_scale).as_slice() {
        [n] if !n.is_one() => {
            let mut wide = vec![n.clone()];
            wide.resize(rank - 1, Dim::Known(1));
            reshaped(k.g(), w_scale, &wide)?
        }
        _ => reshaped(k.g(), w_scale, &[])?,
    };
    let product = k.g().mul(x_scale, w_scale)?;
    let factor = k.g().div(product, y_scale)?;
    let number = k.g().cast(sum, DType::F32)?;
    let scaled = k.g().mul(number, factor)?;
    let zero = reshaped(k.g(), zero, &[])?;
    one(rounded(k, scaled, Some(zero), to)?)
}
