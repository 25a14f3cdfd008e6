//! Phi 1 to 2: parallel layers with one layer norm, and biases throughout. Phi 3 and 4: llama with
//! fused projections and LongRoPE.

use super::llama::{LLAMA, window_of_all};
use super::{DecoderFamilyRow, no_keys};
use crate::config::decoder::json::windows;
use crate::config::decoder::{
    DecoderPart, FeedForward, FfnActivation, NormKind, ResidualOrder, RopeLayout,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&PHI, &PHI3];

pub(super) const PHI: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "phi",
    architecture: "phi2",
    normalizes_experts: None,
    names: &[
        (
            DecoderPart::AttentionOutput,
            "model.layers.{}.self_attn.dense",
        ),
        (DecoderPart::Up, "model.layers.{}.mlp.fc1"),
        (DecoderPart::Down, "model.layers.{}.mlp.fc2"),
        (DecoderPart::FinalNorm, "model.final_layernorm"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    eps: "layer_norm_eps",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = ResidualOrder::Parallel;
        spec.feed_forward = FeedForward::Plain(FfnActivation::GeluTanh);
        (spec.biases.qkv, spec.biases.output) = (true, true);
        (spec.biases.mlp, spec.biases.head) = (true, true);
        spec.rope_dims = spec.head_dim / 2;
    },
    json: |fields, _| {
        fields.only("qk_layernorm", "false", |v| v.as_bool() == Some(false))?;
        fields.only("embd_pdrop", "a number", |v| v.is_number())
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const PHI3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "phi3",
    architecture: "phi3",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    yarn_is_longrope: true,
    defaults: |spec| (spec.storage.fused_qkv, spec.storage.fused_gate_up) = (true, true),
    json: |fields, spec| {
        fields.only("attention_bias", "false", |v| v.as_bool() == Some(false))?;
        windows(fields, spec, |_| true)
    },
    keys: window_of_all,
    ..LLAMA
};
