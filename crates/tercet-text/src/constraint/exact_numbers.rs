//! Large numbers of JSON schemas.
//!
//! The grammar compiler reads the numbers of a schema as F64, which is exact for integers up to
//! 2^53, and computes bounds of integers in I64. [`exact_schema`] replaces larger bounds by the next
//! ones that the compiler represents exactly, inside of the permitted range: the answers are valid,
//! but some values next to a bound are not generated. Constants without an exact F64 are an error.

use serde_json::{Map, Number, Value};

use super::ConstraintError;

/// Integers up to this magnitude, and their neighbours, are exact in F64.
const MAX_EXACT: i128 = 1 << 53;
/// Greatest F64 below 2^63.
pub const MAX_I64_FLOAT: i128 = (1 << 63) - 1024;

/// Keywords whose value maps names to schemas.
const NAMED_SCHEMAS: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "definitions",
    "$defs",
];

/// A schema with bounds that the grammar compiler represents exactly.
///
/// ```
/// use tercet_text::constraint::exact_schema;
/// let schema = serde_json::json!({"type": "integer", "minimum": 9007199254740993i64});
/// assert_eq!(exact_schema(&schema)?["minimum"], 9007199254740994i64);
/// # Ok::<(), tercet_text::constraint::ConstraintError>(())
/// ```
///
/// # Errors
/// [`ConstraintError::Grammar`] for constants without an exact F64, and for bounds beyond I64 that
/// leave no value.
pub fn exact_schema(schema: &Value) -> Result<Value, ConstraintError> {
    let mut exact = schema.clone();
    visit_schema(&mut exact).map_err(|reason| ConstraintError::Grammar {
        kind: "JSON schema",
        reason,
    })?;
    Ok(exact)
}

fn visit_schema(schema: &mut Value) -> Result<(), String> {
    match schema {
        Value::Object(object) => visit_object(object),
        Value::Array(items) => items.iter_mut().try_for_each(visit_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn visit_object(object: &mut Map<String, Value>) -> Result<(), String> {
    let lower = bound(object, "minimum", "exclusiveMinimum", 1);
    if let Some(least) = lower {
        let exact = exact_at_least(least.max(-MAX_I64_FLOAT));
        let exact = i64::try_from(exact).map_err(|_| {
            format!(
                "minimum: {least} is above {}, the greatest supported integer",
                i64::MAX
            )
        })?;
        set_bound(object, "minimum", "exclusiveMinimum", exact);
    }
    let upper = bound(object, "maximum", "exclusiveMaximum", -1);
    if let Some(most) = upper {
        // The compiler reads every bound from 2^63 - 1 on as 2^63 - 1.
        let exact = match most >= i128::from(i64::MAX) {
            true => i128::from(i64::MAX),
            false => -exact_at_least(-most),
        };
        let exact = i64::try_from(exact)
            .ok()
            .filter(|&x| i128::from(x) >= -MAX_I64_FLOAT);
        let exact = exact.ok_or_else(|| {
            format!(
                "maximum: {most} is below {}, the least supported integer",
                -MAX_I64_FLOAT
            )
        })?;
        set_bound(object, "maximum", "exclusiveMaximum", exact);
    }
    // For a range with one bound, the compiler writes numbers of one more digit than the bound,
    // which may exceed I64; the other bound prevents that.
    if lower.is_some_and(|x| x >= MAX_EXACT) && !has_any(object, "maximum", "exclusiveMaximum") {
        object.insert("maximum".to_string(), i64::MAX.into());
    }
    if upper.is_some_and(|x| x <= -MAX_EXACT) && !has_any(object, "minimum", "exclusiveMinimum") {
        object.insert("minimum".to_string(), (-MAX_I64_FLOAT as i64).into());
    }
    for (key, value) in object.iter_mut() {
        match (key.as_str(), value) {
            ("const" | "enum", value) => check_constants(key, value)?,
            ("default" | "examples" | "example", _) => {}
            (name, Value::Object(schemas)) if NAMED_SCHEMAS.contains(&name) => {
                schemas.values_mut().try_for_each(visit_schema)?;
            }
            (_, value) => visit_schema(value)?,
        }
    }
    Ok(())
}

fn has_any(object: &Map<String, Value>, plain: &str, exclusive: &str) -> bool {
    object.contains_key(plain) || object.contains_key(exclusive)
}

fn integer(number: &Number) -> Option<i128> {
    number
        .as_i64()
        .map(i128::from)
        .or_else(|| number.as_u64().map(i128::from))
}

/// A bound of integers. The JSON parser reads integers beyond 64 bits as F64.
fn integer_bound(number: &Number, is_integer: bool) -> Option<i128> {
    let large = |x: &f64| is_integer && x.fract() == 0.0 && x.abs() >= MAX_EXACT as f64;
    let rounded = || number.as_f64().filter(large);
    // No supported bound is near these limits.
    integer(number).or_else(|| Some(rounded()?.clamp(-1e30, 1e30) as i128))
}

/// Whether a schema is about integers alone.
pub(super) fn is_integer(object: &Map<String, Value>) -> bool {
    match object.get("type") {
        Some(Value::String(name)) => name == "integer",
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "integer") && !names.iter().any(|name| name == "number")
        }
        _ => false,
    }
}

/// Whether an integer beyond 64 bits, which the JSON parser read as F64, may have had more digits.
fn may_be_rounded(number: &Number) -> bool {
    let text = format!("{:e}", number.as_f64().unwrap_or_default());
    let digits = text.split('e').next().unwrap_or_default();
    let is_large = number.as_f64().is_some_and(|x| x.abs() >= 1.8e19);
    is_large && digits.chars().filter(char::is_ascii_digit).count() > 15
}

/// The bound on integers in `object`, if it is too large for the compiler to represent exactly.
/// `step` leads from an exclusive bound to the first permitted integer.
fn bound(object: &Map<String, Value>, plain: &str, exclusive: &str, step: i128) -> Option<i128> {
    let is_integer = is_integer(object);
    let number = |key: &str| match object.get(key) {
        Some(Value::Number(number)) => integer_bound(number, is_integer),
        _ => None,
    };
    // In JSON Schema draft 4, the value `true` of the `exclusive` key makes the plain bound
    // exclusive.
    let is_exclusive = object.get(exclusive) == Some(&Value::Bool(true));
    let own = number(plain).map(|x| if is_exclusive { x + step } else { x });
    let stricter = number(exclusive).map(|x| x + step);
    let first = match (own, stricter) {
        (Some(a), Some(b)) if step > 0 => a.max(b),
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b)?,
    };
    (first.abs() >= MAX_EXACT).then_some(first)
}

fn set_bound(object: &mut Map<String, Value>, plain: &str, exclusive: &str, bound: i64) {
    object.remove(exclusive);
    object.insert(plain.to_string(), bound.into());
}

/// The smallest integer from `x` on that F64 represents, for magnitudes below 2^64.
fn exact_at_least(x: i128) -> i128 {
    let bits = 128 - x.unsigned_abs().leading_zeros();
    let unit = 1i128 << bits.saturating_sub(53);
    x.div_euclid(unit) * unit + if x.rem_euclid(unit) == 0 { 0 } else { unit }
}

fn check_constants(key: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) => match integer(number) {
            Some(x) if exact_at_least(x) != x => Err(format!(
                "{key}: {x} has no exact 64-bit float; use a text for identifiers"
            )),
            None if may_be_rounded(number) => Err(format!(
                "{key}: {number} is beyond 64 bits; use a text for identifiers"
            )),
            Some(_) | None => Ok(()),
        },
        Value::Array(items) => items.iter().try_for_each(|item| check_constants(key, item)),
        Value::Object(object) => object
            .values()
            .try_for_each(|item| check_constants(key, item)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}
