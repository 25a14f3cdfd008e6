//! StableLM 2: layer norms, a part of each head rotated.

use super::FamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::{NormKind, Residual, RopeLayout};

pub(super) const STABLELM: FamilyRow = FamilyRow {
    model_type: "stablelm",
    architecture: "stablelm",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    eps: "layer_norm_eps",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.rope_dims = spec.head_dim / 4;
    },
    json: |fields, spec| {
        fields.only("qk_layernorm", "false", |v| v.as_bool() == Some(false))?;
        spec.qkv_bias = fields.opt_bool("use_qkv_bias")?.unwrap_or(false);
        if fields.opt_bool("use_parallel_residual")?.unwrap_or(false) {
            spec.residual = Residual::Parallel;
        }
        Ok(())
    },
    keys: |keys, spec| {
        if keys.opt_bool("use_parallel_residual")?.unwrap_or(false) && !has_ffn_norm(keys.gguf) {
            spec.residual = Residual::Parallel;
        }
        Ok(())
    },
    ..LLAMA
};

/// Converters write that residuals are parallel where they are not, too: a norm of its own says that they follow.
fn has_ffn_norm(gguf: &crate::gguf::Gguf) -> bool {
    gguf.has_tensor("blk.0.ffn_norm.weight")
}
