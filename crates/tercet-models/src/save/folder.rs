//! Conversion of a safetensors folder to one GGUF file with the folder's data types. Names, row
//! order, metadata and vocabulary follow llama.cpp.
//!
//! | file | content |
//! |---|---|
//! | `tensors.rs` | tensors with GGUF names, and Q and K rows in GGUF order |
//! | `metadata.rs` | the specification as metadata keys |
//! | `vocabulary.rs` | the tokenizer and the chat template as metadata keys |
//!
//! The written file is read back and compared. A specification or token ids that differ from the
//! folder's are an error, so no information that GGUF cannot express is lost silently.

mod metadata;
mod tensors;
mod vocabulary;

use std::path::{Path, PathBuf};

use super::SaveError;
use tercet_files::clip;
use tercet_files::gguf::Gguf;
use tercet_files::writing::write_gguf;
use tercet_networks::config::{DecoderFamily, DecoderSpec, QkvRows};
use tercet_networks::hf::HfFolder;

/// The supported families. Other families store some tensors differently in GGUF files and folders.
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

/// A temporary GGUF file, which is removed when this value is dropped.
pub(super) struct TempGguf {
    pub(super) gguf: Gguf,
    _file: RemoveFileOnDrop,
}

/// A file that is removed on drop.
struct RemoveFileOnDrop(PathBuf);

impl Drop for RemoveFileOnDrop {
    fn drop(&mut self) {
        // A failure to remove the file has no consequences.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn unsupported(reason: String) -> SaveError {
    SaveError::Unsupported(reason)
}

/// Writes the model of a folder to an unquantized GGUF file next to `to`.
///
/// # Errors
/// [`SaveError`]: the family, the vocabulary or a field is not supported for writing, or the
/// operating system reports an error.
pub(super) fn dense(folder: &HfFolder, to: &Path) -> Result<TempGguf, SaveError> {
    let refused = |e: &dyn std::error::Error| unsupported(format!("the folder: {}", chain(e)));
    let model_type = folder.model_type().unwrap_or_default();
    if !FAMILIES.contains(&model_type) {
        let model_type = clip(model_type);
        return Err(unsupported(format!(
            "a folder of `{model_type}` cannot be converted to GGUF; supported: {}",
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
    let file = RemoveFileOnDrop(path.clone());
    write_gguf(&path, &header, &entries)?;
    drop(entries);
    let again = |e: &dyn std::error::Error| {
        unsupported(format!(
            "the written file cannot be read back: {}",
            chain(e)
        ))
    };
    let gguf = Gguf::open(&path).map_err(|e| again(&e))?;
    let found = DecoderSpec::from_gguf(&gguf).map_err(|e| again(&e))?;
    same_spec(written, found)?;
    vocabulary::check(&gguf, &tokenizer)?;
    Ok(TempGguf { gguf, _file: file })
}

/// The messages of an error and its causes.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The specification that the GGUF file is expected to give: with GGUF's names, gains and row
/// order, and numbers in F32.
fn as_written(spec: &DecoderSpec) -> Result<DecoderSpec, SaveError> {
    let architecture = spec.family.gguf_architecture();
    let family = DecoderFamily::from_gguf_architecture(architecture);
    let family = family
        .ok_or_else(|| unsupported(format!("GGUF files of `{architecture}` are not supported")))?;
    let narrow = |x: Option<f64>| x.map(|x| f64::from(x as f32));
    let mut to = DecoderSpec {
        rope_layout: family.rope_in_gguf(),
        family,
        ..spec.clone()
    };
    to.storage.bare_names = false;
    to.storage.output_is_lm_head = false;
    to.storage.qkv_rows = QkvRows::ByPart;
    to.attention.softcap = narrow(spec.attention.softcap);
    to.scales.logit_softcap = narrow(spec.scales.logit_softcap);
    to.norm.one_plus = false;
    if !has_windows(architecture) {
        // A window that covers all positions is equivalent to no window.
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

/// Whether files of an architecture store the window width.
fn has_windows(architecture: &str) -> bool {
    ["llama", "gemma2", "gemma3", "phi3", "cohere2"].contains(&architecture)
}

/// Removes an attention scale that equals the default.
fn usual_scale(mut spec: DecoderSpec) -> DecoderSpec {
    let usual = (spec.head_dim as f64).powf(-0.5);
    let given = spec.attention.scale.map(|scale| f64::from(scale as f32));
    spec.attention.scale = given.filter(|scale| (scale / usual - 1.0).abs() > 1e-6);
    spec
}

/// Checks that the written file gives the expected specification; the error names the first
/// difference.
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
        "the model has `{a}`, which GGUF files of its family cannot store (they imply `{b}`)"
    )))
}
