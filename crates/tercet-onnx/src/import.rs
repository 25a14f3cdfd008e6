//! Converts a model file to a graph: the model as a whole, its inputs and outputs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use tercet::Device;
use tercet_ir::backend::Executable;
use tercet_ir::{Bindings, CompileError, CompileOptions, Dim, Graph, Port, Symbol, Tensor, Type};

use crate::ctx::{ImportCtx, ImportScope, MAX_ADDED_NODES, Opsets};
use crate::elem;
use crate::error::{NodeErrorKind, OnnxError};
use crate::external::ExternalDataFolder;
use crate::model::OnnxModel;
use crate::outputs::{self, MapOutput, OutputAnnotations};
use crate::padded_value::{self, DynamicSizeOutput};
use crate::proto::{
    GraphProto, ModelProto, OperatorSetIdProto, TensorTypeProto, TypeProto, TypeValue,
};
use crate::strings::StringTable;
use crate::tensor;
use crate::val::ImportedValue;

/// Options for importing a model: symbol bounds, shapes and input values.
///
/// ```
/// use tercet_ir::Tensor;
/// use tercet_onnx::ImportOptions;
/// let shape = Tensor::from_slice(&[2], &[4i64, -1])?;
/// let options = ImportOptions::new().bound("batch", 8).dim("sequence", 128usize).value("shape", shape);
/// assert!(options.has_value("shape"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    pub(crate) bounds: Bindings,
    pub(crate) dims: HashMap<String, Dim>,
    pub(crate) shapes: HashMap<String, Vec<Dim>>,
    pub(crate) values: HashMap<String, Tensor>,
    pub(crate) fixed: Bindings,
    pub(crate) separate: BTreeSet<String>,
    pub(crate) lists: HashMap<String, usize>,
    pub(crate) given: HashMap<String, bool>,
}

impl ImportOptions {
    /// Options that leave symbols, shapes and values as in the file.
    pub fn new() -> ImportOptions {
        ImportOptions::default()
    }

    /// Sets the maximum size of a symbol.
    pub fn bound(mut self, symbol: &str, bound: usize) -> ImportOptions {
        self.bounds.set(&Symbol::new(symbol), bound);
        self
    }

    /// Replaces a symbol of the file by a size or another symbol.
    pub fn dim(mut self, symbol: &str, dim: impl Into<Dim>) -> ImportOptions {
        self.dims.insert(symbol.to_string(), dim.into());
        self
    }

    /// Replaces the shape of an input.
    pub fn shape(mut self, input: &str, dims: impl Into<Vec<Dim>>) -> ImportOptions {
        self.shapes.insert(input.to_string(), dims.into());
        self
    }

    /// Sets the value of an input, which becomes a constant. Inputs that decide shapes need a
    /// value.
    pub fn value(mut self, input: &str, tensor: Tensor) -> ImportOptions {
        self.values.insert(input.to_string(), tensor);
        self
    }

    /// Replaces a symbol of the input types by a fixed size.
    pub fn fixed(mut self, symbol: &Symbol, size: usize) -> ImportOptions {
        self.fixed.set(symbol, size);
        self
    }

    /// Gives each input axis that the file names `symbol` its own symbol, `INPUT_dim_AXIS`. Some
    /// exporters use one name for unknown sizes that differ.
    pub fn separate(mut self, symbol: &str) -> ImportOptions {
        self.separate.insert(symbol.to_string());
        self
    }

    /// Sets the number of tensors of an input that is a sequence. The tensors become the inputs
    /// `INPUT[0]`, `INPUT[1]` and so on.
    pub fn sequence(mut self, input: &str, len: usize) -> ImportOptions {
        self.lists.insert(input.to_string(), len);
        self
    }

    /// Sets whether an optional input is given.
    pub fn optional(mut self, input: &str, given: bool) -> ImportOptions {
        self.given.insert(input.to_string(), given);
        self
    }

    /// Whether a value was set for the input.
    pub fn has_value(&self, input: &str) -> bool {
        self.values.contains_key(input)
    }
}

/// A model imported as a graph.
///
/// ```
/// # use tercet_ir::{DType, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// # let model = tercet_onnx::export(&g, |_| None)?;
/// use tercet::Device;
/// use tercet_onnx::{ImportOptions, import_model};
/// let imported = import_model(&model, None, &ImportOptions::new())?;
/// assert_eq!(imported.inputs[0].name, "x");
/// let mut exe = imported.compile(&Device::cpu())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// let outputs = imported.cut(exe.run(&[("x", &x)])?)?;
/// assert_eq!(outputs[0].as_slice::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ImportedModel {
    /// The graph.
    pub graph: Graph,
    /// The weights, with the names of the graph's parameters.
    pub params: Vec<(String, Tensor)>,
    /// The inputs of a run, in file order.
    pub inputs: Vec<Port>,
    /// Inputs that are constants, because a value was set at import time or an initializer has the
    /// same name.
    pub fixed: Vec<String>,
    /// The outputs of a run, in file order.
    pub outputs: Vec<Port>,
    /// The outputs with a data-dependent axis size, padded to the maximum. The graph has one
    /// additional output for each of these outputs, after all others, with the valid size
    /// ([`ImportedModel::cut`]).
    pub counted: Vec<DynamicSizeOutput>,
    /// The outputs that are maps in the file: matrices with a column per key.
    pub columns: Vec<MapOutput>,
    /// The strings of the file. Inputs and outputs of dtype `string` are indices into this table.
    pub strings: StringTable,
    /// The names of the outputs of dtype `string`.
    pub string_outputs: Vec<String>,
    /// The outputs that are sequences in the file, with their lengths: the outputs `OUTPUT[0]`,
    /// `OUTPUT[1]` and so on. An optional output without a value has length 0.
    pub sequences: Vec<(String, usize)>,
    /// The bounds of the symbols that have one.
    pub bounds: Bindings,
    /// The metadata properties of the file.
    pub metadata: Vec<(String, String)>,
}

impl ImportedModel {
    /// Cuts the outputs of a graph run to their valid sizes and drops the count outputs.
    ///
    /// # Errors
    /// An output has no count, or its count exceeds the axis.
    pub fn cut(&self, outputs: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
        padded_value::cut(&self.counted, outputs)
    }

    /// Compiles the model for a device and sets its weights.
    ///
    /// # Errors
    /// [`CompileError`] if the device does not support the graph, or if a symbol has no bound.
    pub fn compile(&self, device: &Device) -> Result<Box<dyn Executable>, CompileError> {
        let options = CompileOptions {
            bounds: self.bounds.clone(),
            ..CompileOptions::default()
        };
        let mut executable = device.compile(&self.graph, &options)?;
        // Dead-code elimination may have removed parameters.
        let left = executable.signature().params.iter();
        let left: HashSet<String> = left.map(|p| p.name.clone()).collect();
        for (name, tensor) in self.params.iter().filter(|(name, _)| left.contains(name)) {
            executable
                .set_param(name, tensor.clone())
                .map_err(|e| CompileError::Device {
                    reason: tercet_ir::one_line(&e),
                })?;
        }
        Ok(executable)
    }
}

/// The source of a model.
///
/// ```
/// use std::path::Path;
/// use tercet_onnx::OnnxModelSource;
/// let file = OnnxModelSource::from(Path::new("model.onnx"));
/// let memory = OnnxModelSource::from(vec![8u8, 10]);
/// assert!(matches!(file, OnnxModelSource::Path(_)));
/// assert!(matches!(memory, OnnxModelSource::Bytes(bytes) if bytes.len() == 2));
/// ```
#[derive(Clone, Debug)]
pub enum OnnxModelSource<'a> {
    /// A file; external data files are found relative to it.
    Path(&'a Path),
    /// The bytes of a file; external data is not available.
    Bytes(Bytes),
}

impl<'a> From<&'a Path> for OnnxModelSource<'a> {
    fn from(path: &'a Path) -> OnnxModelSource<'a> {
        OnnxModelSource::Path(path)
    }
}

impl From<Vec<u8>> for OnnxModelSource<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        OnnxModelSource::Bytes(bytes.into())
    }
}

/// Imports a model.
///
/// # Errors
/// [`OnnxError`] if the file cannot be read, is not an ONNX model, or has unsupported nodes; lists
/// all of them with reasons.
pub fn import<'a>(
    source: impl Into<OnnxModelSource<'a>>,
    options: &ImportOptions,
) -> Result<ImportedModel, OnnxError> {
    OnnxModel::read(source)?.import(options)
}

/// Imports a decoded model. `folder` is the location of its external data files.
///
/// # Errors
/// As [`import`].
pub fn import_model(
    model: &ModelProto,
    folder: Option<&Path>,
    options: &ImportOptions,
) -> Result<ImportedModel, OnnxError> {
    let Some(graph) = &model.graph else {
        return Err(OnnxError::Invalid("the model has no graph".to_string()));
    };
    let mut ctx = ImportCtx::new(
        options,
        ExternalDataFolder::new(folder),
        StringTable::from_model(model),
    );
    for f in &model.functions {
        let text = |s: &'_ Option<String>| -> String { s.clone().unwrap_or_default() };
        let key = (
            crate::ops::domain(f.domain.as_deref().unwrap_or("")),
            f.name.as_deref().unwrap_or(""),
            f.overload.as_deref().unwrap_or(""),
        );
        if ctx.functions.insert(key, f).is_some() {
            return Err(OnnxError::Invalid(format!(
                "two functions are named `{}`",
                text(&f.name)
            )));
        }
    }
    ctx.scopes.push(ImportScope {
        isolated: true,
        opsets: opsets(&model.opset_import)?,
        ..ImportScope::default()
    });
    ctx.used_once = used_once(graph);
    ctx.max_nodes = graph.node.len().saturating_add(MAX_ADDED_NODES);
    let fixed = declare_inputs(&mut ctx, graph);
    ctx.declare_initializers(graph);
    ctx.run_nodes(&graph.node).map_err(OnnxError::Invalid)?;
    let OutputAnnotations {
        counted,
        columns,
        strings,
        sequences,
    } = outputs::name(&mut ctx, graph);
    ctx.finish()?;
    let params = std::mem::take(&mut ctx.params);
    let built = ctx.pop_level();
    let signature = tercet_ir::Signature::of(&built);
    let outputs = signature.outputs.len() - counted.len();
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let notes = model.metadata_props.iter();
    Ok(ImportedModel {
        inputs: signature.inputs,
        outputs: signature.outputs.into_iter().take(outputs).collect(),
        counted,
        columns,
        strings: std::mem::take(&mut ctx.strings),
        string_outputs: strings,
        sequences,
        params,
        fixed,
        bounds: options.bounds.clone(),
        metadata: notes.map(|e| (text(&e.key), text(&e.value))).collect(),
        graph: built,
    })
}

/// The names that a single operand of the graph, or of graphs inside its nodes, refers to.
fn used_once(graph: &GraphProto) -> HashSet<&str> {
    fn count<'m>(graph: &'m GraphProto, uses: &mut HashMap<&'m str, usize>) {
        let outputs = graph.output.iter().filter_map(|info| info.name.as_deref());
        let operands = graph.node.iter().flat_map(|node| &node.input);
        for name in outputs.chain(operands.map(String::as_str)) {
            *uses.entry(name).or_default() += 1;
        }
        for attribute in graph.node.iter().flat_map(|node| &node.attribute) {
            attribute.g.iter().for_each(|graph| count(graph, uses));
        }
    }
    let mut uses = HashMap::new();
    count(graph, &mut uses);
    uses.into_iter()
        .filter(|(_, n)| *n == 1)
        .map(|(name, _)| name)
        .collect()
}

/// Operator set versions by domain.
pub(crate) fn opsets(list: &[OperatorSetIdProto]) -> Result<Opsets, OnnxError> {
    let mut sets = HashMap::new();
    for set in list {
        let domain = crate::ops::domain(set.domain.as_deref().unwrap_or(""));
        let version = set.version.unwrap_or(0);
        if sets
            .insert(domain.to_string(), version)
            .is_some_and(|v| v != version)
        {
            return Err(OnnxError::Invalid(format!(
                "domain `{domain}` has two versions"
            )));
        }
    }
    Ok(Rc::new(sets))
}

/// Declares the inputs of the graph, and returns the names of those that are constants.
fn declare_inputs<'m>(ctx: &mut ImportCtx<'m>, graph: &'m GraphProto) -> Vec<String> {
    let weights: BTreeSet<&str> = graph
        .initializer
        .iter()
        .filter_map(|t| t.name.as_deref())
        .collect();
    let mut fixed = Vec::new();
    for info in &graph.input {
        let name = info.name.as_deref().unwrap_or("");
        let val = match ctx.options.values.get(name) {
            Some(tensor) => {
                fixed.push(name.to_string());
                let narrow = declared_elem(info.r#type.as_ref())
                    .ok()
                    .and_then(elem::OnnxDType::emulated);
                ImportedValue::decoded((tensor.clone(), narrow), Some(name.to_string()))
            }
            None if weights.contains(name) => {
                fixed.push(name.to_string());
                continue;
            }
            None => declare_any(ctx, name, info.r#type.as_ref()),
        };
        ctx.scope().names.insert(name, val);
    }
    fixed
}

/// Maximum number of tensors of a sequence.
pub(crate) const MAX_SEQUENCE: usize = 1 << 16;

/// Declares an input, a sequence of inputs, or an optional input.
fn declare_any(ctx: &mut ImportCtx<'_>, name: &str, ty: Option<&TypeProto>) -> ImportedValue {
    let unsupported =
        |why: &str| ImportedValue::Unsupported(format!("is the input `{name}`: {why}").into());
    match ty.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Sequence(of)) => match ctx.options.lists.get(name) {
            Some(len) if *len <= MAX_SEQUENCE => {
                let of = of.elem_type.as_deref();
                let list = (0..*len).map(|i| declare_any(ctx, &format!("{name}[{i}]"), of));
                ImportedValue::Seq(Rc::new(list.collect()))
            }
            Some(_) => unsupported("the sequence is too long"),
            None => unsupported("its length is unknown; set it with `ImportOptions::sequence`"),
        },
        Some(TypeValue::Optional(of)) => match ctx.options.given.get(name) {
            Some(true) => declare_any(ctx, name, of.elem_type.as_deref()),
            Some(false) => ImportedValue::Absent,
            None => unsupported("set with `ImportOptions::optional` whether it is given"),
        },
        _ => match input_type(ctx.options, name, ty) {
            Err(why) => unsupported(&why),
            Ok((ty, narrow)) => match declare(ctx, name, ty, narrow) {
                Ok(val) => val,
                Err(reason) => {
                    ctx.fail(name.to_string(), "input", reason);
                    ImportedValue::Failed
                }
            },
        },
    }
}

/// The tensors that the inputs of a graph consist of, with their names and types: those of
/// sequences of known length, and those of optional inputs that are given.
pub(crate) fn leaves<'m>(
    options: &ImportOptions,
    graph: &'m GraphProto,
) -> Vec<(String, Option<&'m TypeProto>)> {
    let mut found = Vec::new();
    for info in &graph.input {
        let name = info.name.clone().unwrap_or_default();
        let mut ty = info.r#type.as_ref();
        if let Some(TypeValue::Optional(of)) = ty.and_then(|t| t.value.as_ref()) {
            if options.given.get(&name) != Some(&true) {
                continue;
            }
            ty = of.elem_type.as_deref();
        }
        match ty.and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Sequence(of)) => {
                let len = options.lists.get(&name).copied().unwrap_or(0);
                let of = of.elem_type.as_deref();
                found.extend((0..len.min(MAX_SEQUENCE)).map(|i| (format!("{name}[{i}]"), of)));
            }
            _ => found.push((name, ty)),
        }
    }
    found
}

/// Declares an input of the graph. Values of a narrow dtype arrive in the carrier and are wrapped
/// or saturated to the dtype's range.
fn declare(
    ctx: &mut ImportCtx<'_>,
    name: &str,
    ty: Type,
    narrow: Option<elem::Narrow>,
) -> Result<ImportedValue, NodeErrorKind> {
    let value = ctx.g().input(name, ty)?;
    match narrow {
        None => Ok(value.into()),
        Some(narrow) => {
            let value = crate::emulated_dtypes::wrap_or_saturate(ctx.g(), narrow, value)?;
            Ok(ImportedValue::Narrow(narrow, Rc::new(value.into())))
        }
    }
}

/// The dtype of a tensor type.
fn declared_elem(ty: Option<&TypeProto>) -> Result<elem::OnnxDType, String> {
    match ty.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => elem::elem(t.elem_type.unwrap_or(0).into()),
        _ => Err("it is not a tensor".into()),
    }
}

/// The type of an input, and its dtype if that is narrow.
pub(crate) fn input_type(
    options: &ImportOptions,
    name: &str,
    ty: Option<&TypeProto>,
) -> Result<(Type, Option<elem::Narrow>), String> {
    let elem = declared_elem(ty);
    let tensor = match ty.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t,
        Some(TypeValue::Sequence(_)) => return Err("sequences are not supported as inputs".into()),
        Some(TypeValue::Map(_)) => return Err("maps are not supported as inputs".into()),
        Some(TypeValue::Optional(_)) => return Err("optionals are not supported as inputs".into()),
        Some(TypeValue::SparseTensor(_)) => {
            return Err("sparse tensors are not supported as inputs".into());
        }
        None => return Err("it has no type".into()),
    };
    let (dtype, narrow) = match elem? {
        elem::OnnxDType::Plain(dtype) => (dtype, None),
        elem::OnnxDType::EmulatedDType(narrow) => (narrow.carrier(), Some(narrow)),
    };
    let mut dims = match options.shapes.get(name) {
        Some(dims) => dims.clone(),
        None => declared_dims(options, name, tensor)?,
    };
    for dim in &mut dims {
        // If only some symbols of an expression are fixed, it stays symbolic. The provided inputs
        // determine the remaining symbols.
        if let Ok(n) = dim.eval(&options.fixed) {
            *dim = Dim::Known(n);
        }
    }
    match dims.len() > tercet_ir::MAX_RANK {
        true => Err(format!(
            "{} axes, at most {} are supported",
            dims.len(),
            tercet_ir::MAX_RANK
        )),
        false => Ok((Type::new(dtype, dims), narrow)),
    }
}

/// The dimensions of a tensor type. Dimensions that are unnamed or negative (Paddle writes -1)
/// become symbols named after the input and the axis.
pub(crate) fn declared_dims(
    options: &ImportOptions,
    name: &str,
    tensor: &TensorTypeProto,
) -> Result<Vec<Dim>, String> {
    let shape = tensor.shape.as_ref();
    let shape = shape.ok_or("its rank is unknown; set its shape with `ImportOptions::shape`")?;
    let dim = |(axis, d): (usize, &crate::proto::DimensionProto)| match (
        d.dim_value,
        d.dim_param.as_deref(),
    ) {
        (Some(n), _) if n >= 0 => usize::try_from(n)
            .map(Dim::Known)
            .map_err(|_| format!("axis {axis} has size {n}")),
        (None, Some(symbol)) if options.dims.contains_key(symbol) => {
            Ok(options.dims[symbol].clone())
        }
        (None, Some(symbol)) if !symbol.is_empty() && !options.separate.contains(symbol) => {
            Ok(Dim::sym(symbol))
        }
        (_, _) => Ok(own_dim(options, name, axis)),
    };
    shape.dim.iter().enumerate().map(dim).collect()
}

/// The symbol of an axis without a name.
fn own_dim(options: &ImportOptions, input: &str, axis: usize) -> Dim {
    let symbol = format!("{input}_dim_{axis}");
    let other = options.dims.get(&symbol).cloned();
    other.unwrap_or_else(|| Dim::sym(&symbol))
}

/// The shape of an input of unknown rank, from the rank of a tensor: a symbol per axis.
pub(crate) fn shape_of_rank(options: &ImportOptions, input: &str, rank: usize) -> Vec<Dim> {
    (0..rank)
        .map(|axis| own_dim(options, input, axis))
        .collect()
}

/// Whether the file specifies the dtype of an input but not its rank.
pub(crate) fn has_unknown_rank(ty: Option<&TypeProto>) -> bool {
    matches!(
        ty.and_then(|t| t.value.as_ref()),
        Some(TypeValue::Tensor(t)) if t.shape.is_none()
    )
}

impl<'m> ImportCtx<'m> {
    /// Adds the initializers to the scope. An unsupported initializer is reported only if a node
    /// uses the value.
    pub(crate) fn declare_initializers(&mut self, graph: &'m GraphProto) {
        for proto in &graph.initializer {
            let name = proto.name.as_deref().unwrap_or("");
            if self.scope().names.contains_key(name) {
                continue;
            }
            let val = match tensor::decode(proto, &self.folder, &self.strings) {
                Ok(made) => ImportedValue::decoded(made, Some(name.to_string())),
                Err(why) => {
                    ImportedValue::Unsupported(format!("is the initializer `{name}`: {why}").into())
                }
            };
            self.scope().names.insert(name, val);
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse
                .values
                .as_ref()
                .and_then(|v| v.name.as_deref())
                .unwrap_or("");
            let val = match crate::ops::constant::sparse(sparse, &self.folder) {
                Ok(t) => ImportedValue::named(t, Some(name.to_string())),
                Err(why) => {
                    ImportedValue::Unsupported(format!("is the initializer `{name}`: {why}").into())
                }
            };
            self.scope().names.insert(name, val);
        }
    }
}
