//! Strings of a model: class labels, categories and map keys. Graphs compute with numbers, so a
//! string is represented as an I64 index into the table of all strings in the file. An input string
//! that is not in the table gets an invalid index such as -1, and is then equal to no string of the
//! file.

use std::collections::HashMap;

use tercet_ir::Tensor;

use crate::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::tensor::sizes;

/// `TensorProto.DataType.STRING`.
pub(crate) const STRING: i32 = 8;
/// The ONNX domain of classical machine learning operators.
pub(crate) const LEARNED: &str = "ai.onnx.ml";
/// The default that encoders return for an unknown string.
pub(crate) const UNUSED: &str = "_Unused";

/// The table of the distinct strings of a model file. Inputs and outputs of dtype `string` are
/// indices into it.
///
/// ```
/// use tercet_onnx::StringTable;
/// // `Session::strings` returns the table of a model file. This one is empty.
/// let strings = StringTable::default();
/// assert_eq!(strings.places(&["elm", "oak"]), [-1, -1]);
/// assert_eq!(strings.at(0), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct StringTable {
    list: Vec<String>,
    places: HashMap<String, i64>,
}

impl StringTable {
    /// Collects the strings of all tensors, and of the attributes of all nodes that compute with
    /// strings.
    pub(crate) fn from_model(model: &ModelProto) -> StringTable {
        let mut strings = StringTable::default();
        let mut bodies: Vec<&[NodeProto]> = model.functions.iter().map(|f| &*f.node).collect();
        let mut graphs: Vec<&GraphProto> = model.graph.iter().collect();
        // Explicit lists instead of recursion, because the file determines the nesting depth.
        loop {
            if let Some(graph) = graphs.pop() {
                graph.initializer.iter().for_each(|t| strings.add_tensor(t));
                bodies.push(&graph.node);
            } else if let Some(nodes) = bodies.pop() {
                for node in nodes {
                    node.attribute.iter().for_each(|a| strings.add_of(node, a));
                    graphs.extend(node.attribute.iter().filter_map(|a| a.g.as_ref()));
                }
            } else {
                return strings;
            }
        }
    }

    fn add_of(&mut self, node: &NodeProto, attribute: &AttributeProto) {
        attribute.t.iter().for_each(|t| self.add_tensor(t));
        let name = attribute.name.as_deref().unwrap_or("");
        let learned = node.domain.as_deref() == Some(LEARNED);
        if name.starts_with("value_string") || learned && name == "default_string" {
            attribute.s.iter().for_each(|s| self.add(s));
        }
        let list = name.starts_with("value_string") || name == "pool_strings";
        if list || learned && name.ends_with("_strings") {
            attribute.strings.iter().for_each(|s| self.add(s));
            if learned {
                self.add(UNUSED.as_bytes());
            }
        }
    }

    fn add_tensor(&mut self, tensor: &TensorProto) {
        if tensor.data_type == Some(STRING) {
            tensor.string_data.iter().for_each(|s| self.add(s));
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if !self.places.contains_key(&text) {
            self.places.insert(text.clone(), self.list.len() as i64);
            self.list.push(text);
        }
    }

    /// All strings, in the order of their first occurrence in the file.
    pub fn list(&self) -> &[String] {
        &self.list
    }

    /// The index of a string, or -1 if the file does not contain it.
    pub fn place(&self, text: &str) -> i64 {
        self.places.get(text).copied().unwrap_or(-1)
    }

    /// The string at an index; `None` if the index is invalid.
    pub fn at(&self, place: i64) -> Option<&str> {
        let place = usize::try_from(place).ok()?;
        self.list.get(place).map(String::as_str)
    }

    /// The indices of several strings, each -1 if unknown.
    pub fn places(&self, texts: &[impl AsRef<str>]) -> Vec<i64> {
        texts.iter().map(|t| self.place(t.as_ref())).collect()
    }

    /// As [`read_tensor`](crate::read_tensor), with strings converted to indices.
    ///
    /// # Errors
    /// As [`read_tensor`](crate::read_tensor).
    pub fn read_tensor(&self, bytes: Vec<u8>) -> Result<Tensor, String> {
        let proto = <TensorProto as prost::Message>::decode(bytes::Bytes::from(bytes));
        self.decode(&proto.map_err(|e| e.to_string())?)
    }

    /// As [`read_tensors`](crate::read_tensors), with strings converted to indices.
    ///
    /// # Errors
    /// As [`read_tensors`](crate::read_tensors).
    pub fn read_tensors(&self, bytes: Vec<u8>) -> Result<Vec<(String, Tensor)>, String> {
        let proto = <GraphProto as prost::Message>::decode(bytes::Bytes::from(bytes));
        let initializers = proto.map_err(|e| e.to_string())?.initializer;
        let named = |proto: TensorProto| {
            let tensor = self.decode(&proto)?;
            Ok((proto.name.unwrap_or_default(), tensor))
        };
        initializers.into_iter().map(named).collect()
    }

    fn decode(&self, proto: &TensorProto) -> Result<Tensor, String> {
        let decoded =
            crate::tensor::decode(proto, &crate::external::ExternalDataFolder::default(), self);
        decoded.map(|(tensor, _)| tensor)
    }

    /// A string tensor as indices.
    pub(crate) fn tensor(&self, proto: &TensorProto) -> Result<Tensor, String> {
        let shape = sizes(&proto.dims)?;
        if self.list.is_empty() && !proto.string_data.is_empty() {
            return Err("strings require the string table of a model".to_string());
        }
        let places: Vec<i64> = proto
            .string_data
            .iter()
            .map(|s| self.place(&String::from_utf8_lossy(s)))
            .collect();
        Tensor::from_slice(&shape, &places).map_err(|e| tercet_ir::one_line(&e))
    }
}
