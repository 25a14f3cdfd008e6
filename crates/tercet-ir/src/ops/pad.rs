//! Padding.

use crate::accuracy::Accuracy;
use crate::attr::Real;
use crate::case::{Case, Fill, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{counted, exactly, for_each_index, from_scalars, overflow, reject};
use crate::scalar::{Scalar, convert};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};
use crate::{attrs, spelled};

spelled! {
    /// What the added elements are.
    pub enum PadMode {
        /// The value of the attribute.
        Constant "constant",
        /// The operand mirrored at its first and last element, which are not repeated: `c b | a b c`.
        Reflect "reflect",
        /// The first and last element repeated: `a a | a b c`.
        Edge "edge",
        /// The operand repeated: `b c | a b c`.
        Wrap "wrap",
    }
}

impl PadMode {
    /// The index along an axis of `n` elements that position `at` of the padded axis takes, or
    /// `None` for the constant. The padding is one that [`PadMode::fits`].
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

    /// True if an axis of `n` elements can be padded by this many: reflections need more elements
    /// than they add, repetitions at least as many, edges at least one.
    pub fn fits(self, before: usize, after: usize, n: usize) -> bool {
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
    pub struct Pad {
        /// How many before each axis.
        pub before: Vec<usize>,
        /// How many after each axis.
        pub after: Vec<usize>,
        /// What they are.
        pub mode: PadMode,
        /// Their value in the mode `constant`, converted to the dtype; 0 in the others.
        pub value: Real,
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
    const DOC: Doc = Doc {
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
        if self.mode != PadMode::Constant && self.value != Real(0.0) {
            let reason = format!("the mode {} takes no value; give 0", self.mode.name());
            return Err(bad("value", reason));
        }
        let mut dims = Vec::with_capacity(x.rank());
        for (axis, n) in x.shape.iter().enumerate() {
            let (before, after) = (self.before[axis], self.after[axis]);
            if n.known().is_some_and(|n| !self.mode.fits(before, after, n)) {
                return Err(TypeError::Other(self.too_short(axis, n)));
            }
            // Sizes beyond i64 would wrap in the arithmetic of dimensions.
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
            if !self.mode.fits(self.before[axis], self.after[axis], n) {
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

    fn cases() -> Vec<Case> {
        // Long: a table, one row a case.
        let line = |name: &str,
                    n: usize,
                    before: usize,
                    after: usize,
                    mode: PadMode,
                    y: &'static [f64]| {
            Case::new(name, move |c| {
                let x = c.input("x", [n], counted(&[n]))?;
                let y_value = c.graph.pad(x, &[before], &[after], mode, 0.0)?;
                c.output_expect(y_value, y)
            })
        };
        let mut all: Vec<Case> = PadMode::ALL
            .iter()
            .flat_map(|&mode| {
                let block = Case::new(format!("{}_block_5x7", mode.name()), move |c| {
                    let x = c.input("x", [5, 7], Fill::Special)?;
                    let y = c.graph.pad(x, &[4, 0], &[1, 3], mode, 0.0)?;
                    c.output(y)
                });
                let symbolic = Case::new(format!("{}_symbolic", mode.name()), move |c| {
                    let s = c.sym("s", 3, 9);
                    let x = c.input("x", [s, 2.into()], Fill::Normal)?;
                    let y = c.graph.pad(x, &[2, 1], &[0, 1], mode, 0.0)?;
                    c.output(y)
                });
                [block, symbolic]
            })
            .collect();
        all.extend([
            line(
                "constant_line",
                2,
                1,
                2,
                PadMode::Constant,
                &[0.0, 0.0, 1.0, 0.0, 0.0],
            ),
            line(
                "reflect_line",
                3,
                2,
                2,
                PadMode::Reflect,
                &[2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0],
            ),
            line(
                "edge_line",
                3,
                2,
                1,
                PadMode::Edge,
                &[0.0, 0.0, 0.0, 1.0, 2.0, 2.0],
            ),
            line(
                "wrap_line",
                3,
                2,
                3,
                PadMode::Wrap,
                &[1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0],
            ),
            line(
                "constant_around_nothing",
                0,
                1,
                1,
                PadMode::Constant,
                &[0.0, 0.0],
            ),
            line("wrap_of_nothing", 0, 0, 0, PadMode::Wrap, &[]),
            Case::new("value", |c| {
                let x = c.input("x", [1, 2], Fill::Values(vec![1.0, 0.0]))?;
                let y = c.graph.pad(x, &[1, 0], &[0, 1], PadMode::Constant, 7.0)?;
                c.output_expect(y, &[7.0, 7.0, 7.0, 1.0, 0.0, 7.0])
            }),
            Case::new("minus_infinity", |c| {
                let x = c.input("x", [1], Fill::Values(vec![1.0]))?;
                let y = c
                    .graph
                    .pad(x, &[1], &[1], PadMode::Constant, f64::NEG_INFINITY)?;
                c.output_expect(y, &[f64::NEG_INFINITY, 1.0, f64::NEG_INFINITY])
            })
            .only(DType::FLOATS),
            Case::new("rank_0", |c| {
                let x = c.input("x", [0usize; 0], Fill::Special)?;
                let y = c.graph.pad(x, &[], &[], PadMode::Constant, 7.0)?;
                c.output(y)
            }),
            Case::new("symbolic_too_short", |c| {
                let s = c.sym("s", 2, 9);
                let x = c.input("x", [s], Fill::Normal)?;
                let y = c.graph.pad(x, &[2], &[0], PadMode::Reflect, 0.0)?;
                c.expect_fault("axis 0 of size 2 is too short");
                c.output(y)
            }),
        ]);
        all
    }

    fn rejects() -> Vec<Reject> {
        fn of(
            g: &mut Graph,
            before: &[usize],
            mode: PadMode,
            value: f64,
        ) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.pad(x, before, &[0], mode, value)
        }
        vec![
            reject("rank", "2 values for 1 axes", |g| {
                of(g, &[1, 1], PadMode::Constant, 0.0)
            }),
            reject("reflect_too_far", "too short for 3 before", |g| {
                of(g, &[3], PadMode::Reflect, 0.0)
            }),
            reject("wrap_too_far", "too short for 4 before", |g| {
                of(g, &[4], PadMode::Wrap, 0.0)
            }),
            reject("value_without_use", "takes no value", |g| {
                of(g, &[1], PadMode::Edge, 1.0)
            }),
            reject("overflow", "too large", |g| {
                of(g, &[usize::MAX], PadMode::Constant, 0.0)
            }),
            reject("edge_of_nothing", "too short", |g| {
                let x = g.input("x", Type::new(DType::F32, [0]))?;
                g.pad(x, &[1], &[0], PadMode::Edge, 0.0)
            }),
        ]
    }
}

impl Graph {
    /// `x`, of any dtype, with elements added before and after each axis; `value` is what they are
    /// in the mode `constant` and 0 in the others.
    ///
    /// # Errors
    /// [`OpError`] when a list has not one value for each axis, an axis is too short for the mode,
    /// or `value` is given to a mode that has no use for it.
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
            value: Real(value),
        };
        self.add(pad, &[x])
    }
}
