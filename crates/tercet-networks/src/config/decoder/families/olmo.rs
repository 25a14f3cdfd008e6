//! OLMo 2 (2024): post-norm layers, and norms over all query heads and all key heads together.

use super::llama::LLAMA;
use super::{DecoderFamilyRow, no_keys};
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::{NormPlacement, QkNorm, RopeLayout};

pub(super) const OLMO2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "olmo2",
    architecture: "olmo2",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| {
        spec.placement = NormPlacement::After;
        spec.attention.qk_norm = Some(QkNorm::AllHeads);
    },
    json: llama_biases,
    keys: no_keys,
    ..LLAMA
};
