//! WGSL expressions of map steps.
//!
//! Kernel values have type `f32` for every float dtype, `i32` for I32, I16 and I8, `u32` for U32 and
//! U8, and `bool`. An expression takes such values, already rounded or wrapped to their dtypes, and
//! yields one.

use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, CompareFn, Scalar, ScalarOp, UnaryFn, convert};

use super::WgslHelper;
use crate::lowerings::code;

/// The WGSL type that values of a dtype have in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarClass {
    /// `f32`
    Float,
    /// `i32`
    Int,
    /// `u32`
    Uint,
    /// `bool`
    Bool,
}

impl ScalarClass {
    /// Name of the type in WGSL.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            ScalarClass::Float => "f32",
            ScalarClass::Int => "i32",
            ScalarClass::Uint => "u32",
            ScalarClass::Bool => "bool",
        }
    }
}

/// WGSL type class of a dtype that GPUs support.
pub(crate) fn class(dtype: DType) -> ScalarClass {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => ScalarClass::Float,
        DType::I32 | DType::I16 | DType::I8 => ScalarClass::Int,
        DType::U32 | DType::U8 => ScalarClass::Uint,
        DType::Bool => ScalarClass::Bool,
        DType::F64 | DType::I64 => unreachable!("invariant: GPU targets reject {dtype}"),
    }
}

/// Expression of a step, and the library fragments it calls besides the prelude.
pub(crate) type StepSource = (String, Vec<WgslHelper>);

fn plain(text: impl Into<String>) -> StepSource {
    (text.into(), Vec::new())
}

fn call(piece: WgslHelper, name: &str, args: &[&str]) -> StepSource {
    (format!("{name}({})", args.join(", ")), vec![piece])
}

/// Exact expression of a step; `from` is the dtype of its last operand, `to` that of its result.
pub(crate) fn expression(op: &ScalarOp, from: DType, to: DType, args: &[&str]) -> StepSource {
    match (op, args) {
        (ScalarOp::Const(_, value), _) => plain(literal(to, convert(Scalar::F(value.0), to))),
        (ScalarOp::Unary(f), [x]) => unary(*f, from, x),
        (ScalarOp::Binary(f), [a, b]) => binary(*f, from, a, b),
        (ScalarOp::Compare(f), [a, b]) => compare(*f, from, a, b),
        (ScalarOp::Where, [cond, a, b]) => plain(format!("select({b}, {a}, {cond})")),
        (ScalarOp::Fma, [a, b, c]) => fma(from, a, b, c),
        (ScalarOp::Clamp { lo, hi }, [x]) => clamp(from, lo.0, hi.0, x),
        (ScalarOp::Cast(_), [x]) => cast(from, to, x),
        (
            ScalarOp::Unary(_)
            | ScalarOp::Binary(_)
            | ScalarOp::Compare(_)
            | ScalarOp::Where
            | ScalarOp::Fma
            | ScalarOp::Clamp { .. }
            | ScalarOp::Cast(_),
            _,
        ) => unreachable!("invariant: inference checked the number of operands"),
    }
}

/// Fast expression of a float step, which sets `doubt` if the result may be wrong. `None` if the
/// step has no fast version.
pub(crate) fn quick(op: &ScalarOp, dtype: DType, args: &[&str]) -> Option<StepSource> {
    // Of F16 steps, only division has a version here.
    let is_wide = matches!(dtype, DType::F32 | DType::BF16);
    if !is_wide && dtype != DType::F16 {
        return None;
    }
    let written = match op {
        ScalarOp::Unary(f) => {
            let piece = match f {
                UnaryFn::Gelu if is_wide => WgslHelper::QuickGelu,
                UnaryFn::Sigmoid | UnaryFn::Silu | UnaryFn::GeluTanh if is_wide => {
                    WgslHelper::QuickGate
                }
                UnaryFn::Exp | UnaryFn::Tanh if is_wide => WgslHelper::QuickGate,
                UnaryFn::Sqrt if is_wide => WgslHelper::QuickRoot,
                _ => return None,
            };
            call(piece, &format!("q_{}", f.name()), args)
        }
        ScalarOp::Binary(f) => {
            let name = match f {
                BinaryFn::Add if is_wide => "q_add",
                BinaryFn::Sub if is_wide => "q_sub",
                BinaryFn::Mul if is_wide => "q_mul",
                BinaryFn::Div => "q_div",
                _ => return None,
            };
            call(WgslHelper::Quick, name, args)
        }
        _ => return None,
    };
    Some(fit(dtype, written))
}

/// Native sum, difference or product of F32 or BF16, which may flush subnormal numbers. `None` for
/// other steps.
pub(crate) fn native(op: &ScalarOp, dtype: DType, args: &[&str]) -> Option<StepSource> {
    let (ScalarOp::Binary(f), DType::F32 | DType::BF16, [a, b]) = (op, dtype, args) else {
        return None;
    };
    let operator = match f {
        BinaryFn::Add => "+",
        BinaryFn::Sub => "-",
        BinaryFn::Mul => "*",
        _ => return None,
    };
    Some(fit(dtype, plain(format!("({a} {operator} {b})"))))
}

/// WGSL literal of a value in a dtype.
fn literal(dtype: DType, value: Scalar) -> String {
    match class(dtype) {
        ScalarClass::Float => format!("as_float({:#x}u)", (value.as_f64() as f32).to_bits()),
        ScalarClass::Int => match value.as_i64() {
            // The minimum I32 has no literal, because its sign is a separate operator in WGSL.
            least if least == i64::from(i32::MIN) => "bitcast<i32>(0x80000000u)".to_string(),
            n => format!("({n}i)"),
        },
        ScalarClass::Uint => format!("{}u", value.as_i64()),
        ScalarClass::Bool => value.truth().to_string(),
    }
}

/// Rounds a float, or wraps an integer, to the dtype.
fn fit(dtype: DType, (text, mut pieces): StepSource) -> StepSource {
    let text = match dtype {
        DType::F16 => {
            pieces.push(WgslHelper::Round);
            format!("half_rounded({text})")
        }
        DType::BF16 => format!("round_to({text}, {}u)", code(dtype)),
        DType::I16 => sign_extended16(&format!("bitcast<u32>({text})")),
        DType::I8 => format!("sign_extend8(bitcast<u32>({text}))"),
        DType::U8 => format!("(({text}) & 0xffu)"),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => text,
        DType::F64 | DType::I64 => unreachable!("invariant: GPU targets reject {dtype}"),
    };
    (text, pieces)
}

/// WGSL expression for the low half of a `u32` as an I16 value, which is an `i32`.
pub(crate) fn sign_extended16(word: &str) -> String {
    format!("(bitcast<i32>(({word}) << 16u) >> 16u)")
}

fn unary(f: UnaryFn, dtype: DType, x: &str) -> StepSource {
    match class(dtype) {
        ScalarClass::Float => unary_float(f, dtype, x),
        ScalarClass::Int => fit_if(changes_range(f), dtype, unary_int(f, x)),
        ScalarClass::Uint => fit_if(changes_range(f), dtype, unary_uint(f, x)),
        ScalarClass::Bool => plain(format!("!{x}")),
    }
}

fn fit_if(fits_not: bool, dtype: DType, written: StepSource) -> StepSource {
    match fits_not {
        true => fit(dtype, written),
        false => written,
    }
}

/// Whether an integer function may exceed the range of its dtype.
fn changes_range(f: UnaryFn) -> bool {
    matches!(f, UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Not)
}

/// Whether [`WgslHelper::Narrow`] provides the function for this dtype.
fn is_narrow(f: UnaryFn, dtype: DType) -> bool {
    use UnaryFn::{Exp, Gelu, GeluTanh, Sigmoid, Silu, Sqrt, Tanh};
    dtype == DType::F16 && matches!(f, Exp | Tanh | Sqrt | Sigmoid | Silu | Gelu | GeluTanh)
}

fn unary_float(f: UnaryFn, dtype: DType, x: &str) -> StepSource {
    if is_narrow(f, dtype) {
        return fit(
            dtype,
            call(WgslHelper::Narrow, &format!("n_{}", f.name()), &[x]),
        );
    }
    let name = format!("f_{}", f.name());
    let piece = WgslHelper::with_function(&name)
        .expect("invariant: a fragment has each function of floats, which a test checks");
    let written = call(piece, &name, &[x]);
    // Functions of `WgslHelper::Sign` need no rounding: they return booleans, or floats that the
    // dtype represents.
    fit_if(piece != WgslHelper::Sign, dtype, written)
}

fn unary_int(f: UnaryFn, x: &str) -> StepSource {
    match f {
        UnaryFn::Relu => plain(format!("max({x}, 0)")),
        UnaryFn::Neg => call(WgslHelper::Int, "i_neg", &[x]),
        UnaryFn::Abs => call(WgslHelper::Int, "i_abs", &[x]),
        UnaryFn::Sign => call(WgslHelper::Int, "i_sign", &[x]),
        UnaryFn::Not => plain(format!("~{x}")),
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc => plain(x),
        f => unreachable!("invariant: inference rejects {} of integers", f.name()),
    }
}

fn unary_uint(f: UnaryFn, x: &str) -> StepSource {
    match f {
        UnaryFn::Relu | UnaryFn::Abs => plain(x),
        UnaryFn::Neg => plain(format!("0u - {x}")),
        UnaryFn::Sign => plain(format!("min({x}, 1u)")),
        UnaryFn::Not => plain(format!("~{x}")),
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc => plain(x),
        f => unreachable!("invariant: inference rejects {} of integers", f.name()),
    }
}

fn binary(f: BinaryFn, dtype: DType, a: &str, b: &str) -> StepSource {
    match class(dtype) {
        ScalarClass::Float => binary_float(f, dtype, a, b),
        ScalarClass::Int => binary_int(f, dtype, a, b),
        ScalarClass::Uint => binary_uint(f, dtype, a, b),
        ScalarClass::Bool => plain(match f {
            BinaryFn::And => format!("{a} && {b}"),
            BinaryFn::Or => format!("{a} || {b}"),
            BinaryFn::Xor => format!("{a} != {b}"),
            BinaryFn::Add
            | BinaryFn::Sub
            | BinaryFn::Mul
            | BinaryFn::Div
            | BinaryFn::Rem
            | BinaryFn::Pow
            | BinaryFn::Max
            | BinaryFn::Min
            | BinaryFn::Atan2
            | BinaryFn::Shl
            | BinaryFn::Shr => unreachable!("invariant: inference rejects it for bool"),
        }),
    }
}

fn binary_float(f: BinaryFn, dtype: DType, a: &str, b: &str) -> StepSource {
    // Sums and products of F16 values are never subnormal in F32. Rounding them to F16 handles
    // subnormal results.
    let narrow = dtype == DType::F16;
    let written = match f {
        BinaryFn::Add if narrow => plain(format!("{a} + {b}")),
        BinaryFn::Sub if narrow => plain(format!("{a} - {b}")),
        BinaryFn::Mul if narrow => plain(format!("{a} * {b}")),
        BinaryFn::Add => call(WgslHelper::Arithmetic, "f_add", &[a, b]),
        BinaryFn::Sub => call(WgslHelper::Arithmetic, "f_sub", &[a, b]),
        BinaryFn::Mul => call(WgslHelper::Arithmetic, "f_mul", &[a, b]),
        BinaryFn::Div => call(WgslHelper::Arithmetic, "f_div", &[a, b]),
        BinaryFn::Rem => call(WgslHelper::Rem, "f_rem", &[a, b]),
        BinaryFn::Pow => call(WgslHelper::Pow, "f_pow", &[a, b]),
        BinaryFn::Atan2 => call(WgslHelper::Arc, "f_atan2", &[a, b]),
        BinaryFn::Max => return plain(format!("fmax({a}, {b})")),
        BinaryFn::Min => return plain(format!("fmin({a}, {b})")),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr => {
            unreachable!("invariant: inference rejects bit functions of floats")
        }
    };
    fit(dtype, written)
}

/// WGSL expression of a shift count modulo the bit width.
fn count(dtype: DType, b: &str) -> String {
    format!("(bitcast<u32>({b}) & {}u)", 8 * dtype.size_bytes() - 1)
}

fn binary_int(f: BinaryFn, dtype: DType, a: &str, b: &str) -> StepSource {
    let written = match f {
        BinaryFn::Add => call(WgslHelper::Int, "i_add", &[a, b]),
        BinaryFn::Sub => call(WgslHelper::Int, "i_sub", &[a, b]),
        BinaryFn::Mul => call(WgslHelper::Int, "i_mul", &[a, b]),
        BinaryFn::Div => call(WgslHelper::Int, "i_div", &[a, b]),
        BinaryFn::Pow => call(WgslHelper::Int, "i_pow", &[a, b]),
        BinaryFn::Shl => plain(format!("{a} << {}", count(dtype, b))),
        BinaryFn::Rem => return call(WgslHelper::Int, "i_rem", &[a, b]),
        BinaryFn::Max => return plain(format!("max({a}, {b})")),
        BinaryFn::Min => return plain(format!("min({a}, {b})")),
        BinaryFn::And => return plain(format!("{a} & {b}")),
        BinaryFn::Or => return plain(format!("{a} | {b}")),
        BinaryFn::Xor => return plain(format!("{a} ^ {b}")),
        BinaryFn::Shr => return plain(format!("{a} >> {}", count(dtype, b))),
        BinaryFn::Atan2 => unreachable!("invariant: inference rejects atan2 of integers"),
    };
    fit(dtype, written)
}

fn binary_uint(f: BinaryFn, dtype: DType, a: &str, b: &str) -> StepSource {
    let written = match f {
        BinaryFn::Add => plain(format!("{a} + {b}")),
        BinaryFn::Sub => plain(format!("{a} - {b}")),
        BinaryFn::Mul => plain(format!("{a} * {b}")),
        BinaryFn::Pow => call(WgslHelper::Int, "u_pow", &[a, b]),
        BinaryFn::Shl => plain(format!("{a} << {}", count(dtype, b))),
        BinaryFn::Div => return call(WgslHelper::Int, "u_div", &[a, b]),
        BinaryFn::Rem => return call(WgslHelper::Int, "u_rem", &[a, b]),
        BinaryFn::Max => return plain(format!("max({a}, {b})")),
        BinaryFn::Min => return plain(format!("min({a}, {b})")),
        BinaryFn::And => return plain(format!("{a} & {b}")),
        BinaryFn::Or => return plain(format!("{a} | {b}")),
        BinaryFn::Xor => return plain(format!("{a} ^ {b}")),
        BinaryFn::Shr => return plain(format!("{a} >> {}", count(dtype, b))),
        BinaryFn::Atan2 => unreachable!("invariant: inference rejects atan2 of integers"),
    };
    fit(dtype, written)
}

fn compare(f: CompareFn, dtype: DType, a: &str, b: &str) -> StepSource {
    if class(dtype) == ScalarClass::Float {
        return call(WgslHelper::Compare, &format!("f_{}", f.name()), &[a, b]);
    }
    let operator = match f {
        CompareFn::Eq => "==",
        CompareFn::Ne => "!=",
        CompareFn::Lt => "<",
        CompareFn::Le => "<=",
        CompareFn::Gt => ">",
        CompareFn::Ge => ">=",
    };
    plain(format!("{a} {operator} {b}"))
}

fn fma(dtype: DType, a: &str, b: &str, c: &str) -> StepSource {
    let written = match dtype {
        DType::F32 => call(WgslHelper::Arithmetic, "f_fma", &[a, b, c]),
        // Round to odd, so that the second rounding equals a direct rounding of the exact sum.
        DType::F16 | DType::BF16 => call(WgslHelper::Arithmetic, "soft_fma", &[a, b, c, "true"]),
        DType::I32 | DType::I16 | DType::I8 => call(WgslHelper::Int, "i_fma", &[a, b, c]),
        DType::U32 | DType::U8 => plain(format!("{a} * {b} + {c}")),
        DType::Bool | DType::F64 | DType::I64 => {
            unreachable!("invariant: inference and targets reject fma of {dtype}")
        }
    };
    fit(dtype, written)
}

fn clamp(dtype: DType, lo: f64, hi: f64, x: &str) -> StepSource {
    let Some((least, greatest)) = dtype.int_range() else {
        let bound = |v: f64| literal(dtype, Scalar::F(dtype.round_f64(v)));
        return call(WgslHelper::Sign, "f_clamp", &[x, &bound(lo), &bound(hi)]);
    };
    let bound = |v: f64| literal(dtype, Scalar::I((v as i64).clamp(least, greatest)));
    let (lo, hi) = (bound(lo.ceil()), bound(hi.floor()));
    plain(format!("min(max({x}, {lo}), {hi})"))
}

fn cast(from: DType, to: DType, x: &str) -> StepSource {
    let to_float = |name: &str| {
        let code = format!("{}u", code(to));
        fit(to, call(WgslHelper::Convert, name, &[x, &code]))
    };
    match (class(from), class(to)) {
        _ if from == to => plain(x),
        (ScalarClass::Float, ScalarClass::Float) => fit(to, plain(x)),
        (ScalarClass::Float, ScalarClass::Bool) => call(WgslHelper::Convert, "b_from_f", &[x]),
        (ScalarClass::Float, ScalarClass::Int) if to == DType::I16 => {
            let (text, pieces) = call(WgslHelper::Convert, "i_from_f", &[x]);
            (format!("clamp({text}, -32768, 32767)"), pieces)
        }
        (ScalarClass::Float, ScalarClass::Int) if to == DType::I8 => {
            call(WgslHelper::Convert, "i8_from_f", &[x])
        }
        (ScalarClass::Float, ScalarClass::Int) => call(WgslHelper::Convert, "i_from_f", &[x]),
        (ScalarClass::Float, ScalarClass::Uint) if to == DType::U8 => {
            call(WgslHelper::Convert, "u8_from_f", &[x])
        }
        (ScalarClass::Float, ScalarClass::Uint) => call(WgslHelper::Convert, "u_from_f", &[x]),
        (ScalarClass::Int, ScalarClass::Float) => to_float("f_from_i"),
        (ScalarClass::Uint, ScalarClass::Float) => to_float("f_from_u"),
        (ScalarClass::Bool, ScalarClass::Float) => plain(format!("select(0.0, 1.0, {x})")),
        (ScalarClass::Bool, ScalarClass::Int) => plain(format!("select(0, 1, {x})")),
        (ScalarClass::Bool, ScalarClass::Uint) => plain(format!("select(0u, 1u, {x})")),
        (ScalarClass::Int, ScalarClass::Bool) => plain(format!("{x} != 0")),
        (ScalarClass::Uint, ScalarClass::Bool) => plain(format!("{x} != 0u")),
        (ScalarClass::Int, ScalarClass::Int) => fit(to, plain(x)),
        (ScalarClass::Uint, ScalarClass::Uint) => fit(to, plain(x)),
        (ScalarClass::Int, ScalarClass::Uint) => fit(to, plain(format!("bitcast<u32>({x})"))),
        (ScalarClass::Uint, ScalarClass::Int) => fit(to, plain(format!("bitcast<i32>({x})"))),
        (ScalarClass::Bool, ScalarClass::Bool) => plain(x),
    }
}
