//! The families of encoders: a row for each.

use super::super::{ConfigError, Fields, ensure};
use super::part::Names;
use super::patches::PatchRow;
use super::{EncoderPart, EncoderSpec, Positions, RelativeTerms, TokenTypes};
use super::{modern, t5, towers};
use crate::config::decoder::Activation;

/// What a family's `config.json` calls what all of them have; any one of several names.
pub(super) struct Spelled {
    pub(super) hidden: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    pub(super) heads: &'static [&'static str],
    /// The size of a head, where it need not be the width over the heads.
    pub(super) head_dim: Option<&'static str>,
    pub(super) ffn: &'static [&'static str],
    pub(super) context: &'static [&'static str],
    /// Positions of models that do not say.
    pub(super) typical_context: Option<usize>,
    pub(super) eps: &'static [&'static str],
    pub(super) activation: &'static [&'static str],
}

/// The names that most have.
pub(super) const COMMON: Spelled = Spelled {
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

/// What tells a family from the others.
pub(crate) struct FamilyRow {
    /// The `model_type` of its folders.
    pub(super) model_type: &'static str,
    /// What its `config.json` calls common fields.
    pub(super) spelled: Spelled,
    /// How its encoders read pictures; those of texts do not.
    pub(super) patches: Option<PatchRow>,
    /// Whether its folders may have a decoder beside the encoder.
    pub(super) with_decoder: bool,
    /// What tensors of the encoder begin with in checkpoints that have a head.
    pub(super) prefix: &'static str,
    /// What its folders call parts otherwise than those of BERT.
    pub(super) names: Names,
    /// What its folders of old called them, where that was another name.
    pub(super) old_names: Names,
    /// What its GGUF files call parts otherwise than those of BERT.
    pub(super) gguf_names: Names,
    /// What the names of tensors that belong to heads begin with.
    pub(super) heads: &'static [&'static str],
    /// Its fields about training, and about heads that are not built.
    pub(super) harmless: &'static [&'static str],
    /// What all its models have.
    pub(super) defaults: fn(&mut EncoderSpec),
    /// Its own fields.
    pub(super) json: fn(&Fields<'_>, &mut EncoderSpec) -> Result<(), ConfigError>,
}

/// A family of encoders: its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderFamily(usize);

/// Those of texts; BERT is the first. Towers of other models stand behind them.
const FAMILIES: [&FamilyRow; 9] = [
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

    /// The `model_type` of its folders.
    pub fn model_type(self) -> &'static str {
        self.get().model_type
    }

    /// Whether its folders may have a decoder beside the encoder.
    pub(crate) fn has_decoder(self) -> bool {
        self.get().with_decoder
    }

    /// The row of the table.
    pub(crate) fn get(self) -> &'static FamilyRow {
        match self.0.checked_sub(FAMILIES.len()) {
            None => FAMILIES[self.0],
            Some(at) => towers::TOWERS[at],
        }
    }

    /// The tower of a model of pictures, or of pictures and texts, by the `model_type` of its part of the configuration.
    pub(crate) fn tower(model_type: &str) -> Option<EncoderFamily> {
        let at = towers::TOWERS
            .iter()
            .position(|row| row.model_type == model_type)?;
        Some(EncoderFamily(FAMILIES.len() + at))
    }
}

/// The family that a folder's configuration names.
pub(crate) fn of_model_type(name: &str) -> Option<EncoderFamily> {
    let at = FAMILIES.iter().position(|f| f.model_type == name)?;
    Some(EncoderFamily(at))
}

/// What folders may name.
pub(crate) fn model_types() -> String {
    FAMILIES.map(|f| f.model_type).join(", ")
}

/// What tensors of encoders begin with in checkpoints that have a head, but for `model.`, with which those of decoders
/// begin in any.
pub(crate) fn task_prefixes() -> impl Iterator<Item = &'static str> {
    let prefixes = FAMILIES.iter().map(|row| row.prefix);
    prefixes.filter(|prefix| *prefix != "model.")
}

/// Heads of language models, of questions and of classes.
const HEADS: &[&str] = &["cls.", "lm_head.", "classifier.", "qa_outputs."];

pub(super) const BERT: FamilyRow = FamilyRow {
    model_type: "bert",
    spelled: COMMON,
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

/// A head of classes with a dense layer of its own.
const ROBERTA_HEAD: Names = &[
    (EncoderPart::HeadDense, "classifier.dense"),
    (EncoderPart::Classifier, "classifier.out_proj"),
];

/// RoBERTa (Liu and others, 2019): positions counted after the padding token's, segments without influence.
const ROBERTA: FamilyRow = FamilyRow {
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
const XLM_ROBERTA: FamilyRow = FamilyRow {
    model_type: "xlm-roberta",
    ..ROBERTA
};

/// Positions are counted from the padding token's id plus 1 on.
fn after_padding(spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    let rows = spec.context;
    let before = spec.pad as usize + 1;
    ensure(rows > before, || {
        format!("{rows} positions, of which {before} are before that of the first token")
    })?;
    spec.positions = Positions::AfterPadding { rows };
    spec.context = rows - before;
    Ok(())
}

/// MPNet (Song and others, 2020): RoBERTa's positions, no segments, and terms of the scores by distance.
const MPNET: FamilyRow = FamilyRow {
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
        spec.relative = Some(RelativeTerms {
            buckets: 32,
            farthest: 128,
        });
    },
    json: |fields, spec| {
        // Both are constants of the reference implementation, whatever the file says of the table.
        fields.only("relative_attention_num_buckets", "32", |v| {
            v.as_u64() == Some(32)
        })?;
        fields.only("pad_token_id", "1", |v| v.as_u64() == Some(1))?;
        after_padding(spec)
    },
    ..BERT
};

/// DistilBERT (Sanh and others, 2019): BERT without segments.
const DISTILBERT: FamilyRow = FamilyRow {
    model_type: "distilbert",
    spelled: Spelled {
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
        // The table is a tensor of the file either way.
        "sinusoidal_pos_embds",
        "tie_weights_",
    ],
    defaults: |spec| {
        spec.token_types = TokenTypes::None;
        spec.head.dense = Some(Activation::Relu);
    },
    ..BERT
};

/// The discriminator of ELECTRA (Clark and others, 2020): BERT with embeddings of a width of their own.
const ELECTRA: FamilyRow = FamilyRow {
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
    defaults: |spec| spec.head.dense = Some(Activation::Gelu),
    json: |fields, spec| {
        spec.embedding = fields.opt_size("embedding_size")?.unwrap_or(spec.hidden);
        Ok(())
    },
    ..BERT
};
