//! Tests that partitioned graphs give the same results as unpartitioned ones, for every test case
//! of every operator, under several small binding limits.

use std::collections::{BTreeMap, BTreeSet};

use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::layout::is_view;
use tercet_ir::{DType, EvalCtx, Graph, OpKind, Tensor, evaluate};
use tercet_plan::DeviceCaps;
use tercet_plan::internals::binding_limit::{PartitionedValues, bytes_of, full, over, split};

/// Pairs of binding limit and offset alignment, in bytes. With these limits, a partition contains a
/// few rows of a test tensor, a few elements, or most of the tensor.
const LIMITS: [(u64, u32); 3] = [(96, 16), (32, 4), (400, 4)];
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::I32, DType::Bool];
/// Maximum number of partitions per value, to limit the run time.
const MAX_PARTS: u64 = 64;

fn caps((max_binding_bytes, storage_align_bytes): (u64, u32)) -> DeviceCaps {
    DeviceCaps {
        max_binding_bytes,
        storage_align_bytes,
        ..DeviceCaps::browser()
    }
}

/// True if some node of the rewritten graph would require a kernel to bind a value above the limit.
fn is_refused(graph: &Graph, caps: &DeviceCaps) -> bool {
    let parts = PartitionedValues::new(graph, caps);
    let in_parts = |id| parts.has_leaf(id) || parts.is_elided_concat(id);
    graph.nodes().any(|(id, node)| {
        let is_placed = !is_view(node.op.kind()) && !in_parts(id);
        is_placed && node.outputs.iter().any(|t| over(t, caps))
    })
}

/// Outputs and new state values of a run of the graph; `None` if the run fails.
fn results(graph: &Graph, leaves: &BTreeMap<String, Tensor>) -> Option<Vec<Tensor>> {
    let values = evaluate(graph, &EvalCtx::default(), leaves).ok()?;
    Some(graph.results().map(|v| values.get(v).clone()).collect())
}

/// Size in bytes of the largest value of the graph.
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
        for case in tercet_cases::cases(kind) {
            for dtype in DTYPES {
                if !kind.doc().dtypes.contains(&dtype) || !case.runs_with(dtype) {
                    continue;
                }
                let built = case.build(dtype).expect("cases build");
                let mut want = None;
                for limit in LIMITS {
                    let caps = caps(limit);
                    if greatest(&built.graph) > limit.0 * MAX_PARTS {
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

/// Operators for which at least one test case was partitioned.
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
