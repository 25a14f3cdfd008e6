//! Loads the graph for `explain`, `verify` and `trace`: from a file in text form, or from a model.

use std::path::{Path, PathBuf};

use tercet::{Bindings, CompileOptions, Device, Graph, Signature, Symbol, Tensor};

use super::model_parts::ModelParts;
use super::tensors::read_tensors;
use super::{FloatPrecision, onnx};
use crate::error::CliError;

#[derive(clap::Args)]
pub(crate) struct GraphSourceArgs {
    /// A graph in text form (see docs/reference/text-format.md) or an .onnx file [default: the embedded model]
    pub(crate) graph: Option<PathBuf>,
    /// Use the graph of this model instead: a GGUF file, a folder with safetensors, or an .onnx
    /// file
    #[arg(short, long, value_name = "PATH", conflicts_with = "graph")]
    pub(crate) model: Option<PathBuf>,
    /// Graph of a model that has several: encoder, decoder, features, tower, image or text
    #[arg(long, value_name = "NAME", conflicts_with = "graph")]
    pub(crate) part: Option<String>,
    /// Upper bound of a symbol, as NAME=N; repeatable
    #[arg(short, long, value_name = "NAME=N", value_parser = bound)]
    pub(crate) bound: Vec<(String, usize)>,
    /// Float type for computation; f16 and bf16 accumulate in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = FloatPrecision::F32)]
    pub(crate) dtype: FloatPrecision,
}

/// A graph with its bounds and, if it comes from a model, its parameters.
pub(crate) struct LoadedGraph {
    pub(crate) graph: Graph,
    pub(crate) options: CompileOptions,
    pub(crate) params: Vec<(String, Tensor)>,
    /// Arrays of `--input`.
    pub(crate) arrays: Vec<(String, Tensor)>,
    /// Valid example inputs, if the graph comes from a model.
    pub(crate) inputs: Vec<(String, Tensor)>,
}

/// Parses a bound: `rows=64`.
pub(crate) fn bound(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("expected NAME=N, a symbol and a whole number, not `{text}`");
    let (name, n) = text.split_once('=').ok_or_else(wrong)?;
    if name.is_empty() {
        return Err(wrong());
    }
    match n.parse().map_err(|_| wrong())? {
        0 => Err("a bound must be at least 1".to_string()),
        n => Ok((name.to_string(), n)),
    }
}

/// Reads a graph in text form from a file.
pub(crate) fn read_graph(path: &Path) -> Result<Graph, CliError> {
    let bytes = std::fs::read(path).map_err(|source| CliError::File {
        path: path.to_path_buf(),
        source,
    })?;
    let graph = tercet::decode_text(&bytes).and_then(tercet::parse);
    graph.map_err(|source| CliError::Graph {
        path: path.to_path_buf(),
        source,
    })
}

impl GraphSourceArgs {
    /// Loads the graph and the arrays of the `--input` arguments. The context of a language model
    /// is what fits the memory of `device`; without a device, it is the trained one.
    pub(crate) fn load(
        &self,
        inputs: &[String],
        device: Option<&Device>,
    ) -> Result<LoadedGraph, CliError> {
        let path = self.graph.as_deref().or(self.model.as_deref());
        let (mut sourced, fixed) = match (path, &self.graph) {
            (Some(path), _) if onnx::is_onnx(path) => {
                if let Some(part) = &self.part {
                    let text = format!("--part {part}: an ONNX model has one graph; leave it out");
                    return Err(CliError::Usage(text));
                }
                self.onnx(path, inputs)?
            }
            (_, Some(path)) => (self.file(path)?, Vec::new()),
            (_, None) => (self.model(device)?, Vec::new()),
        };
        if !path.is_some_and(onnx::is_onnx) {
            sourced.arrays = read_tensors(&Signature::of(&sourced.graph), inputs)?;
        }
        self.set_bounds(&mut sourced, &fixed)?;
        Ok(sourced)
    }

    /// Sets the bounds, except those of symbols that import replaced by numbers.
    fn set_bounds(&self, sourced: &mut LoadedGraph, fixed: &[Symbol]) -> Result<(), CliError> {
        let symbols = sourced.graph.symbols();
        for (at, (name, n)) in self.bound.iter().enumerate() {
            if self.bound[..at].iter().any(|(before, _)| before == name) {
                return Err(CliError::Usage(format!("--bound {name} occurs twice")));
            }
            if fixed.iter().any(|s| s.name() == name) {
                continue;
            }
            let Some(symbol) = symbols.iter().find(|s| s.name() == name) else {
                let known: Vec<&str> = symbols.iter().map(Symbol::name).collect();
                let known = match known.as_slice() {
                    [] => "has none".to_string(),
                    known => format!("has: {}", known.join(", ")),
                };
                return Err(CliError::Usage(format!(
                    "unknown symbol `{name}`; the graph {known}"
                )));
            };
            sourced.options.bounds.set(symbol, *n);
        }
        Ok(())
    }

    fn file(&self, path: &Path) -> Result<LoadedGraph, CliError> {
        let graph = read_graph(path)?;
        let graph = tercet::passes::convert_precision(&graph, self.dtype.dtype())?;
        Ok(LoadedGraph {
            graph,
            options: CompileOptions::new(),
            params: Vec::new(),
            arrays: Vec::new(),
            inputs: Vec::new(),
        })
    }

    /// Imports an ONNX model. The second value lists the symbols that import replaced by numbers.
    fn onnx(&self, path: &Path, inputs: &[String]) -> Result<(LoadedGraph, Vec<Symbol>), CliError> {
        if self.dtype != FloatPrecision::F32 {
            let text = "--dtype does not apply to ONNX models: they run in the types of their file";
            return Err(CliError::Usage(text.into()));
        }
        let onnx::OpenedOnnxModel {
            imported,
            arrays: given,
            fixed,
        } = onnx::open(path, inputs, &self.bound)?;
        let sourced = LoadedGraph {
            graph: imported.graph,
            options: CompileOptions::new(),
            params: imported.params,
            arrays: given,
            inputs: Vec::new(),
        };
        Ok((sourced, fixed))
    }

    /// The graph of a model: the part of `--part`, or the one that the model has.
    fn model(&self, device: Option<&Device>) -> Result<LoadedGraph, CliError> {
        let parts = ModelParts::load(self.model.as_deref(), self.dtype, device)?;
        parts.into_one(self.part.as_deref())
    }

    /// All graphs of the model with their names, if it has several and no flag chooses one.
    pub(crate) fn all_parts(&self) -> Result<Option<Vec<(&'static str, LoadedGraph)>>, CliError> {
        let is_file = self.graph.is_some() || self.model.as_deref().is_some_and(onnx::is_onnx);
        if is_file || self.part.is_some() || !ModelParts::are_several(self.model.as_deref())? {
            return Ok(None);
        }
        let parts = ModelParts::load(self.model.as_deref(), self.dtype, None)?;
        Ok(parts.into_several())
    }
}

impl LoadedGraph {
    /// Returns an error if the graph has symbols without a bound.
    pub(crate) fn check_bounded(&self) -> Result<(), CliError> {
        let bounds = &self.options.bounds;
        let open = self.graph.symbols().into_iter();
        let open: Vec<Symbol> = open.filter(|s| bounds.get(s).is_none()).collect();
        let list = |of: &dyn Fn(&Symbol) -> String, between| {
            open.iter().map(of).collect::<Vec<_>>().join(between)
        };
        let (what, it) = match open.len() {
            0 => return Ok(()),
            1 => ("symbol", "has no upper bound; set it"),
            _ => ("symbols", "have no upper bounds; set them"),
        };
        let names = list(&|s| format!("`{s}`"), ", ");
        let arguments = list(&|s| format!("--bound {s}=N"), " ");
        Err(CliError::Usage(format!(
            "{what} {names} {it} with {arguments}"
        )))
    }

    /// The bound of every symbol, or 8 for symbols without one: sizes for a trial run of the graph.
    pub(crate) fn sizes(&self) -> Bindings {
        let mut sizes = Bindings::new();
        for symbol in self.graph.symbols() {
            let n = self.options.bounds.get(&symbol).unwrap_or(8);
            sizes.set(&symbol, n);
        }
        sizes
    }
}
