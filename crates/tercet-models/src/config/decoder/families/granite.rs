//! Granite: llama with factors of embeddings, residuals, scores and logits.

use super::FamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::json::llama_biases;

pub(super) const GRANITE: FamilyRow = FamilyRow {
    model_type: "granite",
    architecture: "granite",
    normalizes_experts: None,
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        let factor = |name| fields.opt_positive(name);
        spec.embedding_scale = factor("embedding_multiplier")?.unwrap_or(1.0) as f32;
        spec.residual_scale = factor("residual_multiplier")?.unwrap_or(1.0) as f32;
        spec.attention_scale = Some(factor("attention_multiplier")?.unwrap_or(1.0));
        spec.logit_scale = 1.0 / factor("logits_scaling")?.unwrap_or(1.0) as f32;
        Ok(())
    },
    keys: |keys, spec| {
        spec.embedding_scale = keys.opt_factor("embedding_scale")?.unwrap_or(1.0);
        spec.residual_scale = keys.opt_factor("residual_scale")?.unwrap_or(1.0);
        spec.attention_scale = keys.opt_factor("attention.scale")?.map(f64::from);
        spec.logit_scale = 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0);
        Ok(())
    },
    ..LLAMA
};
