//! Attention and rotary embeddings.
//!
//! If only the result is used, attention is imported as one operator; otherwise it is decomposed.

use tercet_ir::ops::{AttentionLayout, AttentionMask, AttentionOptions, RopeStyle};
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Tensor, Value};

use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::ctx::ImportCtx;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Attention", 23, attention),
    op("RotaryEmbedding", 23, rotary),
];

/// A positive number of heads from an attribute, if present.
pub(super) fn heads(k: &ImportNode<'_, '_>, name: &str) -> Result<Option<usize>, NodeErrorKind> {
    let given = k.attrs.int_opt(name)?.filter(|n| *n != 0);
    let heads = given.map(|n| {
        usize::try_from(n).map_err(|_| NodeErrorKind::attribute(name, "must be positive"))
    });
    heads.transpose()
}

/// Reshapes `[B, S, heads D]` to `[B, heads, S, D]`.
pub(super) fn split_heads(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    heads: Option<usize>,
) -> Result<Value, NodeErrorKind> {
    let dims = k.dims(x);
    if dims.len() == 4 {
        return Ok(x);
    }
    let heads = heads.ok_or_else(|| {
        NodeErrorKind::attribute(
            "q_num_heads",
            "the number of heads is required for operands with three axes",
        )
    })?;
    let [b, s, width] = dims.as_slice() else {
        return Err(NodeErrorKind::operand(
            0,
            format!("{} must have three or four axes", k.ty(x)),
        ));
    };
    let each = width.div_exact(&Dim::Known(heads));
    let each = each.ok_or_else(|| {
        NodeErrorKind::unsupported(format!("{heads} heads do not divide {width}"))
    })?;
    let y = reshaped(k.g(), x, &[b.clone(), s.clone(), Dim::Known(heads), each])?;
    Ok(k.g().transpose(y, &[0, 2, 1, 3])?)
}

/// Reshapes `[B, heads, S, D]` to `[B, S, heads D]`.
pub(super) fn join_heads(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    let y = k.g().transpose(x, &[0, 2, 1, 3])?;
    let dims = k.dims(y);
    let width = product(&dims[2..])?;
    reshaped(k.g(), y, &[dims[0].clone(), dims[1].clone(), width])
}

/// The numbers from 0 along a dimension, which can be symbolic.
pub(crate) fn positions(k: &mut ImportNode<'_, '_>, dim: &Dim) -> Result<Value, NodeErrorKind> {
    steps(k.c, dim)
}

/// As [`positions`], in an import context.
pub(crate) fn steps(c: &mut ImportCtx<'_>, dim: &Dim) -> Result<Value, NodeErrorKind> {
    if let Some(n) = dim.known().filter(|n| c.spend(*n)) {
        let numbers: Vec<i64> = (0..n as i64).collect();
        return c.place(
            &ImportedValue::known(Tensor::from_slice(&[n], &numbers)?),
            0,
        );
    }
    let g = c.g();
    let one_ = g.constant(Tensor::from_slice(&[1], &[1i64])?)?;
    let ones = g.expand(one_, [dim.clone()])?;
    let sums = g.cum_sum(ones, 0)?;
    let one_ = g.scalar(DType::I64, 1.0)?;
    Ok(g.sub(sums, one_)?)
}

/// Converts a boolean mask to an additive one: 0 for true, `-inf` for false.
pub(super) fn bias_of(
    k: &mut ImportNode<'_, '_>,
    keep: Value,
    dtype: DType,
) -> Result<Value, NodeErrorKind> {
    let (zero, never) = (
        k.c.scalar(dtype, 0.0)?,
        k.c.scalar(dtype, f64::NEG_INFINITY)?,
    );
    Ok(k.g().where_(keep, zero, never)?)
}

/// The sum of two optional score biases.
pub(super) fn joined(
    k: &mut ImportNode<'_, '_>,
    a: Option<Value>,
    b: Value,
) -> Result<Value, NodeErrorKind> {
    match a {
        Some(a) => Ok(k.g().plus(a, b)?),
        None => Ok(b),
    }
}

/// The keys that a query sees by its position.
#[derive(Clone, Copy)]
struct KeyRange {
    /// No keys after the query's own position.
    causal: bool,
    /// The number of keys before the query's position.
    before: Option<i64>,
    /// The number of keys after the query's position.
    after: Option<i64>,
}

impl KeyRange {
    fn read(k: &ImportNode<'_, '_>) -> Result<KeyRange, NodeErrorKind> {
        let size = |name: &str| match k.attrs.int(name, -1)? {
            -1 => Ok(None),
            size if size >= 0 => Ok(Some(size)),
            size => Err(NodeErrorKind::attribute(
                name,
                format!("expected -1 (no limit) or a size, found {size}"),
            )),
        };
        Ok(KeyRange {
            causal: k.attrs.flag("is_causal", false)?,
            before: size("left_window_size")?,
            after: size("right_window_size")?,
        })
    }

    /// Whether the range is all keys or all keys up to the query.
    fn has_no_window(self) -> bool {
        self.before.is_none() && (self.after.is_none() || self.causal)
    }
}

/// The positions of the queries among the keys, `[S, 1]` or `[B, 1, S, 1]`. The first query follows
/// the keys of the past, or is placed so that the last query is the last valid key of its sequence.
fn query_positions(
    k: &mut ImportNode<'_, '_>,
    queries: &Dim,
    past: &Dim,
) -> Result<Value, NodeErrorKind> {
    let sizes = |dim: &Dim| ImportedValue::sizes(vec![crate::val::ShapeElem::from_dim(dim)], true);
    let i = positions(k, queries)?;
    let i = reshaped(k.g(), i, &[queries.clone(), Dim::Known(1)])?;
    if k.has(4) || !k.has(6) {
        let shift = k.c.place(&sizes(past), 0)?;
        return Ok(k.g().plus(i, shift)?);
    }
    let lens = valid_keys(k)?;
    let count = k.c.place(&sizes(queries), 0)?;
    let shift = k.g().sub(lens, count)?;
    Ok(k.g().plus(i, shift)?)
}

/// The number of valid keys of each sequence, I64 `[B, 1, 1, 1]`.
fn valid_keys(k: &mut ImportNode<'_, '_>) -> Result<Value, NodeErrorKind> {
    let lens = k.x(6)?;
    let batch = product(&k.dims(lens))?;
    let one_ = Dim::Known(1);
    let dims = [batch, one_.clone(), one_.clone(), one_];
    reshaped(k.g(), lens, &dims)
}

/// The additive score bias with four axes, from the mask, the range of keys and the number of valid
/// keys.
fn bias(
    k: &mut ImportNode<'_, '_>,
    dtype: DType,
    queries: &Dim,
    keys: &Dim,
    past: &Dim,
    range: KeyRange,
) -> Result<Option<Value>, NodeErrorKind> {
    let mut term = None;
    if let Some(mask) = k.opt(3)? {
        let mask = match k.dtype(mask) {
            DType::Bool => bias_of(k, mask, dtype)?,
            _ => mask,
        };
        term = Some(widened(k, mask, keys)?);
    }
    if range.causal || !range.has_no_window() {
        let (i, j) = (query_positions(k, queries, past)?, positions(k, keys)?);
        let last = if range.causal { Some(0) } else { range.after };
        // With `is_causal`, a window to the right has no effect.
        let ends = [
            (CompareFn::Le, last),
            (CompareFn::Ge, range.before.map(|n| -n)),
        ];
        for (compare, distance) in ends {
            let Some(distance) = distance else { continue };
            let distance = k.like(i, distance as f64)?;
            let end = k.g().plus(i, distance)?;
            let seen = k.g().compare(compare, j, end)?;
            let own = bias_of(k, seen, dtype)?;
            term = Some(joined(k, term, own)?);
        }
    }
    if k.has(6) {
        let j = positions(k, keys)?;
        let lens = valid_keys(k)?;
        let seen = k.g().compare(CompareFn::Lt, j, lens)?;
        let own = bias_of(k, seen, dtype)?;
        term = Some(joined(k, term, own)?);
    }
    let Some(term) = term else { return Ok(None) };
    let mut dims = k.dims(term);
    while dims.len() < 4 {
        dims.insert(0, Dim::Known(1));
    }
    Ok(Some(reshaped(k.g(), term, &dims)?))
}

/// Extends a mask to all keys; additional keys are masked out.
fn widened(k: &mut ImportNode<'_, '_>, mask: Value, keys: &Dim) -> Result<Value, NodeErrorKind> {
    let dims = k.dims(mask);
    let rank = dims.len();
    let own = dims.last().and_then(Dim::known);
    let (Some(own), Some(keys)) = (own, keys.known()) else {
        return Ok(mask);
    };
    if own >= keys {
        return Ok(mask);
    }
    let mut after = vec![0; rank];
    after[rank - 1] = keys - own;
    Ok(k.g().pad(
        mask,
        &vec![0; rank],
        &after,
        tercet_ir::ops::PadMode::Constant,
        f64::NEG_INFINITY,
    )?)
}

/// Repeats the key or value heads for the query heads that share them.
pub(crate) fn repeated(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    times: usize,
) -> Result<Value, NodeErrorKind> {
    if times == 1 {
        return Ok(x);
    }
    let d = k.dims(x);
    let g = k.g();
    let y = reshaped(
        g,
        x,
        &[
            d[0].clone(),
            d[1].clone(),
            Dim::Known(1),
            d[2].clone(),
            d[3].clone(),
        ],
    )?;
    let y = g.expand(
        y,
        [
            d[0].clone(),
            d[1].clone(),
            Dim::Known(times),
            d[2].clone(),
            d[3].clone(),
        ],
    )?;
    let heads = product(&[d[1].clone(), Dim::Known(times)])?;
    reshaped(g, y, &[d[0].clone(), heads, d[2].clone(), d[3].clone()])
}

/// Appends keys or values to those of the past.
fn with_past(k: &mut ImportNode<'_, '_>, x: Value, operand: usize) -> Result<Value, NodeErrorKind> {
    match k.opt(operand)? {
        Some(past) => Ok(k.g().concat(&[past, x], 2)?),
        None => Ok(x),
    }
}

fn attention(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (q, key, value) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let flat = k.rank(q) == 3;
    let (q_heads, kv_heads) = (heads(k, "q_num_heads")?, heads(k, "kv_num_heads")?);
    let (q, key, value) = (
        split_heads(k, q, q_heads)?,
        split_heads(k, key, kv_heads)?,
        split_heads(k, value, kv_heads)?,
    );
    let (q_heads, kv_heads) = (k.size(q, 1)?, k.size(key, 1)?);
    let fresh = k.dims(key)[2].clone();
    let (key, value) = (with_past(k, key, 4)?, with_past(k, value, 5)?);
    let range = KeyRange::read(k)?;
    let mode = k.attrs.int("qk_matmul_output_mode", 0)?;
    let precision = k.attrs.int_opt("softmax_precision")?;
    let softcap = k.attrs.float("softcap", 0.0)?;
    let scale = match k.attrs.float_opt("scale")? {
        Some(scale) => scale,
        None => 1.0 / (k.size(q, 3)? as f64).sqrt(),
    };
    if kv_heads == 0 || q_heads % kv_heads != 0 {
        return Err(NodeErrorKind::unsupported(format!(
            "{q_heads} query heads are not a multiple of {kv_heads} key heads"
        )));
    }
    let (queries, keys) = (k.dims(q)[2].clone(), k.dims(key)[2].clone());
    let past = keys.checked_sub(&fresh).unwrap_or(Dim::Known(0));
    let dtype = k.dtype(q);
    let plain = !k.is_requested(3) && k.dtype(key) == dtype && k.dtype(value) == dtype;
    let aligned = queries == fresh && !k.has(3) && !k.has(6) && range.has_no_window();
    let built_in = range.causal && plain && aligned;
    let term = match built_in {
        true => None,
        false => bias(k, dtype, &queries, &keys, &past, range)?,
    };
    let (y, scores) = if plain {
        let mut options =
            AttentionOptions::new(q_heads, kv_heads, AttentionLayout::Bhsd).scale(scale);
        options.softcap = Some(softcap).filter(|s| *s > 0.0);
        options.mask = match term {
            Some(term) => AttentionMask::Bias(term),
            None if built_in => AttentionMask::Causal,
            None => AttentionMask::None,
        };
        (k.g().attention(q, key, value, options)?, None)
    } else {
        let (scores, y) = decomposed(k, [q, key, value], [scale, softcap], term, mode, precision)?;
        (y, Some(scores))
    };
    let y = if flat { join_heads(k, y)? } else { y };
    let results = [y, key, value].into_iter().chain(scores);
    Ok(results.map(ImportedValue::Graph).collect())
}

/// Decomposed attention: the scores at the stage that the attribute selects, and the result.
fn decomposed(
    k: &mut ImportNode<'_, '_>,
    [q, key, value]: [Value; 3],
    [scale, softcap]: [f64; 2],
    term: Option<Value>,
    mode: i64,
    precision: Option<i64>,
) -> Result<(Value, Value), NodeErrorKind> {
    let times = k.size(q, 1)? / k.size(key, 1)?.max(1);
    let (key, value) = (repeated(k, key, times)?, repeated(k, value, times)?);
    let dtype = k.dtype(q);
    let root = k.like(q, scale.sqrt())?;
    let turned = k.g().transpose(key, &[0, 1, 3, 2])?;
    let (q, turned) = (k.g().mul(q, root)?, k.g().mul(turned, root)?);
    let raw = k.g().matmul(q, turned)?;
    let mut capped = raw;
    if softcap > 0.0 {
        let cap = k.like(raw, softcap)?;
        let g = k.g();
        let part = g.div(raw, cap)?;
        let bounded = g.tanh(part)?;
        capped = g.mul(bounded, cap)?;
    }
    let masked = match term {
        Some(term) => k.g().plus(capped, term)?,
        None => capped,
    };
    let wide = match precision {
        Some(number) => crate::elem::dtype(number)
            .map_err(|e| NodeErrorKind::attribute("softmax_precision", e))?,
        None => dtype,
    };
    let scores = if wide == dtype {
        masked
    } else {
        k.g().cast(masked, wide)?
    };
    let soft = k.g().softmax(scores, 3)?;
    let soft = if wide == dtype {
        soft
    } else {
        k.g().cast(soft, dtype)?
    };
    let given = match mode {
        0 if softcap > 0.0 => {
            return Err(NodeErrorKind::unsupported(
                "scores before the softcap are not supported as an output",
            ));
        }
        0 => raw,
        1 => capped,
        2 => masked,
        3 => soft,
        other => {
            return Err(NodeErrorKind::attribute(
                "qk_matmul_output_mode",
                format!("{other} is not supported"),
            ));
        }
    };
    let y = k.g().matmul(soft, value)?;
    Ok((given, y))
}

fn rotary(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, mut cos, mut sin) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let (flat, heads) = (k.rank(x) == 3, heads(k, "num_heads")?);
    let interleaved = k.attrs.flag("interleaved", false)?;
    let x = split_heads(k, x, heads)?;
    if let Some(ids) = k.opt(3)? {
        (cos, sin) = (k.g().gather(cos, ids, 0)?, k.g().gather(sin, ids, 0)?);
    }
    let width = k.size(x, 3)?;
    let turned = usize::try_from(k.attrs.int("rotary_embedding_dim", 0)?).unwrap_or(0);
    let turned = if turned == 0 {
        width
    } else {
        turned.min(width)
    };
    let y = rotate_by(k, x, [cos, sin], interleaved, turned)?;
    one(if flat { join_heads(k, y)? } else { y })
}

/// The angles `[B or 1, S, turned / 2]` as operands of `Rope`; `None` if `Rope` does not take them.
fn rope_tables(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    tables: [Value; 2],
    turned: usize,
) -> Result<Option<[Value; 2]>, NodeErrorKind> {
    let (dims, dtype) = (k.dims(x), k.dtype(x));
    let mut taken = tables;
    for table in &mut taken {
        let own = k.dims(*table);
        let fits = matches!(own.as_slice(), [b, s, n]
            if (*b == dims[0] || *b == Dim::Known(1)) && *s == dims[2] && *n == Dim::Known(turned / 2));
        let typed = [dtype, DType::F32].contains(&k.dtype(*table));
        if !fits || !typed || !dtype.is_float() || !turned.is_multiple_of(2) {
            return Ok(None);
        }
        if own[0] != dims[0] {
            *table = k.g().squeeze(*table, 0)?;
        }
    }
    Ok(Some(taken))
}

/// Rotates the first `turned` elements of each head of `x [B, heads, S, D]` by angles `[B or 1, S,
/// turned / 2]`.
pub(super) fn rotate_by(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    [cos, sin]: [Value; 2],
    interleaved: bool,
    turned: usize,
) -> Result<Value, NodeErrorKind> {
    let width = k.size(x, 3)?;
    if let Some([cos, sin]) = rope_tables(k, x, [cos, sin], turned)? {
        let style = match interleaved {
            true => RopeStyle::GptJ,
            false => RopeStyle::NeoX,
        };
        return Ok(k
            .g()
            .rope(x, cos, sin, style, turned, AttentionLayout::Bhsd)?);
    }
    let (cos, sin) = (k.g().unsqueeze(cos, 1)?, k.g().unsqueeze(sin, 1)?);
    let part = k.g().narrow(x, 3, 0, turned)?;
    let (a, b) = match interleaved {
        true => (
            k.g().slice_axis(part, 3, 0, i64::MAX, 2)?,
            k.g().slice_axis(part, 3, 1, i64::MAX, 2)?,
        ),
        false => (
            k.g().narrow(part, 3, 0, turned / 2)?,
            k.g().narrow(part, 3, turned / 2, turned / 2)?,
        ),
    };
    let g = k.g();
    let (ac, bs, as_, bc) = (
        g.mul(a, cos)?,
        g.mul(b, sin)?,
        g.mul(a, sin)?,
        g.mul(b, cos)?,
    );
    let (real, imaginary) = (g.sub(ac, bs)?, g.plus(as_, bc)?);
    let mut y = match interleaved {
        true => {
            let (r, i) = (g.unsqueeze(real, 4)?, g.unsqueeze(imaginary, 4)?);
            let pairs = g.concat(&[r, i], 4)?;
            let dims = g.ty(part).shape.to_vec();
            reshaped(g, pairs, &dims)?
        }
        false => g.concat(&[real, imaginary], 3)?,
    };
    if turned < width {
        let rest = g.narrow(x, 3, turned, width - turned)?;
        y = g.concat(&[y, rest], 3)?;
    }
    Ok(y)
}
