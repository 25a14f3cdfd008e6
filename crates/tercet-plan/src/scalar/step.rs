//! One step as a WGSL expression.
//!
//! Values of a kernel are `f32` for every float dtype, `i32` for I32 and I8, `u32` for U32 and U8, and
//! `bool`. An expression takes such values, already rounded or wrapped to their dtypes, and gives one.

use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, CompareFn, Scalar, ScalarOp, UnaryFn, convert};

use super::Piece;
use crate::families::code;

/// The type of a dtype's values in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `f32`
    Float,
    /// `i32`
    Int,
    /// `u32`
    Uint,
    /// `bool`
    Bool,
}

impl Class {
    /// Its name in WGSL.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            Class::Float => "f32",
            Class::Int => "i32",
            Class::Uint => "u32",
            Class::Bool => "bool",
        }
    }
}

/// The class of a dtype that GPUs have.
pub(crate) fn class(dtype: DType) -> Class {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Class::Float,
        DType::I32 | DType::I8 => Class::Int,
        DType::U32 | DType::U8 => Class::Uint,
        DType::Bool => Class::Bool,
        DType::F64 | DType::I64 => unreachable!("invariant: GPU targets refuse {dtype}"),
    }
}

/// A step's expression, and the pieces it calls besides the prelude.
pub(crate) type Written = (String, Vec<Piece>);

fn plain(text: impl Into<String>) -> Written {
    (text.into(), Vec::new())
}

fn call(piece: Piece, name: &str, args: &[&str]) -> Written {
    (format!("{name}({})", args.join(", ")), vec![piece])
}

/// The expression of a step: `from` is the dtype of its last operand, `to` that of its result.
pub(crate) fn expression(op: &ScalarOp, from: DType, to: DType, args: &[&str]) -> Written {
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

/// A quicker expression of a step of floats that sets `doubt` where it may be wrong, if there is one.
pub(crate) fn quick(op: &ScalarOp, dtype: DType, args: &[&str]) -> Option<Written> {
    // F16 has quick ways of its own for the rest.
    let is_wide = matches!(dtype, DType::F32 | DType::BF16);
    if !is_wide && dtype != DType::F16 {
        return None;
    }
    let written = match op {
        ScalarOp::Unary(f) => {
            let piece = match f {
                UnaryFn::Gelu if is_wide => Piece::QuickGelu,
                UnaryFn::Sigmoid | UnaryFn::Silu | UnaryFn::GeluTanh if is_wide => Piece::QuickGate,
                UnaryFn::Exp | UnaryFn::Tanh if is_wide => Piece::QuickGate,
                UnaryFn::Sqrt if is_wide => Piece::QuickRoot,
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
            call(Piece::Quick, name, args)
        }
        _ => return None,
    };
    Some(fit(dtype, written))
}

/// The device's own sum, difference or product of F32 or BF16, if that is the step: subnormal numbers may be zero.
pub(crate) fn native(op: &ScalarOp, dtype: DType, args: &[&str]) -> Option<Written> {
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

/// A value of a dtype.
fn literal(dtype: DType, value: Scalar) -> String {
    match class(dtype) {
        Class::Float => format!("as_float({:#x}u)", (value.as_f64() as f32).to_bits()),
        Class::Int => match value.as_i64() {
            // The least number has no literal: its sign is an operator.
            least if least == i64::from(i32::MIN) => "bitcast<i32>(0x80000000u)".to_string(),
            n => format!("({n}i)"),
        },
        Class::Uint => format!("{}u", value.as_i64()),
        Class::Bool => value.truth().to_string(),
    }
}

/// Rounds a float, wraps an integer.
fn fit(dtype: DType, (text, mut pieces): Written) -> Written {
    let text = match dtype {
        DType::F16 => {
            pieces.push(Piece::Round);
            format!("half_rounded({text})")
        }
        DType::BF16 => format!("round_to({text}, {}u)", code(dtype)),
        DType::I8 => format!("sign_extend8(bitcast<u32>({text}))"),
        DType::U8 => format!("(({text}) & 0xffu)"),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => text,
        DType::F64 | DType::I64 => unreachable!("invariant: GPU targets refuse {dtype}"),
    };
    (text, pieces)
}

fn unary(f: UnaryFn, dtype: DType, x: &str) -> Written {
    match class(dtype) {
        Class::Float => unary_float(f, dtype, x),
        Class::Int => fit_if(changes_range(f), dtype, unary_int(f, x)),
        Class::Uint => fit_if(changes_range(f), dtype, unary_uint(f, x)),
        Class::Bool => plain(format!("!{x}")),
    }
}

fn fit_if(fits_not: bool, dtype: DType, written: Written) -> Written {
    match fits_not {
        true => fit(dtype, written),
        false => written,
    }
}

/// Whether a function of integers may leave the range of theirs.
fn changes_range(f: UnaryFn) -> bool {
    matches!(f, UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Not)
}

/// The functions of [`Piece::Narrow`].
fn is_narrow(f: UnaryFn, dtype: DType) -> bool {
    use UnaryFn::{Exp, Gelu, GeluTanh, Sigmoid, Silu, Sqrt, Tanh};
    dtype == DType::F16 && matches!(f, Exp | Tanh | Sqrt | Sigmoid | Silu | Gelu | GeluTanh)
}

fn unary_float(f: UnaryFn, dtype: DType, x: &str) -> Written {
    if is_narrow(f, dtype) {
        return fit(dtype, call(Piece::Narrow, &format!("n_{}", f.name()), &[x]));
    }
    let piece = match f {
        UnaryFn::Relu | UnaryFn::Relu6 | UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sign => Piece::Sign,
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc => Piece::Sign,
        UnaryFn::IsNan | UnaryFn::IsInf => Piece::Sign,
        UnaryFn::Exp | UnaryFn::Exp2 | UnaryFn::Expm1 => Piece::Exp,
        UnaryFn::Ln | UnaryFn::Log2 | UnaryFn::Log1p => Piece::Log,
        UnaryFn::Sqrt | UnaryFn::Rsqrt => Piece::Root,
        UnaryFn::Recip => Piece::Arithmetic,
        UnaryFn::Tanh | UnaryFn::Sinh | UnaryFn::Cosh => Piece::Hyperbolic,
        UnaryFn::Sigmoid | UnaryFn::Silu | UnaryFn::GeluTanh => Piece::Gate,
        UnaryFn::Softplus => Piece::Softplus,
        UnaryFn::Gelu | UnaryFn::Erf => Piece::Erf,
        UnaryFn::Sin | UnaryFn::Cos | UnaryFn::Tan => Piece::Trig,
        UnaryFn::Asin | UnaryFn::Acos | UnaryFn::Atan => Piece::Arc,
        UnaryFn::Not => unreachable!("invariant: inference refuses the not of floats"),
    };
    let written = call(piece, &format!("f_{}", f.name()), &[x]);
    // These give floats of the dtype, or truth values.
    fit_if(piece != Piece::Sign, dtype, written)
}

/// The pattern of functions that only floats have.
macro_rules! floats {
    () => {
        UnaryFn::Relu6
            | UnaryFn::Sigmoid
            | UnaryFn::Tanh
            | UnaryFn::Exp
            | UnaryFn::Ln
            | UnaryFn::Sqrt
            | UnaryFn::Rsqrt
            | UnaryFn::Recip
            | UnaryFn::Gelu
            | UnaryFn::GeluTanh
            | UnaryFn::Silu
            | UnaryFn::Softplus
            | UnaryFn::Erf
            | UnaryFn::Sin
            | UnaryFn::Cos
            | UnaryFn::Tan
            | UnaryFn::Asin
            | UnaryFn::Acos
            | UnaryFn::Atan
            | UnaryFn::Sinh
            | UnaryFn::Cosh
            | UnaryFn::Exp2
            | UnaryFn::Log2
            | UnaryFn::Log1p
            | UnaryFn::Expm1
            | UnaryFn::IsNan
            | UnaryFn::IsInf
    };
}

fn unary_int(f: UnaryFn, x: &str) -> Written {
    match f {
        UnaryFn::Relu => plain(format!("max({x}, 0)")),
        UnaryFn::Neg => call(Piece::Int, "i_neg", &[x]),
        UnaryFn::Abs => call(Piece::Int, "i_abs", &[x]),
        UnaryFn::Sign => call(Piece::Int, "i_sign", &[x]),
        UnaryFn::Not => plain(format!("~{x}")),
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc => plain(x),
        floats!() => unreachable!("invariant: inference refuses {} of integers", f.name()),
    }
}

fn unary_uint(f: UnaryFn, x: &str) -> Written {
    match f {
        UnaryFn::Relu | UnaryFn::Abs => plain(x),
        UnaryFn::Neg => plain(format!("0u - {x}")),
        UnaryFn::Sign => plain(format!("min({x}, 1u)")),
        UnaryFn::Not => plain(format!("~{x}")),
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc => plain(x),
        floats!() => unreachable!("invariant: inference refuses {} of integers", f.name()),
    }
}

fn binary(f: BinaryFn, dtype: DType, a: &str, b: &str) -> Written {
    match class(dtype) {
        Class::Float => binary_float(f, dtype, a, b),
        Class::Int => binary_int(f, dtype, a, b),
        Class::Uint => binary_uint(f, dtype, a, b),
        Class::Bool => plain(match f {
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
            | BinaryFn::Shr => unreachable!("invariant: inference refuses it for bool"),
        }),
    }
}

fn binary_float(f: BinaryFn, dtype: DType, a: &str, b: &str) -> Written {
    // Sums and products of F16 are not subnormal in f32, and rounding them keeps them apart.
    let narrow = dtype == DType::F16;
    let written = match f {
        BinaryFn::Add if narrow => plain(format!("{a} + {b}")),
        BinaryFn::Sub if narrow => plain(format!("{a} - {b}")),
        BinaryFn::Mul if narrow => plain(format!("{a} * {b}")),
        BinaryFn::Add => call(Piece::Arithmetic, "f_add", &[a, b]),
        BinaryFn::Sub => call(Piece::Arithmetic, "f_sub", &[a, b]),
        BinaryFn::Mul => call(Piece::Arithmetic, "f_mul", &[a, b]),
        BinaryFn::Div => call(Piece::Arithmetic, "f_div", &[a, b]),
        BinaryFn::Rem => call(Piece::Rem, "f_rem", &[a, b]),
        BinaryFn::Pow => call(Piece::Pow, "f_pow", &[a, b]),
        BinaryFn::Atan2 => call(Piece::Arc, "f_atan2", &[a, b]),
        BinaryFn::Max => return plain(format!("fmax({a}, {b})")),
        BinaryFn::Min => return plain(format!("fmin({a}, {b})")),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr => {
            unreachable!("invariant: inference refuses bit functions of floats")
        }
    };
    fit(dtype, written)
}

/// The count of a shift, modulo the width.
fn count(dtype: DType, b: &str) -> String {
    format!("(bitcast<u32>({b}) & {}u)", 8 * dtype.size_bytes() - 1)
}

fn binary_int(f: BinaryFn, dtype: DType, a: &str, b: &str) -> Written {
    let written = match f {
        BinaryFn::Add => call(Piece::Int, "i_add", &[a, b]),
        BinaryFn::Sub => call(Piece::Int, "i_sub", &[a, b]),
        BinaryFn::Mul => call(Piece::Int, "i_mul", &[a, b]),
        BinaryFn::Div => call(Piece::Int, "i_div", &[a, b]),
        BinaryFn::Pow => call(Piece::Int, "i_pow", &[a, b]),
        BinaryFn::Shl => plain(format!("{a} << {}", count(dtype, b))),
        BinaryFn::Rem => return call(Piece::Int, "i_rem", &[a, b]),
        BinaryFn::Max => return plain(format!("max({a}, {b})")),
        BinaryFn::Min => return plain(format!("min({a}, {b})")),
        BinaryFn::And => return plain(format!("{a} & {b}")),
        BinaryFn::Or => return plain(format!("{a} | {b}")),
        BinaryFn::Xor => return plain(format!("{a} ^ {b}")),
        BinaryFn::Shr => return plain(format!("{a} >> {}", count(dtype, b))),
        BinaryFn::Atan2 => unreachable!("invariant: inference refuses atan2 of integers"),
    };
    fit(dtype, written)
}

fn binary_uint(f: BinaryFn, dtype: DType, a: &str, b: &str) -> Written {
    let written = match f {
        BinaryFn::Add => plain(format!("{a} + {b}")),
        BinaryFn::Sub => plain(format!("{a} - {b}")),
        BinaryFn::Mul => plain(format!("{a} * {b}")),
        BinaryFn::Pow => call(Piece::Int, "u_pow", &[a, b]),
        BinaryFn::Shl => plain(format!("{a} << {}", count(dtype, b))),
        BinaryFn::Div => return call(Piece::Int, "u_div", &[a, b]),
        BinaryFn::Rem => return call(Piece::Int, "u_rem", &[a, b]),
        BinaryFn::Max => return plain(format!("max({a}, {b})")),
        BinaryFn::Min => return plain(format!("min({a}, {b})")),
        BinaryFn::And => return plain(format!("{a} & {b}")),
        BinaryFn::Or => return plain(format!("{a} | {b}")),
        BinaryFn::Xor => return plain(format!("{a} ^ {b}")),
        BinaryFn::Shr => return plain(format!("{a} >> {}", count(dtype, b))),
        BinaryFn::Atan2 => unreachable!("invariant: inference refuses atan2 of integers"),
    };
    fit(dtype, written)
}

fn compare(f: CompareFn, dtype: DType, a: &str, b: &str) -> Written {
    if class(dtype) == Class::Float {
        return call(Piece::Compare, &format!("f_{}", f.name()), &[a, b]);
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

fn fma(dtype: DType, a: &str, b: &str, c: &str) -> Written {
    let written = match dtype {
        DType::F32 => call(Piece::Arithmetic, "f_fma", &[a, b, c]),
        // To odd, so that the second rounding is as if from the exact sum.
        DType::F16 | DType::BF16 => call(Piece::Arithmetic, "soft_fma", &[a, b, c, "true"]),
        DType::I32 | DType::I8 => call(Piece::Int, "i_fma", &[a, b, c]),
        DType::U32 | DType::U8 => plain(format!("{a} * {b} + {c}")),
        DType::Bool | DType::F64 | DType::I64 => {
            unreachable!("invariant: inference and targets refuse fma of {dtype}")
        }
    };
    fit(dtype, written)
}

fn clamp(dtype: DType, lo: f64, hi: f64, x: &str) -> Written {
    let Some((least, greatest)) = dtype.int_range() else {
        let bound = |v: f64| literal(dtype, Scalar::F(dtype.round_f64(v)));
        return call(Piece::Sign, "f_clamp", &[x, &bound(lo), &bound(hi)]);
    };
    let bound = |v: f64| literal(dtype, Scalar::I((v as i64).clamp(least, greatest)));
    let (lo, hi) = (bound(lo.ceil()), bound(hi.floor()));
    plain(format!("min(max({x}, {lo}), {hi})"))
}

fn cast(from: DType, to: DType, x: &str) -> Written {
    let to_code = format!("{}u", code(to));
    match (class(from), class(to)) {
        _ if from == to => plain(x),
        (Class::Float, Class::Float) => fit(to, plain(x)),
        (Class::Float, Class::Bool) => call(Piece::Convert, "b_from_f", &[x]),
        (Class::Float, Class::Int) if to == DType::I8 => call(Piece::Convert, "i8_from_f", &[x]),
        (Class::Float, Class::Int) => call(Piece::Convert, "i_from_f", &[x]),
        (Class::Float, Class::Uint) if to == DType::U8 => call(Piece::Convert, "u8_from_f", &[x]),
        (Class::Float, Class::Uint) => call(Piece::Convert, "u_from_f", &[x]),
        (Class::Int, Class::Float) => fit(to, call(Piece::Convert, "f_from_i", &[x, &to_code])),
        (Class::Uint, Class::Float) => fit(to, call(Piece::Convert, "f_from_u", &[x, &to_code])),
        (Class::Bool, Class::Float) => plain(format!("select(0.0, 1.0, {x})")),
        (Class::Bool, Class::Int) => plain(format!("select(0, 1, {x})")),
        (Class::Bool, Class::Uint) => plain(format!("select(0u, 1u, {x})")),
        (Class::Int, Class::Bool) => plain(format!("{x} != 0")),
        (Class::Uint, Class::Bool) => plain(format!("{x} != 0u")),
        (Class::Int, Class::Int) => fit(to, plain(x)),
        (Class::Uint, Class::Uint) => fit(to, plain(x)),
        (Class::Int, Class::Uint) => fit(to, plain(format!("bitcast<u32>({x})"))),
        (Class::Uint, Class::Int) => fit(to, plain(format!("bitcast<i32>({x})"))),
        (Class::Bool, Class::Bool) => plain(x),
    }
}
