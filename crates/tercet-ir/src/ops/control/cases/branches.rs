//! Cases of `If`.

use super::{block, types};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::tensor::Tensor;
use crate::types::Type;

fn predicate(c: &mut CaseGraph, holds: bool) -> Result<Value, OpError> {
    let value = InputFill::Values(vec![f64::from(u8::from(holds))]);
    c.input_of("p", truth(), value)
}

fn truth() -> Type {
    Type::new(DType::Bool, [0usize; 0])
}

/// An `If` whose branches return different functions: the sum and `y`, or the product and another
/// value.
fn sum_or_product(c: &mut CaseGraph, p: Value, x: Value, y: Value) -> Result<Value, OpError> {
    let of = types(&c.graph, &[x, y]);
    let then = block(&of, |g, a| Ok(vec![g.plus(a[0], a[1])?, a[1]]))?;
    let otherwise = block(&of, |g, a| {
        Ok(vec![g.mul(a[0], a[1])?, g.plus(a[1], a[1])?])
    })?;
    c.graph.if_else(p, &[x, y], then, otherwise)
}

/// Gathers an out-of-range element if `holds` is true, which fails; otherwise returns the table.
fn bad_index(holds: bool, c: &mut CaseGraph) -> Result<(), OpError> {
    let p = predicate(c, holds)?;
    let table = c.input("table", [3], InputFill::Normal)?;
    let at = c.input_of(
        "at",
        Type::new(DType::I32, [3]),
        InputFill::Values(vec![0.0, 9.0, 1.0]),
    )?;
    let of = types(&c.graph, &[table, at]);
    let then = block(&of, |g, a| Ok(vec![g.gather(a[0], a[1], 0)?]))?;
    let otherwise = block(&of, |_, a| Ok(vec![a[0]]))?;
    let y = c.graph.if_else(p, &[table, at], then, otherwise)?;
    c.output(y)
}

pub(in super::super) fn branches() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let both = |name: &str, build: fn(&mut CaseGraph, bool) -> Result<(), OpError>| {
        [true, false].map(|holds| {
            let taken = if holds { "taken" } else { "not_taken" };
            OpCase::new(format!("{name}_{taken}"), move |c| build(c, holds))
        })
    };
    let mut cases = vec![
        OpCase::new("a_fault_in_the_other_branch_does_not_show", |c| {
            bad_index(false, c)
        }),
        OpCase::new("a_fault_in_the_taken_branch", |c| {
            c.expect_fault("in `then`, %2 (gather): index 9 is out of range");
            bad_index(true, c)
        }),
        OpCase::new("a_state_stays_where_a_branch_fails", |c| {
            let ty = Type::new(c.dtype, [3]);
            let s = c.state_of("s", ty, InputFill::Normal)?;
            bad_index(true, c)?;
            let twice = c.graph.plus(s, s)?;
            c.expect_fault("index 9 is out of range");
            c.graph.assign(s, twice)
        }),
        OpCase::new("a_constant_predicate", |c| {
            let p = Tensor::from_bools(&[], &[false]).expect("one value");
            let p = c.graph.constant(p)?;
            let (x, y) = (
                c.input("x", [7], InputFill::Normal)?,
                c.input("y", [7], InputFill::Normal)?,
            );
            let z = sum_or_product(c, p, x, y)?;
            c.output(z.port(1))?;
            c.output(z)
        }),
        OpCase::new("a_predicate_that_is_computed", |c| {
            let x = c.input(
                "x",
                [2, 3],
                InputFill::Values(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            )?;
            let sum = c.graph.reduce_sum(x, &[0, 1], false)?;
            let least = c.graph.scalar(c.dtype, 20.0)?;
            let p = c.graph.gt(sum, least)?;
            let z = sum_or_product(c, p, x, x)?;
            c.output_expect(z, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0])
        }),
    ];
    cases.extend(both("pinned", |c, holds| {
        let p = predicate(c, holds)?;
        let x = c.input("x", [3], InputFill::Values(vec![1.0, 2.0, 3.0]))?;
        let y = c.input("y", [3], InputFill::Values(vec![4.0, 5.0, 6.0]))?;
        let z = sum_or_product(c, p, x, y)?;
        match holds {
            true => c.output_expect(z, &[5.0, 7.0, 9.0]),
            false => c.output_expect(z, &[4.0, 10.0, 18.0]),
        }
    }));
    cases.extend(both("several_results_7x33", |c, holds| {
        let p = predicate(c, holds)?;
        let x = c.input("x", [7, 33], InputFill::Normal)?;
        let y = c.input("y", [33], InputFill::Normal)?;
        let z = c.graph.expand(y, [7, 33])?;
        let z = sum_or_product(c, p, x, z)?;
        c.output(z)?;
        c.output(z.port(1))
    }));
    cases.extend(both("captures_that_change_places", |c, holds| {
        let p = predicate(c, holds)?;
        let x = c.input("x", [5], InputFill::Normal)?;
        let y = c.input("y", [5], InputFill::Normal)?;
        let of = types(&c.graph, &[x, y]);
        let then = block(&of, |_, a| Ok(vec![a[1], a[0], a[0]]))?;
        let otherwise = block(&of, |g, a| Ok(vec![a[0], a[1], g.scalar_of(a[0], 2.0)?]))?;
        let z = c.graph.if_else(p, &[x, y], then, otherwise)?;
        (0..3).try_for_each(|port| c.output(z.port(port)))
    }));
    cases.extend(both("nested", |c, holds| {
        let p = predicate(c, holds)?;
        let q = c.input_of("q", truth(), InputFill::Values(vec![1.0]))?;
        let x = c.input("x", [4], InputFill::Normal)?;
        let of = types(&c.graph, &[q, x]);
        let inner = |g: &mut Graph, a: &[Value]| -> Result<Vec<Value>, OpError> {
            let of = types(g, &a[1..]);
            let then = block(&of, |g, a| Ok(vec![g.plus(a[0], a[0])?]))?;
            let otherwise = block(&of, |g, a| Ok(vec![g.sub(a[0], a[0])?]))?;
            let y = g.if_else(a[0], &a[1..], then, otherwise)?;
            Ok(vec![g.plus(y, a[1])?])
        };
        let then = block(&of, inner)?;
        let otherwise = block(&of, |g, a| {
            let not = g.not_equal(a[0], a[0])?;
            inner(g, &[not, a[1]])
        })?;
        let y = c.graph.if_else(p, &[q, x], then, otherwise)?;
        c.output(y)
    }));
    cases.extend(both("symbolic_with_an_idle_capture", |c, holds| {
        let s = c.sym("s", 3, 6);
        let p = predicate(c, holds)?;
        let x = c.input("x", [s, 5.into()], InputFill::Normal)?;
        let idle = c.input("idle", [4], InputFill::Normal)?;
        let last = c.graph.reverse(x, 0)?;
        let of = types(&c.graph, &[x, idle, last]);
        let then = block(&of, |g, a| Ok(vec![g.plus(a[0], a[2])?]))?;
        let otherwise = block(&of, |g, a| Ok(vec![g.sub(a[2], a[0])?]))?;
        let y = c.graph.if_else(p, &[x, idle, last], then, otherwise)?;
        c.output(y)
    }));
    cases.extend(both("empty", |c, holds| {
        let p = predicate(c, holds)?;
        let x = c.input("x", [0, 3], InputFill::Normal)?;
        let z = sum_or_product(c, p, x, x)?;
        c.output(z)
    }));
    cases.extend(both("parameters_and_a_state", |c, holds| {
        let p = predicate(c, holds)?;
        let ty = Type::new(c.dtype, [4]);
        let w = c.param_of("w", ty.clone(), InputFill::Normal)?;
        let s = c.state_of("s", ty, InputFill::Normal)?;
        c.runs = 2;
        let twice = c.graph.plus(w, w)?;
        let z = sum_or_product(c, p, s, twice)?;
        c.output(z)?;
        c.graph.assign(s, z)
    }));
    cases
}

impl Graph {
    /// `x` times a number.
    fn scalar_of(&mut self, x: Value, factor: f64) -> Result<Value, OpError> {
        let factor = self.scalar(self.ty(x).dtype, factor)?;
        self.mul(x, factor)
    }
}

fn branch_inputs(g: &mut Graph) -> Result<(Value, Value), OpError> {
    let p = g.input("p", truth())?;
    let x = g.input("x", Type::new(DType::F32, [2]))?;
    Ok((p, x))
}

fn same(ty: Type) -> Result<Graph, OpError> {
    block(&[ty], |_, a| Ok(vec![a[0]]))
}

pub(in super::super) fn rejected_branches() -> Vec<RejectCase> {
    // Long: this function is a table of test cases, one per row.
    fn x() -> Type {
        Type::new(DType::F32, [2])
    }
    vec![
        reject("a_predicate_of_numbers", "accepted: bool", |g| {
            let (_, v) = branch_inputs(g)?;
            g.if_else(v, &[v], same(x())?, same(x())?)
        }),
        reject("several_predicates", "expected rank 0", |g| {
            let p = g.input("p", Type::new(DType::Bool, [2]))?;
            g.if_else(p, &[], Graph::new(), Graph::new())
        }),
        reject("no_results", "the operator has no results", |g| {
            let (p, _) = branch_inputs(g)?;
            g.if_else(p, &[], Graph::new(), Graph::new())
        }),
        reject(
            "other_captures",
            "input 0 is f32[2], but its operator passes bool[]",
            |g| {
                let (p, _) = branch_inputs(g)?;
                g.if_else(p, &[p], same(x())?, same(x())?)
            },
        ),
        reject(
            "a_capture_too_many",
            "has 1 inputs, but its operator passes 2",
            |g| {
                let (p, v) = branch_inputs(g)?;
                g.if_else(p, &[v, v], same(x())?, same(x())?)
            },
        ),
        reject(
            "different_results",
            "its results are i32[2]; those of `then` are f32[2]",
            |g| {
                let (p, v) = branch_inputs(g)?;
                let other = block(&[x()], |g, a| Ok(vec![g.cast(a[0], DType::I32)?]))?;
                g.if_else(p, &[v], same(x())?, other)
            },
        ),
        reject(
            "a_parameter_inside",
            "the parameter `w`; pass it to the operator as a capture",
            |g| {
                let (p, v) = branch_inputs(g)?;
                let with = block(&[x()], |g, _| Ok(vec![g.param("w", x())?]))?;
                g.if_else(p, &[v], same(x())?, with)
            },
        ),
        reject(
            "a_state_inside",
            "the state `s`; pass it to the operator as a capture",
            |g| {
                let (p, v) = branch_inputs(g)?;
                let with = block(&[x()], |g, _| Ok(vec![g.state("s", x())?]))?;
                g.if_else(p, &[v], with, same(x())?)
            },
        ),
        reject(
            "a_symbol_without_a_value",
            "symbol `s` is not by itself a dimension of an input",
            |g| {
                let s = crate::Dim::sym("s")
                    .checked_mul(&2.into())
                    .unwrap_or(0.into());
                let ty = Type::new(DType::F32, [s]);
                let p = g.input("p", truth())?;
                let v = g.input("x", ty.clone())?;
                g.if_else(p, &[v], same(ty.clone())?, same(ty)?)
            },
        ),
        reject("nested_too_deep", "expected at most 16 levels", |g| {
            let deeper = |inner: Graph| {
                block(&[truth(), x()], |g, a| {
                    Ok(vec![g.if_else(a[0], a, inner.clone(), inner)?])
                })
            };
            let mut inner = block(&[truth(), x()], |_, a| Ok(vec![a[1]]))?;
            for _ in 0..20 {
                inner = deeper(inner)?;
            }
            let (p, v) = branch_inputs(g)?;
            g.if_else(p, &[p, v], inner.clone(), inner)
        }),
    ]
}
