//! The gradients of attention, computed from the log-sum-exp of each query's scores.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::reference::{AttentionHeadRows, dot};
use super::saved::by_query;
use super::{Attention, AttentionLayout, AttentionReference, MaskKind, like_attention};
use crate::attr::FloatAttr;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};

crate::spelled! {
    /// Which operands' cotangents an [`AttentionGrad`] computes.
    ///
    /// ```
    /// # use tercet_ir::{DType, Graph, Op, Type};
    /// use tercet_ir::ops::{AttentionGrad, AttentionGradOf, AttentionLayout, AttentionOptions};
    /// # let mut g = Graph::new();
    /// # let q = g.input("q", Type::new(DType::F32, [1, 2, 5, 8]))?;
    /// # let dy = g.input("dy", Type::new(DType::F32, [1, 2, 5, 8]))?;
    /// let options = AttentionOptions::new(2, 2, AttentionLayout::Bhsd);
    /// let y = g.attention(q, q, q, options)?;
    /// let Op::Attention(op) = g.node(y.node).op.clone() else { panic!("`y` is attention") };
    /// let (_, lse) = g.attention_with_lse(q, q, q, options)?;
    /// let product = g.mul(dy, y)?;
    /// let delta = g.reduce_sum(product, &[3], false)?;
    /// let grad = AttentionGrad::new(AttentionGradOf::Keys, op);
    /// let dk = g.add(grad, &[q, q, q, dy, lse, delta])?;
    /// assert_eq!(g.ty(dk), g.ty(q));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum AttentionGradOf {
        /// One result: the cotangent of the queries.
        Queries "queries",
        /// Two results: the cotangents of the keys and of the values.
        Keys "keys",
    }
}

like_attention! {
    /// The cotangents of the operands of [`Attention`], computed without storing the scores (Dao et
    /// al., "FlashAttention", 2022).
    ///
    /// `s` are the scores of a query after cap and mask. The weights are `p = exp(s - lse)` for
    /// visible keys, else 0, and `dp = dy . v`. The cotangent of the query-key product is `ds = p
    /// (dp - delta)`, times the derivative of the score with respect to that product. `dv` sums `p
    /// dy` over the queries of all heads that read the value, `dk` sums `ds q` over the same
    /// queries, and `dq` sums `ds k` over the keys.
    ///
    /// `lse` must be the second result of [`AttentionWithLse`](super::AttentionWithLse), and
    /// `delta[b, h, i]` must be `dy . y`, because implementations may recompute both.
    ///
    /// Weights and `ds` may be rounded to the dtype of `q` before they are summed; sums are in F32
    /// or wider. Masked keys and values must be finite.
    ///
    /// ```
    /// use tercet_ir::ops::{AttentionLayout, AttentionOptions};
    /// use tercet_ir::{DType, Graph, OpKind, Type};
    /// let mut g = Graph::new();
    /// let q = g.input("q", Type::new(DType::F16, [1, 2, 5, 8]))?;
    /// let dy = g.input("dy", Type::new(DType::F16, [1, 2, 5, 8]))?;
    /// let options = AttentionOptions::new(2, 2, AttentionLayout::Bhsd);
    /// let y = g.attention(q, q, q, options)?;
    /// let dq = g.vjp(&[(y, dy)], &[q])?[0].expect("`y` depends on `q`");
    /// assert_eq!(g.ty(dq), g.ty(q));
    /// let mut nodes = g.nodes().map(|(_, node)| node.op.kind());
    /// assert!(nodes.any(|kind| kind == OpKind::AttentionGrad));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct AttentionGrad {
        /// The cotangents to compute.
        of: AttentionGradOf,
    }
}

impl AttentionGrad {
    /// The operator that computes these cotangents of this attention.
    pub fn new(of: AttentionGradOf, op: Attention) -> AttentionGrad {
        AttentionGrad::from_attention(of, op)
    }
}

/// Number of operands before those of the mask.
const OPERANDS: usize = 6;

impl OpSpec for AttentionGrad {
    const DOC: OpDoc = OpDoc {
        name: "attention_grad",
        text: "The cotangents of the queries, or of keys and values, of `attention`, from `dy`, \
               the `lse` of `attention_with_lse` and `delta = dy . y`.",
        operands: &["q", "k", "v", "dy", "lse", "delta", "mask?", "kv_len?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let Some(([q, k, v, dy, lse, delta], rest)) = operands.split_first_chunk::<OPERANDS>()
        else {
            return Err(TypeError::Arity {
                expected: format!("{OPERANDS} or more"),
                given: operands.len(),
            });
        };
        let from_attention: Vec<&Type> = [*q, *k, *v]
            .into_iter()
            .chain(rest.iter().copied())
            .collect();
        let y = self.attention().result(&from_attention)?;
        let stats = by_query(q, self.layout);
        for (name, own, wanted) in [
            ("dy", dy, &y),
            ("lse", lse, &stats),
            ("delta", delta, &stats),
        ] {
            if *own != wanted {
                let reason = format!("{name} is {own}; accepted: {wanted}");
                return Err(TypeError::Other(reason));
            }
        }
        Ok(match self.of {
            AttentionGradOf::Queries => vec![(*q).clone()],
            AttentionGradOf::Keys => vec![(*k).clone(), (*v).clone()],
        })
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let op = self.attention();
        let reference = AttentionReference::new(&op, operands, &operands[OPERANDS..])?;
        let (v, dy) = (
            AttentionHeadRows::new(&op, operands[2]),
            AttentionHeadRows::new(&op, operands[3]),
        );
        let (lse, delta) = (operands[4].to_f64s(), operands[5].to_f64s());
        let mut sums: Vec<AttentionHeadRows> = results
            .iter()
            .map(|ty| AttentionHeadRows::zeros(&op, &ty.shape))
            .collect();
        let mut query = 0;
        reference.each_query(|at, scores| {
            for s in scores {
                let key = [at[0], reference.key_head(at[1]), s.key];
                let p = (s.score - lse[query]).exp();
                let ds = p * (dot(dy.row(at), v.row(key)) - delta[query]) * s.slope;
                match self.of {
                    AttentionGradOf::Queries => sums[0].add(at, reference.key(at, s.key), ds),
                    AttentionGradOf::Keys => {
                        sums[0].add(key, reference.query(at), ds);
                        sums[1].add(key, dy.row(at), p);
                    }
                }
            }
            query += 1;
        });
        let sums = sums.into_iter().zip(results);
        let tensors = sums.map(|(sum, ty)| Tensor::from_f64s(ty.clone(), &sum.values()));
        Ok(tensors.collect::<Result<Vec<_>, _>>()?)
    }
}
