//! Runs a model repeatedly, with inputs of any size and operands that decide shapes.

use std::collections::{BTreeSet, HashMap};

use tercet::Device;
use tercet_ir::backend::{Executable, OutputSelection};
use tercet_ir::{
    Bindings, CompileError, DeviceTensor, Port, RunError, Signature, Symbol, Tensor, TensorType,
};

use crate::error::OnnxError;
use crate::import::{ImportOptions, ImportedModel};
use crate::model::{OnnxModel, OnnxModelInfo, OnnxPort, ambiguous};
use crate::padded_value::{self, DynamicSizeOutput};
use crate::provided_inputs::{ProvidedInput, ProvidedInputSource, same, types};
use crate::sizes::bindings_from_types;
use crate::strings::StringTable;

/// The default number of compiled specializations that a session retains.
const KEPT: usize = 8;

/// The error of a session run.
///
/// ```
/// # use prost::Message;
/// # use tercet_ir::{DType, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// # let bytes = tercet_onnx::export(&g, |_| None)?.encode_to_vec();
/// use tercet::Device;
/// use tercet_onnx::{ImportOptions, Session, SessionError};
/// // The only input of the model is `x`.
/// let mut session = Session::open(bytes, &Device::cpu(), &ImportOptions::new())?;
/// let z = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// let error = session.run(&[("z", &z)], None).unwrap_err();
/// assert!(matches!(error, SessionError::UnknownInput { known, .. } if known == "x"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model cannot be read or imported.
    #[error("the model cannot be imported")]
    Import(#[from] OnnxError),
    /// The model cannot be compiled for the device.
    #[error("the model cannot be compiled for this device")]
    Compile(#[from] CompileError),
    /// The run failed.
    #[error("the run failed")]
    Run(#[from] RunError),
    /// The model has no input with this name.
    #[error("the model has no input `{name}`; it has: {known}")]
    UnknownInput {
        /// The provided name.
        name: String,
        /// The names of the model's inputs.
        known: String,
    },
    /// The model has no output with this name.
    #[error("the model has no output `{name}`; it has: {known}")]
    UnknownOutput {
        /// The requested name.
        name: String,
        /// The names of the model's outputs.
        known: String,
    },
    /// An input is missing or has another dtype.
    #[error("input `{name}` {problem}")]
    Input {
        /// The name of the input.
        name: String,
        /// The reason and the remedy.
        problem: String,
    },
}

/// The model compiled for particular values of the inputs that decide shapes.
struct Specialization {
    /// The values of the inputs that decide shapes, and of provided inputs that have a default.
    fixed: Vec<(String, Tensor)>,
    /// The sizes of the symbols that are fixed in this specialization.
    sizes: Bindings,
    /// The lengths of sequences, and the optional inputs that are given.
    lists: HashMap<String, usize>,
    given: HashMap<String, bool>,
    imported: ImportedModel,
    /// The symbol bounds that it was compiled for.
    bounds: Bindings,
    executable: Box<dyn Executable>,
    /// The inputs that are bound to device tensors.
    bound: Vec<String>,
}

/// An ONNX model on a device, compiled on demand.
///
/// **When it compiles.** A run compiles the model if no retained specialization fits:
/// - An input that decides shapes (the target of a `Reshape`, the ends of a `Slice` or a `Range`)
///   has a new value. Such inputs are constants of the graph, so the model is imported again with
///   the value. The same holds for inputs with a default, if a run provides them.
/// - A size exceeds the compiled bound. Symbols with a bound ([`ImportOptions::bound`]) are
///   compiled for it once. All sizes up to it run without compiling, and a larger size is an error.
///   For other symbols the bound is the current size rounded up to a power of two, and a larger
///   size is compiled again.
/// - A size differs that must be known at import time ([`Session::fixed_sizes`]). So does the size
///   of a symbol without a bound, if a shape is a quotient of it, such as the number of windows of
///   a strided convolution: programs for known image sizes are faster.
///
/// Eight specializations are retained ([`Session::with_forms`]); the least recently used one is
/// dropped first.
///
/// ```
/// # use prost::Message;
/// # use tercet_ir::{DType, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// # let bytes = tercet_onnx::export(&g, |_| None)?.encode_to_vec();
/// use tercet::Device;
/// use tercet_onnx::{ImportOptions, Session};
/// // `bytes` is a model file with the input `x` and the output `y = -x`.
/// let mut session = Session::open(bytes, &Device::cpu(), &ImportOptions::new())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// let outputs = session.run(&[("x", &x)], Some(&["y"]))?;
/// assert_eq!(outputs[0].1.as_slice::<f32>()?, [-1.0, 2.0]);
/// assert_eq!(session.compilations(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    model: OnnxModel,
    options: ImportOptions,
    device: Device,
    inputs: Vec<Port>,
    about: OnnxModelInfo,
    strings: StringTable,
    /// The inputs that are known to decide shapes.
    deciding: BTreeSet<String>,
    /// The symbols whose sizes must be known at import time.
    sized: Vec<Symbol>,
    /// Specializations; the most recently used one is last.
    forms: Vec<Specialization>,
    max_forms: usize,
    compilations: usize,
}

impl Session {
    /// Opens a model without compiling it. Unsupported constructs are reported here. Exceptions are
    /// nodes whose shapes depend on input values, or are not expressible with symbols: they are
    /// checked by the first run.
    ///
    /// # Errors
    /// [`SessionError::Import`].
    pub fn open<'a>(
        source: impl Into<crate::OnnxModelSource<'a>>,
        device: &Device,
        options: &ImportOptions,
    ) -> Result<Session, SessionError> {
        let model = OnnxModel::read(source)?;
        let inputs = model.inputs(options)?;
        let about = model.describe();
        // Shapes are also incomplete if the rank of an input is unknown.
        let has_symbols = inputs
            .iter()
            .any(|p| p.ty.shape.iter().any(|d| d.known().is_none()))
            || about.inputs.iter().any(|p| p.shape.is_none());
        let deciding = match model.deciding(options) {
            Err(e) if has_symbols && e.may_need_sizes() => BTreeSet::new(),
            found => found?.into_iter().collect(),
        };
        Ok(Session {
            about,
            strings: model.strings(),
            options: options.clone(),
            device: device.clone(),
            model,
            inputs,
            deciding,
            sized: Vec::new(),
            forms: Vec::new(),
            max_forms: KEPT,
            compilations: 0,
        })
    }

    /// Sets the number of retained specializations, at least one.
    pub fn with_forms(mut self, forms: usize) -> Session {
        self.max_forms = forms.max(1);
        self
    }

    /// The inputs with their types in file order; sizes may be symbols. The rank of an input that the
    /// file leaves open is 0 until the first run.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The metadata of the file: outputs, opsets, properties, operators.
    pub fn about(&self) -> &OnnxModelInfo {
        &self.about
    }

    /// The string table of the file. Inputs and outputs of dtype `string` are I64 indices into it.
    pub fn strings(&self) -> &StringTable {
        &self.strings
    }

    /// The column keys of an output that is a map in the file, after the last run.
    pub fn columns(&self, output: &str) -> Option<&[String]> {
        let mut columns = self.forms.last()?.imported.columns.iter();
        columns
            .find(|c| c.output == output)
            .map(|c| c.keys.as_slice())
    }

    /// Whether an output has dtype `string`, after the last run.
    pub fn is_string_output(&self, output: &str) -> bool {
        let mut last = self.forms.last().into_iter();
        last.any(|form| {
            form.imported
                .string_outputs
                .iter()
                .any(|name| name == output)
        })
    }

    /// The inputs that are known to decide shapes; later runs may find more.
    pub fn deciding(&self) -> impl Iterator<Item = &str> {
        self.deciding.iter().map(String::as_str)
    }

    /// The symbols whose sizes must be known at import time, as far as known. Each size of such a
    /// symbol needs a separate specialization.
    pub fn fixed_sizes(&self) -> &[Symbol] {
        &self.sized
    }

    /// The number of compilations so far.
    pub fn compilations(&self) -> usize {
        self.compilations
    }

    /// Runs the model and returns the outputs in file order, or the outputs named in `wanted`.
    /// Inputs with a default may be omitted. Outputs that are not requested are computed but not
    /// copied to the host.
    ///
    /// The tensors of a sequence `s` are the inputs or outputs `s[0]`, `s[1]` and so on. An optional
    /// input is absent if it has no tensor, and an optional output without a value is not returned.
    ///
    /// # Errors
    /// [`SessionError`] with the name of the input, output or nodes.
    pub fn run(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, SessionError> {
        let given: Vec<ProvidedInput<'_>> = inputs
            .iter()
            .map(|(n, t)| (*n, ProvidedInputSource::Host(t)))
            .collect();
        let form = self.form(&given, wanted)?;
        form.unbind()?;
        let ports = form.imported.outputs.iter().map(|p| p.name.as_str());
        let names = form.parts_of(wanted);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // The count outputs of padded outputs follow the requested outputs.
        let own = |(at, name): (usize, &&str)| {
            let counted = form.imported.counted.iter();
            let place = ports.clone().position(|p| p == *name)?;
            let found = counted.clone().find(|c| c.output == place)?;
            Some(DynamicSizeOutput {
                output: at,
                ..found.clone()
            })
        };
        let counted: Vec<DynamicSizeOutput> = names.iter().enumerate().filter_map(own).collect();
        let all = names.iter().copied();
        let all: Vec<&str> = all
            .chain(counted.iter().map(|c| c.count.as_str()))
            .collect();
        let left = form.left_on_host(&given);
        form.executable.submit(&left, OutputSelection::Only(&all))?;
        let mut outputs = Vec::new();
        form.executable.wait(&mut outputs)?;
        form.executable.release_outputs();
        let outputs =
            padded_value::cut(&counted, outputs).map_err(|problem| SessionError::Input {
                name: names.join(", "),
                problem,
            })?;
        let names = names.into_iter().map(str::to_string);
        Ok(names.zip(outputs).collect())
    }

    /// As [`Session::run`], with outputs that stay on the device. Inputs may be device tensors,
    /// such as outputs of an earlier run (the KV cache of a decoder), and are then not copied.
    /// Outputs with a data-dependent size are padded to the maximum.
    ///
    /// # Errors
    /// The errors of [`Session::run`], and an error if a tensor belongs to another device.
    pub fn run_on_device(
        &mut self,
        inputs: &[(&str, &Tensor)],
        on_device: &[(&str, &DeviceTensor)],
        wanted: Option<&[&str]>,
    ) -> Result<Vec<(String, DeviceTensor)>, SessionError> {
        let host = inputs
            .iter()
            .map(|(n, t)| (*n, ProvidedInputSource::Host(t)));
        let bound = on_device
            .iter()
            .map(|(n, t)| (*n, ProvidedInputSource::Device(t)));
        let given: Vec<ProvidedInput<'_>> = host.chain(bound).collect();
        let form = self.form(&given, wanted)?;
        form.unbind()?;
        for (name, tensor) in on_device {
            if form.has_input(name) {
                form.executable.bind(name, tensor)?;
                form.bound.push((*name).to_string());
            }
        }
        let left = form.left_on_host(&given);
        form.executable.submit(&left, OutputSelection::Only(&[]))?;
        form.executable.wait(&mut Vec::new())?;
        let names = form.parts_of(wanted);
        let own = |name: String| {
            let tensor = form.executable.output_on_device(&name)?;
            Ok((name, tensor))
        };
        names.into_iter().map(own).collect()
    }

    /// The specialization for these inputs; marks it as most recently used.
    fn form(
        &mut self,
        inputs: &[ProvidedInput<'_>],
        wanted: Option<&[&str]>,
    ) -> Result<&mut Specialization, SessionError> {
        self.adapt(inputs)?;
        self.check(inputs, wanted)?;
        let at = match self.find(inputs)? {
            Some(at) => at,
            None => self.compile(inputs)?,
        };
        let form = self.forms.remove(at);
        self.forms.push(form);
        Ok(self.forms.last_mut().expect("invariant: just pushed"))
    }

    /// Adapts the options to inputs of unknown rank, and to sizes that differ for one symbol.
    fn adapt(&mut self, inputs: &[ProvidedInput<'_>]) -> Result<(), SessionError> {
        let given = types(inputs);
        let shapes = &self.options.shapes;
        let is_open = |(name, ty): &(&str, &TensorType)| {
            let mut ports = self.about.inputs.iter();
            ports.any(|p| p.name == *name && p.shape.is_none())
                && shapes.get(*name).map(Vec::len) != Some(ty.shape.len())
        };
        let is_list = |p: &OnnxPort| matches!(p.dtype.as_str(), "sequence" | "optional");
        let is_fixed = !self.about.inputs.iter().any(is_list);
        let is_open = given.iter().any(is_open);
        if is_fixed && !is_open && ambiguous(&self.inputs, &given).is_empty() {
            return Ok(());
        }
        let adapted = self.model.options_for(&self.options, &given)?;
        let Some(options) = adapted else {
            return Ok(());
        };
        if options.separate != self.options.separate {
            // Discard the compiled specializations: they are for symbols that no longer occur.
            self.forms.clear();
        }
        self.inputs = self.model.inputs(&options)?;
        self.options = options;
        Ok(())
    }

    fn check(
        &self,
        inputs: &[ProvidedInput<'_>],
        wanted: Option<&[&str]>,
    ) -> Result<(), SessionError> {
        let problem = |name: &str, problem: String| SessionError::Input {
            name: name.to_string(),
            problem,
        };
        for (i, (name, source)) in inputs.iter().enumerate() {
            let Some(port) = self.inputs.iter().find(|p| p.name == *name) else {
                let known: Vec<&str> = self.inputs.iter().map(|p| p.name.as_str()).collect();
                return Err(SessionError::UnknownInput {
                    name: name.to_string(),
                    known: known.join(", "),
                });
            };
            if inputs[..i].iter().any(|(n, _)| n == name) {
                return Err(problem(name, "is provided twice".to_string()));
            }
            let (found, taken) = (source.ty().dtype, port.ty.dtype);
            if found != taken {
                let text = format!("is {found}, expected {taken}");
                return Err(problem(name, text));
            }
        }
        for port in &self.about.inputs {
            let given = inputs.iter().any(|(n, _)| *n == port.name);
            let is_list = matches!(port.dtype.as_str(), "sequence" | "optional");
            if !given && !is_list && !port.has_default && !self.options.has_value(&port.name) {
                return Err(problem(&port.name, "is missing".to_string()));
            }
        }
        let outputs = &self.about.outputs;
        for name in wanted.unwrap_or(&[]) {
            if !outputs.iter().any(|o| o.name == *name) {
                let known: Vec<&str> = outputs.iter().map(|o| o.name.as_str()).collect();
                return Err(SessionError::UnknownOutput {
                    name: name.to_string(),
                    known: known.join(", "),
                });
            }
        }
        Ok(())
    }

    /// The index of the specialization for these inputs, if there is one. Inconsistent sizes are an
    /// error.
    fn find(&self, inputs: &[ProvidedInput<'_>]) -> Result<Option<usize>, SessionError> {
        let given = bindings_from_types(&self.inputs, &types(inputs));
        for (at, form) in self.forms.iter().enumerate().rev() {
            let is_given = |(name, value): &(String, Tensor)| {
                let given = inputs.iter().find(|(n, _)| n == name);
                given.is_some_and(|(_, source)| same(source, value))
            };
            let same = form.lists == self.options.lists && form.given == self.options.given;
            if !same || !form.has_ranks(inputs) {
                continue;
            }
            let mut own_sizes = form.sizes.iter();
            if own_sizes.any(|(symbol, n)| given.get(symbol) != Some(n)) {
                continue;
            }
            let all_given = form.fixed.iter().all(is_given);
            let mut defaults = self.defaults_given(inputs);
            let all_fixed = defaults.all(|(name, _)| form.fixes(name));
            if all_given && all_fixed && self.matches(form, inputs)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Whether sizes are within the bounds of a specialization. User-provided bounds hold for every
    /// specialization.
    fn matches(
        &self,
        form: &Specialization,
        inputs: &[ProvidedInput<'_>],
    ) -> Result<bool, SessionError> {
        let sizes = sizes(&form.imported, inputs, &self.options.bounds)?;
        let within = |(symbol, n): (&Symbol, usize)| {
            let bound = form.bounds.get(symbol);
            bound.is_none_or(|bound| n <= bound)
        };
        Ok(sizes.iter().all(within))
    }

    /// The provided inputs that have a default.
    fn defaults_given<'a>(
        &self,
        inputs: &[ProvidedInput<'a>],
    ) -> impl Iterator<Item = ProvidedInput<'a>> {
        let has_default = |name: &str| {
            let mut ports = self.about.inputs.iter();
            ports.any(|p| p.has_default && p.name == name)
        };
        inputs.iter().copied().filter(move |(n, _)| has_default(n))
    }

    /// Checks sizes against user-provided bounds, before symbols are replaced by sizes.
    fn check_bounds(&self, given: &Bindings) -> Result<(), SessionError> {
        for (symbol, n) in given.iter() {
            let bound = self.options.bounds.get(symbol).filter(|bound| n > *bound);
            let Some(bound) = bound else { continue };
            let is_of = |p: &&Port| p.ty.shape.iter().any(|d| d.as_symbol() == Some(symbol));
            let port = self.inputs.iter().find(is_of);
            return Err(SessionError::Input {
                name: port.map_or_else(String::new, |p| p.name.clone()),
                problem: format!("has size {n} for `{symbol}`, which exceeds its bound {bound}"),
            });
        }
        Ok(())
    }

    /// Imports and compiles the model for these inputs.
    fn compile(&mut self, inputs: &[ProvidedInput<'_>]) -> Result<usize, SessionError> {
        let given = bindings_from_types(&self.inputs, &types(inputs));
        self.check_bounds(&given)?;
        let mut fixed: Vec<(String, Tensor)> = Vec::new();
        for (name, source) in self.defaults_given(inputs) {
            fixed.push((name.to_string(), source.read()?));
        }
        let mut options = self.options.clone();
        let find = |name: &str| inputs.iter().find(|(n, _)| *n == name);
        for name in &self.deciding {
            if let (Some((_, t)), false) = (find(name), fixed.iter().any(|(n, _)| n == name)) {
                fixed.push((name.clone(), t.read()?));
            }
        }
        for (name, tensor) in &fixed {
            options = options.value(name, tensor.clone());
        }
        let deciding = &mut self.deciding;
        let value = |name: &str| {
            let (_, source) = find(name)?;
            let tensor = source.read().ok()?;
            deciding.insert(name.to_string());
            if !fixed.iter().any(|(n, _)| n == name) {
                fixed.push((name.to_string(), tensor.clone()));
            }
            Some(tensor)
        };
        let imported = self
            .model
            .import_at(&options, &given, &mut self.sized, value);
        let mut imported = imported?;
        let mut known = Bindings::new();
        for symbol in &self.sized {
            given
                .get(symbol)
                .into_iter()
                .for_each(|n| known.set(symbol, n));
        }
        let mut bounds = self.options.bounds.clone();
        let sizes = sizes(&imported, inputs, &self.options.bounds)?;
        for (symbol, n) in sizes.iter() {
            if bounds.get(symbol).is_none() {
                bounds.set(symbol, n.checked_next_power_of_two().unwrap_or(n));
            }
        }
        imported.bounds = bounds.clone();
        let executable = imported.compile(&self.device)?;
        self.compilations += 1;
        // The executable has its own copy of the weights.
        imported.params.clear();
        if self.forms.len() >= self.max_forms {
            self.forms.remove(0);
        }
        self.forms.push(Specialization {
            fixed,
            sizes: known,
            lists: self.options.lists.clone(),
            given: self.options.given.clone(),
            imported,
            bounds,
            executable,
            bound: Vec::new(),
        });
        Ok(self.forms.len() - 1)
    }
}

impl Specialization {
    fn fixes(&self, name: &str) -> bool {
        self.fixed.iter().any(|(n, _)| n == name)
    }

    /// Whether the graph has an input with this name.
    fn has_input(&self, name: &str) -> bool {
        self.imported.inputs.iter().any(|p| p.name == name)
    }

    /// The names of the tensors of the requested outputs, or of all. A sequence has several.
    fn parts_of(&self, wanted: Option<&[&str]>) -> Vec<String> {
        let Some(wanted) = wanted else {
            return self
                .imported
                .outputs
                .iter()
                .map(|p| p.name.clone())
                .collect();
        };
        let mut names = Vec::with_capacity(wanted.len());
        for name in wanted {
            let found = self.imported.sequences.iter().find(|(n, _)| n == name);
            match found {
                Some((_, len)) => names.extend((0..*len).map(|i| format!("{name}[{i}]"))),
                None => names.push(name.to_string()),
            }
        }
        names
    }

    /// Whether the provided inputs have the ranks with which the model was imported.
    fn has_ranks(&self, inputs: &[ProvidedInput<'_>]) -> bool {
        let is_of = |port: &Port| {
            let given = inputs.iter().find(|(n, _)| *n == port.name);
            given.is_none_or(|(_, source)| source.ty().shape.len() == port.ty.rank())
        };
        self.imported.inputs.iter().all(is_of)
    }

    /// The inputs of the graph that are provided as host tensors.
    fn left_on_host<'a>(&self, inputs: &[ProvidedInput<'a>]) -> Vec<(&'a str, &'a Tensor)> {
        let on_host = inputs.iter().filter_map(|(name, source)| match source {
            ProvidedInputSource::Host(tensor) => Some((*name, *tensor)),
            ProvidedInputSource::Device(_) => None,
        });
        on_host.filter(|(name, _)| self.has_input(name)).collect()
    }

    /// Unbinds the device tensors of an earlier run.
    fn unbind(&mut self) -> Result<(), RunError> {
        for name in self.bound.drain(..) {
            self.executable.unbind(&name)?;
        }
        Ok(())
    }
}

/// The sizes of all symbols in the inputs.
fn sizes(
    imported: &ImportedModel,
    inputs: &[ProvidedInput<'_>],
    bounds: &Bindings,
) -> Result<Bindings, RunError> {
    let signature = Signature::of(&imported.graph);
    let mut left = types(inputs);
    left.retain(|(name, _)| imported.inputs.iter().any(|p| p.name == *name));
    let mut sizes = Bindings::new();
    signature.bind_types(&left, bounds, &mut sizes)?;
    Ok(sizes)
}
