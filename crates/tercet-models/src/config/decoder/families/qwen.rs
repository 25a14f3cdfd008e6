//! Qwen 2 (biases of queries, keys and values) and Qwen 3 (norms of the heads of queries and keys), with experts, too.

use super::llama::{LLAMA, of_training};
use super::{FamilyRow, no_keys};
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::{
    ConfigError, DecoderSpec, Experts, Fields, QkNorm, RopeLayout, Shared,
};

pub(super) const QWEN2: FamilyRow = FamilyRow {
    model_type: "qwen2",
    architecture: "qwen2",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.qkv_bias = true,
    json: windows_from,
    keys: no_keys,
    ..LLAMA
};

pub(super) const QWEN3: FamilyRow = FamilyRow {
    model_type: "qwen3",
    architecture: "qwen3",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.qk_norm = Some(QkNorm::Heads),
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        windows_from(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const QWEN2_MOE: FamilyRow = FamilyRow {
    model_type: "qwen2_moe",
    architecture: "qwen2moe",
    normalizes_experts: Some(false),
    json: |fields, spec| {
        spec.qkv_bias = fields.opt_bool("qkv_bias")?.unwrap_or(true);
        let shared = Some(fields.size("shared_expert_intermediate_size")?);
        experts_from(fields, spec, shared)?;
        windows_from(fields, spec)
    },
    ..QWEN2
};

pub(super) const QWEN3_MOE: FamilyRow = FamilyRow {
    model_type: "qwen3_moe",
    architecture: "qwen3moe",
    normalizes_experts: Some(true),
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        experts_from(fields, spec, None)?;
        windows_from(fields, spec)
    },
    ..QWEN3
};

/// Every `decoder_sparse_step`th layer has experts but for those of `mlp_only_layers`.
pub(super) fn experts_from(
    fields: &Fields<'_>,
    spec: &mut DecoderSpec,
    shared: Option<usize>,
) -> Result<(), ConfigError> {
    let mut dense = Vec::new();
    fields.only("mlp_only_layers", "a list of layers", |v| {
        let all = v.as_array();
        let all: Option<Vec<u64>> = all.and_then(|a| a.iter().map(|x| x.as_u64()).collect());
        dense = all.clone().unwrap_or_default();
        all.is_some()
    })?;
    let step = fields.opt_size("decoder_sparse_step")?.unwrap_or(1);
    // The library writes the second name, hubs have the first.
    let count = match fields.opt_size("num_experts")? {
        Some(count) => count,
        None => fields.size("num_local_experts")?,
    };
    let used = fields.size("num_experts_per_tok")?;
    let ffn = fields.size("moe_intermediate_size")?;
    let normalized = fields.opt_bool("norm_topk_prob")?.unwrap_or(false);
    let experts = Experts {
        shared: shared.map(|ffn| Shared {
            scored: true,
            ..Shared::new(ffn)
        }),
        ..Experts::new([count, used, ffn], normalized)
    };
    spec.set_experts(experts, |i| {
        !dense.contains(&(i as u64)) && (i + 1).is_multiple_of(step)
    });
    of_training(fields)
}

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
