//! Recurrent networks with several layers, unidirectional or bidirectional.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::recurrence::{Recurrence, RecurrentCell};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype};
use crate::spelled;

spelled! {
    /// The activation of an [`Rnn`].
    ///
    /// ```
    /// use tercet_ir::ops::{Rnn, RnnFn};
    /// use tercet_ir::{Op, attr::AttrLiteral};
    /// let rnn = Rnn { layers: 2, bidirectional: false, f: RnnFn::Relu };
    /// assert_eq!(Op::from(rnn).attrs()[2], ("f", AttrLiteral::Ident("relu".to_string())));
    /// ```
    pub enum RnnFn {
        /// Hyperbolic tangent.
        Tanh "tanh",
        /// `max(x, 0)`
        Relu "relu",
    }
}

attrs! {
    /// Long short-term memory: [`RecurrentCell::Lstm`].
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::Lstm};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 9, 8]))?;
    /// let h0 = g.input("h0", Type::new(DType::F32, [1, 2, 16]))?;
    /// let c0 = g.input("c0", Type::new(DType::F32, [1, 2, 16]))?;
    /// let w_x = g.param("w_x", Type::new(DType::F32, [8, 4 * 16]))?;
    /// let w_h = g.param("w_h", Type::new(DType::F32, [16, 4 * 16]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [2, 4 * 16]))?;
    /// let op = Lstm { layers: 1, bidirectional: false };
    /// let y = g.add(op, &[x, h0, c0, w_x, w_h, bias])?;
    /// assert_eq!(g.ty(y).to_string(), "f32[2, 9, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Lstm {
        /// Number of stacked layers.
        pub layers: usize,
        /// Runs each layer in both directions and concatenates the results if true.
        pub bidirectional: bool,
    }
}

attrs! {
    /// Gated recurrent units: [`RecurrentCell::Gru`].
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::Gru};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 9, 8]))?;
    /// let h0 = g.input("h0", Type::new(DType::F32, [1, 2, 16]))?;
    /// let w_x = g.param("w_x", Type::new(DType::F32, [8, 3 * 16]))?;
    /// let w_h = g.param("w_h", Type::new(DType::F32, [16, 3 * 16]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [2, 3 * 16]))?;
    /// let y = g.add(Gru { layers: 1, bidirectional: false }, &[x, h0, w_x, w_h, bias])?;
    /// assert_eq!(g.ty(y).to_string(), "f32[2, 9, 16]");
    /// assert_eq!(g.ty(y.port(1)).to_string(), "f32[1, 2, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Gru {
        /// Number of stacked layers.
        pub layers: usize,
        /// Runs each layer in both directions and concatenates the results if true.
        pub bidirectional: bool,
    }
}

attrs! {
    /// A plain recurrent network: [`RecurrentCell::Tanh`] or [`RecurrentCell::Relu`].
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{Rnn, RnnFn}};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 9, 8]))?;
    /// let h0 = g.input("h0", Type::new(DType::F32, [1, 2, 16]))?;
    /// let w_x = g.param("w_x", Type::new(DType::F32, [8, 16]))?;
    /// let w_h = g.param("w_h", Type::new(DType::F32, [16, 16]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [2, 16]))?;
    /// let op = Rnn { layers: 1, bidirectional: false, f: RnnFn::Tanh };
    /// let y = g.add(op, &[x, h0, w_x, w_h, bias])?;
    /// assert_eq!(g.ty(y).to_string(), "f32[2, 9, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Rnn {
        /// Number of stacked layers.
        pub layers: usize,
        /// Runs each layer in both directions and concatenates the results if true.
        pub bidirectional: bool,
        /// The activation function.
        pub f: RnnFn,
    }
}

/// The common parameters of the three networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RnnLayer {
    pub(crate) cell: RecurrentCell,
    pub(crate) layers: usize,
    pub(crate) bidirectional: bool,
}

/// Number of operands of a layer in one direction: `w_x [in, G H]`, `w_h [H, G H]`, `bias [2, G
/// H]`.
pub(crate) const PARTS: usize = 3;

impl From<&Lstm> for RnnLayer {
    fn from(op: &Lstm) -> RnnLayer {
        RnnLayer {
            cell: RecurrentCell::Lstm,
            layers: op.layers,
            bidirectional: op.bidirectional,
        }
    }
}

impl From<&Gru> for RnnLayer {
    fn from(op: &Gru) -> RnnLayer {
        RnnLayer {
            cell: RecurrentCell::Gru,
            layers: op.layers,
            bidirectional: op.bidirectional,
        }
    }
}

impl From<&Rnn> for RnnLayer {
    fn from(op: &Rnn) -> RnnLayer {
        RnnLayer {
            cell: match op.f {
                RnnFn::Tanh => RecurrentCell::Tanh,
                RnnFn::Relu => RecurrentCell::Relu,
            },
            layers: op.layers,
            bidirectional: op.bidirectional,
        }
    }
}

impl RnnLayer {
    pub(crate) fn directions(self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// The number of operands before the weights: the input and the initial states.
    pub(crate) fn leading(self) -> usize {
        2 + usize::from(self.cell.has_cell_state())
    }

    fn infer(self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let (leading, directions) = (self.leading(), self.directions());
        if self.layers == 0 {
            let reason = "0 layers; expected at least 1".to_string();
            return Err(TypeError::Attr {
                name: "layers",
                reason,
            });
        }
        let expected =
            (self.layers.checked_mul(directions * PARTS)).and_then(|n| n.checked_add(leading));
        if expected != Some(operands.len()) {
            return Err(TypeError::Arity {
                expected: expected.map_or("fewer".to_string(), |n| n.to_string()),
                given: operands.len(),
            });
        }
        let (x, h0) = (operands[0], operands[1]);
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 3)?;
        expect_rank("h0", h0, 3)?;
        let (batch, hidden) = (&x.shape[0], h0.shape[2].clone());
        if hidden.known().is_none() {
            let reason = "the size of the state must be known".to_string();
            return Err(TypeError::Other(reason));
        }
        let times = |dim: &Dim, n: usize| {
            dim.checked_mul(&Dim::Known(n))
                .unwrap_or(Dim::Known(usize::MAX))
        };
        let wide = times(&hidden, self.cell.gates());
        let states = [
            Dim::Known(self.layers * directions),
            batch.clone(),
            hidden.clone(),
        ];
        let check = |name: &'static str, ty: &Type, shape: &[Dim]| -> Result<(), TypeError> {
            expect_same_dtype(name, ty, x)?;
            expect_rank(name, ty, shape.len())?;
            let axes = ty.shape.iter().zip(shape).enumerate();
            axes.into_iter().try_for_each(|(axis, (own, want))| {
                expect_equal(&format!("axis {axis} of {name}"), own, want)
            })
        };
        for (name, ty) in ["h0", "c0"].into_iter().zip(&operands[1..leading]) {
            check(name, ty, &states)?;
        }
        let both = times(&hidden, directions);
        for (i, parts) in operands[leading..].chunks_exact(PARTS).enumerate() {
            let width = match i / directions {
                0 => x.shape[2].clone(),
                _ => both.clone(),
            };
            check("w_x", parts[0], &[width, wide.clone()])?;
            check("w_h", parts[1], &[hidden.clone(), wide.clone()])?;
            check("bias", parts[2], &[2.into(), wide.clone()])?;
        }
        let mut y = x.clone();
        y.shape.dims_mut()[2] = both;
        let mut results = vec![y];
        results.extend(operands[1..leading].iter().map(|ty| (*ty).clone()));
        Ok(results)
    }

    fn eval(self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let (leading, directions) = (self.leading(), self.directions());
        let &[batch, steps, _] = operands[0].shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let size = operands[1].shape()[2];
        let wide = self.cell.gates() * size;
        // All computation is in F64; only the results are rounded.
        let tensor = |shape: &[usize], values: &[f64]| {
            Tensor::from_f64s(TensorType::new(DType::F64, shape), values)
        };
        let mut x = operands[0].to_f64s();
        let states: Vec<Vec<f64>> = operands[1..leading].iter().map(|t| t.to_f64s()).collect();
        let mut last = vec![Vec::new(); leading - 1];
        for layer in 0..self.layers {
            let width = x.len() / (batch * steps).max(1);
            let mut y = vec![0.0; batch * steps * size * directions];
            for direction in 0..directions {
                let at = layer * directions + direction;
                let [w_x, w_h, bias] =
                    [0, 1, 2].map(|i| operands[leading + at * PARTS + i].to_f64s());
                let mut gates = Vec::with_capacity(batch * steps * wide);
                for token in 0..batch * steps {
                    let row = &x[token * width..][..width];
                    gates.extend((0..wide).map(|col| {
                        let terms = row.iter().enumerate();
                        let sum: f64 = terms.map(|(i, x)| x * w_x[i * wide + col]).sum();
                        sum + bias[col]
                    }));
                }
                let mut parts = vec![
                    tensor(&[batch, steps, wide], &gates)?,
                    tensor(&[size, wide], &w_h)?,
                    tensor(&[wide], &bias[wide..])?,
                ];
                for state in &states {
                    let own = &state[at * batch * size..][..batch * size];
                    parts.push(tensor(&[batch, size], own)?);
                }
                let parts: Vec<&Tensor> = parts.iter().collect();
                let of = |shape: &[usize]| TensorType::new(DType::F64, shape);
                let types = [
                    of(&[batch, steps, size]),
                    of(&[batch, size]),
                    of(&[batch, size]),
                ];
                let one = Recurrence {
                    cell: self.cell,
                    reverse: direction == 1,
                };
                let done = one.eval(&EvalCtx::default(), &parts, &types[..leading])?;
                let own = done[0].to_f64s();
                for (token, row) in own.chunks_exact(size.max(1)).enumerate() {
                    y[(token * directions + direction) * size..][..size].copy_from_slice(row);
                }
                for (last, state) in last.iter_mut().zip(&done[1..]) {
                    last.extend(state.to_f64s());
                }
            }
            x = y;
        }
        let all = std::iter::once(&x).chain(&last);
        let tensors = results.iter().zip(all);
        let tensors = tensors.map(|(ty, values)| Tensor::from_f64s(ty.clone(), values));
        Ok(tensors.collect::<Result<_, _>>()?)
    }
}

/// Implements [`OpSpec`] through [`RnnLayer`] for an operator with `layers` and `bidirectional`.
macro_rules! nets {
    ($($Op:ident $name:literal $text:literal [$($operand:literal),*];)*) => {$(
        impl OpSpec for $Op {
            const DOC: OpDoc = OpDoc {
                name: $name,
                text: $text,
                operands: &[$($operand),*],
                dtypes: DType::FLOATS,
                accuracy: Accuracy::Contraction,
                tier: Tier::Composite,
            };
            const GRADIENT: Gradient<Self> = Gradient::Decompose;
            fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
                RnnLayer::from(self).infer(operands)
            }
            fn eval(
                &self,
                _: &EvalCtx,
                operands: &[&Tensor],
                results: &[TensorType],
            ) -> Result<Vec<Tensor>, EvalError> {
                RnnLayer::from(self).eval(operands, results)
            }
        }
    )*};
}

nets! {
    Lstm "lstm" "Long short-term memory over `x [B,S,I]` from states `[layers directions, B, H]`: `[B,S, directions H]` and the final states. For each layer and direction `w_x [in, 4 H]`, `w_h [H, 4 H]` and `bias [2, 4 H]` (of the input and of the state), gates in the order i, f, g, o." ["x", "h0", "c0", "w_x", "w_h", "bias", ".."];
    Gru "gru" "Gated recurrent units over `x [B,S,I]` from the state `[layers directions, B, H]`: `[B,S, directions H]` and the final state. For each layer and direction `w_x [in, 3 H]`, `w_h [H, 3 H]` and `bias [2, 3 H]` (of the input and of the state), gates in the order r, z, n; the reset gate applies after the matmul." ["x", "h0", "w_x", "w_h", "bias", ".."];
    Rnn "rnn" "A recurrent network `h = f(x w_x + h w_h + bias)` over `x [B,S,I]` from the state `[layers directions, B, H]`: `[B,S, directions H]` and the final state. For each layer and direction `w_x [in, H]`, `w_h [H, H]` and `bias [2, H]` (of the input and of the state)." ["x", "h0", "w_x", "w_h", "bias", ".."];
}
