//! The protobuf messages of an ONNX file, with the field numbers of the specification
//! (`onnx.proto`, IR version 13).
//!
//! Only fields that the importer reads or checks are declared; the decoder skips the others. Tensor
//! bytes are slices of the file (`Bytes`) without a copy. The decoder limits the nesting depth of
//! messages.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A model file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of the file format.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// The tool that created the file.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// The version of that tool.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// The main graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets that the nodes use.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Arbitrary metadata properties.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Operators defined by graphs.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// An operator domain with a version.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty for the standard one.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// The version of the operator set.
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A key with a value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// A graph: nodes, weights, and the names of inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The graph's name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Weights and constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs; an initializer with the same name is a default.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Sparse weights.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// An operator applied to named values.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// The names of operands; an empty name is an absent operand.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// The names of results; an empty name is an unused result.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// The operator.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// The attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's domain.
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    /// The overload, if several functions share the name.
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// The name of the attribute.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// A float value.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer value.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A string value.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor value.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A graph value.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// A list of floats.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// A list of integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// A list of strings.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// A type value.
    #[prost(message, optional, tag = "14")]
    pub tp: Option<TypeProto>,
    /// The `AttributeType`, which selects the field with the value.
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    /// In functions: the attribute of the call whose value this one takes.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// A sparse tensor value.
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
}

/// A tensor with its elements or their external location.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// The sizes.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// The dtype, a number of `TensorProto.DataType`.
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    /// F32 and complex elements.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of integers up to 32 bits, `bool` and floats of at most 16 bits.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// String elements.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// I64 elements.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// The tensor's name.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// The elements as little-endian bytes.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// F64 and complex elements.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// U32 and U64 elements.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// The external file with the elements, and the range in it.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 if the elements are in an external file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// A sparse tensor, stored as its nonzero elements.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The nonzero elements; their tensor has the name of the sparse tensor.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// The indices of the nonzero elements.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// The sizes.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

/// A name with a type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The variant of the type.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 8, 9")]
    pub value: Option<TypeValue>,
}

/// The variants of types.
#[derive(Clone, PartialEq, Oneof)]
pub enum TypeValue {
    /// A tensor.
    #[prost(message, tag = "1")]
    Tensor(TensorTypeProto),
    /// A list of values.
    #[prost(message, tag = "4")]
    Sequence(Box<ElementTypeProto>),
    /// A map.
    #[prost(message, tag = "5")]
    Map(OpaqueProto),
    /// A sparse tensor.
    #[prost(message, tag = "8")]
    SparseTensor(TensorTypeProto),
    /// A value that may be absent.
    #[prost(message, tag = "9")]
    Optional(Box<ElementTypeProto>),
}

/// A message whose fields are not used.
#[derive(Clone, PartialEq, Message)]
pub struct OpaqueProto {}

/// The element type of a list or an optional.
#[derive(Clone, PartialEq, Message)]
pub struct ElementTypeProto {
    /// The type.
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// The dtype, a number of `TensorProto.DataType`.
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    /// The shape; absent if the rank is unknown.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension; unknown if both fields are absent.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// A size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// A symbol.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// An operator defined by a graph.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// The operator's name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The names of the operands.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// The names of the results.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Attributes without a default.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// The nodes of its body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// The operator sets of its nodes.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// The operator's domain.
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Attributes with a default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// The overload, if several functions share the name.
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
}
