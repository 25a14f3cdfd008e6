//! `config.json` of an encoder, of which every field is read, known to have no influence, or refused.

use serde_json::Value;

use super::super::fields::HARMLESS;
use super::super::{ConfigError, Fields, ensure};
use super::families::{self, EncoderFamily, Spelled};
use super::{EncoderDims, EncoderSpec, TokenTypes};
use crate::config::decoder::{Activation, FeedForward};

/// Fields about training, generation, and heads; those about the head that tells classes are read where it is built.
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

/// Reads what all families have, then what this one has.
pub(super) fn read(fields: &Fields<'_>) -> Result<EncoderSpec, ConfigError> {
    let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
    let family = families::of_model_type(model_type);
    fields.only("model_type", &families::model_types(), |_| family.is_some())?;
    // Refused above where there is none.
    let family = family.unwrap_or(EncoderFamily::BERT);
    let mut spec = common(fields, family)?;
    (family.get().json)(fields, &mut spec)?;
    fields.finish(&[HARMLESS, WITHOUT_INFLUENCE, family.get().harmless])?;
    Ok(spec)
}

fn common(fields: &Fields<'_>, id: EncoderFamily) -> Result<EncoderSpec, ConfigError> {
    let family = id.get();
    fields.only("quantization_config", "an unquantised checkpoint", |_| {
        false
    })?;
    fields.only("position_embedding_type", "\"absolute\"", |v| {
        v.as_str() == Some("absolute")
    })?;
    for name in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
        fields.only(name, "false", |v| v.as_bool() == Some(false))?;
    }
    let Spelled {
        hidden,
        layers,
        heads,
        ffn,
        context,
        eps,
        activation,
    } = family.spelled;
    let mut spec = EncoderSpec::bert(EncoderDims {
        hidden: size(fields, hidden)?,
        layers: size(fields, layers)?,
        heads: size(fields, heads)?,
        ffn: size(fields, ffn)?,
        vocab: fields.size("vocab_size")?,
        context: size(fields, context)?,
    });
    ensure(spec.hidden.is_multiple_of(spec.heads), || {
        format!(
            "a width of {} is not a multiple of {} heads",
            spec.hidden, spec.heads
        )
    })?;
    spec.family = id;
    (family.defaults)(&mut spec);
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
    for name in activation {
        if let Some(found) = self::activation(fields, name)? {
            spec.feed_forward = match spec.feed_forward {
                FeedForward::Gated(_) => FeedForward::Gated(found),
                FeedForward::Plain(_) => FeedForward::Plain(found),
            };
        }
    }
    Ok(spec)
}

/// The size under one of these names; where a file has several, they must agree.
fn size(fields: &Fields<'_>, names: &'static [&'static str]) -> Result<usize, ConfigError> {
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
    let [first, ..] = names else {
        unreachable!("invariant: every size has a name");
    };
    fields.required(first, found.map(|(_, size)| size))
}

/// The nonlinearity that a field names.
pub(in crate::config) fn activation(
    fields: &Fields<'_>,
    name: &'static str,
) -> Result<Option<Activation>, ConfigError> {
    let mut found = None;
    let supported = "gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish or tanh";
    fields.only(name, supported, |v| {
        found = match v.as_str() {
            Some("gelu") => Some(Activation::Gelu),
            Some("gelu_new" | "gelu_pytorch_tanh") => Some(Activation::GeluTanh),
            Some("relu") => Some(Activation::Relu),
            Some("silu" | "swish") => Some(Activation::Silu),
            Some("tanh") => Some(Activation::Tanh),
            Some(_) | None => None,
        };
        found.is_some()
    })?;
    Ok(found)
}

/// Refuses any of these fields that is not false, or absent.
pub(super) fn only_false(fields: &Fields<'_>, names: &[&'static str]) -> Result<(), ConfigError> {
    let off = |v: &Value| v.as_bool() == Some(false);
    names
        .iter()
        .try_for_each(|name| fields.only(name, "false", off))
}
