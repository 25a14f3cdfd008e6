//! Runs one case: imports and compiles the model, runs it on each data set and compares the
//! results.

use std::error::Error;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use prost::Message;
use tercet::{Device, OpKind, Tensor, one_line};
use tercet_onnx::proto::{GraphProto, ModelProto, TensorProto, TypeProto, TypeValue};
use tercet_onnx::{ImportOptions, ImportedModel, NodeErrorKind, OnnxError, OnnxModel, StringTable};

use crate::compare::{differ, is_rounding};

/// The outcome of a case.
pub(crate) enum Outcome {
    Passed,
    /// Passed, with input values provided at import time.
    Given,
    Refused(String),
    /// Exceeds the tolerance, but only by the F32 rounding error of sums: a value near zero among
    /// large ones.
    Rounded(String),
    Wrong(String),
    Panicked,
}

impl Outcome {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Given => "given",
            Outcome::Refused(_) => "refused",
            Outcome::Rounded(_) => "rounded",
            Outcome::Wrong(_) => "wrong",
            Outcome::Panicked => "panicked",
        }
    }

    pub(crate) fn reason(&self) -> &str {
        match self {
            Outcome::Passed | Outcome::Given | Outcome::Panicked => "",
            Outcome::Refused(why) | Outcome::Rounded(why) | Outcome::Wrong(why) => why,
        }
    }
}

/// A model with folders of inputs and results; cases of the set `light` have none.
pub(crate) struct Case {
    pub(crate) model: PathBuf,
    pub(crate) data: Vec<PathBuf>,
}

/// A named input with its data, or the reason why it could not be read.
type Input = (String, Result<Tensor, String>);

impl Case {
    /// A hash of the name and all files. Models are compared without the name of the tool that
    /// wrote them, because this name contains a version.
    pub(crate) fn digest(&self, name: &str) -> Result<u64, Box<dyn Error>> {
        let mut hasher = std::hash::DefaultHasher::new();
        name.hash(&mut hasher);
        let mut model = ModelProto::decode(std::fs::read(&self.model)?.as_slice())?;
        model.producer_name = None;
        model.producer_version = None;
        model.encode_to_vec().hash(&mut hasher);
        for folder in &self.data {
            let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
                .map(|e| Ok(e?.path()))
                .collect::<Result<_, std::io::Error>>()?;
            files.sort();
            for file in files {
                file.file_name().hash(&mut hasher);
                std::fs::read(file)?.hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }

    pub(crate) fn run(&self, device: &Device) -> Result<Outcome, Box<dyn Error>> {
        let bytes = std::fs::read(&self.model)?;
        let strings = OnnxModel::read(bytes.clone())?.strings();
        let graph = ModelProto::decode(bytes.as_slice())?
            .graph
            .unwrap_or_default();
        if self.data.is_empty() {
            let outputs =
                |i| PathBuf::from(format!("{}_output_{i}.pb", without_extension(&self.model)));
            return self.run_set(device, (&graph, &ramps(&graph), &strings), &outputs);
        }
        let mut outcome = Outcome::Passed;
        for data in &self.data {
            let outputs = |i| data.join(format!("output_{i}.pb"));
            let inputs = inputs(&graph, data, &strings);
            outcome = self.run_set(device, (&graph, &inputs, &strings), &outputs)?;
            if !matches!(outcome, Outcome::Passed | Outcome::Given) {
                break;
            }
        }
        Ok(outcome)
    }

    fn run_set(
        &self,
        device: &Device,
        (graph, inputs, strings): (&GraphProto, &[Input], &StringTable),
        expected: &dyn Fn(usize) -> PathBuf,
    ) -> Result<Outcome, Box<dyn Error>> {
        let (imported, given) = match import(&self.model, inputs) {
            Ok(imported) => imported,
            Err(e) => return Ok(Outcome::Refused(first_reason(&e))),
        };
        let bounds = bounds(&imported);
        let imported = ImportedModel { bounds, ..imported };
        let mut executable = match imported.compile(device) {
            Ok(executable) => executable,
            Err(e) => return Ok(Outcome::Refused(one_line(&e))),
        };
        let mut named: Vec<(&str, &Tensor)> = Vec::new();
        for port in &imported.inputs {
            match inputs.iter().find(|(n, _)| *n == port.name) {
                Some((name, Ok(t))) => named.push((name, t)),
                Some((_, Err(e))) => return Ok(Outcome::Refused(e.clone())),
                None => return Ok(Outcome::Wrong(format!("no data for {}", port.name))),
            }
        }
        let mut outputs = Vec::new();
        if let Err(e) = executable.run_into(&named, &mut outputs) {
            return Ok(Outcome::Wrong(format!("does not run: {}", one_line(&e))));
        }
        let outputs = match imported.cut(outputs) {
            Ok(outputs) => outputs,
            Err(e) => return Ok(Outcome::Wrong(e)),
        };
        let mut outcome = if given {
            Outcome::Given
        } else {
            Outcome::Passed
        };
        let mut wanted = Vec::new();
        for (i, info) in graph.output.iter().enumerate() {
            let path = expected(i);
            if self.data.is_empty() {
                wanted.push(tensor(&path, strings));
                continue;
            }
            match value(&path, info.r#type.as_ref()) {
                Ok(value) => wanted.extend(parts("", value, strings).into_iter().map(|(_, t)| t)),
                Err(reason) => wanted.push(Err(reason)),
            }
        }
        if wanted.len() != outputs.len() {
            let (found, wanted) = (outputs.len(), wanted.len());
            return Ok(Outcome::Wrong(format!(
                "{found} tensors, expected {wanted}"
            )));
        }
        for (i, (found, expected)) in outputs.iter().zip(wanted).enumerate() {
            let expected = match expected {
                Ok(t) => t,
                Err(e) => return Ok(Outcome::Wrong(format!("output {i}: {e}"))),
            };
            // Random numbers are compared by type only.
            if is_random(&imported) && found.ty() == expected.ty() {
                continue;
            }
            let Some(difference) = differ(found, &expected) else {
                continue;
            };
            let difference = format!("output {i}: {difference}");
            if !is_rounding(found, &expected) {
                return Ok(Outcome::Wrong(difference));
            }
            outcome = Outcome::Rounded(difference);
        }
        Ok(outcome)
    }
}

fn without_extension(path: &Path) -> String {
    path.with_extension("").to_string_lossy().into_owned()
}

/// Reads a tensor of a case.
fn tensor(path: &Path, strings: &StringTable) -> Result<Tensor, String> {
    strings.read_tensor(std::fs::read(path).map_err(|e| e.to_string())?)
}

/// A sequence in a file (`onnx-data.proto`).
#[derive(Clone, PartialEq, Message)]
struct SequenceProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    elem_type: Option<i32>,
    #[prost(message, repeated, tag = "3")]
    tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "5")]
    sequences: Vec<SequenceProto>,
}

/// An optional value in a file.
#[derive(Clone, PartialEq, Message)]
struct OptionalProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    elem_type: Option<i32>,
    #[prost(message, optional, tag = "3")]
    tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "5")]
    sequence: Option<SequenceProto>,
}

/// A value of a case.
enum CaseValue {
    Tensor(Box<TensorProto>),
    Sequence(Vec<TensorProto>),
    Absent,
}

/// Reads a value of a declared type.
fn value(path: &Path, ty: Option<&TypeProto>) -> Result<CaseValue, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let bytes = bytes.as_slice();
    let text = |e: prost::DecodeError| e.to_string();
    let sequence = |own: SequenceProto| match own.sequences.is_empty() {
        true => Ok(CaseValue::Sequence(own.tensors)),
        false => Err("sequences of sequences are not supported".to_string()),
    };
    match ty.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Sequence(_)) => sequence(SequenceProto::decode(bytes).map_err(text)?),
        Some(TypeValue::Optional(of)) => {
            // Older cases have the value itself.
            let inner = of.elem_type.as_deref().and_then(|t| t.value.as_ref());
            let own = OptionalProto::decode(bytes);
            match (own, inner) {
                (Ok(own), _) if own.tensor.is_some() || own.sequence.is_some() => {
                    match (own.tensor, own.sequence) {
                        (Some(tensor), _) => Ok(CaseValue::Tensor(Box::new(tensor))),
                        (None, own) => sequence(own.unwrap_or_default()),
                    }
                }
                (Ok(own), _) if own.elem_type.unwrap_or(0) == 0 => Ok(CaseValue::Absent),
                (_, Some(TypeValue::Sequence(_))) => {
                    sequence(SequenceProto::decode(bytes).map_err(text)?)
                }
                _ => Ok(CaseValue::Tensor(Box::new(
                    TensorProto::decode(bytes).map_err(text)?,
                ))),
            }
        }
        _ => Ok(CaseValue::Tensor(Box::new(
            TensorProto::decode(bytes).map_err(text)?,
        ))),
    }
}

/// The tensors of a value with their names: `NAME`, or `NAME[0]` and so on for a sequence.
fn parts(name: &str, value: CaseValue, strings: &StringTable) -> Vec<Input> {
    let read = |proto: &TensorProto| strings.read_tensor(proto.encode_to_vec());
    match value {
        CaseValue::Absent => Vec::new(),
        CaseValue::Tensor(proto) => vec![(name.to_string(), read(&proto))],
        CaseValue::Sequence(list) => {
            let list = list.iter().enumerate();
            list.map(|(i, proto)| (format!("{name}[{i}]"), read(proto)))
                .collect()
        }
    }
}

/// The input tensors in a folder.
fn inputs(graph: &GraphProto, data: &Path, strings: &StringTable) -> Vec<Input> {
    let mut inputs = Vec::new();
    for (i, info) in graph.input.iter().enumerate() {
        let path = data.join(format!("input_{i}.pb"));
        let name = info.name.as_deref().unwrap_or_default();
        if path.exists() {
            match value(&path, info.r#type.as_ref()) {
                Ok(value) => inputs.extend(parts(name, value, strings)),
                Err(reason) => inputs.push((name.to_string(), Err(reason))),
            }
        }
    }
    inputs
}

/// The inputs that ONNX's runner uses for models without data: `i / n` at element `i` of `n`.
fn ramps(graph: &GraphProto) -> Vec<Input> {
    let weights = |name: &Option<String>| graph.initializer.iter().any(|t| t.name == *name);
    let mut inputs = Vec::new();
    for info in graph.input.iter().filter(|i| !weights(&i.name)) {
        let ty = info.r#type.as_ref().and_then(|t| t.value.as_ref());
        let Some(TypeValue::Tensor(ty)) = ty else {
            continue;
        };
        let dims = ty.shape.iter().flat_map(|s| &s.dim);
        let shape: Vec<usize> = dims
            .map(|d| {
                d.dim_value
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(1)
            })
            .collect();
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| (i as f64 / n as f64) as f32).collect();
        let tensor = Tensor::from_slice(&shape, &values).map_err(|e| e.to_string());
        inputs.push((info.name.clone().unwrap_or_default(), tensor));
    }
    inputs
}

/// Imports a model, with the input values that the import requests. The flag is true if the import
/// requested any values.
fn import(path: &Path, inputs: &[Input]) -> Result<(ImportedModel, bool), OnnxError> {
    let model = OnnxModel::read(path)?;
    let tensors = inputs
        .iter()
        .filter_map(|(name, t)| Some((name.as_str(), t.as_ref().ok()?.ty())));
    let tensors: Vec<_> = tensors.collect();
    let mut options = ImportOptions::new();
    options = model.options_for(&options, &tensors)?.unwrap_or(options);
    let mut given = false;
    loop {
        let e = match model.import(&options) {
            Ok(imported) => return Ok((imported, given)),
            Err(e) => e,
        };
        let asked = asked_for(&e);
        let new = |name: &&String| !options.has_value(name);
        let known = |name: &String| {
            let (name, tensor) = inputs.iter().find(|(n, _)| n == name)?;
            Some((name.clone(), tensor.as_ref().ok()?.clone()))
        };
        let more: Vec<(String, Tensor)> = asked.iter().filter(new).filter_map(known).collect();
        if more.is_empty() {
            return Err(e);
        }
        for (name, tensor) in more {
            options = options.value(&name, tensor);
        }
        given = true;
    }
}

/// The first reason in an import error, without the node.
fn first_reason(e: &OnnxError) -> String {
    match e {
        OnnxError::Nodes(nodes) => match nodes.first() {
            Some(first) => format!("{}: {}", first.at.op, one_line(&first.source)),
            None => one_line(e),
        },
        OnnxError::Read { .. } | OnnxError::Decode { .. } | OnnxError::Invalid(_) => one_line(e),
    }
}

/// A bound for each symbol of the graph, above the sizes in all cases.
fn bounds(imported: &ImportedModel) -> tercet::Bindings {
    let mut bounds = imported.bounds.clone();
    for symbol in imported.graph.symbols() {
        bounds.set(&symbol, 64);
    }
    bounds
}

/// The inputs whose values an import error requests.
fn asked_for(e: &OnnxError) -> Vec<String> {
    let OnnxError::Nodes(nodes) = e else {
        return Vec::new();
    };
    let asked = nodes.iter().flat_map(|n| match &n.source {
        NodeErrorKind::NeedsValue { inputs, .. } => inputs.clone(),
        _ => Vec::new(),
    });
    asked.collect()
}

fn is_random(imported: &ImportedModel) -> bool {
    let mut kinds = imported.graph.nodes().map(|(_, n)| n.op.kind());
    kinds.any(|k| matches!(k, OpKind::RngUniform | OpKind::RngNormal))
}
