//! Gemma (2024): embeddings times the root of the width, gains that are added to 1, a gate of GELU. Gemma 2: norms around
//! each half, soft caps, every other layer with a window. Gemma 3: norms of the heads of queries and keys, five layers with
//! a window and a rotary embedding of their own to one without; EmbeddingGemma is one whose tokens see both ways.

use super::llama::LLAMA;
use super::{FamilyRow, no_keys};
use crate::config::decoder::json::{turn_windowed_layers, windows};
use crate::config::decoder::keys::Keys;
use crate::config::decoder::{
    Activation, ConfigError, DecoderSpec, FeedForward, Fields, NormPlacement, QkNorm, Rope,
    RopeLayout,
};

/// The base of the rotary embedding of Gemma 3's layers with a window.
const LOCAL_THETA: f64 = 10_000.0;

/// Of so many layers of Gemma 3 the last has no window.
const STEP: usize = 6;

pub(super) const GEMMA: FamilyRow = FamilyRow {
    model_type: "gemma",
    architecture: "gemma",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    // Folders of the first models have `hidden_act` "gelu" and mean its approximation.
    activations: &["hidden_activation"],
    defaults,
    json: |fields, spec| {
        fields.only("hidden_act", "gelu or gelu_pytorch_tanh", |v| {
            matches!(v.as_str(), Some("gelu" | "gelu_pytorch_tanh"))
        })?;
        biases(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const GEMMA2: FamilyRow = FamilyRow {
    model_type: "gemma2",
    architecture: "gemma2",
    names: &[(
        super::super::Part::FfnNorm,
        "model.layers.{}.pre_feedforward_layernorm",
    )],
    defaults: |spec| {
        defaults(spec);
        spec.placement = NormPlacement::Around;
    },
    json: |fields, spec| {
        fields.only("hidden_act", "gelu_pytorch_tanh", |v| {
            v.as_str() == Some("gelu_pytorch_tanh")
        })?;
        biases(fields, spec)?;
        caps_and_scale(fields, spec)?;
        windows(fields, spec, |i| i % 2 == 0)
    },
    keys: |keys, spec| {
        // The first files lack these keys and mean those of the models: refused rather than guessed.
        spec.attention_softcap = keys.factor("attn_logit_softcapping")?.map(f64::from);
        spec.logit_softcap = keys.factor("final_logit_softcapping")?.map(f64::from);
        scale_of_the_largest(spec, 46);
        let window = keys.size("attention.sliding_window")?;
        spec.set_windows(window, |i| i % 2 == 0);
        Ok(())
    },
    ..GEMMA
};

pub(super) const GEMMA3: FamilyRow = FamilyRow {
    model_type: "gemma3_text",
    architecture: "gemma3",
    defaults: |spec| {
        defaults(spec);
        spec.placement = NormPlacement::Around;
        spec.qk_norm = Some(QkNorm::Heads);
        spec.ropes[0].theta = 1e6;
    },
    json: |fields, spec| {
        fields.only("hidden_act", "gelu_pytorch_tanh", |v| {
            v.as_str() == Some("gelu_pytorch_tanh")
        })?;
        let both_ways = fields.opt_bool("use_bidirectional_attention")?;
        spec.bidirectional = both_ways.unwrap_or(false);
        biases(fields, spec)?;
        caps_and_scale(fields, spec)?;
        let local = fields.opt_positive("rope_local_base_freq")?;
        if spec.ropes.len() == 1 {
            spec.ropes.push(Rope::new(local.unwrap_or(LOCAL_THETA)));
        }
        let own = fields.opt_size("sliding_window_pattern")?;
        // As the library writes it beside `layer_types`.
        let step = own
            .or(fields.opt_size("_sliding_window_pattern")?)
            .unwrap_or(STEP);
        windows(fields, spec, |i| !(i + 1).is_multiple_of(step))?;
        if spec.bidirectional {
            // The whole of the window is given, half of it lies on either side.
            fields.size("sliding_window")?;
            for layer in &mut spec.layers {
                layer.window = layer.window.map(|whole| whole / 2);
            }
        }
        Ok(())
    },
    keys: of_gemma3,
    ..GEMMA2
};

/// EmbeddingGemma, whose folders are Gemma 3's.
pub(super) const GEMMA_EMBEDDING: FamilyRow = FamilyRow {
    architecture: "gemma-embedding",
    bidirectional_in_gguf: true,
    keys: |keys, spec| {
        of_gemma3(keys, spec)?;
        spec.bidirectional = true;
        // The whole of the window is given, half of it lies on either side.
        for layer in &mut spec.layers {
            layer.window = layer.window.map(|whole| whole / 2);
        }
        // Their tensors say the same of the layers after pooling.
        for layer in ["dense_2", "dense_3"] {
            keys.opt_size(&format!("{layer}_feat_in"))?;
            keys.opt_size(&format!("{layer}_feat_out"))?;
        }
        Ok(())
    },
    ..GEMMA3
};

fn of_gemma3(keys: &Keys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    spec.logit_softcap = keys.opt_factor("final_logit_softcapping")?.map(f64::from);
    scale_of_the_largest(spec, 62);
    let local = keys.opt_f32("rope.freq_base_swa")?;
    let local = local.map_or(LOCAL_THETA, f64::from);
    spec.ropes.push(Rope::new(local));
    if let Some(window) = keys.opt_size("attention.sliding_window")? {
        spec.set_windows(window, |i| !(i + 1).is_multiple_of(STEP));
    }
    turn_windowed_layers(spec);
    Ok(())
}

fn defaults(spec: &mut DecoderSpec) {
    spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    spec.norm.one_plus = true;
    spec.tied_embeddings = true;
    spec.feed_forward = FeedForward::Gated(Activation::GeluTanh);
}

fn biases(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let attention = fields.opt_bool("attention_bias")?.unwrap_or(false);
    (spec.qkv_bias, spec.output_bias) = (attention, attention);
    Ok(())
}

fn caps_and_scale(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    spec.attention_softcap = fields.opt_positive("attn_logit_softcapping")?;
    spec.logit_softcap = fields.opt_positive("final_logit_softcapping")?;
    let scalar = fields.opt_positive("query_pre_attn_scalar")?;
    spec.attention_scale = Some(scalar.unwrap_or(256.0).powf(-0.5));
    Ok(())
}

/// GGUF files do not say the scale of scores: the largest model of a generation, which is known by its layers, takes the
/// width over the heads for the size of a head.
fn scale_of_the_largest(spec: &mut DecoderSpec, layers: usize) {
    if spec.layers.len() == layers {
        spec.attention_scale = Some((spec.hidden as f64 / spec.heads as f64).powf(-0.5));
    }
}
