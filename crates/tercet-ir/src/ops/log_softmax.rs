//! The logarithm of softmax along one axis.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, expect_dtype};
use crate::scalar::maximum;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `y = x - max - ln(sum(exp(x - max)))` along one axis; a line of only `-inf` stays so, as the
    /// logarithm of the zeros that softmax gives for it.
    pub struct LogSoftmax {
        /// The axis.
        pub axis: usize,
    }
}

impl OpSpec for LogSoftmax {
    const DOC: Doc = Doc {
        name: "log_softmax",
        text: "`x - max - ln(sum(exp(x - max)))` along an axis; a line of only `-inf` stays `-inf`.",
        operands: &["x"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Composite,
    };

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_axis(self.axis, x.rank())?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0].to_f64s();
        let mut y = vec![f64::NEG_INFINITY; x.len()];
        let view = AxisView::of(operands[0].shape(), self.axis);
        view.for_each_line(|start| {
            let line = view.line(start);
            let max = line.clone().map(|i| x[i]).fold(f64::NEG_INFINITY, maximum);
            if max == f64::NEG_INFINITY {
                return;
            }
            let sum: f64 = line.clone().map(|i| (x[i] - max).exp()).sum();
            line.for_each(|i| y[i] = x[i] - max - sum.ln());
        });
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<Case> {
        let shaped = |name: &str, shape: &'static [usize], axis: usize| {
            Case::new(name, move |c| {
                let x = c.input("x", shape, Fill::Normal)?;
                let y = c.graph.log_softmax(x, axis)?;
                c.output(y)
            })
        };
        let values = |name: &str, x: &'static [f64], y: &'static [f64]| {
            Case::new(name, move |c| {
                let x = c.input("x", [x.len()], Fill::Values(x.to_vec()))?;
                let y_value = c.graph.log_softmax(x, 0)?;
                c.output_expect(y_value, y)
            })
        };
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        const LN_2: f64 = std::f64::consts::LN_2;
        vec![
            shaped("odd_rows_7x33", &[7, 33], 1),
            shaped("one_column", &[5, 1], 1),
            shaped("first_axis", &[9, 4], 0),
            shaped("middle_axis", &[2, 5, 3], 1),
            shaped("long_row", &[2, 3000], 1),
            shaped("empty_rows", &[3, 0], 1),
            shaped("no_rows", &[0, 4], 1),
            values("masked_row_stays", &[-INF, -INF], &[-INF, -INF]),
            values("partly_masked", &[-INF, 1.0, 1.0], &[-INF, -LN_2, -LN_2]),
            values("certain", &[-INF, 3.0], &[-INF, 0.0]),
            values("infinity_is_nan", &[INF, 0.0], &[NAN, NAN]),
            values("nan_spreads", &[NAN, 0.0, -INF], &[NAN, NAN, NAN]),
            values(
                "large_values_do_not_overflow",
                &[60000.0, 60000.0],
                &[-LN_2, -LN_2],
            ),
            Case::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [s, 17.into()], Fill::Normal)?;
                let y = c.graph.log_softmax(x, 1)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject {
                name: "axis",
                message: "axis 2 is out of range for rank 2",
                build: |g| {
                    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
                    g.log_softmax(x, 2)
                },
            },
            Reject {
                name: "integers",
                message: "operand x is i32",
                build: |g| {
                    let x = g.input("x", Type::new(DType::I32, [2]))?;
                    g.log_softmax(x, 0)
                },
            },
        ]
    }
}

impl Graph {
    /// The logarithm of softmax along `axis` of floats; the shape stays.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or `axis` is out of range.
    pub fn log_softmax(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        self.add(LogSoftmax { axis }, &[x])
    }
}
