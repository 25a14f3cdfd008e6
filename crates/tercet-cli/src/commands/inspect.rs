//! `tercet inspect`: metadata and tensors of a model file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use tercet::counted;
use tercet_models::{CacheFormat, DecoderOptions, ModelFamily, ModelFiles};

use super::open::open_files;
use crate::error::{CliError, CommandOutcome, causes, is_reader};
use crate::output;

/// Maximum width of a name and of a metadata line, in characters.
const NAME_WIDTH: usize = 60;
const LINE_WIDTH: usize = 120;

#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, a folder with config.json and safetensors, or an .onnx file
    model: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    format: String,
    shape: Vec<usize>,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct MemoryEstimate {
    weights_bytes: u64,
    /// Keys and values of one token, stored as F32.
    cache_bytes_per_token: Option<u64>,
    /// KV cache size at the model's trained context length, stored as F32.
    cache_bytes: Option<u64>,
    /// KV cache size at the model's trained context length with `--cache-dtype q8_0`.
    cache_bytes_q8_0: Option<u64>,
}

#[derive(Serialize)]
struct InspectReport {
    format: String,
    #[serde(serialize_with = "as_json")]
    metadata: BTreeMap<String, String>,
    tensors: Vec<TensorRow>,
    parameters: u64,
    memory: MemoryEstimate,
    /// Keys of the configuration that are ignored, because they cannot change the result.
    ignored_keys: Vec<String>,
    /// Why this version cannot run the model, if it cannot.
    unsupported: Option<String>,
}

/// Writes the texts of values as the values, and those of shortened lists as texts.
fn as_json<S: Serializer>(
    metadata: &BTreeMap<String, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metadata.iter().map(|(key, text)| {
        let value = serde_json::from_str::<serde_json::Value>(text);
        (key, value.unwrap_or_else(|_| text.as_str().into()))
    }))
}

pub(crate) fn run(args: &InspectArgs) -> Result<CommandOutcome, CliError> {
    if super::onnx::is_onnx(&args.model) {
        return super::inspect_onnx::run(&args.model, args.json);
    }
    let what = format!("cannot read the model {}", args.model.display());
    let files = open_files(&args.model, &what)?;
    let report = report(&files);
    if args.json {
        output::json(&report)?;
    } else {
        output::print_for_humans(|out| print(out, &report))?;
    }
    Ok(CommandOutcome::Done)
}

fn report(files: &ModelFiles) -> InspectReport {
    let (format, metadata, tensors): (_, _, Vec<TensorRow>) = match files {
        ModelFiles::Gguf(gguf) => {
            let metadata = gguf
                .metadata()
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect();
            let tensors = gguf
                .tensors()
                .iter()
                .map(|t| TensorRow {
                    name: t.name().to_string(),
                    format: t.ggml_type().name().to_string(),
                    shape: t.shape(),
                    parameters: t.element_count(),
                    bytes: t.range().len() as u64,
                })
                .collect();
            (format!("GGUF v{}", gguf.version()), metadata, tensors)
        }
        ModelFiles::Hf(folder) => {
            let config = folder.config().iter();
            let metadata = config.map(|(k, v)| (k.clone(), v.to_string())).collect();
            let tensors = folder
                .weights()
                .tensors()
                .map(|(_, t)| TensorRow {
                    name: t.name().to_string(),
                    format: t.dtype().name().to_string(),
                    shape: t.shape().to_vec(),
                    parameters: t.element_count() as u64,
                    bytes: t.range().len() as u64,
                })
                .collect();
            ("Hugging Face folder".to_string(), metadata, tensors)
        }
    };
    let parameters = tensors.iter().map(|t| t.parameters).sum();
    let weights_bytes = tensors.iter().map(|t| t.bytes).sum();
    let (cache, unsupported) = cache_bytes(files);
    let memory = MemoryEstimate {
        weights_bytes,
        cache_bytes_per_token: cache.map(|[per_token, ..]| per_token),
        cache_bytes: cache.map(|[_, all, _]| all),
        cache_bytes_q8_0: cache.map(|[.., packed]| packed),
    };
    InspectReport {
        format,
        metadata,
        tensors,
        parameters,
        memory,
        ignored_keys: files.ignored_keys().unwrap_or_default(),
        unsupported,
    }
}

/// Bytes of the KV cache: per token, in total, and in total with 8-bit values. `None` for models
/// without a cache. The second value is the reason if the model's configuration is unsupported.
fn cache_bytes(files: &ModelFiles) -> (Option<[u64; 3]>, Option<String>) {
    let checked = files.family().and_then(|family| match family {
        ModelFamily::Decoder => files.decoder_spec().map(Some),
        ModelFamily::Encoder => files.encoder_spec().map(|_| None),
        ModelFamily::Vision => files.vision_spec().map(|_| None),
        ModelFamily::VisionLanguage => {
            let checked = files.vision_language_spec().and_then(|spec| {
                let ModelFiles::Hf(folder) = files else {
                    return Ok(spec);
                };
                folder.tile_processor(&spec)?;
                Ok(spec)
            });
            checked.map(|spec| Some(spec.decoder))
        }
        ModelFamily::TextToText => files.seq2seq_spec().map(|_| None),
        ModelFamily::Speech if files.is_moonshine() => files.moonshine_spec().map(|_| None),
        ModelFamily::Speech => files.speech_tokens().map(|_| None),
    });
    match checked {
        Ok(Some(c)) => {
            let options = DecoderOptions::new(&c);
            let one = DecoderOptions {
                context: 1,
                ..options.clone()
            };
            let packed = DecoderOptions {
                cache: Some(CacheFormat::Q8_0),
                ..options.clone()
            };
            let all = [&one, &options, &packed].map(|options| options.cache_bytes(&c));
            (Some(all), None)
        }
        Ok(None) => (None, None),
        Err(e) => (None, Some(chain(&e))),
    }
}

/// An error and its causes on one line.
fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let own = (!is_reader(e)).then(|| e.to_string());
    let lines: Vec<String> = own.into_iter().chain(causes(e)).collect();
    lines.join(": ")
}

fn print(out: &mut impl Write, report: &InspectReport) -> std::io::Result<()> {
    writeln!(out, "{}\n\nmetadata", report.format)?;
    let name = |name: &str| output::clip(name, NAME_WIDTH);
    let width = report.metadata.keys().map(|k| name(k).chars().count());
    let width = width.max().unwrap_or(0);
    for (key, value) in &report.metadata {
        let key = name(key);
        let value = output::clip(value, LINE_WIDTH - 4 - width);
        writeln!(out, "  {key:<width$}  {value}")?;
    }
    writeln!(out, "\ntensors")?;
    let width = report
        .tensors
        .iter()
        .map(|t| name(&t.name).chars().count())
        .max()
        .unwrap_or(0);
    for t in &report.tensors {
        let shape = format!("{:?}", t.shape);
        let bytes = output::bytes(t.bytes);
        writeln!(
            out,
            "  {:<width$}  {:<6} {shape:<20} {bytes:>12}",
            name(&t.name),
            t.format
        )?;
    }
    let mut formats: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for t in &report.tensors {
        let entry = formats.entry(&t.format).or_default();
        *entry = (entry.0 + 1, entry.1 + t.bytes);
    }
    writeln!(out, "\nparameters  {}", output::count(report.parameters))?;
    for (format, (n, bytes)) in formats {
        writeln!(
            out,
            "  {format:<6} {:>13} {:>12}",
            counted(n, "tensor", "tensors"),
            output::bytes(bytes)
        )?;
    }
    let MemoryEstimate {
        weights_bytes,
        cache_bytes_per_token,
        cache_bytes,
        cache_bytes_q8_0,
    } = &report.memory;
    writeln!(
        out,
        "\nmemory\n  weights {:>12}",
        output::bytes(*weights_bytes)
    )?;
    if let (Some(per_token), Some(all)) = (cache_bytes_per_token, cache_bytes) {
        let (all, each) = (output::bytes(*all), output::bytes(*per_token));
        writeln!(
            out,
            "  cache   {all:>12} at full context in F32 ({each} a token)"
        )?;
    }
    if let Some(packed) = cache_bytes_q8_0.filter(|bytes| *bytes > 0) {
        let packed = output::bytes(packed);
        writeln!(out, "          {packed:>12} with --cache-dtype q8_0")?;
    }
    if let Some(reason) = &report.unsupported {
        writeln!(out, "\nthis version cannot run the model: {reason}")?;
    }
    Ok(())
}
