//! Cast elision before matmuls: a matmul of operands cast from 16 bits to F32 reads the 16-bit
//! operands directly. Products of 16-bit elements are exact in F32. Cooperative-matrix kernels with
//! 16-bit operands accumulate in F32, so they give the same result as an F32 matmul with half the
//! memory traffic.

use std::collections::BTreeSet;

use tercet_ir::ops::Op;
use tercet_ir::{DType, NodeId, OpKind, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};
use crate::caps::DeviceCaps;

/// A matmul that reads its 16-bit operands directly instead of their casts to F32.
#[derive(Clone, Debug)]
pub(crate) struct UncastMatMul {
    /// The left and the right operand of the matmul, before their casts.
    pub(crate) operands: [UncastOperand; 2],
}

/// A 16-bit operand.
#[derive(Clone, Debug)]
pub(crate) struct UncastOperand {
    pub(crate) of: Value,
    /// View operators between the cast and the matmul, in graph order.
    pub(crate) views: Vec<NodeId>,
    /// The elided cast.
    cast: NodeId,
}

/// Finds matmuls whose operands are both cast from the same 16-bit type to F32, if the device has
/// cooperative matrices of this type.
pub(super) fn find(flow: &mut UseDefGraph<'_>, caps: &DeviceCaps, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let is_product = matches!(node.op, Op::MatMul(_)) && node.outputs[0].dtype == DType::F32;
        if !is_product || found.has(id) || flow.is_constant(id) {
            continue;
        }
        let [a, b] = [0, 1].map(|i| before_upcast(flow, found, node.inputs[i]));
        let (Some(a), Some(b)) = (a, b) else {
            continue;
        };
        let dtype = flow.graph.ty(a.of).dtype;
        let has_them = caps.coop_matmul_dtypes().contains(&dtype);
        let are_alike = flow.graph.ty(b.of).dtype == dtype;
        if !has_them || !are_alike || !flow.are_unchanged_until(&[a.of, b.of], id) {
            continue;
        }
        for (operand, given) in [&a, &b].into_iter().zip(&node.inputs) {
            flow.replace_read(id, *given, &BTreeSet::from([operand.of]));
            // Casts and view operators that no other node reads are not emitted.
            let chain = operand.views.iter().rev().chain([&operand.cast]);
            let mut chain: Vec<NodeId> = chain.copied().collect();
            chain.sort_unstable();
            for node in chain.into_iter().rev() {
                if flow.is_unread(first(node)) && !found.has(node) {
                    found.deferred.insert(node);
                    flow.remove_reader(node);
                }
            }
        }
        let product = UncastMatMul { operands: [a, b] };
        found.groups.insert(id, FusionGroup::UncastMatMul(product));
    }
}

/// The 16-bit value that `v` is computed from by a cast and view operators; `None` if there is no
/// such cast.
fn before_upcast(flow: &UseDefGraph<'_>, found: &Fusions, v: Value) -> Option<UncastOperand> {
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
            // View operators before the cast are irrelevant: the matmul reads their result as its
            // 16-bit operand.
            views.reverse();
            return Some(UncastOperand {
                of: at,
                views,
                cast,
            });
        }
    }
}
