//! Attention operators of ONNX Runtime's optimizers and model builders: packed projections, KV
//! caches, and masks as lengths, key masks or score biases.

use tercet_ir::ops::{AttentionLayout, AttentionMask, AttentionOptions};
use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Value};

use super::super::attention::{
    bias_of, heads, join_heads, joined, positions, rotate_by, split_heads,
};
use super::super::shape::reshaped;
use super::super::{OpsetEntry, linear, op};
use super::DOMAIN;
use crate::call::{ImportNode, NodeOutputs, one};
use crate::emulated_dtypes::cast_to;
use crate::error::NodeErrorKind;
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("RotaryEmbedding", 1, rotary).in_domain(DOMAIN),
    op("MultiHeadAttention", 1, multi_head).in_domain(DOMAIN),
    op("Attention", 1, attention).in_domain(DOMAIN),
    op("QAttention", 1, quantized).in_domain(DOMAIN),
    op("GroupQueryAttention", 1, grouped).in_domain(DOMAIN),
];

/// Checks attributes that are supported with one value only.
fn only(k: &ImportNode<'_, '_>, values: &[(&str, i64)]) -> Result<(), NodeErrorKind> {
    for (name, value) in values {
        let found = k.attrs.int(name, *value)?;
        if found != *value {
            let text = format!("{found} is not supported");
            return Err(NodeErrorKind::attribute(name, text));
        }
    }
    Ok(())
}

fn required_heads(k: &ImportNode<'_, '_>, name: &str) -> Result<usize, NodeErrorKind> {
    heads(k, name)?.ok_or_else(|| NodeErrorKind::attribute(name, "is required"))
}

fn known(n: usize) -> Dim {
    Dim::Known(n)
}

/// Rotary embedding with positions `[B, S]`, or consecutive positions from a start `[1]`.
fn rotary(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    only(k, &[("is_packed_batching", 0)])?;
    if k.attrs.float("scale", 1.0)? != 1.0 {
        return Err(NodeErrorKind::attribute(
            "scale",
            "other than 1 is not supported",
        ));
    }
    let (x, ids, cos, sin) = (k.x(0)?, k.x(1)?, k.x(2)?, k.x(3)?);
    let interleaved = k.attrs.flag("interleaved", false)?;
    let (count, turned) = (heads(k, "num_heads")?, heads(k, "rotary_embedding_dim")?);
    let flat = k.rank(x) == 3;
    let half = k.size(cos, 1)?;
    let count = match (count, turned, flat) {
        (Some(n), ..) => Some(n),
        (None, None, true) => Some(k.size(x, 2)? / (2 * half).max(1)),
        (None, ..) => None,
    };
    let x = split_heads(k, x, count)?;
    let ids = match k.rank(ids) {
        1 => {
            let length = k.dims(x)[2].clone();
            let steps = positions(k, &length)?;
            let at = k.g().plus(steps, ids)?;
            k.g().unsqueeze(at, 0)?
        }
        _ => ids,
    };
    let angles = [k.g().gather(cos, ids, 0)?, k.g().gather(sin, ids, 0)?];
    let y = rotate_by(k, x, angles, interleaved, turned.unwrap_or(2 * half))?;
    one(if flat { join_heads(k, y)? } else { y })
}

/// Converts a key mask to a score bias: 0 for kept keys, otherwise the node's mask value.
fn filtered(k: &mut ImportNode<'_, '_>, keep: Value, dtype: DType) -> Result<Value, NodeErrorKind> {
    let filter = k.attrs.float("mask_filter_value", -10000.0)?;
    let (zero, filter) = (k.c.scalar(dtype, 0.0)?, k.c.scalar(dtype, filter)?);
    Ok(k.g().where_(keep, zero, filter)?)
}

/// A key mask as a score bias. The mask is the key count `[B]`, or the end and then the start of the
/// keys `[2 B]`, or `[B, keys]`, or `[B, queries, keys]`.
fn masked(
    k: &mut ImportNode<'_, '_>,
    at: usize,
    [batch, keys]: [&Dim; 2],
    dtype: DType,
) -> Result<Option<Value>, NodeErrorKind> {
    let Some(mask) = k.opt(at)? else {
        k.attrs.ignore(&["mask_filter_value"]);
        return Ok(None);
    };
    let mut dims = k.dims(mask);
    let keep = match dims.len() {
        1 => {
            let mask = cast_to(k.g(), mask, DType::I64)?;
            let j = positions(k, keys)?;
            // An entry per sequence as `[B, 1, 1, 1]`.
            let each = [batch.clone(), known(1), known(1), known(1)];
            let is_other = dims[0] != *batch && !dims[0].is_one();
            if Some(&dims[0]) == batch.checked_mul(&known(2)).as_ref() {
                let halves = reshaped(k.g(), mask, &[known(2), batch.clone()])?;
                let mut half = |i| -> Result<Value, NodeErrorKind> {
                    let own = k.g().narrow(halves, 0, i, 1)?;
                    reshaped(k.g(), own, &each)
                };
                let (ends, starts) = (half(0)?, half(1)?);
                let g = k.g();
                let below = g.compare(CompareFn::Lt, j, ends)?;
                let above = g.compare(CompareFn::Ge, j, starts)?;
                g.binary(BinaryFn::And, below, above)?
            } else if is_other && dims[0].known().is_some() && batch.known().is_some() {
                let text = format!(
                    "has {} numbers for {batch} sequences; expected their ends, or their ends \
                     and then their starts",
                    dims[0]
                );
                return Err(NodeErrorKind::operand(at, text));
            } else {
                let each = [dims[0].clone(), known(1), known(1), known(1)];
                let ends = reshaped(k.g(), mask, &each)?;
                k.g().compare(CompareFn::Lt, j, ends)?
            }
        }
        2 | 3 => {
            dims.insert(1, known(1));
            if dims.len() == 3 {
                dims.insert(1, known(1));
            }
            let mask = cast_to(k.g(), mask, DType::I32)?;
            let mask = reshaped(k.g(), mask, &dims)?;
            let zero = k.c.scalar(DType::I32, 0.0)?;
            k.g().compare(CompareFn::Gt, mask, zero)?
        }
        rank => {
            let text = format!("a mask of {rank} axes is not supported");
            return Err(NodeErrorKind::operand(at, text));
        }
    };
    Ok(Some(filtered(k, keep, dtype)?))
}

/// The causal mask `[queries, keys]`: a query sees the past and as many further keys as its position.
/// As in ONNX Runtime, the last query sees all keys.
fn past_only(
    k: &mut ImportNode<'_, '_>,
    queries: &Dim,
    keys: &Dim,
    past: &Dim,
) -> Result<Value, NodeErrorKind> {
    let (i, j) = (positions(k, queries)?, positions(k, keys)?);
    let i = reshaped(k.g(), i, &[queries.clone(), known(1)])?;
    let of_dim = |k: &mut ImportNode<'_, '_>, dim: &Dim| {
        let size = ImportedValue::sizes(vec![ShapeElem::from_dim(dim)], true);
        k.c.place(&size, 0)
    };
    let (past, queries) = (of_dim(k, past)?, of_dim(k, queries)?);
    let one_ = k.c.scalar(DType::I64, 1.0)?;
    let g = k.g();
    let own = g.plus(i, past)?;
    let before = g.compare(CompareFn::Le, j, own)?;
    let last = g.sub(queries, one_)?;
    let is_last = g.compare(CompareFn::Eq, i, last)?;
    Ok(g.binary(BinaryFn::Or, before, is_last)?)
}

/// The operand indices of masks and score biases.
struct AttentionMaskInputs {
    /// The index of the mask.
    mask: usize,
    /// The index of the score bias.
    term: usize,
    /// The number of past keys.
    past: Dim,
}

/// Attention of `[B, heads, S, D]` with a mask; the result is `[B, S, heads D]`.
fn attend(
    k: &mut ImportNode<'_, '_>,
    [q, key, value]: [Value; 3],
    masks: AttentionMaskInputs,
) -> Result<Value, NodeErrorKind> {
    let count = k.size(q, 1)?;
    let (batch, queries) = (k.dims(q)[0].clone(), k.dims(q)[2].clone());
    let (keys, dtype) = (k.dims(key)[2].clone(), k.dtype(q));
    let mut term = masked(k, masks.mask, [&batch, &keys], dtype)?;
    if let Some(own) = k.opt(masks.term)? {
        term = Some(joined(k, term, own)?);
    }
    let causal = k.attrs.flag("unidirectional", false)?;
    let mut options = AttentionOptions::new(count, count, AttentionLayout::Bhsd);
    if let Some(scale) = k.attrs.float_opt("scale")?.filter(|s| *s != 0.0) {
        options = options.scale(scale);
    }
    options.mask = match term {
        Some(term) => {
            let mut term = term;
            if causal {
                let seen = past_only(k, &queries, &keys, &masks.past)?;
                let own = bias_of(k, seen, dtype)?;
                term = k.g().plus(term, own)?;
            }
            let mut dims = k.dims(term);
            while dims.len() < 4 {
                dims.insert(0, known(1));
            }
            AttentionMask::Bias(reshaped(k.g(), term, &dims)?)
        }
        None if causal => match masks.past.checked_add(&queries) == Some(keys.clone()) {
            true => AttentionMask::Causal,
            false => {
                let seen = past_only(k, &queries, &keys, &masks.past)?;
                AttentionMask::Keep(reshaped(k.g(), seen, &[known(1), known(1), queries, keys])?)
            }
        },
        None => AttentionMask::None,
    };
    let y = k.g().attention(q, key, value, options)?;
    join_heads(k, y)
}

fn multi_head(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if k.has(8) || k.has(9) || k.is_requested(3) {
        let text = "shared caches, beam search and scores as an output are not supported";
        return Err(NodeErrorKind::unsupported(text));
    }
    let count = required_heads(k, "num_heads")?;
    let mut parts = [k.x(0)?, k.x(1)?, k.x(2)?];
    if k.rank(parts[0]) != 3 {
        let text = "packed queries, keys and values are not supported";
        return Err(NodeErrorKind::operand(0, text));
    }
    if let Some(bias) = k.opt(3)? {
        let mut start = 0;
        for part in &mut parts {
            if k.rank(*part) != 3 {
                continue;
            }
            let width = k.size(*part, 2)?;
            let own = k.g().narrow(bias, 0, start, width)?;
            *part = k.g().plus(*part, own)?;
            start += width;
        }
    }
    let mut split = parts;
    for part in &mut split {
        *part = split_heads(k, *part, Some(count))?;
    }
    let mut before = known(0);
    for (at, part) in [(6, 1), (7, 2)] {
        if let Some(past) = k.opt(at)? {
            before = k.dims(past).get(2).cloned().unwrap_or(known(0));
            split[part] = k.g().concat(&[past, split[part]], 2)?;
        }
    }
    let masks = AttentionMaskInputs {
        mask: 4,
        term: 5,
        past: before,
    };
    let y = attend(k, split, masks)?;
    Ok(vec![y.into(), split[1].into(), split[2].into()])
}

/// Splits a packed projection `[B, S, all]` into query, key and value heads.
fn projected(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    count: usize,
) -> Result<[Value; 3], NodeErrorKind> {
    let all = k.size(x, 2)?;
    let widths = match k.attrs.ints_opt("qkv_hidden_sizes")? {
        Some(list) => crate::call::unsigned("qkv_hidden_sizes", list)?,
        None => vec![all / 3; 3],
    };
    let [q, key, value] = widths[..] else {
        return Err(NodeErrorKind::attribute(
            "qkv_hidden_sizes",
            "must be three",
        ));
    };
    if q + key + value != all {
        let text = format!("is {widths:?}, which does not match the {all} columns of the weights");
        return Err(NodeErrorKind::attribute("qkv_hidden_sizes", text));
    }
    let mut parts = [x; 3];
    for (part, (start, width)) in parts.iter_mut().zip([(0, q), (q, key), (q + key, value)]) {
        let own = k.g().narrow(x, 2, start, width)?;
        *part = split_heads(k, own, Some(count))?;
    }
    Ok(parts)
}

/// Appends keys and values to a past `[2, B, heads, P, D]`; also returns both in that layout.
fn with_past(
    k: &mut ImportNode<'_, '_>,
    past: usize,
    [key, value]: [Value; 2],
) -> Result<([Value; 2], ImportedValue), NodeErrorKind> {
    let mut both = [key, value];
    if let Some(past) = k.opt(past)? {
        for (i, part) in both.iter_mut().enumerate() {
            let own = k.g().narrow(past, 0, i, 1)?;
            let own = k.g().squeeze(own, 0)?;
            *part = k.g().concat(&[own, *part], 2)?;
        }
    }
    if !k.is_requested(1) {
        return Ok((both, ImportedValue::Absent));
    }
    let (a, b) = (k.g().unsqueeze(both[0], 0)?, k.g().unsqueeze(both[1], 0)?);
    let present = k.g().concat(&[a, b], 0)?;
    Ok((both, present.into()))
}

/// Attention of a packed projection: the result, and keys and values.
fn self_attention(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    [mask, term]: [usize; 2],
    past: usize,
) -> NodeOutputs {
    only(k, &[("past_present_share_buffer", 0), ("do_rotary", 0)])?;
    k.attrs.ignore(&["rotary_embedding_dim"]);
    let count = required_heads(k, "num_heads")?;
    let [q, key, value] = projected(k, x, count)?;
    let before = match k.opt(past)? {
        Some(past) => k.dims(past).get(3).cloned().unwrap_or(known(0)),
        None => known(0),
    };
    let ([key, value], present) = with_past(k, past, [key, value])?;
    let masks = AttentionMaskInputs {
        mask,
        term,
        past: before,
    };
    let y = attend(k, [q, key, value], masks)?;
    Ok(vec![y.into(), present])
}

fn attention(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if k.has(6) {
        return Err(NodeErrorKind::operand(6, "is not supported"));
    }
    let (x, weights, bias) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    let mut all = linear::vectors(k, x, weights)?;
    if let Some(bias) = bias {
        all = k.g().plus(all, bias)?;
    }
    self_attention(k, all, [3, 5], 4)
}

fn quantized(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, weights) = (
        super::super::conv::shifted(k, 0, 6, None)?,
        super::super::conv::shifted(k, 1, 7, None)?,
    );
    let (bias, x_scale, scale) = (k.x(2)?, k.x(3)?, k.x(4)?);
    let sum = linear::vectors(k, x, weights)?;
    let scale = k.g().mul(x_scale, scale)?;
    let number = k.g().cast(sum, DType::F32)?;
    let all = k.g().mul(number, scale)?;
    let all = k.g().plus(all, bias)?;
    // `QAttention` has no operand for a score bias.
    self_attention(k, all, [5, usize::MAX], 8)
}

/// The queries, keys and values of grouped heads, from three operands or a packed one.
fn grouped_parts(
    k: &mut ImportNode<'_, '_>,
    count: usize,
    groups: usize,
) -> Result<[Value; 3], NodeErrorKind> {
    let q = k.x(0)?;
    if k.has(1) != k.has(2) {
        return Err(NodeErrorKind::operand(
            2,
            "keys and values must both be present or both be absent",
        ));
    }
    if k.has(1) {
        let (key, value) = (k.x(1)?, k.x(2)?);
        return Ok([
            split_heads(k, q, Some(count))?,
            split_heads(k, key, Some(groups))?,
            split_heads(k, value, Some(groups))?,
        ]);
    }
    let all = split_heads(k, q, Some(count + 2 * groups))?;
    let mut part = |start, len| k.g().narrow(all, 1, start, len);
    Ok([
        part(0, count)?,
        part(count, groups)?,
        part(count + groups, groups)?,
    ])
}

/// The position of the first query in each row: the number of past keys, `[B, 1]`.
fn before(k: &mut ImportNode<'_, '_>, queries: &Dim) -> Result<Value, NodeErrorKind> {
    let last = k.x(5)?;
    let n = k.dims(last)[0].clone();
    let last = cast_to(k.g(), last, DType::I64)?;
    let last = reshaped(k.g(), last, &[n, known(1)])?;
    let own = k.c.place(
        &ImportedValue::sizes(vec![ShapeElem::from_dim(queries)], true),
        0,
    )?;
    let (one_, zero) = (k.c.scalar(DType::I64, 1.0)?, k.c.scalar(DType::I64, 0.0)?);
    let total = k.g().plus(last, one_)?;
    let before = k.g().sub(total, own)?;
    // The prompt may be padded at the end, so clamp to 0.
    Ok(k.g().max(before, zero)?)
}

/// Appends keys or values to a past that has a different length in each row.
fn appended(
    k: &mut ImportNode<'_, '_>,
    past: Option<Value>,
    fresh: Value,
    before: Value,
) -> Result<Value, NodeErrorKind> {
    let Some(past) = past else { return Ok(fresh) };
    let room = k.dims(past)[2].clone();
    let both = k.g().concat(&[past, fresh], 2)?;
    let dims = k.dims(both);
    let t = positions(k, &dims[2])?;
    let room = k.c.place(
        &ImportedValue::sizes(vec![ShapeElem::from_dim(&room)], true),
        0,
    )?;
    let last = k.c.place(
        &ImportedValue::sizes(vec![ShapeElem::from_dim(&dims[2])], true),
        0,
    )?;
    let one_ = k.c.scalar(DType::I64, 1.0)?;
    let g = k.g();
    let skipped = g.sub(room, before)?;
    let moved = g.plus(t, skipped)?;
    let last = g.sub(last, one_)?;
    let moved = g.min(moved, last)?;
    let is_past = g.compare(CompareFn::Lt, t, before)?;
    let from = g.where_(is_past, t, moved)?;
    let rest = g.sub(last, skipped)?;
    let is_there = g.compare(CompareFn::Le, t, rest)?;
    let rows = g.ty(from).shape[0].clone();
    let each = [rows, known(1), dims[2].clone(), known(1)];
    let (from, is_there) = (reshaped(g, from, &each)?, reshaped(g, is_there, &each)?);
    let from = g.expand(from, dims)?;
    let y = g.gather_elements(both, from, 2)?;
    let dtype = g.ty(y).dtype;
    // Zero the elements after the last key of a row.
    let zero = g.scalar(dtype, 0.0)?;
    Ok(g.where_(is_there, y, zero)?)
}

/// Grouped-query attention. Each row has `seqlens_k + 1` keys.
fn grouped(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let Some(at) = (11..17).find(|at| k.has(*at)) {
        return Err(NodeErrorKind::operand(at, "is not supported"));
    }
    let fixed = [
        ("smooth_softmax", 0),
        ("qk_output", 0),
        ("kv_cache_bit_width", 0),
        ("sliding_window_cache", 0),
        ("causal", 1),
    ];
    only(k, &fixed)?;
    for name in ["k_quant_type", "v_quant_type"] {
        if k.attrs.string(name, "NONE")? != "NONE" {
            return Err(NodeErrorKind::attribute(name, "is not supported"));
        }
    }
    k.attrs
        .ignore(&["q_norm_epsilon", "k_norm_epsilon", "qk_norm_epsilon"]);
    let (count, groups) = (
        required_heads(k, "num_heads")?,
        required_heads(k, "kv_num_heads")?,
    );
    let [mut q, mut key, value] = grouped_parts(k, count, groups)?;
    let queries = k.dims(q)[2].clone();
    let before = before(k, &queries)?;
    let steps = positions(k, &queries)?;
    let at = k.g().plus(before, steps)?;
    let interleaved = k.attrs.flag("rotary_interleaved", false)?;
    if k.attrs.flag("do_rotary", false)? {
        let (cos, sin) = (k.x(7)?, k.x(8)?);
        let ids = k.opt(9)?.unwrap_or(at);
        let width = 2 * k.size(cos, 1)?;
        let angles = [k.g().gather(cos, ids, 0)?, k.g().gather(sin, ids, 0)?];
        q = rotate_by(k, q, angles, interleaved, width)?;
        key = rotate_by(k, key, angles, interleaved, width)?;
    }
    let (old_keys, old_values) = (k.opt(3)?, k.opt(4)?);
    let key = appended(k, old_keys, key, before)?;
    let value = appended(k, old_values, value, before)?;
    let mask = grouped_mask(k, at, &k.dims(key)[2].clone())?;
    let mut options = AttentionOptions::new(count, groups, AttentionLayout::Bhsd).mask(mask);
    if let Some(scale) = k.attrs.float_opt("scale")?.filter(|s| *s != 0.0) {
        options = options.scale(scale);
    }
    options.softcap = k.attrs.float_opt("softcap")?.filter(|s| *s > 0.0);
    let y = k.g().attention(q, key, value, options)?;
    let y = join_heads(k, y)?;
    Ok(vec![y.into(), key.into(), value.into()])
}

/// The mask of keys up to a query's position `at [B, S]`, limited by the optional sliding window,
/// with the optional score bias.
fn grouped_mask(
    k: &mut ImportNode<'_, '_>,
    at: Value,
    keys: &Dim,
) -> Result<AttentionMask, NodeErrorKind> {
    let window = k.attrs.int("local_window_size", -1)?;
    let mut dims = k.dims(at);
    dims.insert(1, known(1));
    dims.push(known(1));
    let at = reshaped(k.g(), at, &dims)?;
    let j = positions(k, keys)?;
    let mut keep = k.g().compare(CompareFn::Le, j, at)?;
    if window > 0 {
        let window = k.c.scalar(DType::I64, window as f64)?;
        let first = k.g().sub(at, window)?;
        let near = k.g().compare(CompareFn::Gt, j, first)?;
        keep = k.g().binary(BinaryFn::And, keep, near)?;
    }
    let Some(term) = k.opt(10)? else {
        return Ok(AttentionMask::Keep(keep));
    };
    let dtype = k.dtype(term);
    let own = bias_of(k, keep, dtype)?;
    Ok(AttentionMask::Bias(k.g().plus(term, own)?))
}
