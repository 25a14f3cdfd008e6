//! Cases of attention with log-sum-exp, and of the gradients.

use super::{AttentionCaseDims, AttentionOptionsFn, BASE, HEADS_FIRST, bools, lens};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::attention::saved::sums;
use crate::ops::attention::{
    Attention, AttentionGrad, AttentionGradOf, AttentionLayout, AttentionOptions, MaskKind,
};
use crate::types::Type;

/// Queries, keys and values as inputs.
fn operands(c: &mut CaseGraph, d: AttentionCaseDims) -> Result<[Value; 3], OpError> {
    Ok([
        c.input("q", d.shape(d.sq, d.q_heads, d.d), InputFill::Normal)?,
        c.input("k", d.shape(d.sk, d.kv_heads, d.d), InputFill::Normal)?,
        c.input("v", d.shape(d.sk, d.kv_heads, d.dv), InputFill::Normal)?,
    ])
}

fn saved_lse_case(name: &str, dims: AttentionCaseDims, choose: AttentionOptionsFn) -> OpCase {
    OpCase::new(name, move |c| {
        let [q, k, v] = operands(c, dims)?;
        let options = AttentionOptions::new(dims.q_heads, dims.kv_heads, dims.layout);
        let options = choose(c, options)?;
        let (y, lse) = c.graph.attention_with_lse(q, k, v, options)?;
        c.output(y)?;
        c.output(lse)
    })
}

/// A case of the gradients of an attention.
fn grads(
    name: &str,
    dims: AttentionCaseDims,
    of: AttentionGradOf,
    choose: AttentionOptionsFn,
) -> OpCase {
    OpCase::new(name, move |c| {
        let [q, k, v] = operands(c, dims)?;
        let dy = c.input(
            "dy",
            dims.shape(dims.sq, dims.q_heads, dims.dv),
            InputFill::Normal,
        )?;
        let options = AttentionOptions::new(dims.q_heads, dims.kv_heads, dims.layout);
        let options = choose(c, options)?;
        let (y, lse) = c.graph.attention_with_lse(q, k, v, options)?;
        let delta = delta(&mut c.graph, dims.layout, y, dy)?;
        let (op, rest) = options.split();
        let all: Vec<Value> = [q, k, v, dy, lse, delta].into_iter().chain(rest).collect();
        let first = c.graph.add(AttentionGrad::new(of, op), &all)?;
        c.output(first)?;
        match of {
            AttentionGradOf::Queries => Ok(()),
            AttentionGradOf::Keys => c.output(first.port(1)),
        }
    })
}

fn delta(g: &mut Graph, layout: AttentionLayout, y: Value, dy: Value) -> Result<Value, OpError> {
    let to = sums(g.ty(y).dtype);
    let (y, dy) = (g.cast(y, to)?, g.cast(dy, to)?);
    let both = g.mul(y, dy)?;
    let sum = g.reduce_sum(both, &[3], false)?;
    match layout {
        AttentionLayout::Bhsd => Ok(sum),
        AttentionLayout::Bshd => g.transpose(sum, &[0, 2, 1]),
    }
}

const LONG: AttentionCaseDims = AttentionCaseDims {
    sq: 70,
    sk: 150,
    d: 64,
    dv: 64,
    ..HEADS_FIRST
};
const EQUAL: AttentionCaseDims = AttentionCaseDims {
    sq: 130,
    sk: 130,
    d: 32,
    dv: 32,
    q_heads: 2,
    kv_heads: 2,
    ..BASE
};
const WIDE: AttentionCaseDims = AttentionCaseDims {
    sq: 40,
    sk: 70,
    d: 80,
    dv: 24,
    q_heads: 3,
    kv_heads: 1,
    ..BASE
};

/// One case for each kind of mask.
fn ways() -> Vec<(&'static str, AttentionCaseDims, AttentionOptionsFn)> {
    vec![
        ("none_bshd", BASE, |_, o| Ok(o)),
        ("causal_bhsd", HEADS_FIRST, |_, o| Ok(o.causal())),
        ("long", LONG, |_, o| Ok(o)),
        ("long_causal", LONG, |_, o| Ok(o.causal())),
        ("long_window", LONG, |_, o| Ok(o.window(33))),
        ("equal_causal", EQUAL, |_, o| Ok(o.causal())),
        (
            "more_queries_than_keys",
            AttentionCaseDims { sk: 20, ..EQUAL },
            |_, o| Ok(o.causal()),
        ),
        ("softcap_and_scale", LONG, |_, o| {
            Ok(o.causal().scale(-0.3).softcap(1.5))
        }),
        ("large_scores", EQUAL, |_, o| Ok(o.scale(1.0))),
        ("kv_len_causal", LONG, |c, o| {
            Ok(o.causal().kv_len(lens(c, &[2], &[100.0, 7.0])?))
        }),
        ("kv_len_scalar", WIDE, |c, o| {
            Ok(o.kv_len(lens(c, &[], &[33.0])?))
        }),
        ("value_dim_differs", WIDE, |_, o| Ok(o.causal())),
        ("keep_queries", LONG, |c, o| {
            Ok(o.keep(bools(c, &[2, 70, 150])?))
        }),
        ("keep_keys", WIDE, |c, o| Ok(o.keep(bools(c, &[2, 70])?))),
        ("bias_heads", LONG, |c, o| {
            Ok(o.bias(c.input("bias", [2, 4, 70, 150], InputFill::Normal)?))
        }),
    ]
}

pub(in crate::ops::attention) fn with_lse() -> Vec<OpCase> {
    let ways = ways().into_iter();
    ways.map(|(name, dims, choose)| saved_lse_case(name, dims, choose))
        .collect()
}

pub(in crate::ops::attention) fn grad() -> Vec<OpCase> {
    let mut all = Vec::new();
    for of in AttentionGradOf::ALL {
        let ways = ways().into_iter();
        all.extend(ways.map(|(name, dims, choose)| {
            grads(&format!("{}_of_{name}", of.name()), dims, *of, choose)
        }));
    }
    all
}

fn types(g: &mut Graph) -> Result<[Value; 6], OpError> {
    let mut input = |name, dims: &[usize]| g.input(name, Type::new(DType::F32, dims));
    Ok([
        input("q", &[2, 5, 4, 8])?,
        input("k", &[2, 7, 2, 8])?,
        input("v", &[2, 7, 2, 8])?,
        input("dy", &[2, 5, 4, 8])?,
        input("lse", &[2, 4, 5])?,
        input("delta", &[2, 4, 5])?,
    ])
}

fn attention_op(q_heads: usize) -> Attention {
    Attention {
        q_heads,
        kv_heads: 2,
        layout: AttentionLayout::Bshd,
        mask: MaskKind::Causal,
        scale: None,
        softcap: None,
        kv_len: false,
    }
}

pub(in crate::ops::attention) fn rejects_with_lse() -> Vec<RejectCase> {
    let reject = crate::ops::util::reject;
    vec![
        reject(
            "heads_of_q",
            "heads of q and q_heads: 4 and 8 differ",
            |g| {
                let [q, k, v, ..] = types(g)?;
                g.attention_with_lse(q, k, v, AttentionOptions::new(8, 2, AttentionLayout::Bshd))
                    .map(|(y, _)| y)
            },
        ),
        reject("no_values", "operands", |g| {
            let [q, k, ..] = types(g)?;
            let op = crate::ops::AttentionWithLse::from(attention_op(4));
            g.add(op, &[q, k])
        }),
    ]
}

pub(in crate::ops::attention) fn rejects_grad() -> Vec<RejectCase> {
    let reject = crate::ops::util::reject;
    vec![
        reject(
            "heads_of_q",
            "heads of q and q_heads: 4 and 8 differ",
            |g| {
                let all = types(g)?;
                g.add(
                    AttentionGrad::new(AttentionGradOf::Keys, attention_op(8)),
                    &all,
                )
            },
        ),
        reject("too_few", "6 or more", |g| {
            let [q, k, v, ..] = types(g)?;
            g.add(
                AttentionGrad::new(AttentionGradOf::Keys, attention_op(4)),
                &[q, k, v],
            )
        }),
        reject(
            "lse_by_position",
            "lse is f32[2, 5, 4]; accepted: f32[2, 4, 5]",
            |g| {
                let [q, k, v, dy, _, delta] = types(g)?;
                let lse = g.input("other", Type::new(DType::F32, [2, 5, 4]))?;
                let all = [q, k, v, dy, lse, delta];
                g.add(
                    AttentionGrad::new(AttentionGradOf::Queries, attention_op(4)),
                    &all,
                )
            },
        ),
        reject("dy_of_another_size", "dy is f32[2, 7, 2, 8]", |g| {
            let [q, k, v, _, lse, delta] = types(g)?;
            let all = [q, k, v, k, lse, delta];
            g.add(
                AttentionGrad::new(AttentionGradOf::Queries, attention_op(4)),
                &all,
            )
        }),
    ]
}
