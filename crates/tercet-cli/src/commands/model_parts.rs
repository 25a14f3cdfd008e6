//! The graphs of a model by name: one for most families, several for those that run in stages.

use std::path::Path;

use tercet::ops::Op;
use tercet::{CompileOptions, DType, Device, Graph, Tensor, TensorType};
use tercet_models::{
    ContextFit, ContextRequest, DecoderOptions, Encoder, EncoderOutput, Error, ModelFamily,
    ModelFiles, ModelGraph, Sampling, Seq2SeqOptions, VisionModel, VisionOutput,
};

use super::FloatPrecision;
use super::generate::open_model;
use super::source::LoadedGraph;
use crate::error::CliError;
use crate::output;

/// Default batch bound of a text encoder's graph.
const BERT_BATCH: usize = 32;
/// Default batch bound of an image model's graph.
const PICTURE_BATCH: usize = 8;
/// Default bound of the tokens of a run.
const CHUNK: usize = 512;

/// The graphs of a model.
pub(super) struct ModelParts {
    parts: Vec<(&'static str, LoadedGraph)>,
    /// True if the first graph is the model and the other graphs are optional.
    has_main: bool,
}

impl ModelParts {
    /// Builds the graphs. The context of a language model is what fits the memory of `device`;
    /// without a device, it is the trained one.
    pub(super) fn load(
        path: Option<&Path>,
        dtype: FloatPrecision,
        device: Option<&Device>,
    ) -> Result<ModelParts, CliError> {
        let (files, what) = open_model(path)?;
        let dtype = dtype.dtype();
        let family = files.family().map_err(CliError::model(&*what))?;
        let is_pooled = || files.embeds_texts().map_err(CliError::model(&*what));
        match family {
            ModelFamily::Decoder if !is_pooled()? => language(&files, dtype, device),
            ModelFamily::Decoder | ModelFamily::Encoder => texts(&files, dtype),
            ModelFamily::Vision => pictures(&files, dtype),
            ModelFamily::VisionLanguage => with_pictures(&files, dtype),
            ModelFamily::TextToText => encoder_decoder(&files, dtype),
            ModelFamily::Speech => speech(&files, dtype),
        }
        .map_err(CliError::model(&*what))
    }

    /// True if the model is split into several graphs that run together.
    pub(super) fn are_several(path: Option<&Path>) -> Result<bool, CliError> {
        let (files, what) = open_model(path)?;
        let family = files.family().map_err(CliError::model(what))?;
        Ok(match family {
            ModelFamily::VisionLanguage | ModelFamily::TextToText | ModelFamily::Speech => true,
            ModelFamily::Decoder | ModelFamily::Encoder | ModelFamily::Vision => false,
        })
    }

    /// The graph with this name, or the only one.
    pub(super) fn into_one(mut self, name: Option<&str>) -> Result<LoadedGraph, CliError> {
        let at = match name {
            None if self.parts.len() == 1 || self.has_main => Some(0),
            None => None,
            Some(name) => self.parts.iter().position(|(own, _)| *own == name),
        };
        if let Some(at) = at {
            return Ok(self.parts.swap_remove(at).1);
        }
        let names: Vec<&str> = self.parts.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        Err(CliError::Usage(match name {
            Some(name) => format!("--part {name}: the model has: {names}"),
            None => format!("the model has several graphs: {names}; choose one with --part"),
        }))
    }

    /// All graphs, if none of them is the model itself.
    pub(super) fn into_several(self) -> Option<Vec<(&'static str, LoadedGraph)>> {
        (self.parts.len() > 1 && !self.has_main).then_some(self.parts)
    }

    fn one(name: &'static str, graph: LoadedGraph) -> ModelParts {
        ModelParts {
            parts: vec![(name, graph)],
            has_main: true,
        }
    }

    fn several(parts: Vec<(&'static str, LoadedGraph)>) -> ModelParts {
        ModelParts {
            parts,
            has_main: false,
        }
    }
}

fn part(model: ModelGraph, options: CompileOptions, inputs: Vec<(String, Tensor)>) -> LoadedGraph {
    LoadedGraph {
        graph: model.graph,
        options,
        params: model.params,
        arrays: Vec::new(),
        inputs,
    }
}

fn language(
    files: &ModelFiles,
    dtype: DType,
    device: Option<&Device>,
) -> Result<ModelParts, Error> {
    let spec = files.decoder_spec()?;
    let request = ContextRequest {
        dtype,
        ..ContextRequest::default()
    };
    let fit = device.map(|device| ContextFit::new(files, &spec, device, &request));
    let fit = fit.transpose()?;
    if let Some(fit) = &fit {
        output::print_note(format_args!("note: {}", fit.describe()));
    }
    let context = fit.map_or(spec.context, |fit| fit.context);
    let decoder = files.decoder(|config| DecoderOptions {
        context,
        dtype,
        sampling: Some(Sampling::GREEDY),
        chunk: CHUNK.min(context),
        ..DecoderOptions::new(config)
    })?;
    let options = decoder.compile_options();
    let inputs = decoder_inputs(&decoder.model.graph);
    Ok(ModelParts::one(
        "decoder",
        part(decoder.model, options, inputs),
    ))
}

/// A classifier's graph computes the logits of its head; other encoders' graphs embed.
fn texts(files: &ModelFiles, dtype: DType) -> Result<ModelParts, Error> {
    let is_encoder = files.family()? == ModelFamily::Encoder;
    let has_head = is_encoder && files.has_class_head() && !files.sentence()?.stated;
    let output = match has_head {
        true => {
            let head = files.class_head()?;
            match head.per_token {
                true => EncoderOutput::TokenClasses(head.labels.len()),
                false => EncoderOutput::Classes(head.labels.len()),
            }
        }
        false => EncoderOutput::Embedding(files.sentence()?.modules),
    };
    let encoder = files.encoder(&output, dtype)?;
    // The memory plan uses this bound of the sequence length.
    let len = encoder.context.min(CHUNK);
    let options = CompileOptions::new().bound("b", BERT_BATCH).bound("s", len);
    let inputs = encoder_inputs(&encoder);
    Ok(ModelParts::one(
        "encoder",
        part(encoder.model, options, inputs),
    ))
}

/// An image classifier's graph computes the logits of its head; other graphs compute features.
fn pictures(files: &ModelFiles, dtype: DType) -> Result<ModelParts, Error> {
    let output = match files.image_classes()? {
        Some(classes) => VisionOutput::Classes(classes),
        None => VisionOutput::Features,
    };
    let vision = files.vision_model(output, dtype)?;
    let options = CompileOptions::new().bound("b", PICTURE_BATCH);
    let inputs = picture_inputs(&vision);
    let mut parts = ModelParts::one("image", part(vision.model, options, inputs));
    if files.vision_spec()?.text.is_some() {
        let text = files.text_tower(dtype)?;
        let options = CompileOptions::new()
            .bound("b", BERT_BATCH)
            .bound("s", text.context);
        let inputs = encoder_inputs(&text);
        parts
            .parts
            .push(("text", part(text.model, options, inputs)));
    }
    Ok(parts)
}

fn with_pictures(files: &ModelFiles, dtype: DType) -> Result<ModelParts, Error> {
    let graphs = files.vision_language(|spec| DecoderOptions {
        dtype,
        ..DecoderOptions::new(&spec.decoder)
    })?;
    let of_decoder = graphs.decoder.compile_options();
    let inputs = decoder_inputs(&graphs.decoder.model.graph);
    let of_tower = CompileOptions::new().bound("b", PICTURE_BATCH);
    Ok(ModelParts::several(vec![
        ("tower", part(graphs.tower, of_tower, Vec::new())),
        ("decoder", part(graphs.decoder.model, of_decoder, inputs)),
    ]))
}

fn encoder_decoder(files: &ModelFiles, dtype: DType) -> Result<ModelParts, Error> {
    let model = files.seq2seq(Seq2SeqOptions::new)?;
    let context = model.options.context;
    let of_encoder = CompileOptions::new().bound("c", context);
    let of_decoder = CompileOptions::new()
        .bound("c", context)
        .bound("s", CHUNK.min(context))
        .bound("r", 1);
    let ids = integers([("ids", vec![1, 8], vec![1.0; 8])]);
    let inputs = decoder_inputs(&model.decoder.graph);
    let [encoder, decoder] = [model.encoder, model.decoder].map(|g| g.with_precision(dtype));
    Ok(ModelParts::several(vec![
        ("encoder", part(encoder?, of_encoder, ids)),
        ("decoder", part(decoder?, of_decoder, inputs)),
    ]))
}

fn speech(files: &ModelFiles, dtype: DType) -> Result<ModelParts, Error> {
    let (mut parts, decoder, positions) = match files.is_moonshine() {
        true => {
            let model = files.moonshine()?;
            let encoder = model.encoder.with_precision(dtype)?;
            let encoder = part(encoder, CompileOptions::new(), Vec::new());
            let positions = model.spec.text_positions;
            (vec![("encoder", encoder)], model.decoder, positions)
        }
        false => {
            let model = files.speech()?;
            let positions = model.spec.text_positions;
            let encoder = model.encoder.with_precision(dtype)?;
            let fixed = |model| part(model, CompileOptions::new(), Vec::new());
            // The logarithm of a spectrum needs the range and precision of F32.
            let parts = vec![
                ("features", fixed(model.features)),
                ("encoder", fixed(encoder)),
            ];
            (parts, model.decoder, positions)
        }
    };
    let options = CompileOptions::new().bound("s", positions).bound("r", 1);
    let inputs = decoder_inputs(&decoder.graph);
    let decoder = decoder.with_precision(dtype)?;
    parts.push(("decoder", part(decoder, options, inputs)));
    Ok(ModelParts::several(parts))
}

/// Eight tokens at the start of a sequence; only the last one produces logits.
fn decoder_inputs(graph: &Graph) -> Vec<(String, Tensor)> {
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
fn encoder_inputs(encoder: &Encoder) -> Vec<(String, Tensor)> {
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
