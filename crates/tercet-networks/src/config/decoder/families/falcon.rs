//! Falcon (Almazrouei and others, "The Falcon Series of Open Language Models", 2023): parallel
//! layers with one norm (7B) or two (40B and above), and a fused QKV projection. Folders group the
//! rows of the projection by key head. GGUF files store all Q rows, then all K rows, then all V
//! rows.

use super::llama::LLAMA;
use super::{DecoderFamilyRow, DecoderSizeKeys};
use crate::config::decoder::part::DecoderPartNames;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, FeedForward, FfnActivation, NormKind,
    ResidualOrder, RopeLayout,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&FALCON];

pub(super) const FALCON: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "falcon",
    architecture: "falcon",
    sizes: DecoderSizeKeys {
        hidden: &["hidden_size", "n_embed"],
        layers: &["num_hidden_layers", "n_layer"],
        heads: &["num_attention_heads", "n_head"],
        ffn: &["ffn_hidden_size"],
        ffn_is_derived: true,
        context: &["max_position_embeddings"],
        typical_context: Some(2048),
    },
    names: &[
        (DecoderPart::Embedding, "transformer.word_embeddings"),
        (
            DecoderPart::AttentionNorm,
            "transformer.h.{}.input_layernorm",
        ),
        (
            DecoderPart::Qkv,
            "transformer.h.{}.self_attention.query_key_value",
        ),
        (
            DecoderPart::AttentionOutput,
            "transformer.h.{}.self_attention.dense",
        ),
        (
            DecoderPart::FfnNorm,
            "transformer.h.{}.post_attention_layernorm",
        ),
        (DecoderPart::Up, "transformer.h.{}.mlp.dense_h_to_4h"),
        (DecoderPart::Down, "transformer.h.{}.mlp.dense_4h_to_h"),
        (DecoderPart::FinalNorm, "transformer.ln_f"),
    ],
    names_of: |spec| two_norm_names(spec, &TWO_NORMS),
    names_of_gguf: |spec| two_norm_names(spec, &TWO_NORMS_OF_GGUF),
    rope_in_gguf: RopeLayout::Halves,
    qkv_by_group_in_folders: true,
    eps: "layer_norm_epsilon",
    activations: &["activation"],
    normalizes_experts: None,
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.residual = ResidualOrder::Parallel;
        spec.feed_forward = FeedForward::Plain(FfnActivation::Gelu);
        (spec.storage.fused_qkv, spec.tied_embeddings) = (true, true);
    },
    json: own,
    keys: |keys, spec| {
        if keys.gguf.has_tensor("blk.0.attn_norm_2.weight") {
            spec.residual = ResidualOrder::ParallelNorms;
        }
        Ok(())
    },
    ..LLAMA
};

const TWO_NORMS: [(DecoderPart, &str); 2] = [
    (DecoderPart::AttentionNorm, "transformer.h.{}.ln_attn"),
    (DecoderPart::FfnNorm, "transformer.h.{}.ln_mlp"),
];

/// In these GGUF files `attn_norm` is the norm of the feed-forward network.
const TWO_NORMS_OF_GGUF: [(DecoderPart, &str); 2] = [
    (DecoderPart::AttentionNorm, "blk.{}.attn_norm_2"),
    (DecoderPart::FfnNorm, "blk.{}.attn_norm"),
];

fn two_norm_names(spec: &DecoderSpec, names: DecoderPartNames) -> DecoderPartNames {
    match spec.residual {
        ResidualOrder::ParallelNorms => names,
        ResidualOrder::Serial | ResidualOrder::Parallel => &[],
    }
}

fn own(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let is_false = |v: &serde_json::Value| v.as_bool() == Some(false);
    fields.only("alibi", "false", is_false)?;
    let bias = fields.opt_bool("bias")?.unwrap_or(false);
    (spec.biases.qkv, spec.biases.output, spec.biases.mlp) = (bias, bias, bias);
    let grouped = fields
        .opt_bool("new_decoder_architecture")?
        .unwrap_or(false);
    let one_key_head = fields.flag_set_unless_off("multi_query")?;
    let parallel = fields.flag_set_unless_off("parallel_attn")?;
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
        (true, true) if norms == 2 => ResidualOrder::ParallelNorms,
        (_, true) => ResidualOrder::Parallel,
        (false, false) => ResidualOrder::Serial,
        (true, false) => {
            let supported = "true with new_decoder_architecture";
            fields.only("parallel_attn", supported, |_| false)?;
            ResidualOrder::Parallel
        }
    };
    Ok(())
}
