//! Layer norm and RMS norm.

use crate::accuracy::Accuracy;
use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    expect_axis, expect_dtype, expect_rank_at_least, expect_same_dtype, reject, with_optional,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` over all axes from `axis` on, with the
    /// biased variance `mean((x - mean)^2)` (Ba, Kiros, Hinton 2016).
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let beta = g.param("beta", Type::new(DType::F32, [64]))?;
    /// let y = g.layer_norm(x, gamma, Some(beta), 1, 1e-5)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct LayerNorm {
        /// The first of the axes that are normalized together.
        pub axis: usize,
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// `x / sqrt(mean(x^2) + eps) * gamma + beta` over the last axis (Zhang, Sennrich 2019).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[3f32, 3.0])?)?;
    /// let gamma = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let y = g.rms_norm(x, gamma, None, 0.0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct RmsNorm {
        /// Constant added to the mean of squares.
        pub eps: FloatAttr,
    }
}

/// Checks that `eps` is finite and not negative.
pub(crate) fn expect_eps(eps: FloatAttr) -> Result<(), TypeError> {
    if eps.0.is_finite() && eps.0 >= 0.0 {
        return Ok(());
    }
    let reason = format!("{eps:?} is invalid; expected a finite number >= 0");
    Err(TypeError::Attr {
        name: "eps",
        reason,
    })
}

/// Checks that a gamma, beta or bias has the dtype of `x` and the shape `[dims]`.
pub(crate) fn expect_weight(
    operand: &'static str,
    ty: &Type,
    x: &Type,
    dims: &[Dim],
) -> Result<(), TypeError> {
    expect_same_dtype(operand, ty, x)?;
    if ty.shape[..] == *dims {
        return Ok(());
    }
    let expected = format!(
        "{}, the normalised axes of {x}",
        x.with_shape(dims.to_vec())
    );
    Err(TypeError::Rank {
        operand,
        found: ty.clone(),
        expected,
    })
}

/// Checks that the weights that are present have the dtype of `x` and the shape `[dims]`.
pub(crate) fn expect_weights(
    x: &Type,
    dims: &[Dim],
    weights: &[(&'static str, Option<&Type>)],
) -> Result<(), TypeError> {
    let there = weights
        .iter()
        .filter_map(|(name, ty)| Some((*name, (*ty)?)));
    there
        .into_iter()
        .try_for_each(|(name, ty)| expect_weight(name, ty, x, dims))
}

/// The documentation and metadata common to all norms.
pub(crate) const fn doc(
    name: &'static str,
    text: &'static str,
    operands: &'static [&'static str],
) -> OpDoc {
    OpDoc {
        name,
        text,
        operands,
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Composite,
    }
}

/// Layer norm of one group; `beta` is empty for none.
pub(crate) fn layer_norm_line(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64, y: &mut [f64]) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let deviation = (variance + eps).sqrt();
    for (i, (y, v)) in y.iter_mut().zip(x).enumerate() {
        *y = (v - mean) / deviation * gamma[i] + beta.get(i).unwrap_or(&0.0);
    }
}

/// RMS norm of one line; `beta` is empty for none.
pub(crate) fn rms_norm_line(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64, y: &mut [f64]) {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let rms = (mean_square + eps).sqrt();
    for (i, (y, v)) in y.iter_mut().zip(x).enumerate() {
        *y = v / rms * gamma[i] + beta.get(i).unwrap_or(&0.0);
    }
}

/// The norm of one group: x, gamma, beta (may be empty), eps, y.
pub(crate) type NormRowFn = fn(&[f64], &[f64], &[f64], f64, &mut [f64]);

/// Applies `line` to each group of `gamma.len()` elements of `x`.
pub(crate) fn normalise(
    line: NormRowFn,
    x: &[f64],
    gamma: &[f64],
    beta: &[f64],
    eps: f64,
) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    if gamma.is_empty() {
        return y;
    }
    for (x, y) in x
        .chunks_exact(gamma.len())
        .zip(y.chunks_exact_mut(gamma.len()))
    {
        line(x, gamma, beta, eps, y);
    }
    y
}

fn eval_norm(
    line: NormRowFn,
    eps: FloatAttr,
    operands: &[&Tensor],
    results: &[TensorType],
) -> Result<Vec<Tensor>, EvalError> {
    let gamma = operands[1].to_f64s();
    let beta = operands.get(2).map_or(vec![], |b| b.to_f64s());
    let y = normalise(line, &operands[0].to_f64s(), &gamma, &beta, eps.0);
    Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
}

impl OpSpec for LayerNorm {
    const DOC: OpDoc = doc(
        "layer_norm",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` over the axes from `axis` on.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::norm::layer_norm);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_axis(self.axis, x.rank())?;
        expect_eps(self.eps)?;
        let dims = &x.shape[self.axis..];
        expect_weights(x, dims, &[("gamma", Some(gamma)), ("beta", beta)])?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval_norm(layer_norm_line, self.eps, operands, results)
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], axis: usize, with_beta: bool| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Normal)?;
                let (gamma, beta) = weights(c, &shape[axis..], with_beta)?;
                let y = c.graph.layer_norm(x, gamma, beta, axis, 1e-5)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_rows_7x33", &[7, 33], 1, true),
            shaped("without_beta", &[5, 12], 1, false),
            shaped("two_axes", &[3, 4, 5], 1, true),
            shaped("all_axes", &[3, 5], 0, true),
            shaped("long_row", &[2, 3000], 1, true),
            shaped("one_element", &[4, 1], 1, true),
            shaped("no_rows", &[0, 4], 1, true),
            shaped("empty_rows", &[3, 0], 1, true),
            OpCase::new("pinned", |c| {
                let x = c.input(
                    "x",
                    [3, 2],
                    InputFill::Values(vec![1., 3., -2., 2., 5., 5.]),
                )?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![2.0, 4.0]))?;
                let beta = c.input("beta", [2], InputFill::Values(vec![0.5, 1.0]))?;
                let y = c.graph.layer_norm(x, gamma, Some(beta), 1, 1e-9)?;
                c.output(y)?;
                let exact = c.graph.layer_norm(x, gamma, Some(beta), 1, 0.0)?;
                let nan = f64::NAN; // a constant row without eps: 0 / 0
                c.output_expect(exact, &[-1.5, 5.0, -1.5, 5.0, nan, nan])
            }),
            OpCase::new("constant_row_gives_beta", |c| {
                let x = c.input("x", [1, 4], InputFill::Values(vec![3.0; 4]))?;
                let gamma = c.input("gamma", [4], InputFill::Values(vec![7.0; 4]))?;
                let beta = c.input("beta", [4], InputFill::Values(vec![1.0, 2.0, 3.0, 4.0]))?;
                let y = c.graph.layer_norm(x, gamma, Some(beta), 1, 1e-5)?;
                c.output_expect(y, &[1.0, 2.0, 3.0, 4.0])
            }),
            OpCase::new("nan_stays_in_its_row", |c| {
                let x = c.input(
                    "x",
                    [2, 2],
                    InputFill::Values(vec![f64::NAN, 1.0, 1.0, 3.0]),
                )?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![1.0; 2]))?;
                let y = c.graph.layer_norm(x, gamma, None, 1, 0.0)?;
                c.output_expect(y, &[f64::NAN, f64::NAN, -1.0, 1.0])
            }),
            // The sum and the squares exceed the range of F16.
            OpCase::new("large_values_do_not_overflow", |c| {
                let x = InputFill::Values([40960.0, 49152.0].repeat(24));
                let x = c.input("x", [1, 48], x)?;
                let gamma = c.input("gamma", [48], InputFill::Values(vec![2.0; 48]))?;
                let y = c.graph.layer_norm(x, gamma, None, 1, 0.0)?;
                c.output_expect(y, &[-2.0, 2.0].repeat(24))
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [2.into(), s, 16.into()], InputFill::Normal)?;
                let gamma = weight(c, "gamma", &[16])?;
                let y = c.graph.layer_norm(x, gamma, None, 2, 1e-12)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject(
                "gamma_shape",
                "operand gamma has type f32[2]; expected f32[3]",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                    let gamma = g.input("gamma", Type::new(DType::F32, [2]))?;
                    g.layer_norm(x, gamma, None, 1, 1e-5)
                },
            ),
            reject("beta_dtype", "operand beta is f16", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
                let beta = g.input("beta", Type::new(DType::F16, [3]))?;
                g.layer_norm(x, gamma, Some(beta), 1, 1e-5)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
                g.layer_norm(x, gamma, None, 2, 1e-5)
            }),
            reject("eps", "attribute `eps`", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
                g.layer_norm(x, gamma, None, 1, f64::NAN)
            }),
        ]
    }
}

impl OpSpec for RmsNorm {
    const DOC: OpDoc = doc(
        "rms_norm",
        "`x / sqrt(mean(x^2) + eps) * gamma + beta` over the last axis.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::norm::rms_norm);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        expect_eps(self.eps)?;
        let dims = &x.shape[x.rank() - 1..];
        expect_weights(x, dims, &[("gamma", Some(gamma)), ("beta", beta)])?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval_norm(rms_norm_line, self.eps, operands, results)
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], with_beta: bool| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Normal)?;
                let (gamma, beta) = weights(c, &shape[shape.len() - 1..], with_beta)?;
                let y = c.graph.rms_norm(x, gamma, beta, 1e-6)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_rows_7x33", &[7, 33], false),
            shaped("with_beta", &[2, 3, 20], true),
            shaped("one_axis", &[17], false),
            shaped("long_row", &[2, 3000], false),
            shaped("no_rows", &[0, 4], false),
            shaped("empty_rows", &[3, 0], true),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [2, 2], InputFill::Values(vec![1.0, 7.0, 0.0, 0.0]))?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![5.0, 2.5]))?;
                let beta = c.input("beta", [2], InputFill::Values(vec![0.0, 0.5]))?;
                let y = c.graph.rms_norm(x, gamma, Some(beta), 0.0)?;
                // The second row is 0 / 0, because eps is 0.
                c.output_expect(y, &[1.0, 4.0, f64::NAN, f64::NAN])?;
                let y = c.graph.rms_norm(x, gamma, Some(beta), 39.0)?;
                c.output_expect(y, &[0.625, 2.6875, 0.0, 0.5])
            }),
            OpCase::new("nan_stays_in_its_row", |c| {
                let x = c.input(
                    "x",
                    [2, 2],
                    InputFill::Values(vec![f64::NAN, 1.0, 1.0, 1.0]),
                )?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![1.0, 3.0]))?;
                let y = c.graph.rms_norm(x, gamma, None, 0.0)?;
                c.output_expect(y, &[f64::NAN, f64::NAN, 1.0, 3.0])
            }),
            // The squares exceed the range of F16, so kernels must accumulate in F32.
            OpCase::new("squares_beyond_f16", |c| {
                let x = c.input("x", [1, 2], InputFill::Values(vec![4096.0, 4096.0]))?;
                let gamma = c.input("gamma", [2], InputFill::Values(vec![1.0, 2.0]))?;
                let y = c.graph.rms_norm(x, gamma, None, 0.0)?;
                c.output_expect(y, &[1.0, 2.0])
            }),
            OpCase::new("large_values_do_not_overflow", |c| {
                let x = InputFill::Values([49152.0, -49152.0].repeat(24));
                let x = c.input("x", [1, 48], x)?;
                let gamma = c.input("gamma", [48], InputFill::Values(vec![2.0; 48]))?;
                let y = c.graph.rms_norm(x, gamma, None, 0.0)?;
                c.output_expect(y, &[2.0, -2.0].repeat(24))
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [s, 16.into()], InputFill::Normal)?;
                let gamma = weight(c, "gamma", &[16])?;
                let y = c.graph.rms_norm(x, gamma, None, 1e-5)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("scalar", "expected rank 1 or more", |g| {
                let x = g.input("x", Type::new(DType::F32, [0; 0]))?;
                g.rms_norm(x, x, None, 1e-5)
            }),
            reject("integers", "operand x is i32", |g| {
                let x = g.input("x", Type::new(DType::I32, [4]))?;
                g.rms_norm(x, x, None, 1e-5)
            }),
            reject("gamma_dtype", "operand gamma is f32", |g| {
                let x = g.input("x", Type::new(DType::F16, [4]))?;
                let gamma = g.input("gamma", Type::new(DType::F32, [4]))?;
                g.rms_norm(x, gamma, None, 1e-5)
            }),
            reject(
                "negative_eps",
                "-1.0 is invalid; expected a finite number",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [4]))?;
                    g.rms_norm(x, x, None, -1.0)
                },
            ),
        ]
    }
}

/// A parameter of the case's dtype, near 1.
pub(crate) fn weight(c: &mut CaseGraph, name: &str, shape: &[usize]) -> Result<Value, OpError> {
    let ty = Type::new(c.dtype, shape);
    c.param_of(name, ty, InputFill::Uniform(0.5, 1.5))
}

/// `gamma`, and `beta` if requested.
pub(crate) fn weights(
    c: &mut CaseGraph,
    shape: &[usize],
    with_beta: bool,
) -> Result<(Value, Option<Value>), OpError> {
    let gamma = weight(c, "gamma", shape)?;
    let beta = match with_beta {
        true => Some(weight(c, "beta", shape)?),
        false => None,
    };
    Ok((gamma, beta))
}

impl Graph {
    /// Layer norm over the axes of `x` from `axis` on; `gamma` and `beta` have the shape of those
    /// axes and the dtype of `x`. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float, `axis` is out of range, `eps` is negative or not
    /// finite, or `gamma` or `beta` have another type.
    pub fn layer_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        axis: usize,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = FloatAttr(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(LayerNorm { axis, eps }, &operands)
    }

    /// RMS norm over the last axis of `x`, of size `n`; `gamma` and `beta` are `[n]` and have the
    /// dtype of `x`. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// `gamma` or `beta` have another type.
    pub fn rms_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        eps: f64,
    ) -> Result<Value, OpError> {
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(
            RmsNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )
    }
}
