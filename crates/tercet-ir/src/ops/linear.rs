//! A matmul with bias and activation.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
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
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        let mut cases = shaped_cases();
        cases.extend(value_cases());
        cases.push(super::layers::float_case());
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        const F32: DType = DType::F32;
        vec![
            RejectCase {
                name: "inner_dimensions",
                message: "the inner dimensions: 3 and 4 differ",
                build: |g| built(g, None, [3].into(), [4, 5].into(), None, F32),
            },
            RejectCase {
                name: "bias_size",
                message: "bias and columns of w: 4 and 5 differ",
                build: |g| built(g, None, [4].into(), [4, 5].into(), Some([4].into()), F32),
            },
            RejectCase {
                name: "bias_rank",
                message: "operand bias has type f32[1, 5]; expected rank 1",
                build: |g| built(g, None, [4].into(), [4, 5].into(), Some([1, 5].into()), F32),
            },
            RejectCase {
                name: "batched_weight",
                message: "operand w has type f32[2, 4, 5]; expected rank 2",
                build: |g| built(g, None, [2, 4].into(), [2, 4, 5].into(), None, F32),
            },
            RejectCase {
                name: "activation_to_truth_values",
                message: "is_nan gives bool",
                build: |g| {
                    built(
                        g,
                        Some(UnaryFn::IsNan),
                        [4].into(),
                        [4, 5].into(),
                        None,
                        F32,
                    )
                },
            },
            RejectCase {
                name: "gelu_of_integers",
                message: "accepted: floats",
                build: |g| {
                    let f = Some(UnaryFn::Gelu);
                    built(g, f, [4].into(), [4, 5].into(), None, DType::I32)
                },
            },
        ]
    }
}

fn built(
    g: &mut Graph,
    f: Option<UnaryFn>,
    x: crate::Shape,
    w: crate::Shape,
    bias: Option<crate::Shape>,
    dtype: DType,
) -> Result<Value, OpError> {
    let x = g.input("x", Type::new(dtype, x))?;
    let w = g.input("w", Type::new(dtype, w))?;
    let bias = bias
        .map(|b| g.input("bias", Type::new(dtype, b)))
        .transpose()?;
    g.linear(x, w, bias, f)
}

/// Two cases: one without and one with a bias.
fn pair(name: &str, x: &'static [usize], n: usize, f: Option<UnaryFn>) -> [OpCase; 2] {
    [false, true].map(|biased| {
        let name = format!("{name}{}", if biased { "_bias" } else { "" });
        OpCase::new(name, move |c| {
            let dtype = c.dtype;
            let k = x[x.len() - 1];
            let x = c.input("x", x, InputFill::Normal)?;
            let w = c.param_of("w", Type::new(dtype, [k, n]), InputFill::Normal)?;
            let bias = match biased {
                true => Some(c.param_of("bias", Type::new(dtype, [n]), InputFill::Normal)?),
                false => None,
            };
            let y = c.graph.linear(x, w, bias, f)?;
            c.output(y)
        })
    })
}

fn shaped_cases() -> Vec<OpCase> {
    let plain = [
        ("odd_7x33x5", &[7, 33][..], 5),
        ("tiles_and_rest_65x40x129", &[65, 40], 129),
        ("whole_words_150x48x200", &[150, 48], 200),
        ("one_row_1x70x41", &[1, 70], 41),
        ("vector", &[19], 6),
        ("rank_3", &[2, 3, 9], 17),
        ("no_rows", &[0, 5], 3),
        ("no_columns", &[4, 5], 0),
        ("no_depth", &[3, 0], 4),
    ];
    let activations = [
        ("sigmoid", UnaryFn::Sigmoid),
        ("tanh", UnaryFn::Tanh),
        ("gelu", UnaryFn::Gelu),
        ("gelu_tanh", UnaryFn::GeluTanh),
        ("silu", UnaryFn::Silu),
        ("softplus", UnaryFn::Softplus),
    ];
    let relu = pair("relu_7x33x5", &[7, 33], 5, Some(UnaryFn::Relu));
    let tiles = pair(
        "gelu_tiles_and_rest_65x40x129",
        &[65, 40],
        129,
        Some(UnaryFn::Gelu),
    )
    .map(|case| case.only(DType::FLOATS));
    let gelu = Some(UnaryFn::Gelu);
    let words = pair("gelu_whole_words_150x48x200", &[150, 48], 200, gelu);
    let words = words.map(|case| case.only(DType::FLOATS));
    // Few results with long sums, for which devices may use split-K.
    let long = pair("gelu_long_16x4096x24", &[16, 4096], 24, gelu);
    let long = long.map(|case| case.only(DType::FLOATS));
    // Sizes of whole fragments, so that devices may prepack the weights.
    let laid = pair("gelu_laid_out_70x128x192", &[70, 128], 192, gelu);
    let laid = laid.map(|case| case.only(&[DType::F16]));
    // A matmul large enough that some devices use split-F16.
    let [_, pairs] = pair("gelu_many_256x768x3072", &[256, 768], 3072, gelu);
    plain
        .into_iter()
        .flat_map(|(name, x, n)| pair(name, x, n, None))
        .chain([pairs.only(&[DType::F32])])
        .chain(laid)
        .chain(relu)
        .chain(tiles)
        .chain(words)
        .chain(long)
        .chain(activations.into_iter().flat_map(|(name, f)| {
            pair(name, &[3, 11], 13, Some(f)).map(|case| case.only(DType::FLOATS))
        }))
        .collect()
}

fn value_cases() -> Vec<OpCase> {
    vec![
        OpCase::new("few_rows_of_transposed_gelu", |c| {
            let dtype = c.dtype;
            let x = c.input("x", [2, 64], InputFill::Normal)?;
            let w = c.param_of("w", Type::new(dtype, [10, 64]), InputFill::Normal)?;
            let w = c.graph.transpose(w, &[1, 0])?;
            let bias = c.param_of("bias", Type::new(dtype, [10]), InputFill::Normal)?;
            let y = c.graph.linear(x, w, Some(bias), Some(UnaryFn::Gelu))?;
            c.output(y)
        })
        .only(DType::FLOATS),
        OpCase::new("symbolic_rows", |c| {
            let (b, s, dtype) = (c.sym("b", 2, 4), c.sym("s", 5, 8), c.dtype);
            let x = c.input("x", [b, s, 12.into()], InputFill::Normal)?;
            let w = c.param_of("w", Type::new(dtype, [12, 7]), InputFill::Normal)?;
            let bias = c.param_of("bias", Type::new(dtype, [7]), InputFill::Normal)?;
            let y = c.graph.linear(x, w, Some(bias), Some(UnaryFn::Relu))?;
            c.output(y)
        }),
        OpCase::new("one_row_by_transposed_weight", |c| {
            let x = c.input("x", [1, 70], InputFill::Normal)?;
            let w = c.param_of("w", Type::new(c.dtype, [41, 70]), InputFill::Normal)?;
            let w = c.graph.transpose(w, &[1, 0])?;
            let y = c.graph.linear(x, w, None, Some(UnaryFn::Silu))?;
            c.output(y)
        })
        .only(DType::FLOATS),
        OpCase::new("empty_sum_is_the_bias", |c| {
            let x = c.input("x", [2, 0], InputFill::Normal)?;
            let w = c.input("w", [0, 2], InputFill::Normal)?;
            let bias = c.input("bias", [2], InputFill::Values(vec![3.0, 5.0]))?;
            let y = c.graph.linear(x, w, Some(bias), None)?;
            c.output_expect(y, &[3.0, 5.0, 3.0, 5.0])
        }),
        OpCase::new("relu_keeps_nan", |c| {
            let x = c.input("x", [2, 1], InputFill::Values(vec![f64::NAN, -2.0]))?;
            let w = c.input("w", [1, 2], InputFill::Values(vec![1.0, -1.0]))?;
            let y = c.graph.linear(x, w, None, Some(UnaryFn::Relu))?;
            c.output_expect(y, &[f64::NAN, f64::NAN, 0.0, 2.0])
        })
        .only(DType::FLOATS),
        // Whole fragments; the fast gelu of their epilogue must preserve NaN and infinity.
        OpCase::new("gelu_keeps_nan_and_infinity_70x128x192", |c| {
            let dtype = c.dtype;
            let mut values: Vec<f64> = (0..70 * 128)
                .map(|i| (i * 37 % 17 - 8) as f64 / 16.0)
                .collect();
            values[3 * 128 + 5] = f64::NAN;
            values[9 * 128 + 77] = f64::INFINITY;
            values[69 * 128 + 127] = f64::NEG_INFINITY;
            let weights = (0..128 * 192)
                .map(|i| (i * 11 % 7 - 3) as f64 / 8.0)
                .collect();
            let x = c.input("x", [70, 128], InputFill::Values(values))?;
            let w = c.param_of(
                "w",
                Type::new(dtype, [128, 192]),
                InputFill::Values(weights),
            )?;
            let y = c.graph.linear(x, w, None, Some(UnaryFn::Gelu))?;
            c.output(y)
        })
        .only(&[DType::F16]),
        // 2049 is not an f16: rounding it before the bias is added would give 2048.
        OpCase::new("bias_is_added_before_rounding", |c| {
            let x = c.input("x", [1, 2], InputFill::Values(vec![2048.0, 1.0]))?;
            let w = c.input("w", [2, 1], InputFill::Values(vec![1.0, 1.0]))?;
            let bias = c.input("bias", [1], InputFill::Values(vec![1.0]))?;
            let y = c.graph.linear(x, w, Some(bias), None)?;
            c.output_expect(y, &[2050.0])
        })
        .only(&[DType::F32, DType::F16, DType::F64]),
        OpCase::new("integers_wrap_before_relu", |c| {
            let x = c.input("x", [1, 1], InputFill::Values(vec![100.0]))?;
            let w = c.input("w", [1, 2], InputFill::Values(vec![1.0, -1.0]))?;
            let bias = c.input("bias", [2], InputFill::Values(vec![100.0, -100.0]))?;
            let y = c.graph.linear(x, w, Some(bias), Some(UnaryFn::Relu))?;
            c.output_expect(y, &[0.0, 56.0])
        })
        .only(&[DType::I8]),
    ]
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
