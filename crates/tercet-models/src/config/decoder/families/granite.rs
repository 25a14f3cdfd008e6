//! Granite: llama with factors of embeddings, residuals, scores and logits; with experts too, of which all tokens go through
//! one where it is called shared.

use super::FamilyRow;
use super::llama::{LLAMA, of_training};
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::keys::Keys;
use crate::config::decoder::{
    ConfigError, DecoderSpec, ExpertTensors, Experts, Fields, Part, Shared,
};

pub(super) const GRANITE: FamilyRow = FamilyRow {
    model_type: "granite",
    architecture: "granite",
    normalizes_experts: None,
    json: factors,
    keys: factors_of_gguf,
    ..LLAMA
};

pub(super) const GRANITE_MOE: FamilyRow = FamilyRow {
    model_type: "granitemoe",
    architecture: "granitemoe",
    names: &[
        (
            Part::Router,
            "model.layers.{}.block_sparse_moe.router.layer",
        ),
        (
            Part::ExpertGateUp,
            "model.layers.{}.block_sparse_moe.input_linear",
        ),
        (
            Part::ExpertDown,
            "model.layers.{}.block_sparse_moe.output_linear",
        ),
        (Part::SharedDown, "model.layers.{}.shared_mlp.output_linear"),
    ],
    normalizes_experts: Some(true),
    json: |fields, spec| {
        factors(fields, spec)?;
        experts(fields, spec, None)
    },
    ..GRANITE
};

pub(super) const GRANITE_MOE_SHARED: FamilyRow = FamilyRow {
    model_type: "granitemoeshared",
    json: |fields, spec| {
        factors(fields, spec)?;
        // 0 is none.
        let width = fields.get("shared_intermediate_size");
        let shared = match width.and_then(serde_json::Value::as_u64) {
            Some(0) => None,
            _ => fields.opt_size("shared_intermediate_size")?,
        };
        experts(fields, spec, shared)
    },
    ..GRANITE_MOE
};

fn factors(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    llama_biases(fields, spec)?;
    let factor = |name| fields.opt_positive(name);
    spec.embedding_scale = factor("embedding_multiplier")?.unwrap_or(1.0) as f32;
    spec.residual_scale = factor("residual_multiplier")?.unwrap_or(1.0) as f32;
    spec.attention_scale = Some(factor("attention_multiplier")?.unwrap_or(1.0));
    spec.logit_scale = 1.0 / factor("logits_scaling")?.unwrap_or(1.0) as f32;
    Ok(())
}

fn factors_of_gguf(keys: &Keys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    spec.embedding_scale = keys.opt_factor("embedding_scale")?.unwrap_or(1.0);
    spec.residual_scale = keys.opt_factor("residual_scale")?.unwrap_or(1.0);
    spec.attention_scale = keys.opt_factor("attention.scale")?.map(f64::from);
    spec.logit_scale = 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

fn experts(
    fields: &Fields<'_>,
    spec: &mut DecoderSpec,
    shared: Option<usize>,
) -> Result<(), ConfigError> {
    let count = fields.size("num_local_experts")?;
    let used = fields.size("num_experts_per_tok")?;
    let experts = Experts {
        stored: ExpertTensors::GateThenUp,
        shared: shared.map(|ffn| Shared { ffn, scored: false }),
        ..Experts::new([count, used, spec.ffn], true)
    };
    spec.set_experts(experts, |_| true);
    of_training(fields)
}
