//! Vision-language models: Idefics3 (Laurençon and others, "Building and better understanding
//! vision-language models", 2024) and SmolVLM (Marafioti and others, 2025).
//!
//! A vision tower encodes image patches. A connector projects each square of patches to one
//! embedding of the decoder's width. A decoder of the llama family reads these embeddings in place
//! of image tokens.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::decoder::{NestedPrefix, known_modules, reject_names};
use super::encoder::{EncoderNames, is_derived, known_tensors, read_tower};
use super::fields::HARMLESS;
use super::{ConfigError, ConfigFields, DecoderSpec, EncoderSpec, ensure};
use crate::weights::Weights;
use tercet_files::folder_weights::HfWeights;

/// The supported values of `model_type`.
pub(crate) const MODEL_TYPES: [&str; 2] = ["idefics3", "smolvlm"];

/// The weight of the connector.
pub(crate) const CONNECTOR: &str = "model.connector.modality_projection.proj.weight";

/// The supported `model_type` that equals `name`, if any.
#[must_use]
pub fn for_model_type(name: &str) -> Option<&'static str> {
    MODEL_TYPES.into_iter().find(|own| *own == name)
}

/// The specification of a vision-language model: everything that its weights do not determine.
///
/// ```
/// use tercet_networks::VisionLanguageSpec;
///
/// let json = r#"{
///     "model_type": "smolvlm", "image_token_id": 290, "scale_factor": 2,
///     "vision_config": {"hidden_size": 32, "num_attention_heads": 2, "image_size": 64, "patch_size": 8},
///     "text_config": {
///         "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
///         "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5
///     }
/// }"#;
/// let mut json = serde_json::from_str(json)?;
/// // 8 x 8 patches; each square of 2 x 2 patches becomes one embedding.
/// assert_eq!(VisionLanguageSpec::from_json(&json)?.rows_of_tile(), 16);
///
/// json.insert("scale_factor".into(), 3.into());
/// let refused = VisionLanguageSpec::from_json(&json).unwrap_err().to_string();
/// assert!(refused.contains("scale_factor"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VisionLanguageSpec {
    /// The `model_type` of the model's folder: `idefics3` or `smolvlm`.
    pub model_type: &'static str,
    /// The vision tower; its patches form a square grid.
    pub tower: EncoderSpec,
    /// Side of the square of patches that the connector merges into one embedding.
    pub merged: usize,
    /// The text decoder.
    pub decoder: DecoderSpec,
    /// The placeholder token whose embeddings are replaced by image embeddings.
    pub image_token: u32,
}

/// Top-level fields that repeat fields of the parts, or concern training only.
const OF_WHOLE: &[&str] = &[
    "_pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "use_reentrant_checkpoints",
    "vocab_size",
];

/// Fields of `text_config` about training, other runtimes, or parts of earlier versions of the
/// family.
const OF_TEXT: [&str; 6] = [
    "_flash_attn_2_enabled",
    "is_llama_config",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "transformers.js_config",
];

/// Defaults of the reference implementation for fields that `text_config` lacks.
const ASSUMED: [(&str, u64); 6] = [
    ("hidden_size", 4096),
    ("intermediate_size", 11008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("max_position_embeddings", 2048),
    ("vocab_size", 32000),
];

/// Fields that enable unsupported parts; each must be off.
const OFF: [&str; 3] = ["qk_layer_norms", "rope_interleaved", "use_resampler"];

impl VisionLanguageSpec {
    /// Reads a Hugging Face `config.json` of these families.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<VisionLanguageSpec, ConfigError> {
        let fields = ConfigFields::new(json, "");
        let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
        let found = for_model_type(model_type);
        fields.only("model_type", &MODEL_TYPES.join(", "), |_| found.is_some())?;
        let fields = fields.of_class(model_type);
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        let vision = fields.opt_object("vision_config")?;
        let vision = fields.required("vision_config", vision)?;
        let text = fields.opt_object("text_config")?;
        let text = fields.required("text_config", text)?;
        let tied = fields.opt_bool("tie_word_embeddings")?.unwrap_or(false);
        let image_token = fields.opt_token("image_token_id")?.unwrap_or(128_257);
        let merged = fields.opt_size("scale_factor")?.unwrap_or(2);
        fields.finish(&[HARMLESS, OF_WHOLE])?;

        let spec = VisionLanguageSpec {
            // An unsupported `model_type` is already an error above.
            model_type: found.unwrap_or(MODEL_TYPES[0]),
            tower: tower(vision)?,
            merged,
            decoder: decoder(text, tied)?,
            image_token,
        };
        spec.check()?;
        Ok(spec)
    }

    /// Side of the vision tower's input image, in pixels.
    pub fn side(&self) -> usize {
        self.tower.patches.map_or(0, |patches| patches.image[0])
    }

    /// Number of embeddings for one input of the vision tower: an image or one tile of it.
    pub fn rows_of_tile(&self) -> usize {
        let side = self.grid() / self.merged;
        side * side
    }

    /// Patches along one side of the tower's input.
    pub(crate) fn grid(&self) -> usize {
        let grid = self.tower.patches.map(|of| of.grid(of.image)[0]);
        grid.unwrap_or(0)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let square = self.tower.patches.is_some_and(|of| {
            let [rows, columns] = of.grid(of.image);
            rows == columns && of.image[0] == of.image[1]
        });
        ensure(square, || {
            "vision_config: image_size and patch_size do not give a square grid of patches"
                .to_string()
        })?;
        let (grid, merged) = (self.grid(), self.merged);
        ensure(grid.is_multiple_of(merged), || {
            format!("{grid} patches per side cannot be merged {merged} by {merged} (scale_factor)")
        })?;
        let (token, vocab) = (self.image_token, self.decoder.vocab);
        ensure((token as usize) < vocab, || {
            format!("image_token_id {token} is beyond the vocabulary of {vocab}")
        })?;
        // Image embeddings use row indices after those of the vocabulary.
        ensure(vocab < 1 << 30, || {
            format!("the vocabulary of {vocab} is too large")
        })
    }

    /// Rejects a folder with a tensor that a model of this specification does not have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`] names the first few.
    pub(crate) fn reject_unknown_tensors(&self, weights: &HfWeights) -> Result<(), ConfigError> {
        let all = Weights::Hf(weights.clone());
        let names = EncoderNames::new(&self.tower, &all);
        let mut known: HashSet<String> = known_modules(&self.decoder);
        known.extend(known_tensors(&self.tower, &names));
        known.insert(CONNECTOR.to_string());
        let tensors = weights.tensors().map(|(_, info)| info.name());
        reject_names(tensors.filter(|name| !is_derived(name)), &known)
    }
}

fn tower(json: &Map<String, Value>) -> Result<EncoderSpec, ConfigError> {
    const PREFIX: &str = "vision_config.";
    // `vision_config` names either the full model or the vision part.
    let supported = "idefics3, idefics3_vision, smolvlm or smolvlm_vision";
    ConfigFields::new(json, PREFIX).only("model_type", supported, |v| {
        let name = v.as_str().unwrap_or_default();
        MODEL_TYPES.contains(&name.strip_suffix("_vision").unwrap_or(name))
    })?;
    let mut json = json.clone();
    json.remove("model_type");
    read_tower(&json, PREFIX, "idefics3_vision")
}

fn decoder(json: &Map<String, Value>, tied: bool) -> Result<DecoderSpec, ConfigError> {
    const PREFIX: &str = "text_config.";
    let fields = ConfigFields::new(json, PREFIX);
    fields.only("model_type", "\"llama\"", |v| v.as_str() == Some("llama"))?;
    for name in OFF {
        fields.only(name, "false", |v| v.as_bool() == Some(false))?;
    }
    let own = fields.opt_bool("tie_word_embeddings")?;
    ensure(own.is_none_or(|own| own == tied), || {
        "tie_word_embeddings differs from that of text_config".to_string()
    })?;
    let mut json = json.clone();
    json.retain(|name, _| !OF_TEXT.contains(&name.as_str()) && !OFF.contains(&name.as_str()));
    json.retain(|_, value| !value.is_null());
    json.entry("model_type").or_insert_with(|| "llama".into());
    json.entry("hidden_act").or_insert_with(|| "silu".into());
    json.entry("rms_norm_eps").or_insert_with(|| 1e-6.into());
    for (name, value) in ASSUMED {
        json.entry(name).or_insert_with(|| value.into());
    }
    let mut spec = DecoderSpec::from_part(&json, PREFIX)?;
    spec.tied_embeddings = tied;
    spec.storage.nested_prefix = NestedPrefix::TextModel;
    Ok(spec)
}
