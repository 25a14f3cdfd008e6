//! Decoders that are a part of a folder's model: Mistral Small 3.1 and later, and Ministral 3, which stand beside a tower that reads
//! pictures. Their texts' side is read. The tower and its projector are not built: their fields and tensors are passed over, and
//! a picture is refused where it is given.

use serde_json::{Map, Value};

use super::super::fields::HARMLESS;
use super::{ConfigError, DecoderSpec, Fields, Part, families, part};

/// The `model_type` of the whole.
const WRAPPER: &str = "mistral3";

/// The `model_type` of the decoders inside.
const INNER: [&str; 2] = ["mistral", "ministral3"];

/// Fields of the pictures' side.
const OF_PICTURES: &[&str] = &[
    "image_token_id",
    "image_token_index",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "vision_config",
    "vision_feature_layer",
];

/// Beginnings of the names of its tensors.
const TENSORS_OF_PICTURES: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// What a decoder's names in a folder begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inside {
    /// The model is the whole: `model.layers`, `lm_head`.
    Nothing,
    /// `model.text_model.layers`, `lm_head`.
    TextModel,
    /// `model.language_model.layers`, `lm_head`.
    LanguageModel,
    /// `language_model.model.layers`, `language_model.lm_head`.
    WholeLanguageModel,
}

impl Inside {
    /// The name in the folder of what is called so where the model is the whole.
    pub(super) fn named(self, name: String) -> String {
        match (self, name.strip_prefix("model.")) {
            (Inside::TextModel, Some(rest)) => format!("model.text_model.{rest}"),
            (Inside::LanguageModel, Some(rest)) => format!("model.language_model.{rest}"),
            (Inside::WholeLanguageModel, _) => format!("language_model.{name}"),
            (Inside::Nothing | Inside::TextModel | Inside::LanguageModel, _) => name,
        }
    }

    /// Beginnings of the names of tensors that are not the decoder's and that nobody reads.
    pub(super) fn beside(self) -> &'static [&'static str] {
        match self {
            Inside::LanguageModel | Inside::WholeLanguageModel => TENSORS_OF_PICTURES,
            Inside::Nothing | Inside::TextModel => &[],
        }
    }
}

/// Whether a folder of this `model_type` is of a model around a decoder, which is opened without the rest.
pub(crate) fn is_wrapper(model_type: &str) -> bool {
    model_type == WRAPPER
}

/// Whether a decoder can be opened from a folder of this `model_type`.
pub(crate) fn is_decoder(model_type: &str) -> bool {
    is_wrapper(model_type) || families::of_model_type(model_type).is_some()
}

/// What folders may name.
pub(crate) fn model_types() -> String {
    format!("{}, {WRAPPER}", families::model_types())
}

/// Reads the configuration of the whole: the decoder from `text_config`, and what is said above it.
pub(super) fn read(json: &Map<String, Value>) -> Result<DecoderSpec, ConfigError> {
    const PREFIX: &str = "text_config.";
    let fields = Fields::new(json, "");
    let text = fields.opt_object("text_config")?;
    let text = fields.required("text_config", text)?;
    let inner = Fields::new(text, PREFIX);
    inner.required("model_type", inner.opt_str("model_type")?)?;
    inner.only("model_type", &INNER.join(" or "), |v| {
        v.as_str().is_some_and(|name| INNER.contains(&name))
    })?;
    inner.only(
        "quantization_config",
        "none: it is a field of the whole",
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
    // Where nobody says it the embedding is the output, if there is no other: `settle` looks.
    spec.tied_embeddings = [whole, own].contains(&Some(true)) || (whole, own) == (None, None);
    spec.bos = spec.bos.or(fields.opt_token("bos_token_id")?);
    for id in fields.tokens("eos_token_id")? {
        if !spec.eos.contains(&id) {
            spec.eos.push(id);
        }
    }
    fields.finish(&[HARMLESS, OF_PICTURES])?;
    spec.inside = Inside::LanguageModel;
    spec.check()?;
    Ok(spec)
}

/// Takes from a folder's tensors which of its two ways to name them it has, and whether there is an output of its own, which
/// counts whatever the configuration says of ties: a copy of the embedding gives the same.
pub(super) fn settle(spec: &mut DecoderSpec, has: &dyn Fn(&str) -> bool) {
    if spec.inside != Inside::LanguageModel {
        return;
    }
    let has_part = |spec: &DecoderSpec, of: Part| {
        let module = of.module(spec, 0);
        ["weight", "qweight", "weight_packed"]
            .iter()
            .any(|end| has(&part::tensor(&module, end)))
    };
    let older = DecoderSpec {
        inside: Inside::WholeLanguageModel,
        ..spec.clone()
    };
    if has_part(&older, Part::Embedding) {
        spec.inside = Inside::WholeLanguageModel;
    }
    spec.tied_embeddings &= !has_part(spec, Part::Output);
}
