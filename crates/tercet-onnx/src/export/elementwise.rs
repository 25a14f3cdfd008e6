//! Exports elementwise operators.

use tercet_ir::DType;
use tercet_ir::DTypeClass;
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

use super::node::ExportNode;
use super::proto::{OnnxAttrValue, U16, U64, code};
use super::writer::ExportNodeError;

type ExportElementwiseResult = Result<String, ExportNodeError>;

pub(super) fn unary(at: &mut ExportNode<'_>, f: UnaryFn) -> ExportElementwiseResult {
    let x = at.x(0).to_string();
    unary_of(at, f, &x, at.ty(0).dtype)
}

/// A unary function of a value with a dtype.
pub(super) fn unary_of(
    at: &mut ExportNode<'_>,
    f: UnaryFn,
    x: &str,
    dtype: DType,
) -> ExportElementwiseResult {
    let w = &mut *at.w;
    let is_unsigned = matches!(dtype.class(), DTypeClass::Unsigned | DTypeClass::Bool);
    if let Some(op) = named(f)
        && !(is_unsigned && matches!(f, UnaryFn::Relu | UnaryFn::Abs | UnaryFn::Neg))
    {
        return Ok(w.add(op, &[x], Vec::new()));
    }
    Ok(match f {
        // `Relu` and `Abs` of unsigned integers are the identity.
        UnaryFn::Relu | UnaryFn::Abs => x.to_string(),
        UnaryFn::Neg => {
            let zero = w.integer(dtype, 0);
            w.add("Sub", &[&zero, x], Vec::new())
        }
        UnaryFn::Relu6 => {
            let [zero, six] = [0.0, 6.0].map(|v| w.number(dtype, v));
            w.add("Clip", &[x, &zero, &six], Vec::new())
        }
        UnaryFn::Rsqrt => {
            let root = w.add("Sqrt", &[x], Vec::new());
            w.add("Reciprocal", &[&root], Vec::new())
        }
        UnaryFn::GeluTanh => w.add(
            "Gelu",
            &[x],
            vec![("approximate", OnnxAttrValue::Text("tanh"))],
        ),
        UnaryFn::Silu => {
            let gate = w.add("Sigmoid", &[x], Vec::new());
            w.add("Mul", &[x, &gate], Vec::new())
        }
        UnaryFn::Trunc => {
            let zero = w.number(dtype, 0.0);
            let below = w.add("Less", &[x, &zero], Vec::new());
            let [up, down] = ["Ceil", "Floor"].map(|op| w.add(op, &[x], Vec::new()));
            w.add("Where", &[&below, &up, &down], Vec::new())
        }
        UnaryFn::Exp2 => {
            let two = w.number(dtype, 2.0);
            w.add("Pow", &[&two, x], Vec::new())
        }
        UnaryFn::Log2 => {
            let y = w.add("Log", &[x], Vec::new());
            let factor = w.number(dtype, std::f64::consts::LOG2_E);
            w.add("Mul", &[&y, &factor], Vec::new())
        }
        UnaryFn::Log1p => log1p(at, x, dtype),
        UnaryFn::Expm1 => {
            // tanh(x / 2) (e^x + 1), which is accurate for small x.
            let [half, one] = [0.5, 1.0].map(|v| w.number(dtype, v));
            let half = w.add("Mul", &[x, &half], Vec::new());
            let tanh = w.add("Tanh", &[&half], Vec::new());
            let exp = w.add("Exp", &[x], Vec::new());
            let sum = w.add("Add", &[&exp, &one], Vec::new());
            w.add("Mul", &[&tanh, &sum], Vec::new())
        }
        UnaryFn::Not if dtype == DType::Bool => w.add("Not", &[x], Vec::new()),
        UnaryFn::Not => w.add("BitwiseNot", &[x], Vec::new()),
        _ => return ExportNodeError::because(format!("ONNX has no operator for `{}`", f.name())),
    })
}

/// The ONNX operators with identical semantics.
fn named(f: UnaryFn) -> Option<&'static str> {
    Some(match f {
        UnaryFn::Relu => "Relu",
        UnaryFn::Sigmoid => "Sigmoid",
        UnaryFn::Tanh => "Tanh",
        UnaryFn::Exp => "Exp",
        UnaryFn::Ln => "Log",
        UnaryFn::Sqrt => "Sqrt",
        UnaryFn::Recip => "Reciprocal",
        UnaryFn::Neg => "Neg",
        UnaryFn::Abs => "Abs",
        UnaryFn::Sign => "Sign",
        UnaryFn::Gelu => "Gelu",
        UnaryFn::Softplus => "Softplus",
        UnaryFn::Erf => "Erf",
        UnaryFn::Sin => "Sin",
        UnaryFn::Cos => "Cos",
        UnaryFn::Tan => "Tan",
        UnaryFn::Asin => "Asin",
        UnaryFn::Acos => "Acos",
        UnaryFn::Atan => "Atan",
        UnaryFn::Atanh => "Atanh",
        UnaryFn::Sinh => "Sinh",
        UnaryFn::Cosh => "Cosh",
        UnaryFn::Floor => "Floor",
        UnaryFn::Ceil => "Ceil",
        UnaryFn::Round => "Round",
        UnaryFn::IsNan => "IsNaN",
        UnaryFn::IsInf => "IsInf",
        _ => return None,
    })
}

/// `ln(1 + x)` for small `x`: `x` times the quotient of `ln u` and `u - 1`, where `u` is the
/// rounded `1 + x` (Kahan).
fn log1p(at: &mut ExportNode<'_>, x: &str, dtype: DType) -> String {
    let w = &mut *at.w;
    let one = w.number(dtype, 1.0);
    let u = w.add("Add", &[x, &one], Vec::new());
    let log = w.add("Log", &[&u], Vec::new());
    let less = w.add("Sub", &[&u, &one], Vec::new());
    let is_one = w.add("Equal", &[&u, &one], Vec::new());
    let safe = w.add("Where", &[&is_one, &one, &less], Vec::new());
    let quotient = w.add("Div", &[x, &safe], Vec::new());
    let product = w.add("Mul", &[&log, &quotient], Vec::new());
    let is_large = w.add("IsInf", &[x], Vec::new());
    let finite = w.add("Where", &[&is_one, x, &product], Vec::new());
    w.add("Where", &[&is_large, &log, &finite], Vec::new())
}

pub(super) fn binary(at: &mut ExportNode<'_>, f: BinaryFn) -> ExportElementwiseResult {
    let dtype = at.ty(0).dtype;
    let is_bool = dtype == DType::Bool;
    let is_float = dtype.class() == DTypeClass::Float;
    let op = match f {
        BinaryFn::Add => "Add",
        BinaryFn::Sub => "Sub",
        BinaryFn::Mul => "Mul",
        BinaryFn::Div if is_float => "Div",
        BinaryFn::Pow if is_float => "Pow",
        BinaryFn::Max if !is_bool => "Max",
        BinaryFn::Min if !is_bool => "Min",
        BinaryFn::And | BinaryFn::Min if is_bool => "And",
        BinaryFn::Or | BinaryFn::Max if is_bool => "Or",
        BinaryFn::Xor if is_bool => "Xor",
        BinaryFn::And => "BitwiseAnd",
        BinaryFn::Or => "BitwiseOr",
        BinaryFn::Xor => "BitwiseXor",
        BinaryFn::Rem if is_float => {
            return Ok(at.plain("Mod", vec![("fmod", OnnxAttrValue::Int(1))]));
        }
        BinaryFn::Div => return Ok(divided(at, dtype)),
        BinaryFn::Rem => return Ok(remainder(at, dtype)),
        BinaryFn::Shl | BinaryFn::Shr => return shifted(at, f, dtype),
        BinaryFn::Pow | BinaryFn::Atan2 | BinaryFn::Max | BinaryFn::Min => {
            let what = format!("ONNX has no operator for `{}` of {dtype}", f.name());
            return ExportNodeError::because(what);
        }
    };
    Ok(at.plain(op, Vec::new()))
}

/// The divisor with zeros replaced by 1; `None` if the divisor is a constant without zeros.
fn divisor(at: &mut ExportNode<'_>, dtype: DType) -> Option<String> {
    let has_zero = |t: &tercet_ir::Tensor| t.to_i64s().contains(&0);
    if at.constant(1).is_some_and(|t| !has_zero(t)) {
        return None;
    }
    let [zero, one] = [0, 1].map(|v| at.w.integer(dtype, v));
    let b = at.x(1).to_string();
    let is_zero = at.w.add("Equal", &[&b, &zero], Vec::new());
    Some(at.w.add("Where", &[&is_zero, &one, &b], Vec::new()))
}

/// Exports integer division with `x / 0 = x`.
fn divided(at: &mut ExportNode<'_>, dtype: DType) -> String {
    match divisor(at, dtype) {
        None => at.plain("Div", Vec::new()),
        Some(safe) => {
            let a = at.x(0).to_string();
            at.w.add("Div", &[&a, &safe], Vec::new())
        }
    }
}

/// Exports the remainder with `x % 0 = 0`, by `x % 1`.
fn remainder(at: &mut ExportNode<'_>, dtype: DType) -> String {
    let sign_of_dividend = || vec![("fmod", OnnxAttrValue::Int(1))];
    match divisor(at, dtype) {
        None => at.plain("Mod", sign_of_dividend()),
        Some(safe) => {
            let a = at.x(0).to_string();
            at.w.add("Mod", &[&a, &safe], sign_of_dividend())
        }
    }
}

/// Exports shifts. ONNX shifts only unsigned integers, so a signed operand is shifted as unsigned
/// bits. A right shift of a negative value shifts its complement.
fn shifted(at: &mut ExportNode<'_>, f: BinaryFn, dtype: DType) -> ExportElementwiseResult {
    let unsigned = match dtype {
        DType::I16 => U16,
        DType::I8 | DType::U8 => code(DType::U8),
        DType::I32 | DType::U32 => code(DType::U32),
        DType::I64 => U64,
        _ => return ExportNodeError::because(format!("ONNX cannot shift {dtype}")),
    };
    let is_signed = dtype.class() == DTypeClass::Signed;
    let [x, count] = [0, 1].map(|operand| at.x(operand).to_string());
    let w = &mut *at.w;
    let most = w.integer(dtype, dtype.size_bytes() as i64 * 8 - 1);
    let count = w.add("BitwiseAnd", &[&count, &most], Vec::new());
    let count = match is_signed {
        true => w.cast(&count, unsigned),
        false => count,
    };
    let left = f == BinaryFn::Shl;
    let direction = if left { "LEFT" } else { "RIGHT" };
    let mut of = |x: &str| {
        let bits = match is_signed {
            true => w.cast(x, unsigned),
            false => x.to_string(),
        };
        let direction = vec![("direction", OnnxAttrValue::Text(direction))];
        let moved = w.add("BitShift", &[&bits, &count], direction);
        match is_signed {
            true => w.cast(&moved, code(dtype)),
            false => moved,
        }
    };
    let moved = of(&x);
    if left || !is_signed {
        return Ok(moved);
    }
    let complement = at.w.add("BitwiseNot", &[&x], Vec::new());
    let mut again = at.w.cast(&complement, unsigned);
    let direction = vec![("direction", OnnxAttrValue::Text("RIGHT"))];
    again = at.w.add("BitShift", &[&again, &count], direction);
    again = at.w.cast(&again, code(dtype));
    again = at.w.add("BitwiseNot", &[&again], Vec::new());
    let zero = at.w.integer(dtype, 0);
    let is_negative = at.w.add("Less", &[&x, &zero], Vec::new());
    Ok(at
        .w
        .add("Where", &[&is_negative, &again, &moved], Vec::new()))
}

pub(super) fn compare(at: &mut ExportNode<'_>, f: CompareFn) -> ExportElementwiseResult {
    let has_order = at.ty(0).dtype != DType::Bool;
    let is_equality = matches!(f, CompareFn::Eq | CompareFn::Ne);
    if !has_order && !is_equality {
        at.names = vec![at.cast_to(0, DType::I32), at.cast_to(1, DType::I32)];
    }
    let op = match f {
        CompareFn::Eq | CompareFn::Ne => "Equal",
        CompareFn::Lt => "Less",
        CompareFn::Le => "LessOrEqual",
        CompareFn::Gt => "Greater",
        CompareFn::Ge => "GreaterOrEqual",
    };
    let y = at.plain(op, Vec::new());
    Ok(match f {
        CompareFn::Ne => at.w.add("Not", &[&y], Vec::new()),
        _ => y,
    })
}

/// Exports a fused multiply-add. ONNX lacks this operator, but F64 represents the product of two
/// F32 exactly.
pub(super) fn fma(at: &mut ExportNode<'_>) -> ExportElementwiseResult {
    let dtype = at.ty(0).dtype;
    let wide = match dtype {
        DType::F64 => {
            return ExportNodeError::because("ONNX has no fused multiply-add for this dtype");
        }
        DType::F32 | DType::F16 | DType::BF16 => DType::F64,
        _ => dtype,
    };
    let [a, b, c] = [0, 1, 2].map(|operand| at.cast_to(operand, wide));
    let product = at.w.add("Mul", &[&a, &b], Vec::new());
    let sum = at.w.add("Add", &[&product, &c], Vec::new());
    Ok(match wide == dtype {
        true => sum,
        false => at.w.cast(&sum, code(dtype)),
    })
}

pub(super) fn clamp(at: &mut ExportNode<'_>, lo: f64, hi: f64) -> ExportElementwiseResult {
    let dtype = at.ty(0).dtype;
    let x = at.x(0).to_string();
    let [lo, hi] = [lo, hi].map(|v| at.w.number(dtype, v));
    Ok(at.w.add("Clip", &[&x, &lo, &hi], Vec::new()))
}

/// Exports a cast. Floats saturate when converted to integers, and NaN becomes 0; ONNX leaves both
/// undefined.
pub(super) fn cast(at: &mut ExportNode<'_>, to: DType) -> ExportElementwiseResult {
    let from = at.ty(0).dtype;
    let x = at.x(0).to_string();
    let to_integer = matches!(to.class(), DTypeClass::Signed | DTypeClass::Unsigned);
    if from.class() != DTypeClass::Float || !to_integer {
        return Ok(at.w.cast(&x, code(to)));
    }
    if to == DType::I64 {
        return Ok(saturating_i64(at, &x));
    }
    let Some((lo, hi)) = to.int_range() else {
        return ExportNodeError::because(format!("{to} has no range"));
    };
    // F64 represents the limits of every integer range used here.
    let wide = match from {
        DType::F64 => x,
        _ => at.w.cast(&x, code(DType::F64)),
    };
    let w = &mut *at.w;
    let zero = w.number(DType::F64, 0.0);
    let is_nan = w.add("IsNaN", &[&wide], Vec::new());
    let number = w.add("Where", &[&is_nan, &zero, &wide], Vec::new());
    let [lo, hi] = [lo, hi].map(|v| w.number(DType::F64, v as f64));
    let within = w.add("Clip", &[&number, &lo, &hi], Vec::new());
    Ok(w.cast(&within, code(to)))
}

/// Converts floats to I64 with saturation. The I64 maximum is not an F64, so values from 2^63 are
/// replaced afterwards.
fn saturating_i64(at: &mut ExportNode<'_>, x: &str) -> String {
    let w = &mut *at.w;
    let wide = w.cast(x, code(DType::F64));
    let bound = i64::MAX as f64;
    let [zero, top, lo] = [0.0, bound, -bound].map(|v| w.number(DType::F64, v));
    let is_large = w.add("GreaterOrEqual", &[&wide, &top], Vec::new());
    let is_nan = w.add("IsNaN", &[&wide], Vec::new());
    let is_other = w.add("Or", &[&is_large, &is_nan], Vec::new());
    let number = w.add("Where", &[&is_other, &zero, &wide], Vec::new());
    let within = w.add("Max", &[&number, &lo], Vec::new());
    let integer = w.cast(&within, code(DType::I64));
    let most = w.integer(DType::I64, i64::MAX);
    w.add("Where", &[&is_large, &most, &integer], Vec::new())
}
