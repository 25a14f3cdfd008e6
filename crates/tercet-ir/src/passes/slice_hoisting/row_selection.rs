//! Row selections: which rows of an axis a slice or gather takes.

use tercet_tensor::{Dim, Shape, Tensor, Type};

use super::super::rewrite::Rewriter;
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::{GatherNd, Op, Reshape, Slice};

/// A selection counts as few rows if it takes at most one row in `MIN_AXIS_TO_SELECTED_RATIO` of an axis of known size.
const MIN_AXIS_TO_SELECTED_RATIO: usize = 2;

/// A selection of few rows of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowSelection {
    axis: usize,
    which: RowSelectionKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RowSelectionKind {
    /// A contiguous range of `len` rows, with the start and end of a slice.
    Range { start: i64, end: i64, len: usize },
    /// One row per entry of the preceding axes; this old value holds the row indices.
    Picked(Value),
}

impl RowSelection {
    /// The rows that a node selects; `None` if it does not select few rows of one axis.
    pub(super) fn by(graph: &Graph, node: &Node) -> Option<RowSelection> {
        let x = graph.ty(*node.inputs.first()?);
        match &node.op {
            Op::Slice(slice) => range(slice, &x.shape, &node.outputs[0].shape),
            Op::Gather(gather) => {
                let Op::Const(at) = &graph.node(node.inputs[1].node).op else {
                    return None;
                };
                one_of(&x.shape, gather.axis, &at.tensor)
            }
            Op::GatherNd(gather) => {
                let axis = gather.batch_dims;
                let idx = node.inputs[1];
                let shape = &graph.ty(idx).shape;
                // The index has one coordinate, and one row per entry of the preceding axes.
                let is_one = shape.rank() == axis + 1 && shape[axis].is_one();
                let few =
                    (x.shape.get(axis)?.known()).is_none_or(|n| n >= MIN_AXIS_TO_SELECTED_RATIO);
                let which = RowSelectionKind::Picked(idx);
                let fits = is_one && few && shape[..axis] == x.shape[..axis];
                fits.then_some(RowSelection { axis, which })
            }
            _ => None,
        }
    }

    /// The axis of the rows.
    pub(super) fn axis(&self) -> usize {
        self.axis
    }

    /// The same rows of another axis.
    pub(super) fn on(&self, axis: usize) -> RowSelection {
        let which = self.which.clone();
        RowSelection { axis, which }
    }

    /// Whether an index value selects a row for each entry of the preceding axes.
    pub(super) fn is_picked(&self) -> bool {
        matches!(self.which, RowSelectionKind::Picked(_))
    }

    /// Number of selected rows.
    pub(super) fn len(&self) -> usize {
        match self.which {
            RowSelectionKind::Range { len, .. } => len,
            RowSelectionKind::Picked(_) => 1,
        }
    }

    /// The shape of a value reduced to these rows.
    pub(super) fn shape(&self, whole: &Shape) -> Shape {
        let mut dims = whole.to_vec();
        dims[self.axis] = Dim::Known(self.len());
        dims.into()
    }

    /// Selects these rows of a new value; the rank does not change.
    pub(super) fn apply(&self, rw: &mut Rewriter<'_>, whole: Value) -> Result<Value, CompileError> {
        let shape = rw.new_graph().ty(whole).shape.clone();
        match self.which {
            RowSelectionKind::Range { start, end, .. } => {
                let mut slice = Slice {
                    starts: vec![0; shape.rank()],
                    ends: vec![i64::MAX; shape.rank()],
                    steps: vec![1; shape.rank()],
                };
                (slice.starts[self.axis], slice.ends[self.axis]) = (start, end);
                rw.add(slice, &[whole])
            }
            RowSelectionKind::Picked(idx) => {
                let idx = rw.leaf(idx)?;
                let batch_dims = self.axis;
                let row = rw.add(GatherNd { batch_dims }, &[whole, idx])?;
                let shape = self.shape(&shape);
                rw.add(Reshape { shape }, &[row])
            }
        }
    }

    /// Converts rows that still have their axis to the result type of the selecting node.
    pub(super) fn as_result(
        &self,
        rw: &mut Rewriter<'_>,
        rows: Value,
        ty: &Type,
    ) -> Result<Value, CompileError> {
        match rw.new_graph().ty(rows) == ty {
            true => Ok(rows),
            false => {
                let shape = ty.shape.clone();
                rw.add(Reshape { shape }, &[rows])
            }
        }
    }
}

/// The selection of one row at a constant index.
fn one_of(from: &Shape, axis: usize, at: &Tensor) -> Option<RowSelection> {
    let &[start] = &at.to_i64s()[..] else {
        return None;
    };
    let is_there = |n: usize| (-(n as i64)..n as i64).contains(&start);
    let few = from[axis]
        .known()
        .is_none_or(|n| n >= MIN_AXIS_TO_SELECTED_RATIO && is_there(n));
    let end = match start {
        -1 => i64::MAX,
        _ => start.checked_add(1)?,
    };
    let which = RowSelectionKind::Range { start, end, len: 1 };
    few.then_some(RowSelection { axis, which })
}

/// The rows of a slice along one axis.
fn range(slice: &Slice, from: &Shape, to: &Shape) -> Option<RowSelection> {
    let mut cut = (0..from.rank()).filter(|&i| from[i] != to[i]);
    let (axis, None) = (cut.next()?, cut.next()) else {
        return None;
    };
    let len = to[axis].known()?;
    let is_forward = slice.steps.iter().all(|step| *step == 1);
    let few = match from[axis].known() {
        Some(n) => n >= MIN_AXIS_TO_SELECTED_RATIO * len,
        // The axis may have only one row.
        None => len == 1,
    };
    let which = RowSelectionKind::Range {
        start: slice.starts[axis],
        end: slice.ends[axis],
        len,
    };
    (is_forward && few).then_some(RowSelection { axis, which })
}
