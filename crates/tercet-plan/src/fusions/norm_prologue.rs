//! Fusion of norms into a GEMV: if a GEMV with weights contiguous along n is the only reader of the
//! norm of a single row, its kernel computes the norm first (`lowerings/matmul/normed.rs`).

use tercet_ir::ops::Op;
use tercet_ir::{Dim, NodeId, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};

/// Finds layer norms, with or without a residual sum before them, whose result is the single row of
/// a matmul.
pub(super) fn find(flow: &UseDefGraph<'_>, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        if !matches!(node.op, Op::MatMul(_) | Op::Linear(_)) || found.has(id) {
            continue;
        }
        let of = node.inputs[0];
        if is_row_times_matrix(flow, id) && can_absorb_norm(flow, found, of, id) {
            found.deferred.insert(of.node);
            found
                .groups
                .insert(id, FusionGroup::Normed { norm: of.node });
        }
    }
}

fn is_row_times_matrix(flow: &UseDefGraph<'_>, id: NodeId) -> bool {
    let node = flow.graph.node(id);
    let (x, w) = (flow.graph.ty(node.inputs[0]), flow.graph.ty(node.inputs[1]));
    let lead = &x.shape[..x.rank().saturating_sub(1)];
    x.dtype.is_float() && w.rank() == 2 && x.rank() >= 2 && lead.iter().all(Dim::is_one)
}

/// True if the value is a norm that only this matmul reads, and that may be deferred until the
/// matmul is emitted.
fn can_absorb_norm(flow: &UseDefGraph<'_>, found: &Fusions, of: Value, product: NodeId) -> bool {
    let norm = flow.graph.node(of.node);
    let rank = norm.outputs[0].shape.rank();
    let fits = match &norm.op {
        Op::LayerNorm(op) => op.axis + 1 == rank,
        // The fused kernel has no binding for a bias that is added to the residual sum.
        Op::ResidualLayerNorm(_) => norm.inputs.len() <= 4,
        _ => false,
    };
    let sum = Value { port: 1, ..of };
    let is_sum_later = norm.outputs.len() < 2
        || (flow.is_read_after(sum, product, None) && !flow.in_place.contains_key(&sum));
    fits && of == first(of.node)
        && flow.is_only_reader(product, of)
        && !flow.is_constant(of.node)
        && !found.has(of.node)
        && !flow.in_place.contains_key(&first(product))
        && flow.are_unchanged_until(&norm.inputs, product)
        && is_sum_later
}
