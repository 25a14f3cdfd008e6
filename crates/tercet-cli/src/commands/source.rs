//! The graph that `explain`, `verify` and `trace` look at: a file in text form, or a model's.

use std::path::PathBuf;

use tercet::{Bindings, CompileOptions, DType, Graph, Symbol, Tensor, TensorType};
use tercet_models::{Family, LlamaOptions, ModelFiles, Pooling, Sampling};

use super::{Precision, generate::EMBEDDED};
use crate::error::CliError;

/// The texts that a BERT graph is bound to where nothing is said.
const BERT_BATCH: usize = 32;

#[derive(clap::Args)]
pub(crate) struct Source {
    /// A graph in text form; docs/text-form.md has the language [default: the embedded model]
    pub(crate) graph: Option<PathBuf>,
    /// The graph of a model instead: a GGUF file or a folder with safetensors
    #[arg(short, long, value_name = "PATH", conflicts_with = "graph")]
    pub(crate) model: Option<PathBuf>,
    /// The upper bound of a symbol, as NAME=N; as often as there are symbols
    #[arg(short, long, value_name = "NAME=N", value_parser = bound)]
    pub(crate) bound: Vec<(String, usize)>,
    /// The float type to compute in; f16 and bf16 add up in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Precision::F32)]
    pub(crate) dtype: Precision,
}

/// A graph with its bounds and, for models, its parameters.
pub(crate) struct Sourced {
    pub(crate) graph: Graph,
    pub(crate) options: CompileOptions,
    pub(crate) params: Vec<(String, Tensor)>,
    /// Inputs that make sense, where the graph is a model's.
    pub(crate) inputs: Vec<(String, Tensor)>,
}

fn bound(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("expected NAME=N, a symbol and a whole number, not `{text}`");
    let (name, n) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_string(), n.parse().map_err(|_| wrong())?))
}

impl Source {
    pub(crate) fn load(&self) -> Result<Sourced, CliError> {
        let mut sourced = match &self.graph {
            Some(path) => self.file(path)?,
            None => self.model()?,
        };
        for (name, n) in &self.bound {
            sourced.options.bounds.set(&Symbol::new(name), *n);
        }
        Ok(sourced)
    }

    fn file(&self, path: &std::path::Path) -> Result<Sourced, CliError> {
        let path = path.to_path_buf();
        let text = std::fs::read_to_string(&path).map_err(|source| CliError::File {
            path: path.clone(),
            source,
        })?;
        let graph: Graph = text
            .parse()
            .map_err(|source| CliError::Graph { path, source })?;
        let graph = tercet::passes::convert_precision(&graph, self.dtype.dtype())?;
        Ok(Sourced {
            graph,
            options: CompileOptions::new(),
            params: Vec::new(),
            inputs: Vec::new(),
        })
    }

    fn model(&self) -> Result<Sourced, CliError> {
        let (files, what) = self.files()?;
        let dtype = self.dtype.dtype();
        let family = files.family().map_err(CliError::model(what.clone()))?;
        let (model, options, inputs) = match family {
            Family::Llama => {
                let llama = files.llama(|config| LlamaOptions {
                    dtype,
                    sampling: Some(Sampling::GREEDY),
                    chunk: 512.min(config.context),
                    ..LlamaOptions::new(config)
                });
                let llama = llama.map_err(CliError::model(what))?;
                let options = llama.compile_options();
                (llama.model, options, llama_inputs())
            }
            Family::Bert => {
                let bert = files.bert(Pooling::MeanNormalized, dtype);
                let bert = bert.map_err(CliError::model(what))?;
                let len = bert.config.max_positions;
                let options = CompileOptions::new().bound("b", BERT_BATCH).bound("s", len);
                (bert.model, options, bert_inputs())
            }
        };
        Ok(Sourced {
            graph: model.graph,
            options,
            params: model.params,
            inputs,
        })
    }

    fn files(&self) -> Result<(ModelFiles, String), CliError> {
        let (files, what) = match &self.model {
            Some(path) => {
                let what = format!("cannot load the model {}", path.display());
                (ModelFiles::open(path), what)
            }
            None => {
                let what = "cannot load the embedded model".to_string();
                (ModelFiles::from_gguf_bytes(EMBEDDED), what)
            }
        };
        Ok((files.map_err(CliError::model(what.clone()))?, what))
    }
}

/// Eight tokens at the beginning of a text, with logits of the last.
fn llama_inputs() -> Vec<(String, Tensor)> {
    let count = |n: usize| (0..n).map(|i| i as f64).collect();
    let inputs: [(&str, Vec<usize>, Vec<f64>); 5] = [
        ("tokens", vec![8], (1..9).map(f64::from).collect()),
        ("positions", vec![8], count(8)),
        ("start", vec![4], vec![0.0; 4]),
        ("kv_len", vec![], vec![8.0]),
        ("rows", vec![1], vec![7.0]),
    ];
    integers(inputs)
}

/// Two texts of eight tokens.
fn bert_inputs() -> Vec<(String, Tensor)> {
    let ids = [
        ("ids", vec![2, 8], vec![1.0; 16]),
        ("type_ids", vec![2, 8], vec![0.0; 16]),
    ];
    let mut inputs = integers(ids);
    if let Ok(mask) = Tensor::from_bools(&[2, 8], &[true; 16]) {
        inputs.push(("mask".to_string(), mask));
    }
    inputs
}

fn integers<const N: usize>(inputs: [(&str, Vec<usize>, Vec<f64>); N]) -> Vec<(String, Tensor)> {
    let tensor = |(name, shape, values): (&str, Vec<usize>, Vec<f64>)| {
        let ty = TensorType::new(DType::I32, &shape);
        let tensor = Tensor::from_f64s(ty, &values).ok()?;
        Some((name.to_string(), tensor))
    };
    inputs.into_iter().filter_map(tensor).collect()
}

impl Sourced {
    /// The bound of every symbol, or 8 where none was given: sizes to try a graph with.
    pub(crate) fn sizes(&self) -> Bindings {
        let mut sizes = Bindings::new();
        for symbol in self.graph.symbols() {
            let n = self.options.bounds.get(&symbol).unwrap_or(8);
            sizes.set(&symbol, n);
        }
        sizes
    }
}
