//! Products of operands that were widened to F32 from 16 bits: products of their elements are the same in F32, so kernels
//! on matrices of the narrow dtype, which sum in F32, give the same answer from half the memory.

use std::collections::BTreeSet;

use tercet_ir::ops::Op;
use tercet_ir::{DType, NodeId, OpKind, Value};

use super::dataflow::{Dataflow, first};
use super::{Fusions, Group};
use crate::caps::{Caps, CoopType};

/// A product whose operands are read before they are widened.
#[derive(Clone, Debug)]
pub(crate) struct Widened {
    /// The left and the right operand.
    pub(crate) operands: [Narrow; 2],
}

/// An operand of 16 bits.
#[derive(Clone, Debug)]
pub(crate) struct Narrow {
    pub(crate) of: Value,
    /// The views between it and the product, in order.
    pub(crate) views: Vec<NodeId>,
    /// The cast among them.
    cast: NodeId,
}

/// Finds the products of a graph on a device that has such matrices.
pub(super) fn find(flow: &mut Dataflow<'_>, caps: &Caps, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let is_product = matches!(node.op, Op::MatMul(_)) && node.outputs[0].dtype == DType::F32;
        if !is_product || found.has(id) || flow.is_constant(id) {
            continue;
        }
        let [a, b] = [0, 1].map(|i| narrow(flow, found, node.inputs[i]));
        let (Some(a), Some(b)) = (a, b) else {
            continue;
        };
        let dtype = flow.graph.ty(a.of).dtype;
        let matrices = match dtype {
            DType::F16 => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => continue,
        };
        let has_them = caps.spirv && caps.coop.iter().any(|shape| shape.ty == matrices);
        let are_alike = flow.graph.ty(b.of).dtype == dtype;
        if !has_them || !are_alike || !flow.stay_until(&[a.of, b.of], id) {
            continue;
        }
        for (operand, given) in [&a, &b].into_iter().zip(&node.inputs) {
            flow.reads_instead(id, *given, &BTreeSet::from([operand.of]));
            // What nothing reads any more is not emitted.
            let chain = operand.views.iter().rev().chain([&operand.cast]);
            let mut chain: Vec<NodeId> = chain.copied().collect();
            chain.sort_unstable();
            for node in chain.into_iter().rev() {
                if flow.is_unread(first(node)) && !found.has(node) {
                    found.deferred.insert(node);
                    flow.forget_reader(node);
                }
            }
        }
        let product = Widened { operands: [a, b] };
        found.groups.insert(id, Group::Widened(product));
    }
}

/// What a value was before it was widened, seen through views.
fn narrow(flow: &Dataflow<'_>, found: &Fusions, v: Value) -> Option<Narrow> {
    let mut at = v;
    let (mut views, mut cast) = (Vec::new(), None);
    loop {
        let node = flow.graph.node(at.node);
        let of = *node.inputs.first()?;
        match node.op.kind() {
            OpKind::Transpose | OpKind::Reshape | OpKind::Expand => views.push(at.node),
            OpKind::Cast if flow.graph.ty(of).dtype.size_bytes() == 2 => {
                cast = Some(at.node);
            }
            _ => return None,
        }
        if found.has(at.node) && !found.is_deferred(at.node) {
            return None;
        }
        at = of;
        if let Some(cast) = cast {
            // Views before the cast are the value's own.
            views.reverse();
            return Some(Narrow {
                of: at,
                views,
                cast,
            });
        }
    }
}
