//! The model families of encoders: one table row for each.

use super::super::{ConfigError, ConfigFields, ensure};
use super::part::EncoderPartNames;
use super::patches::PatchFamilyRow;
use super::{EncoderPart, EncoderSpec, PositionEncoding, RelativePositionBias, TokenTypes};
use super::{modern, t5, towers};
use crate::config::decoder::FfnActivation;

/// The family's names of the common `config.json` fields; each list has alternative names.
pub(super) struct ConfigKeys {
    pub(super) hidden: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    pub(super) heads: &'static [&'static str],
    /// The field of the head size, if it may differ from `hidden / heads`.
    pub(super) head_dim: Option<&'static str>,
    pub(super) ffn: &'static [&'static str],
    pub(super) context: &'static [&'static str],
    /// The default context length of models that do not store one.
    pub(super) typical_context: Option<usize>,
    pub(super) eps: &'static [&'static str],
    pub(super) activation: &'static [&'static str],
}

/// The field names that most families use.
pub(super) const COMMON: ConfigKeys = ConfigKeys {
    hidden: &["hidden_size"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    head_dim: None,
    ffn: &["intermediate_size"],
    context: &["max_position_embeddings"],
    typical_context: None,
    eps: &["layer_norm_eps"],
    activation: &["hidden_act"],
};

/// The properties of a model family.
pub(crate) struct EncoderFamilyRow {
    /// The `model_type` of the family's folders.
    pub(super) model_type: &'static str,
    /// The names of the common `config.json` fields.
    pub(super) config_keys: ConfigKeys,
    /// The image patches of a vision encoder; `None` for text encoders.
    pub(super) patches: Option<PatchFamilyRow>,
    /// Whether folders may also have a decoder.
    pub(super) with_decoder: bool,
    /// The prefix of the encoder's tensor names in checkpoints with a head.
    pub(super) prefix: &'static str,
    /// Folder names of parts that differ from BERT's.
    pub(super) names: EncoderPartNames,
    /// Older folder names of parts that were renamed.
    pub(super) old_names: EncoderPartNames,
    /// GGUF names of parts that differ from BERT's.
    pub(super) gguf_names: EncoderPartNames,
    /// Prefixes of tensors that belong to heads.
    pub(super) heads: &'static [&'static str],
    /// Fields about training, and about heads that are not implemented.
    pub(super) harmless: &'static [&'static str],
    /// Sets the properties that all models of the family share.
    pub(super) defaults: fn(&mut EncoderSpec),
    /// Reads the family-specific fields.
    pub(super) json: fn(&ConfigFields<'_>, &mut EncoderSpec) -> Result<(), ConfigError>,
}

/// A model family of encoders, as an index into the tables of families.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::EncoderSpec;
/// assert_eq!(EncoderSpec::bert(dims).family.model_type(), "bert");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderFamily(usize);

/// The text encoders, BERT first. The towers of other models have the indices after those of the
/// text encoders.
const FAMILIES: [&EncoderFamilyRow; 9] = [
    &BERT,
    &ROBERTA,
    &XLM_ROBERTA,
    &MPNET,
    &DISTILBERT,
    &ELECTRA,
    &modern::MODERNBERT,
    &modern::NOMIC_BERT,
    &t5::T5,
];

impl EncoderFamily {
    pub(crate) const BERT: EncoderFamily = EncoderFamily(0);

    /// The `model_type` of the family's folders.
    pub fn model_type(self) -> &'static str {
        self.get().model_type
    }

    /// Whether folders may also have a decoder.
    #[must_use]
    pub fn has_decoder(self) -> bool {
        self.get().with_decoder
    }

    /// The family's row in the table.
    pub(crate) fn get(self) -> &'static EncoderFamilyRow {
        match self.0.checked_sub(FAMILIES.len()) {
            None => FAMILIES[self.0],
            Some(at) => towers::TOWERS[at],
        }
    }

    /// The family of a vision or text tower, by the `model_type` of the tower's configuration.
    pub(crate) fn tower(model_type: &str) -> Option<EncoderFamily> {
        let at = towers::TOWERS
            .iter()
            .position(|row| row.model_type == model_type)?;
        Some(EncoderFamily(FAMILIES.len() + at))
    }
}

/// The family with this `model_type`.
#[must_use]
pub fn for_model_type(name: &str) -> Option<EncoderFamily> {
    let at = FAMILIES.iter().position(|f| f.model_type == name)?;
    Some(EncoderFamily(at))
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> Vec<&'static str> {
    FAMILIES.map(|f| f.model_type).to_vec()
}

/// The prefixes of encoder tensor names in checkpoints with a head. The list excludes `model.`,
/// which is the prefix of all decoders.
pub(crate) fn task_prefixes() -> impl Iterator<Item = &'static str> {
    let prefixes = FAMILIES.iter().map(|row| row.prefix);
    prefixes.filter(|prefix| *prefix != "model.")
}

/// Prefixes of the heads for language modelling, question answering and classification.
const HEADS: &[&str] = &["cls.", "lm_head.", "classifier.", "qa_outputs."];

pub(super) const BERT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "bert",
    config_keys: COMMON,
    patches: None,
    with_decoder: false,
    prefix: "bert.",
    names: &[],
    old_names: &[],
    gguf_names: &[],
    heads: HEADS,
    harmless: &[],
    defaults: |_| {},
    json: |_, _| Ok(()),
};

/// A classification head with its own dense layer.
const ROBERTA_HEAD: EncoderPartNames = &[
    (EncoderPart::HeadDense, "classifier.dense"),
    (EncoderPart::Classifier, "classifier.out_proj"),
];

/// RoBERTa (Liu and others, 2019): positions are counted from the padding token's id plus 1, and
/// segments are unused.
const ROBERTA: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "roberta",
    prefix: "roberta.",
    names: ROBERTA_HEAD,
    defaults: |spec| {
        spec.pad = 1;
        spec.token_types = TokenTypes::First { rows: 2 };
    },
    json: |_, spec| after_padding(spec),
    ..BERT
};

/// XLM-RoBERTa (Conneau and others, 2020).
const XLM_ROBERTA: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "xlm-roberta",
    ..ROBERTA
};

/// Counts positions from the padding token's id plus 1.
fn after_padding(spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    let rows = spec.context;
    let before = spec.pad as usize + 1;
    ensure(rows > before, || {
        format!("{rows} positions are too few, because the first {before} are reserved")
    })?;
    spec.positions = PositionEncoding::AfterPadding { rows };
    spec.context = rows - before;
    Ok(())
}

/// MPNet (Song and others, 2020): RoBERTa's positions, no segments, and relative position biases.
const MPNET: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "mpnet",
    prefix: "mpnet.",
    names: &[
        (EncoderPart::Query, "encoder.layer.{}.attention.attn.q"),
        (EncoderPart::Key, "encoder.layer.{}.attention.attn.k"),
        (EncoderPart::Value, "encoder.layer.{}.attention.attn.v"),
        (
            EncoderPart::AttentionOutput,
            "encoder.layer.{}.attention.attn.o",
        ),
        (
            EncoderPart::AttentionNorm,
            "encoder.layer.{}.attention.LayerNorm",
        ),
        (EncoderPart::HeadDense, "classifier.dense"),
        (EncoderPart::Classifier, "classifier.out_proj"),
    ],
    defaults: |spec| {
        spec.pad = 1;
        spec.token_types = TokenTypes::None;
        spec.relative_position_bias = Some(RelativePositionBias {
            buckets: 32,
            farthest: 128,
        });
    },
    json: |fields, spec| {
        // The reference implementation ignores both fields and uses constants for the buckets and
        // the largest distance.
        fields.only("relative_attention_num_buckets", "32", |v| {
            v.as_u64() == Some(32)
        })?;
        fields.only("pad_token_id", "1", |v| v.as_u64() == Some(1))?;
        after_padding(spec)
    },
    ..BERT
};

/// DistilBERT (Sanh and others, 2019): BERT without segments.
const DISTILBERT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "distilbert",
    config_keys: ConfigKeys {
        hidden: &["dim"],
        layers: &["n_layers"],
        heads: &["n_heads"],
        head_dim: None,
        ffn: &["hidden_dim"],
        context: &["max_position_embeddings"],
        typical_context: None,
        eps: &[],
        activation: &["activation"],
    },
    prefix: "distilbert.",
    names: &[
        (EncoderPart::Query, "transformer.layer.{}.attention.q_lin"),
        (EncoderPart::Key, "transformer.layer.{}.attention.k_lin"),
        (EncoderPart::Value, "transformer.layer.{}.attention.v_lin"),
        (
            EncoderPart::AttentionOutput,
            "transformer.layer.{}.attention.out_lin",
        ),
        (
            EncoderPart::AttentionNorm,
            "transformer.layer.{}.sa_layer_norm",
        ),
        (EncoderPart::Up, "transformer.layer.{}.ffn.lin1"),
        (EncoderPart::Down, "transformer.layer.{}.ffn.lin2"),
        (
            EncoderPart::FfnNorm,
            "transformer.layer.{}.output_layer_norm",
        ),
        (EncoderPart::HeadDense, "pre_classifier"),
    ],
    heads: &[
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "pre_classifier.",
        "classifier.",
        "qa_outputs.",
    ],
    harmless: &[
        "dropout",
        "qa_dropout",
        "seq_classif_dropout",
        // The file has the position table as a tensor, whether it is sinusoidal or learned.
        "sinusoidal_pos_embds",
        "tie_weights_",
    ],
    defaults: |spec| {
        spec.token_types = TokenTypes::None;
        spec.head.dense = Some(FfnActivation::Relu);
    },
    ..BERT
};

/// The discriminator of ELECTRA (Clark and others, 2020): BERT with a separate embedding width.
const ELECTRA: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "electra",
    prefix: "electra.",
    names: ROBERTA_HEAD,
    heads: &[
        "discriminator_predictions.",
        "generator_predictions.",
        "generator_lm_head.",
        "classifier.",
        "qa_outputs.",
    ],
    harmless: &[
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
    ],
    defaults: |spec| spec.head.dense = Some(FfnActivation::Gelu),
    json: |fields, spec| {
        spec.embedding = fields.opt_size("embedding_size")?.unwrap_or(spec.hidden);
        Ok(())
    },
    ..BERT
};
