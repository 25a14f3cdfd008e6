//! GGUF metadata of an encoder. Keys of its architecture that are not read follow the rule of
//! decoders.

use super::super::bounds::{TensorBounds, checked_layers};
use super::super::{ConfigError, ensure, near};
use super::families::for_model_type;
use super::modern::first_follows_a_norm;
use super::{
    EncoderDims, EncoderNames, EncoderPart, EncoderSpec, PositionEncoding, TokenTypes,
    known_tensors,
};
use crate::config::decoder::keys::{GgufKeys, scaling, vocab};
use crate::config::decoder::{FeedForward, FfnActivation, NormKind, RopeSpec, reject_names};
use crate::weights::Weights;
use tercet_files::clip;
use tercet_files::gguf::Gguf;

/// A supported GGUF architecture of encoders.
struct GgufEncoderRow {
    architecture: &'static str,
    /// The `model_type` of the corresponding folders.
    model_type: &'static str,
    keys: fn(&GgufKeys<'_>, &mut EncoderSpec) -> Result<(), ConfigError>,
}

/// The supported architectures. Converters also use `bert` for RoBERTa, XLM-RoBERTa and DistilBERT.
/// Converters drop the position rows before the first token's, so positions count from 0.
const ROWS: [GgufEncoderRow; 4] = [
    GgufEncoderRow {
        architecture: "bert",
        model_type: "bert",
        keys: bert,
    },
    GgufEncoderRow {
        architecture: "nomic-bert",
        model_type: "nomic_bert",
        keys: nomic_bert,
    },
    GgufEncoderRow {
        architecture: "modern-bert",
        model_type: "modernbert",
        keys: modernbert,
    },
    GgufEncoderRow {
        architecture: "t5encoder",
        model_type: "t5",
        keys: t5,
    },
];

/// Whether a GGUF file of this architecture is an encoder.
#[must_use]
pub fn is_encoder(architecture: &str) -> bool {
    ROWS.iter().any(|row| row.architecture == architecture)
}

/// The supported architectures.
pub(crate) fn gguf_names() -> Vec<&'static str> {
    ROWS.map(|row| row.architecture).to_vec()
}

/// Keys of heads and decoders, which do not affect the encoder, and keys that are read with the
/// file's other modules.
const ELSEWHERE: [&str; 4] = [
    "classifier.output_labels",
    "decoder_block_count",
    "decoder_start_token_id",
    "pooling_type",
];

/// Reads the keys common to all architectures, then those of the file's architecture.
pub(super) fn read(gguf: &Gguf) -> Result<EncoderSpec, ConfigError> {
    let architecture = gguf.metadata().get_str("general.architecture")?;
    let row = ROWS.iter().find(|row| row.architecture == architecture);
    let family = row.and_then(|row| for_model_type(row.model_type));
    let (Some(row), Some(family)) = (row, family) else {
        return Err(ConfigError::Unsupported {
            field: "general.architecture".to_string(),
            found: clip(architecture),
            supported: near(architecture, gguf_names()),
        });
    };
    let keys = GgufKeys::new(gguf, architecture);
    let bounds = TensorBounds::from_gguf(gguf);
    let layers = checked_layers("block_count", keys.size("block_count")?)?;
    bounds.parts("layers", layers)?;
    let hidden = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let mut spec = EncoderSpec::bert(EncoderDims {
        hidden,
        layers,
        heads,
        ffn: keys.size("feed_forward_length")?,
        vocab: vocab(&keys)?,
        context: keys.size("context_length")?,
    });
    spec.family = family;
    (family.get().defaults)(&mut spec);
    spec.head_dim = head_dim(&keys, &spec)?;
    for (kind, key) in [
        (NormKind::Layer, "attention.layer_norm_epsilon"),
        (NormKind::Rms, "attention.layer_norm_rms_epsilon"),
    ] {
        // Some converters write both epsilons.
        let found = keys.opt_f32(key)?;
        if kind == spec.norm.kind {
            spec.norm.eps = found.ok_or_else(|| keys.missing(key))?;
        }
    }
    if keys.opt_bool("attention.causal")? == Some(true) {
        return Err(keys.unsupported("attention.causal", "true", "false"));
    }
    if let Some(pad) = gguf
        .metadata()
        .opt_token("tokenizer.ggml.padding_token_id")?
    {
        spec.pad = pad;
    }
    tensors_say(gguf, &mut spec)?;
    (row.keys)(&keys, &mut spec)?;
    for key in ELSEWHERE {
        keys.key(key);
    }
    keys.finish()?;
    spec.check_bounds(&bounds)?;
    let names = EncoderNames::new(&spec, &Weights::Gguf(gguf.clone()));
    let mut known = known_tensors(&spec, &names);
    let factors: Vec<String> = known.iter().flat_map(|n| Weights::factors_of(n)).collect();
    known.extend(factors);
    // Ignore classification heads.
    let tensors = gguf.tensors().iter().map(|t| t.name());
    reject_names(tensors.filter(|name| !name.starts_with("cls.")), &known)?;
    Ok(spec)
}

fn head_dim(keys: &GgufKeys<'_>, spec: &EncoderSpec) -> Result<usize, ConfigError> {
    let EncoderSpec { hidden, heads, .. } = *spec;
    if let Some(found) = keys.opt_size("attention.head_count_kv")?
        && found != heads
    {
        let supported = format!("{heads} (the number of query heads)");
        let found = found.to_string();
        return Err(keys.unsupported("attention.head_count_kv", &found, &supported));
    }
    let said = keys.opt_size("attention.key_length")?;
    let value = keys.opt_size("attention.value_length")?;
    let size = match said {
        Some(size) => size,
        None => {
            ensure(hidden.is_multiple_of(heads), || {
                format!("a width of {hidden} is not a multiple of {heads} heads")
            })?;
            hidden / heads
        }
    };
    match value {
        Some(found) if found != size => {
            let supported = format!("{size} (the key length)");
            let found = found.to_string();
            Err(keys.unsupported("attention.value_length", &found, &supported))
        }
        Some(_) | None => Ok(size),
    }
}

/// Sets the specification's fields that depend on which tensors exist.
fn tensors_say(gguf: &Gguf, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    let weights = Weights::Gguf(gguf.clone());
    let named = spec.clone();
    let names = EncoderNames::new(&named, &weights);
    let has = |part: EncoderPart, suffix: &str| gguf.has_tensor(&names.tensor(part, 0, suffix));
    spec.fused_qkv = has(EncoderPart::Qkv, "weight");
    spec.qkv_bias = has(EncoderPart::Qkv, "bias") || has(EncoderPart::Query, "bias");
    spec.output_bias = has(EncoderPart::AttentionOutput, "bias");
    spec.mlp_bias = has(EncoderPart::Down, "bias");
    spec.norm.bias = has(EncoderPart::FfnNorm, "bias");
    let types = names.tensor(EncoderPart::Types, 0, "weight");
    spec.token_types = match gguf.has_tensor(&types) {
        false => TokenTypes::None,
        true => match gguf.tensor(&types)?.shape().as_slice() {
            &[rows, _] if rows > 1 => TokenTypes::BySegment { rows },
            _ => TokenTypes::First { rows: 1 },
        },
    };
    Ok(())
}

fn bert(_: &GgufKeys<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    spec.positions = PositionEncoding::Learned { rows: spec.context };
    Ok(())
}

fn nomic_bert(keys: &GgufKeys<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    whole_heads(keys, spec)?;
    spec.ropes = vec![RopeSpec {
        theta: keys.opt_f32("rope.freq_base")?.unwrap_or(10_000.0).into(),
        scaling: scaling(keys, spec.context)?,
    }];
    Ok(())
}

fn modernbert(keys: &GgufKeys<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    whole_heads(keys, spec)?;
    first_follows_a_norm(spec);
    // The key has the full width of the window, half of it on each side.
    let whole = keys.size("attention.sliding_window")?;
    let every = keys
        .opt_size("attention.sliding_window_pattern")?
        .unwrap_or(3);
    spec.set_windows(whole / 2, |i| i % every != 0);
    let global = keys.opt_f32("rope.freq_base")?.unwrap_or(160_000.0);
    let local = keys.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let scaling = scaling(keys, spec.context)?;
    spec.ropes = [global, local]
        .map(|theta| RopeSpec {
            theta: theta.into(),
            scaling: scaling.clone(),
        })
        .to_vec();
    for layer in &mut spec.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    Ok(())
}

/// Rejects partial rotary embeddings.
fn whole_heads(keys: &GgufKeys<'_>, spec: &EncoderSpec) -> Result<(), ConfigError> {
    match keys.opt_size("rope.dimension_count")? {
        Some(found) if found != spec.head_dim => {
            let supported = format!("{} (a whole head)", spec.head_dim);
            Err(keys.unsupported("rope.dimension_count", &found.to_string(), &supported))
        }
        Some(_) | None => Ok(()),
    }
}

fn t5(keys: &GgufKeys<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    if let Some(terms) = &mut spec.relative_position_bias {
        let buckets = keys.opt_size("attention.relative_buckets_count")?;
        terms.buckets = buckets.unwrap_or(terms.buckets);
    }
    // GGUF files do not store T5's activation. A gate implies T5 1.1 or Flan-T5, which have GELU;
    // T5 has ReLU.
    spec.feed_forward = match keys.gguf.has_tensor("enc.blk.0.ffn_gate.weight") {
        true => FeedForward::Gated(FfnActivation::GeluTanh),
        false => FeedForward::Plain(FfnActivation::Relu),
    };
    Ok(())
}
