//! What computes the rows of an axis one by one.

use super::taken::Taken;
use crate::dim::Dim;
use crate::graph::{Graph, Node, Value};
use crate::ops::{Layout, MaskKind, Op, Reshape};
use crate::types::Shape;

/// Whether few rows of a result are worth it by themselves.
pub(super) fn is_heavy(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear(_) | Op::MatMul(_) | Op::DequantMatMul(_) | Op::Attention(_)
    )
}

/// Rows along this axis of the first operand of a node, and all of the others.
pub(super) fn first_of(node: &Node, axis: usize) -> Vec<Option<usize>> {
    let mut axes = vec![None; node.inputs.len()];
    axes[0] = Some(axis);
    axes
}

/// The axis of each operand along which these rows of the result need the same rows alone, none for operands that they need
/// all of; none where they do not follow from rows.
pub(super) fn rows_of(graph: &Graph, node: &Node, taken: &Taken) -> Option<Vec<Option<usize>>> {
    let [ty] = &node.outputs[..] else {
        return None;
    };
    let (axis, rank) = (taken.axis(), ty.rank());
    let shape = |v: &Value| &graph.ty(*v).shape;
    let first = |axis| first_of(node, axis);
    let axes = match &node.op {
        Op::Unary(_) | Op::Cast(_) | Op::Clamp(_) => first(axis),
        Op::Binary(_) | Op::Compare(_) | Op::Where(_) => {
            let own = |v: &Value| {
                let at = (axis + shape(v).rank()).checked_sub(rank)?;
                (!shape(v)[at].is_one()).then_some(at)
            };
            node.inputs.iter().map(own).collect()
        }
        Op::LayerNorm(norm) if axis < norm.axis => first(axis),
        Op::RmsNorm(_) | Op::Linear(_) | Op::DequantMatMul(_) if axis + 1 < rank => first(axis),
        Op::MatMul(_) if axis + 1 < rank && shape(&node.inputs[0]).rank() == rank => {
            let is_row = axis + 2 == rank || shape(&node.inputs[1]).rank() == 2;
            is_row.then(|| first(axis))?
        }
        Op::Reshape(_) => first(reshaped(&ty.shape, axis, shape(&node.inputs[0]))?),
        Op::Transpose(t) => first(t.perm[axis]),
        Op::Attention(a) => {
            let positions = match a.layout {
                Layout::Bshd => 1,
                Layout::Bhsd => 2,
            };
            let by_position = matches!(a.mask, MaskKind::Causal | MaskKind::Window(_));
            if axis != positions || by_position {
                return None;
            }
            let mut axes = first(axis);
            if matches!(a.mask, MaskKind::Keep | MaskKind::Bias) {
                let mask = shape(&node.inputs[3]);
                let queries = mask.rank().checked_sub(2).filter(|at| *at > 0);
                axes[3] = queries.filter(|at| !mask[*at].is_one());
            }
            axes
        }
        _ => return None,
    };
    // What is picked for each entry of the axes before is so for operands that have them.
    let is_same = |v: &Value, at: Option<usize>| {
        at.is_none_or(|at| at == axis && shape(v)[..at] == ty.shape[..at])
    };
    let mut operands = node.inputs.iter().zip(&axes);
    let follows = !taken.is_picked() || operands.all(|(v, at)| is_same(v, *at));
    follows.then_some(axes)
}

/// The axis that an axis of a reshaped value was before.
fn reshaped(to: &Shape, axis: usize, from: &Shape) -> Option<usize> {
    let wide = |dims: &[Dim]| -> Vec<Dim> {
        let wide = dims.iter().filter(|d| !d.is_one());
        wide.cloned().collect()
    };
    let before = wide(&to[..axis]);
    let is_it = |at: &usize| from[*at] == to[axis] && wide(&from[..*at]) == before;
    (0..from.rank()).find(is_it)
}

/// The operator of a node for these rows of its result.
pub(super) fn narrowed(node: &Node, taken: &Taken) -> Op {
    match &node.op {
        Op::Reshape(_) => {
            let shape = taken.shape(&node.outputs[0].shape);
            Reshape { shape }.into()
        }
        op => op.clone(),
    }
}
