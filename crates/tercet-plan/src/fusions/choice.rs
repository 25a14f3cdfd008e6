//! The greatest elements of a softmax, as routers of experts choose: the kernel that ranks short rows makes it on its way.

use tercet_ir::ops::Op;
use tercet_ir::{DType, NodeId};

use super::dataflow::{Dataflow, first};
use super::{Fusions, Group};
use crate::families::top_k;

/// Finds softmaxes of which only the first elements in order are read.
pub(super) fn find(flow: &Dataflow<'_>, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let Op::TopK(op) = &node.op else {
            continue;
        };
        let of = node.inputs[0];
        let Op::Softmax(softmax) = &flow.graph.node(of.node).op else {
            continue;
        };
        let ty = flow.graph.ty(of);
        let is_short = ty.shape[op.axis].known().is_some_and(top_k::is_short);
        let takes = softmax.axis == op.axis && ty.dtype == DType::F32 && is_short && op.k > 0;
        if takes && may_wait(flow, of.node, id) && !found.has(of.node) && !found.has(id) {
            found.deferred.insert(of.node);
            let group = Group::Choice { softmax: of.node };
            found.groups.insert(id, group);
        }
    }
}

/// True if only `last` reads the node, which then finds what the node reads as it was.
fn may_wait(flow: &Dataflow<'_>, node: NodeId, last: NodeId) -> bool {
    let inputs = &flow.graph.node(node).inputs;
    flow.is_only_reader(last, first(node))
        && !flow.is_constant(node)
        && flow.stay_until(inputs, last)
}
