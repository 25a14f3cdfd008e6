//! Phi 1 to 2: layers whose halves read one layer norm, biases everywhere. Phi 3 and 4: llama with fused projections and
//! LongRoPE.

use super::llama::{LLAMA, window_of_all};
use super::{FamilyRow, no_keys};
use crate::config::decoder::json::windows;
use crate::config::decoder::{Activation, FeedForward, NormKind, Part, Residual, RopeLayout};

pub(super) const PHI: FamilyRow = FamilyRow {
    model_type: "phi",
    architecture: "phi2",
    normalizes_experts: None,
    names: &[
        (Part::AttentionOutput, "model.layers.{}.self_attn.dense"),
        (Part::Up, "model.layers.{}.mlp.fc1"),
        (Part::Down, "model.layers.{}.mlp.fc2"),
        (Part::FinalNorm, "model.final_layernorm"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    eps: "layer_norm_eps",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = Residual::Parallel;
        spec.feed_forward = FeedForward::Plain(Activation::GeluTanh);
        (spec.qkv_bias, spec.output_bias) = (true, true);
        (spec.mlp_bias, spec.head_bias) = (true, true);
        spec.rope_dims = spec.head_dim / 2;
    },
    json: |fields, _| {
        fields.only("qk_layernorm", "false", |v| v.as_bool() == Some(false))?;
        fields.only("embd_pdrop", "a number", |v| v.is_number())
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const PHI3: FamilyRow = FamilyRow {
    model_type: "phi3",
    architecture: "phi3",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| (spec.fused_qkv, spec.fused_gate_up) = (true, true),
    json: |fields, spec| {
        fields.only("attention_bias", "false", |v| v.as_bool() == Some(false))?;
        windows(fields, spec, |_| true)
    },
    keys: window_of_all,
    ..LLAMA
};
