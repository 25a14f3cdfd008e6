//! Cases of `Scan`.

use super::{block, i32s, types};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::Scan;
use crate::ops::util::reject;
use crate::types::{Shape, Type};

/// The argument types of a body for these operands.
fn arguments(graph: &Graph, carried: &[Value], scanned: &[Value], captures: &[Value]) -> Vec<Type> {
    let mut of = types(graph, carried);
    of.extend(types(graph, scanned).iter().map(|ty| {
        let shape: Shape = ty.shape.iter().skip(1).cloned().collect();
        ty.with_shape(shape)
    }));
    of.extend(types(graph, captures));
    of
}

/// A scan with two results: the sum of the rows of `x`, and the sequence of running sums.
fn sums(c: &mut CaseGraph, steps: impl Into<Dim>, columns: usize) -> Result<Value, OpError> {
    let x = c.input("x", [steps.into(), columns.into()], InputFill::Normal)?;
    let first = c.input("first", [columns], InputFill::Normal)?;
    let of = arguments(&c.graph, &[first], &[x], &[]);
    let body = block(&of, |g, a| {
        let y = g.plus(a[0], a[1])?;
        Ok(vec![y, y])
    })?;
    c.graph.scan_over(&[first], &[x], &[], body)
}

fn both(c: &mut CaseGraph, y: Value) -> Result<(), OpError> {
    c.output(y)?;
    c.output(y.port(1))
}

fn steps() -> Vec<OpCase> {
    let of = |name: &str, steps: usize, columns: usize| {
        OpCase::new(name, move |c| {
            let y = sums(c, steps, columns)?;
            both(c, y)
        })
    };
    vec![
        of("no_step", 0, 3),
        of("one_step", 1, 3),
        of("many_steps_9x5", 9, 5),
        of("empty_parts", 3, 0),
        OpCase::new("pinned", |c| {
            let x = c.input("x", [3], InputFill::Values(vec![1.0, 2.0, 3.0]))?;
            let first = c.input("first", [0usize; 0], InputFill::Values(vec![10.0]))?;
            let of = arguments(&c.graph, &[first], &[x], &[]);
            let body = block(&of, |g, a| Ok(vec![g.plus(a[0], a[1])?, a[0]]))?;
            let y = c.graph.scan_over(&[first], &[x], &[], body)?;
            c.output_expect(y, &[16.0])?;
            c.output_expect(y.port(1), &[10.0, 11.0, 13.0])
        }),
        OpCase::new("symbolic_steps", |c| {
            let s = c.sym("s", 4, 7);
            let y = sums(c, s, 3)?;
            both(c, y)
        }),
        OpCase::new("symbolic_parts", |c| {
            let s = c.sym("s", 3, 5);
            let x = c.input("x", [2.into(), s.clone()], InputFill::Normal)?;
            let first = c.input("first", [s], InputFill::Normal)?;
            let of = arguments(&c.graph, &[first], &[x], &[]);
            let body = block(&of, |g, a| Ok(vec![g.sub(a[1], a[0])?, a[0]]))?;
            let y = c.graph.scan_over(&[first], &[x], &[], body)?;
            both(c, y)
        }),
    ]
}

/// A scan of two sequences with two result sequences, each read or filled in the direction of its
/// flag.
fn directed(reverse: [bool; 2], reverse_results: [bool; 2]) -> OpCase {
    let flags = |f: [bool; 2]| f.map(|r| if r { "back" } else { "on" }).join("_");
    let name = format!("{}_to_{}", flags(reverse), flags(reverse_results));
    OpCase::new(name, move |c| {
        let x = c.input("x", [4, 3], InputFill::Normal)?;
        let y = c.input("y", [4, 3], InputFill::Normal)?;
        let first = c.input("first", [3], InputFill::Normal)?;
        let of = arguments(&c.graph, &[first], &[x, y], &[]);
        let body = block(&of, |g, a| {
            let sum = g.plus(a[0], a[1])?;
            Ok(vec![sum, g.sub(sum, a[2])?, a[0]])
        })?;
        let op = Scan {
            body: body.into(),
            carried: 1,
            scanned: 2,
            reverse: reverse.to_vec(),
            reverse_results: reverse_results.to_vec(),
        };
        let z = c.graph.add(op, &[first, x, y])?;
        (0..3).try_for_each(|p| c.output(z.port(p)))
    })
}

fn bodies() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    vec![
        OpCase::new("two_values_that_change_places", |c| {
            let x = c.input("x", [3, 5], InputFill::Normal)?;
            let (a, b) = (
                c.input("a", [5], InputFill::Normal)?,
                c.input("b", [5], InputFill::Normal)?,
            );
            let of = arguments(&c.graph, &[a, b], &[x], &[]);
            let body = block(&of, |_, a| Ok(vec![a[1], a[0], a[0], a[2]]))?;
            let y = c.graph.scan_over(&[a, b], &[x], &[], body)?;
            (0..4).try_for_each(|p| c.output(y.port(p)))
        }),
        OpCase::new("nothing_carried_and_a_capture", |c| {
            let x = c.input("x", [4, 2, 3], InputFill::Normal)?;
            let w = c.param_of("w", Type::new(c.dtype, [3]), InputFill::Normal)?;
            let dtype = c.dtype;
            let of = arguments(&c.graph, &[], &[x], &[w]);
            let body = block(&of, |g, a| {
                let two = g.scalar(dtype, 2.0)?;
                let w = g.mul(a[1], two)?;
                Ok(vec![g.plus(a[0], w)?, w])
            })?;
            let y = c.graph.scan_over(&[], &[x], &[w], body)?;
            both(c, y)
        }),
        OpCase::new("no_result_sequence", |c| {
            let x = c.input("x", [5, 3], InputFill::Normal)?;
            let first = c.input("first", [3], InputFill::Normal)?;
            let of = arguments(&c.graph, &[first], &[x], &[]);
            let body = block(&of, |g, a| Ok(vec![g.max(a[0], a[1])?]))?;
            let y = c.graph.scan_over(&[first], &[x], &[], body)?;
            c.output(y)
        }),
        OpCase::new("a_sequence_that_is_a_view", |c| {
            let x = c.input("x", [3, 4], InputFill::Normal)?;
            let x = c.graph.transpose(x, &[1, 0])?;
            let of = arguments(&c.graph, &[], &[x], &[]);
            let body = block(&of, |g, a| Ok(vec![g.reverse(a[0], 0)?]))?;
            let y = c.graph.scan_over(&[], &[x], &[], body)?;
            c.output(y)
        }),
        OpCase::new("a_scan_in_a_scan", |c| {
            let x = c.input("x", [2, 3, 4], InputFill::Normal)?;
            let first = c.input("first", [4], InputFill::Normal)?;
            let of = arguments(&c.graph, &[first], &[x], &[]);
            let body = block(&of, |g, a| {
                let of = arguments(g, &a[..1], &a[1..], &[]);
                let body = block(&of, |g, a| {
                    let y = g.sub(a[1], a[0])?;
                    Ok(vec![y, y])
                })?;
                let y = g.scan_over(&a[..1], &a[1..], &[], body)?;
                Ok(vec![y, y.port(1)])
            })?;
            let y = c.graph.scan_over(&[first], &[x], &[], body)?;
            both(c, y)
        }),
        OpCase::new("a_branch_and_a_loop_in_a_scan", |c| {
            let n = c.input_of(
                "n",
                Type::new(DType::I32, [3]),
                InputFill::Values(vec![2.0, 0.0, 1.0]),
            )?;
            let x = c.input("x", [2], InputFill::Normal)?;
            let of = arguments(&c.graph, &[x], &[n], &[]);
            let body = block(&of, scan_step)?;
            let y = c.graph.scan_over(&[x], &[n], &[], body)?;
            both(c, y)
        }),
        OpCase::new("a_scan_in_a_loop", |c| {
            let i = c.graph.scalar(DType::I32, 0.0)?;
            let x = c.input("x", [3, 2], InputFill::Normal)?;
            let of = types(&c.graph, &[i, x]);
            let cond = block(&of, |g, a| {
                let two = g.scalar(DType::I32, 2.0)?;
                Ok(vec![g.lt(a[0], two)?])
            })?;
            let body = block(&of, |g, a| {
                let one = g.scalar(DType::I32, 1.0)?;
                let of = arguments(g, &[], &a[1..], &[a[1]]);
                let body = block(&of, |g, a| {
                    let sum = g.reduce_max(a[1], &[0], false)?;
                    Ok(vec![g.sub(a[0], sum)?])
                })?;
                let y = g.scan_over(&[], &a[1..], &[a[1]], body)?;
                Ok(vec![g.plus(a[0], one)?, y])
            })?;
            let y = c.graph.while_loop(&[i, x], &[], cond, body, 9)?;
            both(c, y)
        }),
        OpCase::new("an_index_out_of_range_at_a_step", |c| {
            c.expect_fault("in `body`, %2 (gather): index 7 is out of range");
            let at = Type::new(DType::I32, [4]);
            let at = c.input_of("at", at, InputFill::Values(vec![0.0, 7.0, 1.0, 8.0]))?;
            let x = c.input("x", [3], InputFill::Normal)?;
            let of = arguments(&c.graph, &[], &[at], &[x]);
            let body = block(&of, |g, a| Ok(vec![g.gather(a[1], a[0], 0)?]))?;
            let y = c.graph.scan_over(&[], &[at], &[x], body)?;
            c.output(y)
        }),
        OpCase::new("a_slice_that_only_a_step_would_need", |c| {
            // Without steps, the body does not run and cannot fail.
            let x = c.input("x", [0, 3], InputFill::Normal)?;
            let at = c.input_of("at", i32s(), InputFill::Values(vec![9.0]))?;
            let of = arguments(&c.graph, &[], &[x], &[at]);
            let body = block(&of, |g, a| Ok(vec![g.gather(a[0], a[1], 0)?]))?;
            let y = c.graph.scan_over(&[], &[x], &[at], body)?;
            c.output(y)
        }),
    ]
}

/// Doubles `x` `n` times; if `n` is 0, negates it.
fn scan_step(g: &mut Graph, a: &[Value]) -> Result<Vec<Value>, OpError> {
    let zero = g.scalar(DType::I32, 0.0)?;
    let p = g.gt(a[1], zero)?;
    let of = types(g, a);
    let then = block(&of, |g, a| {
        let of = types(g, &[a[1], a[0]]);
        let cond = block(&of, |g, a| {
            let zero = g.scalar(DType::I32, 0.0)?;
            Ok(vec![g.gt(a[0], zero)?])
        })?;
        let body = block(&of, |g, a| {
            let one = g.scalar(DType::I32, 1.0)?;
            Ok(vec![g.sub(a[0], one)?, g.plus(a[1], a[1])?])
        })?;
        let y = g.while_loop(&[a[1], a[0]], &[], cond, body, 9)?;
        Ok(vec![y.port(1)])
    })?;
    let otherwise = block(&of, |g, a| Ok(vec![g.neg(a[0])?]))?;
    let y = g.if_else(p, a, then, otherwise)?;
    Ok(vec![y, y])
}

pub(in super::super) fn scans() -> Vec<OpCase> {
    let directions = [
        directed([true, false], [false, false]),
        directed([false, true], [true, false]),
        directed([true, true], [true, true]),
    ];
    let all = [steps(), directions.into(), bodies()];
    all.into_iter().flatten().collect()
}

pub(in super::super) fn rejected_scans() -> Vec<RejectCase> {
    fn row() -> Type {
        Type::new(DType::F32, [3])
    }
    fn rows(g: &mut Graph, name: &str, n: usize) -> Result<Value, OpError> {
        g.input(name, Type::new(DType::F32, [n, 3]))
    }
    fn same() -> Result<Graph, OpError> {
        block(&[row()], |_, a| Ok(vec![a[0]]))
    }
    vec![
        reject("nothing_to_scan", "0 scanned sequences", |g| {
            let x = g.input("x", row())?;
            g.scan_over(&[x], &[], &[], same()?)
        }),
        reject("a_sequence_without_axes", "expected rank 1 or more", |g| {
            let x = g.input("x", Type::new(DType::F32, [0usize; 0]))?;
            g.scan_over(&[], &[x], &[], same()?)
        }),
        reject(
            "different_lengths",
            "steps of the sequences: 2 and 4 differ",
            |g| {
                let (x, y) = (rows(g, "x", 2)?, rows(g, "y", 4)?);
                let body = block(&[row(), row()], |_, a| Ok(vec![a[0]]))?;
                g.scan_over(&[], &[x, y], &[], body)
            },
        ),
        reject(
            "a_body_that_gives_too_little",
            "it has 1 results, 2 values are carried",
            |g| {
                let x = rows(g, "x", 2)?;
                let a = g.input("a", row())?;
                let body = block(&[row(), row(), row()], |_, a| Ok(vec![a[0]]))?;
                let op = Scan {
                    body: body.into(),
                    carried: 2,
                    scanned: 1,
                    reverse: vec![false],
                    reverse_results: vec![],
                };
                g.add(op, &[a, a, x])
            },
        ),
        reject("a_flag_too_many", "2 values for 1 sequences", |g| {
            let x = rows(g, "x", 2)?;
            let op = Scan {
                body: same()?.into(),
                carried: 0,
                scanned: 1,
                reverse: vec![false, true],
                reverse_results: vec![false],
            };
            g.add(op, &[x])
        }),
        reject("nine_axes", "expected at most 8", |g| {
            let x = g.input("x", Type::new(DType::F32, [2; 8]))?;
            let ty = Type::new(DType::F32, [2; 7]);
            let body = block(&[ty], |g, a| Ok(vec![g.unsqueeze(a[0], 0)?]))?;
            g.scan_over(&[], &[x], &[], body)
        }),
    ]
}
