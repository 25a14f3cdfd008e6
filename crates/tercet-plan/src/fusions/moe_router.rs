//! Fusion of mixture-of-experts routers: softmax, top-k, and normalization of the selected weights.
//! One kernel computes the softmax, the top-k and the normalization; it ranks the elements of short
//! rows by counting larger elements.

use tercet_ir::ops::{Op, ReduceFn};
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{DType, NodeId, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};
use crate::lowerings::top_k;

/// A mixture-of-experts router: a `TopK` with optional softmax before it and optional normalization
/// of the selected weights after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterTopK {
    /// The softmax that computes the operand of the `TopK`.
    pub(crate) softmax: Option<NodeId>,
    pub(crate) top_k: NodeId,
    /// The node that sums the selected weights, and the node that divides the weights by the sum.
    pub(crate) normalization: Option<[NodeId; 2]>,
}

/// Finds mixture-of-experts routers on short F32 rows.
pub(super) fn find(flow: &UseDefGraph<'_>, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let Op::TopK(op) = &node.op else {
            continue;
        };
        let ty = flow.graph.ty(node.inputs[0]);
        let is_short = ty.shape[op.axis]
            .known()
            .is_some_and(top_k::fits_rank_kernel);
        if ty.dtype != DType::F32 || !is_short || op.k == 0 || flow.is_constant(id) || found.has(id)
        {
            continue;
        }
        let shares = shares(flow, id, op.axis).filter(|nodes| !nodes.iter().any(|n| found.has(*n)));
        let last = shares.map_or(id, |[_, div]| div);
        let softmax = softmax(flow, id, op.axis, last).filter(|n| !found.has(*n));
        let stays = softmax.is_some() || flow.are_unchanged_until(&node.inputs, last);
        let choice = RouterTopK {
            softmax,
            top_k: id,
            normalization: shares,
        };
        let some = softmax.is_some() || shares.is_some();
        if some && stays {
            let all = softmax
                .into_iter()
                .chain([id])
                .chain(shares.into_iter().flatten());
            found.deferred.extend(all.filter(|n| *n != last));
            found.groups.insert(last, FusionGroup::Choice(choice));
        }
    }
}

/// The softmax along `axis` that computes the operand of the top-k, if the top-k is its only reader
/// and it may be deferred until `last`.
fn softmax(flow: &UseDefGraph<'_>, top_k: NodeId, axis: usize, last: NodeId) -> Option<NodeId> {
    let of = flow.graph.node(top_k).inputs[0];
    let node = flow.graph.node(of.node);
    let Op::Softmax(op) = &node.op else {
        return None;
    };
    let may_wait = flow.is_only_reader(top_k, of)
        && !flow.is_constant(of.node)
        && flow.are_unchanged_until(&node.inputs, last);
    (op.axis == axis && may_wait).then_some(of.node)
}

/// The nodes that sum the selected elements along `axis` and divide by the sum. `None` if other
/// nodes read the sum or the selected elements, or read the indices before the division.
fn shares(flow: &UseDefGraph<'_>, top_k: NodeId, axis: usize) -> Option<[NodeId; 2]> {
    let top = first(top_k);
    let &[one, other] = flow.readers(top) else {
        return None;
    };
    let (sum, div) = (one.min(other), one.max(other));
    let (sum_node, div_node) = (flow.graph.node(sum), flow.graph.node(div));
    let is_sum = match &sum_node.op {
        Op::Reduce(op) => op.f == ReduceFn::Sum && op.axes == [axis] && op.keep_dim,
        _ => false,
    };
    let is_div = match &div_node.op {
        Op::Binary(op) => op.f == BinaryFn::Div && div_node.inputs == [top, first(sum)],
        _ => false,
    };
    let indices = Value {
        node: top_k,
        port: 1,
    };
    let is_last = flow.is_only_reader(div, first(sum)) && flow.is_read_after(indices, div, None);
    (is_sum && is_div && is_last).then_some([sum, div])
}
