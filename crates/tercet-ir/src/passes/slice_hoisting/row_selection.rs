//! Which rows are taken, and by what.

use super::super::rewrite::Rewriter;
use crate::dim::Dim;
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::{GatherNd, Op, Reshape, Slice};
use crate::tensor::Tensor;
use crate::types::{Shape, Type};

/// Of an axis of known size at most one in so many rows is few.
const FEW: usize = 2;

/// Few rows of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Taken {
    axis: usize,
    which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Which {
    /// From here on so many, as a slice says it.
    Range { start: i64, end: i64, len: usize },
    /// One of each entry of the axes before, at the place that this old value has for it.
    Picked(Value),
}

impl Taken {
    /// The rows that a node takes; none where it does not take few of one axis.
    pub(super) fn by(graph: &Graph, node: &Node) -> Option<Taken> {
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
                // One coordinate, and one place for each entry of the axes before.
                let is_one = shape.rank() == axis + 1 && shape[axis].is_one();
                let few = (x.shape.get(axis)?.known()).is_none_or(|n| n >= FEW);
                let which = Which::Picked(idx);
                let fits = is_one && few && shape[..axis] == x.shape[..axis];
                fits.then_some(Taken { axis, which })
            }
            _ => None,
        }
    }

    /// The axis.
    pub(super) fn axis(&self) -> usize {
        self.axis
    }

    /// The same rows of another axis.
    pub(super) fn on(&self, axis: usize) -> Taken {
        let which = self.which.clone();
        Taken { axis, which }
    }

    /// Whether the axes before say which rows are taken.
    pub(super) fn is_picked(&self) -> bool {
        matches!(self.which, Which::Picked(_))
    }

    /// How many rows they are.
    pub(super) fn len(&self) -> usize {
        match self.which {
            Which::Range { len, .. } => len,
            Which::Picked(_) => 1,
        }
    }

    /// The shape of what has these rows.
    pub(super) fn shape(&self, whole: &Shape) -> Shape {
        let mut dims = whole.to_vec();
        dims[self.axis] = Dim::Known(self.len());
        dims.into()
    }

    /// These rows of a new value, whose axes stay.
    pub(super) fn of(&self, rw: &mut Rewriter<'_>, whole: Value) -> Result<Value, CompileError> {
        let shape = rw.new_graph().ty(whole).shape.clone();
        match self.which {
            Which::Range { start, end, .. } => {
                let mut slice = Slice {
                    starts: vec![0; shape.rank()],
                    ends: vec![i64::MAX; shape.rank()],
                    steps: vec![1; shape.rank()],
                };
                (slice.starts[self.axis], slice.ends[self.axis]) = (start, end);
                rw.add(slice, &[whole])
            }
            Which::Picked(idx) => {
                let idx = rw.leaf(idx)?;
                let batch_dims = self.axis;
                let row = rw.add(GatherNd { batch_dims }, &[whole, idx])?;
                let shape = self.shape(&shape);
                rw.add(Reshape { shape }, &[row])
            }
        }
    }

    /// Rows, whose axis is still there, as the type of the result of the node that takes them.
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

/// The row at a place that is known.
fn one_of(from: &Shape, axis: usize, at: &Tensor) -> Option<Taken> {
    let &[start] = &at.to_i64s()[..] else {
        return None;
    };
    let is_there = |n: usize| (-(n as i64)..n as i64).contains(&start);
    let few = from[axis].known().is_none_or(|n| n >= FEW && is_there(n));
    let end = match start {
        -1 => i64::MAX,
        _ => start.checked_add(1)?,
    };
    let which = Which::Range { start, end, len: 1 };
    few.then_some(Taken { axis, which })
}

/// The rows of a slice along one axis.
fn range(slice: &Slice, from: &Shape, to: &Shape) -> Option<Taken> {
    let mut cut = (0..from.rank()).filter(|&i| from[i] != to[i]);
    let (axis, None) = (cut.next()?, cut.next()) else {
        return None;
    };
    let len = to[axis].known()?;
    let is_forward = slice.steps.iter().all(|step| *step == 1);
    let few = match from[axis].known() {
        Some(n) => n >= FEW * len,
        // There may be no more of them.
        None => len == 1,
    };
    let which = Which::Range {
        start: slice.starts[axis],
        end: slice.ends[axis],
        len,
    };
    (is_forward && few).then_some(Taken { axis, which })
}
