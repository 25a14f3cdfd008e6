//! GPT-2 (Radford and others, "Language Models are Unsupervised Multitask Learners", 2019): learned
//! position embeddings, and layer norms and biases throughout. Folders store projections as
//! `[inputs, outputs]`.

use super::llama::LLAMA;
use super::{DecoderFamilyRow, DecoderSizeKeys};
use crate::config::decoder::{
    DecoderPart, DecoderSpec, FeedForward, FfnActivation, NormKind, TokenPositions,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&GPT2];

pub(super) const GPT2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gpt2",
    architecture: "gpt2",
    sizes: DecoderSizeKeys {
        hidden: &["n_embd"],
        layers: &["n_layer"],
        heads: &["n_head"],
        ffn: &["n_inner"],
        ffn_is_derived: true,
        context: &["n_positions"],
        typical_context: None,
    },
    names: &[
        (DecoderPart::Embedding, "transformer.wte"),
        (DecoderPart::Positions, "transformer.wpe"),
        (DecoderPart::AttentionNorm, "transformer.h.{}.ln_1"),
        (DecoderPart::Qkv, "transformer.h.{}.attn.c_attn"),
        (DecoderPart::AttentionOutput, "transformer.h.{}.attn.c_proj"),
        (DecoderPart::FfnNorm, "transformer.h.{}.ln_2"),
        (DecoderPart::Up, "transformer.h.{}.mlp.c_fc"),
        (DecoderPart::Down, "transformer.h.{}.mlp.c_proj"),
        (DecoderPart::FinalNorm, "transformer.ln_f"),
    ],
    prefix: "transformer.",
    // The causal mask.
    derived: &[".attn.bias", ".attn.masked_bias"],
    transposed: &["c_attn", "c_proj", "c_fc"],
    eps: "layer_norm_epsilon",
    activations: &["activation_function"],
    normalizes_experts: None,
    defaults: |spec| {
        (spec.norm.kind, spec.norm.bias) = (NormKind::Layer, true);
        spec.feed_forward = FeedForward::Plain(FfnActivation::GeluTanh);
        (spec.biases.qkv, spec.biases.output, spec.biases.mlp) = (true, true, true);
        (spec.storage.fused_qkv, spec.tied_embeddings) = (true, true);
        spec.positions = TokenPositions::Learned;
    },
    json: |fields, spec| {
        let is = |wanted: bool| move |v: &serde_json::Value| v.as_bool() == Some(wanted);
        fields.only("scale_attn_weights", "true", is(true))?;
        fields.only("scale_attn_by_inverse_layer_idx", "false", is(false))?;
        fields.only("add_cross_attention", "false", is(false))?;
        // `reorder_and_upcast_attn` only changes how F16 attention is computed.
        fields.only("reorder_and_upcast_attn", "true or false", |v| {
            v.is_boolean()
        })?;
        // The class does not read this older name.
        if fields
            .opt_size("n_ctx")?
            .is_some_and(|context| context != spec.context)
        {
            fields.note("n_ctx");
        }
        fields.only("attn_pdrop", "a number", |v| v.is_number())?;
        for name in OF_TASKS {
            fields.get(name);
        }
        rotates_nothing(spec);
        Ok(())
    },
    keys: |_, spec| {
        rotates_nothing(spec);
        Ok(())
    },
    ..LLAMA
};

/// Fields of heads for other tasks.
const OF_TASKS: [&str; 6] = [
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
];

fn rotates_nothing(spec: &mut DecoderSpec) {
    spec.ropes.clear();
    spec.rope_dims = 0;
    for layer in &mut spec.layers {
        layer.rope = None;
    }
}
