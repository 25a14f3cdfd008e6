//! Slices with steps.
//!
//! Bounds are clamped as in Python. On an axis of symbolic size, a bound is a distance from the
//! start or from the end, and the size of the result is their difference. If the axis is too short
//! for that in a run (Python would clamp), the run fails.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{counted, exactly, expect_axis, pick, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};

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
        Dim::Sym(_) => distance.div_exact(&Dim::Known(step)),
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
                     give bounds from one end, or a step that divides it"
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

    fn cases() -> Vec<OpCase> {
        let mut all = known_cases();
        all.extend(symbolic_cases());
        all
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, n: Dim, start: i64, end: i64, step: i64) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [n]))?;
            g.slice(x, &[start], &[end], &[step])
        }
        vec![
            reject("zero_step", "the step of axis 0 is 0", |g| {
                build(g, Dim::Known(4), 0, 4, 0)
            }),
            reject("rank", "2 values for 1 axes", |g| {
                let x = g.input("x", Type::new(DType::F32, [4]))?;
                g.slice(x, &[0, 0], &[1], &[1])
            }),
            reject("symbolic_step", "is symbolic", |g| {
                build(g, Dim::sym("s"), 0, OPEN, 2)
            }),
            reject("symbolic_odd_rest", "is symbolic", |g| {
                let twice = Dim::sym("s").checked_mul(&Dim::Known(2));
                build(g, twice.unwrap_or(Dim::Known(0)), 1, OPEN, 2)
            }),
            reject("symbolic_mixed", "is symbolic", |g| {
                build(g, Dim::sym("s"), -3, 5, 1)
            }),
            reject("narrow_too_far", "elements 2..5 of axis 0 of size 4", |g| {
                let x = g.input("x", Type::new(DType::F32, [4]))?;
                g.narrow(x, 0, 2, 3)
            }),
            reject("narrow_overflows", "of axis 0 of size 4", |g| {
                let x = g.input("x", Type::new(DType::F32, [4]))?;
                g.narrow(x, 0, usize::MAX, 2)
            }),
            reject("reverse_axis", "axis 1 is out of range for rank 1", |g| {
                let x = g.input("x", Type::new(DType::F32, [4]))?;
                g.reverse(x, 1)
            }),
        ]
    }
}

const OPEN: i64 = i64::MAX;
const OPEN_BACK: i64 = i64::MIN;

/// A case that slices 0, 1, ... along one axis.
fn line(n: usize, start: i64, end: i64, step: i64, expected: &'static [f64]) -> OpCase {
    let spell = |at: i64| match at {
        OPEN => "open".to_string(),
        OPEN_BACK => "open_back".to_string(),
        at => at.to_string().replace('-', "m"),
    };
    let step_name = spell(step);
    let name = format!("{n}_from_{}_to_{}_by_{step_name}", spell(start), spell(end));
    OpCase::new(name, move |c| {
        let x = c.input("x", [n], counted(&[n]))?;
        let y = c.graph.slice(x, &[start], &[end], &[step])?;
        c.output_expect(y, expected)
    })
}

fn known_cases() -> Vec<OpCase> {
    vec![
        line(7, 1, 5, 1, &[1.0, 2.0, 3.0, 4.0]),
        line(7, 1, OPEN, 2, &[1.0, 3.0, 5.0]),
        line(7, 0, OPEN, 3, &[0.0, 3.0, 6.0]),
        line(7, -3, -1, 1, &[4.0, 5.0]),
        line(7, -100, 100, 1, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        line(7, 5, 2, 1, &[]),
        line(7, 9, OPEN, 1, &[]),
        line(7, OPEN, OPEN_BACK, -1, &[6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]),
        line(7, OPEN, OPEN_BACK, -4, &[6.0, 2.0]),
        line(7, -2, 1, -2, &[5.0, 3.0]),
        line(7, 100, -100, -3, &[6.0, 3.0, 0.0]),
        line(7, 3, OPEN_BACK, -1, &[3.0, 2.0, 1.0, 0.0]),
        line(7, 2, -1, -1, &[]),
        line(7, 6, OPEN, OPEN, &[6.0]),
        line(7, 0, OPEN_BACK, OPEN_BACK, &[0.0]),
        line(0, 0, OPEN, 1, &[]),
        line(0, OPEN, OPEN_BACK, -1, &[]),
        OpCase::new("odd_block_17x33", |c| {
            let x = c.input("x", [17, 33], InputFill::Special)?;
            let y = c.graph.slice(x, &[3, -1], &[-2, 4], &[2, -3])?;
            c.output(y)
        }),
        OpCase::new("rank_0", |c| {
            let x = c.input("x", [0usize; 0], InputFill::Special)?;
            let y = c.graph.slice(x, &[], &[], &[])?;
            c.output(y)
        }),
        OpCase::new("narrow_and_reverse", |c| {
            let x = c.input("x", [2, 4], counted(&[2, 4]))?;
            let y = c.graph.narrow(x, 1, 1, 2)?;
            let y = c.graph.reverse(y, 0)?;
            c.output_expect(y, &[5.0, 6.0, 1.0, 2.0])
        }),
    ]
}

fn symbolic_cases() -> Vec<OpCase> {
    let line =
        |name: &str, size: usize, start: i64, end: i64, step: i64, expected: &'static [f64]| {
            OpCase::new(name, move |c| {
                let s = c.sym("s", size, 9);
                let x = c.input("x", [s], counted(&[size]))?;
                let y = c.graph.slice(x, &[start], &[end], &[step])?;
                c.output_expect(y, expected)
            })
        };
    vec![
        line("symbolic_tail", 5, 2, OPEN, 1, &[2.0, 3.0, 4.0]),
        line("symbolic_inner", 5, 1, -1, 1, &[1.0, 2.0, 3.0]),
        line("symbolic_last", 5, -1, OPEN, 1, &[4.0]),
        line("symbolic_first", 5, 0, 2, 1, &[0.0, 1.0]),
        line("symbolic_reverse", 3, OPEN, OPEN_BACK, -1, &[2.0, 1.0, 0.0]),
        line("symbolic_reverse_tail", 4, -1, 0, -1, &[3.0, 2.0, 1.0]),
        line("symbolic_empty", 0, 0, OPEN, 1, &[]),
        OpCase::new("symbolic_halves", |c| {
            let s = c.sym("s", 3, 9);
            let twice = s.checked_mul(&Dim::Known(2));
            let twice = twice.expect("invariant: a small product does not overflow");
            c.input("rows", [s], InputFill::Normal)?;
            let x = c.input("x", [twice], counted(&[6]))?;
            let y = c.graph.slice(x, &[0], &[OPEN], &[2])?;
            c.output_expect(y, &[0.0, 2.0, 4.0])
        }),
        OpCase::new("symbolic_too_short", |c| {
            let s = c.sym("s", 2, 9);
            let x = c.input("x", [s], InputFill::Normal)?;
            let y = c.graph.slice(x, &[-3], &[OPEN], &[1])?;
            c.expect_fault("axis 0 has 2 elements in this run, too few for a slice of 3");
            c.output(y)
        }),
        OpCase::new("symbolic_below_zero", |c| {
            let s = c.sym("s", 2, 9);
            let x = c.input("x", [s], InputFill::Normal)?;
            let y = c.graph.slice(x, &[3], &[OPEN], &[1])?;
            c.expect_fault("is negative");
            c.output(y)
        }),
    ]
}

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
