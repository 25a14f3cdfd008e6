//! `config.json` of an encoder. Every field is applied, known to be harmless, or an error.

use serde_json::Value;

use super::super::bounds::checked_layers;
use super::super::fields::HARMLESS;
use super::super::{ConfigError, ConfigFields, activation, ensure, near};
use super::families::{self, ConfigKeys, EncoderFamily};
use super::{EncoderDims, EncoderSpec, PositionEncoding, TokenTypes};
use crate::config::decoder::FeedForward;

/// Fields about training, generation, and heads. The reader of the classification head reads the
/// fields of the head.
const WITHOUT_INFLUENCE: &[&str] = &[
    "bos_token_id",
    "cls_token_id",
    "directionality",
    "eos_token_id",
    "mask_token_id",
    "num_labels",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "sep_token_id",
    "tie_word_embeddings",
];

/// Reads the fields common to all families, then those of the model's family.
pub(super) fn read(fields: ConfigFields<'_>) -> Result<EncoderSpec, ConfigError> {
    let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
    let family = families::for_model_type(model_type);
    fields.only(
        "model_type",
        &near(model_type, families::model_types()),
        |_| family.is_some(),
    )?;
    // An unsupported `model_type` is already an error above.
    let family = family.unwrap_or(EncoderFamily::BERT);
    read_family(&fields.of_class(model_type), family)
}

/// Reads the configuration of a known family.
pub(super) fn read_family(
    fields: &ConfigFields<'_>,
    family: EncoderFamily,
) -> Result<EncoderSpec, ConfigError> {
    let mut spec = common(fields, family)?;
    (family.get().json)(fields, &mut spec)?;
    fields.finish(&[HARMLESS, WITHOUT_INFLUENCE, family.get().harmless])?;
    Ok(spec)
}

fn common(fields: &ConfigFields<'_>, id: EncoderFamily) -> Result<EncoderSpec, ConfigError> {
    let family = id.get();
    fields.only("quantization_config", "an unquantised checkpoint", |_| {
        false
    })?;
    for name in ["is_decoder", "add_cross_attention"] {
        fields.only(name, "false", |v| v.as_bool() == Some(false))?;
    }
    let with_decoder = fields.opt_bool("is_encoder_decoder")?.unwrap_or(false);
    fields.only("is_encoder_decoder", "false", |_| {
        !with_decoder || family.with_decoder
    })?;
    let ConfigKeys {
        hidden,
        layers,
        heads,
        head_dim,
        ffn,
        context,
        typical_context,
        eps,
        activation: activations,
    } = family.config_keys;
    let patches = family.patches.map(|of| of.read(fields)).transpose()?;
    let (vocab, context) = match &patches {
        Some(patches) => (0, patches.positions()),
        None => {
            let said = opt_size(fields, context)?.or(typical_context);
            let context = fields.required(context.first().copied().unwrap_or("context"), said)?;
            (fields.size("vocab_size")?, context)
        }
    };
    let mut spec = EncoderSpec::bert(EncoderDims {
        hidden: size(fields, hidden)?,
        layers: checked_layers(
            layers.first().copied().unwrap_or("layers"),
            size(fields, layers)?,
        )?,
        heads: size(fields, heads)?,
        ffn: match ffn {
            // Families without a field name here read the width in their own `json` function.
            [] => 1,
            names => size(fields, names)?,
        },
        vocab,
        context,
    });
    spec.patches = patches;
    spec.head_dim = size_of_heads(fields, head_dim, &spec)?;
    spec.family = id;
    (family.defaults)(&mut spec);
    // Only families with a position table have other kinds of positions.
    if matches!(
        spec.positions,
        PositionEncoding::Learned { .. } | PositionEncoding::AfterPadding { .. }
    ) {
        fields.only("position_embedding_type", "\"absolute\"", |v| {
            v.as_str() == Some("absolute")
        })?;
    }
    for name in eps {
        if let Some(eps) = fields.opt_positive(name)? {
            spec.norm.eps = eps as f32;
        }
    }
    if let Some(pad) = fields.opt_token("pad_token_id")? {
        spec.pad = pad;
    }
    if let Some(rows) = fields.opt_size("type_vocab_size")? {
        spec.token_types = match spec.token_types {
            TokenTypes::None => TokenTypes::None,
            TokenTypes::First { .. } => TokenTypes::First { rows },
            TokenTypes::BySegment { .. } => TokenTypes::BySegment { rows },
        };
    }
    for name in activations {
        if let Some(found) = activation::read(fields, name)? {
            spec.feed_forward = match spec.feed_forward {
                FeedForward::Gated(_) => FeedForward::Gated(found),
                FeedForward::Plain(_) => FeedForward::Plain(found),
            };
        }
    }
    Ok(spec)
}

/// The head size: the value of field `name`, or `hidden / heads`.
fn size_of_heads(
    fields: &ConfigFields<'_>,
    name: Option<&'static str>,
    spec: &EncoderSpec,
) -> Result<usize, ConfigError> {
    let own = name.map(|name| fields.opt_size(name)).transpose()?;
    if let Some(own) = own.flatten() {
        return Ok(own);
    }
    let (hidden, heads) = (spec.hidden, spec.heads);
    ensure(hidden.is_multiple_of(heads), || {
        format!("a width of {hidden} is not a multiple of {heads} heads")
    })?;
    let size = hidden / heads;
    if fields.class_default("head_dim").is_some() {
        let supported = format!("{size} (the width of a head)");
        fields.only("head_dim", &supported, |v| v.as_u64() == Some(size as u64))?;
    }
    Ok(size)
}

/// The size under one of these field names; if several are present, they must agree.
fn size(fields: &ConfigFields<'_>, names: &'static [&'static str]) -> Result<usize, ConfigError> {
    let [first, ..] = names else {
        unreachable!("invariant: every size has a name");
    };
    fields.required(first, opt_size(fields, names)?)
}

fn opt_size(
    fields: &ConfigFields<'_>,
    names: &'static [&'static str],
) -> Result<Option<usize>, ConfigError> {
    let mut found: Option<(&str, usize)> = None;
    for name in names {
        let Some(size) = fields.opt_size(name)? else {
            continue;
        };
        if let Some((first, other)) = found {
            ensure(other == size, || {
                format!("{first} is {other}, but {name} is {size}")
            })?;
        }
        found = Some((name, size));
    }
    Ok(found.map(|(_, size)| size))
}

/// Returns an error if one of these fields is present and not false.
pub(super) fn only_false(
    fields: &ConfigFields<'_>,
    names: &[&'static str],
) -> Result<(), ConfigError> {
    let off = |v: &Value| v.as_bool() == Some(false);
    names
        .iter()
        .try_for_each(|name| fields.only(name, "false", off))
}
