//! GPT-NeoX (Black and others, "GPT-NeoX-20B", 2022) and Pythia: parallel layers with two layer
//! norms, partial rotary embedding, and a fused QKV projection. Folders group the rows of the
//! projection by head. GGUF files store all Q rows, then all K rows, then all V rows.

use super::DecoderFamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::{
    DecoderPart, FeedForward, FfnActivation, NormKind, ResidualOrder, RopeLayout,
};
use crate::config::ensure;

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&GPT_NEOX];

pub(super) const GPT_NEOX: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gpt_neox",
    architecture: "gptneox",
    normalizes_experts: None,
    names: &[
        (DecoderPart::Embedding, "gpt_neox.embed_in"),
        (
            DecoderPart::AttentionNorm,
            "gpt_neox.layers.{}.input_layernorm",
        ),
        (
            DecoderPart::Qkv,
            "gpt_neox.layers.{}.attention.query_key_value",
        ),
        (
            DecoderPart::AttentionOutput,
            "gpt_neox.layers.{}.attention.dense",
        ),
        (
            DecoderPart::FfnNorm,
            "gpt_neox.layers.{}.post_attention_layernorm",
        ),
        (DecoderPart::Up, "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
        (DecoderPart::Down, "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
        (DecoderPart::FinalNorm, "gpt_neox.final_layer_norm"),
        (DecoderPart::Output, "embed_out"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    qkv_by_group_in_folders: true,
    // The causal mask.
    derived: &[".attention.bias", ".attention.masked_bias"],
    eps: "layer_norm_eps",
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = ResidualOrder::ParallelNorms;
        spec.feed_forward = FeedForward::Plain(FfnActivation::Gelu);
        (spec.storage.fused_qkv, spec.biases.mlp) = (true, true);
        spec.rope_dims = spec.head_dim / 4;
    },
    json: |fields, spec| {
        let bias = fields.flag_set_unless_off("attention_bias")?;
        (spec.biases.qkv, spec.biases.output) = (bias, bias);
        if !fields.flag_set_unless_off("use_parallel_residual")? {
            spec.residual = ResidualOrder::Serial;
        }
        // `rotary_emb_base` is the older field; it must agree with `rope_parameters` if both are
        // present.
        let stated = fields.get("rope_parameters").is_some();
        if let Some(theta) = fields.stated_positive("rotary_emb_base")? {
            let found = spec.ropes[0].theta;
            ensure(!stated || theta == found, || {
                format!("rotary_emb_base is {theta}, but rope_parameters.rope_theta is {found}")
            })?;
            spec.ropes[0].theta = theta;
        }
        if let Some(part) = fields.stated_positive("rotary_pct")? {
            ensure(part <= 1.0, || {
                format!("rotary_pct is {part}; expected at most 1")
            })?;
            let dims = (spec.head_dim as f64 * part) as usize;
            ensure(!stated || dims == spec.rope_dims, || {
                format!("rotary_pct is {part}, but rope_parameters.partial_rotary_factor differs")
            })?;
            spec.rope_dims = dims;
        }
        Ok(())
    },
    keys: |keys, spec| {
        if !keys.opt_bool("use_parallel_residual")?.unwrap_or(true) {
            spec.residual = ResidualOrder::Serial;
        }
        Ok(())
    },
    ..LLAMA
};
