//! Falcon-H1 (Zuo and others, "Falcon-H1", 2025): each layer has attention and a state-space scan
//! in parallel, and all projections have scale factors. GGUF files have the factors multiplied into
//! the weights.

use serde_json::Value;

use super::DecoderFamilyRow;
use super::llama::LLAMA;
use super::mamba::{check_training_fields, read_gguf_keys, step_range};
use crate::config::activation;
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, Mixer, Multipliers, RopeLayout, SsmSpec,
    StateKind, StateNorm, ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&FALCON_H1];

pub(super) const FALCON_H1: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "falcon_h1",
    architecture: "falcon-h1",
    names: &[
        (DecoderPart::FfnNorm, "model.layers.{}.pre_ff_layernorm"),
        (DecoderPart::Gate, "model.layers.{}.feed_forward.gate_proj"),
        (DecoderPart::Up, "model.layers.{}.feed_forward.up_proj"),
        (DecoderPart::Down, "model.layers.{}.feed_forward.down_proj"),
        (DecoderPart::StatesIn, "model.layers.{}.mamba.in_proj"),
        (DecoderPart::StatesConv, "model.layers.{}.mamba.conv1d"),
        (
            DecoderPart::StatesStepBias,
            "model.layers.{}.mamba.dt_bias=",
        ),
        (DecoderPart::StatesDecay, "model.layers.{}.mamba.A_log="),
        (DecoderPart::StatesSkip, "model.layers.{}.mamba.D="),
        (DecoderPart::StatesNorm, "model.layers.{}.mamba.norm"),
        (DecoderPart::StatesOut, "model.layers.{}.mamba.out_proj"),
        (DecoderPart::FinalNorm, "model.final_layernorm"),
    ],
    rope_in_gguf: RopeLayout::Halves,
    normalizes_experts: None,
    defaults: |spec| {
        for layer in &mut spec.layers {
            layer.mixer = Mixer::Both;
        }
    },
    json,
    keys,
    ..LLAMA
};

fn json(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    check_training_fields(fields)?;
    llama_biases(fields, spec)?;
    // The feed-forward network and the scan share `hidden_act`; only SiLU is supported.
    activation::only_silu(fields, "hidden_act")?;
    fields.only("mamba_use_mlp", "true", |v| v.as_bool() == Some(true))?;
    fields.only("attn_layer_indices", "null", |_| false)?;
    for name in [
        "mamba_chunk_size",
        "num_logits_to_keep",
        "mlp_expansion_factor",
    ] {
        fields.only(name, "a number", Value::is_number)?;
    }
    for name in ["layer_types", "layers_block_type"] {
        let hybrid = |v: &Value| v.as_str() == Some("hybrid");
        fields.only(name, "hybrid for each layer", |v| {
            v.as_array().is_some_and(|all| all.iter().all(hybrid))
        })?;
    }
    let expanded = fields.opt_size("mamba_expand")?.unwrap_or(2) * spec.hidden;
    let inner = fields.opt_size("mamba_d_ssm")?.unwrap_or(expanded);
    let heads = fields.size("mamba_n_heads")?;
    let each = match fields.get("mamba_d_head").and_then(Value::as_str) {
        Some("auto") => None,
        _ => fields.opt_size("mamba_d_head")?,
    };
    ensure(each.is_none_or(|each| each * heads == inner), || {
        format!("{heads} heads of mamba_d_head are not mamba_d_ssm, {inner}")
    })?;
    let before = fields.flag_set_unless_off("mamba_norm_before_gate")?;
    let norm = match fields.opt_bool("mamba_rms_norm")?.unwrap_or(false) {
        false => StateNorm::None,
        true if before => StateNorm::BeforeGate,
        true => StateNorm::AfterGate,
    };
    let bias = ["mamba_proj_bias", "projectors_bias"].map(|name| fields.opt_bool(name));
    let [into, out] = bias;
    spec.states = Some(SsmSpec {
        kind: StateKind::Heads {
            heads,
            groups: fields.opt_size("mamba_n_groups")?.unwrap_or(1),
            eps: spec.norm.eps,
            norm,
        },
        inner,
        states: fields.opt_size("mamba_d_state")?.unwrap_or(256),
        kernel: fields.opt_size("mamba_d_conv")?.unwrap_or(4),
        conv_bias: fields.flag_set_unless_off("mamba_conv_bias")?,
        bias: [into?.unwrap_or(false), out?.unwrap_or(false)],
        steps: step_range(fields)?,
    });
    factors(fields, spec)
}

/// Reads the scale factors. Input factors of bias-free projections move to the output, so that
/// norms feed the matmuls directly.
fn factors(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let factor = |name| Ok::<_, ConfigError>(fields.opt_positive(name)?.unwrap_or(1.0) as f32);
    spec.scales.embedding = factor("embedding_multiplier")?;
    spec.scales.logits = factor("lm_head_multiplier")?;
    let mut of = Multipliers {
        attention: [
            factor("attention_in_multiplier")?,
            factor("attention_out_multiplier")?,
        ],
        states: [factor("ssm_in_multiplier")?, factor("ssm_out_multiplier")?],
        into_states: fields.numbers("ssm_multipliers")?.unwrap_or([1.0; 5]),
        feed_forward: fields.numbers("mlp_multipliers")?.unwrap_or([1.0; 2]),
    };
    let mut of_scores = f64::from(factor("key_multiplier")?);
    if !spec.biases.qkv {
        let [before, after] = of.attention;
        of_scores *= f64::from(before).powi(2);
        of.attention = [1.0, before * after];
    }
    if spec.states.is_some_and(|s| !s.bias[0]) {
        let [before, _] = of.states;
        of.into_states = of.into_states.map(|x| x * before);
        of.states[0] = 1.0;
    }
    if of_scores != 1.0 {
        spec.attention.scale = Some((spec.head_dim as f64).powf(-0.5) * of_scores);
    }
    spec.scales.multipliers = of;
    Ok(())
}

fn keys(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let name = DecoderPart::StatesNorm.gguf(spec, 0);
    let kind = StateKind::Heads {
        heads: keys.size("ssm.time_step_rank")?,
        groups: keys.size("ssm.group_count")?,
        eps: spec.norm.eps,
        norm: match keys.gguf.has_tensor(&format!("{name}.weight")) {
            true => StateNorm::AfterGate,
            false => StateNorm::None,
        },
    };
    read_gguf_keys(keys, spec, kind)
}
