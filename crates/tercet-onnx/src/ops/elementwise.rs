//! Elementwise functions.

use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{DType, Value};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::elem::{self, OnnxDType};
use crate::emulated_dtypes;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

/// Table entries of elementwise functions without attributes: `"Relu" 6 Relu unary` expands to
/// `op("Relu", 6, |k| { let x = k.x(0)?; one(k.g().unary(UnaryFn::Relu, x)?) })`.
macro_rules! direct {
    ($($name:literal $since:literal $f:ident $kind:ident),* $(,)?) => {
        &[$(op($name, $since, |k| direct!(@$kind k $f))),*]
    };
    (@unary $k:ident $f:ident) => {{
        let x = $k.x(0)?;
        one($k.g().unary(UnaryFn::$f, x)?)
    }};
    (@binary $k:ident $f:ident) => {{
        let (a, b) = ($k.x(0)?, $k.x(1)?);
        one($k.g().binary(BinaryFn::$f, a, b)?)
    }};
    (@compare $k:ident $f:ident) => {{
        let (a, b) = ($k.x(0)?, $k.x(1)?);
        one($k.g().compare(CompareFn::$f, a, b)?)
    }};
}

/// Functions that map to one Tercet operator.
pub(crate) const DIRECT: &[OpsetEntry] = direct! {
    "Relu" 6 Relu unary, "Sigmoid" 6 Sigmoid unary, "Tanh" 6 Tanh unary, "Exp" 6 Exp unary, "Log" 6 Ln unary,
    "Sqrt" 6 Sqrt unary, "Reciprocal" 6 Recip unary, "Neg" 6 Neg unary, "Sign" 9 Sign unary,
    "Softplus" 1 Softplus unary, "Erf" 9 Erf unary, "Sin" 7 Sin unary, "Cos" 7 Cos unary, "Tan" 7 Tan unary,
    "Asin" 7 Asin unary, "Acos" 7 Acos unary, "Atan" 7 Atan unary, "Sinh" 9 Sinh unary, "Cosh" 9 Cosh unary,
    "Atanh" 9 Atanh unary,
    "Floor" 6 Floor unary, "Ceil" 6 Ceil unary, "Round" 11 Round unary, "Not" 1 Not unary, "IsNaN" 9 IsNan unary,
    "BitwiseNot" 18 Not unary,
    "Add" 6 Add binary, "Sub" 6 Sub binary, "Mul" 6 Mul binary, "Div" 6 Div binary, "And" 7 And binary,
    "Or" 7 Or binary, "Xor" 7 Xor binary, "BitwiseAnd" 18 And binary, "BitwiseOr" 18 Or binary,
    "BitwiseXor" 18 Xor binary,
    "Equal" 7 Eq compare, "Greater" 7 Gt compare, "GreaterOrEqual" 12 Ge compare, "Less" 7 Lt compare,
    "LessOrEqual" 12 Le compare,
};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Abs", 6, abs),
    op("Acosh", 9, acosh),
    op("Asinh", 9, asinh),
    op("Elu", 6, elu),
    op("Selu", 6, selu),
    op("Celu", 12, celu),
    op("LeakyRelu", 6, leaky_relu),
    op("ThresholdedRelu", 10, thresholded_relu),
    op("PRelu", 7, prelu),
    op("HardSigmoid", 6, hard_sigmoid),
    op("HardSwish", 14, hard_swish),
    op("Mish", 18, mish),
    op("Softsign", 1, softsign),
    op("Swish", 24, swish),
    op("Gelu", 20, gelu),
    op("Shrink", 9, shrink),
    op("Clip", 6, clip_attributes).until(10),
    op("Clip", 11, clip),
    op("Pow", 7, pow),
    op("Mod", 10, modulo),
    op("BitShift", 11, bit_shift),
    op("Max", 6, |k| fold(k, BinaryFn::Max)),
    op("Min", 6, |k| fold(k, BinaryFn::Min)),
    op("Sum", 6, |k| fold(k, BinaryFn::Add)),
    op("Mean", 6, mean),
    op("IsInf", 10, is_inf),
    op("Where", 9, where_),
    op("Cast", 6, cast),
    op("CastLike", 15, cast_like),
    op("Identity", 1, |k| Ok(vec![k.val(0).clone()])).without_folding(),
    op("Dropout", 6, dropout_old).until(11),
    op("Dropout", 12, dropout).without_folding(),
    op("Binarizer", 1, binarizer).in_domain("ai.onnx.ml"),
];

fn abs(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    match k.dtype(x) {
        DType::U8 | DType::U32 => one(x),
        _ => one(k.g().abs(x)?),
    }
}

/// Bound above which `asinh(x)` and `acosh(x)` round to `ln(2 x)`. The square of the bound is
/// finite in the dtype.
fn large_bound(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 128.0,
        DType::F64 => 268_435_456.0,
        _ => 8192.0,
    }
}

/// `near` for `size <= bound`, otherwise `ln(2 size)`; NaN stays NaN.
fn or_log_of_large(
    k: &mut ImportNode<'_, '_>,
    size: Value,
    bound: Value,
    near: Value,
) -> Result<Value, NodeErrorKind> {
    let ln_2 = k.like(size, std::f64::consts::LN_2)?;
    let g = k.g();
    let log = g.unary(UnaryFn::Ln, size)?;
    let large = g.plus(log, ln_2)?;
    let is_large = g.compare(CompareFn::Gt, size, bound)?;
    Ok(g.where_(is_large, large, near)?)
}

/// `ln(1 + t)` with `t = x - 1 + sqrt(x - 1) sqrt(x + 1)`. A single root of the product would
/// overflow for large `x`, and would exist for `x < -1`.
fn acosh(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (one_, bound) = (k.like(x, 1.0)?, k.like(x, large_bound(k.dtype(x)))?);
    let g = k.g();
    let small = g.min(x, bound)?;
    let (below, above) = (g.sub(small, one_)?, g.plus(small, one_)?);
    let (left, right) = (g.sqrt(below)?, g.sqrt(above)?);
    let root = g.mul(left, right)?;
    let t = g.plus(below, root)?;
    let near = g.unary(UnaryFn::Log1p, t)?;
    one(or_log_of_large(k, x, bound, near)?)
}

/// `sign(x) ln(1 + t)` with `t = |x| + x^2 / (1 + sqrt(1 + x^2))`.
fn asinh(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (one_, bound) = (k.like(x, 1.0)?, k.like(x, large_bound(k.dtype(x)))?);
    let g = k.g();
    let size = g.abs(x)?;
    let small = g.min(size, bound)?;
    let square = g.mul(small, small)?;
    let more = g.plus(square, one_)?;
    let root = g.sqrt(more)?;
    let divisor = g.plus(root, one_)?;
    let part = g.div(square, divisor)?;
    let t = g.plus(small, part)?;
    let near = g.unary(UnaryFn::Log1p, t)?;
    let log = or_log_of_large(k, size, bound, near)?;
    let sign = k.g().unary(UnaryFn::Sign, x)?;
    one(k.g().mul(sign, log)?)
}

/// `x` for `x > 0`, otherwise `scale (e^(x / divisor) - 1)`.
fn exponential(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    scale: f64,
    divisor: f64,
) -> Result<Value, NodeErrorKind> {
    let (zero, scale, divisor_) = (k.like(x, 0.0)?, k.like(x, scale)?, k.like(x, divisor)?);
    let g = k.g();
    let scaled = match divisor == 1.0 {
        true => x,
        false => g.div(x, divisor_)?,
    };
    let low = g.unary(UnaryFn::Expm1, scaled)?;
    let low = g.mul(low, scale)?;
    let above = g.compare(CompareFn::Gt, x, zero)?;
    Ok(g.where_(above, x, low)?)
}

fn elu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 1.0)?);
    one(exponential(k, x, alpha, 1.0)?)
}

fn selu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let alpha = k.attrs.float("alpha", 1.673_263_192_176_818_8)?;
    let gamma = k.attrs.float("gamma", 1.050_701_022_148_132_3)?;
    let y = exponential(k, x, alpha, 1.0)?;
    let gamma = k.like(x, gamma)?;
    one(k.g().mul(y, gamma)?)
}

fn celu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 1.0)?);
    one(exponential(k, x, alpha, alpha)?)
}

/// `x` for `x >= 0`, otherwise `slope x`.
fn sloped(k: &mut ImportNode<'_, '_>, x: Value, slope: Value) -> NodeOutputs {
    let zero = k.like(x, 0.0)?;
    let g = k.g();
    let low = g.mul(x, slope)?;
    let below = g.compare(CompareFn::Lt, x, zero)?;
    one(g.where_(below, low, x)?)
}

fn leaky_relu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 0.01)?);
    let slope = k.like(x, alpha)?;
    sloped(k, x, slope)
}

fn prelu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, slope) = (k.x(0)?, k.x(1)?);
    sloped(k, x, slope)
}

fn thresholded_relu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 1.0)?);
    let (alpha, zero) = (k.like(x, alpha)?, k.like(x, 0.0)?);
    let above = k.g().compare(CompareFn::Gt, x, alpha)?;
    one(k.g().where_(above, x, zero)?)
}

fn hard(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    alpha: f64,
    beta: f64,
) -> Result<Value, NodeErrorKind> {
    let (alpha, beta) = (k.like(x, alpha)?, k.like(x, beta)?);
    let y = k.g().mul(x, alpha)?;
    let y = k.g().plus(y, beta)?;
    Ok(k.g().clamp(y, 0.0, 1.0)?)
}

fn hard_sigmoid(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha, beta) = (
        k.x(0)?,
        k.attrs.float("alpha", 0.2)?,
        k.attrs.float("beta", 0.5)?,
    );
    one(hard(k, x, alpha, beta)?)
}

fn hard_swish(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let gate = hard(k, x, 1.0 / 6.0, 0.5)?;
    one(k.g().mul(x, gate)?)
}

fn mish(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let g = k.g();
    let soft = g.unary(UnaryFn::Softplus, x)?;
    let gate = g.tanh(soft)?;
    one(g.mul(x, gate)?)
}

fn softsign(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let one_ = k.like(x, 1.0)?;
    let g = k.g();
    let size = g.abs(x)?;
    let divisor = g.plus(size, one_)?;
    one(g.div(x, divisor)?)
}

fn swish(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 1.0)?);
    let alpha = k.like(x, alpha)?;
    let scaled = k.g().mul(x, alpha)?;
    let gate = k.g().sigmoid(scaled)?;
    one(k.g().mul(x, gate)?)
}

fn gelu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let f = match k.attrs.string("approximate", "none")?.as_str() {
        "none" => UnaryFn::Gelu,
        "tanh" => UnaryFn::GeluTanh,
        other => {
            return Err(NodeErrorKind::attribute(
                "approximate",
                format!("expected `none` or `tanh`, found `{other}`"),
            ));
        }
    };
    one(k.g().unary(f, x)?)
}

fn shrink(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, bias, lambd) = (
        k.x(0)?,
        k.attrs.float("bias", 0.0)?,
        k.attrs.float("lambd", 0.5)?,
    );
    let (bias, high, low, zero) = (
        k.like(x, bias)?,
        k.like(x, lambd)?,
        k.like(x, -lambd)?,
        k.like(x, 0.0)?,
    );
    let g = k.g();
    let (less, more) = (g.sub(x, bias)?, g.plus(x, bias)?);
    let above = g.compare(CompareFn::Gt, x, high)?;
    let below = g.compare(CompareFn::Lt, x, low)?;
    let y = g.where_(below, more, zero)?;
    one(g.where_(above, less, y)?)
}

fn clip_attributes(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (lo, hi) = (
        k.attrs.float("min", f64::from(f32::MIN))?,
        k.attrs.float("max", f64::from(f32::MAX))?,
    );
    let (lo, hi) = (k.like(x, lo)?, k.like(x, hi)?);
    let y = k.g().max(x, lo)?;
    one(k.g().min(y, hi)?)
}

fn clip(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut y = k.x(0)?;
    if let Some(lo) = k.opt(1)? {
        y = k.g().max(y, lo)?;
    }
    if let Some(hi) = k.opt(2)? {
        y = k.g().min(y, hi)?;
    }
    one(y)
}

/// `Pow`: the result has the dtype of the base. If only one operand is an integer, the computation
/// is F64.
fn pow(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (base, (mut exponent, narrow)) = (k.x(0)?, k.carried(1)?);
    if let Some(narrow) = narrow {
        let to = k.dtype(base);
        if !to.is_float() {
            let reason = format!(
                "has dtype {}, which is not supported with a base of {to}",
                narrow.name()
            );
            return Err(NodeErrorKind::operand(1, reason));
        }
        let cast =
            emulated_dtypes::cast(k.g(), exponent, Some(narrow), OnnxDType::Plain(to), true)?;
        exponent = k.c.place(&cast, 1)?;
    }
    let (to, from) = (k.dtype(base), k.dtype(exponent));
    let between = match (to.is_float(), from.is_float()) {
        (true, _) => to,
        (false, true) => DType::F64,
        (false, false) if to == from => to,
        (false, false) => DType::I64,
    };
    let g = k.g();
    let base = cast_to(g, base, between)?;
    let exponent = cast_to(g, exponent, between)?;
    let y = g.pow(base, exponent)?;
    one(cast_to(g, y, to)?)
}

fn cast_to(g: &mut tercet_ir::Graph, x: Value, to: DType) -> Result<Value, NodeErrorKind> {
    match g.ty(x).dtype == to {
        true => Ok(x),
        false => Ok(g.cast(x, to)?),
    }
}

/// The remainder with the sign of the divisor, or of the dividend with `fmod`.
fn modulo(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (k.x(0)?, k.x(1)?);
    let fmod = k.attrs.flag("fmod", false)?;
    let rest = k.g().binary(BinaryFn::Rem, a, b)?;
    let unsigned = matches!(k.dtype(a), DType::U8 | DType::U32);
    if fmod || unsigned {
        return one(rest);
    }
    let zero = k.like(a, 0.0)?;
    let g = k.g();
    let other = g.plus(rest, b)?;
    let not_zero = g.compare(CompareFn::Ne, rest, zero)?;
    let (r, d) = (
        g.compare(CompareFn::Lt, rest, zero)?,
        g.compare(CompareFn::Lt, b, zero)?,
    );
    let differ = g.binary(BinaryFn::Xor, r, d)?;
    let wrong = g.binary(BinaryFn::And, not_zero, differ)?;
    one(g.where_(wrong, other, rest)?)
}

fn bit_shift(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (k.x(0)?, k.x(1)?);
    let f = match k.attrs.string("direction", "")?.as_str() {
        "LEFT" => BinaryFn::Shl,
        "RIGHT" => BinaryFn::Shr,
        other => {
            return Err(NodeErrorKind::attribute(
                "direction",
                format!("expected LEFT or RIGHT, found `{other}`"),
            ));
        }
    };
    let dtype = k.dtype(a);
    if !matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64) {
        return one(k.g().binary(f, a, b)?);
    }
    // Signed integers, since opset 28: a negative shift, or one of the width or more, moves all bits
    // out and leaves zeros or the sign.
    let width = 8 * dtype.size_bytes();
    let (zero, last) = (k.like(b, 0.0)?, k.like(b, (width - 1) as f64)?);
    let g = k.g();
    let low = g.compare(CompareFn::Lt, b, zero)?;
    let high = g.compare(CompareFn::Gt, b, last)?;
    let outside = g.binary(BinaryFn::Or, low, high)?;
    let b = g.where_(outside, last, b)?;
    let y = g.binary(f, a, b)?;
    if f == BinaryFn::Shr {
        return one(y);
    }
    let nothing = k.like(y, 0.0)?;
    one(k.g().where_(outside, nothing, y)?)
}

fn fold(k: &mut ImportNode<'_, '_>, f: BinaryFn) -> NodeOutputs {
    let xs = k.xs()?;
    let (first, rest) = xs
        .split_first()
        .ok_or_else(|| NodeErrorKind::operand(0, "is missing"))?;
    let mut y = *first;
    for x in rest {
        y = k.g().binary(f, y, *x)?;
    }
    one(y)
}

fn mean(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let sum = k.xs()?;
    let count = sum.len() as f64;
    let mut y = *sum
        .first()
        .ok_or_else(|| NodeErrorKind::operand(0, "is missing"))?;
    for x in &sum[1..] {
        y = k.g().plus(y, *x)?;
    }
    let count = k.like(y, count)?;
    one(k.g().div(y, count)?)
}

fn is_inf(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (below, above) = (
        k.attrs.flag("detect_negative", true)?,
        k.attrs.flag("detect_positive", true)?,
    );
    let is = k.g().unary(UnaryFn::IsInf, x)?;
    let zero = k.like(x, 0.0)?;
    let side = match (below, above) {
        (true, true) => return one(is),
        (true, false) => CompareFn::Lt,
        (false, true) => CompareFn::Gt,
        // Detect neither sign: an infinity never equals zero, so the result is always false.
        (false, false) => CompareFn::Eq,
    };
    let side = k.g().compare(side, x, zero)?;
    one(k.g().binary(BinaryFn::And, is, side)?)
}

fn where_(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (cond, a, b) = (k.x(0)?, k.x(1)?, k.x(2)?);
    one(k.g().where_(cond, a, b)?)
}

/// Casts the first operand. Casts to 8-bit floats round to nearest; `saturate` affects only them.
fn converted(k: &mut ImportNode<'_, '_>, to: OnnxDType) -> NodeOutputs {
    let saturate = k.attrs.flag("saturate", true)?;
    // `round_mode` affects only power-of-two formats, which are unsupported.
    k.attrs.ignore(&["round_mode"]);
    let (x, from) = k.carried(0)?;
    match (from, to) {
        (Some(from), OnnxDType::EmulatedDType(to)) if from == to => Ok(vec![k.val(0).clone()]),
        _ => Ok(vec![emulated_dtypes::cast(k.g(), x, from, to, saturate)?]),
    }
}

fn cast(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let to = elem::elem(k.attrs.int("to", 0)?).map_err(|e| NodeErrorKind::attribute("to", e))?;
    converted(k, to)
}

fn cast_like(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let to = match k.carried(1)? {
        (_, Some(narrow)) => OnnxDType::EmulatedDType(narrow),
        (like, None) => OnnxDType::Plain(k.dtype(like)),
    };
    converted(k, to)
}

/// The unchanged operand, and a mask of ones.
fn kept(k: &mut ImportNode<'_, '_>, mask_dtype: DType) -> NodeOutputs {
    let x = k.x(0)?;
    let mut results = vec![ImportedValue::Graph(x)];
    if k.is_requested(1) {
        let (dims, yes) = (k.dims(x), k.c.scalar(mask_dtype, 1.0)?);
        results.push(k.g().expand(yes, dims)?.into());
    }
    Ok(results)
}

fn dropout_old(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    k.attrs.ignore(&["ratio", "is_test"]);
    let x = k.x(0)?;
    let dtype = match k.opset >= 10 {
        true => DType::Bool,
        false => k.dtype(x),
    };
    kept(k, dtype)
}

/// Dropout. In training mode, elements are zeroed at random and the others are scaled up; otherwise
/// `Dropout` is the identity.
fn dropout(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let seed = k.attrs.int("seed", 0)?;
    let training = k.has(2) && k.int(2)? != 0;
    let ratio = match (training, k.has(1)) {
        (false, _) => 0.0,
        (true, true) => k.float(1)?,
        (true, false) => 0.5,
    };
    if !(0.0..1.0).contains(&ratio) {
        return Err(NodeErrorKind::operand(
            1,
            format!("is {ratio}, expected 0 <= x < 1"),
        ));
    }
    if ratio == 0.0 {
        return kept(k, DType::Bool);
    }
    let x = k.x(0)?;
    let dims = k.dims(x);
    let numbers = k.g().rng_uniform(dims, DType::F32, 0.0, 1.0, seed as u64)?;
    let (bound, zero) = (k.like(numbers, ratio)?, k.like(x, 0.0)?);
    let growth = k.like(x, 1.0 / (1.0 - ratio))?;
    let stays = k.g().compare(CompareFn::Ge, numbers, bound)?;
    let grown = k.g().mul(x, growth)?;
    let y = k.g().where_(stays, grown, zero)?;
    Ok(vec![y.into(), stays.into()])
}

fn binarizer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, threshold) = (k.x(0)?, k.attrs.float("threshold", 0.0)?);
    let (threshold, dtype) = (k.like(x, threshold)?, k.dtype(x));
    let above = k.g().compare(CompareFn::Gt, x, threshold)?;
    one(k.g().cast(above, dtype)?)
}
