//! Cases of the built-in custom operators.

use crate::attr::FloatAttr;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::custom::{GroupLimitedGate, PairwiseKnn};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::Type;

const GATE: GroupLimitedGate = GroupLimitedGate {
    groups: 4,
    keep: 2,
    k: 3,
    scale: FloatAttr(2.5),
};

fn gate(name: &str, [rows, experts]: [usize; 2], op: GroupLimitedGate) -> OpCase {
    OpCase::new(name, move |c| {
        let logits = c.input("logits", [rows, experts], InputFill::Normal)?;
        let bias = c.param_of(
            "bias",
            Type::new(c.dtype, [experts]),
            InputFill::Uniform(-0.5, 0.5),
        )?;
        let y = c.graph.custom(op.clone(), &[logits, bias])?;
        c.output(y)
    })
}

/// Explicit logits without a bias, scaled by 2, with the expected experts.
fn chosen(
    name: &str,
    logits: &'static [f64],
    op: GroupLimitedGate,
    want: &'static [f64],
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input(
            "logits",
            [1, logits.len()],
            InputFill::Values(logits.to_vec()),
        )?;
        let zeros = InputFill::Values(vec![0.0; logits.len()]);
        let bias = c.input("bias", [logits.len()], zeros)?;
        let y = c.graph.custom(op.clone(), &[x, bias])?;
        let numbers = c.graph.narrow(y, 1, 0, op.k)?;
        c.output_expect(numbers, want)?;
        // The sum of weights that contain a NaN is not checked.
        match logits.iter().any(|x| x.is_nan()) {
            true => Ok(()),
            false => c.output(y),
        }
    })
}

fn gates() -> Vec<OpCase> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let of = |groups, keep, k| GroupLimitedGate {
        groups,
        keep,
        k,
        ..GATE
    };
    vec![
        gate("gate_odd_7x20", [7, 20], GATE),
        gate("gate_of_256_experts", [3, 256], of(8, 4, 8)),
        gate("gate_one_group", [5, 9], of(1, 1, 4)),
        gate("gate_groups_of_one", [5, 6], of(6, 4, 2)),
        gate("gate_takes_all", [2, 6], of(3, 3, 6)),
        gate(
            "gate_more_groups_than_invocations",
            [2, 140],
            of(70, 66, 130),
        ),
        gate("gate_no_rows", [0, 8], GATE),
        // The second group has the largest expert; the first has the two next largest.
        chosen(
            "gate_by_the_best_two",
            &[2.0, 2.0, 3.0, -9.0],
            of(2, 1, 2),
            &[0.0, 1.0],
        ),
        chosen("gate_ties", &[0.5; 8], of(4, 2, 3), &[0.0, 1.0, 2.0]),
        chosen(
            "gate_nan_is_last",
            &[NAN, 1.0, NAN, 0.5, -INF, 2.0],
            of(1, 1, 6),
            &[5.0, 1.0, 3.0, 4.0, 0.0, 2.0],
        ),
        OpCase::new("gate_pinned", move |c| {
            let logits = InputFill::Values(vec![0.0, 0.0, 0.0, 0.0]);
            let logits = c.input("logits", [1, 4], logits)?;
            let bias = InputFill::Values(vec![0.0, 1.0, 3.0, 0.5]);
            let bias = c.input("bias", [4], bias)?;
            let op = GroupLimitedGate {
                scale: FloatAttr(3.0),
                ..of(2, 1, 2)
            };
            let y = c.graph.custom(op, &[logits, bias])?;
            c.output_expect(y, &[2.0, 3.0, 1.5, 1.5])
        }),
        OpCase::new("gate_symbolic_rows", |c| {
            let s = c.sym("s", 5, 130);
            let logits = c.input("logits", [s, 12.into()], InputFill::Normal)?;
            let bias = c.input("bias", [12], InputFill::Uniform(-0.5, 0.5))?;
            let y = c.graph.custom(GATE, &[logits, bias])?;
            c.output(y)
        }),
    ]
}

fn knns() -> Vec<OpCase> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let near = |name: &str, n: usize, k: usize| {
        OpCase::new(name, move |c| {
            let distances = c.input("distances", [n, n], InputFill::Uniform(-1.0, 9.0))?;
            let numbers = c.graph.custom(PairwiseKnn { k }, &[distances])?;
            c.output(numbers)?;
            c.output(numbers.port(1))
        })
    };
    vec![
        near("knn_odd_7", 7, 3),
        near("knn_more_points_than_invocations", 131, 5),
        near("knn_all_others", 9, 8),
        near("knn_more_than_others", 4, 6),
        near("knn_one_point", 1, 2),
        near("knn_no_points", 0, 2),
        near("knn_none", 5, 0),
        OpCase::new("knn_pinned", |c| {
            let rows = [
                [0.0, 2.0, 2.0, 1.0],
                [NAN, 0.0, INF, 5.0],
                [NAN, NAN, NAN, -0.0],
                [3.0, 0.0, -0.0, -7.0],
            ];
            let x = c.input("distances", [4, 4], InputFill::Values(rows.concat()))?;
            let numbers = c.graph.custom(PairwiseKnn { k: 3 }, &[x])?;
            let near = [1.0, 2.0, 2.0, 5.0, INF, NAN, 0.0, NAN, NAN, 0.0, 0.0, 3.0];
            c.output_expect(numbers, &[3., 1., 2., 3., 2., 0., 3., 0., 1., 1., 2., 0.])?;
            c.output_expect(numbers.port(1), &near)
        }),
        OpCase::new("knn_symbolic_of_a_view", |c| {
            let n = c.sym("n", 5, 70);
            let x = c.input("distances", [n.clone(), n], InputFill::Uniform(0.0, 9.0))?;
            let x = c.graph.transpose(x, &[1, 0])?;
            let numbers = c.graph.custom(PairwiseKnn { k: 4 }, &[x])?;
            c.output(numbers)?;
            c.output(numbers.port(1))
        }),
    ]
}

pub(super) fn cases() -> Vec<OpCase> {
    let mut all = gates();
    all.extend(knns());
    all
}

pub(super) fn rejects() -> Vec<RejectCase> {
    fn gated(g: &mut Graph, experts: [usize; 2], op: GroupLimitedGate) -> Result<Value, OpError> {
        let logits = g.input("logits", Type::new(DType::F32, [3, experts[0]]))?;
        let bias = g.input("bias", Type::new(DType::F32, [experts[1]]))?;
        g.custom(op, &[logits, bias])
    }
    vec![
        reject(
            "gate_groups",
            "10 experts are not a multiple of 4 groups",
            |g| gated(g, [10, 10], GATE),
        ),
        reject("gate_no_groups", "attribute `groups`", |g| {
            gated(g, [8, 8], GroupLimitedGate { groups: 0, ..GATE })
        }),
        reject("gate_keep", "5 is out of range for 4 groups", |g| {
            gated(g, [8, 8], GroupLimitedGate { keep: 5, ..GATE })
        }),
        reject("gate_k", "5 is out of range for 4 remaining experts", |g| {
            gated(g, [8, 8], GroupLimitedGate { k: 5, ..GATE })
        }),
        reject("gate_scale", "is not finite", |g| {
            let scale = FloatAttr(f64::NAN);
            gated(g, [8, 8], GroupLimitedGate { scale, ..GATE })
        }),
        reject(
            "gate_bias",
            "the experts of logits and bias: 8 and 7 differ",
            |g| gated(g, [8, 7], GATE),
        ),
        reject(
            "knn_square",
            "rows and columns of the distances: 4 and 5 differ",
            |g| {
                let x = g.input("x", Type::new(DType::F32, [4, 5]))?;
                g.custom(PairwiseKnn { k: 1 }, &[x])
            },
        ),
        reject("knn_dtype", "operand distances is f16", |g| {
            let x = g.input("x", Type::new(DType::F16, [4, 4]))?;
            g.custom(PairwiseKnn { k: 1 }, &[x])
        }),
        reject("knn_operands", "expected 1 operands, got 2", |g| {
            let x = g.input("x", Type::new(DType::F32, [4, 4]))?;
            g.custom(PairwiseKnn { k: 1 }, &[x, x])
        }),
    ]
}
