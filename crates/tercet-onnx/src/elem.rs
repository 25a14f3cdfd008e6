//! Dtypes of ONNX and what they are here, in one list.

use tercet_ir::DType;

/// The dtypes of `TensorProto.DataType`: number, name, and the dtype here where there is one.
pub(crate) const ELEM_TYPES: &[(i32, &str, Option<DType>)] = &[
    (1, "float", Some(DType::F32)),
    (2, "uint8", Some(DType::U8)),
    (3, "int8", Some(DType::I8)),
    (4, "uint16", None),
    (5, "int16", None),
    (6, "int32", Some(DType::I32)),
    (7, "int64", Some(DType::I64)),
    (8, "string", None),
    (9, "bool", Some(DType::Bool)),
    (10, "float16", Some(DType::F16)),
    (11, "double", Some(DType::F64)),
    (12, "uint32", Some(DType::U32)),
    (13, "uint64", None),
    (14, "complex64", None),
    (15, "complex128", None),
    (16, "bfloat16", Some(DType::BF16)),
    (17, "float8e4m3fn", None),
    (18, "float8e4m3fnuz", None),
    (19, "float8e5m2", None),
    (20, "float8e5m2fnuz", None),
    (21, "uint4", None),
    (22, "int4", None),
    (23, "float4e2m1", None),
    (24, "float8e8m0", None),
    (25, "uint2", None),
    (26, "int2", None),
];

/// The dtype of a number of `TensorProto.DataType`, or why there is none.
pub(crate) fn dtype(number: i64) -> Result<DType, String> {
    let known = ELEM_TYPES.iter().find(|(n, _, _)| i64::from(*n) == number);
    match known {
        Some((_, _, Some(dtype))) => Ok(*dtype),
        Some((_, name, None)) => Err(format!(
            "dtype {name} is not supported; cast it when exporting"
        )),
        None => Err(format!("{number} is no dtype of ONNX")),
    }
}
