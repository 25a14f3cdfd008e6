//! `Map`: a fused elementwise region.
//!
//! A list of scalar steps is evaluated once for each element of one output shape. Every operand is
//! read through an [`IndexMap`], so broadcasts, transposes, slices and nearest upsampling need no
//! copy. Fusion creates maps; users may also build them directly.
//!
//! Invariants: every step rounds to its dtype. A fused and an unfused graph therefore give the same
//! bits if the functions are exact. Type inference proves that every index of a map is inside its
//! operand, so evaluation needs no bounds check.

mod text;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{for_each_index, from_scalars, scalars};
use crate::scalar::{Scalar, ScalarOp};

/// The index along one axis of an operand as a function of the result's index: `start + step *
/// (out[from] >> shift)`.
///
/// ```
/// use tercet_ir::ops::AxisMap;
/// assert_eq!(AxisMap::axis(1).index(&[4, 7]), 7);
/// assert_eq!(AxisMap::constant(0).index(&[4, 7]), 0);
/// let reversed = AxisMap { from: Some(0), start: 9, step: -1, shift: 0 };
/// assert_eq!(reversed.index(&[4, 7]), 5);
/// let upsampled = AxisMap { shift: 1, ..AxisMap::axis(1) };
/// assert_eq!(upsampled.index(&[4, 7]), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisMap {
    /// The axis of the result; `None` for the constant index `start` (then `step` and `shift` are
    /// zero).
    pub from: Option<usize>,
    /// The index for result index zero.
    pub start: i64,
    /// The distance between successive indices; negative steps go backwards.
    pub step: i64,
    /// Each index repeats `2^shift` times: 1 is nearest-2x upsampling.
    pub shift: u8,
}

impl AxisMap {
    /// The axis `from` of the result, unchanged.
    pub const fn axis(from: usize) -> AxisMap {
        AxisMap {
            from: Some(from),
            start: 0,
            step: 1,
            shift: 0,
        }
    }

    /// A constant index; 0 is a broadcast of an axis of size 1.
    pub const fn constant(start: i64) -> AxisMap {
        AxisMap {
            from: None,
            start,
            step: 0,
            shift: 0,
        }
    }

    /// The index along the operand's axis for an index of the result.
    pub fn index(&self, out: &[usize]) -> i64 {
        match self.from {
            Some(axis) => self.start + self.step * (out[axis] >> self.shift) as i64,
            None => self.start,
        }
    }
}

/// The index map of an operand of a [`Map`]: one [`AxisMap`] for each axis of the operand.
///
/// ```
/// use tercet_ir::{Dim, ops::{AxisMap, IndexMap}};
/// let (row, matrix) = ([Dim::Known(1), Dim::Known(3)], [Dim::Known(2), Dim::Known(3)]);
/// let map = IndexMap::broadcast(&row, &matrix);
/// assert_eq!(map.axes, [AxisMap::constant(0), AxisMap::axis(1)]);
/// assert!(IndexMap::identity(2).is_identity(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexMap {
    /// One entry for each axis of the operand.
    pub axes: Vec<AxisMap>,
}

impl IndexMap {
    /// The identity map, for an operand of the result's shape.
    pub fn identity(rank: usize) -> IndexMap {
        IndexMap {
            axes: (0..rank).map(AxisMap::axis).collect(),
        }
    }

    /// The NumPy broadcast of an operand of shape `from` to a result of shape `to`. The caller must
    /// ensure that the shapes broadcast.
    pub fn broadcast(from: &[Dim], to: &[Dim]) -> IndexMap {
        let missing = to.len() - from.len();
        let axis = |(i, d): (usize, &Dim)| match d.is_one() {
            true => AxisMap::constant(0),
            false => AxisMap::axis(i + missing),
        };
        IndexMap {
            axes: from.iter().enumerate().map(axis).collect(),
        }
    }

    /// True if element `i` of a result of rank `rank` reads element `i` of the operand.
    pub fn is_identity(&self, rank: usize) -> bool {
        self.axes.len() == rank
            && self
                .axes
                .iter()
                .enumerate()
                .all(|(i, a)| *a == AxisMap::axis(i))
    }
}

/// An argument of a [`MapStep`].
///
/// ```
/// use tercet_ir::ops::{MapArg, MapStep};
/// use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};
/// // exp(i0) + i1
/// let exp = MapStep::new(ScalarOp::Unary(UnaryFn::Exp), [MapArg::Input(0)]);
/// let sum = MapStep::new(ScalarOp::Binary(BinaryFn::Add), [MapArg::Step(0), MapArg::Input(1)]);
/// assert_eq!((exp.args.len(), sum.args.len()), (exp.op.arity(), sum.op.arity()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapArg {
    /// An element of an operand of the map.
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// One step of a [`Map`].
///
/// ```
/// use tercet_ir::ops::{MapArg, MapStep};
/// use tercet_ir::scalar::{BinaryFn, ScalarOp};
/// let x = MapArg::Input(0);
/// let square = MapStep::new(ScalarOp::Binary(BinaryFn::Mul), [x, x]);
/// assert_eq!(square.args.len(), square.op.arity());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapStep {
    /// The scalar function.
    pub op: ScalarOp,
    /// The arguments; their number is [`ScalarOp::arity`].
    pub args: Vec<MapArg>,
}

impl MapStep {
    /// A step with this function and these arguments.
    pub fn new(op: ScalarOp, args: impl Into<Vec<MapArg>>) -> MapStep {
        MapStep {
            op,
            args: args.into(),
        }
    }
}

attrs! {
    /// A fused elementwise region: for each element of `shape`, the steps of `body` in order.
    ///
    /// ```
    /// use tercet_ir::ops::{IndexMap, Map, MapArg, MapStep};
    /// use tercet_ir::scalar::{BinaryFn, ScalarOp};
    /// use tercet_ir::{DType, Graph, Shape, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [3]))?;
    /// let shape = Shape::known(&[2, 3]);
    /// let inputs = vec![IndexMap::identity(2), IndexMap::broadcast(&g.ty(bias).shape, &shape)];
    /// let add = ScalarOp::Binary(BinaryFn::Add);
    /// let body = vec![MapStep::new(add, [MapArg::Input(0), MapArg::Input(1)])];
    /// let y = g.map(Map { shape, inputs, body, results: vec![0] }, &[x, bias])?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Map {
        /// The shape of every result.
        pub shape: Shape,
        /// The index map of each operand.
        pub inputs: Vec<IndexMap>,
        /// The steps; their arguments are operands and earlier steps.
        pub body: Vec<MapStep>,
        /// The indices of the steps that are results, in order.
        pub results: Vec<usize>,
    }
}

fn bad(name: &'static str, reason: String) -> TypeError {
    TypeError::Attr { name, reason }
}

impl Map {
    /// The dtype of every step, for operands of these dtypes.
    ///
    /// # Errors
    /// [`TypeError`] when a step refers to an operand or step that does not exist, or does not
    /// support its operands' dtypes.
    pub fn step_dtypes(&self, inputs: &[DType]) -> Result<Vec<DType>, TypeError> {
        let mut done: Vec<DType> = Vec::with_capacity(self.body.len());
        for (at, step) in self.body.iter().enumerate() {
            let of = |arg: &MapArg| match *arg {
                MapArg::Input(i) => inputs.get(i).copied().ok_or_else(|| {
                    let n = inputs.len();
                    bad("body", format!("step s{at} reads operand i{i} of {n}"))
                }),
                MapArg::Step(s) => done.get(s).copied().ok_or_else(|| {
                    let reason = format!("step s{at} reads s{s}, which is not an earlier step");
                    bad("body", reason)
                }),
            };
            let args: Result<Vec<DType>, TypeError> = step.args.iter().map(of).collect();
            let dtype = step.op.infer(&args?);
            done.push(dtype.map_err(|e| bad("body", format!("step s{at}: {e}")))?);
        }
        Ok(done)
    }

    /// Checks that an index map stays inside its operand.
    fn check_input(&self, i: usize, ty: &Type) -> Result<(), TypeError> {
        let map = &self.inputs[i];
        if map.axes.len() != ty.rank() {
            let (n, rank) = (map.axes.len(), ty.rank());
            let reason =
                format!("the index map of operand i{i} has {n} axes, its type {ty} {rank}");
            return Err(bad("inputs", reason));
        }
        let reads_nothing = self.shape.contains(&Dim::Known(0));
        for (axis, (m, n)) in map.axes.iter().zip(ty.shape.iter()).enumerate() {
            let fail = |why: &str| {
                let reason = format!("axis {axis} of operand i{i}, of size {n}: {why}");
                Err(bad("inputs", reason))
            };
            let count = match m.from {
                None if m.step != 0 || m.shift != 0 => {
                    return fail("a constant index has step 0 and shift 0");
                }
                None => Some(Dim::Known(1)),
                Some(from) => match self.shape.get(from) {
                    None => return fail("it refers to an axis that the result does not have"),
                    Some(_) if m.shift >= usize::BITS as u8 => {
                        return fail("the shift is at most 63");
                    }
                    Some(out) => index_count(out, m.shift),
                },
            };
            if !reads_nothing && !count.is_some_and(|count| stays_inside(m, &count, n)) {
                return fail("its indices are not provably in range; slice or reshape it first");
            }
        }
        Ok(())
    }
}

/// The number of different indices of an output axis after the shift: `ceil(out / 2^shift)`.
fn index_count(out: &Dim, shift: u8) -> Option<Dim> {
    match out.known() {
        Some(n) => Some(Dim::Known(n.div_ceil(1 << shift))),
        None => {
            let repeated = 1usize.checked_shl(shift.into())?;
            let rounded_up = out.checked_add(&Dim::Known(repeated - 1))?;
            rounded_up.div_floor(repeated)
        }
    }
}

/// True if `start + step * k` is in `0..n` for every `k` in `0..count`.
fn stays_inside(m: &AxisMap, count: &Dim, n: &Dim) -> bool {
    let Ok(start) = usize::try_from(m.start) else {
        return false;
    };
    if *count == Dim::Known(0) {
        return true;
    }
    if m.step > 0 {
        // The last index, start + step (count - 1), is at most n - 1.
        let step = Dim::Known(m.step as usize);
        let most = n.checked_add(&step);
        let last = (count.checked_mul(&step))
            .and_then(|c| c.checked_add(&Dim::Known(start)))
            .and_then(|c| c.checked_add(&Dim::Known(1)));
        return most
            .zip(last)
            .is_some_and(|(most, last)| most.is_at_least(&last));
    }
    let first_inside =
        (Dim::Known(start).checked_add(&Dim::Known(1))).is_some_and(|past| n.is_at_least(&past));
    let last_inside = m.step == 0
        || count.known().is_some_and(|count| {
            let back = (count as u64 - 1).checked_mul(m.step.unsigned_abs());
            back.is_some_and(|back| back <= start as u64)
        });
    first_inside && last_inside
}

impl OpSpec for Map {
    const DOC: OpDoc = OpDoc {
        name: "map",
        text: "A fused elementwise region: scalar steps over operands that are read through index \
               maps; each step rounds to its dtype.",
        operands: &["x..."],
        dtypes: DType::ALL,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        if operands.len() != self.inputs.len() {
            return Err(TypeError::Arity {
                expected: self.inputs.len().to_string(),
                given: operands.len(),
            });
        }
        for (i, ty) in operands.iter().enumerate() {
            self.check_input(i, ty)?;
        }
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        let steps = self.step_dtypes(&dtypes)?;
        if self.results.is_empty() || self.results.len() > usize::from(u8::MAX) {
            let n = self.results.len();
            return Err(bad("results", format!("{n} results; expected 1 to 255")));
        }
        let result = |&step: &usize| match steps.get(step) {
            Some(&dtype) => Ok(Type::new(dtype, self.shape.clone())),
            None => Err(bad("results", format!("step s{step} does not exist"))),
        };
        self.results.iter().map(result).collect()
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype()).collect();
        let steps = self
            .step_dtypes(&dtypes)
            .map_err(|e| EvalError::Data(e.to_string()))?;
        let data: Vec<Vec<Scalar>> = operands.iter().map(|t| scalars(t)).collect();
        let strides: Vec<Vec<usize>> = (operands.iter())
            .map(|t| row_major_strides(t.shape()))
            .collect();
        // The dtype of each step's last operand, which determines the step's meaning.
        let last = |step: &MapStep| match step.args.last() {
            Some(MapArg::Input(i)) => dtypes[*i],
            Some(MapArg::Step(s)) => steps[*s],
            None => DType::F32,
        };
        let from: Vec<DType> = self.body.iter().map(last).collect();
        let shape = &results[0].shape;
        let numel = results[0].numel();
        let mut out: Vec<Vec<Scalar>> = vec![Vec::with_capacity(numel); results.len()];
        let mut inputs = vec![Scalar::I(0); operands.len()];
        let mut values = vec![Scalar::I(0); self.body.len()];
        for_each_index(shape, |index| {
            for (i, map) in self.inputs.iter().enumerate() {
                let own = map.axes.iter().zip(&strides[i]);
                let flat: usize = own.map(|(m, s)| m.index(index) as usize * s).sum();
                inputs[i] = data[i][flat];
            }
            for (at, step) in self.body.iter().enumerate() {
                let mut args = [Scalar::I(0); 3];
                for (slot, arg) in args.iter_mut().zip(&step.args) {
                    *slot = match *arg {
                        MapArg::Input(i) => inputs[i],
                        MapArg::Step(s) => values[s],
                    };
                }
                values[at] = (step.op).eval(from[at], steps[at], &args[..step.args.len()]);
            }
            for (column, &step) in out.iter_mut().zip(&self.results) {
                column.push(values[step]);
            }
        });
        let tensors = results.iter().zip(&out);
        tensors.map(|(ty, v)| from_scalars(ty.clone(), v)).collect()
    }
}

impl Graph {
    /// A fused elementwise region over `inputs`. Returns the first result; the others are
    /// `.port(1)`, ... All results have the shape `map.shape`; their dtypes are those of their
    /// steps.
    ///
    /// # Errors
    /// [`OpError`] when an index map exceeds its operand, or a step does not support its operands'
    /// dtypes. [`OpError`] also when a step refers to an operand or step that does not exist.
    pub fn map(&mut self, map: Map, inputs: &[Value]) -> Result<Value, OpError> {
        self.add(map, inputs)
    }
}
