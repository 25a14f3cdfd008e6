//! Loads the graph for `explain`, `verify` and `trace`: from a file in text form, or from a model.

use std::path::{Path, PathBuf};

use tercet::ops::Op;
use tercet::{
    Bindings, CompileOptions, DType, Device, Graph, Signature, Symbol, Tensor, TensorType,
};
use tercet_models::{
    ContextFit, ContextRequest, DecoderOptions, Encoder, EncoderOutput, ModelFamily, Sampling,
    VisionModel, VisionOutput,
};

use super::tensors::read_tensors;
use super::{FloatPrecision, generate::open_model, onnx};
use crate::error::CliError;
use crate::output;

/// Default batch bound of a text encoder's graph.
const BERT_BATCH: usize = 32;
/// Default batch bound of an image model's graph.
const PICTURE_BATCH: usize = 8;

#[derive(clap::Args)]
pub(crate) struct GraphSourceArgs {
    /// A graph in text form (see docs/reference/text-format.md) or an .onnx file [default: the embedded model]
    pub(crate) graph: Option<PathBuf>,
    /// Use the graph of this model instead: a GGUF file, a folder with safetensors, or an .onnx
    /// file
    #[arg(short, long, value_name = "PATH", conflicts_with = "graph")]
    pub(crate) model: Option<PathBuf>,
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
            (Some(path), _) if onnx::is_onnx(path) => self.onnx(path, inputs)?,
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

    fn model(&self, device: Option<&Device>) -> Result<LoadedGraph, CliError> {
        let (files, what) = open_model(self.model.as_deref())?;
        let dtype = self.dtype.dtype();
        let family = files.family().map_err(CliError::model(what.clone()))?;
        let (model, options, inputs) = match family {
            ModelFamily::Decoder => {
                let spec = files
                    .decoder_spec()
                    .map_err(CliError::model(what.clone()))?;
                let request = ContextRequest {
                    dtype,
                    ..ContextRequest::default()
                };
                let fit = device.map(|device| ContextFit::new(&files, &spec, device, &request));
                let fit = fit.transpose().map_err(CliError::model(what.clone()))?;
                if let Some(fit) = &fit {
                    output::print_note(format_args!("note: {}", fit.describe()));
                }
                let context = fit.map_or(spec.context, |fit| fit.context);
                let llama = files.decoder(|config| DecoderOptions {
                    context,
                    dtype,
                    sampling: Some(Sampling::GREEDY),
                    chunk: 512.min(context),
                    ..DecoderOptions::new(config)
                });
                let llama = llama.map_err(CliError::model(what))?;
                let options = llama.compile_options();
                let inputs = llama_inputs(&llama.model.graph);
                (llama.model, options, inputs)
            }
            ModelFamily::Vision => {
                let vision = files.vision_model(VisionOutput::Features, dtype);
                let vision = vision.map_err(CliError::model(what))?;
                let options = CompileOptions::new().bound("b", PICTURE_BATCH);
                let inputs = picture_inputs(&vision);
                (vision.model, options, inputs)
            }
            ModelFamily::Encoder => {
                let encoder = files.sentence().and_then(|said| {
                    let output = EncoderOutput::Embedding(said.modules);
                    files.encoder(&output, dtype)
                });
                let encoder = encoder.map_err(CliError::model(what))?;
                // The sequence bound, for which memory is planned.
                let len = encoder.context.min(512);
                let options = CompileOptions::new().bound("b", BERT_BATCH).bound("s", len);
                let inputs = bert_inputs(&encoder);
                (encoder.model, options, inputs)
            }
            ModelFamily::VisionLanguage => {
                let reason =
                    "a vision-language model consists of two graphs; run it with `tercet generate`";
                return Err(CliError::Usage(reason.to_string()));
            }
            ModelFamily::TextToText => {
                let reason =
                    "an encoder-decoder consists of two graphs; run it with `tercet generate`";
                return Err(CliError::Usage(reason.to_string()));
            }
            ModelFamily::Speech => {
                let reason = "a speech recognition model consists of three graphs; run it with `tercet transcribe`";
                return Err(CliError::Usage(reason.to_string()));
            }
        };
        Ok(LoadedGraph {
            graph: model.graph,
            options,
            params: model.params,
            arrays: Vec::new(),
            inputs,
        })
    }
}

/// Eight tokens at the start of a sequence; only the last one produces logits.
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
    // Sliding-window layers have separate inputs, counted from the start of their cache. At the
    // start of a sequence they equal those of the other layers.
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

/// Two texts of eight tokens each.
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

/// Two uniform grey images of different brightness.
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
