//! StarCoder 2 (2024): layer norms and biases, an ungated feed-forward network, and one window for
//! all layers.

use super::llama::LLAMA;
use super::{DecoderFamilyRow, no_keys};
use crate::config::decoder::json::windows;
use crate::config::decoder::{DecoderPart, FeedForward, FfnActivation, NormKind, RopeLayout};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&STARCODER2];

pub(super) const STARCODER2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "starcoder2",
    architecture: "starcoder2",
    normalizes_experts: None,
    names: &[
        (DecoderPart::Up, "model.layers.{}.mlp.c_fc"),
        (DecoderPart::Down, "model.layers.{}.mlp.c_proj"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    eps: "norm_epsilon",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.feed_forward = FeedForward::Plain(FfnActivation::GeluTanh);
        spec.tied_embeddings = true;
    },
    json: |fields, spec| {
        fields.only("norm_type", "layer_norm", |v| {
            v.as_str() == Some("layer_norm")
        })?;
        fields.only("mlp_type", "default", |v| v.as_str() == Some("default"))?;
        let bias = fields.flag_set_unless_off("use_bias")?;
        (spec.biases.qkv, spec.biases.output, spec.biases.mlp) = (bias, bias, bias);
        fields.only("embedding_dropout", "a number", |v| v.is_number())?;
        fields.only("residual_dropout", "a number", |v| v.is_number())?;
        windows(fields, spec, |_| true)
    },
    keys: no_keys,
    ..LLAMA
};
