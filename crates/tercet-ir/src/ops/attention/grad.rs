//! The gradients of attention, from the logarithm of each query's sum of exponentials.

use super::reference::{Rows, dot};
use super::saved::by_query;
use super::{Attention, Layout, MaskKind, Reference, cases, like_attention};
use crate::accuracy::Accuracy;
use crate::attr::Real;
use crate::case::{Case, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

crate::spelled! {
    /// Which operands an [`AttentionGrad`] is of.
    pub enum AttentionGradOf {
        /// One result: the cotangent of the queries.
        Queries "queries",
        /// Two results: the cotangents of the keys and of the values.
        Keys "keys",
    }
}

like_attention! {
    /// The cotangents of the operands of [`Attention`] without its scores (Dao et al., "FlashAttention", 2022).
    ///
    /// With the scores `s` of a query, after cap and mask, its weights are `p = exp(s - lse)` where it sees the key, else
    /// 0; `dp = dy . v`; the cotangent of the product of query and key is `ds = p (dp - delta)` times the derivative of the
    /// score by the product. `dv` is the sum of `p dy` over the queries of all heads that read it, `dk` that of `ds q`, `dq`
    /// that of `ds k` over the keys. `lse` is the second result of
    /// [`AttentionWithLse`](super::AttentionWithLse), `delta[b, h, i]` is `dy . y`. They have
    /// to be that: who computes the cotangents may make them again.
    ///
    /// Weights and `ds` may be rounded to the dtype of `q` before they are summed; sums are in F32 or wider. Keys and values that
    /// are not seen must be finite.
    pub struct AttentionGrad {
        /// What the results are.
        of: AttentionGradOf,
    }
}

impl AttentionGrad {
    /// Of these operands of this attention.
    pub fn new(of: AttentionGradOf, op: Attention) -> AttentionGrad {
        AttentionGrad::of_attention(of, op)
    }
}

/// Operands before those of the mask.
const OPERANDS: usize = 6;

impl OpSpec for AttentionGrad {
    const DOC: Doc = Doc {
        name: "attention_grad",
        text: "Cotangents of the queries, or of keys and values, of `attention`: from `dy`, the `lse` of `attention_with_lse` and `delta = dy . y`.",
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
        let of_attention: Vec<&Type> = [*q, *k, *v]
            .into_iter()
            .chain(rest.iter().copied())
            .collect();
        let y = self.attention().result(&of_attention)?;
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
        let reference = Reference::new(&op, operands, &operands[OPERANDS..])?;
        let (v, dy) = (Rows::new(&op, operands[2]), Rows::new(&op, operands[3]));
        let (lse, delta) = (operands[4].to_f64s(), operands[5].to_f64s());
        let mut sums: Vec<Rows> = results
            .iter()
            .map(|ty| Rows::zeros(&op, &ty.shape))
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

    fn cases() -> Vec<Case> {
        cases::training::grad()
    }

    fn rejects() -> Vec<Reject> {
        cases::training::rejects_grad()
    }
}
