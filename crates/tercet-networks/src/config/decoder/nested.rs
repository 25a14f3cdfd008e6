//! Decoders inside a larger model: Mistral Small 3.1 and later, and Ministral 3, which also have a
//! vision tower. Only the text decoder is read. Fields and tensors of the tower and its projector
//! are skipped, and image inputs are an error.

use serde_json::{Map, Value};

use super::super::fields::HARMLESS;
use super::{ConfigError, ConfigFields, DecoderPart, DecoderSpec, families, part};

/// The `model_type` of the full model.
const WRAPPER: &str = "mistral3";

/// The supported values of `model_type` in `text_config`.
const INNER: [&str; 2] = ["mistral", "ministral3"];

/// Configuration fields of the vision part.
const OF_PICTURES: &[&str] = &[
    "image_token_id",
    "image_token_index",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "vision_config",
    "vision_feature_layer",
];

/// Prefixes of the vision part's tensor names.
const TENSORS_OF_PICTURES: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// The prefix of a decoder's tensor names in a folder.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::NestedPrefix};
/// assert_eq!(DecoderSpec::llama(dims).storage.nested_prefix, NestedPrefix::Nothing);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NestedPrefix {
    /// The decoder is the full model: `model.layers`, `lm_head`.
    #[default]
    Nothing,
    /// `model.text_model.layers`, `lm_head`.
    TextModel,
    /// `model.language_model.layers`, `lm_head`.
    LanguageModel,
    /// `language_model.model.layers`, `language_model.lm_head`.
    WholeLanguageModel,
}

impl NestedPrefix {
    /// Converts the tensor name of a standalone decoder to the name in this folder.
    pub(super) fn named(self, name: String) -> String {
        match (self, name.strip_prefix("model.")) {
            (NestedPrefix::TextModel, Some(rest)) => format!("model.text_model.{rest}"),
            (NestedPrefix::LanguageModel, Some(rest)) => format!("model.language_model.{rest}"),
            (NestedPrefix::WholeLanguageModel, _) => format!("language_model.{name}"),
            (NestedPrefix::Nothing | NestedPrefix::TextModel | NestedPrefix::LanguageModel, _) => {
                name
            }
        }
    }

    /// Prefixes of the tensors outside the decoder, which are not read.
    pub(super) fn beside(self) -> &'static [&'static str] {
        match self {
            NestedPrefix::LanguageModel | NestedPrefix::WholeLanguageModel => TENSORS_OF_PICTURES,
            NestedPrefix::Nothing | NestedPrefix::TextModel => &[],
        }
    }
}

/// Whether `model_type` belongs to a model that wraps a decoder. Only the decoder of such a model
/// is opened.
pub(crate) fn is_wrapper(model_type: &str) -> bool {
    model_type == WRAPPER
}

/// Whether a decoder can be opened from a folder of this `model_type`.
#[must_use]
pub fn is_decoder(model_type: &str) -> bool {
    is_wrapper(model_type) || families::for_model_type(model_type).is_some()
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> Vec<&'static str> {
    [families::model_types(), vec![WRAPPER]].concat()
}

/// Reads the wrapping model's configuration: the decoder from `text_config`, and the top-level
/// fields that apply to it.
pub(super) fn read(json: &Map<String, Value>) -> Result<DecoderSpec, ConfigError> {
    const PREFIX: &str = "text_config.";
    let fields = ConfigFields::new(json, "").of_class(WRAPPER);
    let text = fields.opt_object("text_config")?;
    let text = fields.required("text_config", text)?;
    let inner = ConfigFields::new(text, PREFIX);
    inner.required("model_type", inner.opt_str("model_type")?)?;
    inner.only("model_type", &INNER.join(" or "), |v| {
        v.as_str().is_some_and(|name| INNER.contains(&name))
    })?;
    inner.only(
        "quantization_config",
        "a quantization_config at the top level",
        |_| false,
    )?;
    let said = [&fields, &inner].map(|fields| fields.opt_bool("tie_word_embeddings"));
    let [whole, own] = said;
    let (whole, own) = (whole?, own?);

    let mut text = text.clone();
    if let Some(packing) = fields.get("quantization_config") {
        text.insert("quantization_config".to_string(), packing.clone());
    }
    let mut spec = DecoderSpec::from_part(&text, PREFIX)?;
    // If neither level has `tie_word_embeddings`, assume tied embeddings; `settle` clears it if an
    // output projection exists.
    spec.tied_embeddings = [whole, own].contains(&Some(true)) || (whole, own) == (None, None);
    spec.bos = spec.bos.or(fields.opt_token("bos_token_id")?);
    for id in fields.tokens("eos_token_id")? {
        if !spec.eos.contains(&id) {
            spec.eos.push(id);
        }
    }
    fields.finish(&[HARMLESS, OF_PICTURES])?;
    spec.storage.nested_prefix = NestedPrefix::LanguageModel;
    spec.check()?;
    Ok(spec)
}

/// Detects from the folder's tensors which of the two naming schemes it uses, and whether an output
/// projection exists. An existing projection is used even if the configuration ties it, because a
/// copy of the embedding gives the same result.
pub(super) fn settle(spec: &mut DecoderSpec, has: &dyn Fn(&str) -> bool) {
    if spec.storage.nested_prefix != NestedPrefix::LanguageModel {
        return;
    }
    let has_part = |spec: &DecoderSpec, of: DecoderPart| {
        let module = of.module(spec, 0);
        ["weight", "qweight", "weight_packed"]
            .iter()
            .any(|end| has(&part::tensor(&module, end)))
    };
    let mut older = spec.clone();
    older.storage.nested_prefix = NestedPrefix::WholeLanguageModel;
    if has_part(&older, DecoderPart::Embedding) {
        spec.storage.nested_prefix = NestedPrefix::WholeLanguageModel;
    }
    spec.tied_embeddings &= !has_part(spec, DecoderPart::Output);
}
