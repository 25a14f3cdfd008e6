//! Conversion between tensors and the protocol's formats.

use serde_json::{Value, json};
use tercet::{DType, Port, Tensor, TensorType, one_line};

use crate::error::ApiError;
use crate::fields::kind;

/// Maximum nesting of JSON lists: one level per tensor axis.
const MAX_DEPTH: usize = tercet::MAX_RANK + 1;

/// Protocol name of a dtype.
pub(crate) fn datatype(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "FP32",
        DType::F64 => "FP64",
        DType::F16 => "FP16",
        DType::BF16 => "BF16",
        DType::I32 => "INT32",
        DType::I64 => "INT64",
        DType::U32 => "UINT32",
        DType::I16 => "INT16",
        DType::I8 => "INT8",
        DType::U8 => "UINT8",
        DType::Bool => "BOOL",
    }
}

/// Name, datatype and shape. Sizes that a request determines are -1.
pub(crate) fn metadata(port: &Port) -> Value {
    let size = |dim: &tercet::Dim| dim.known().map_or(json!(-1), |n| json!(n));
    let shape: Vec<Value> = port.ty.shape.iter().map(size).collect();
    json!({"name": port.name, "datatype": datatype(port.ty.dtype), "shape": shape})
}

/// A tensor from little-endian bytes in row-major order.
pub(crate) fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, String> {
    Tensor::from_bytes(TensorType::new(dtype, shape), bytes).map_err(|e| one_line(&e))
}

/// A tensor from a list in row-major order, flat or nested.
pub(crate) fn from_json(dtype: DType, shape: &[usize], data: &Value) -> Result<Tensor, String> {
    let mut flat = Vec::new();
    flatten(data, &mut flat, 0)?;
    // Check the size before allocating.
    let expected = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if expected != Some(flat.len()) {
        return Err(format!(
            "`data` has {} elements, which does not match the shape {shape:?}",
            flat.len()
        ));
    }
    let ty = TensorType::new(dtype, shape);
    let wrong = |found: &Value, expected: &str| {
        let shown: String = found.to_string().chars().take(64).collect();
        format!("`data` has {shown}; expected {expected}")
    };
    if dtype == DType::Bool {
        let truth = |v: &&Value| v.as_bool().ok_or_else(|| wrong(v, "true or false"));
        let bools: Vec<bool> = flat.iter().map(truth).collect::<Result<_, _>>()?;
        return Tensor::from_bools(shape, &bools).map_err(|e| one_line(&e));
    }
    if let Some((least, most)) = dtype.int_range() {
        let whole = |v: &&Value| {
            let n = v.as_i64().filter(|n| (least..=most).contains(n));
            n.ok_or_else(|| wrong(v, &format!("a whole number from {least} to {most}")))
        };
        let numbers: Vec<i64> = flat.iter().map(whole).collect::<Result<_, _>>()?;
        return Tensor::from_i64s(ty, &numbers).map_err(|e| one_line(&e));
    }
    let number = |v: &&Value| v.as_f64().ok_or_else(|| wrong(v, "a number"));
    let numbers: Vec<f64> = flat.iter().map(number).collect::<Result<_, _>>()?;
    Tensor::from_f64s(ty, &numbers).map_err(|e| one_line(&e))
}

fn flatten<'a>(value: &'a Value, flat: &mut Vec<&'a Value>, depth: usize) -> Result<(), String> {
    match value {
        Value::Array(items) if depth < MAX_DEPTH => items
            .iter()
            .try_for_each(|item| flatten(item, flat, depth + 1)),
        Value::Array(_) => Err("`data` is nested deeper than the maximum rank".to_string()),
        Value::Object(_) if depth == 0 => {
            Err(format!("`data` is {}; expected a list", kind(value)))
        }
        value => {
            flat.push(value);
            Ok(())
        }
    }
}

/// The elements as a flat list.
///
/// # Errors
/// Returns an error if an element is NaN or infinite, which JSON cannot represent. Clients can
/// request such outputs in binary.
pub(crate) fn to_json(name: &str, tensor: &Tensor) -> Result<Value, ApiError> {
    if tensor.dtype() == DType::Bool {
        return Ok(tensor.bytes().iter().map(|b| json!(*b != 0)).collect());
    }
    if tensor.dtype().is_int() {
        return Ok(tensor.to_i64s().into_iter().map(|n| json!(n)).collect());
    }
    let numbers = tensor.to_f64s();
    if numbers.iter().any(|x| !x.is_finite()) {
        return Err(ApiError::new(
            axum::http::StatusCode::UNPROCESSABLE_ENTITY,
            "not_finite",
            format!(
                "output `{name}` contains NaN or infinity, which JSON cannot represent; request it with `binary_data`"
            ),
        ));
    }
    Ok(numbers.into_iter().map(|x| json!(x)).collect())
}
