//! Test cases of matmuls with their neighbours in a layer: a norm before, a gate or a sum after.
//! Executors fuse these. The cases cover one, few and many rows.

use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::quant::Scheme;
use crate::types::Type;

/// Cases with quantized weights.
pub(super) fn cases() -> Vec<OpCase> {
    let schemes = [
        (Scheme::F16, 40),
        (Scheme::BF16, 24),
        (Scheme::Q4_0, 64),
        (Scheme::Q8_0, 96),
        (Scheme::Q4K, 256),
        (Scheme::Q6K, 256),
        (Scheme::Int4Asym, 128),
        (Scheme::Mxfp4, 64),
    ];
    let layers = schemes.into_iter().flat_map(|(scheme, k)| {
        let case = |name: &str, build: QuantLayerCaseFn| {
            OpCase::new(format!("{}_{name}", scheme.name()), move |c| {
                build(c, scheme, k)
            })
            .only(DType::FLOATS)
        };
        [
            case("norm_and_gate", norm_and_gate),
            case("sum_and_norm", sum_and_norm),
        ]
    });
    let long = OpCase::new("q8_0_norm_of_a_long_row", |c| {
        norm_and_gate(c, Scheme::Q8_0, 8192)
    });
    let read_twice = OpCase::new("norm_that_is_read_elsewhere", |c| {
        let x = c.input("x", [1, 64], InputFill::Normal)?;
        let h = normed(c, x, "gain", 64)?;
        let y = product(c, h, "w", Scheme::Q8_0, [10, 64])?;
        c.output(h)?;
        c.output(y)
    });
    let two_schemes = OpCase::new("norm_of_two_schemes", |c| {
        let s = c.sym("s", 3, 20);
        let x = c.input("x", [s, 256.into()], InputFill::Normal)?;
        let h = normed(c, x, "gain", 256)?;
        let y = product(c, h, "w", Scheme::Q4K, [10, 256])?;
        let z = product(c, h, "v", Scheme::Q6K, [7, 256])?;
        c.output(y)?;
        c.output(z)
    });
    let given = OpCase::new("q4_0_gate_of_given_weights", |c| {
        let s = c.sym("s", 2, 20);
        let x = c.input("x", [s, 96.into()], InputFill::Normal)?;
        let ty = Type::new(DType::U8, [44, 54]);
        let w = c.input_of("w", ty, InputFill::Blocks(Scheme::Q4_0))?;
        let both = c.graph.dequant_matmul(x, w, Scheme::Q4_0)?;
        let gate = c.graph.narrow(both, 1, 0, 22)?;
        let up = c.graph.narrow(both, 1, 22, 22)?;
        let gate = c.graph.silu(gate)?;
        let y = c.graph.mul(gate, up)?;
        c.output(y)
    });
    let others = [long, read_twice, two_schemes, given];
    layers
        .chain(others.map(|case| case.only(&[DType::F32, DType::F16])))
        .collect()
}

type QuantLayerCaseFn = fn(&mut CaseGraph, Scheme, usize) -> Result<(), OpError>;

fn normed(c: &mut CaseGraph, x: Value, name: &str, k: usize) -> Result<Value, OpError> {
    let gain = c.param_of(name, Type::new(c.dtype, [k]), InputFill::Uniform(0.5, 1.5))?;
    c.graph.rms_norm(x, gain, None, 1e-5)
}

/// The matmul with `n` rows of `k` weights, scaled so that its results are near 1.
fn product(
    c: &mut CaseGraph,
    x: Value,
    name: &str,
    scheme: Scheme,
    [n, k]: [usize; 2],
) -> Result<Value, OpError> {
    let stored = scheme.stored_len(k).expect("invariant: whole blocks");
    let ty = Type::new(scheme.storage(), [n, stored]);
    let w = c.param_of(name, ty, InputFill::Blocks(scheme))?;
    c.graph.dequant_matmul(x, w, scheme)
}

/// `f(norm(x) w) * (norm(x) v)`.
fn norm_and_gate(c: &mut CaseGraph, scheme: Scheme, k: usize) -> Result<(), OpError> {
    let s = c.sym("s", 3, 20);
    let x = c.input("x", [s, Dim::Known(k)], InputFill::Normal)?;
    let h = normed(c, x, "gain", k)?;
    let gate = product(c, h, "gate", scheme, [22, k])?;
    let up = product(c, h, "up", scheme, [22, k])?;
    let gate = c.graph.silu(gate)?;
    let y = c.graph.mul(gate, up)?;
    c.output(y)
}

/// `z = x + a w` and `norm(z) v`; `z` is also an output.
fn sum_and_norm(c: &mut CaseGraph, scheme: Scheme, k: usize) -> Result<(), OpError> {
    let s = c.sym("s", 5, 20);
    let a = c.input("a", [s.clone(), Dim::Known(k)], InputFill::Normal)?;
    let x = c.input("x", [s, Dim::Known(k)], InputFill::Normal)?;
    let y = product(c, a, "w", scheme, [k, k])?;
    let z = c.graph.plus(x, y)?;
    let h = normed(c, z, "gain", k)?;
    let last = product(c, h, "v", scheme, [9, k])?;
    c.output(z)?;
    c.output(last)
}

/// A norm before and a sum after a matmul with transposed float weights, and a matmul with a bias.
pub(super) fn float_case() -> OpCase {
    OpCase::new("norm_bias_and_sum", |c| {
        let (s, dtype) = (c.sym("s", 4, 20), c.dtype);
        let x = c.input("x", [s, 32.into()], InputFill::Normal)?;
        let h = normed(c, x, "gain", 32)?;
        let weight = |c: &mut CaseGraph, name: &str, [n, k]: [usize; 2]| {
            let w = c.param_of(name, Type::new(dtype, [n, k]), InputFill::Normal)?;
            c.graph.transpose(w, &[1, 0])
        };
        let w = weight(c, "w", [48, 32])?;
        let bias = c.param_of("bias", Type::new(dtype, [48]), InputFill::Normal)?;
        let y = c.graph.linear(h, w, Some(bias), None)?;
        let v = weight(c, "v", [32, 48])?;
        let z = c.graph.linear(y, v, None, None)?;
        let z = c.graph.plus(z, x)?;
        c.output(z)
    })
    .only(DType::FLOATS)
}
