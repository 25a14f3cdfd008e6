//! View operators, which change only the layout of their operand.

use tercet_tensor::{Dim, Type};

use super::{AxisSlice, SymLayout};
use crate::graph::Node;
use crate::ops::{Op, OpKind, Slice};

/// How a view operator is executed.
///
/// ```
/// use tercet_ir::layout::{SymLayout, ViewLowering, view_of};
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
/// let t = g.transpose(x, &[1, 0])?;
/// let flat = g.reshape(t, [6usize])?;
/// let dense = SymLayout::dense(&g.ty(x).shape).expect("the strides do not overflow");
/// let ViewLowering::Free(view) = view_of(g.node(t.node), g.ty(x), &dense) else {
///     panic!("a transpose copies nothing");
/// };
/// let lowering = view_of(g.node(flat.node), g.ty(t), &view);
/// assert!(matches!(lowering, ViewLowering::NeedsDense));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
pub enum ViewLowering {
    /// The result is the operand's memory with another layout.
    Free(SymLayout),
    /// The operand must be copied to a dense layout first.
    NeedsDense,
}

/// True for operators that only change the layout of their operand.
pub fn is_view(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Reshape | OpKind::Transpose | OpKind::Slice | OpKind::Expand
    )
}

/// The layout of the result of a view operator, for an operand of this type and layout.
pub fn view_of(node: &Node, operand: &Type, from: &SymLayout) -> ViewLowering {
    let to = &node.outputs[0].shape;
    let view = match &node.op {
        Op::Transpose(o) => Some(from.transpose(&o.perm)),
        Op::Expand(_) => from.expand(to),
        Op::Slice(o) => cuts(o, operand, to).and_then(|cuts| from.slice(&cuts, to)),
        _ => from.reshape(to),
    };
    view.map_or(ViewLowering::NeedsDense, ViewLowering::Free)
}

/// The slice, if its sizes must be checked at each run. Only slices of symbolic axes can be invalid
/// for some sizes; [`Slice::axes`] checks them.
pub fn check_slice<'a>(node: &'a Node, operand: &Type) -> Option<&'a Slice> {
    match &node.op {
        Op::Slice(o) if operand.shape.as_known().is_none() => Some(o),
        _ => None,
    }
}

/// Start and step of each axis; `None` if a start is not expressible as a dimension.
fn cuts(slice: &Slice, operand: &Type, to: &[Dim]) -> Option<Vec<AxisSlice>> {
    let axis = |a: usize| {
        let (start, step) = (slice.starts[a], slice.steps[a]);
        let back = |k: usize| operand.shape[a].checked_sub(&Dim::Known(k));
        let start = match (&operand.shape[a], start) {
            (Dim::Known(n), start) => {
                let one = Slice {
                    starts: vec![start],
                    ends: vec![slice.ends[a]],
                    steps: vec![step],
                };
                let axes = one.axes(&[*n], &[to[a].known()?]).ok()?;
                Dim::Known(axes[0].start)
            }
            (Dim::Sym(_), i64::MIN) => Dim::Known(0),
            (Dim::Sym(_), i64::MAX) => back(1)?,
            (Dim::Sym(_), start) if start < 0 => back(usize::try_from(start.unsigned_abs()).ok()?)?,
            (Dim::Sym(_), start) => Dim::Known(usize::try_from(start).ok()?),
        };
        Some(AxisSlice { start, step })
    };
    (0..operand.rank()).map(axis).collect()
}
