//! Qwen 2 (QKV biases) and Qwen 3 (QK norms), dense and with experts.

use serde_json::Value;

use super::llama::{LLAMA, check_training_fields};
use super::{DecoderFamilyRow, no_keys};
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderSpec, Experts, QkNorm, RopeLayout, SharedExpert,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&QWEN2, &QWEN3, &QWEN2_MOE, &QWEN3_MOE];

pub(super) const QWEN2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen2",
    architecture: "qwen2",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.biases.qkv = true,
    json: windows_from,
    keys: no_keys,
    ..LLAMA
};

pub(super) const QWEN3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen3",
    architecture: "qwen3",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| spec.attention.qk_norm = Some(QkNorm::Heads),
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        windows_from(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

pub(super) const QWEN2_MOE: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen2_moe",
    architecture: "qwen2moe",
    normalizes_experts: Some(false),
    json: |fields, spec| {
        spec.biases.qkv = fields.flag_set_unless_off("qkv_bias")?;
        let shared = Some(fields.size("shared_expert_intermediate_size")?);
        experts_from(fields, spec, shared)?;
        windows_from(fields, spec)
    },
    ..QWEN2
};

pub(super) const QWEN3_MOE: DecoderFamilyRow = DecoderFamilyRow {
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

/// Reads the experts: every `decoder_sparse_step`th layer has some, except those in
/// `mlp_only_layers`.
pub(super) fn experts_from(
    fields: &ConfigFields<'_>,
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
    // Files on the Hub have `num_experts`; current transformers writes `num_local_experts`.
    let local = fields.stated_size("num_local_experts")?;
    let count = match (fields.opt_size("num_experts")?, local) {
        (Some(count), Some(local)) if count != local => {
            let reason = format!(
                "`num_experts` is {count}, but `num_local_experts`, its other name, is {local}"
            );
            return Err(ConfigError::Inconsistent { reason });
        }
        (Some(count), _) | (None, Some(count)) => count,
        (None, None) => fields.size("num_experts")?,
    };
    let used = fields.size_or_default("num_experts_per_tok")?;
    let ffn = fields.size("moe_intermediate_size")?;
    let normalized = fields.opt_bool("norm_topk_prob")?.unwrap_or(false);
    let experts = Experts {
        shared: shared.map(|ffn| SharedExpert {
            scored: true,
            ..SharedExpert::new(ffn)
        }),
        ..Experts::new([count, used, ffn], normalized)
    };
    spec.set_experts(experts, |i| {
        !dense.contains(&(i as u64)) && (i + 1).is_multiple_of(step)
    });
    check_training_fields(fields)
}

/// Reads the window, which applies to layers from `max_window_layers` on if `use_sliding_window` is
/// true.
fn windows_from(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    // Families whose class has no `max_window_layers` have the window in all layers.
    let default = fields
        .class_default("max_window_layers")
        .and_then(Value::as_u64);
    let first = fields.get("max_window_layers").and_then(Value::as_u64);
    if fields.opt_bool("use_sliding_window")?.unwrap_or(false) {
        let first = default.map_or(0, |default| first.unwrap_or(default));
        let is_off = !fields.has_value("sliding_window");
        // In the reference implementation of Qwen2-MoE, layers with and without a window alternate.
        let alternates = spec.family.model_type() == QWEN2_MOE.model_type;
        return windows(fields, spec, |i| match alternates {
            true => i.is_multiple_of(2) && (i as u64) < first,
            false => i as u64 >= first && !is_off,
        });
    }
    // The window has no effect if `use_sliding_window` is false.
    fields.only("sliding_window", "a number", Value::is_number)?;
    let full = |v: &Value| v.as_str() == Some("full_attention");
    fields.only(
        "layer_types",
        "full_attention (use_sliding_window is false)",
        |v| v.as_array().is_some_and(|a| a.iter().all(full)),
    )
}
