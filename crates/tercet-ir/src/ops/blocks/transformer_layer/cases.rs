//! Cases of an encoder layer: masks, rotations, activations, biases, odd and empty sizes.

use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::attention::AttentionMask;
use crate::ops::blocks::attention_block::cases::{
    AttentionBlockOptionsFn, AttentionBlockSizes, BASE, BOTH, ODD, keep, product, products,
    rotated, rows,
};
use crate::ops::blocks::{AttentionBlockOptions, LinearWeights, TransformerWeights};
use crate::ops::rope::RopeStyle;
use crate::ops::util::reject;
use crate::scalar::UnaryFn;
use crate::types::{Shape, Type};

fn norm(c: &mut CaseGraph, name: &str, width: usize) -> Result<[Value; 2], OpError> {
    let ty = Type::new(c.dtype, [width]);
    let gamma = c.param_of(
        &format!("gamma_{name}"),
        ty.clone(),
        InputFill::Uniform(0.5, 1.5),
    )?;
    let beta = c.param_of(&format!("beta_{name}"), ty, InputFill::Uniform(-0.5, 0.5))?;
    Ok([gamma, beta])
}

fn weights(
    c: &mut CaseGraph,
    sizes: AttentionBlockSizes,
    inner: usize,
    [block, ffn]: [bool; 2],
) -> Result<TransformerWeights, OpError> {
    let width = sizes.rows[2];
    let [qkv, out] = products(c, sizes, width, [block; 2])?;
    Ok(TransformerWeights {
        qkv,
        out,
        attention_norm: norm(c, "1", width)?,
        up: product(c, "up", [width, inner], ffn)?,
        down: product(c, "down", [inner, width], ffn)?,
        last_norm: norm(c, "2", width)?,
    })
}

/// The activation and eps of a case.
type ActivationAndEps = (Option<UnaryFn>, f64);

fn random(
    name: &str,
    sizes: AttentionBlockSizes,
    biases: [bool; 2],
    inner: ActivationAndEps,
    choose: AttentionBlockOptionsFn,
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input("x", sizes.rows, InputFill::Normal)?;
        let weights = weights(c, sizes, 20, biases)?;
        let [q, kv] = sizes.heads;
        let options = choose(c, AttentionBlockOptions::new(q, kv))?;
        let (activation, eps) = inner;
        let y = (c.graph).transformer_layer(x, &weights, options, activation, eps)?;
        c.output(y)
    })
}

pub(super) fn cases() -> Vec<OpCase> {
    const GELU: ActivationAndEps = (Some(UnaryFn::Gelu), 1e-5);
    const RELU: ActivationAndEps = (Some(UnaryFn::Relu), 1e-3);
    vec![
        random("gelu", BASE, BOTH, GELU, |_, o| Ok(o)),
        random("relu_keep_keys", BASE, BOTH, RELU, |c, o| {
            Ok(o.mask(keep(c, &[2, 5])?))
        }),
        random("without_biases", BASE, [false; 2], RELU, |_, o| Ok(o)),
        random(
            "biases_of_attention_only",
            BASE,
            [true, false],
            GELU,
            |_, o| Ok(o.mask(AttentionMask::Window(3))),
        ),
        random("no_activation", BASE, [false, true], (None, 0.0), |_, o| {
            Ok(o)
        }),
        random(
            "silu_causal_neox",
            BASE,
            BOTH,
            (Some(UnaryFn::Silu), 1e-12),
            |c, o| {
                let o = rotated(c, o, RopeStyle::NeoX, &[5, 4], c.dtype)?;
                Ok(o.mask(AttentionMask::Causal))
            },
        ),
        random("gptj_scale_softcap_bias", BASE, BOTH, GELU, |c, o| {
            let o = rotated(c, o, RopeStyle::GptJ, &[2, 5, 3], DType::F32)?;
            let bias = c.input("bias", [2, 1, 5, 5], InputFill::Normal)?;
            let o = o.mask(AttentionMask::Bias(bias));
            Ok(o.scale(0.5).softcap(3.0))
        }),
        random("odd_one_kv_head", ODD, BOTH, GELU, |_, o| Ok(o)),
        random("one_token", rows([3, 1, 12]), BOTH, GELU, |_, o| Ok(o)),
        random("no_batch", rows([0, 5, 12]), BOTH, RELU, |_, o| Ok(o)),
        random("no_tokens", rows([2, 0, 12]), BOTH, RELU, |_, o| Ok(o)),
        pinned(),
        symbolic(),
    ]
}

/// Zero attention weights: `h` is the norm of `x`, `(-1, 1)`. relu gives `(0, 1)`; twice that plus
/// `h` is `(-1, 3)`, whose norm is `(-1, 1)`.
fn pinned() -> OpCase {
    OpCase::new("pinned", |c| {
        let x = c.input("x", [1, 2, 2], InputFill::Values(vec![1.0, 3.0, -8.0, 8.0]))?;
        let qkv = c.input("qkv", [2, 3], InputFill::Values(vec![0.0; 6]))?;
        let out = c.input("out", [1, 2], InputFill::Values(vec![0.0; 2]))?;
        let unit = InputFill::Values(vec![1.0, 0.0, 0.0, 1.0]);
        let up = c.input("up", [2, 2], unit)?;
        let down = c.input("down", [2, 2], InputFill::Values(vec![2.0, 0.0, 0.0, 2.0]))?;
        let [ones, zeros] = [1.0, 0.0].map(|x| InputFill::Values(vec![x; 2]));
        let (ones, zeros) = (c.input("ones", [2], ones)?, c.input("zeros", [2], zeros)?);
        let gamma = c.input("gamma", [2], InputFill::Values(vec![2.0, 4.0]))?;
        let beta = c.input("beta", [2], InputFill::Values(vec![0.5, 1.0]))?;
        let weights = TransformerWeights {
            qkv: LinearWeights::without_bias(qkv),
            out: LinearWeights::without_bias(out),
            attention_norm: [ones, zeros],
            up: LinearWeights::without_bias(up),
            down: LinearWeights::without_bias(down),
            last_norm: [gamma, beta],
        };
        let (options, f) = (AttentionBlockOptions::new(1, 1), Some(UnaryFn::Relu));
        let y = c.graph.transformer_layer(x, &weights, options, f, 0.0)?;
        c.output_expect(y, &[-1.5, 5.0, -1.5, 5.0])
    })
}

fn symbolic() -> OpCase {
    OpCase::new("symbolic_rows", |c| {
        let (b, s) = (c.sym("b", 2, 3), c.sym("s", 4, 9));
        let shape: Shape = [b.clone(), s.clone(), 12.into()].into();
        let x = c.input("x", shape, InputFill::Normal)?;
        let weights = weights(c, BASE, 20, [true; 2])?;
        let mask = c.input_of("mask", Type::new(DType::Bool, [b, s]), InputFill::Normal)?;
        let options = AttentionBlockOptions::new(4, 2).mask(AttentionMask::Keep(mask));
        let f = Some(UnaryFn::GeluTanh);
        let y = (c.graph).transformer_layer(x, &weights, options, f, 1e-5)?;
        c.output(y)
    })
}

/// A layer of `f32[2, 5, 12]` with 4 query heads and 2 key heads of width 8, whose other operands
/// have these types.
fn tried(
    g: &mut Graph,
    [up, down]: [[usize; 2]; 2],
    gamma: [usize; 1],
    activation: UnaryFn,
    eps: f64,
) -> Result<Value, OpError> {
    let mut of = |name: &str, shape: &[usize]| g.input(name, Type::new(DType::F32, shape));
    let x = of("x", &BASE.rows)?;
    let line = of("line", &[12])?;
    let weights = TransformerWeights {
        qkv: LinearWeights::without_bias(of("qkv", &[12, 64])?),
        out: LinearWeights::without_bias(of("out", &[32, 12])?),
        attention_norm: [line; 2],
        up: LinearWeights::without_bias(of("up", &up)?),
        down: LinearWeights::without_bias(of("down", &down)?),
        last_norm: [of("gamma", &gamma)?, line],
    };
    let options = AttentionBlockOptions::new(4, 2);
    g.transformer_layer(x, &weights, options, Some(activation), eps)
}

pub(super) fn rejects() -> Vec<RejectCase> {
    use UnaryFn::{IsNan, Relu};
    const UP: [usize; 2] = [12, 20];
    const DOWN: [usize; 2] = [20, 12];
    vec![
        reject(
            "rows_of_down",
            "the rows of w_down and the columns of w_up: 21 and 20 differ",
            |g| tried(g, [UP, [21, 12]], [12], Relu, 0.0),
        ),
        reject(
            "columns_of_down",
            "operand residual has type f32[2, 5, 12]; expected f32[2, 5, 11]",
            |g| tried(g, [UP, [20, 11]], [12], Relu, 0.0),
        ),
        reject(
            "gamma",
            "gamma_2 and the last axis of x: 11 and 12 differ",
            |g| tried(g, [UP, DOWN], [11], Relu, 0.0),
        ),
        reject("activation", "is_nan gives bool", |g| {
            tried(g, [UP, DOWN], [12], IsNan, 0.0)
        }),
        reject("eps", "attribute `eps`: -1.0", |g| {
            tried(g, [UP, DOWN], [12], Relu, -1.0)
        }),
        reject("one_bias_of_two", "expected 11 operands, got 10", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 2, 4]))?;
            let dense = LinearWeights::without_bias(x);
            let weights = TransformerWeights {
                qkv: dense,
                out: dense,
                attention_norm: [x; 2],
                up: LinearWeights::new(x, x),
                down: dense,
                last_norm: [x; 2],
            };
            let options = AttentionBlockOptions::new(1, 1);
            g.transformer_layer(x, &weights, options, None, 0.0)
        }),
    ]
}
