//! Cases of an attention block: every mask, grouped queries, rotations, biases, odd and empty
//! sizes.

use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::attention::AttentionMask;
use crate::ops::blocks::{AttentionBlockOptions, LinearWeights};
use crate::ops::rope::RopeStyle;
use crate::ops::util::reject;
use crate::types::{Shape, Type};

/// The sizes of a block.
#[derive(Clone, Copy)]
pub(in super::super) struct AttentionBlockSizes {
    pub(in super::super) rows: [usize; 3],
    pub(in super::super) heads: [usize; 2],
    pub(in super::super) head_dim: usize,
}

pub(in super::super) const BASE: AttentionBlockSizes = AttentionBlockSizes {
    rows: [2, 5, 12],
    heads: [4, 2],
    head_dim: 8,
};

pub(in super::super) const ODD: AttentionBlockSizes = AttentionBlockSizes {
    rows: [3, 7, 13],
    heads: [3, 1],
    head_dim: 5,
};

/// [`BASE`] with other rows.
pub(in super::super) fn rows(rows: [usize; 3]) -> AttentionBlockSizes {
    AttentionBlockSizes { rows, ..BASE }
}

pub(in super::super) const BOTH: [bool; 2] = [true; 2];

pub(in super::super) type AttentionBlockOptionsFn =
    fn(&mut CaseGraph, AttentionBlockOptions) -> Result<AttentionBlockOptions, OpError>;

/// A linear layer whose results have about the magnitude of its operands, optionally with a bias.
pub(in super::super) fn product(
    c: &mut CaseGraph,
    name: &str,
    [k, n]: [usize; 2],
    has_bias: bool,
) -> Result<LinearWeights, OpError> {
    let bound = (3.0 / k.max(1) as f64).sqrt();
    let fill = InputFill::Uniform(-bound, bound);
    let weight = c.param_of(&format!("w_{name}"), Type::new(c.dtype, [k, n]), fill)?;
    let bias = match has_bias {
        true => {
            let fill = InputFill::Uniform(-0.5, 0.5);
            Some(c.param_of(&format!("b_{name}"), Type::new(c.dtype, [n]), fill)?)
        }
        false => None,
    };
    Ok(LinearWeights { weight, bias })
}

/// The two linear layers of a block with results of width `out`.
pub(in super::super) fn products(
    c: &mut CaseGraph,
    sizes: AttentionBlockSizes,
    out: usize,
    [qkv_bias, out_bias]: [bool; 2],
) -> Result<[LinearWeights; 2], OpError> {
    let AttentionBlockSizes {
        rows: [_, _, width],
        heads: [q, kv],
        head_dim,
    } = sizes;
    let qkv = product(c, "qkv", [width, (q + 2 * kv) * head_dim], qkv_bias)?;
    let out = product(c, "out", [q * head_dim, out], out_bias)?;
    Ok([qkv, out])
}

fn random(
    name: &str,
    sizes: AttentionBlockSizes,
    biases: [bool; 2],
    choose: AttentionBlockOptionsFn,
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input("x", sizes.rows, InputFill::Normal)?;
        let [qkv, out] = products(c, sizes, sizes.rows[2], biases)?;
        let [q, kv] = sizes.heads;
        let options = choose(c, AttentionBlockOptions::new(q, kv))?;
        let y = c.graph.attention_block(x, qkv, out, options)?;
        c.output(y)
    })
}

pub(in super::super) fn keep(c: &mut CaseGraph, shape: &[usize]) -> Result<AttentionMask, OpError> {
    let mask = c.input_of("mask", Type::new(DType::Bool, shape), InputFill::Normal)?;
    Ok(AttentionMask::Keep(mask))
}

/// A rotation with tables of this shape.
pub(in super::super) fn rotated(
    c: &mut CaseGraph,
    options: AttentionBlockOptions,
    style: RopeStyle,
    table: &[usize],
    dtype: DType,
) -> Result<AttentionBlockOptions, OpError> {
    let ty = Type::new(dtype, table);
    let cos = c.input_of("cos", ty.clone(), InputFill::Uniform(-1.0, 1.0))?;
    let sin = c.input_of("sin", ty, InputFill::Uniform(-1.0, 1.0))?;
    Ok(options.rope(style, cos, sin))
}

const NONE: [bool; 2] = [false; 2];

pub(super) fn cases() -> Vec<OpCase> {
    let mut all = options();
    all.extend(sizes());
    all
}

fn options() -> Vec<OpCase> {
    vec![
        random("without_biases", BASE, NONE, |_, o| Ok(o)),
        random("with_biases", BASE, BOTH, |_, o| Ok(o)),
        random("bias_of_qkv_only", BASE, [true, false], |_, o| Ok(o)),
        random("bias_of_out_only", BASE, [false, true], |_, o| Ok(o)),
        random("causal", BASE, BOTH, |_, o| {
            Ok(o.mask(AttentionMask::Causal))
        }),
        random("window", BASE, NONE, |_, o| {
            Ok(o.mask(AttentionMask::Window(2)))
        }),
        random(
            "keep_keys",
            BASE,
            BOTH,
            |c, o| Ok(o.mask(keep(c, &[2, 5])?)),
        ),
        random("keep_heads", BASE, NONE, |c, o| {
            Ok(o.mask(keep(c, &[2, 4, 5, 5])?))
        }),
        random("bias_of_scores", BASE, NONE, |c, o| {
            let bias = c.input("bias", [1, 4, 5, 5], InputFill::Normal)?;
            Ok(o.mask(AttentionMask::Bias(bias)))
        }),
        random("scale_and_softcap", BASE, BOTH, |_, o| {
            Ok(o.scale(1.0).softcap(1.5))
        }),
        random("neox", BASE, BOTH, |c, o| {
            let o = rotated(c, o, RopeStyle::NeoX, &[5, 4], c.dtype)?;
            Ok(o.mask(AttentionMask::Causal))
        }),
        random("gptj_in_part_per_token", BASE, NONE, |c, o| {
            rotated(c, o, RopeStyle::GptJ, &[2, 5, 3], DType::F32)
        }),
        random("everything", BASE, BOTH, |c, o| {
            let o = rotated(c, o, RopeStyle::NeoX, &[5, 2], c.dtype)?;
            let o = o.mask(keep(c, &[1, 5, 5])?);
            Ok(o.scale(0.25).softcap(2.0))
        }),
    ]
}

fn sizes() -> Vec<OpCase> {
    let as_many = AttentionBlockSizes {
        heads: [4, 4],
        rows: [1, 4, 16],
        ..BASE
    };
    let wide = AttentionBlockSizes {
        rows: [1, 9, 64],
        heads: [2, 1],
        head_dim: 64,
    };
    vec![
        random("odd_one_kv_head", ODD, BOTH, |_, o| Ok(o)),
        random("as_many_heads_as_tokens", as_many, NONE, |_, o| Ok(o)),
        random("heads_of_64", wide, BOTH, |_, o| {
            Ok(o.mask(AttentionMask::Causal))
        }),
        random("one_token", rows([3, 1, 12]), BOTH, |_, o| Ok(o)),
        random("no_batch", rows([0, 5, 12]), BOTH, |_, o| Ok(o)),
        random("no_tokens", rows([2, 0, 12]), BOTH, |_, o| {
            Ok(o.mask(AttentionMask::Causal))
        }),
        random("nothing_to_sum", rows([2, 3, 0]), BOTH, |_, o| Ok(o)),
        other_width(),
        pinned(),
        symbolic(),
    ]
}

fn other_width() -> OpCase {
    OpCase::new("other_width", |c| {
        let x = c.input("x", BASE.rows, InputFill::Normal)?;
        let [qkv, out] = products(c, BASE, 7, [true; 2])?;
        let options = AttentionBlockOptions::new(4, 2);
        let y = c.graph.attention_block(x, qkv, out, options)?;
        c.output(y)
    })
}

/// Zero queries: the result of each token is twice the mean of the tokens up to it, plus 1.
fn pinned() -> OpCase {
    OpCase::new("pinned_running_means", |c| {
        let x = c.input("x", [1, 3, 1], InputFill::Values(vec![2.0, 4.0, 9.0]))?;
        let qkv = c.input("qkv", [1, 3], InputFill::Values(vec![0.0, 3.0, 1.0]))?;
        let out = c.input("out", [1, 1], InputFill::Values(vec![2.0]))?;
        let one = c.input("one", [1], InputFill::Values(vec![1.0]))?;
        let options = AttentionBlockOptions::new(1, 1).mask(AttentionMask::Causal);
        let (qkv, out) = (
            LinearWeights::without_bias(qkv),
            LinearWeights::new(out, one),
        );
        let y = c.graph.attention_block(x, qkv, out, options)?;
        c.output_expect(y, &[5.0, 7.0, 11.0])
    })
}

fn symbolic() -> OpCase {
    OpCase::new("symbolic_rows_rotated", |c| {
        let (b, s) = (c.sym("b", 2, 3), c.sym("s", 4, 9));
        let shape: Shape = [b, s.clone(), 12.into()].into();
        let x = c.input("x", shape, InputFill::Normal)?;
        let [qkv, out] = products(c, BASE, 12, [true; 2])?;
        let table: Shape = [s, 4.into()].into();
        let cos = c.input("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
        let sin = c.input("sin", table, InputFill::Uniform(-1.0, 1.0))?;
        let options = AttentionBlockOptions::new(4, 2).mask(AttentionMask::Causal);
        let options = options.rope(RopeStyle::NeoX, cos, sin);
        let y = c.graph.attention_block(x, qkv, out, options)?;
        c.output(y)
    })
}

/// A block of `f32[2, 5, 12]` with weights of these shapes, 4 query heads and 2 key heads.
fn tried(
    g: &mut Graph,
    qkv: [usize; 2],
    out: [usize; 2],
    choose: impl Fn(&mut Graph, AttentionBlockOptions) -> Result<AttentionBlockOptions, OpError>,
) -> Result<Value, OpError> {
    let x = g.input("x", Type::new(DType::F32, BASE.rows))?;
    let qkv = LinearWeights::without_bias(g.input("qkv", Type::new(DType::F32, qkv))?);
    let out = LinearWeights::without_bias(g.input("out", Type::new(DType::F32, out))?);
    let options = choose(g, AttentionBlockOptions::new(4, 2))?;
    g.attention_block(x, qkv, out, options)
}

pub(super) fn rejects() -> Vec<RejectCase> {
    const QKV: [usize; 2] = [12, 64];
    const OUT: [usize; 2] = [32, 12];
    vec![
        reject(
            "columns",
            "w_qkv has 60 columns; expected a known multiple of 4 + 2 * 2 heads",
            |g| tried(g, [12, 60], OUT, |_, o| Ok(o)),
        ),
        reject(
            "rows_of_qkv",
            "the rows of w_qkv and the last axis of x: 11 and 12 differ",
            |g| tried(g, [11, 64], OUT, |_, o| Ok(o)),
        ),
        reject(
            "rows_of_out",
            "the rows of w_out and the width of all query heads: 16 and 32 differ",
            |g| tried(g, QKV, [16, 12], |_, o| Ok(o)),
        ),
        reject("softcap", "attribute `softcap`: 0.0", |g| {
            tried(g, QKV, OUT, |_, o| Ok(o.softcap(0.0)))
        }),
        reject(
            "heads",
            "4 is not a positive multiple of kv_heads = 3",
            |g| {
                tried(g, QKV, OUT, |_, o| {
                    Ok(AttentionBlockOptions { kv_heads: 3, ..o })
                })
            },
        ),
        reject("mask_sizes", "axis 1 of mask: 4 and 5 differ", |g| {
            tried(g, QKV, OUT, |g, o| {
                let mask = g.input("m", Type::new(DType::Bool, [2, 4]))?;
                Ok(o.mask(AttentionMask::Keep(mask)))
            })
        }),
        reject(
            "tables",
            "is not an even number up to the head dim 8",
            |g| {
                tried(g, QKV, OUT, |g, o| {
                    let table = g.input("t", Type::new(DType::F32, [5, 5]))?;
                    Ok(o.rope(RopeStyle::NeoX, table, table))
                })
            },
        ),
        reject(
            "rank",
            "operand x has type f32[5, 12]; expected rank 3",
            |g| {
                let x = g.input("x", Type::new(DType::F32, [5, 12]))?;
                let dense = LinearWeights::without_bias(x);
                g.attention_block(x, dense, dense, AttentionBlockOptions::new(1, 1))
            },
        ),
        reject(
            "bias_size",
            "b_qkv and the columns of w_qkv: 3 and 6 differ",
            |g| {
                let x = g.input("x", Type::new(DType::F32, [1, 2, 4]))?;
                let qkv = g.input("qkv", Type::new(DType::F32, [4, 6]))?;
                let out = g.input("out", Type::new(DType::F32, [2, 4]))?;
                let bias = g.input("bias", Type::new(DType::F32, [3]))?;
                let (qkv, out) = (
                    LinearWeights::new(qkv, bias),
                    LinearWeights::without_bias(out),
                );
                g.attention_block(x, qkv, out, AttentionBlockOptions::new(1, 1))
            },
        ),
        reject("dtypes", "operand w_qkv is f16", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 2, 4]))?;
            let w = g.input("w", Type::new(DType::F16, [4, 12]))?;
            let w = LinearWeights::without_bias(w);
            g.attention_block(x, w, w, AttentionBlockOptions::new(1, 1))
        }),
    ]
}
