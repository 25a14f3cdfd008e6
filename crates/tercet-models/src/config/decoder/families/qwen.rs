//! Qwen 2 (biases of queries, keys and values) and Qwen 3 (norms of the heads of queries and keys).

use super::llama::LLAMA;
use super::{FamilyRow, no_keys};
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::{ConfigError, DecoderSpec, Fields, QkNorm, RopeLayout};

pub(super) const QWEN2: FamilyRow = FamilyRow {
    model_type: "qwen2",
    architecture: "qwen2",
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.qkv_bias = true,
    json: windows_from,
    keys: no_keys,
    ..LLAMA
};

pub(super) const QWEN3: FamilyRow = FamilyRow {
    model_type: "qwen3",
    architecture: "qwen3",
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.qk_norm = Some(QkNorm::Heads),
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        windows_from(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

/// Layers from `max_window_layers` on have the window, where `use_sliding_window` says so.
fn windows_from(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let first = fields.get("max_window_layers").and_then(|v| v.as_u64());
    if fields.opt_bool("use_sliding_window")?.unwrap_or(false) {
        let first = first.unwrap_or(0);
        return windows(fields, spec, |i| i as u64 >= first);
    }
    // Without it the window has no part in the result.
    fields.only("sliding_window", "a number", |v| v.is_u64())?;
    let full = |v: &serde_json::Value| v.as_str() == Some("full_attention");
    fields.only(
        "layer_types",
        "full_attention (use_sliding_window is false)",
        |v| v.as_array().is_some_and(|a| a.iter().all(full)),
    )
}
