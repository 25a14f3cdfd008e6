//! Row-wise operators: operators that compute each row of an axis independently.

use tercet_tensor::{Dim, Shape};

use super::row_selection::RowSelection;
use crate::graph::{Graph, Node, Value};
use crate::ops::{AttentionLayout, MaskKind, Op, Reshape};

/// Whether computing fewer rows of this operator is worth a rewrite.
pub(super) fn is_heavy(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear(_) | Op::MatMul(_) | Op::DequantMatMul(_) | Op::Attention(_)
    )
}

/// As [`rows_of`] for a node that needs only the selected rows (along `axis`) of its first operand,
/// and its other operands whole.
pub(super) fn rows_of_first_operand(node: &Node, axis: usize) -> Vec<Option<usize>> {
    let mut axes = vec![None; node.inputs.len()];
    axes[0] = Some(axis);
    axes
}

/// For each operand, the axis along which the node needs only the selected rows, or `None` if it
/// needs the whole operand. Returns `None` if the operator is not row-wise along the axis.
pub(super) fn rows_of(
    graph: &Graph,
    node: &Node,
    taken: &RowSelection,
) -> Option<Vec<Option<usize>>> {
    let [ty] = &node.outputs[..] else {
        return None;
    };
    let (axis, rank) = (taken.axis(), ty.rank());
    let shape = |v: &Value| &graph.ty(*v).shape;
    let first = |axis| rows_of_first_operand(node, axis);
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
                AttentionLayout::Bshd => 1,
                AttentionLayout::Bhsd => 2,
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
    // An index value that selects a row for each entry of the preceding axes applies only to
    // operands with the same preceding axes.
    let is_same = |v: &Value, at: Option<usize>| {
        at.is_none_or(|at| at == axis && shape(v)[..at] == ty.shape[..at])
    };
    let mut operands = node.inputs.iter().zip(&axes);
    let follows = !taken.is_picked() || operands.all(|(v, at)| is_same(v, *at));
    follows.then_some(axes)
}

/// The axis of the source of a reshape that corresponds to `axis` of the result.
fn reshaped(to: &Shape, axis: usize, from: &Shape) -> Option<usize> {
    let wide = |dims: &[Dim]| -> Vec<Dim> {
        let wide = dims.iter().filter(|d| !d.is_one());
        wide.cloned().collect()
    };
    let before = wide(&to[..axis]);
    let is_it = |at: &usize| from[*at] == to[axis] && wide(&from[..*at]) == before;
    (0..from.rank()).find(is_it)
}

/// The operator that computes only these rows of a node's result; its shape attributes are adapted.
pub(super) fn narrowed(node: &Node, taken: &RowSelection) -> Op {
    match &node.op {
        Op::Reshape(_) => {
            let shape = taken.shape(&node.outputs[0].shape);
            Reshape { shape }.into()
        }
        op => op.clone(),
    }
}
