//! Falcon (Almazrouei and others, "The Falcon Series of Open Language Models", 2023): halves of a layer side by side, with one
//! norm (7B) or two (40B and above), one projection for Q, K and V. Folders have its rows by key head; GGUF files have those
//! of all heads' Q, then K, then V.

use super::llama::LLAMA;
use super::{FamilyRow, Sizes};
use crate::config::decoder::part::Names;
use crate::config::decoder::{
    Activation, ConfigError, DecoderSpec, FeedForward, Fields, NormKind, Part, Residual, RopeLayout,
};

pub(super) const FALCON: FamilyRow = FamilyRow {
    model_type: "falcon",
    architecture: "falcon",
    sizes: Sizes {
        hidden: &["hidden_size", "n_embed"],
        layers: &["num_hidden_layers", "n_layer"],
        heads: &["num_attention_heads", "n_head"],
        ffn: &["ffn_hidden_size"],
        ffn_is_derived: true,
        context: &["max_position_embeddings"],
        typical_context: Some(2048),
    },
    names: &[
        (Part::Embedding, "transformer.word_embeddings"),
        (Part::AttentionNorm, "transformer.h.{}.input_layernorm"),
        (Part::Qkv, "transformer.h.{}.self_attention.query_key_value"),
        (
            Part::AttentionOutput,
            "transformer.h.{}.self_attention.dense",
        ),
        (Part::FfnNorm, "transformer.h.{}.post_attention_layernorm"),
        (Part::Up, "transformer.h.{}.mlp.dense_h_to_4h"),
        (Part::Down, "transformer.h.{}.mlp.dense_4h_to_h"),
        (Part::FinalNorm, "transformer.ln_f"),
    ],
    names_of: |spec| of_two_norms(spec, &TWO_NORMS),
    names_of_gguf: |spec| of_two_norms(spec, &TWO_NORMS_OF_GGUF),
    rope_in_gguf: RopeLayout::Halves,
    qkv_by_group_in_folders: true,
    eps: "layer_norm_epsilon",
    activations: &["activation"],
    normalizes_experts: None,
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = Residual::Parallel;
        spec.feed_forward = FeedForward::Plain(Activation::Gelu);
        (spec.fused_qkv, spec.tied_embeddings) = (true, true);
    },
    json: own,
    keys: |keys, spec| {
        if keys.gguf.has_tensor("blk.0.attn_norm_2.weight") {
            spec.residual = Residual::ParallelNorms;
        }
        Ok(())
    },
    ..LLAMA
};

const TWO_NORMS: [(Part, &str); 2] = [
    (Part::AttentionNorm, "transformer.h.{}.ln_attn"),
    (Part::FfnNorm, "transformer.h.{}.ln_mlp"),
];

/// The norm of the feed-forward network is the first one there.
const TWO_NORMS_OF_GGUF: [(Part, &str); 2] = [
    (Part::AttentionNorm, "blk.{}.attn_norm_2"),
    (Part::FfnNorm, "blk.{}.attn_norm"),
];

fn of_two_norms(spec: &DecoderSpec, names: Names) -> Names {
    match spec.residual {
        Residual::ParallelNorms => names,
        Residual::Serial | Residual::Parallel => &[],
    }
}

fn own(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let is_false = |v: &serde_json::Value| v.as_bool() == Some(false);
    fields.only("alibi", "false", is_false)?;
    fields.only(
        "apply_residual_connection_post_layernorm",
        "false",
        is_false,
    )?;
    let bias = fields.opt_bool("bias")?.unwrap_or(false);
    (spec.qkv_bias, spec.output_bias, spec.mlp_bias) = (bias, bias, bias);
    let grouped = fields
        .opt_bool("new_decoder_architecture")?
        .unwrap_or(false);
    let one_key_head = fields.opt_bool("multi_query")?.unwrap_or(true);
    let parallel = fields.opt_bool("parallel_attn")?.unwrap_or(true);
    let kv_heads = fields.opt_size("num_kv_heads")?.unwrap_or(spec.heads);
    spec.kv_heads = match (grouped, one_key_head) {
        (true, _) => kv_heads,
        (false, true) => 1,
        (false, false) => spec.heads,
    };
    let mut norms = 2;
    fields.only("num_ln_in_parallel_attn", "1 or 2", |v| {
        norms = v.as_u64().unwrap_or(0);
        matches!(norms, 1 | 2)
    })?;
    spec.residual = match (grouped, parallel) {
        (true, true) if norms == 2 => Residual::ParallelNorms,
        (_, true) => Residual::Parallel,
        (false, false) => Residual::Serial,
        (true, false) => {
            let supported = "true with new_decoder_architecture";
            fields.only("parallel_attn", supported, |_| false)?;
            Residual::Parallel
        }
    };
    Ok(())
}
