//! Cases of `While`.

use super::{block, i32s, types};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::Type;

/// The condition `i < n`, for a loop whose first carried value is `i` and whose last is `n`.
fn below(of: &[Type]) -> Result<Graph, OpError> {
    block(of, |g, a| Ok(vec![g.lt(a[0], a[a.len() - 1])?]))
}

/// `i + 1`
fn next(g: &mut Graph, i: Value) -> Result<Value, OpError> {
    let one = g.scalar(DType::I32, 1.0)?;
    g.plus(i, one)
}

fn count(c: &mut CaseGraph, n: usize) -> Result<(Value, Value), OpError> {
    let i = c.graph.scalar(DType::I32, 0.0)?;
    let n = c.input_of("n", i32s(), InputFill::Values(vec![n as f64]))?;
    Ok((i, n))
}

/// `n` iterations of `f`, which receives the carried values and the captures; all results are
/// outputs.
fn counted(
    c: &mut CaseGraph,
    n: usize,
    carried: &[Value],
    captures: &[Value],
    f: impl FnOnce(&mut Graph, Value, &[Value]) -> Result<Vec<Value>, OpError>,
) -> Result<Value, OpError> {
    let (i, n) = count(c, n)?;
    let carried = [&[i], carried].concat();
    let captures = [captures, &[n]].concat();
    let of = types(&c.graph, &[carried.as_slice(), &captures].concat());
    let body = block(&of, |g, a| {
        let mut results = vec![next(g, a[0])?];
        results.extend(f(g, a[0], &a[1..])?);
        Ok(results)
    })?;
    c.graph
        .while_loop(&carried, &captures, below(&of)?, body, 10)
}

fn outputs(c: &mut CaseGraph, first: Value, ports: u8) -> Result<(), OpError> {
    (0..ports).try_for_each(|p| c.output(first.port(p)))
}

/// A loop that doubles a value `n` times, with an iteration limit of 3.
fn loop_up_to_three(c: &mut CaseGraph, n: usize) -> Result<(), OpError> {
    let (i, n) = count(c, n)?;
    let x = c.input("x", [3], InputFill::Values(vec![1.0, 2.0, 3.0]))?;
    let of = types(&c.graph, &[i, x, n]);
    let body = block(&of, |g, a| {
        let i = next(g, a[0])?;
        Ok(vec![i, g.plus(a[1], a[1])?])
    })?;
    let y = c.graph.while_loop(&[i, x], &[n], below(&of)?, body, 3)?;
    c.output_expect(y.port(1), &[8.0, 16.0, 24.0])
}

fn iterations() -> Vec<OpCase> {
    let double = |name: &str, n: usize, expected: &'static [f64]| {
        OpCase::new(name, move |c| {
            let x = c.input("x", [3], InputFill::Values(vec![1.0, -2.0, 0.0]))?;
            let y = counted(c, n, &[x], &[], |g, _, a| Ok(vec![g.plus(a[0], a[0])?]))?;
            c.output_expect(y, &[n as f64])?;
            c.output_expect(y.port(1), expected)
        })
    };
    vec![
        double("no_iteration", 0, &[1.0, -2.0, 0.0]),
        double("one_iteration", 1, &[2.0, -4.0, 0.0]),
        double("five_iterations", 5, &[32.0, -64.0, 0.0]),
        OpCase::new("max_iter_is_enough", |c| loop_up_to_three(c, 3)),
        OpCase::new("max_iter_exceeded", |c| {
            c.expect_fault("the loop condition is still true after max_iter = 3 iterations");
            let s = c.state_of("s", Type::new(DType::F32, [2]), InputFill::Normal)?;
            let twice = c.graph.plus(s, s)?;
            c.graph.assign(s, twice)?;
            loop_up_to_three(c, 4)
        }),
        OpCase::new("a_state_written_before_a_loop_that_fails", |c| {
            c.expect_fault("the loop condition is still true after max_iter = 3 iterations");
            let s = c.state_of("s", Type::new(c.dtype, [4]), InputFill::Normal)?;
            let x = c.input("new", [1], InputFill::Normal)?;
            let at = c.input_of(
                "at",
                Type::new(DType::I32, [1]),
                InputFill::Values(vec![2.0]),
            )?;
            let written = c.graph.dynamic_update_slice(s, x, at)?;
            c.graph.assign(s, written)?;
            loop_up_to_three(c, 4)
        }),
    ]
}

fn carried() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    vec![
        OpCase::new("two_values_that_change_places", |c| {
            let x = c.input("x", [5], InputFill::Normal)?;
            let y = c.input("y", [5], InputFill::Normal)?;
            let z = counted(c, 3, &[x, y], &[], |_, _, a| Ok(vec![a[1], a[0]]))?;
            outputs(c, z, 3)
        }),
        OpCase::new("three_values_in_a_circle_7x3", |c| {
            let x = c.input("x", [7, 3], InputFill::Normal)?;
            let y = c.graph.plus(x, x)?;
            let z = c.graph.reverse(x, 0)?;
            let z = counted(c, 4, &[x, y, z], &[], |g, _, a| {
                Ok(vec![a[1], g.plus(a[2], a[0])?, a[0]])
            })?;
            outputs(c, z, 4)
        }),
        OpCase::new("one_value_carried_twice", |c| {
            let x = c.input("x", [4], InputFill::Normal)?;
            let z = counted(c, 2, &[x, x], &[], |g, _, a| {
                let y = g.plus(a[0], a[1])?;
                Ok(vec![y, y])
            })?;
            outputs(c, z, 3)
        }),
        OpCase::new("turned_over_each_time", |c| {
            let x = c.input("x", [6], InputFill::Normal)?;
            let z = counted(c, 3, &[x], &[], |g, _, a| Ok(vec![g.reverse(a[0], 0)?]))?;
            outputs(c, z, 2)
        }),
        OpCase::new("captures_constants_and_a_parameter", |c| {
            let x = c.input("x", [2, 3], InputFill::Normal)?;
            let w = c.param_of("w", Type::new(c.dtype, [3]), InputFill::Normal)?;
            let dtype = c.dtype;
            let z = counted(c, 3, &[x], &[w], |g, _, a| {
                let half = g.scalar(dtype, 2.0)?;
                let w = g.max(a[1], half)?;
                Ok(vec![g.sub(a[0], w)?])
            })?;
            outputs(c, z, 2)
        }),
        OpCase::new("a_capture_becomes_the_value", |c| {
            let x = c.input("x", [3], InputFill::Normal)?;
            let w = c.input("w", [3], InputFill::Normal)?;
            let z = counted(c, 2, &[x], &[w], |_, _, a| Ok(vec![a[1]]))?;
            outputs(c, z, 2)
        }),
        OpCase::new("symbolic", |c| {
            let s = c.sym("s", 3, 5);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let z = counted(c, 2, &[x], &[], |g, _, a| Ok(vec![g.plus(a[0], a[0])?]))?;
            outputs(c, z, 2)
        }),
        OpCase::new("empty", |c| {
            let x = c.input("x", [3, 0], InputFill::Normal)?;
            let z = counted(c, 2, &[x], &[], |g, _, a| Ok(vec![g.plus(a[0], a[0])?]))?;
            outputs(c, z, 2)
        }),
        OpCase::new("a_window_written_at_each_step", |c| {
            let x = c.input("x", [5, 2], InputFill::Normal)?;
            let row = c.input("row", [1, 2], InputFill::Normal)?;
            let z = counted(c, 3, &[x], &[row], |g, i, a| {
                let zero = g.scalar(DType::I32, 0.0)?;
                let (i, zero) = (g.unsqueeze(i, 0)?, g.unsqueeze(zero, 0)?);
                let at = g.concat(&[i, zero], 0)?;
                Ok(vec![g.dynamic_update_slice(a[0], a[1], at)?])
            })?;
            outputs(c, z, 2)
        }),
        OpCase::new("a_window_seen_before_and_after", |c| {
            let x = c.input("x", [3, 4], InputFill::Normal)?;
            let sum = c.input("sum", [12], InputFill::Normal)?;
            let row = c.input("row", [1, 4], InputFill::Normal)?;
            let z = counted(c, 3, &[x, sum], &[row], |g, i, a| {
                // Flattens column by column, which needs a copy.
                let columns = |g: &mut Graph, x| {
                    let x = g.transpose(x, &[1, 0])?;
                    g.reshape(x, [12])
                };
                let before = columns(g, a[0])?;
                let zero = g.scalar(DType::I32, 0.0)?;
                let (i, zero) = (g.unsqueeze(i, 0)?, g.unsqueeze(zero, 0)?);
                let at = g.concat(&[i, zero], 0)?;
                let x = g.dynamic_update_slice(a[0], a[2], at)?;
                let after = columns(g, x)?;
                let change = g.sub(after, before)?;
                Ok(vec![x, g.plus(a[1], change)?])
            })?;
            outputs(c, z, 3)
        }),
    ]
}

fn nested() -> Vec<OpCase> {
    vec![
        OpCase::new("a_loop_in_a_loop", |c| {
            let x = c.input("x", [3], InputFill::Values(vec![1.0, 2.0, 3.0]))?;
            let z = counted(c, 3, &[x], &[], |g, i, a| {
                // The inner loop adds `x` to the sum `i` times, where `i` is the iteration of the
                // outer loop.
                let j = g.scalar(DType::I32, 0.0)?;
                let of = types(g, &[j, a[0], a[0], i]);
                let body = block(&of, |g, a| {
                    let j = next(g, a[0])?;
                    Ok(vec![j, g.plus(a[1], a[2])?])
                })?;
                let y = g.while_loop(&[j, a[0]], &[a[0], i], below(&of)?, body, 5)?;
                Ok(vec![y.port(1)])
            })?;
            c.output_expect(z.port(1), &[6.0, 12.0, 18.0])
        }),
        OpCase::new("a_branch_in_a_loop", |c| {
            // The steps of the Collatz sequence from 6 to 1.
            let n = c.input_of("start", i32s(), InputFill::Values(vec![6.0]))?;
            let steps = c.graph.scalar(DType::I32, 0.0)?;
            let of = types(&c.graph, &[n, steps]);
            let cond = block(&of, |g, a| {
                let one = g.scalar(DType::I32, 1.0)?;
                Ok(vec![g.not_equal(a[0], one)?])
            })?;
            let body = block(&of, |g, a| {
                let two = g.scalar(DType::I32, 2.0)?;
                let (rest, zero) = (g.rem(a[0], two)?, g.scalar(DType::I32, 0.0)?);
                let is_even = g.equal(rest, zero)?;
                let half = block(&of[..1], |g, a| {
                    let two = g.scalar(DType::I32, 2.0)?;
                    Ok(vec![g.div(a[0], two)?])
                })?;
                let more = block(&of[..1], |g, a| {
                    let three = g.scalar(DType::I32, 3.0)?;
                    let y = g.mul(a[0], three)?;
                    Ok(vec![next(g, y)?])
                })?;
                let n = g.if_else(is_even, &a[..1], half, more)?;
                Ok(vec![n, next(g, a[1])?])
            })?;
            let z = c.graph.while_loop(&[n, steps], &[], cond, body, 100)?;
            c.output_expect(z, &[1.0])?;
            c.output_expect(z.port(1), &[8.0])
        })
        .only(&[DType::I32]),
        OpCase::new("until_what_is_computed_is_large", |c| {
            let x = c.input("x", [2, 2], InputFill::Values(vec![1.0, 2.0, 3.0, 4.0]))?;
            let of = types(&c.graph, &[x]);
            let dtype = c.dtype;
            let cond = block(&of, |g, a| {
                let most = g.reduce_max(a[0], &[0, 1], false)?;
                let limit = g.scalar(dtype, 100.0)?;
                Ok(vec![g.lt(most, limit)?])
            })?;
            let body = block(&of, |g, a| Ok(vec![g.plus(a[0], a[0])?]))?;
            let z = c.graph.while_loop(&[x], &[], cond, body, 100)?;
            c.output_expect(z, &[32.0, 64.0, 96.0, 128.0])
        }),
    ]
}

fn faults() -> Vec<OpCase> {
    vec![
        OpCase::new("an_index_out_of_range_at_the_third_step", |c| {
            c.expect_fault("in `body`, %6 (gather): index 2 is out of range");
            let x = c.input("x", [2], InputFill::Normal)?;
            let sum = c.input("sum", [0usize; 0], InputFill::Normal)?;
            let z = counted(c, 4, &[sum], &[x], |g, i, a| {
                let x = g.gather(a[1], i, 0)?;
                Ok(vec![g.plus(a[0], x)?])
            })?;
            outputs(c, z, 2)
        }),
        OpCase::new("an_index_out_of_range_in_the_condition", |c| {
            c.expect_fault("in `cond`, %2 (gather): index 3 is out of range");
            let i = c.graph.scalar(DType::I32, 0.0)?;
            let list = Type::new(DType::I32, [3]);
            let list = c.input_of("list", list, InputFill::Values(vec![1.0, 1.0, 1.0]))?;
            let of = types(&c.graph, &[i, list]);
            let cond = block(&of, |g, a| {
                let (x, zero) = (g.gather(a[1], a[0], 0)?, g.scalar(DType::I32, 0.0)?);
                Ok(vec![g.gt(x, zero)?])
            })?;
            let body = block(&of, |g, a| Ok(vec![next(g, a[0])?]))?;
            let z = c.graph.while_loop(&[i], &[list], cond, body, 10)?;
            c.output(z)
        })
        .only(&[DType::I32]),
    ]
}

pub(in super::super) fn loops() -> Vec<OpCase> {
    [iterations(), carried(), nested(), faults()]
        .into_iter()
        .flatten()
        .collect()
}

pub(in super::super) fn rejected_loops() -> Vec<RejectCase> {
    fn always(of: &[Type]) -> Result<Graph, OpError> {
        block(of, |g, a| Ok(vec![g.equal(a[0], a[0])?]))
    }
    vec![
        reject(
            "a_body_of_another_type",
            "result 0 is f32[]; expected i32[], the type of the carried value",
            |g| {
                let i = g.input("i", i32s())?;
                let body = block(&[i32s()], |g, a| Ok(vec![g.cast(a[0], DType::F32)?]))?;
                g.while_loop(&[i], &[], always(&[i32s()])?, body, 1)
            },
        ),
        reject("a_condition_that_is_a_number", "accepted: bool", |g| {
            let i = g.input("i", i32s())?;
            let same = block(&[i32s()], |_, a| Ok(vec![a[0]]))?;
            g.while_loop(&[i], &[], same.clone(), same, 1)
        }),
        reject(
            "two_conditions",
            "the graph has 2 results; expected one, bool[]",
            |g| {
                let i = g.input("i", i32s())?;
                let same = block(&[i32s()], |_, a| Ok(vec![a[0]]))?;
                let cond = block(&[i32s()], |_, a| Ok(vec![a[0], a[0]]))?;
                g.while_loop(&[i], &[], cond, same, 1)
            },
        ),
        reject("nothing_carried", "the operator has no results", |g| {
            let i = g.input("i", i32s())?;
            let none = block(&[i32s()], |_, _| Ok(vec![]))?;
            g.while_loop(&[], &[i], always(&[i32s()])?, none, 1)
        }),
        reject(
            "more_results_than_operands",
            "expected 2 or more operands, got 1",
            |g| {
                let i = g.input("i", i32s())?;
                let twice = block(&[i32s()], |_, a| Ok(vec![a[0], a[0]]))?;
                g.while_loop(&[i], &[], always(&[i32s()])?, twice, 1)
            },
        ),
    ]
}
