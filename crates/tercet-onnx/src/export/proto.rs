//! Attributes, types and tensors in the representation of the file format.

use bytes::Bytes;
use tercet_ir::{DType, Dim, Tensor, Type};

use crate::proto::{
    AttributeProto, DimensionProto, GraphProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, TypeValue, ValueInfoProto,
};

/// The value of an attribute.
pub(super) enum OnnxAttrValue {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
    Tensor(TensorProto),
    Graph(GraphProto),
}

/// Creates an attribute with its `AttributeProto.AttributeType`.
pub(super) fn attribute(name: &str, value: OnnxAttrValue) -> AttributeProto {
    let mut proto = AttributeProto {
        name: Some(name.to_string()),
        ..AttributeProto::default()
    };
    proto.r#type = Some(match value {
        OnnxAttrValue::Float(f) => {
            proto.f = Some(f);
            1
        }
        OnnxAttrValue::Int(i) => {
            proto.i = Some(i);
            2
        }
        OnnxAttrValue::Text(s) => {
            proto.s = Some(Bytes::from_static(s.as_bytes()));
            3
        }
        OnnxAttrValue::Tensor(t) => {
            proto.t = Some(t);
            4
        }
        OnnxAttrValue::Graph(g) => {
            proto.g = Some(g);
            5
        }
        OnnxAttrValue::Ints(ints) => {
            proto.ints = ints;
            7
        }
    });
    proto
}

/// The `TensorProto.DataType` number of a dtype.
pub(super) fn code(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::BF16 => 16,
    }
}

/// The numbers of U16 and U64, which ONNX has but Tercet does not.
pub(super) const U16: i32 = 4;
pub(super) const U64: i32 = 13;

pub(super) fn tensor_proto(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        dims: tensor.shape().iter().map(|n| *n as i64).collect(),
        data_type: Some(code(tensor.dtype())),
        name: Some(name.to_string()),
        raw_data: Some(Bytes::copy_from_slice(tensor.bytes())),
        ..TensorProto::default()
    }
}

pub(super) fn value_info(name: &str, ty: &Type) -> ValueInfoProto {
    let dim = |d: &Dim| DimensionProto {
        dim_value: d.known().and_then(|n| i64::try_from(n).ok()),
        dim_param: d.known().is_none().then(|| d.to_string()),
    };
    let tensor = TensorTypeProto {
        elem_type: Some(code(ty.dtype)),
        shape: Some(TensorShapeProto {
            dim: ty.shape.iter().map(dim).collect(),
        }),
    };
    ValueInfoProto {
        name: Some(name.to_string()),
        r#type: Some(TypeProto {
            value: Some(TypeValue::Tensor(tensor)),
        }),
    }
}
