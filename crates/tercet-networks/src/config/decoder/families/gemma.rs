//! Gemma (2024): embeddings scaled by the square root of the width, gains of 1 plus the stored
//! value, and a GELU gate. Gemma 2 has norms before and after attention and the feed-forward
//! network, soft caps, and a window in every other layer. Gemma 3 has QK norms; five of every six
//! layers have a window and a separate rotary embedding. EmbeddingGemma is a bidirectional Gemma 3.

use super::llama::LLAMA;
use super::{DecoderFamilyRow, no_keys};
use crate::config::activation;
use crate::config::decoder::json::{turn_windowed_layers, windows};
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    AttentionDirection, ConfigError, ConfigFields, DecoderSpec, FeedForward, FfnActivation,
    NormPlacement, QkNorm, RopeLayout, RopeSpec,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&GEMMA, &GEMMA2, &GEMMA3, &GEMMA_EMBEDDING];

/// The rotary base of Gemma 3's layers with a window.
const LOCAL_THETA: f64 = 10_000.0;

/// Every sixth layer of Gemma 3 has full attention.
const STEP: usize = 6;

pub(super) const GEMMA: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gemma",
    architecture: "gemma",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    activations: &["hidden_act"],
    defaults,
    json: |fields, spec| {
        // Folders of the first models have "gelu" but mean its tanh approximation.
        if fields.opt_str("hidden_act")? == Some("gelu") {
            spec.feed_forward = FeedForward::Gated(FfnActivation::GeluTanh);
        }
        second_activation(fields, spec, "hidden_activation");
        biases(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const GEMMA2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gemma2",
    architecture: "gemma2",
    activations: &["hidden_activation"],
    names: &[(
        super::super::DecoderPart::FfnNorm,
        "model.layers.{}.pre_feedforward_layernorm",
    )],
    defaults: |spec| {
        defaults(spec);
        spec.placement = NormPlacement::Around;
    },
    json: |fields, spec| {
        second_activation(fields, spec, "hidden_act");
        biases(fields, spec)?;
        caps_and_scale(fields, spec)?;
        windows(fields, spec, |i| i % 2 == 0)
    },
    keys: |keys, spec| {
        // The first converted GGUF files lack keys that are required here. Such files are an error,
        // because guessed values could be wrong.
        spec.attention.softcap = keys.factor("attn_logit_softcapping")?.map(f64::from);
        spec.scales.logit_softcap = keys.factor("final_logit_softcapping")?.map(f64::from);
        scale_of_the_largest(spec, 46);
        let window = keys.size("attention.sliding_window")?;
        spec.set_windows(window, |i| i % 2 == 0);
        Ok(())
    },
    ..GEMMA
};

pub(super) const GEMMA3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gemma3_text",
    architecture: "gemma3",
    defaults: |spec| {
        defaults(spec);
        spec.placement = NormPlacement::Around;
        spec.attention.qk_norm = Some(QkNorm::Heads);
        spec.ropes[0].theta = 1e6;
    },
    json: |fields, spec| {
        second_activation(fields, spec, "hidden_act");
        let both_ways = fields.opt_bool("use_bidirectional_attention")?;
        if both_ways == Some(true) {
            spec.attention.direction = AttentionDirection::Bidirectional;
        }
        biases(fields, spec)?;
        caps_and_scale(fields, spec)?;
        // The attention of this family does not cap its scores, whatever the file says.
        if spec.attention.softcap.take().is_some() {
            fields.note("attn_logit_softcapping");
        }
        let local = fields.opt_positive("rope_local_base_freq")?;
        if spec.ropes.len() == 1 {
            spec.ropes.push(RopeSpec::new(local.unwrap_or(LOCAL_THETA)));
        }
        let own = fields.opt_size("sliding_window_pattern")?;
        // transformers writes this field next to `layer_types`.
        let step = own
            .or(fields.opt_size("_sliding_window_pattern")?)
            .unwrap_or(STEP);
        windows(fields, spec, |i| !(i + 1).is_multiple_of(step))?;
        if both_ways == Some(true) {
            // The field has the full width of the window, half of it on each side.
            for layer in &mut spec.layers {
                layer.window = layer.window.map(|whole| whole / 2);
            }
        }
        Ok(())
    },
    keys: |keys, spec| read_gemma3_keys(keys, spec, false),
    ..GEMMA2
};

/// EmbeddingGemma; its folders use Gemma 3's `model_type`.
pub(super) const GEMMA_EMBEDDING: DecoderFamilyRow = DecoderFamilyRow {
    architecture: "gemma-embedding",
    bidirectional_in_gguf: true,
    keys: |keys, spec| {
        read_gemma3_keys(keys, spec, true)?;
        spec.attention.direction = AttentionDirection::Bidirectional;
        // The GGUF key is the full width of the window, half of it on each side.
        for layer in &mut spec.layers {
            layer.window = layer.window.map(|whole| whole / 2);
        }
        // The tensors of the dense layers after pooling have the same sizes.
        for layer in ["dense_2", "dense_3"] {
            keys.opt_size(&format!("{layer}_feat_in"))?;
            keys.opt_size(&format!("{layer}_feat_out"))?;
        }
        Ok(())
    },
    ..GEMMA3
};

fn read_gemma3_keys(
    keys: &GgufKeys<'_>,
    spec: &mut DecoderSpec,
    both_sides: bool,
) -> Result<(), ConfigError> {
    spec.scales.logit_softcap = keys.opt_factor("final_logit_softcapping")?.map(f64::from);
    scale_of_the_largest(spec, 62);
    let local = keys.opt_f32("rope.freq_base_swa")?;
    let local = local.map_or(LOCAL_THETA, f64::from);
    spec.ropes.push(RopeSpec::new(local));
    // 0 means full attention, and in EmbeddingGemma, which has half of it on each side, the token.
    let key = keys.key("attention.sliding_window");
    let is_token = both_sides && keys.gguf.metadata().opt_u32(&key)? == Some(0);
    let window = keys.opt_size("attention.sliding_window")?;
    if let Some(window) = window.or(is_token.then_some(0)) {
        spec.set_windows(window, |i| !(i + 1).is_multiple_of(STEP));
    }
    turn_windowed_layers(spec);
    Ok(())
}

fn defaults(spec: &mut DecoderSpec) {
    spec.scales.embedding = (spec.hidden as f64).sqrt() as f32;
    spec.norm.one_plus = true;
    spec.tied_embeddings = true;
    spec.feed_forward = FeedForward::Gated(FfnActivation::GeluTanh);
}

/// Notes a second name of the activation, which the reference implementation ignores, if it differs
/// from the first.
fn second_activation(fields: &ConfigFields<'_>, spec: &DecoderSpec, name: &'static str) {
    let (FeedForward::Gated(own) | FeedForward::Plain(own)) = spec.feed_forward;
    let other = fields
        .get(name)
        .map(|name| name.as_str().and_then(activation::by_name));
    if other.is_some_and(|other| other != Some(own)) {
        fields.note(name);
    }
}

fn biases(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let attention = fields.opt_bool("attention_bias")?.unwrap_or(false);
    (spec.biases.qkv, spec.biases.output) = (attention, attention);
    Ok(())
}

fn caps_and_scale(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    spec.attention.softcap = fields.opt_positive("attn_logit_softcapping")?;
    spec.scales.logit_softcap = fields.opt_positive("final_logit_softcapping")?;
    let scalar = fields.opt_positive("query_pre_attn_scalar")?;
    spec.attention.scale = Some(scalar.unwrap_or(256.0).powf(-0.5));
    Ok(())
}

/// Sets the attention scale of a generation's largest model, identified by its number of layers. It
/// uses `hidden / heads` as the head size; GGUF files do not store the scale.
fn scale_of_the_largest(spec: &mut DecoderSpec, layers: usize) {
    if spec.layers.len() == layers {
        spec.attention.scale = Some((spec.hidden as f64 / spec.heads as f64).powf(-0.5));
    }
}
