//! Padding.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type, row_major_strides};

use crate::attr::FloatAttr;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, for_each_index, from_scalars, overflow};
use crate::scalar::{Scalar, convert};
use crate::{attrs, spelled};

spelled! {
    /// The source of the padding elements.
    ///
    /// ```
    /// use tercet_ir::ops::PadMode;
    /// // Position 0 of an axis `a b c` with two elements before it.
    /// assert_eq!(PadMode::Reflect.source(0, 2, 3), Some(2));
    /// assert_eq!(PadMode::Edge.source(0, 2, 3), Some(0));
    /// assert_eq!(PadMode::Constant.source(0, 2, 3), None);
    /// assert!(!PadMode::Reflect.is_valid_for(3, 0, 3));
    /// ```
    pub enum PadMode {
        /// The constant `value`.
        Constant "constant",
        /// The operand mirrored at its first and last element, which are not repeated: `c b | a b
        /// c`.
        Reflect "reflect",
        /// The first and last element repeated: `a a | a b c`.
        Edge "edge",
        /// The operand repeated periodically: `b c | a b c`.
        Wrap "wrap",
    }
}

impl PadMode {
    /// The source index, on an axis of `n` elements, of position `at` of the padded axis; `None`
    /// for the constant. The padding must satisfy [`PadMode::is_valid_for`].
    pub fn source(self, at: usize, before: usize, n: usize) -> Option<usize> {
        if (before..before + n).contains(&at) {
            return Some(at - before);
        }
        let is_before = at < before;
        match self {
            PadMode::Constant => None,
            PadMode::Edge => Some(if is_before { 0 } else { n - 1 }),
            PadMode::Reflect if is_before => Some(before - at),
            PadMode::Reflect => Some(2 * (n - 1) - (at - before)),
            PadMode::Wrap if is_before => Some(n - (before - at)),
            PadMode::Wrap => Some(at - before - n),
        }
    }

    /// True if an axis of `n` elements supports this much padding. Reflection needs more elements
    /// than it adds, repetition at least as many, and edges at least one.
    pub fn is_valid_for(self, before: usize, after: usize, n: usize) -> bool {
        let most = before.max(after);
        match self {
            PadMode::Constant => true,
            PadMode::Edge => most == 0 || n > 0,
            PadMode::Reflect => most == 0 || most < n,
            PadMode::Wrap => most <= n,
        }
    }
}

attrs! {
    /// The operand with elements added before and after each axis.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::PadMode};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?)?;
    /// let y = g.pad(x, &[2], &[1], PadMode::Reflect, 0.0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Pad {
        /// Number of elements added before each axis.
        pub before: Vec<usize>,
        /// Number of elements added after each axis.
        pub after: Vec<usize>,
        /// The source of the padding elements.
        pub mode: PadMode,
        /// The value in mode `constant`, converted to the dtype; 0 in the other modes.
        pub value: FloatAttr,
    }
}

impl Pad {
    fn too_short(&self, axis: usize, n: &Dim) -> String {
        let (before, after, mode) = (self.before[axis], self.after[axis], self.mode.name());
        format!(
            "axis {axis} of size {n} is too short for {before} before and {after} after by {mode}"
        )
    }
}

impl OpSpec for Pad {
    const DOC: OpDoc = OpDoc {
        name: "pad",
        text: "Elements added before and after each axis: a constant, the operand mirrored \
               (`reflect`), its outermost element (`edge`) or the operand repeated (`wrap`).",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::pad);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let bad = |name, reason| TypeError::Attr { name, reason };
        for (name, list) in [("before", &self.before), ("after", &self.after)] {
            if list.len() != x.rank() {
                let reason = format!("{} values for {} axes", list.len(), x.rank());
                return Err(bad(name, reason));
            }
        }
        if self.mode != PadMode::Constant && self.value != FloatAttr(0.0) {
            let reason = format!("mode {} does not use a value; expected 0", self.mode.name());
            return Err(bad("value", reason));
        }
        let mut dims = Vec::with_capacity(x.rank());
        for (axis, n) in x.shape.iter().enumerate() {
            let (before, after) = (self.before[axis], self.after[axis]);
            if n.known()
                .is_some_and(|n| !self.mode.is_valid_for(before, after, n))
            {
                return Err(TypeError::Other(self.too_short(axis, n)));
            }
            // Sizes beyond i64 would wrap in dimension arithmetic.
            let added = before
                .checked_add(after)
                .filter(|&n| n <= i64::MAX as usize);
            let sum = added.and_then(|added| n.checked_add(&Dim::Known(added)));
            dims.push(sum.ok_or_else(|| overflow(x))?);
        }
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, ty) = (operands[0], &results[0]);
        for (axis, &n) in x.shape().iter().enumerate() {
            if !self
                .mode
                .is_valid_for(self.before[axis], self.after[axis], n)
            {
                return Err(EvalError::Data(self.too_short(axis, &Dim::Known(n))));
            }
        }
        let value = convert(Scalar::F(self.value.0), ty.dtype);
        let value = from_scalars(TensorType::new(ty.dtype, &[]), &[value])?;
        let strides = row_major_strides(x.shape());
        let size = ty.dtype.size_bytes();
        let mut y = Tensor::zeros(ty.clone())?;
        let mut to = y.bytes_mut().chunks_exact_mut(size);
        for_each_index(&ty.shape, |index| {
            let flat = index.iter().enumerate().try_fold(0, |flat, (axis, &i)| {
                let own = self.mode.source(i, self.before[axis], x.shape()[axis])?;
                Some(flat + own * strides[axis])
            });
            if let Some(slot) = to.next() {
                slot.copy_from_slice(match flat {
                    Some(flat) => &x.bytes()[flat * size..][..size],
                    None => value.bytes(),
                });
            }
        });
        Ok(vec![y])
    }
}

impl Graph {
    /// `x`, of any dtype, with elements added before and after each axis. `value` is the padding in
    /// mode `constant`, and 0 in the other modes.
    ///
    /// # Errors
    /// [`OpError`] when a list does not have one value for each axis, or an axis is too short for
    /// the mode. [`OpError`] also when `value` is not 0 in a mode that ignores it.
    pub fn pad(
        &mut self,
        x: Value,
        before: &[usize],
        after: &[usize],
        mode: PadMode,
        value: f64,
    ) -> Result<Value, OpError> {
        let pad = Pad {
            before: before.to_vec(),
            after: after.to_vec(),
            mode,
            value: FloatAttr(value),
        };
        self.add(pad, &[x])
    }
}
