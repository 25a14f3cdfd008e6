//! Models of pictures and texts that write: Idefics3 (Laurençon and others, "Building and better understanding vision-language
//! models", 2024) and SmolVLM (Marafioti and others, 2025). A tower of patches; a connector that makes one row of the decoder's
//! width of each square of patches; a decoder of the family llama, which reads these rows in the place of tokens.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::decoder::{Inside, known_modules, refuse};
use super::encoder::{EncoderNames, is_derived, known_tensors, read_tower};
use super::fields::HARMLESS;
use super::{ConfigError, DecoderSpec, EncoderSpec, Fields, ensure};
use crate::builder::Weights;
use crate::hf::HfWeights;

/// What folders may name.
pub(crate) const MODEL_TYPES: [&str; 2] = ["idefics3", "smolvlm"];

/// The weight of the connector.
pub(crate) const CONNECTOR: &str = "model.connector.modality_projection.proj.weight";

/// The `model_type` of a folder, if it is one of these.
pub(crate) fn of_model_type(name: &str) -> Option<&'static str> {
    MODEL_TYPES.into_iter().find(|own| *own == name)
}

/// Everything that the weights of a model of pictures and texts do not say themselves.
///
/// ```
/// use tercet_models::VisionLanguageSpec;
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
/// // 8 by 8 patches, of which 2 by 2 are a row.
/// assert_eq!(VisionLanguageSpec::from_json(&json)?.rows_of_tile(), 16);
///
/// json.insert("perceiver".into(), true.into());
/// let refused = VisionLanguageSpec::from_json(&json).unwrap_err().to_string();
/// assert!(refused.contains("`perceiver`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VisionLanguageSpec {
    /// The `model_type` of its folder: `idefics3` or `smolvlm`.
    pub model_type: &'static str,
    /// The pictures' side; its patches make a square.
    pub tower: EncoderSpec,
    /// Patches of a side of the square that becomes one row.
    pub merged: usize,
    /// The texts' side.
    pub decoder: DecoderSpec,
    /// The token whose places rows of pictures take.
    pub image_token: u32,
}

/// Fields of the whole that say nothing its parts do not say, and of training.
const OF_WHOLE: &[&str] = &[
    "_pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "use_reentrant_checkpoints",
    "vocab_size",
];

/// Fields of texts' configurations about training, other runtimes, and parts that the family once had.
const OF_TEXT: [&str; 6] = [
    "_flash_attn_2_enabled",
    "is_llama_config",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "transformers.js_config",
];

/// Numbers that the reference assumes where the texts' configuration does not say them.
const ASSUMED: [(&str, u64); 6] = [
    ("hidden_size", 4096),
    ("intermediate_size", 11008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("max_position_embeddings", 2048),
    ("vocab_size", 32000),
];

/// Fields of parts that are not built: they have to be off.
const OFF: [&str; 3] = ["qk_layer_norms", "rope_interleaved", "use_resampler"];

impl VisionLanguageSpec {
    /// Reads a Hugging Face `config.json` of these families.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<VisionLanguageSpec, ConfigError> {
        let fields = Fields::new(json, "");
        let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
        let found = of_model_type(model_type);
        fields.only("model_type", &MODEL_TYPES.join(", "), |_| found.is_some())?;
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
            // Refused above where there is none.
            model_type: found.unwrap_or(MODEL_TYPES[0]),
            tower: tower(vision)?,
            merged,
            decoder: decoder(text, tied)?,
            image_token,
        };
        spec.check()?;
        Ok(spec)
    }

    /// Pixels of a side of what the tower reads.
    pub fn side(&self) -> usize {
        self.tower.patches.map_or(0, |patches| patches.image[0])
    }

    /// Rows that stand for what the tower reads at once, a picture or a tile of one.
    pub fn rows_of_tile(&self) -> usize {
        let side = self.grid() / self.merged;
        side * side
    }

    /// Patches of a side.
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
            "vision_config: image_size and patch_size make no square of patches".to_string()
        })?;
        let (grid, merged) = (self.grid(), self.merged);
        ensure(grid.is_multiple_of(merged), || {
            format!("{grid} patches of a side cannot be merged {merged} by {merged} (scale_factor)")
        })?;
        let (token, vocab) = (self.image_token, self.decoder.vocab);
        ensure((token as usize) < vocab, || {
            format!("image_token_id {token} is beyond the vocabulary of {vocab}")
        })?;
        // Rows of pictures are numbered behind the vocabulary.
        ensure(vocab < 1 << 30, || format!("a vocabulary of {vocab}"))
    }

    /// Refuses a folder with a tensor that a model of this specification does not have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`] names the first few.
    pub(crate) fn refuse_unknown_tensors(&self, weights: &HfWeights) -> Result<(), ConfigError> {
        let all = Weights::Hf(weights.clone());
        let names = EncoderNames::of(&self.tower, &all);
        let mut known: HashSet<String> = known_modules(&self.decoder);
        known.extend(known_tensors(&self.tower, &names));
        known.insert(CONNECTOR.to_string());
        let tensors = weights.tensors().map(|(_, info)| info.name());
        refuse(tensors.filter(|name| !is_derived(name)), &known)
    }
}

fn tower(json: &Map<String, Value>) -> Result<EncoderSpec, ConfigError> {
    const PREFIX: &str = "vision_config.";
    // Files name the whole, or the part.
    let supported = "idefics3, idefics3_vision, smolvlm or smolvlm_vision";
    Fields::new(json, PREFIX).only("model_type", supported, |v| {
        let name = v.as_str().unwrap_or_default();
        MODEL_TYPES.contains(&name.strip_suffix("_vision").unwrap_or(name))
    })?;
    let mut json = json.clone();
    json.remove("model_type");
    read_tower(&json, PREFIX, "idefics3_vision")
}

fn decoder(json: &Map<String, Value>, tied: bool) -> Result<DecoderSpec, ConfigError> {
    const PREFIX: &str = "text_config.";
    let fields = Fields::new(json, PREFIX);
    fields.only("model_type", "\"llama\"", |v| v.as_str() == Some("llama"))?;
    for name in OFF {
        fields.only(name, "false", |v| v.as_bool() == Some(false))?;
    }
    let own = fields.opt_bool("tie_word_embeddings")?;
    ensure(own.is_none_or(|own| own == tied), || {
        "tie_word_embeddings is not that of text_config".to_string()
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
    spec.inside = Inside::TextModel;
    Ok(spec)
}
