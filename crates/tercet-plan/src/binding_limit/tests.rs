//! Graphs in parts mean what they mean whole: every case of every operator, under limits that cut what it has.

use std::collections::{BTreeMap, BTreeSet};

use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{DType, EvalCtx, Graph, OpKind, Tensor, evaluate};

use super::parts::Parts;
use super::range::full;
use super::{bytes_of, is_view, over, split};
use crate::caps::Caps;

/// What a binding reaches (a few rows of a case, a few elements, most of it) and where one may begin.
const LIMITS: [(u64, u32); 3] = [(96, 16), (32, 4), (400, 4)];
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::I32, DType::Bool];
/// More parts of one value would only take long.
const MOST_PARTS: u64 = 64;

fn caps((max_binding_bytes, storage_align_bytes): (u64, u32)) -> Caps {
    Caps {
        max_binding_bytes,
        storage_align_bytes,
        ..Caps::browser()
    }
}

/// True if some kernel would have to bind what is above the limit.
fn is_refused(graph: &Graph, caps: &Caps) -> bool {
    let parts = Parts::of(graph, caps);
    let in_parts = |id| parts.has_leaf(id) || parts.is_joined(id);
    graph.nodes().any(|(id, node)| {
        let is_placed = !is_view(node.op.kind()) && !in_parts(id);
        is_placed && node.outputs.iter().any(|t| over(t, caps))
    })
}

/// Outputs and what states are assigned; `None` where the run fails.
fn results(graph: &Graph, leaves: &BTreeMap<String, Tensor>) -> Option<Vec<Tensor>> {
    let values = evaluate(graph, &EvalCtx::default(), leaves).ok()?;
    Some(graph.results().map(|v| values.get(v).clone()).collect())
}

/// The bytes of the largest value.
fn greatest(graph: &Graph) -> u64 {
    let types = graph.nodes().flat_map(|(_, node)| &node.outputs);
    let known = types.filter_map(|t| Some(bytes_of(t.dtype, &full(&t.shape.as_known()?))));
    known.max().unwrap_or(0)
}

#[test]
fn parts_of_every_case_are_the_whole() {
    let mut cut = BTreeSet::new();
    for &kind in OpKind::ALL {
        let name = kind.doc().name;
        for case in kind.cases() {
            for dtype in DTYPES {
                if !kind.doc().dtypes.contains(&dtype) || !case.runs_with(dtype) {
                    continue;
                }
                let built = case.build(dtype).expect("cases build");
                let mut want = None;
                for limit in LIMITS {
                    let caps = caps(limit);
                    if greatest(&built.graph) > limit.0 * MOST_PARTS {
                        continue;
                    }
                    let Some(graph) = split(&built.graph, &caps).expect("operators take parts")
                    else {
                        continue;
                    };
                    let context = format!("{name}/{}/{dtype} within {limit:?}", case.name);
                    let want = want.get_or_insert_with(|| results(&built.graph, &built.tensors));
                    let got = results(&graph, &built.tensors);
                    assert_eq!(want.is_some(), got.is_some(), "{context}");
                    let pairs = want.iter().flatten().zip(got.iter().flatten());
                    for (want, got) in pairs {
                        assert_eq!(want.ty(), got.ty(), "{context}");
                        let class = kind.doc().accuracy.max(Accuracy::Elementwise);
                        if let Some(off) = furthest(class, got, want) {
                            assert!(off.units <= 1.0, "{context}: {off}\n{graph}");
                        }
                    }
                    if !is_refused(&graph, &caps) {
                        cut.insert(name);
                    }
                }
            }
        }
    }
    let missing: Vec<&str> = ALLOWED
        .iter()
        .copied()
        .filter(|op| !cut.contains(op))
        .collect();
    assert_eq!(missing, [""; 0], "of {cut:?}");
}

/// Operators that some case has in parts.
const ALLOWED: &[&str] = &[
    "unary",
    "binary",
    "compare",
    "where",
    "fma",
    "clamp",
    "cast",
    "map",
    "reshape",
    "transpose",
    "slice",
    "concat",
    "expand",
    "gather",
    "one_hot",
    "top_k",
    "arg_max",
    "softmax",
    "cum_sum",
    "reduce",
    "layer_norm",
    "rms_norm",
    "mat_mul",
    "linear",
];
