//! Conversion between dtypes.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer, pinned};
use crate::scalar::ScalarOp;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// Conversion of each element to a dtype. Floats round to nearest even. Floats to integers
    /// truncate and saturate, and NaN becomes 0. Integers to narrower integers wrap. `Bool` is "not
    /// 0".
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[-1.9f32, 2.5, 1e20])?)?;
    /// let y = g.cast(x, DType::I32)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [-1, 2, i32::MAX]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Cast {
        /// The dtype of the result.
        pub to: DType,
    }
}

impl OpSpec for Cast {
    const DOC: OpDoc = OpDoc {
        name: "cast",
        text: "Conversion to a dtype: floats round to nearest even; floats to integers truncate and \
               saturate, NaN becomes 0; integers to narrower integers wrap; `bool` is \"not 0\".",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::cast);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Cast(self.to), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Cast(self.to), operands, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        let each = DType::ALL.iter().flat_map(|&to| cases_to(to));
        each.chain(pinned_cases()).collect()
    }

    fn rejects() -> Vec<RejectCase> {
        vec![RejectCase {
            name: "arity",
            message: "expected 1 operands, got 2",
            build: |g| {
                let x = g.input("x", Type::new(DType::F32, [1]))?;
                g.add(Cast { to: DType::F16 }, &[x, x])
            },
        }]
    }
}

fn cases_to(to: DType) -> [OpCase; 3] {
    let shaped = |what: &str, shape: &'static [usize], fill: InputFill| {
        OpCase::new(format!("to_{to}_{what}"), move |c| {
            let x = c.input("x", shape, fill.clone())?;
            let y = c.graph.cast(x, to)?;
            c.output(y)
        })
    };
    [
        shaped("odd_3x11", &[3, 11], InputFill::Normal),
        shaped("special", &[21], InputFill::Special),
        shaped("rank_0", &[], InputFill::Normal),
    ]
}

fn pinned_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;
    let to = |name: &str, from: &'static [DType], to: DType, x: &[f64], y: &[f64]| {
        pinned(name, from, &[x], y, move |g, v| g.cast(v[0], to))
    };
    let x = [NAN, INF, -INF, -1.5, 1.75, 3e4];
    let (i32_min, i32_max) = (f64::from(i32::MIN), f64::from(i32::MAX));
    let i64_max = i64::MAX as f64;
    const F32: &[DType] = &[DType::F32, DType::F64];
    let floats = |name: &str, dtype: DType, y: &[f64]| to(name, F32, dtype, &x, y);
    vec![
        floats(
            "saturates_to_i32",
            DType::I32,
            &[0.0, i32_max, i32_min, -1.0, 1.0, 3e4],
        ),
        floats(
            "saturates_to_u32",
            DType::U32,
            &[0.0, 4_294_967_295.0, 0.0, 0.0, 1.0, 3e4],
        ),
        floats(
            "saturates_to_i64",
            DType::I64,
            &[0.0, i64_max, -i64_max, -1.0, 1.0, 3e4],
        ),
        floats(
            "saturates_to_i8",
            DType::I8,
            &[0.0, 127.0, -128.0, -1.0, 1.0, 127.0],
        ),
        floats(
            "saturates_to_u8",
            DType::U8,
            &[0.0, 255.0, 0.0, 0.0, 1.0, 255.0],
        ),
        floats("truth", DType::Bool, &[1.0; 6]),
        to(
            "zero_is_false",
            DType::FLOATS,
            DType::Bool,
            &[0.0, -0.0, 0.5],
            &[0.0, 0.0, 1.0],
        ),
        to(
            "narrow_floats_saturate",
            &[DType::F16, DType::BF16],
            DType::I8,
            &x,
            &[0.0, 127.0, -128.0, -1.0, 1.0, 127.0],
        ),
        to(
            "ties_to_even_f16",
            F32,
            DType::F16,
            &[2049.0, 2051.0, 65519.0, 65520.0],
            &[2048.0, 2052.0, 65504.0, INF],
        ),
        to(
            "ties_to_even_bf16",
            F32,
            DType::BF16,
            &[257.0, 259.0],
            &[256.0, 260.0],
        ),
        to(
            "integers_wrap",
            &[DType::I32, DType::I64],
            DType::I8,
            &[128.0, -129.0, 256.0],
            &[-128.0, 127.0, 0.0],
        ),
        to(
            "negative_to_unsigned",
            &[DType::I32, DType::I64, DType::I8],
            DType::U8,
            &[-1.0, 5.0],
            &[255.0, 5.0],
        ),
        to(
            "nonzero_is_true",
            DType::INTS,
            DType::Bool,
            &[0.0, 2.0, 100.0],
            &[0.0, 1.0, 1.0],
        ),
        to(
            "truth_to_numbers",
            &[DType::Bool],
            DType::F32,
            &[0.0, 1.0],
            &[0.0, 1.0],
        ),
        to(
            "wide_integer_to_i64",
            &[DType::I32, DType::U32],
            DType::I64,
            &[16_777_217.0],
            &[16_777_217.0],
        ),
        to(
            "wide_integer_to_f32",
            &[DType::I32, DType::U32, DType::I64],
            DType::F32,
            &[16_777_217.0, 16_777_219.0],
            &[16_777_216.0, 16_777_220.0],
        ),
        wide_to(
            "i64_rounds_once_to_f32",
            DType::F32,
            (1 << 62) + (1 << 38) + 1,
            2f64.powi(62) + 2f64.powi(39),
        ),
        wide_to(
            "i64_rounds_once_to_bf16",
            DType::BF16,
            (1 << 62) + (1 << 54) + 1,
            2f64.powi(62) + 2f64.powi(55),
        ),
        OpCase::new("empty_symbolic", |c| {
            let s = c.sym("s", 0, 9);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let y = c.graph.cast(x, DType::F32)?;
            c.output_expect(y, &[])
        }),
    ]
}

/// An integer that no `f64` represents, just above the midpoint of two results.
fn wide_to(name: &str, to: DType, x: i64, y: f64) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.graph.constant(Tensor::scalar(x))?;
        let y_value = c.graph.cast(x, to)?;
        c.output_expect(y_value, &[y])
    })
    .only(&[DType::I64])
}

impl Graph {
    /// `x` of any dtype and shape converted to `to`, by the rules of [`Cast`].
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn cast(&mut self, x: Value, to: DType) -> Result<Value, OpError> {
        self.add(Cast { to }, &[x])
    }
}
