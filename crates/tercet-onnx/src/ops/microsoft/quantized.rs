//! Operators on quantized values: those of integer graphs, and matmuls that quantize their inputs
//! dynamically.
//!
//! Elementwise operators compute on the dequantized F32 values, as ONNX Runtime does.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{DType, Dim, Value};

use super::super::quant::{
    dequantize, dynamic, promote_to_f32, qlinear_conv, quantize, rounded, rows,
};
use super::super::shape::reshaped;
use super::super::{OpsetEntry, conv, linear, op, recurrent};
use super::DOMAIN;
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    // The operators of ONNX, defined here before ONNX had them or their dtypes.
    op("QuantizeLinear", 1, quantize).in_domain(DOMAIN),
    op("DequantizeLinear", 1, dequantize).in_domain(DOMAIN),
    op("QLinearConv", 1, |k| {
        not_last(k)?;
        qlinear_conv(k)
    })
    .in_domain(DOMAIN),
    op("DynamicQuantizeMatMul", 1, dynamic_matmul).in_domain(DOMAIN),
    op("MatMulIntegerToFloat", 1, matmul_to_float).in_domain(DOMAIN),
    op("QGemm", 1, gemm).in_domain(DOMAIN),
    op("QLinearAdd", 1, |k| {
        binary(k, |k, a, b| Ok(k.g().plus(a, b)?))
    })
    .in_domain(DOMAIN),
    op("QLinearMul", 1, |k| {
        binary(k, |k, a, b| Ok(k.g().mul(a, b)?))
    })
    .in_domain(DOMAIN),
    op("QLinearSigmoid", 1, |k| {
        unary(k, |k, x| Ok(k.g().unary(UnaryFn::Sigmoid, x)?))
    })
    .in_domain(DOMAIN),
    op("QLinearLeakyRelu", 1, |k| {
        let alpha = k.attrs.float("alpha", 0.01)?;
        unary(k, |k, x| super::fused::leaky(k, x, alpha))
    })
    .in_domain(DOMAIN),
    op("QLinearGlobalAveragePool", 1, |k| {
        not_last(k)?;
        unary(k, conv::global_mean)
    })
    .in_domain(DOMAIN),
    op("QLinearAveragePool", 1, |k| {
        not_last(k)?;
        unary(k, conv::averages)
    })
    .in_domain(DOMAIN),
    op("QLinearSoftmax", 1, softmax).in_domain(DOMAIN),
    op("QLinearConcat", 1, concat).in_domain(DOMAIN),
    op("DynamicQuantizeLSTM", 1, recurrent::dynamic_quantize_lstm).in_domain(DOMAIN),
];

fn not_last(k: &ImportNode<'_, '_>) -> Result<(), NodeErrorKind> {
    match k.attrs.flag("channels_last", false)? {
        false => Ok(()),
        true => Err(NodeErrorKind::attribute(
            "channels_last",
            "1 is not supported",
        )),
    }
}

/// A scalar operand of any rank.
fn single(k: &mut ImportNode<'_, '_>, index: usize) -> Result<Value, NodeErrorKind> {
    let x = k.x(index)?;
    match k.dims(x).iter().all(Dim::is_one) {
        true => reshaped(k.g(), x, &[]),
        false => Err(NodeErrorKind::operand(index, "only a scalar is supported")),
    }
}

/// Dequantizes the operands from `at` on: values, scale and optional zero point.
fn wide(k: &mut ImportNode<'_, '_>, at: usize) -> Result<Value, NodeErrorKind> {
    let (x, scale) = (k.x(at)?, single(k, at + 1)?);
    let x = k.g().cast(x, DType::F32)?;
    let moved = match k.has(at + 2) {
        true => {
            let zero = single(k, at + 2)?;
            let zero = k.g().cast(zero, DType::F32)?;
            k.g().sub(x, zero)?
        }
        false => x,
    };
    Ok(k.g().mul(moved, scale)?)
}

/// Quantizes with the scale at operand `at` and the zero point after it. The result has the dtype
/// of the zero point, or `own`.
fn narrowed(
    k: &mut ImportNode<'_, '_>,
    y: Value,
    at: usize,
    own: DType,
) -> Result<Value, NodeErrorKind> {
    let scale = single(k, at)?;
    let zero = match k.has(at + 1) {
        true => Some(single(k, at + 1)?),
        false => None,
    };
    let to = zero.map_or(own, |zero| k.dtype(zero));
    let scaled = k.g().div(y, scale)?;
    rounded(k, scaled, zero, to)
}

type BinaryImportFn = fn(&mut ImportNode<'_, '_>, Value, Value) -> Result<Value, NodeErrorKind>;

fn binary(k: &mut ImportNode<'_, '_>, f: BinaryImportFn) -> NodeOutputs {
    let (a, b) = (wide(k, 0)?, wide(k, 3)?);
    let y = f(k, a, b)?;
    let x = k.x(0)?;
    let own = k.dtype(x);
    one(narrowed(k, y, 6, own)?)
}

fn unary(
    k: &mut ImportNode<'_, '_>,
    f: impl FnOnce(&mut ImportNode<'_, '_>, Value) -> Result<Value, NodeErrorKind>,
) -> NodeOutputs {
    let x = wide(k, 0)?;
    let y = f(k, x)?;
    let x = k.x(0)?;
    let own = k.dtype(x);
    one(narrowed(k, y, 3, own)?)
}

fn softmax(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, opset) = (k.x(0)?, k.attrs.int("opset", 0)?);
    let rank = k.rank(x);
    let at = k.axis(-1, rank)?;
    if opset < 13 && at + 1 != rank {
        let text = "several axes are not supported";
        return Err(NodeErrorKind::attribute("axis", text));
    }
    unary(k, |k, x| Ok(k.g().softmax(x, at)?))
}

/// The operands are scale and zero point of the result, then three operands per part.
fn concat(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let parts = k.ins.len().saturating_sub(2) / 3;
    if parts == 0 || k.ins.len() != 2 + 3 * parts {
        let text = "expected a scale, a zero point, and three operands per part";
        return Err(NodeErrorKind::unsupported(format!(
            "{} operands; {text}",
            k.ins.len()
        )));
    }
    let mut wides = Vec::with_capacity(parts);
    for part in 0..parts {
        wides.push(wide(k, 2 + 3 * part)?);
    }
    let rank = k.rank(wides[0]);
    let at = k.axis(0, rank)?;
    let y = k.g().concat(&wides, at)?;
    one(narrowed(k, y, 0, DType::U8)?)
}

/// An integer sum as F32, times the scales, plus an optional bias.
fn scaled(
    k: &mut ImportNode<'_, '_>,
    sum: Value,
    scales: [Value; 2],
    bias: Option<Value>,
) -> Result<Value, NodeErrorKind> {
    let number = k.g().cast(sum, DType::F32)?;
    let scale = k.g().mul(scales[0], scales[1])?;
    let y = k.g().mul(number, scale)?;
    Ok(match bias {
        Some(bias) => k.g().plus(y, bias)?,
        None => y,
    })
}

/// Per-column zero points broadcast along the rows without a reshape.
fn columns(k: &mut ImportNode<'_, '_>, x: usize, zero: usize) -> Result<Value, NodeErrorKind> {
    conv::shifted(k, x, zero, None)
}

fn dynamic_matmul(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let [codes, scale, zero] = dynamic(k, x)?;
    let (codes, zero) = (
        k.g().cast(codes, DType::I32)?,
        k.g().cast(zero, DType::I32)?,
    );
    let a = k.g().sub(codes, zero)?;
    let (b, b_scale, bias) = (columns(k, 1, 3)?, k.x(2)?, k.opt(4)?);
    let sum = linear::vectors(k, a, b)?;
    one(scaled(k, sum, [scale, b_scale], bias)?)
}

fn matmul_to_float(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (rows(k, 0, 4)?, columns(k, 1, 5)?);
    let (a_scale, b_scale, bias) = (k.x(2)?, k.x(3)?, k.opt(6)?);
    if !k.dims(a_scale).iter().all(Dim::is_one) {
        let text = "per-row scales are not supported";
        return Err(NodeErrorKind::operand(2, text));
    }
    let sum = linear::vectors(k, a, b)?;
    one(scaled(k, sum, [a_scale, b_scale], bias)?)
}

/// Scaled integer sums with an integer bias; quantized again if there is an output scale.
fn gemm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (mut a, mut b) = (columns(k, 0, 2)?, k.x(3)?);
    let turned = k.attrs.flag("transB", false)?;
    b = k.g().cast(b, DType::I32)?;
    if turned {
        b = k.g().transpose(b, &[1, 0])?;
    }
    let zero = k.x(5)?;
    let zero = k.g().cast(zero, DType::I32)?;
    b = k.g().sub(b, zero)?;
    if k.attrs.flag("transA", false)? {
        a = k.g().transpose(a, &[1, 0])?;
    }
    let mut sum = k.g().matmul(a, b)?;
    if let Some(bias) = k.opt(6)? {
        sum = k.g().plus(sum, bias)?;
    }
    let (a_scale, b_scale) = (single(k, 1)?, k.x(4)?);
    let mut y = scaled(k, sum, [a_scale, b_scale], None)?;
    let alpha = k.attrs.float("alpha", 1.0)?;
    if alpha != 1.0 {
        let alpha = k.like(y, alpha)?;
        y = k.g().mul(y, alpha)?;
    }
    if !k.has(7) {
        return one(y);
    }
    let y = promote_to_f32(k, y)?;
    one(narrowed(k, y, 7, DType::U8)?)
}
