//! Slices with steps.
//!
//! Bounds are clamped as in Python. On an axis of symbolic size, a bound is a distance from the
//! start or from the end, and the size of the result is their difference. If the axis is too short
//! for that in a run (Python would clamp), the run fails.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_axis, pick};

attrs! {
    /// For each axis, the elements `start, start + step, ...` before `end`, as Python slices:
    /// negative bounds count from the end, bounds beyond the axis are clamped.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[5], &[0f32, 1.0, 2.0, 3.0, 4.0])?)?;
    /// // In Python: `x[4:0:-2]`.
    /// let y = g.slice(x, &[4], &[0], &[-2])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [4.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Slice {
        /// The first index of each axis; for negative steps `i64::MAX` is the last element.
        pub starts: Vec<i64>,
        /// The exclusive end of each axis; `i64::MAX` (for negative steps `i64::MIN`) is open.
        pub ends: Vec<i64>,
        /// The distance between elements, not 0; negative steps go backwards.
        pub steps: Vec<i64>,
    }
}

/// The elements that a slice takes from one axis.
///
/// ```
/// use tercet_ir::ops::SliceAxis;
/// let every_other = SliceAxis { start: 8, step: -2, len: 3 };
/// let indices: Vec<usize> = (0..every_other.len).map(|i| every_other.index(i)).collect();
/// assert_eq!(indices, [8, 6, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceAxis {
    /// The first index; 0 for an empty slice.
    pub start: usize,
    /// The distance between elements.
    pub step: i64,
    /// The number of elements.
    pub len: usize,
}

impl SliceAxis {
    /// The index of element `i`.
    pub fn index(&self, i: usize) -> usize {
        (self.start as i64 + self.step * i as i64) as usize
    }
}

/// Python's `slice(start, end, step).indices(n)`.
fn python_slice(start: i64, end: i64, step: i64, n: usize) -> SliceAxis {
    let n = n as i64;
    let (least, greatest) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |at: i64| {
        let at = if at < 0 { at.saturating_add(n) } else { at };
        at.clamp(least, greatest.max(least))
    };
    let (start, end) = (clamp(start), clamp(end));
    let distance = if step > 0 { end - start } else { start - end };
    let len = (distance.max(0) as u64).div_ceil(step.unsigned_abs()) as usize;
    let start = if len == 0 { 0 } else { start as usize };
    SliceAxis { start, step, len }
}

/// A bound on a symbolic axis: a distance from its start or from its end.
#[derive(Clone, Copy)]
enum SliceBound {
    FromStart(i128),
    FromEnd(i128),
}

impl SliceBound {
    fn new(at: i64, step: i64) -> SliceBound {
        match (at, step > 0) {
            (i64::MAX, true) => SliceBound::FromEnd(0),
            (i64::MAX, false) => SliceBound::FromEnd(1),
            (i64::MIN, true) => SliceBound::FromStart(0),
            (i64::MIN, false) => SliceBound::FromStart(-1),
            (at, _) if at < 0 => SliceBound::FromEnd(-i128::from(at)),
            (at, _) => SliceBound::FromStart(at.into()),
        }
    }
}

/// The size of a slice of a symbolic axis, if it is expressible as a dimension.
fn symbolic_len(start: i64, end: i64, step: i64, n: &Dim) -> Option<Dim> {
    let (start, end) = (SliceBound::new(start, step), SliceBound::new(end, step));
    let (low, high) = if step > 0 { (start, end) } else { (end, start) };
    let known = |n: i128| usize::try_from(n.max(0)).ok().map(Dim::Known);
    let distance = match (low, high) {
        (SliceBound::FromStart(a), SliceBound::FromStart(b)) => known(b - a),
        (SliceBound::FromEnd(a), SliceBound::FromEnd(b)) => known(a - b),
        (SliceBound::FromStart(a), SliceBound::FromEnd(b)) => n.checked_sub(&known(a + b)?),
        (SliceBound::FromEnd(_), SliceBound::FromStart(_)) => None,
    }?;
    let step = usize::try_from(step.unsigned_abs()).ok()?;
    match distance {
        Dim::Known(n) => Some(Dim::Known(n.div_ceil(step))),
        Dim::Sym(_) => {
            let rounded_up = distance.checked_add(&Dim::Known(step - 1))?;
            rounded_up.div_floor(step)
        }
    }
}

impl Slice {
    /// The elements that the slice takes from each axis of a tensor of these sizes, for a result of
    /// the sizes `expected`.
    ///
    /// # Errors
    /// [`EvalError::Data`] when an axis of symbolic size is too short for the slice.
    pub fn axes(&self, sizes: &[usize], expected: &[usize]) -> Result<Vec<SliceAxis>, EvalError> {
        let axis = |a: usize| {
            let taken = python_slice(self.starts[a], self.ends[a], self.steps[a], sizes[a]);
            if taken.len == expected[a] {
                return Ok(taken);
            }
            Err(EvalError::Data(format!(
                "axis {a} has {} elements in this run, too few for a slice of {}",
                sizes[a], expected[a]
            )))
        };
        (0..sizes.len()).map(axis).collect()
    }
}

impl OpSpec for Slice {
    const DOC: OpDoc = OpDoc {
        name: "slice",
        text: "For each axis, the elements `start, start + step, ...` before `end`, as Python \
               slices; negative steps reverse.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::slice);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let bad = |name, reason| TypeError::Attr { name, reason };
        for (name, list) in [
            ("starts", &self.starts),
            ("ends", &self.ends),
            ("steps", &self.steps),
        ] {
            if list.len() != x.rank() {
                let reason = format!("{} values for {} axes", list.len(), x.rank());
                return Err(bad(name, reason));
            }
        }
        let mut dims = Vec::with_capacity(x.rank());
        for (axis, n) in x.shape.iter().enumerate() {
            let (start, end, step) = (self.starts[axis], self.ends[axis], self.steps[axis]);
            if step == 0 {
                return Err(bad("steps", format!("the step of axis {axis} is 0")));
            }
            let len = match n.known() {
                Some(n) => Some(Dim::Known(python_slice(start, end, step, n).len)),
                None => symbolic_len(start, end, step, n),
            };
            dims.push(len.ok_or_else(|| {
                let reason = format!(
                    "the size of axis {axis}, {n}, is symbolic: {start}..{end} by {step} has no size; \
                     give both bounds from one end, or the lower one from the start"
                );
                bad("ends", reason)
            })?);
        }
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let axes = self.axes(operands[0].shape(), &results[0].shape)?;
        let strides = row_major_strides(operands[0].shape());
        let y = pick(operands[0], &results[0], |index| {
            let own = index.iter().zip(&axes).zip(&strides);
            own.map(|((&i, a), s)| a.index(i) * s).sum()
        })?;
        Ok(vec![y])
    }
}

const OPEN: i64 = i64::MAX;
const OPEN_BACK: i64 = i64::MIN;

impl Graph {
    /// For each axis of `x`, of any dtype, the elements `start, start + step, ...` before `end`, as
    /// Python slices. See [`Slice`] for open ends and symbolic sizes.
    ///
    /// # Errors
    /// [`OpError`] when a list does not have one value for each axis, or a step is 0. [`OpError`]
    /// also when the size of a slice of a symbolic axis is not expressible as a dimension.
    pub fn slice(
        &mut self,
        x: Value,
        starts: &[i64],
        ends: &[i64],
        steps: &[i64],
    ) -> Result<Value, OpError> {
        let slice = Slice {
            starts: starts.to_vec(),
            ends: ends.to_vec(),
            steps: steps.to_vec(),
        };
        self.add(slice, &[x])
    }

    /// The elements `start..start + len` of one axis.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range, or the elements exceed a known size.
    pub fn narrow(
        &mut self,
        x: Value,
        axis: usize,
        start: usize,
        len: usize,
    ) -> Result<Value, OpError> {
        let dims = self.dims_of(x);
        let refused = |g: &Graph, source| g.attr_error(Slice::DOC.name, x, source);
        expect_axis(axis, dims.len()).map_err(|e| refused(self, e))?;
        let size = &dims[axis];
        let end = start
            .checked_add(len)
            .filter(|&end| end < i64::MAX as usize);
        let Some(end) = end.filter(|&end| size.known().is_none_or(|n| end <= n)) else {
            let end = start.saturating_add(len);
            let reason =
                format!("elements {start}..{end} of axis {axis} of size {size} do not exist");
            return Err(refused(self, TypeError::Other(reason)));
        };
        self.slice_axis(x, axis, start as i64, end as i64, 1)
    }

    /// `x` with one axis reversed.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range.
    pub fn reverse(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        self.slice_axis(x, axis, OPEN, OPEN_BACK, -1)
    }

    /// A slice of one axis, by the rules of [`Graph::slice`].
    ///
    /// # Errors
    /// [`OpError`] as [`Graph::slice`], or when `axis` is out of range.
    pub fn slice_axis(
        &mut self,
        x: Value,
        axis: usize,
        start: i64,
        end: i64,
        step: i64,
    ) -> Result<Value, OpError> {
        let rank = self.dims_of(x).len();
        expect_axis(axis, rank).map_err(|e| self.attr_error(Slice::DOC.name, x, e))?;
        let (mut starts, mut ends, mut steps) = (vec![0; rank], vec![OPEN; rank], vec![1; rank]);
        (starts[axis], ends[axis], steps[axis]) = (start, end, step);
        self.slice(x, &starts, &ends, &steps)
    }
}
