//! Matmuls with weights of a few bits. The weights stay packed in the graph, which dequantizes
//! them.

use half::f16;
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{DType, Dim, Scheme, Tensor, TensorType, Value};

use super::super::shape::reshaped;
use super::super::{OpsetEntry, op};
use super::DOMAIN;
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[op("MatMulNBits", 1, matmul_bits).in_domain(DOMAIN)];

fn count(k: &ImportNode<'_, '_>, name: &str) -> Result<usize, NodeErrorKind> {
    let n = k.attrs.int(name, 0)?;
    let n = usize::try_from(n)
        .ok()
        .filter(|n| (1..=1 << 30).contains(n));
    n.ok_or_else(|| NodeErrorKind::attribute(name, "is required and must be from 1 to 2^30"))
}

/// Unpacks quantized values from bytes `[.., n]`, lowest bits first: I32 `[.., n * 8 / bits]`.
fn codes(k: &mut ImportNode<'_, '_>, x: Value, bits: usize) -> Result<Value, NodeErrorKind> {
    let x = k.g().cast(x, DType::I32)?;
    if bits == 8 {
        return Ok(x);
    }
    let mut dims = k.dims(x);
    let last = dims.len() - 1;
    let n = k.size(x, last)?;
    let mask = k.c.scalar(DType::I32, f64::from((1u32 << bits) - 1))?;
    dims.push(Dim::Known(1));
    let mut parts = Vec::new();
    for part in 0..8 / bits {
        let by = k.c.scalar(DType::I32, (part * bits) as f64)?;
        let moved = k.g().binary(BinaryFn::Shr, x, by)?;
        let code = k.g().binary(BinaryFn::And, moved, mask)?;
        parts.push(reshaped(k.g(), code, &dims)?);
    }
    let apart = k.g().concat(&parts, last + 1)?;
    dims.pop();
    dims[last] = Dim::Known(n * (8 / bits));
    reshaped(k.g(), apart, &dims)
}

/// The zero point of each block, `[N, blocks, 1]`, in the dtype of the scales.
fn zero_points(
    k: &mut ImportNode<'_, '_>,
    [n, blocks, bits]: [usize; 3],
    dtype: DType,
) -> Result<Value, NodeErrorKind> {
    let each = [Dim::Known(n), Dim::Known(blocks), Dim::Known(1)];
    let Some(zero) = k.opt(3)? else {
        return k.c.scalar(dtype, f64::from(1u32 << (bits - 1)));
    };
    if k.dtype(zero) != DType::U8 {
        let zero = crate::emulated_dtypes::cast_to(k.g(), zero, dtype)?;
        return reshaped(k.g(), zero, &each);
    }
    // Each row starts at a byte boundary.
    let bytes = (blocks * bits).div_ceil(8);
    let rows = reshaped(k.g(), zero, &[Dim::Known(n), Dim::Known(bytes)])?;
    let codes = codes(k, rows, bits)?;
    let codes = k.g().narrow(codes, 1, 0, blocks)?;
    let zero = k.g().cast(codes, dtype)?;
    reshaped(k.g(), zero, &each)
}

/// Converts the weights to native 32-element blocks `[N, bytes]`, which quantized matmuls read
/// directly. Only if the weights are constant and the conversion is exact: zero points are in the
/// middle, and scales are F16 numbers.
fn blocks_of_32(
    k: &ImportNode<'_, '_>,
    [n, inner, block, bits]: [usize; 4],
) -> Option<(Tensor, Scheme)> {
    /// Weights per block, and bytes of its scale.
    const LEN: usize = 32;
    const SCALE: usize = 2;
    let scheme = match bits {
        4 => Scheme::Q4_0,
        8 => Scheme::Q8_0,
        _ => return None,
    };
    let parts = inner.div_ceil(LEN);
    if !block.is_multiple_of(LEN) || !inner.is_multiple_of(LEN) || k.has(3) {
        return None;
    }
    let (codes, scales) = (k.const_operand(1).ok()?, k.const_operand(2).ok()?);
    let (blocks, bytes) = (inner.div_ceil(block), LEN * bits / 8);
    let scales = scales.to_f64s();
    let halves: Vec<f16> = scales.iter().map(|s| f16::from_f64(*s)).collect();
    let exact = halves.iter().zip(&scales).all(|(h, s)| h.to_f64() == *s);
    let row = blocks * block * bits / 8;
    let fits = codes.dtype() == DType::U8 && codes.bytes().len() == n * row;
    if !exact || halves.len() != n * blocks || !fits {
        return None;
    }
    let mut packed = Vec::with_capacity(n * parts * (SCALE + bytes));
    for (row, halves) in codes
        .bytes()
        .chunks_exact(row)
        .zip(halves.chunks_exact(blocks))
    {
        for (i, codes) in row.chunks_exact(bytes).take(parts).enumerate() {
            packed.extend(halves[i * LEN / block].to_le_bytes());
            match bits {
                8 => packed.extend(codes.iter().map(|code| code ^ 0x80)),
                _ => {
                    // Adjacent elements share a byte in the source, elements 16 apart in the native
                    // block.
                    let code = |j: usize| (codes[j / 2] >> (j % 2 * 4)) & 15;
                    packed.extend((0..LEN / 2).map(|j| code(j) | (code(j + LEN / 2) << 4)));
                }
            }
        }
    }
    let ty = TensorType::new(DType::U8, &[n, parts * (SCALE + bytes)]);
    Some((Tensor::from_bytes(ty, &packed).ok()?, scheme))
}

/// `A [.., K] @ ((codes - zero) * scale)^T + bias`, with `codes [N, K]` in blocks along K.
fn matmul_bits(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let a = k.x(0)?;
    let (inner, n, block) = (count(k, "K")?, count(k, "N")?, count(k, "block_size")?);
    let bits = match k.attrs.int("bits", 4)? {
        bits @ (2 | 4 | 8) => bits as usize,
        other => {
            let text = format!("{other} is not supported, expected 2, 4 or 8");
            return Err(NodeErrorKind::attribute("bits", text));
        }
    };
    // `accuracy_level` only sets a minimum accuracy of the matmul.
    k.attrs.ignore(&["accuracy_level"]);
    if k.attrs.int("weight_prepacked", 0)? != 0 {
        let text = "weights in a runtime-specific prepacked layout are not supported";
        return Err(NodeErrorKind::attribute("weight_prepacked", text));
    }
    if k.has(4) {
        let text = "group indices (`g_idx`) are not supported";
        return Err(NodeErrorKind::operand(4, text));
    }
    if let Some((weights, scheme)) = blocks_of_32(k, [n, inner, block, bits])
        && k.rank(a) >= 2
    {
        let weights = k.c.place(&ImportedValue::known(weights), 1)?;
        let y = k.g().dequant_matmul(a, weights, scheme)?;
        return one(match k.opt(5)? {
            Some(bias) => k.g().plus(y, bias)?,
            None => y,
        });
    }
    let (packed, scales) = (k.x(1)?, k.x(2)?);
    let blocks = inner.div_ceil(block);
    let bytes = (block * bits).div_ceil(8);
    if k.dtype(packed) != DType::U8 || block * bits % 8 != 0 {
        return Err(NodeErrorKind::operand(
            1,
            "must be a multiple of 8 bits per block",
        ));
    }
    let dtype = k.dtype(scales);
    let each = |last: usize| [Dim::Known(n), Dim::Known(blocks), Dim::Known(last)];
    let packed = reshaped(k.g(), packed, &each(bytes))?;
    let codes = codes(k, packed, bits)?;
    let numbers = k.g().cast(codes, dtype)?;
    let zero = zero_points(k, [n, blocks, bits], dtype)?;
    let scales = reshaped(k.g(), scales, &each(1))?;
    let moved = k.g().sub(numbers, zero)?;
    let weights = k.g().mul(moved, scales)?;
    let weights = reshaped(k.g(), weights, &[Dim::Known(n), Dim::Known(blocks * block)])?;
    let weights = k.g().narrow(weights, 1, 0, inner)?;
    let own = k.dtype(a);
    let weights = crate::emulated_dtypes::cast_to(k.g(), weights, own)?;
    let turned = k.g().transpose(weights, &[1, 0])?;
    let y = super::super::linear::vectors(k, a, turned)?;
    one(match k.opt(5)? {
        Some(bias) => k.g().plus(y, bias)?,
        None => y,
    })
}
