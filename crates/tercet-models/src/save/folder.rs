//! A folder of safetensors as one GGUF file, in the storage that the folder has: names, order of rows, metadata and vocabulary as
//! llama.cpp has them.
//!
//! | file | does |
//! |---|---|
//! | `tensors.rs` | tensors under their names there, rows of queries and keys in their order there |
//! | `metadata.rs` | what a specification says, as keys |
//! | `vocabulary.rs` | the tokenizer and the chat template as keys |
//!
//! What was written is read again: a specification or ids of tokens that are not those of the folder are refused, so that
//! nothing is lost that the format cannot say.

mod metadata;
mod tensors;
mod vocabulary;

use std::path::{Path, PathBuf};

use super::SaveError;
use crate::config::{DecoderSpec, decoder};
use crate::gguf::write::write_gguf;
use crate::gguf::{Gguf, clip};
use crate::hf::HfFolder;

/// The families that are written; of others GGUF files have tensors in another form than folders.
const FAMILIES: [&str; 20] = [
    "llama",
    "mistral",
    "mixtral",
    "smollm3",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "granite",
    "olmo2",
    "cohere",
    "cohere2",
    "stablelm",
    "starcoder2",
    "gpt_neox",
];

/// A GGUF file that is there as long as this is.
pub(super) struct Dense {
    pub(super) gguf: Gguf,
    _file: Removed,
}

/// A file that is removed in the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Nothing follows that it could stand in the way of.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn unsupported(reason: String) -> SaveError {
    SaveError::Unsupported(reason)
}

/// The model of a folder as a GGUF file beside `to`, unrounded.
///
/// # Errors
/// [`SaveError`]: a family, a vocabulary or a field that is not written, or what the operating system says.
pub(super) fn dense(folder: &HfFolder, to: &Path) -> Result<Dense, SaveError> {
    let refused = |e: &dyn std::error::Error| unsupported(format!("the folder: {}", chain(e)));
    let model_type = folder.model_type().unwrap_or_default();
    if !FAMILIES.contains(&model_type) {
        let model_type = clip(model_type);
        return Err(unsupported(format!(
            "a folder of `{model_type}` is not written as a GGUF file; of folders {} are",
            FAMILIES.join(", ")
        )));
    }
    let spec = folder.decoder_spec().map_err(|e| refused(&e))?;
    let tokenizer = folder.tokenizer().map_err(|e| refused(&e))?;
    let written = as_written(&spec)?;
    let mut header = metadata::header(folder, &spec)?;
    vocabulary::push(&mut header, folder, &tokenizer, &spec)?;
    let entries = tensors::entries(folder, &spec, &written)?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let path = to.with_file_name(format!(".{name}.{}.dense", std::process::id()));
    let file = Removed(path.clone());
    write_gguf(&path, &header, &entries)?;
    drop(entries);
    let again = |e: &dyn std::error::Error| {
        unsupported(format!("the file that was made is refused: {}", chain(e)))
    };
    let gguf = Gguf::open(&path).map_err(|e| again(&e))?;
    let found = DecoderSpec::from_gguf(&gguf).map_err(|e| again(&e))?;
    same_spec(written, found)?;
    vocabulary::check(&gguf, &tokenizer)?;
    Ok(Dense { gguf, _file: file })
}

/// An error and its causes.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What a GGUF file says of a model: the same with names, gains and rows as files have them, and numbers in F32.
fn as_written(spec: &DecoderSpec) -> Result<DecoderSpec, SaveError> {
    let architecture = spec.family.get().architecture;
    let family = decoder::of_gguf(architecture);
    let family = family.ok_or_else(|| unsupported(format!("files of `{architecture}`")))?;
    let narrow = |x: Option<f64>| x.map(|x| f64::from(x as f32));
    let mut to = DecoderSpec {
        rope_layout: family.get().rope_in_gguf,
        family,
        bare_names: false,
        output_is_lm_head: false,
        qkv_by_group: false,
        attention_softcap: narrow(spec.attention_softcap),
        logit_softcap: narrow(spec.logit_softcap),
        ..spec.clone()
    };
    to.norm.one_plus = false;
    if !has_windows(architecture) {
        // One that reaches over all positions is none.
        for layer in &mut to.layers {
            layer.window = layer.window.filter(|window| *window < spec.context);
        }
    }
    for rope in &mut to.ropes {
        metadata::as_divisors(rope, spec.rope_dims);
        rope.theta = f64::from(rope.theta as f32);
    }
    Ok(usual_scale(to))
}

/// Whether files of an architecture say how wide windows are.
fn has_windows(architecture: &str) -> bool {
    ["llama", "gemma2", "gemma3", "phi3", "cohere2"].contains(&architecture)
}

/// Without a scale of scores that is the usual one.
fn usual_scale(mut spec: DecoderSpec) -> DecoderSpec {
    let usual = (spec.head_dim as f64).powf(-0.5);
    let given = spec.attention_scale.map(|scale| f64::from(scale as f32));
    spec.attention_scale = given.filter(|scale| (scale / usual - 1.0).abs() > 1e-6);
    spec
}

/// Refuses a file that says something else than was meant, and names the first difference.
fn same_spec(want: DecoderSpec, found: DecoderSpec) -> Result<(), SaveError> {
    let found = usual_scale(found);
    if want == found {
        return Ok(());
    }
    let [want, found] = [want, found].map(|spec| format!("{spec:#?}"));
    let lines = want.lines().zip(found.lines());
    let differs = lines
        .map(|(a, b)| (a.trim(), b.trim()))
        .find(|(a, b)| a != b);
    let (a, b) = differs.unwrap_or(("a longer list", "a shorter one"));
    Err(unsupported(format!(
        "the model has `{a}`, which GGUF files of its family cannot say (they mean `{b}`)"
    )))
}
