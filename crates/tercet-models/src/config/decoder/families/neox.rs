//! GPT-NeoX (Black and others, "GPT-NeoX-20B", 2022) and Pythia: halves of a layer side by side, each with a layer norm
//! of its own, a part of each head rotated, one projection for Q, K and V. Folders have its rows by head; GGUF files have
//! those of all heads' Q, then K, then V.

use super::FamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::{Activation, FeedForward, NormKind, Part, Residual, RopeLayout};
use crate::config::ensure;

pub(super) const GPT_NEOX: FamilyRow = FamilyRow {
    model_type: "gpt_neox",
    architecture: "gptneox",
    normalizes_experts: None,
    names: &[
        (Part::Embedding, "gpt_neox.embed_in"),
        (Part::AttentionNorm, "gpt_neox.layers.{}.input_layernorm"),
        (Part::Qkv, "gpt_neox.layers.{}.attention.query_key_value"),
        (Part::AttentionOutput, "gpt_neox.layers.{}.attention.dense"),
        (Part::FfnNorm, "gpt_neox.layers.{}.post_attention_layernorm"),
        (Part::Up, "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
        (Part::Down, "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
        (Part::FinalNorm, "gpt_neox.final_layer_norm"),
        (Part::Output, "embed_out"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    qkv_by_group_in_folders: true,
    // The causal mask.
    derived: &[".attention.bias", ".attention.masked_bias"],
    eps: "layer_norm_eps",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = Residual::ParallelNorms;
        spec.feed_forward = FeedForward::Plain(Activation::Gelu);
        (spec.fused_qkv, spec.mlp_bias) = (true, true);
        spec.rope_dims = spec.head_dim / 4;
    },
    json: |fields, spec| {
        let bias = fields.opt_bool("attention_bias")?.unwrap_or(true);
        (spec.qkv_bias, spec.output_bias) = (bias, bias);
        if !fields.opt_bool("use_parallel_residual")?.unwrap_or(true) {
            spec.residual = Residual::Serial;
        }
        // What files had before `rope_parameters`; where both are there they must agree.
        let stated = fields.get("rope_parameters").is_some();
        if let Some(theta) = fields.opt_positive("rotary_emb_base")? {
            let found = spec.ropes[0].theta;
            ensure(!stated || theta == found, || {
                format!("rotary_emb_base is {theta}, but rope_parameters.rope_theta is {found}")
            })?;
            spec.ropes[0].theta = theta;
        }
        if let Some(part) = fields.opt_positive("rotary_pct")? {
            ensure(part <= 1.0, || {
                format!("rotary_pct is {part}; expected at most 1")
            })?;
            let dims = (spec.head_dim as f64 * part) as usize;
            ensure(!stated || dims == spec.rope_dims, || {
                format!("rotary_pct is {part}, which rope_parameters.partial_rotary_factor is not")
            })?;
            spec.rope_dims = dims;
        }
        Ok(())
    },
    keys: |keys, spec| {
        if !keys.opt_bool("use_parallel_residual")?.unwrap_or(true) {
            spec.residual = Residual::Serial;
        }
        Ok(())
    },
    ..LLAMA
};
