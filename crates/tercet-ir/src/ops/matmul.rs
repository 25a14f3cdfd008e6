//! Matmul with the semantics of NumPy's `matmul`.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type, broadcast_shapes};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::contract::Contraction;
use crate::ops::util::{
    broadcast_indices, exactly, expect_dtype, expect_equal, expect_rank_at_least,
    expect_same_dtype, from_scalars,
};

attrs! {
    /// `y[.., m, n] = sum_k a[.., m, k] b[.., k, n]`. Leading axes broadcast. A rank 1 operand is a
    /// row (left) or a column (right), and the result omits its axis of size 1.
    ///
    /// ```
    /// use tercet_ir::{DType, Dim, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [Dim::sym("batch"), 5.into(), 64.into()]))?;
    /// let w = g.param("w", Type::new(DType::F32, [64, 32]))?;
    /// let y = g.matmul(x, w)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[batch, 5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct MatMul {}
}

/// The axes of an operand: batch axes, the free axis (`None` for a vector), the summed axis.
struct MatMulAxes<'a, D> {
    batch: &'a [D],
    free_axis: Option<&'a D>,
    summed: &'a D,
}

fn split<D>(dims: &[D], left: bool) -> Option<MatMulAxes<'_, D>> {
    match dims {
        [] => None,
        [summed] => Some(MatMulAxes {
            batch: &[],
            free_axis: None,
            summed,
        }),
        [batch @ .., m, k] if left => Some(MatMulAxes {
            batch,
            free_axis: Some(m),
            summed: k,
        }),
        [batch @ .., k, n] => Some(MatMulAxes {
            batch,
            free_axis: Some(n),
            summed: k,
        }),
    }
}

impl OpSpec for MatMul {
    const DOC: OpDoc = OpDoc {
        name: "mat_mul",
        text: "NumPy's `matmul`: `sum_k a[.., m, k] b[.., k, n]`, leading axes broadcast. Integers wrap.",
        operands: &["a", "b"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::mat_mul);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [a, b] = exactly(operands)?;
        expect_dtype("a", a, DType::NUMBERS)?;
        expect_same_dtype("b", b, a)?;
        let (Some(l), Some(r)) = (split(&a.shape, true), split(&b.shape, false)) else {
            expect_rank_at_least("a", a, 1)?;
            expect_rank_at_least("b", b, 1)?;
            unreachable!("invariant: one of the operands is a scalar");
        };
        expect_equal("the inner dimensions", l.summed, r.summed)?;
        let batch = broadcast_shapes(l.batch, r.batch).ok_or_else(|| TypeError::Broadcast {
            left: a.clone(),
            right: b.clone(),
        })?;
        let mut dims = batch.into_dims();
        dims.extend(l.free_axis.into_iter().chain(r.free_axis).cloned());
        Ok(vec![a.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (a, b) = (operands[0], operands[1]);
        let l = split(a.shape(), true).expect("invariant: infer refuses scalars");
        let r = split(b.shape(), false).expect("invariant: infer refuses scalars");
        let (m, n, k) = (
            l.free_axis.unwrap_or(&1),
            r.free_axis.unwrap_or(&1),
            *l.summed,
        );
        let out = &results[0].shape;
        let kept = usize::from(l.free_axis.is_some()) + usize::from(r.free_axis.is_some());
        let batch = &out[..out.len() - kept];
        let lefts = broadcast_indices(l.batch, batch).into_iter();
        let rights = broadcast_indices(r.batch, batch).into_iter();
        let contraction = Contraction {
            batch: lefts
                .map(|i| i * m * k)
                .zip(rights.map(|i| i * k * n))
                .collect(),
            ..Contraction::matrix(*m, k, *n, (*n, 1))
        };
        let y = contraction.eval(a, b);
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// The matmul `[.., m, k] x [.., k, n] -> [.., m, n]` of numbers of one dtype, with the
    /// semantics of NumPy's `matmul`. Leading axes broadcast. A vector is a row on the left and a
    /// column on the right, and its axis is not in the result. Integers wrap. An empty sum is 0.
    ///
    /// # Errors
    /// [`OpError`] when an operand is a scalar, the inner dimensions are not provably equal, the
    /// leading axes do not broadcast, or the dtypes differ or are `Bool`.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(MatMul {}, &[a, b])
    }
}
