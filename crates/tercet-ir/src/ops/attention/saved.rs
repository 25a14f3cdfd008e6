//! Attention that also returns the log-sum-exp that its gradients need.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::{
    Attention, AttentionLayout, AttentionOptions, AttentionReference, MaskKind, like_attention,
};
use crate::attr::FloatAttr;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};

like_attention! {
    /// [`Attention`] with a second result: the log-sum-exp of each query's scores, `lse[b, h, i]`.
    /// [`AttentionGrad`](super::AttentionGrad) recomputes the attention weights from the
    /// log-sum-exp. The log-sum-exp is `-inf` for a query without visible keys.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{AttentionLayout, AttentionOptions}};
    /// let mut g = Graph::new();
    /// let q = g.input("q", Type::new(DType::F16, [1, 8, 5, 64]))?;
    /// let options = AttentionOptions::new(8, 8, AttentionLayout::Bhsd);
    /// let (y, lse) = g.attention_with_lse(q, q, q, options)?;
    /// assert_eq!(g.ty(y), g.ty(q));
    /// assert_eq!(g.ty(lse).to_string(), "f32[1, 8, 5]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct AttentionWithLse {}
}

impl From<Attention> for AttentionWithLse {
    fn from(op: Attention) -> AttentionWithLse {
        AttentionWithLse::from_attention(op)
    }
}

/// The accumulation dtype of sums over scores.
pub(super) fn sums(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The shape `[batch, heads, queries]` for a query's type.
pub(super) fn by_query(q: &Type, layout: AttentionLayout) -> Type {
    let of = |axis: usize| q.shape[axis].clone();
    let shape = [of(0), of(layout.head_axis()), of(layout.seq_axis())];
    Type::new(sums(q.dtype), shape)
}

impl OpSpec for AttentionWithLse {
    const DOC: OpDoc = OpDoc {
        name: "attention_with_lse",
        text: "Two results: `y` of `attention`, and the log-sum-exp of each query's scores `lse[b, \
               h, i]`, in F32 or wider.",
        operands: &["q", "k", "v", "mask?", "kv_len?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let y = self.attention().result(operands)?;
        Ok(vec![y, by_query(operands[0], self.layout)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let op = self.attention();
        let (y, lse) = AttentionReference::new(&op, operands, &operands[3..])?.attend(operands[2]);
        Ok(vec![
            Tensor::from_f64s(results[0].clone(), &y)?,
            Tensor::from_f64s(results[1].clone(), &lse)?,
        ])
    }
}

impl Graph {
    /// [`Graph::attention`], and the log-sum-exp of each query's scores, `[batch, heads, queries]`
    /// in F32 or wider: see [`AttentionWithLse`].
    ///
    /// # Errors
    /// As [`Graph::attention`].
    pub fn attention_with_lse(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        options: AttentionOptions,
    ) -> Result<(Value, Value), OpError> {
        let (op, rest) = options.split();
        let operands: Vec<Value> = [q, k, v].into_iter().chain(rest).collect();
        let y = self.add(AttentionWithLse::from(op), &operands)?;
        Ok((y, y.port(1)))
    }
}
