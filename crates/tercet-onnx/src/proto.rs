//! The messages of an ONNX file, with the field numbers of the public specification (`onnx.proto`, IR version 13).
//!
//! Only fields that the importer reads or checks are declared; the decoder skips the others. Bytes of tensors are slices
//! of the file (`Bytes`), not copies. The decoder bounds how deep messages nest.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A model file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of the format.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// Who wrote the file.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// The version of who wrote it.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets that nodes are of.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Whatever the writer noted.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Operators that are defined by graphs.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// A domain and the version of its operators.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty for ONNX's own.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// The version.
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
    /// Inputs; an initializer of the same name is a default.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Weights that are mostly zero.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// An operator applied to named values.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of operands; an empty one is absent.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of results; an empty one is not wanted.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// The operator.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// Its attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's domain.
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    /// Which function of this name.
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// A number.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A string.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A graph.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// Numbers.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// A type.
    #[prost(message, optional, tag = "14")]
    pub tp: Option<TypeProto>,
    /// Which of the fields is meant.
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    /// In functions: the attribute of the call that this one is.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// A tensor that is mostly zero.
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
}

/// A tensor with its elements, or where they lie.
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
    /// Elements of integers up to 32 bits, `bool` and small floats.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// I64 elements.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// The tensor's name.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// Elements as little-endian bytes.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// F64 and complex elements.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// U32 and U64 elements.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// Which file holds the elements, and where in it.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 if the elements are in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// A tensor by its elements that are not zero.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The elements, named as the tensor is.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// Where they are.
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
    /// Which kind.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 8, 9")]
    pub value: Option<TypeValue>,
}

/// The kinds of types.
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
    /// A tensor that is mostly zero.
    #[prost(message, tag = "8")]
    SparseTensor(TensorTypeProto),
    /// A value that may be absent.
    #[prost(message, tag = "9")]
    Optional(Box<ElementTypeProto>),
}

/// A message whose fields do not matter here.
#[derive(Clone, PartialEq, Message)]
pub struct OpaqueProto {}

/// The type of what a list or an optional holds.
#[derive(Clone, PartialEq, Message)]
pub struct ElementTypeProto {
    /// The type.
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// The dtype.
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    /// The shape; absent where even the rank is not said.
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

/// A dimension; not said which if both are absent.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// A size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// A symbol.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// An operator that is a graph.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// The operator's name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Names of its operands.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Names of its results.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Its attributes without a default.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// What it does.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// The operator sets of its nodes.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Its domain.
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Its attributes with a default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// Which function of this name.
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
}
