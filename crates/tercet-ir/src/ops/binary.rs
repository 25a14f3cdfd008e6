//! Elementwise functions of two operands.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    BinaryCases, binary_graph, dtypes_that, elementwise_eval, elementwise_infer, pinned, reject,
};
use crate::scalar::{BinaryFn, ScalarOp};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// A function of two broadcast operands of one dtype: `y = f(a, b)`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::Binary;
    /// use tercet_ir::scalar::BinaryFn;
    /// use tercet_ir::{DType, EvalCtx, Graph, Op, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.scalar(DType::F32, 10.0)?;
    /// let y = g.mul(a, b)?;
    /// assert_eq!(g.node(y.node).op, Op::from(Binary { f: BinaryFn::Mul }));
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [10.0, 20.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Binary {
        /// The elementwise function.
        pub f: BinaryFn,
    }
}

impl OpSpec for Binary {
    const DOC: OpDoc = OpDoc {
        name: "binary",
        text: "A function of two broadcast operands of one dtype: `y = f(a, b)`. Integers wrap; `x \
               / 0 = x`, `x % 0 = 0`; shift counts are taken modulo the width.",
        operands: &["a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::binary);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Binary(self.f), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Binary(self.f), operands, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        let each = BinaryFn::ALL.iter().flat_map(|&f| cases_of(f));
        let pins = float_pins().into_iter().chain(integer_pins());
        each.chain(pins).chain(width_cases()).collect()
    }

    fn rejects() -> Vec<RejectCase> {
        fn two(g: &mut Graph, types: [Type; 2], f: BinaryFn) -> Result<Value, OpError> {
            binary_graph(g, types, |g, a, b| g.binary(f, a, b))
        }
        fn same(g: &mut Graph, dtype: DType, f: BinaryFn) -> Result<Value, OpError> {
            let ty = Type::new(dtype, [2]);
            two(g, [ty.clone(), ty], f)
        }
        vec![
            reject("mixed_dtypes", "cast one of them", |g| {
                two(
                    g,
                    [Type::new(DType::F32, [2]), Type::new(DType::I32, [2])],
                    BinaryFn::Add,
                )
            }),
            reject("shapes", "do not broadcast", |g| {
                two(
                    g,
                    [Type::new(DType::F32, [2]), Type::new(DType::F32, [3])],
                    BinaryFn::Add,
                )
            }),
            reject("symbols_that_may_differ", "do not broadcast", |g| {
                let of = |s| Type::new(DType::F32, [crate::Dim::sym(s)]);
                two(g, [of("s"), of("t")], BinaryFn::Add)
            }),
            reject("and_of_floats", "accepted: bool and integers", |g| {
                same(g, DType::F32, BinaryFn::And)
            }),
            reject("add_of_bool", "bool takes and, or, xor", |g| {
                same(g, DType::Bool, BinaryFn::Add)
            }),
            reject("shl_of_bool", "accepted: integers", |g| {
                same(g, DType::Bool, BinaryFn::Shl)
            }),
            reject("atan2_of_integers", "accepted: floats", |g| {
                same(g, DType::I32, BinaryFn::Atan2)
            }),
            reject("arity", "expected 2 operands, got 1", |g| {
                let a = g.input("a", Type::new(DType::F32, [2]))?;
                g.add(Binary { f: BinaryFn::Add }, &[a])
            }),
        ]
    }
}

/// The test cases of every function.
fn cases_of(f: BinaryFn) -> [OpCase; 6] {
    let dtypes = dtypes_that(|d| ScalarOp::Binary(f).infer(&[d, d]).is_ok());
    // Powers and angles of extreme numbers are often subnormal, and no executor's library is exact
    // there. Separate cases check their limits.
    let ordinary = matches!(f, BinaryFn::Pow | BinaryFn::Atan2);
    let cases = BinaryCases {
        name: f.name(),
        dtypes,
        apply: move |g: &mut Graph, a, b| g.binary(f, a, b),
    };
    let all_pairs = match ordinary {
        true => InputFill::Uniform(0.1, 4.0),
        false => InputFill::Special,
    };
    [
        cases.shaped("odd_17x33", [&[17, 33], &[17, 33]], InputFill::Normal),
        cases.shaped("both_broadcast", [&[3, 1, 7], &[5, 1]], InputFill::Normal),
        cases.shaped("rank_0_and_2", [&[], &[2, 3]], InputFill::Normal),
        cases.shaped("all_pairs_of_special", [&[21, 1], &[21]], all_pairs),
        cases.shaped("empty_by_broadcast", [&[0, 3], &[1, 1]], InputFill::Normal),
        cases.symbolic(),
    ]
}

fn pin(d: &'static [DType], name: &str, f: BinaryFn, a: &[f64], b: &[f64], y: &[f64]) -> OpCase {
    pinned(name, d, &[a, b], y, move |g, v| g.binary(f, v[0], v[1]))
}

fn float_pins() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    use BinaryFn::*;
    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;
    let float = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(DType::FLOATS, name, f, a, b, y);
    vec![
        float(
            "max_keeps_nan",
            Max,
            &[NAN, 1.0, NAN],
            &[1.0, NAN, INF],
            &[NAN, NAN, NAN],
        ),
        float(
            "min_keeps_nan",
            Min,
            &[NAN, 1.0, NAN],
            &[1.0, NAN, -INF],
            &[NAN, NAN, NAN],
        ),
        float(
            "max_of_infinities",
            Max,
            &[-INF, -INF],
            &[INF, 2.0],
            &[INF, 2.0],
        ),
        float(
            "division_by_zero",
            Div,
            &[1.0, -1.0, 0.0],
            &[0.0, 0.0, 0.0],
            &[INF, -INF, NAN],
        ),
        float(
            "rem_has_the_sign_of_a",
            Rem,
            &[7.5, -7.5, 7.5, 1.0, 3.0],
            &[2.0, 2.0, -2.0, 0.0, INF],
            &[1.5, -1.5, 1.5, NAN, 3.0],
        ),
        float(
            "limits_of_pow",
            Pow,
            &[0.0, 0.0, NAN, 1.0, -2.0, -8.0, 2.0, INF],
            &[0.0, -1.0, 0.0, NAN, 3.0, 0.5, -INF, -1.0],
            &[1.0, INF, 1.0, 1.0, -8.0, NAN, 0.0, 0.0],
        ),
        float(
            "limits_of_atan2",
            Atan2,
            &[0.0, NAN, 0.0],
            &[1.0, 1.0, 0.0],
            &[0.0, NAN, 0.0],
        ),
        // The signs of the zeros are only visible after a division.
        pinned(
            "zeros_are_ordered",
            DType::FLOATS,
            &[&[0.0, -0.0], &[-0.0, 0.0]],
            &[INF, INF],
            |g, v| {
                let max = g.max(v[0], v[1])?;
                g.recip(max)
            },
        ),
        pinned(
            "zeros_are_ordered_by_min",
            DType::FLOATS,
            &[&[0.0, -0.0], &[-0.0, 0.0]],
            &[-INF, -INF],
            |g, v| {
                let min = g.min(v[0], v[1])?;
                g.recip(min)
            },
        ),
        // 2049 and 2051 are halfway between two F16 numbers: ties round to even.
        pin(
            &[DType::F16],
            "ties_to_even",
            Add,
            &[2048.0, 2050.0],
            &[1.0, 1.0],
            &[2048.0, 2052.0],
        ),
        pin(
            &[DType::F16],
            "overflow_to_infinity",
            Mul,
            &[65504.0, 256.0],
            &[2.0, 255.0],
            &[INF, 65280.0],
        ),
    ]
}

fn integer_pins() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    use BinaryFn::*;
    const SIGNED: &[DType] = &[DType::I32, DType::I64, DType::I8];
    const WIDE: &[DType] = &[DType::I32, DType::U32, DType::I64];
    let ints = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(DType::INTS, name, f, a, b, y);
    let signed = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(SIGNED, name, f, a, b, y);
    let i32s = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(&[DType::I32], name, f, a, b, y);
    let u8s = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(&[DType::U8], name, f, a, b, y);
    let i8s = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(&[DType::I8], name, f, a, b, y);
    let u32s = |name, f, a: &[f64], b: &[f64], y: &[f64]| pin(&[DType::U32], name, f, a, b, y);
    let big = 16_777_217.0;
    vec![
        pin(WIDE, "integers_stay_integers", Add, &[big], &[0.0], &[big]),
        ints(
            "x_div_0_is_x",
            Div,
            &[7.0, 0.0, 127.0],
            &[0.0; 3],
            &[7.0, 0.0, 127.0],
        ),
        ints(
            "x_rem_0_is_0",
            Rem,
            &[7.0, 0.0, 127.0],
            &[0.0; 3],
            &[0.0; 3],
        ),
        signed(
            "division_truncates",
            Div,
            &[-7.0, 7.0, -7.0],
            &[2.0, -2.0, -2.0],
            &[-3.0, -3.0, 3.0],
        ),
        signed(
            "rem_has_the_sign_of_a_int",
            Rem,
            &[-7.0, 7.0, -7.0],
            &[2.0, -2.0, -2.0],
            &[-1.0, 1.0, -1.0],
        ),
        ints(
            "pow_by_squaring",
            Pow,
            &[3.0, 2.0, 0.0, 5.0],
            &[4.0, 6.0, 0.0, 1.0],
            &[81.0, 64.0, 1.0, 5.0],
        ),
        signed(
            "pow_of_negative_exponent",
            Pow,
            &[2.0, 1.0, -1.0, 0.0],
            &[-1.0, -5.0, -3.0, -1.0],
            &[0.0, 1.0, -1.0, 0.0],
        ),
        i32s(
            "i32_shift_counts_wrap",
            Shl,
            &[1.0, 1.0, 3.0],
            &[33.0, 31.0, -31.0],
            &[2.0, f64::from(i32::MIN), 6.0],
        ),
        u32s(
            "u32_shift_counts_wrap",
            Shr,
            &[4_294_967_295.0, 8.0],
            &[32.0, 35.0],
            &[4_294_967_295.0, 1.0],
        ),
        u8s(
            "u8_shift_counts_wrap",
            Shl,
            &[1.0, 255.0, 1.0],
            &[8.0, 1.0, 15.0],
            &[1.0, 254.0, 128.0],
        ),
        i8s(
            "i8_shift_right_is_arithmetic",
            Shr,
            &[-128.0, -1.0, 64.0],
            &[1.0, 7.0, 9.0],
            &[-64.0, -1.0, 32.0],
        ),
        u8s("u8_wraps", Sub, &[1.0, 0.0], &[2.0, 255.0], &[255.0, 1.0]),
        i8s(
            "i8_wraps",
            Mul,
            &[127.0, -128.0],
            &[2.0, -1.0],
            &[-2.0, -128.0],
        ),
        i32s(
            "i32_wraps",
            Add,
            &[f64::from(i32::MAX)],
            &[1.0],
            &[f64::from(i32::MIN)],
        ),
        u32s(
            "u32_extremes_compare_unsigned",
            Max,
            &[4_294_967_295.0],
            &[1.0],
            &[4_294_967_295.0],
        ),
        pin(
            &[DType::Bool],
            "xor_of_truth",
            Xor,
            &[0.0, 0.0, 1.0, 1.0],
            &[0.0, 1.0, 0.0, 1.0],
            &[0.0, 1.0, 1.0, 0.0],
        ),
        pin(
            &[DType::Bool],
            "and_of_truth",
            And,
            &[0.0, 0.0, 1.0, 1.0],
            &[0.0, 1.0, 0.0, 1.0],
            &[0.0, 0.0, 0.0, 1.0],
        ),
    ]
}

/// Cases whose values depend on the width of the dtype, or do not fit `f64`.
fn width_cases() -> Vec<OpCase> {
    const SIGNED: &[DType] = &[DType::I32, DType::I64, DType::I8];
    let min_by_minus_one = |name: &str, f: BinaryFn| {
        OpCase::new(name, move |c| {
            let least = c.dtype.int_range().map_or(0.0, |(lo, _)| lo as f64);
            let a = c.input("a", [1], InputFill::Values(vec![least]))?;
            let b = c.input("b", [1], InputFill::Values(vec![-1.0]))?;
            let y = c.graph.binary(f, a, b)?;
            let expected = if f == BinaryFn::Div { least } else { 0.0 };
            c.output_expect(y, &[expected])
        })
        .only(SIGNED)
    };
    vec![
        min_by_minus_one("least_div_minus_one", BinaryFn::Div),
        min_by_minus_one("least_rem_minus_one", BinaryFn::Rem),
        // Neighbouring integers above 2^53 are equal as f64, so the graph compares them.
        OpCase::new("i64_beyond_f64", |c| {
            let odd = (1i64 << 53) + 1;
            let a = c.graph.constant(Tensor::scalar(odd))?;
            let zero = c.input("zero", [2], InputFill::Values(vec![0.0, 0.0]))?;
            let sum = c.graph.plus(a, zero)?;
            let same = c.graph.equal(sum, a)?;
            c.output_expect(same, &[1.0, 1.0])?;
            let below = c.graph.constant(Tensor::scalar(odd - 1))?;
            let same = c.graph.equal(sum, below)?;
            c.output_expect(same, &[0.0, 0.0])
        })
        .only(&[DType::I64]),
    ]
}

/// Declares builder methods that apply a [`BinaryFn`].
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
        pub fn $name(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
            self.binary(BinaryFn::$f, a, b)
        }
    )* } };
}

impl Graph {
    /// Applies `f` to the elements of `a` and `b`, which broadcast.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
    pub fn binary(&mut self, f: BinaryFn, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Binary { f }, &[a, b])
    }
}

binary_methods! {
    /// `a + b` of numbers. (The method `add` adds any operator.)
    plus => Add,
    /// `a - b` of numbers.
    sub => Sub,
    /// `a b` of numbers.
    mul => Mul,
    /// `a / b` of numbers; integers truncate, `x / 0 = x`.
    div => Div,
    /// Remainder with the sign of `a`; integers: `x % 0 = 0`.
    rem => Rem,
    /// `a^b` of numbers.
    pow => Pow,
    /// The maximum of two numbers; NaN if either is NaN.
    max => Max,
    /// The minimum of two numbers; NaN if either is NaN.
    min => Min,
    /// The angle of the point `(b, a)` in radians, for floats.
    atan2 => Atan2,
    /// Logical or bitwise and of booleans or integers.
    and => And,
    /// Logical or bitwise or of booleans or integers.
    or => Or,
    /// Logical or bitwise exclusive or of booleans or integers.
    xor => Xor,
    /// Shift left of integers; the count is taken modulo the width.
    shl => Shl,
    /// Shift right of integers, arithmetic for signed ones; the count is taken modulo the width.
    shr => Shr,
}
