//! The graph that `explain`, `verify` and `trace` look at: a file in text form, or a model's.

use std::path::{Path, PathBuf};

use tercet::ops::Op;
use tercet::{Bindings, CompileOptions, DType, Graph, Signature, Symbol, Tensor, TensorType};
use tercet_models::{
    DecoderOptions, Encoder, EncoderOutput, Family, Sampling, VisionModel, VisionOutput,
};

use super::tensors::read_tensors;
use super::{Precision, generate::open_model, onnx};
use crate::error::CliError;

/// The texts that a BERT graph is bound to where nothing is said.
const BERT_BATCH: usize = 32;
/// The pictures that a graph is bound to where nothing is said.
const PICTURE_BATCH: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Source {
    /// A graph in text form (docs/text-form.md has the language) or an .onnx file [default: the embedded model]
    pub(crate) graph: Option<PathBuf>,
    /// The graph of a model instead: a GGUF file, a folder with safetensors, or an .onnx file
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
    /// Arrays that were given.
    pub(crate) given: Vec<(String, Tensor)>,
    /// Inputs that make sense, where the graph is a model's.
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
        0 => Err("a bound is at least 1".to_string()),
        n => Ok((name.to_string(), n)),
    }
}

/// A graph in text form from a file.
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

impl Source {
    /// The graph with the arrays of `--input` arguments.
    pub(crate) fn load(&self, inputs: &[String]) -> Result<Sourced, CliError> {
        let path = self.graph.as_deref().or(self.model.as_deref());
        let (mut sourced, fixed) = match (path, &self.graph) {
            (Some(path), _) if onnx::is_onnx(path) => self.onnx(path, inputs)?,
            (_, Some(path)) => (self.file(path)?, Vec::new()),
            (_, None) => (self.model()?, Vec::new()),
        };
        if !path.is_some_and(onnx::is_onnx) {
            sourced.given = read_tensors(&Signature::of(&sourced.graph), inputs)?;
        }
        self.set_bounds(&mut sourced, &fixed)?;
        Ok(sourced)
    }

    /// Sets the bounds, but for those of symbols that became numbers.
    fn set_bounds(&self, sourced: &mut Sourced, fixed: &[Symbol]) -> Result<(), CliError> {
        let symbols = sourced.graph.symbols();
        for (at, (name, n)) in self.bound.iter().enumerate() {
            if self.bound[..at].iter().any(|(before, _)| before == name) {
                return Err(CliError::Usage(format!("--bound {name} is given twice")));
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
                    "the graph has no symbol `{name}` to bound; it {known}"
                )));
            };
            sourced.options.bounds.set(symbol, *n);
        }
        Ok(())
    }

    fn file(&self, path: &Path) -> Result<Sourced, CliError> {
        let graph = read_graph(path)?;
        let graph = tercet::passes::convert_precision(&graph, self.dtype.dtype())?;
        Ok(Sourced {
            graph,
            options: CompileOptions::new(),
            params: Vec::new(),
            given: Vec::new(),
            inputs: Vec::new(),
        })
    }

    /// The model, and the symbols that are fixed in it.
    fn onnx(&self, path: &Path, inputs: &[String]) -> Result<(Sourced, Vec<Symbol>), CliError> {
        if self.dtype != Precision::F32 {
            let text =
                "--dtype does not change an ONNX model: it is computed in the types of its file";
            return Err(CliError::Usage(text.into()));
        }
        let onnx::Opened {
            imported,
            given,
            fixed,
        } = onnx::open(path, inputs, &self.bound)?;
        let sourced = Sourced {
            graph: imported.graph,
            options: CompileOptions::new(),
            params: imported.params,
            given,
            inputs: Vec::new(),
        };
        Ok((sourced, fixed))
    }

    fn model(&self) -> Result<Sourced, CliError> {
        let (files, what) = open_model(self.model.as_deref())?;
        let dtype = self.dtype.dtype();
        let family = files.family().map_err(CliError::model(what.clone()))?;
        let (model, options, inputs) = match family {
            Family::Decoder => {
                let llama = files.decoder(|config| DecoderOptions {
                    dtype,
                    sampling: Some(Sampling::GREEDY),
                    chunk: 512.min(config.context),
                    ..DecoderOptions::new(config)
                });
                let llama = llama.map_err(CliError::model(what))?;
                let options = llama.compile_options();
                let inputs = llama_inputs(&llama.model.graph);
                (llama.model, options, inputs)
            }
            Family::Vision => {
                let vision = files.vision_model(VisionOutput::Features, dtype);
                let vision = vision.map_err(CliError::model(what))?;
                let options = CompileOptions::new().bound("b", PICTURE_BATCH);
                let inputs = picture_inputs(&vision);
                (vision.model, options, inputs)
            }
            Family::Encoder => {
                let encoder = files.sentence().and_then(|said| {
                    let output = EncoderOutput::Embedding(said.modules);
                    files.encoder(&output, dtype)
                });
                let encoder = encoder.map_err(CliError::model(what))?;
                // Memory is planned for so many tokens.
                let len = encoder.context.min(512);
                let options = CompileOptions::new().bound("b", BERT_BATCH).bound("s", len);
                let inputs = bert_inputs(&encoder);
                (encoder.model, options, inputs)
            }
            Family::VisionLanguage => {
                let reason =
                    "a model of pictures and texts is two graphs, which `tercet generate` runs";
                return Err(CliError::Usage(reason.to_string()));
            }
            Family::TextToText => {
                let reason = "an encoder-decoder is two graphs, which `tercet generate` runs";
                return Err(CliError::Usage(reason.to_string()));
            }
            Family::Speech => {
                let reason = "a speech recognizer is three graphs, which `tercet transcribe` runs";
                return Err(CliError::Usage(reason.to_string()));
            }
        };
        Ok(Sourced {
            graph: model.graph,
            options,
            params: model.params,
            given: Vec::new(),
            inputs,
        })
    }
}

/// Eight tokens at the beginning of a text, with logits of the last.
fn llama_inputs(graph: &Graph) -> Vec<(String, Tensor)> {
    let count = |n: usize| (0..n).map(|i| i as f64).collect();
    let inputs: [(&str, Vec<usize>, Vec<f64>); 5] = [
        ("tokens", vec![8], (1..9).map(f64::from).collect()),
        ("positions", vec![8], count(8)),
        ("start", vec![4], vec![0.0; 4]),
        ("kv_len", vec![], vec![8.0]),
        ("rows", vec![1], vec![7.0]),
    ];
    let mut inputs = integers(inputs);
    // Layers with a window count from where their caches begin: the same at the beginning of a text.
    for (_, node) in graph.nodes() {
        let Op::Input(leaf) = &node.op else {
            continue;
        };
        let same = leaf.name.split_once('.').map_or("", |(same, _)| same);
        let of_text = inputs.iter().find(|(own, _)| own == same);
        if let Some((_, tensor)) = of_text {
            let tensor = tensor.clone();
            inputs.push((leaf.name.clone(), tensor));
        }
    }
    inputs
}

/// Two texts of eight tokens.
fn bert_inputs(encoder: &Encoder) -> Vec<(String, Tensor)> {
    let ids = [
        ("ids", vec![2, 8], vec![1.0; 16]),
        ("type_ids", vec![2, 8], vec![0.0; 16]),
    ];
    let mut inputs = integers(ids);
    if let Ok(mask) = Tensor::from_bools(&[2, 8], &[true; 16]) {
        inputs.push(("pooled".to_string(), mask.clone()));
        inputs.push(("mask".to_string(), mask));
    }
    inputs.retain(|(name, _)| encoder.model.graph.leaf(name).is_some());
    inputs
}

/// Two grey pictures, one darker than the other.
fn picture_inputs(vision: &VisionModel) -> Vec<(String, Tensor)> {
    let [height, width] = vision.size;
    let each = 3 * height * width;
    let pixels = [vec![-0.5; each], vec![0.5f32; each]].concat();
    let pixels = Tensor::from_slice(&[2, 3, height, width], &pixels).ok();
    let named = pixels.map(|pixels| ("pixels".to_string(), pixels));
    named.into_iter().collect()
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
    /// Refuses a graph with symbols that have no bound.
    pub(crate) fn check_bounded(&self) -> Result<(), CliError> {
        let bounds = &self.options.bounds;
        let open = self.graph.symbols().into_iter();
        let open: Vec<Symbol> = open.filter(|s| bounds.get(s).is_none()).collect();
        let list = |of: &dyn Fn(&Symbol) -> String, between| {
            open.iter().map(of).collect::<Vec<_>>().join(between)
        };
        let (what, it) = match open.len() {
            0 => return Ok(()),
            1 => ("symbol", "has no upper bound; give one"),
            _ => ("symbols", "have no upper bounds; give them"),
        };
        let names = list(&|s| format!("`{s}`"), ", ");
        let arguments = list(&|s| format!("--bound {s}=N"), " ");
        Err(CliError::Usage(format!(
            "{what} {names} {it} with {arguments}"
        )))
    }

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
