//! One recurrent layer in one direction, from precomputed input projections. `Lstm`, `Gru` and
//! `Rnn` decompose into this operator.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::error::{EvalError, TypeError};
use crate::grad::{Gradient, rules};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype, with_optional};
use crate::{attrs, spelled};

spelled! {
    /// The cell function of a recurrent layer. A cell computes the next state from the gates' input
    /// contribution `x` and state contribution `h`.
    ///
    /// ```
    /// use tercet_ir::ops::RecurrentCell;
    /// assert_eq!((RecurrentCell::Lstm.gates(), RecurrentCell::Gru.gates()), (4, 3));
    /// assert!(RecurrentCell::Lstm.has_cell_state());
    /// assert_eq!(RecurrentCell::Relu.next(&[1.0], &[0.5], [0.0; 2]), [1.5, 0.0]);
    /// ```
    pub enum RecurrentCell {
        /// Gates i, f, g, o of `x + h`: `c = sigmoid(f) c + sigmoid(i) tanh(g)`, `h = sigmoid(o)
        /// tanh(c)` (Hochreiter and Schmidhuber 1997; with forget gates, Gers 1999).
        Lstm "lstm",
        /// Gates r, z, n: `n = tanh(x_n + sigmoid(x_r + h_r) h_n)`, `h = (1 - z) n + z h` with `z =
        /// sigmoid(x_z + h_z)` (Cho et al. 2014, the reset gate after the matmul).
        Gru "gru",
        /// `h = tanh(x + h)`
        Tanh "tanh",
        /// `h = max(x + h, 0)`
        Relu "relu",
    }
}

impl RecurrentCell {
    /// Number of gate values per state element.
    pub const fn gates(self) -> usize {
        match self {
            RecurrentCell::Lstm => 4,
            RecurrentCell::Gru => 3,
            RecurrentCell::Tanh | RecurrentCell::Relu => 1,
        }
    }

    /// True if the cell has a second state.
    pub const fn has_cell_state(self) -> bool {
        matches!(self, RecurrentCell::Lstm)
    }

    /// The next states of an element, from its gates and its states.
    pub fn next(self, x: &[f64], h: &[f64], state: [f64; 2]) -> [f64; 2] {
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let sum = |i: usize| x[i] + h[i];
        let [hidden, cell] = state;
        match self {
            RecurrentCell::Lstm => {
                let cell = sigmoid(sum(1)) * cell + sigmoid(sum(0)) * sum(2).tanh();
                [sigmoid(sum(3)) * cell.tanh(), cell]
            }
            RecurrentCell::Gru => {
                let n = (x[2] + sigmoid(sum(0)) * h[2]).tanh();
                let z = sigmoid(sum(1));
                [(1.0 - z) * n + z * hidden, cell]
            }
            RecurrentCell::Tanh => [sum(0).tanh(), cell],
            RecurrentCell::Relu => match sum(0) {
                v if v > 0.0 || v.is_nan() => [v, cell],
                _ => [0.0, cell],
            },
        }
    }
}

attrs! {
    /// A recurrent layer in one direction. The input contribution to the gates is an operand; the
    /// state contribution is `h w + bias`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{Recurrence, RecurrentCell}};
    /// let mut g = Graph::new();
    /// let gates = g.input("gates", Type::new(DType::F32, [2, 9, 3 * 16]))?;
    /// let w = g.param("w", Type::new(DType::F32, [16, 3 * 16]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [3 * 16]))?;
    /// let h0 = g.input("h0", Type::new(DType::F32, [2, 16]))?;
    /// let op = Recurrence { cell: RecurrentCell::Gru, reverse: false };
    /// let y = g.add(op, &[gates, w, bias, h0])?;
    /// assert_eq!(g.ty(y).to_string(), "f32[2, 9, 16]");
    /// assert_eq!(g.ty(y.port(1)).to_string(), "f32[2, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Recurrence {
        /// The cell function.
        pub cell: RecurrentCell,
        /// Processes the steps from last to first if true.
        pub reverse: bool,
    }
}

impl OpSpec for Recurrence {
    const DOC: OpDoc = OpDoc {
        name: "recurrence",
        text: "A recurrent layer in one direction. From the input contribution `gates [B,S,G H]`, \
               `w [H, G H]`, `bias [G H]` and the states `h0` and `c0 [B,H]` (`lstm` only), it \
               computes the state at each step `[B,S,H]` and the final states.",
        operands: &["gates", "w", "bias", "h0", "c0?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::recurrence);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([gates, w, bias, h0], [c0]) = with_optional::<4, 1>(operands)?;
        if c0.is_some() != self.cell.has_cell_state() {
            return Err(TypeError::Arity {
                expected: if self.cell.has_cell_state() { "5" } else { "4" }.to_string(),
                given: operands.len(),
            });
        }
        expect_dtype("gates", gates, DType::FLOATS)?;
        expect_rank("gates", gates, 3)?;
        expect_rank("w", w, 2)?;
        let (batch, hidden) = (&gates.shape[0], &w.shape[0]);
        if hidden.known().is_none() {
            let reason = "the size of the state must be known".to_string();
            return Err(TypeError::Other(reason));
        }
        let wide = hidden.checked_mul(&Dim::Known(self.cell.gates()));
        let wide = wide.unwrap_or(Dim::Known(usize::MAX));
        expect_equal(
            "the width of gates and that of the state's",
            &gates.shape[2],
            &wide,
        )?;
        let state = [batch, hidden];
        let named: [(&'static str, &Type, &[&Dim]); 3] = [
            ("w", w, &[hidden, &wide]),
            ("bias", bias, &[&wide]),
            ("h0", h0, &state),
        ];
        let c0 = c0.map(|ty| ("c0", ty, &state[..]));
        for (name, ty, shape) in named.into_iter().chain(c0) {
            expect_same_dtype(name, ty, gates)?;
            expect_rank(name, ty, shape.len())?;
            for (axis, (own, want)) in ty.shape.iter().zip(shape).enumerate() {
                expect_equal(&format!("axis {axis} of {name}"), own, want)?;
            }
        }
        let mut y = gates.clone();
        y.shape.dims_mut()[2] = hidden.clone();
        let mut results = vec![y, h0.clone()];
        results.extend(self.cell.has_cell_state().then(|| h0.clone()));
        Ok(results)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [x, w, bias] = [0, 1, 2].map(|i| operands[i].to_f64s());
        let &[batch, steps, wide] = operands[0].shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let size = operands[1].shape()[0];
        let mut hidden = operands[3].to_f64s();
        let mut cell = operands
            .get(4)
            .map_or(vec![0.0; hidden.len()], |c| c.to_f64s());
        let mut y = vec![0.0; results[0].numel()];
        for row in 0..batch {
            for step in 0..steps {
                let step = if self.reverse { steps - 1 - step } else { step };
                let at = row * steps + step;
                let before = hidden[row * size..][..size].to_vec();
                let mut own = bias.clone();
                for (h, w) in before.iter().zip(w.chunks_exact(wide.max(1))) {
                    own.iter_mut().zip(w).for_each(|(own, w)| *own += h * w);
                }
                for i in 0..size {
                    let of = |all: &[f64]| -> Vec<f64> {
                        (0..self.cell.gates()).map(|g| all[g * size + i]).collect()
                    };
                    let state = [before[i], cell[row * size + i]];
                    let [h, c] = self.cell.next(&of(&x[at * wide..]), &of(&own), state);
                    (hidden[row * size + i], cell[row * size + i]) = (h, c);
                    y[at * size + i] = h;
                }
            }
        }
        let all = [y, hidden, cell];
        let tensors = results.iter().zip(&all);
        let tensors = tensors.map(|(ty, values)| Tensor::from_f64s(ty.clone(), values));
        Ok(tensors.collect::<Result<_, _>>()?)
    }
}
