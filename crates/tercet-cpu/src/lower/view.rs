//! Operators that only change how their operand is looked at.

use tercet_ir::ops::Slice;
use tercet_ir::{Dim, EvalError, Node, Op, Type};

use crate::layout::{Cut, SymLayout};

/// What becomes of a view operator.
pub(crate) enum View {
    /// The result is the operand's memory under another layout.
    Free(SymLayout),
    /// The operand must be made dense first.
    NeedsDense,
}

/// Refuses the sizes of a run for which a view does not exist.
pub(crate) type Check = Box<dyn Fn(&[usize], &[usize]) -> Result<(), EvalError> + Send + Sync>;

/// The layout of the result of a view operator over an operand of this type and layout.
pub(crate) fn view_of(node: &Node, operand: &Type, from: &SymLayout) -> View {
    let to = &node.outputs[0].shape;
    let view = match &node.op {
        Op::Transpose(o) => Some(from.transpose(&o.perm)),
        Op::Expand(_) => from.expand(to),
        Op::Slice(o) => cuts(o, operand, to).and_then(|cuts| from.slice(&cuts, to)),
        _ => from.reshape(to),
    };
    view.map_or(View::NeedsDense, View::Free)
}

/// What must hold of the sizes of a run for the view to exist: only slices of symbolic axes ask.
pub(crate) fn check_of(node: &Node, operand: &Type) -> Option<Check> {
    match &node.op {
        Op::Slice(o) if operand.shape.as_known().is_none() => {
            let slice = o.clone();
            Some(Box::new(move |from, to| slice.axes(from, to).map(|_| ())))
        }
        _ => None,
    }
}

/// Start and step of each axis; `None` when a start cannot be written.
fn cuts(slice: &Slice, operand: &Type, to: &[Dim]) -> Option<Vec<Cut>> {
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
        Some(Cut { start, step })
    };
    (0..operand.rank()).map(axis).collect()
}
