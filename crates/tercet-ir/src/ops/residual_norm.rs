//! Norms of a residual sum, with the sum as a second result.

use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec};
use crate::ops::norm::{
    NormRowFn, doc, expect_eps, expect_weights, layer_norm_line, normalise, rms_norm_line, weight,
};
use crate::ops::util::{
    expect_dtype, expect_rank_at_least, expect_same_dtype, reject, with_optional,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The sum `x + residual + bias` and its layer norm over the last axis. The sum is rounded to
    /// its dtype first, so `normed` equals [`LayerNorm`](crate::ops::LayerNorm) of `sum`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let residual = g.input("residual", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let beta = g.param("beta", Type::new(DType::F32, [64]))?;
    /// let (a, b) = g.residual_layer_norm(x, residual, gamma, beta, None, 1e-5)?;
    /// assert_eq!((g.ty(a), g.ty(b)), (g.ty(x), g.ty(x)));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ResidualLayerNorm {
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// The sum `x + residual + bias` and its RMS norm over the last axis. The sum is rounded to its
    /// dtype first, so `normed` equals [`RmsNorm`](crate::ops::RmsNorm) of `sum`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let residual = g.input("residual", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let (a, b) = g.residual_rms_norm(x, residual, gamma, None, 1e-5)?;
    /// assert_eq!((g.ty(a), g.ty(b)), (g.ty(x), g.ty(x)));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ResidualRmsNorm {
        /// Constant added to the mean of squares.
        pub eps: FloatAttr,
    }
}

/// Checks `x`, `residual` and the weights, and returns the types of both results.
fn infer_residual(
    eps: FloatAttr,
    x: &Type,
    residual: &Type,
    weights: &[(&'static str, Option<&Type>)],
) -> Result<Vec<Type>, TypeError> {
    expect_dtype("x", x, DType::FLOATS)?;
    expect_rank_at_least("x", x, 1)?;
    expect_eps(eps)?;
    expect_same_dtype("residual", residual, x)?;
    if residual.shape != x.shape {
        return Err(TypeError::Rank {
            operand: "residual",
            found: residual.clone(),
            expected: format!("{x}, the type of x"),
        });
    }
    expect_weights(x, &x.shape[x.rank() - 1..], weights)?;
    Ok(vec![x.clone(), x.clone()])
}

fn eval_residual(
    line: NormRowFn,
    eps: FloatAttr,
    [x, residual, gamma]: [&Tensor; 3],
    [beta, bias]: [Option<&Tensor>; 2],
    results: &[TensorType],
) -> Result<Vec<Tensor>, EvalError> {
    let gamma = gamma.to_f64s();
    let optional = |t: Option<&Tensor>| t.map_or(vec![], Tensor::to_f64s);
    let (beta, bias) = (optional(beta), optional(bias));
    let mut sum = x.to_f64s();
    for (i, (s, r)) in sum.iter_mut().zip(residual.to_f64s()).enumerate() {
        *s += r;
        if !bias.is_empty() {
            *s += bias[i % bias.len()];
        }
    }
    let sum = Tensor::from_f64s(results[1].clone(), &sum)?;
    let normed = normalise(line, &sum.to_f64s(), &gamma, &beta, eps.0);
    Ok(vec![Tensor::from_f64s(results[0].clone(), &normed)?, sum])
}

impl OpSpec for ResidualLayerNorm {
    const DOC: OpDoc = doc(
        "residual_layer_norm",
        "Two results: the layer norm of `sum` over the last axis, and `sum = x + residual + bias`.",
        &["x", "residual", "gamma", "beta", "bias?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, residual, gamma, beta], [bias]) = with_optional(operands)?;
        let weights = [("gamma", Some(gamma)), ("beta", Some(beta)), ("bias", bias)];
        infer_residual(self.eps, x, residual, &weights)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let required = [operands[0], operands[1], operands[2]];
        let optional = [Some(operands[3]), operands.get(4).copied()];
        eval_residual(layer_norm_line, self.eps, required, optional, results)
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], with_bias: bool| {
            OpCase::new(name, move |c| {
                let (x, residual, gamma, bias) = operands(c, shape, with_bias)?;
                let beta = weight(c, "beta", &shape[shape.len() - 1..])?;
                let (normed, sum) = c
                    .graph
                    .residual_layer_norm(x, residual, gamma, beta, bias, 1e-5)?;
                c.output(normed)?;
                c.output(sum)
            })
        };
        vec![
            shaped("odd_rows_7x33", &[7, 33], false),
            shaped("with_bias", &[2, 3, 20], true),
            shaped("no_rows", &[0, 4], true),
            shaped("empty_rows", &[2, 0], true),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [2, 2], InputFill::Values(vec![1.0, 3.0, -4.0, 0.0]))?;
                let r = c.input("r", [2, 2], InputFill::Values(vec![0.5, -0.5, 1.0, 2.0]))?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![2.0, 4.0]))?;
                let beta = c.input("beta", [2], InputFill::Values(vec![0.0, 1.0]))?;
                let bias = c.input("bias", [2], InputFill::Values(vec![0.5, 0.5]))?;
                let (normed, sum) =
                    c.graph
                        .residual_layer_norm(x, r, gamma, beta, Some(bias), 0.0)?;
                c.output_expect(normed, &[-2.0, 5.0, -2.0, 5.0])?;
                c.output_expect(sum, &[2.0, 3.0, -2.5, 2.5])
            }),
            OpCase::new("only_the_sum_is_used", |c| {
                let (x, residual, gamma, _) = operands(c, &[3, 5], false)?;
                let (_, sum) = c
                    .graph
                    .residual_layer_norm(x, residual, gamma, gamma, None, 1e-5)?;
                c.output(sum)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject(
                "residual_shape",
                "operand residual has type f32[1, 3]; expected f32[2, 3]",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                    let r = g.input("r", Type::new(DType::F32, [1, 3]))?;
                    let w = g.input("w", Type::new(DType::F32, [3]))?;
                    Ok(g.residual_layer_norm(x, r, w, w, None, 1e-5)?.0)
                },
            ),
            reject(
                "bias_shape",
                "operand bias has type f32[2, 3]; expected f32[3]",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                    let w = g.input("w", Type::new(DType::F32, [3]))?;
                    Ok(g.residual_layer_norm(x, x, w, w, Some(x), 1e-5)?.0)
                },
            ),
            reject("no_beta", "expected 4 to 5 operands, got 3", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                let w = g.input("w", Type::new(DType::F32, [3]))?;
                g.add(
                    ResidualLayerNorm {
                        eps: FloatAttr(0.0),
                    },
                    &[x, x, w],
                )
            }),
        ]
    }
}

impl OpSpec for ResidualRmsNorm {
    const DOC: OpDoc = doc(
        "residual_rms_norm",
        "Two results: the RMS norm of `sum` over the last axis, and `sum = x + residual + bias`.",
        &["x", "residual", "gamma", "bias?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, residual, gamma], [bias]) = with_optional(operands)?;
        let weights = [("gamma", Some(gamma)), ("bias", bias)];
        infer_residual(self.eps, x, residual, &weights)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let required = [operands[0], operands[1], operands[2]];
        let optional = [None, operands.get(3).copied()];
        eval_residual(rms_norm_line, self.eps, required, optional, results)
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], with_bias: bool| {
            OpCase::new(name, move |c| {
                let (x, residual, gamma, bias) = operands(c, shape, with_bias)?;
                let (normed, sum) = c.graph.residual_rms_norm(x, residual, gamma, bias, 1e-6)?;
                c.output(normed)?;
                c.output(sum)
            })
        };
        vec![
            shaped("odd_rows_7x33", &[7, 33], false),
            shaped("with_bias", &[2, 3, 20], true),
            shaped("no_rows", &[0, 4], true),
            shaped("empty_rows", &[2, 0], true),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [1, 2], InputFill::Values(vec![0.5, 3.0]))?;
                let r = c.input("r", [1, 2], InputFill::Values(vec![0.25, 3.75]))?;
                let bias = c.input("bias", [2], InputFill::Values(vec![0.25, 0.25]))?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![5.0, 2.5]))?;
                let (normed, sum) = c.graph.residual_rms_norm(x, r, gamma, Some(bias), 0.0)?;
                c.output_expect(normed, &[1.0, 3.5])?;
                c.output_expect(sum, &[1.0, 7.0])
            }),
            // 2048 + 1 is 2048 in F16, so the normalized elements are equal.
            OpCase::new("norm_is_of_the_rounded_sum", |c| {
                let x = c.input("x", [2], InputFill::Values(vec![2048.0, 2048.0]))?;
                let r = c.input("r", [2], InputFill::Values(vec![1.0, 0.0]))?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![1.0, 1.0]))?;
                let (normed, sum) = c.graph.residual_rms_norm(x, r, gamma, None, 0.0)?;
                c.output_expect(normed, &[1.0, 1.0])?;
                c.output_expect(sum, &[2048.0, 2048.0])
            })
            .only(&[DType::F16]),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [s.clone(), 16.into()], InputFill::Normal)?;
                let r = c.input("r", [s, 16.into()], InputFill::Normal)?;
                let gamma = weight(c, "gamma", &[16])?;
                let (normed, sum) = c.graph.residual_rms_norm(x, r, gamma, None, 1e-5)?;
                c.output(normed)?;
                c.output(sum)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("residual_dtype", "operand residual is f16", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                let r = g.input("r", Type::new(DType::F16, [2, 3]))?;
                let w = g.input("w", Type::new(DType::F32, [3]))?;
                Ok(g.residual_rms_norm(x, r, w, None, 1e-5)?.0)
            }),
            reject(
                "gamma_shape",
                "operand gamma has type f32[2]; expected f32[3]",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                    let w = g.input("w", Type::new(DType::F32, [2]))?;
                    Ok(g.residual_rms_norm(x, x, w, None, 1e-5)?.0)
                },
            ),
            reject("infinite_eps", "attribute `eps`", |g| {
                let x = g.input("x", Type::new(DType::F32, [3]))?;
                Ok(g.residual_rms_norm(x, x, x, None, f64::INFINITY)?.0)
            }),
        ]
    }
}

/// `x`, `residual`, `gamma` and optionally a bias of a case.
fn operands(
    c: &mut CaseGraph,
    shape: &[usize],
    with_bias: bool,
) -> Result<(Value, Value, Value, Option<Value>), OpError> {
    let last = &shape[shape.len() - 1..];
    let x = c.input("x", shape, InputFill::Normal)?;
    let residual = c.input("residual", shape, InputFill::Normal)?;
    let gamma = weight(c, "gamma", last)?;
    let bias = match with_bias {
        true => Some(weight(c, "bias", last)?),
        false => None,
    };
    Ok((x, residual, gamma, bias))
}

impl Graph {
    /// `(layer_norm(sum), sum)` with `sum = x + residual + bias`. `x` and `residual` have one type;
    /// `gamma`, `beta` and `bias` are `[n]` for a last axis of `n`. Both results have the type of
    /// `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// another operand has another type.
    pub fn residual_layer_norm(
        &mut self,
        x: Value,
        residual: Value,
        gamma: Value,
        beta: Value,
        bias: Option<Value>,
        eps: f64,
    ) -> Result<(Value, Value), OpError> {
        let operands: Vec<Value> = [x, residual, gamma, beta].into_iter().chain(bias).collect();
        let normed = self.add(
            ResidualLayerNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )?;
        Ok((normed, normed.port(1)))
    }

    /// `(rms_norm(sum), sum)` with `sum = x + residual + bias`. `x` and `residual` have one type;
    /// `gamma` and `bias` are `[n]` for a last axis of `n`. Both results have the type of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// another operand has another type.
    pub fn residual_rms_norm(
        &mut self,
        x: Value,
        residual: Value,
        gamma: Value,
        bias: Option<Value>,
        eps: f64,
    ) -> Result<(Value, Value), OpError> {
        let operands: Vec<Value> = [x, residual, gamma].into_iter().chain(bias).collect();
        let normed = self.add(
            ResidualRmsNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )?;
        Ok((normed, normed.port(1)))
    }
}
