//! OLMo 2 (2024): norms after each half, and norms of all queries and of all keys together.

use super::llama::LLAMA;
use super::{FamilyRow, no_keys};
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::{NormPlacement, QkNorm, RopeLayout};

pub(super) const OLMO2: FamilyRow = FamilyRow {
    model_type: "olmo2",
    architecture: "olmo2",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| {
        spec.placement = NormPlacement::After;
        spec.qk_norm = Some(QkNorm::Whole);
    },
    json: llama_biases,
    keys: no_keys,
    ..LLAMA
};
