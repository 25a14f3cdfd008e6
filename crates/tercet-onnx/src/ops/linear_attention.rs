//! Linear attention: each head has a state that every token updates and reads.

use tercet_ir::ops::{ReduceFn, Scan};
use tercet_ir::{DType, Dim, Graph, SubGraph, Type, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::emulated_dtypes::cast_to;
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("LinearAttention", 26, linear_attention)];

/// The update rule of the state.
#[derive(Clone, Copy)]
struct StateUpdateRule {
    /// The state decays first.
    gated: bool,
    /// Delta rule: writes only the difference between the value and the state's current answer for
    /// the key.
    delta: bool,
}

/// The number of heads in an attribute.
fn heads(k: &ImportNode<'_, '_>, name: &str) -> Result<usize, NodeErrorKind> {
    let given = k.attrs.int_opt(name)?;
    let heads = given.and_then(|n| usize::try_from(n).ok().filter(|n| *n > 0));
    heads.ok_or_else(|| NodeErrorKind::attribute(name, "is required and must be positive"))
}

fn rule(k: &ImportNode<'_, '_>) -> Result<StateUpdateRule, NodeErrorKind> {
    let rule = match k.attrs.string("update_rule", "gated_delta")?.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => {
            return Err(NodeErrorKind::attribute(
                "update_rule",
                format!("`{other}` is not supported"),
            ));
        }
    };
    let (gated, delta) = rule;
    for (index, name, wanted) in [(4, "decay", gated), (5, "beta", delta)] {
        if k.has(index) != wanted {
            let reason = format!("{name} must be present exactly if the update rule reads it");
            return Err(NodeErrorKind::operand(index, reason));
        }
    }
    Ok(StateUpdateRule { gated, delta })
}

/// Reshapes `[B, T, H D]` to F32 `[B, T, H, D]`.
fn split(k: &mut ImportNode<'_, '_>, index: usize, heads: usize) -> Result<Value, NodeErrorKind> {
    let x = k.x(index)?;
    if k.rank(x) != 3 {
        return Err(NodeErrorKind::operand(index, "must have three axes"));
    }
    let width = k.size(x, 2)?;
    if width % heads != 0 {
        let reason = format!("{width} elements are not divisible into {heads} heads");
        return Err(NodeErrorKind::operand(index, reason));
    }
    let mut dims = k.dims(x);
    dims[2] = Dim::Known(heads);
    dims.push(Dim::Known(width / heads));
    let x = reshaped(k.g(), x, &dims)?;
    cast_to(k.g(), x, DType::F32)
}

/// Repeats each element of an axis `times` times consecutively.
fn repeated(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
    times: usize,
) -> Result<Value, NodeErrorKind> {
    if times == 1 {
        return Ok(x);
    }
    let mut dims = k.dims(x);
    let joined = k.size(x, at)? * times;
    let y = k.g().unsqueeze(x, at + 1)?;
    dims.insert(at + 1, Dim::Known(times));
    let y = k.g().expand(y, dims.clone())?;
    dims.remove(at + 1);
    dims[at] = Dim::Known(joined);
    reshaped(k.g(), y, &dims)
}

fn linear_attention(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    // `chunk_size` is a performance hint without effect on results.
    k.attrs.ignore(&["chunk_size"]);
    let (q_heads, kv_heads) = (heads(k, "q_num_heads")?, heads(k, "kv_num_heads")?);
    if q_heads % kv_heads != 0 {
        return Err(NodeErrorKind::attribute(
            "q_num_heads",
            "must be a multiple of kv_num_heads",
        ));
    }
    let (rule, group) = (rule(k)?, q_heads / kv_heads);
    let x = k.x(0)?;
    let out = k.dtype(x);
    let q = split(k, 0, q_heads)?;
    let (key, value) = (split(k, 1, kv_heads)?, split(k, 2, kv_heads)?);
    let key = repeated(k, key, 2, group)?;
    let value = repeated(k, value, 2, group)?;
    let width = k.size(q, 3)?;
    let (state, state_dtype) = match k.opt(3)? {
        Some(state) => {
            let dtype = k.dtype(state);
            let state = cast_to(k.g(), state, DType::F32)?;
            (repeated(k, state, 1, group)?, dtype)
        }
        None => {
            let (q, v) = (k.dims(q), k.dims(value));
            let dims = [q[0].clone(), q[2].clone(), q[3].clone(), v[3].clone()];
            let zero = k.c.scalar(DType::F32, 0.0)?;
            (k.g().expand(zero, dims)?, out)
        }
    };
    let decay = match rule.gated {
        true => {
            let decay = split(k, 4, kv_heads)?;
            Some(repeated(k, decay, 2, group)?)
        }
        false => None,
    };
    let beta = match rule.delta {
        true => Some(betas(k, kv_heads, group)?),
        false => None,
    };
    let scale = k.attrs.float("scale", 0.0)?;
    let scale = if scale == 0.0 {
        (width as f64).sqrt().recip()
    } else {
        scale
    };
    let (y, state) = match (beta, by_head(k, q, decay)?) {
        (Some(beta), Some(decay)) => {
            let beta = k.g().squeeze(beta, 3)?;
            let y = k
                .g()
                .gated_delta_net([q, key, value, decay, beta], Some(state), true)?;
            // The `gated_delta_net` operator divides by the square root of the width; the factor
            // cancels that.
            let factor = k.c.scalar(DType::F32, scale * (width as f64).sqrt())?;
            (k.g().mul(y, factor)?, y.port(1))
        }
        (_, _) => {
            let scale = k.c.scalar(DType::F32, scale)?;
            let q = k.g().mul(q, scale)?;
            scanned(k, [q, key, value], decay, beta, state)?
        }
    };
    let mut dims = k.dims(x);
    let columns = k.size(value, 3)?;
    dims[2] = Dim::Known(q_heads * columns);
    let y = reshaped(k.g(), y, &dims)?;
    let y = cast_to(k.g(), y, out)?;
    let state = one_of_group(k, state, kv_heads, group)?;
    let state = cast_to(k.g(), state, state_dtype)?;
    Ok(vec![y.into(), state.into()])
}

/// Keeps one of `group` equal states for each key head.
fn one_of_group(
    k: &mut ImportNode<'_, '_>,
    state: Value,
    kv_heads: usize,
    group: usize,
) -> Result<Value, NodeErrorKind> {
    if group == 1 {
        return Ok(state);
    }
    let mut dims = k.dims(state);
    dims[1] = Dim::Known(kv_heads);
    dims.insert(2, Dim::Known(group));
    let state = reshaped(k.g(), state, &dims)?;
    let state = k.g().narrow(state, 2, 0, 1)?;
    Ok(k.g().squeeze(state, 2)?)
}

/// `beta` for the query heads, `[B, T, H, 1]`, from `[B, T, H]` or a value shared by all heads.
fn betas(
    k: &mut ImportNode<'_, '_>,
    kv_heads: usize,
    group: usize,
) -> Result<Value, NodeErrorKind> {
    let beta = k.x(5)?;
    let of = match k.rank(beta) == 3 && k.size(beta, 2)? == 1 {
        true => 1,
        false => kv_heads,
    };
    let beta = split(k, 5, of)?;
    if k.size(beta, 3)? != 1 {
        return Err(NodeErrorKind::operand(5, "must have one value per head"));
    }
    repeated(k, beta, 2, kv_heads / of * group)
}

/// The decay of each head `[B, T, H]`, if it is a scalar per head; 0 without decay.
fn by_head(
    k: &mut ImportNode<'_, '_>,
    q: Value,
    decay: Option<Value>,
) -> Result<Option<Value>, NodeErrorKind> {
    match decay {
        Some(decay) if k.size(decay, 3)? == 1 => Ok(Some(k.g().squeeze(decay, 3)?)),
        Some(_) => Ok(None),
        None => {
            let dims = k.dims(q)[..3].to_vec();
            let zero = k.c.scalar(DType::F32, 0.0)?;
            Ok(Some(k.g().expand(zero, dims)?))
        }
    }
}

/// Processes tokens one by one: results `[B, T, H, P]` and the last state `[B, H, N, P]`.
fn scanned(
    k: &mut ImportNode<'_, '_>,
    [q, key, value]: [Value; 3],
    decay: Option<Value>,
    beta: Option<Value>,
    state: Value,
) -> Result<(Value, Value), NodeErrorKind> {
    let mut operands = vec![state];
    for x in [q, key, value].into_iter().chain(decay).chain(beta) {
        operands.push(k.g().transpose(x, &[1, 0, 2, 3])?);
    }
    let types: Vec<Type> = operands.iter().map(|v| k.ty(*v)).collect();
    let scan = Scan {
        body: SubGraph::new(step(&types, decay.is_some(), beta.is_some())?),
        carried: 1,
        scanned: operands.len() - 1,
        reverse: vec![false; operands.len() - 1],
        reverse_results: vec![false],
    };
    let state = k.g().add(scan, &operands)?;
    let y = k.g().transpose(state.port(1), &[1, 0, 2, 3])?;
    Ok((y, state))
}

/// The scan body for one token: updates the state `[B, H, N, P]` and reads from it.
fn step(types: &[Type], gated: bool, delta: bool) -> Result<Graph, NodeErrorKind> {
    let mut g = Graph::new();
    let mut state = g.input("state", types[0].clone())?;
    let mut parts = Vec::with_capacity(types.len());
    for (i, ty) in types.iter().enumerate().skip(1) {
        let dims: Vec<Dim> = ty.shape.iter().skip(1).cloned().collect();
        parts.push(g.input(&format!("part{i}"), Type::new(ty.dtype, dims))?);
    }
    let mut parts = parts.into_iter();
    let mut next = || {
        parts
            .next()
            .ok_or_else(|| NodeErrorKind::unsupported("an operand is missing"))
    };
    let (q, key, mut value) = (next()?, next()?, next()?);
    // Reshape query and key to columns, which broadcast against the rows of the state.
    let (q, column) = (g.unsqueeze(q, 3)?, g.unsqueeze(key, 3)?);
    if gated {
        let decay = g.exp(next()?)?;
        let decay = g.unsqueeze(decay, 3)?;
        state = g.mul(state, decay)?;
    }
    if delta {
        let answer = g.mul(state, column)?;
        let answer = g.reduce(ReduceFn::Sum, answer, &[2], false)?;
        let rest = g.sub(value, answer)?;
        value = g.mul(rest, next()?)?;
    }
    let row = g.unsqueeze(value, 2)?;
    let written = g.mul(column, row)?;
    let state = g.plus(state, written)?;
    let read = g.mul(state, q)?;
    let y = g.reduce(ReduceFn::Sum, read, &[2], false)?;
    g.output("state_after", state)?;
    g.output("y", y)?;
    Ok(g)
}
