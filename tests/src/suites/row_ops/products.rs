//! Tests of GEMV and the operators fused with it: weights stored by column, norms fused into the
//! GEMV, and F16 data shared between a norm and the matmuls after it. Further tests cover windows
//! of one element, attention with transposed results, and clamps after convolutions.

use tercet_cases::{CaseGraph, OpCase};
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{AttentionLayout, AttentionMask, AttentionOptions, Conv, Window};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{DType, Dim, OpError, Type, Value};

use super::{FLOATS, check, weight};
use crate::SuiteTest;

fn param(
    c: &mut CaseGraph,
    name: &str,
    shape: &[usize],
    fill: InputFill,
) -> Result<Value, OpError> {
    let ty = Type::new(c.dtype, shape);
    c.param_of(name, ty, fill)
}

fn one_row_times_weights_along_columns() {
    let mut wrong = Vec::new();
    for (k, n) in [(1, 8), (7, 24), (770, 776)] {
        for (name, f) in [("none", None), ("relu6", Some(UnaryFn::Relu6))] {
            let case = OpCase::new(format!("{k}x{n}/{name}"), move |c| {
                let x = c.input("x", [1, 1, k], InputFill::Normal)?;
                let w = param(c, "w", &[k, n], InputFill::Uniform(-0.1, 0.1))?;
                let bias = param(c, "bias", &[n], InputFill::Normal)?;
                let y = c.graph.linear(x, w, Some(bias), f)?;
                c.output(y)?;
                // A view of every second element of a longer row.
                let x = c.input("wide", [1, 2 * k], InputFill::Normal)?;
                let x = c.graph.slice(x, &[0, 0], &[1, 2 * k as i64], &[1, 2])?;
                let y = c.graph.matmul(x, w)?;
                c.output(y)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn rows_beyond_the_last_count_for_nothing() {
    let mut wrong = Vec::new();
    for k in [5, 127, 129, 1537] {
        let case = OpCase::new(format!("{k}"), move |c| {
            let x = c.input("x", [1, k], InputFill::Uniform(0.5, 1.0))?;
            let last = (0..16 * k).map(|at| if at / 16 + 1 == k { f64::INFINITY } else { 1.0 });
            let w = param(c, "w", &[k, 16], InputFill::Values(last.collect()))?;
            let y = c.graph.matmul(x, w)?;
            c.output(y)
        });
        check(&case, FLOATS, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn norms_before_one_row() {
    let mut wrong = Vec::new();
    let ranges = [(-2.0, 2.0, 1e-5), (-1e30, 1e30, 1e-5), (-1e-25, 1e-25, 0.0)];
    for (k, n) in [(770, 24), (2052, 8)] {
        for (lo, hi, eps) in ranges {
            let case = OpCase::new(format!("{k}x{n}/{lo:e}..{hi:e}"), move |c| {
                let x = c.input("x", [1, 1, k], InputFill::Uniform(lo, hi))?;
                let r = c.input("r", [1, 1, k], InputFill::Uniform(lo, hi))?;
                let (gamma, beta) = (weight(c, "gamma", &[k])?, weight(c, "beta", &[k])?);
                let w = param(c, "w", &[k, n], InputFill::Uniform(-0.1, 0.1))?;
                let bias = param(c, "bias", &[n], InputFill::Normal)?;
                let normed = c.graph.layer_norm(x, gamma, None, 2, eps)?;
                let y = c.graph.matmul(normed, w)?;
                c.output(y)?;
                let (normed, sum) = c.graph.residual_layer_norm(x, r, gamma, beta, None, eps)?;
                let y = c.graph.linear(normed, w, Some(bias), Some(UnaryFn::Relu))?;
                c.output(y)?;
                c.output(sum)
            });
            let fits: &[DType] = if hi == 2.0 { FLOATS } else { &[DType::F32] };
            check(&case, fits, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn channels_of_one_window() {
    let mut wrong = Vec::new();
    for (entries, channels, results) in [
        (1, 4, 16),
        (1, 96, 4),
        (3, 40, 10),
        (8, 16, 16),
        (9, 16, 16),
    ] {
        for f in [None, Some(UnaryFn::Silu), Some(UnaryFn::Sigmoid)] {
            let case = OpCase::new(format!("{entries}x{channels}x{results}/{f:?}"), move |c| {
                let x = c.input("x", [entries, channels, 1, 1], InputFill::Normal)?;
                let w = param(
                    c,
                    "w",
                    &[results, channels, 1, 1],
                    InputFill::Uniform(-0.3, 0.3),
                )?;
                let bias = param(c, "bias", &[results], InputFill::Normal)?;
                let op = Conv::new(Window::new(2), 1, f);
                let y = c.graph.add(op, &[x, w, bias])?;
                c.output(y)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn limits_after_convolutions() {
    let mut wrong = Vec::new();
    for (channels, results, groups) in [(16, 32, 1), (24, 24, 24)] {
        for taps in [1, 3] {
            let case = OpCase::new(format!("{channels}x{results}/{groups}/{taps}"), move |c| {
                let x = c.input("x", [1, channels, 7, 8], InputFill::Uniform(-1.0, 1.0))?;
                let own = channels / groups;
                let w = param(
                    c,
                    "w",
                    &[results, own, taps, taps],
                    InputFill::Uniform(-0.1, 0.1),
                )?;
                let bias = param(c, "bias", &[results], InputFill::Uniform(-4.0, 10.0))?;
                let op = Conv::new(Window::new(2), groups, Some(UnaryFn::Relu6));
                let y = c.graph.add(op, &[x, w, bias])?;
                c.output(y)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn heads_turned_back() {
    let mut wrong = Vec::new();
    for (queries, keys, dim) in [
        (1, 9, 8),
        (5, 5, 16),
        (3, 40, 5),
        (70, 70, 64),
        (1, 300, 64),
    ] {
        let case = OpCase::new(format!("{queries}x{keys}x{dim}"), move |c| {
            let q = c.input("q", [2, 3, queries, dim], InputFill::Normal)?;
            let k = c.input("k", [2, 3, keys, dim], InputFill::Normal)?;
            let v = c.input("v", [2, 3, keys, dim], InputFill::Normal)?;
            let options = AttentionOptions::new(3, 3, AttentionLayout::Bhsd);
            let y = c.graph.attention(q, k, v, options)?;
            let turned = c.graph.transpose(y, &[0, 2, 1, 3])?;
            let joined = c.graph.reshape(turned, [2, queries, 3 * dim])?;
            c.output(joined)?;
            c.output(turned)
        });
        check(&case, FLOATS, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads of size 64 with one key and value that are not finite; only the last queries attend to
/// that key.
fn heads_of_64_with_values_that_few_see() {
    let mut wrong = Vec::new();
    let kinds = [
        AttentionMask::None,
        AttentionMask::Causal,
        AttentionMask::Window(9),
    ];
    for (queries, keys, heads) in [(40, 40, [2, 2]), (33, 77, [4, 2]), (197, 197, [2, 1])] {
        for (mask, special) in kinds.into_iter().flat_map(|m| [(m, false), (m, true)]) {
            let [q_heads, kv_heads] = heads;
            let name = format!("{queries}x{keys}/{q_heads}:{kv_heads}/{mask:?}/{special}");
            let case = OpCase::new(name, move |c| {
                let q = c.input("q", [2, q_heads, queries, 64], InputFill::Normal)?;
                let k = c.input("k", [2, kv_heads, keys, 64], InputFill::Normal)?;
                let value = move |at: usize| {
                    let key = at / 64 % keys;
                    match at % 64 % 7 {
                        0 if special && key + 2 == keys => f64::INFINITY,
                        3 if special && key + 2 == keys => f64::NAN,
                        _ => ((at * 7 + key * 3) % 17) as f64 / 8.0 - 1.0,
                    }
                };
                let values = (0..2 * kv_heads * keys * 64).map(value).collect();
                let v = c.input("v", [2, kv_heads, keys, 64], InputFill::Values(values))?;
                let options = AttentionOptions {
                    mask,
                    ..AttentionOptions::new(q_heads, kv_heads, AttentionLayout::Bhsd)
                };
                let y = c.graph.attention(q, k, v, options)?;
                c.output(y)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads of size 64 whose queries, keys and values are columns of one matmul. Large scores move the
/// running maximum of rows in many steps. Only for narrow floats, because the error of F32 matmuls
/// would exceed the tolerance.
fn heads_that_are_columns_of_one_product() {
    let mut wrong = Vec::new();
    let narrow = &FLOATS[1..];
    let scales = [(0.125, FLOATS), (2.0, narrow), (-1.0, narrow)];
    let kinds = [(AttentionMask::None, 2), (AttentionMask::Causal, 1)];
    for (batch, seq) in [(2, 49), (1, 197)] {
        for ((scale, dtypes), (mask, heads)) in
            scales.into_iter().flat_map(|s| kinds.map(|k| (s, k)))
        {
            let name = format!("{batch}x{seq}/{heads}/{mask:?}/{scale}");
            let case = OpCase::new(name, move |c| {
                let (b, width) = (c.sym("b", batch, 4), 64 * heads);
                let shape = [b.clone(), Dim::Known(seq), Dim::Known(width)];
                let x = c.input("x", shape.clone(), InputFill::Normal)?;
                let w = param(c, "w", &[width, 3 * width], InputFill::Uniform(-0.1, 0.1))?;
                let out = param(c, "out", &[width, width], InputFill::Uniform(-0.1, 0.1))?;
                let bias = param(c, "bias", &[3 * width], InputFill::Normal)?;
                let all = c.graph.linear(x, w, Some(bias), None)?;
                let apart = [b, Dim::Known(seq), Dim::Known(heads), Dim::Known(64)];
                let mut parts = [all; 3];
                for (at, part) in parts.iter_mut().enumerate() {
                    let own = c.graph.narrow(all, 2, at * width, width)?;
                    *part = c.graph.reshape(own, apart.clone())?;
                }
                let [q, k, v] = parts;
                let options = AttentionOptions::new(heads, heads, AttentionLayout::Bshd);
                let y = c
                    .graph
                    .attention(q, k, v, options.mask(mask).scale(scale))?;
                let joined = c.graph.reshape(y, shape)?;
                let y = c.graph.linear(joined, out, None, None)?;
                c.output(y)
            });
            check(&case, dtypes, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The row operators of an encoder layer. Only the first and the last result is read by another
/// operator.
fn rows_between_norms_and_products() {
    let mut wrong = Vec::new();
    for (batch, seq) in [(1, 3), (1, 47), (2, 49), (3, 197)] {
        for (width, f) in [
            (128, UnaryFn::Gelu),
            (192, UnaryFn::Silu),
            (64, UnaryFn::GeluTanh),
        ] {
            let case = OpCase::new(format!("{batch}x{seq}x{width}/{f:?}"), move |c| {
                let (b, s) = (c.sym("b", batch, 4), c.sym("s", seq, 200));
                let shape = [b, s, Dim::Known(width)];
                let x = c.input("x", shape.clone(), InputFill::Normal)?;
                let r = c.input("r", shape, InputFill::Normal)?;
                let (gamma, beta) = (weight(c, "gamma", &[width])?, weight(c, "beta", &[width])?);
                let up = param(c, "up", &[width, 4 * width], InputFill::Uniform(-0.1, 0.1))?;
                let down = param(
                    c,
                    "down",
                    &[4 * width, width],
                    InputFill::Uniform(-0.1, 0.1),
                )?;
                let bias = param(c, "bias", &[4 * width], InputFill::Normal)?;
                let normed = c.graph.layer_norm(x, gamma, Some(beta), 2, 1e-5)?;
                let hidden = c.graph.linear(normed, up, Some(bias), Some(f))?;
                let y = c.graph.linear(hidden, down, None, None)?;
                let (normed, sum) = c.graph.residual_layer_norm(y, r, gamma, beta, None, 1e-5)?;
                let hidden = c.graph.linear(normed, up, None, None)?;
                let y = c.graph.linear(hidden, down, None, None)?;
                c.output(y)?;
                c.output(sum)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Batches of complete entries, with zero rows or many rows per run.
fn rows_of_whole_entries() {
    let mut wrong = Vec::new();
    for batch in [0, 1, 3] {
        let case = OpCase::new(format!("{batch}"), move |c| {
            let shape = [c.sym("b", batch, 4), Dim::Known(60), Dim::Known(128)];
            let x = c.input("x", shape, InputFill::Normal)?;
            let (gamma, beta) = (weight(c, "gamma", &[128])?, weight(c, "beta", &[128])?);
            let w = param(c, "w", &[128, 192], InputFill::Uniform(-0.1, 0.1))?;
            let normed = c.graph.layer_norm(x, gamma, Some(beta), 2, 1e-5)?;
            let y = c.graph.linear(normed, w, None, Some(UnaryFn::Silu))?;
            c.output(y)
        });
        check(&case, FLOATS, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "rows/one_row_times_weights_along_columns",
            one_row_times_weights_along_columns,
        ),
        SuiteTest::asserting(
            "rows/rows_beyond_the_last_count_for_nothing",
            rows_beyond_the_last_count_for_nothing,
        ),
        SuiteTest::asserting("rows/norms_before_one_row", norms_before_one_row),
        SuiteTest::asserting("rows/channels_of_one_window", channels_of_one_window),
        SuiteTest::asserting("rows/limits_after_convolutions", limits_after_convolutions),
        SuiteTest::asserting("rows/heads_turned_back", heads_turned_back),
        SuiteTest::asserting(
            "rows/heads_of_64_with_values_that_few_see",
            heads_of_64_with_values_that_few_see,
        ),
        SuiteTest::asserting(
            "rows/heads_that_are_columns_of_one_product",
            heads_that_are_columns_of_one_product,
        ),
        SuiteTest::asserting(
            "rows/rows_between_norms_and_products",
            rows_between_norms_and_products,
        ),
        SuiteTest::asserting("rows/rows_of_whole_entries", rows_of_whole_entries),
    ]
}
