//! A decoded model file: its metadata, and imports of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use tercet_ir::{Port, Symbol, Tensor, TensorType};

use crate::elem;
use crate::error::{NodeErrorKind, OnnxError};
use crate::import::{
    ImportOptions, ImportedModel, OnnxModelSource, has_unknown_rank, import_model, input_type,
    leaves, shape_of_rank,
};
use crate::mapped;
use crate::proto::{GraphProto, ModelProto, TypeProto, TypeValue, ValueInfoProto};
use crate::strings::StringTable;

/// A decoded ONNX model file.
///
/// ```
/// # use tercet_ir::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// # let proto = tercet_onnx::export(&g, |_| None)?;
/// use prost::Message;
/// use tercet_onnx::{ImportOptions, OnnxModel};
/// // `proto` is a model file with the input `x`.
/// let model = OnnxModel::read(proto.encode_to_vec())?;
/// let inputs = model.inputs(&ImportOptions::new())?;
/// assert_eq!((inputs[0].name.as_str(), inputs[0].ty.dtype), ("x", DType::F32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OnnxModel {
    proto: ModelProto,
    folder: Option<PathBuf>,
}

/// An input or output as declared in the file, including unsupported ones.
///
/// ```
/// # use prost::Message;
/// # use tercet_ir::{DType, Dim, Graph, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(3)]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// # let bytes = tercet_onnx::export(&g, |_| None)?.encode_to_vec();
/// use tercet_onnx::OnnxModel;
/// let info = OnnxModel::read(bytes)?.describe();
/// let input = &info.inputs[0];
/// assert_eq!(input.shape, Some(vec!["rows".to_string(), "3".to_string()]));
/// assert!(!input.has_default);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxPort {
    /// The name of the input or output.
    pub name: String,
    /// The ONNX name of the dtype, or of the type if it is not a tensor; empty if the file does not
    /// specify it.
    pub dtype: String,
    /// A number, a symbol or `?` for each dimension; `None` if the rank is unknown.
    pub shape: Option<Vec<String>>,
    /// Whether an initializer provides a default value.
    pub has_default: bool,
}

/// The metadata of a model file.
///
/// ```
/// # use prost::Message;
/// # use tercet_ir::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.exp(x)?;
/// # g.output("y", y)?;
/// # let bytes = tercet_onnx::export(&g, |_| None)?.encode_to_vec();
/// use tercet_onnx::OnnxModel;
/// let info = OnnxModel::read(bytes)?.describe();
/// assert_eq!(info.operators.get("Exp"), Some(&1));
/// assert_eq!(info.opsets[0].0, "ai.onnx");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxModelInfo {
    /// The version of the file format.
    pub ir_version: i64,
    /// The tool that created the file, with its version.
    pub producer: String,
    /// The operator domains (`ai.onnx` for the standard one) with their versions.
    pub opsets: Vec<(String, i64)>,
    /// The metadata properties of the file.
    pub metadata: Vec<(String, String)>,
    /// The inputs in file order.
    pub inputs: Vec<OnnxPort>,
    /// The outputs in file order.
    pub outputs: Vec<OnnxPort>,
    /// The number of nodes per operator, including those in subgraphs and functions. Operators of
    /// other domains are named `domain::Operator`.
    pub operators: BTreeMap<String, usize>,
    /// The names of the functions that the model defines.
    pub functions: Vec<String>,
    /// The initializers of the main graph: name, ONNX dtype, sizes.
    pub initializers: Vec<(String, String, Vec<u64>)>,
}

impl OnnxModel {
    /// Reads a model. External data files are opened when it is imported. Files are memory-mapped:
    /// they must not be modified while the model, or an executable with its weights, exists.
    ///
    /// # Errors
    /// [`OnnxError`] if the file cannot be read or is not an ONNX model.
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

    /// Imports the model as a graph.
    ///
    /// # Errors
    /// As [`import`](crate::import).
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedModel, OnnxError> {
        import_model(&self.proto, self.folder.as_deref(), options)
    }

    /// Imports the model with constant values for the inputs that decide shapes. Each import
    /// attempt may find further such inputs; `value` is then called for each of them and the import
    /// is repeated.
    ///
    /// # Errors
    /// As [`import`](crate::import); nodes that need a value for which `value` returns none are
    /// listed.
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

    /// The inputs that decide shapes, as far as they can be found without input values. The list
    /// may be incomplete, because nodes that depend on missing values are not examined.
    ///
    /// # Errors
    /// As [`import`](crate::import), for nodes that no input value can help.
    pub fn deciding(&self, options: &ImportOptions) -> Result<Vec<String>, OnnxError> {
        match self.import(options) {
            Ok(_) => Ok(Vec::new()),
            Err(e) if only_needs_values(&e) => {
                Ok(needed(&e).into_iter().map(str::to_string).collect())
            }
            Err(e) => Err(e),
        }
    }

    /// The inputs of a run with their types, including those with a default. An input of unknown
    /// rank has no axes here ([`OnnxPort::shape`] is `None`); see [`OnnxModel::options_for`].
    ///
    /// # Errors
    /// [`OnnxError::Invalid`] for an unsupported type.
    pub fn inputs(&self, options: &ImportOptions) -> Result<Vec<Port>, OnnxError> {
        let graph = self.proto.graph.iter();
        graph
            .flat_map(|g| leaves(options, g))
            .map(|(name, ty)| {
                let open = has_unknown_rank(ty) && !options.shapes.contains_key(&name);
                let ty = match open {
                    true => input_type(&options.clone().shape(&name, []), &name, ty),
                    false => input_type(options, &name, ty),
                };
                match ty {
                    Ok((ty, _)) => Ok(Port { name, ty }),
                    Err(why) => Err(OnnxError::Invalid(format!("input `{name}`: {why}"))),
                }
            })
            .collect()
    }

    /// Adapts import options to the tensors of a run, for files whose declared shapes are
    /// incomplete. An input of unknown rank gets the rank of its tensor. A symbol that the
    /// tensors give different sizes becomes a separate symbol for each axis
    /// ([`ImportOptions::separate`]) with the same bound. Tensors named `INPUT[0]`, `INPUT[1]` and
    /// so on are the sequence `INPUT`; optional inputs are given if they have a tensor. `None` if
    /// the options fit already.
    ///
    /// # Errors
    /// As [`OnnxModel::inputs`].
    pub fn options_for(
        &self,
        options: &ImportOptions,
        given: &[(&str, &TensorType)],
    ) -> Result<Option<ImportOptions>, OnnxError> {
        let mut adapted = options.clone();
        let graph = self.proto.graph.iter();
        for info in graph.flat_map(|g| &g.input) {
            structure(&mut adapted, info, given);
        }
        let graph = self.proto.graph.iter();
        let found: Vec<_> = graph.flat_map(|g| leaves(&adapted, g)).collect();
        for (name, ty) in found {
            let tensor = given.iter().find(|(n, _)| *n == name);
            let (Some((_, own)), true) = (tensor, has_unknown_rank(ty)) else {
                continue;
            };
            let known = adapted.shapes.get(&name).map(Vec::len);
            if known != Some(own.shape.len()) {
                let shape = shape_of_rank(options, &name, own.shape.len());
                adapted = adapted.shape(&name, shape);
            }
        }
        let ports = self.inputs(&adapted)?;
        for symbol in ambiguous(&ports, given) {
            adapted = adapted.separate(symbol.name());
            let Some(bound) = adapted.bounds.get(&symbol) else {
                continue;
            };
            for (before, after) in ports.iter().zip(self.inputs(&adapted)?) {
                let dims = before.ty.shape.iter().zip(after.ty.shape.iter());
                let own = dims.filter(|(before, _)| before.as_symbol() == Some(&symbol));
                for symbol in own.filter_map(|(_, after)| after.as_symbol()) {
                    adapted.bounds.set(symbol, bound);
                }
            }
        }
        let same = adapted.separate == options.separate
            && adapted.shapes == options.shapes
            && adapted.lists == options.lists
            && adapted.given == options.given;
        Ok((!same).then_some(adapted))
    }

    /// The string table of the file; values of dtype `string` are indices into it.
    pub fn strings(&self) -> StringTable {
        StringTable::from_model(&self.proto)
    }

    /// The metadata of the file.
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
        // An explicit stack instead of recursion, because the file determines the nesting depth.
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

/// Sets the length of a sequence, and whether an optional input is given.
fn structure(options: &mut ImportOptions, info: &ValueInfoProto, given: &[(&str, &TensorType)]) {
    let name = info.name.as_deref().unwrap_or("");
    let has = |name: &str| given.iter().any(|(n, _)| *n == name);
    let count = || (0..).take_while(|i| has(&format!("{name}[{i}]"))).count();
    let value = |ty: Option<&TypeProto>| ty.and_then(|t| t.value.clone());
    match value(info.r#type.as_ref()) {
        Some(TypeValue::Sequence(_)) => {
            options.lists.insert(name.to_string(), count());
        }
        Some(TypeValue::Optional(of)) => {
            if let Some(TypeValue::Sequence(_)) = value(of.elem_type.as_deref()) {
                let len = count();
                options.lists.insert(name.to_string(), len);
                // An empty sequence has no tensors that tell it from an absent one.
                let known = options.given.entry(name.to_string()).or_insert(len > 0);
                *known |= len > 0;
            } else {
                options.given.insert(name.to_string(), has(name));
            }
        }
        _ => {}
    }
}

/// The symbols that tensors give different sizes.
pub(crate) fn ambiguous(ports: &[Port], given: &[(&str, &TensorType)]) -> Vec<Symbol> {
    let mut sizes: BTreeMap<&Symbol, usize> = BTreeMap::new();
    let mut found: Vec<Symbol> = Vec::new();
    for (name, ty) in given {
        let Some(port) = ports.iter().find(|p| p.name == *name) else {
            continue;
        };
        for (dim, n) in port.ty.shape.iter().zip(&ty.shape) {
            let Some(symbol) = dim.as_symbol() else {
                continue;
            };
            if *sizes.entry(symbol).or_insert(*n) != *n && !found.contains(symbol) {
                found.push(symbol.clone());
            }
        }
    }
    found
}

/// The inputs whose values an import error requests.
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

/// Whether only input values are missing.
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
        (Some(n), _) if n >= 0 => n.to_string(),
        (None, Some(symbol)) if !symbol.is_empty() => symbol.to_string(),
        (_, _) => "?".to_string(),
    };
    let shape = tensor.shape.as_ref();
    let shape = shape.map(|s| s.dim.iter().map(dim).collect());
    (elem_name(tensor.elem_type), shape)
}

/// The ONNX name of a dtype.
fn elem_name(number: Option<i32>) -> String {
    let number = number.unwrap_or(0);
    let known = elem::ELEM_TYPES.iter().find(|(n, ..)| *n == number);
    known.map_or_else(
        || format!("dtype {number}"),
        |(_, name, _)| name.to_string(),
    )
}
