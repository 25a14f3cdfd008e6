//! A matmul with bias and activation.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::contract::Contraction;
use crate::ops::util::{
    expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype, from_scalars,
    scalars, with_optional,
};
use crate::scalar::{Scalar, ScalarOp, UnaryFn};

attrs! {
    /// `y[.., n] = f(sum_k x[.., k] w[k, n] + bias[n])`, rounded once.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::scalar::UnaryFn;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 2], &[1f32, 2.0])?)?;
    /// let w = g.constant(Tensor::from_slice(&[2, 1], &[3f32, -4.0])?)?;
    /// let bias = g.constant(Tensor::from_slice(&[1], &[1f32])?)?;
    /// let y = g.linear(x, w, Some(bias), Some(UnaryFn::Relu))?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Linear {
        /// The activation `f`, which must preserve the dtype; `None` for the identity.
        pub activation: Option<UnaryFn>,
    }
}

impl OpSpec for Linear {
    const DOC: OpDoc = OpDoc {
        name: "linear",
        text: "`f(x w + bias)` with `x [.., K]`, `w [K, N]`, `bias [N]`, rounded once.",
        operands: &["x", "w", "bias?"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::linear);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, w], [bias]) = with_optional(operands)?;
        expect_dtype("x", x, DType::NUMBERS)?;
        expect_same_dtype("w", w, x)?;
        expect_rank_at_least("x", x, 1)?;
        expect_rank("w", w, 2)?;
        expect_equal("the inner dimensions", &x.shape[x.rank() - 1], &w.shape[0])?;
        if let Some(bias) = bias {
            expect_same_dtype("bias", bias, x)?;
            expect_rank("bias", bias, 1)?;
            expect_equal("bias and columns of w", &bias.shape[0], &w.shape[1])?;
        }
        if let Some(f) = self.activation {
            let to = ScalarOp::Unary(f).infer(&[x.dtype])?;
            if to != x.dtype {
                let reason = format!("{} gives {to}; apply it to the result instead", f.name());
                return Err(TypeError::Attr {
                    name: "activation",
                    reason,
                });
            }
        }
        let mut dims = x.shape[..x.rank() - 1].to_vec();
        dims.push(w.shape[1].clone());
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0], operands[1]);
        let bias = operands.get(2).map(|b| scalars(b));
        let (k, n) = (w.shape()[0], w.shape()[1]);
        let rows = x.shape()[..x.shape().len() - 1].iter().product();
        let d = results[0].dtype;
        let mut y = Contraction::matrix(rows, k, n, (n, 1)).eval(x, w);
        for (i, y) in y.iter_mut().enumerate() {
            let sum = match (*y, bias.as_ref().map(|b| b[i % n])) {
                (y, None) => y,
                (Scalar::F(y), Some(b)) => Scalar::F(y + b.as_f64()),
                (Scalar::I(y), Some(b)) => Scalar::I(d.wrap_i64(y.wrapping_add(b.as_i64()))),
            };
            *y = self.activation.map_or(sum, |f| f.eval(d, sum));
        }
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// `activation(x w + bias)` with `x [.., K]`, `w [K, N]`, `bias [N]`, all of one dtype. The
    /// result `[.., N]` is rounded once; integers wrap. The activation must preserve the dtype.
    ///
    /// # Errors
    /// [`OpError`] when shapes or dtypes do not match or the activation does not support the dtype.
    pub fn linear(
        &mut self,
        x: Value,
        w: Value,
        bias: Option<Value>,
        activation: Option<UnaryFn>,
    ) -> Result<Value, OpError> {
        let operands: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.add(Linear { activation }, &operands)
    }
}
