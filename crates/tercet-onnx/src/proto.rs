//! The protobuf messages of an ONNX file, with the field numbers of the specification
//! (`onnx.proto`, IR version 13).
//!
//! Only fields that the importer reads or checks are declared; the decoder skips the others. Tensor
//! bytes are slices of the file (`Bytes`) without a copy. The decoder limits the nesting depth of
//! messages.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A model file.
///
/// ```
/// use prost::Message;
/// use tercet_onnx::proto::{GraphProto, ModelProto};
/// let graph = GraphProto { name: Some("graph".to_string()), ..GraphProto::default() };
/// let model = ModelProto { ir_version: Some(10), graph: Some(graph), ..ModelProto::default() };
/// assert_eq!(ModelProto::decode(&model.encode_to_vec()[..])?, model);
/// # Ok::<(), prost::DecodeError>(())
/// ```
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of the file format.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// The tool that created the file.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// The version of the tool that created the file.
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
///
/// ```
/// use tercet_onnx::proto::{ModelProto, OperatorSetIdProto};
/// let standard = OperatorSetIdProto { domain: None, version: Some(21) };
/// let model = ModelProto { opset_import: vec![standard], ..ModelProto::default() };
/// assert_eq!(model.opset_import[0].version, Some(21));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{ModelProto, StringStringEntryProto};
/// let (key, value) = (Some("author".to_string()), Some("Ada".to_string()));
/// let property = StringStringEntryProto { key, value };
/// let model = ModelProto { metadata_props: vec![property], ..ModelProto::default() };
/// assert_eq!(model.metadata_props[0].value.as_deref(), Some("Ada"));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{GraphProto, NodeProto};
/// let node = NodeProto {
///     op_type: Some("Exp".to_string()),
///     input: vec!["x".to_string()],
///     output: vec!["y".to_string()],
///     ..NodeProto::default()
/// };
/// let graph = GraphProto { node: vec![node], ..GraphProto::default() };
/// assert_eq!(graph.node[0].output, ["y"]);
/// ```
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
///
/// ```
/// use tercet_onnx::proto::NodeProto;
/// let node = NodeProto {
///     op_type: Some("Add".to_string()),
///     input: vec!["a".to_string(), "b".to_string()],
///     output: vec!["sum".to_string()],
///     ..NodeProto::default()
/// };
/// assert_eq!((node.input.len(), node.domain), (2, None));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::AttributeProto;
/// let axis = AttributeProto {
///     name: Some("axis".to_string()),
///     i: Some(-1),
///     r#type: Some(2), // AttributeType.INT
///     ..AttributeProto::default()
/// };
/// assert_eq!(axis.i, Some(-1));
/// ```
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
    /// In functions: the name of the call's attribute that provides the value of this attribute.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// A sparse tensor value.
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
}

/// A tensor with its elements or their external location.
///
/// ```
/// use prost::Message;
/// use tercet_onnx::proto::TensorProto;
/// let tensor = TensorProto {
///     dims: vec![2],
///     data_type: Some(1), // DataType.FLOAT
///     float_data: vec![0.5, 1.5],
///     ..TensorProto::default()
/// };
/// let read = tercet_onnx::read_tensor(tensor.encode_to_vec())?;
/// assert_eq!(read.as_slice::<f32>()?, [0.5, 1.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{SparseTensorProto, TensorProto};
/// let (values, indices) = (
///     TensorProto { dims: vec![1], float_data: vec![2.5], ..TensorProto::default() },
///     TensorProto { dims: vec![1], int64_data: vec![3], ..TensorProto::default() },
/// );
/// let sparse = SparseTensorProto { values: Some(values), indices: Some(indices), dims: vec![8] };
/// assert_eq!(sparse.indices.unwrap_or_default().int64_data, [3]);
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{TensorTypeProto, TypeProto, TypeValue, ValueInfoProto};
/// let float = TensorTypeProto { elem_type: Some(1), shape: None }; // DataType.FLOAT
/// let ty = TypeProto { value: Some(TypeValue::Tensor(float)) };
/// let input = ValueInfoProto { name: Some("x".to_string()), r#type: Some(ty) };
/// assert_eq!(input.name.as_deref(), Some("x"));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{TensorTypeProto, TypeProto, TypeValue};
/// let float = TensorTypeProto { elem_type: Some(1), shape: None }; // DataType.FLOAT
/// let ty = TypeProto { value: Some(TypeValue::Tensor(float)) };
/// assert_ne!(ty, TypeProto::default());
/// ```
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The variant of the type.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 8, 9")]
    pub value: Option<TypeValue>,
}

/// The variants of types.
///
/// ```
/// use tercet_onnx::proto::{ElementTypeProto, TypeProto, TypeValue};
/// let element = ElementTypeProto { elem_type: Some(Box::new(TypeProto::default())) };
/// let list = TypeValue::Sequence(Box::new(element));
/// assert!(matches!(list, TypeValue::Sequence(of) if of.elem_type.is_some()));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{OpaqueProto, TypeValue};
/// let map = TypeValue::Map(OpaqueProto {});
/// assert!(matches!(map, TypeValue::Map(_)));
/// ```
#[derive(Clone, PartialEq, Message)]
pub struct OpaqueProto {}

/// The element type of a list or an optional.
///
/// ```
/// use tercet_onnx::proto::{ElementTypeProto, TypeProto, TypeValue};
/// let element = ElementTypeProto { elem_type: Some(Box::new(TypeProto::default())) };
/// let optional = TypeValue::Optional(Box::new(element));
/// assert!(matches!(optional, TypeValue::Optional(of) if of.elem_type.is_some()));
/// ```
#[derive(Clone, PartialEq, Message)]
pub struct ElementTypeProto {
    /// The type.
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// The type of a tensor.
///
/// ```
/// use tercet_onnx::proto::{DimensionProto, TensorShapeProto, TensorTypeProto};
/// let rows = DimensionProto { dim_value: None, dim_param: Some("rows".to_string()) };
/// let shape = TensorShapeProto { dim: vec![rows] };
/// let ty = TensorTypeProto { elem_type: Some(1), shape: Some(shape) }; // DataType.FLOAT
/// assert_eq!(ty.shape.map(|shape| shape.dim.len()), Some(1));
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{DimensionProto, TensorShapeProto};
/// let size = |n| DimensionProto { dim_value: Some(n), dim_param: None };
/// let shape = TensorShapeProto { dim: vec![size(2), size(3)] };
/// assert_eq!(shape.dim.iter().filter_map(|d| d.dim_value).product::<i64>(), 6);
/// ```
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension; unknown if both fields are absent.
///
/// ```
/// use tercet_onnx::proto::DimensionProto;
/// let batch = DimensionProto { dim_value: None, dim_param: Some("batch".to_string()) };
/// assert_ne!(batch, DimensionProto { dim_value: Some(8), dim_param: None });
/// ```
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
///
/// ```
/// use tercet_onnx::proto::{FunctionProto, NodeProto};
/// let body = NodeProto { op_type: Some("Exp".to_string()), ..NodeProto::default() };
/// let function = FunctionProto {
///     name: Some("MyExp".to_string()),
///     domain: Some("example".to_string()),
///     node: vec![body],
///     ..FunctionProto::default()
/// };
/// assert_eq!(function.node.len(), 1);
/// ```
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
