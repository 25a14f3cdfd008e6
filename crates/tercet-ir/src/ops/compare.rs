//! Elementwise comparisons.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    BinaryCases, binary_graph, dtypes_that, elementwise_eval, elementwise_infer, pinned, reject,
};
use crate::scalar::{CompareFn, ScalarOp};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// A comparison of two broadcast operands of one dtype; the result is `Bool`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::Compare;
    /// use tercet_ir::scalar::CompareFn;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[3], &[1i32, 2, 3])?)?;
    /// let b = g.constant(Tensor::from_slice(&[1], &[2i32])?)?;
    /// let y = g.add(Compare { f: CompareFn::Lt }, &[a, b])?;
    /// assert_eq!(g.ty(y).to_string(), "bool[3]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).bytes(), [1, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Compare {
        /// The comparison function.
        pub f: CompareFn,
    }
}

impl OpSpec for Compare {
    const DOC: OpDoc = OpDoc {
        name: "compare",
        text: "A comparison of two broadcast operands of one dtype; the result is `bool`. Every \
               comparison with NaN is false, except `ne`.",
        operands: &["a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("the derivative of a boolean is zero");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Compare(self.f), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Compare(self.f), operands, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        let each = CompareFn::ALL.iter().flat_map(|&f| cases_of(f));
        each.chain(pinned_cases()).collect()
    }

    fn rejects() -> Vec<RejectCase> {
        fn two(g: &mut Graph, types: [Type; 2], f: CompareFn) -> Result<Value, OpError> {
            binary_graph(g, types, |g, a, b| g.compare(f, a, b))
        }
        vec![
            reject("mixed_dtypes", "cast one of them", |g| {
                two(
                    g,
                    [Type::new(DType::F32, [2]), Type::new(DType::F16, [2])],
                    CompareFn::Eq,
                )
            }),
            reject("order_of_bool", "accepted: floats and integers", |g| {
                two(
                    g,
                    [Type::new(DType::Bool, [2]), Type::new(DType::Bool, [2])],
                    CompareFn::Lt,
                )
            }),
            reject("shapes", "do not broadcast", |g| {
                two(
                    g,
                    [Type::new(DType::F32, [2]), Type::new(DType::F32, [3])],
                    CompareFn::Eq,
                )
            }),
        ]
    }
}

fn cases_of(f: CompareFn) -> [OpCase; 5] {
    let dtypes = dtypes_that(|d| ScalarOp::Compare(f).infer(&[d, d]).is_ok());
    let cases = BinaryCases {
        name: f.name(),
        dtypes,
        apply: move |g: &mut Graph, a, b| g.compare(f, a, b),
    };
    [
        cases.shaped(
            "odd_both_broadcast",
            [&[3, 1, 7], &[5, 1]],
            InputFill::Normal,
        ),
        cases.shaped(
            "all_pairs_of_special",
            [&[21, 1], &[21]],
            InputFill::Special,
        ),
        cases.shaped("rank_0", [&[], &[]], InputFill::Normal),
        cases.shaped("empty", [&[0, 3], &[3]], InputFill::Normal),
        cases.symbolic(),
    ]
}

fn pinned_cases() -> Vec<OpCase> {
    use CompareFn::*;
    const NAN: f64 = f64::NAN;
    let of = |d: &'static [DType], name: &str, f, a: &[f64], b: &[f64], y: &[f64]| {
        pinned(name, d, &[a, b], y, move |g, v| g.compare(f, v[0], v[1]))
    };
    let float = |name, f, y: &[f64]| {
        of(
            DType::FLOATS,
            name,
            f,
            &[NAN, NAN, 0.0, 1.0],
            &[NAN, 1.0, -0.0, 2.0],
            y,
        )
    };
    let wide = |name, f, y: &[f64]| {
        let (a, b) = (&[16_777_217.0, 16_777_216.0], &[16_777_216.0, 16_777_216.0]);
        of(&[DType::I32, DType::U32, DType::I64], name, f, a, b, y)
    };
    vec![
        float("nan_equals_nothing", Eq, &[0.0, 0.0, 1.0, 0.0]),
        float("nan_differs_from_everything", Ne, &[1.0, 1.0, 0.0, 1.0]),
        float("nan_is_not_less", Lt, &[0.0, 0.0, 0.0, 1.0]),
        float("nan_is_not_less_or_equal", Le, &[0.0, 0.0, 1.0, 1.0]),
        float("nan_is_not_greater_or_equal", Ge, &[0.0, 0.0, 1.0, 0.0]),
        wide("wide_integers_are_not_floats", Eq, &[0.0, 1.0]),
        wide("wide_integers_are_ordered", Gt, &[1.0, 0.0]),
        of(
            &[DType::U32],
            "unsigned_order",
            Gt,
            &[4_294_967_295.0],
            &[1.0],
            &[1.0],
        ),
        of(
            &[DType::U8],
            "unsigned_order_u8",
            Gt,
            &[255.0],
            &[1.0],
            &[1.0],
        ),
        of(
            &[DType::I8],
            "signed_order_i8",
            Lt,
            &[-128.0],
            &[127.0],
            &[1.0],
        ),
        of(
            &[DType::Bool],
            "truth_values",
            Eq,
            &[0.0, 0.0, 1.0],
            &[0.0, 1.0, 1.0],
            &[1.0, 0.0, 1.0],
        ),
    ]
}

/// Declares builder methods that apply a [`CompareFn`].
macro_rules! compare_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
        pub fn $name(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
            self.compare(CompareFn::$f, a, b)
        }
    )* } };
}

impl Graph {
    /// Compares the elements of `a` and `b`, which broadcast; the result is `Bool`.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
    pub fn compare(&mut self, f: CompareFn, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Compare { f }, &[a, b])
    }
}

compare_methods! {
    /// `a == b` of any dtype. (`eq` compares graphs.)
    equal => Eq,
    /// `a != b` of any dtype.
    not_equal => Ne,
    /// `a < b` of numbers.
    lt => Lt,
    /// `a <= b` of numbers.
    le => Le,
    /// `a > b` of numbers.
    gt => Gt,
    /// `a >= b` of numbers.
    ge => Ge,
}
