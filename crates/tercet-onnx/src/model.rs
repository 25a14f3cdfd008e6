//! A model that was read but not imported: what its file says about itself, and imports of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use tercet_ir::{Port, Tensor};

use crate::elem;
use crate::error::{NodeErrorKind, OnnxError};
use crate::import::{ImportOptions, ImportedModel, OnnxModelSource, import_model, input_type};
use crate::mapped;
use crate::proto::{GraphProto, ModelProto, TypeProto, TypeValue, ValueInfoProto};
use crate::strings::StringTable;

/// A model as its file has it.
#[derive(Clone, Debug)]
pub struct OnnxModel {
    proto: ModelProto,
    folder: Option<PathBuf>,
}

/// An input or output as the file declares it, whether it is supported or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxPort {
    /// The name.
    pub name: String,
    /// ONNX's name of the dtype, or what the value is where it is no tensor; empty where the file does not say.
    pub dtype: String,
    /// A number, a symbol, or `?` for each dimension; absent where the file does not say the rank.
    pub shape: Option<Vec<String>>,
    /// Whether an initializer gives the value if a run does not.
    pub has_default: bool,
}

/// What a model's file says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxModelInfo {
    /// The version of the file format.
    pub ir_version: i64,
    /// Who wrote the file, and which version of it.
    pub producer: String,
    /// Domains, `ai.onnx` for ONNX's own, with the version of their operators.
    pub opsets: Vec<(String, i64)>,
    /// Whatever the writer noted.
    pub metadata: Vec<(String, String)>,
    /// Inputs in the order of the file.
    pub inputs: Vec<OnnxPort>,
    /// Outputs in the order of the file.
    pub outputs: Vec<OnnxPort>,
    /// How many nodes there are of each operator, graphs inside nodes and functions included; those of other domains
    /// than ONNX's own as `domain::Operator`.
    pub operators: BTreeMap<String, usize>,
    /// Names of the functions that the model defines.
    pub functions: Vec<String>,
    /// Initializers of the model's own graph: name, ONNX's dtype, sizes.
    pub initializers: Vec<(String, String, Vec<u64>)>,
}

impl OnnxModel {
    /// Reads a model; weights in other files are opened when it is imported. Files are mapped: they must not be written to while the
    /// model, or an executable with its weights, lives.
    ///
    /// # Errors
    /// [`OnnxError`]: no file, or no model.
    pub fn read<'a>(source: impl Into<OnnxModelSource<'a>>) -> Result<OnnxModel, OnnxError> {
        let (bytes, folder): (Bytes, _) = match source.into() {
            OnnxModelSource::Bytes(bytes) => (bytes, None),
            OnnxModelSource::Path(path) => {
                let bytes = std::fs::File::open(path).and_then(mapped::bytes_of);
                let bytes = bytes.map_err(|source| OnnxError::Read {
                    path: path.to_path_buf(),
                    source,
                })?;
                let folder = path.parent().map(|p| match p.as_os_str().is_empty() {
                    true => Path::new(".").to_path_buf(),
                    false => p.to_path_buf(),
                });
                (bytes, folder)
            }
        };
        let proto = ModelProto::decode(bytes).map_err(|source| OnnxError::Decode { source })?;
        Ok(OnnxModel { proto, folder })
    }

    /// The model as a graph.
    ///
    /// # Errors
    /// As [`import`](crate::import).
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedModel, OnnxError> {
        import_model(&self.proto, self.folder.as_deref(), options)
    }

    /// The model as a graph in which inputs that decide shapes are constants: `value` is asked for each that nodes turn
    /// out to need, and again while more turn out, so it imports as often as shapes depend on shapes.
    ///
    /// # Errors
    /// As [`import`](crate::import), with the refusals of nodes that need a value which is not given.
    pub fn import_with(
        &self,
        options: &ImportOptions,
        mut value: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<ImportedModel, OnnxError> {
        let mut options = options.clone();
        loop {
            let e = match self.import(&options) {
                Ok(imported) => return Ok(imported),
                Err(e) => e,
            };
            let mut more = false;
            for name in needed(&e) {
                if let (false, Some(tensor)) = (options.has_value(name), value(name)) {
                    options = options.value(name, tensor);
                    more = true;
                }
            }
            if !more {
                return Err(e);
            }
        }
    }

    /// The inputs that decide shapes, as far as they are known before values are, of a model that can be run if they
    /// are given. Nodes behind those that need values are not looked at.
    ///
    /// # Errors
    /// As [`import`](crate::import), with all that no value of an input helps.
    pub fn deciding(&self, options: &ImportOptions) -> Result<Vec<String>, OnnxError> {
        match self.import(options) {
            Ok(_) => Ok(Vec::new()),
            Err(e) if only_needs_values(&e) => {
                Ok(needed(&e).into_iter().map(str::to_string).collect())
            }
            Err(e) => Err(e),
        }
    }

    /// The inputs that a run can be given, those with a default included, with their types.
    ///
    /// # Errors
    /// [`OnnxError::Invalid`] for a type that is not supported.
    pub fn inputs(&self, options: &ImportOptions) -> Result<Vec<Port>, OnnxError> {
        let graph = self.proto.graph.iter();
        graph
            .flat_map(|g| &g.input)
            .map(|info| {
                let name = info.name.clone().unwrap_or_default();
                let ty = input_type(options, &name, info.r#type.as_ref());
                match ty {
                    Ok((ty, _)) => Ok(Port { name, ty }),
                    Err(why) => Err(OnnxError::Invalid(format!("input `{name}`: {why}"))),
                }
            })
            .collect()
    }

    /// The strings of the file, which values of dtype `string` are places of.
    pub fn strings(&self) -> StringTable {
        StringTable::from_model(&self.proto)
    }

    /// What the file says about itself.
    pub fn describe(&self) -> OnnxModelInfo {
        let model = &self.proto;
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        let producer = [&model.producer_name, &model.producer_version];
        let producer: Vec<&str> = producer.into_iter().flatten().map(String::as_str).collect();
        let opsets = model.opset_import.iter().map(|o| {
            let domain = o.domain.as_deref().filter(|d| !d.is_empty());
            let domain = domain.unwrap_or("ai.onnx").to_string();
            (domain, o.version.unwrap_or(0))
        });
        let notes = model.metadata_props.iter();
        let mut about = OnnxModelInfo {
            ir_version: model.ir_version.unwrap_or(0),
            producer: producer.join(" ").trim().to_string(),
            opsets: opsets.collect(),
            metadata: notes.map(|e| (text(&e.key), text(&e.value))).collect(),
            functions: model.functions.iter().map(|f| text(&f.name)).collect(),
            ..OnnxModelInfo::default()
        };
        let mut bodies: Vec<_> = model.functions.iter().map(|f| &f.node).collect();
        if let Some(graph) = &model.graph {
            about.inputs = declared(&graph.input, graph);
            about.outputs = declared(&graph.output, graph);
            let weights = graph.initializer.iter().map(|t| {
                let sizes = t.dims.iter().map(|&d| u64::try_from(d).unwrap_or(0));
                (text(&t.name), elem_name(t.data_type), sizes.collect())
            });
            about.initializers = weights.collect();
            bodies.push(&graph.node);
        }
        // A list instead of recursion: how deep graphs nest is the file's choice.
        while let Some(nodes) = bodies.pop() {
            for node in nodes {
                let op = node.op_type.as_deref().unwrap_or("");
                let name = match crate::ops::domain(node.domain.as_deref().unwrap_or("")) {
                    "" => op.to_string(),
                    domain => format!("{domain}::{op}"),
                };
                *about.operators.entry(name).or_default() += 1;
                let graphs = node.attribute.iter().filter_map(|a| a.g.as_ref());
                bodies.extend(graphs.map(|g| &g.node));
            }
        }
        about
    }
}

/// The inputs that nodes need the value of, as an error says.
fn needed(e: &OnnxError) -> Vec<&str> {
    let OnnxError::Nodes(nodes) = e else {
        return Vec::new();
    };
    let mut names: Vec<&str> = Vec::new();
    for node in nodes {
        if let NodeErrorKind::NeedsValue { inputs, .. } = &node.source {
            names.extend(inputs.iter().map(String::as_str));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether values of inputs are all that is missing.
fn only_needs_values(e: &OnnxError) -> bool {
    match e {
        OnnxError::Nodes(nodes) => nodes.iter().all(|n| n.source.needs_inputs()),
        OnnxError::Read { .. } | OnnxError::Decode { .. } | OnnxError::Invalid(_) => false,
    }
}

fn declared(list: &[ValueInfoProto], graph: &GraphProto) -> Vec<OnnxPort> {
    let weights: std::collections::HashSet<&str> = graph
        .initializer
        .iter()
        .filter_map(|t| t.name.as_deref())
        .collect();
    let one = |info: &ValueInfoProto| {
        let name = info.name.clone().unwrap_or_default();
        let (dtype, shape) = declared_type(info.r#type.as_ref());
        OnnxPort {
            has_default: weights.contains(name.as_str()),
            name,
            dtype,
            shape,
        }
    };
    list.iter().map(one).collect()
}

fn declared_type(ty: Option<&TypeProto>) -> (String, Option<Vec<String>>) {
    let tensor = match ty.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t,
        Some(TypeValue::Sequence(_)) => return ("sequence".to_string(), None),
        Some(TypeValue::Map(_)) => return ("map".to_string(), None),
        Some(TypeValue::SparseTensor(_)) => return ("sparse tensor".to_string(), None),
        Some(TypeValue::Optional(_)) => return ("optional".to_string(), None),
        None => return (String::new(), None),
    };
    let dim = |d: &crate::proto::DimensionProto| match (d.dim_value, d.dim_param.as_deref()) {
        (Some(n), _) => n.to_string(),
        (None, Some(symbol)) if !symbol.is_empty() => symbol.to_string(),
        (None, _) => "?".to_string(),
    };
    let shape = tensor.shape.as_ref();
    let shape = shape.map(|s| s.dim.iter().map(dim).collect());
    (elem_name(tensor.elem_type), shape)
}

/// ONNX's name of a dtype.
fn elem_name(number: Option<i32>) -> String {
    let number = number.unwrap_or(0);
    let known = elem::ELEM_TYPES.iter().find(|(n, ..)| *n == number);
    known.map_or_else(
        || format!("dtype {number}"),
        |(_, name, _)| name.to_string(),
    )
}
