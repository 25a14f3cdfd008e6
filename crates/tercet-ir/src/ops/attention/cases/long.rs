//! Cases of one query over more keys than one GPU workgroup processes. The cases cover full and
//! partial split-KV chunks, fully masked chunks, and data beyond the last key.

use super::{AttentionCaseDims, AttentionOptionsFn, BASE, HEADS_FIRST, lens, random};
use crate::case::{InputFill, OpCase};
use crate::ops::attention::AttentionOptions;

const LONG: AttentionCaseDims = AttentionCaseDims {
    sq: 1,
    sk: 600,
    d: 32,
    dv: 32,
    ..BASE
};

pub(super) fn cases() -> Vec<OpCase> {
    let others = AttentionCaseDims {
        sk: 530,
        q_heads: 3,
        kv_heads: 1,
        d: 64,
        ..LONG
    };
    let first = AttentionCaseDims {
        d: 32,
        dv: 32,
        sq: 1,
        sk: 600,
        ..HEADS_FIRST
    };
    vec![
        random("one_query_of_600_keys", LONG, |_, o| Ok(o)),
        random("one_query_of_600_keys_bhsd", first, |_, o| Ok(o.causal())),
        // The window begins in the middle of a chunk.
        random("one_query_window_of_600_keys", LONG, |_, o| {
            Ok(o.window(300))
        }),
        random("one_query_window_kv_len", LONG, |c, o| {
            Ok(o.window(70).kv_len(lens(c, &[2], &[599.0, 40.0])?))
        }),
        random("one_query_large_scores", LONG, |_, o| {
            Ok(o.causal().scale(-3.0))
        }),
        random("one_query_other_heads", others, |_, o| Ok(o.causal())),
        nan_beyond_visible("one_query_kv_len_behind", LONG, [600.0, 129.0], |c, o| {
            Ok(o.kv_len(lens(c, &[2], &[600.0, 129.0])?))
        }),
        nan_beyond_visible("one_query_kv_len_of_none", LONG, [1.0, 0.0], |c, o| {
            Ok(o.causal().kv_len(lens(c, &[2], &[1.0, 0.0])?))
        }),
    ]
}

/// Keys and values beyond the last visible ones are NaN.
pub(super) fn nan_beyond_visible(
    name: &str,
    dims: AttentionCaseDims,
    seen: [f64; 2],
    choose: AttentionOptionsFn,
) -> OpCase {
    OpCase::new(name, move |c| {
        let AttentionCaseDims {
            b,
            sk,
            sq,
            kv_heads,
            d,
            q_heads,
            layout,
            ..
        } = dims;
        let row = kv_heads * d;
        let filled = |step: usize| {
            let at = move |i: usize| match ((i / row % sk) as f64) < seen[i / row / sk] {
                true => (i * step % 509) as f64 / 128.0 - 2.0,
                false => f64::NAN,
            };
            InputFill::Values((0..b * sk * row).map(at).collect())
        };
        let q = c.input("q", dims.shape(sq, q_heads, d), InputFill::Normal)?;
        let k = c.input("k", dims.shape(sk, kv_heads, d), filled(7))?;
        let v = c.input("v", dims.shape(sk, kv_heads, d), filled(11))?;
        let options = choose(c, AttentionOptions::new(q_heads, kv_heads, layout))?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    })
}
