//! gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025): experts in MXFP4 with biases
//! and clamped gates, attention sinks, a window in every other layer, and YaRN.

use super::DecoderFamilyRow;
use super::llama::{LLAMA, check_training_fields};
use crate::config::decoder::json::windows;
use crate::config::decoder::{
    DecoderPart, DecoderSpec, ExpertTensors, Experts, RopeLayout, RopeScaling,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&GPT_OSS];

/// The default clamp of gates.
const CLAMP: f32 = 7.0;

pub(super) const GPT_OSS: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "gpt_oss",
    architecture: "gpt-oss",
    names: &[
        (DecoderPart::Router, "model.layers.{}.mlp.router"),
        (
            DecoderPart::ExpertDown,
            "model.layers.{}.mlp.experts.down_proj=",
        ),
    ],
    names_of_gguf: |_| &[(DecoderPart::FfnNorm, "blk.{}.post_attention_norm")],
    quantized: Some("mxfp4"),
    rope_in_gguf: RopeLayout::Halves,
    normalizes_experts: Some(true),
    // The reference implementation does not read `hidden_act`.
    activations: &[],
    defaults: |spec| {
        (spec.biases.qkv, spec.biases.output, spec.attention.sinks) = (true, true, true);
        spec.ropes[0].theta = 150_000.0;
    },
    json: |fields, spec| {
        let bias = fields.flag_set_unless_off("attention_bias")?;
        (spec.biases.qkv, spec.biases.output) = (bias, bias);
        let count = fields.size_or_default("num_local_experts")?;
        let used = fields.size_or_default("num_experts_per_tok")?;
        // An alias of `num_experts_per_tok`.
        fields.only("experts_per_token", "num_experts_per_tok", |v| {
            v.as_u64() == Some(used as u64)
        })?;
        fields.only("swiglu_alpha", "1.702", |v| v.as_f64() == Some(1.702))?;
        let clamp = fields.opt_positive("swiglu_limit")?;
        let experts = Experts {
            bias: true,
            clamp: Some(clamp.map_or(CLAMP, |clamp| clamp as f32)),
            stored: ExpertTensors::TransposedPairs,
            ..Experts::new([count, used, spec.ffn], true)
        };
        spec.set_experts(experts, |_| true);
        // A duplicate of `original_max_position_embeddings` in the RoPE scaling.
        fields.opt_size("initial_context_length")?;
        check_training_fields(fields)?;
        windows(fields, spec, |i| i % 2 == 0)
    },
    keys: |keys, spec| {
        if let Some(experts) = &mut spec.experts {
            experts.clamp = Some(CLAMP);
        }
        frequencies_are_not_rounded(spec);
        let window = keys.size("attention.sliding_window")?;
        spec.set_windows(window, |i| i % 2 == 0);
        Ok(())
    },
    ..LLAMA
};

/// Sets YaRN's interpolation bounds to be unrounded, as this model requires; GGUF files do not
/// store it.
fn frequencies_are_not_rounded(spec: &mut DecoderSpec) {
    for rope in &mut spec.ropes {
        if let RopeScaling::Yarn { truncate, .. } = &mut rope.scaling {
            *truncate = false;
        }
    }
}
