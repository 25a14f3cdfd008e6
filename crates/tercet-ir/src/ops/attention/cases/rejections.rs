//! Graphs with attention that the builder must reject.

use crate::attr::FloatAttr;
use crate::case::RejectCase;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::attention::{Attention, AttentionLayout, AttentionOptions, MaskKind};
use crate::types::Type;

/// Attention of `f32[2, 5, 4, 8]` over `f32[2, 7, 2, 8]`, with these heads and this mask.
fn try_attention(
    g: &mut Graph,
    q_heads: usize,
    kv_heads: usize,
    choose: impl Fn(&mut Graph, AttentionOptions) -> Result<AttentionOptions, OpError>,
) -> Result<Value, OpError> {
    let q = g.input("q", Type::new(DType::F32, [2, 5, 4, 8]))?;
    let k = g.input("k", Type::new(DType::F32, [2, 7, 2, 8]))?;
    let options = AttentionOptions::new(q_heads, kv_heads, AttentionLayout::Bshd);
    let options = choose(g, options)?;
    g.attention(q, k, k, options)
}

pub(in crate::ops::attention) fn rejects() -> Vec<RejectCase> {
    // Long: this function is a table of test cases, one per row.
    let reject = |name, message, build| RejectCase {
        name,
        message,
        build,
    };
    vec![
        reject(
            "heads_not_a_multiple",
            "4 is not a positive multiple of kv_heads = 3",
            |g| try_attention(g, 4, 3, |_, o| Ok(o)),
        ),
        reject("no_heads", "attribute `q_heads`", |g| {
            try_attention(g, 0, 0, |_, o| Ok(o))
        }),
        reject(
            "heads_of_q",
            "heads of q and q_heads: 4 and 8 differ",
            |g| try_attention(g, 8, 2, |_, o| Ok(o)),
        ),
        reject(
            "heads_of_k",
            "heads of k and kv_heads: 2 and 4 differ",
            |g| try_attention(g, 4, 4, |_, o| Ok(o)),
        ),
        reject("window_of_zero", "a window of 0", |g| {
            try_attention(g, 4, 2, |_, o| Ok(o.window(0)))
        }),
        reject("softcap", "attribute `softcap`: 0.0", |g| {
            try_attention(g, 4, 2, |_, o| Ok(o.softcap(0.0)))
        }),
        reject("scale", "attribute `scale`", |g| {
            try_attention(g, 4, 2, |_, o| Ok(o.scale(f64::NAN)))
        }),
        reject(
            "keep_of_floats",
            "operand mask is f32; accepted: bool",
            |g| {
                try_attention(g, 4, 2, |g, o| {
                    Ok(o.keep(g.input("m", Type::new(DType::F32, [2, 7]))?))
                })
            },
        ),
        reject("bias_of_bools", "operand mask is bool", |g| {
            try_attention(g, 4, 2, |g, o| {
                Ok(o.bias(g.input("m", Type::new(DType::Bool, [2, 7]))?))
            })
        }),
        reject("mask_sizes", "axis 1 of mask: 5 and 7 differ", |g| {
            try_attention(g, 4, 2, |g, o| {
                Ok(o.keep(g.input("m", Type::new(DType::Bool, [2, 5]))?))
            })
        }),
        reject("mask_rank", "expected [B, Sk]", |g| {
            try_attention(g, 4, 2, |g, o| {
                Ok(o.keep(g.input("m", Type::new(DType::Bool, [7]))?))
            })
        }),
        reject(
            "kv_len_dtype",
            "operand kv_len is i64; accepted: i32",
            |g| {
                try_attention(g, 4, 2, |g, o| {
                    Ok(o.kv_len(g.input("n", Type::new(DType::I64, [0; 0]))?))
                })
            },
        ),
        reject(
            "kv_len_batch",
            "kv_len and the batch: 3 and 2 differ",
            |g| {
                try_attention(g, 4, 2, |g, o| {
                    Ok(o.kv_len(g.input("n", Type::new(DType::I32, [3]))?))
                })
            },
        ),
        reject("mask_operand_missing", "expected 4 operands, got 3", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 2, 1, 4]))?;
            let op = Attention {
                q_heads: 1,
                kv_heads: 1,
                layout: AttentionLayout::Bshd,
                mask: MaskKind::Keep,
                scale: Some(FloatAttr(1.0)),
                softcap: None,
                kv_len: false,
            };
            g.add(op, &[x, x, x])
        }),
        reject("rank", "expected rank 4", |g| {
            let x = g.input("x", Type::new(DType::F32, [2, 1, 4]))?;
            g.attention(x, x, x, AttentionOptions::new(1, 1, AttentionLayout::Bshd))
        }),
        reject("dtypes", "operand k is f16", |g| {
            let q = g.input("q", Type::new(DType::F32, [1, 2, 1, 4]))?;
            let k = g.input("k", Type::new(DType::F16, [1, 2, 1, 4]))?;
            g.attention(q, k, k, AttentionOptions::new(1, 1, AttentionLayout::Bshd))
        }),
        reject("head_dims", "head dim of q and k: 4 and 8 differ", |g| {
            let q = g.input("q", Type::new(DType::F32, [1, 2, 1, 4]))?;
            let k = g.input("k", Type::new(DType::F32, [1, 2, 1, 8]))?;
            g.attention(q, k, k, AttentionOptions::new(1, 1, AttentionLayout::Bshd))
        }),
    ]
}
