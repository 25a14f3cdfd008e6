//! StableLM 2: layer norms and partial rotary embedding.

use super::DecoderFamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::{NormKind, ResidualOrder, RopeLayout};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&STABLELM];

pub(super) const STABLELM: DecoderFamilyRow = DecoderFamilyRow {
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
        spec.biases.qkv = fields.opt_bool("use_qkv_bias")?.unwrap_or(false);
        if fields.opt_bool("use_parallel_residual")?.unwrap_or(false) {
            spec.residual = ResidualOrder::Parallel;
        }
        Ok(())
    },
    keys: |keys, spec| {
        if keys.opt_bool("use_parallel_residual")?.unwrap_or(false) && !has_ffn_norm(keys.gguf) {
            spec.residual = ResidualOrder::Parallel;
        }
        Ok(())
    },
    ..LLAMA
};

/// Whether layers have a second norm. Layers with a second norm are serial even if the converter
/// wrote `use_parallel_residual`.
fn has_ffn_norm(gguf: &tercet_files::gguf::Gguf) -> bool {
    gguf.has_tensor("blk.0.ffn_norm.weight")
}
