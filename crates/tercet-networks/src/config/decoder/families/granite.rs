//! Granite: llama with scale factors of embeddings, residuals, scores and logits. Some models have
//! experts, and some a shared expert.

use serde_json::Value;

use super::DecoderFamilyRow;
use super::llama::{LLAMA, check_training_fields};
use super::mamba::{read_gguf_keys, step_range};
use crate::config::activation;
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, ExpertTensors, Experts, Mixer,
    SharedExpert, SsmSpec, StateKind, StateNorm, ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] =
    &[&GRANITE, &GRANITE_MOE, &GRANITE_MOE_SHARED, &GRANITE_HYBRID];

pub(super) const GRANITE: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "granite",
    architecture: "granite",
    normalizes_experts: None,
    json: factors,
    keys: factors_of_gguf,
    ..LLAMA
};

pub(super) const GRANITE_MOE: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "granitemoe",
    architecture: "granitemoe",
    names: &[
        (
            DecoderPart::Router,
            "model.layers.{}.block_sparse_moe.router.layer",
        ),
        (
            DecoderPart::ExpertGateUp,
            "model.layers.{}.block_sparse_moe.input_linear",
        ),
        (
            DecoderPart::ExpertDown,
            "model.layers.{}.block_sparse_moe.output_linear",
        ),
        (
            DecoderPart::SharedDown,
            "model.layers.{}.shared_mlp.output_linear",
        ),
    ],
    normalizes_experts: Some(true),
    json: |fields, spec| {
        factors(fields, spec)?;
        experts(fields, spec, None)
    },
    ..GRANITE
};

pub(super) const GRANITE_MOE_SHARED: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "granitemoeshared",
    json: |fields, spec| {
        factors(fields, spec)?;
        // 0 means no shared expert.
        let width = fields.get("shared_intermediate_size");
        let shared = match width.and_then(serde_json::Value::as_u64) {
            Some(0) => None,
            _ => fields.opt_size("shared_intermediate_size")?,
        };
        experts(fields, spec, shared)
    },
    ..GRANITE_MOE
};

pub(super) const GRANITE_HYBRID: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "granitemoehybrid",
    architecture: "granitehybrid",
    varies_in_gguf: true,
    names: &[
        GRANITE_MOE.names[0],
        GRANITE_MOE.names[1],
        GRANITE_MOE.names[2],
        GRANITE_MOE.names[3],
        // In models without routed experts, the feed-forward network has the name of the shared
        // expert.
        (
            DecoderPart::GateUp,
            "model.layers.{}.shared_mlp.input_linear",
        ),
        (
            DecoderPart::Down,
            "model.layers.{}.shared_mlp.output_linear",
        ),
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
    ],
    json: hybrid,
    keys: hybrid_keys,
    ..GRANITE_MOE
};

/// Granite 4.0: layers with attention, usually without rotary embedding, or with state-space scans.
fn hybrid(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    factors(fields, spec)?;
    // The feed-forward network and the scan share `hidden_act`; only SiLU is supported.
    activation::only_silu(fields, "hidden_act")?;
    let shared = fields.size("shared_intermediate_size")?;
    let count = fields.get("num_local_experts").and_then(Value::as_u64);
    if count == Some(0) {
        fields.only("num_experts_per_tok", "a number", Value::is_number)?;
        check_training_fields(fields)?;
        (spec.ffn, spec.storage.fused_gate_up) = (shared, true);
    } else {
        experts(fields, spec, Some(shared))?;
    }
    let mut is_rotated = false;
    fields.only("position_embedding_type", "\"rope\" or \"nope\"", |v| {
        is_rotated = v.as_str() == Some("rope");
        is_rotated || v.as_str() == Some("nope")
    })?;
    let layers = spec.layers.len();
    let supported = format!("\"attention\" or \"mamba\" for each of {layers} layers");
    let mut scans: Option<Vec<bool>> = None;
    for name in ["layer_types", "layers_block_type"] {
        fields.only(name, &supported, |v| {
            let of = |v: &Value| match v.as_str() {
                Some("attention" | "full_attention") => Some(false),
                Some("mamba" | "linear_attention") => Some(true),
                Some(_) | None => None,
            };
            scans = v.as_array().and_then(|a| a.iter().map(of).collect());
            scans.as_ref().is_some_and(|s| s.len() == layers)
        })?;
    }
    let scans = scans.unwrap_or_else(|| vec![true; layers]);
    for (layer, scans) in spec.layers.iter_mut().zip(scans) {
        layer.rope = (is_rotated && !scans).then_some(0);
        if scans {
            layer.mixer = Mixer::StateSpace;
        }
    }
    if !is_rotated {
        spec.ropes.clear();
    }
    let heads = fields.size("mamba_n_heads")?;
    let inner = fields.opt_size("mamba_expand")?.unwrap_or(2) * spec.hidden;
    fields.only("mamba_chunk_size", "a number", Value::is_number)?;
    let each = match fields.get("mamba_d_head").and_then(Value::as_str) {
        Some("auto") => None,
        _ => fields.opt_size("mamba_d_head")?,
    };
    ensure(each.is_none_or(|each| each * heads == inner), || {
        format!("{heads} heads of mamba_d_head are not mamba_expand times hidden_size, {inner}")
    })?;
    spec.states = Some(SsmSpec {
        kind: StateKind::Heads {
            heads,
            groups: fields.opt_size("mamba_n_groups")?.unwrap_or(1),
            eps: spec.norm.eps,
            norm: StateNorm::AfterGate,
        },
        inner,
        states: fields.opt_size("mamba_d_state")?.unwrap_or(256),
        kernel: fields.opt_size("mamba_d_conv")?.unwrap_or(4),
        conv_bias: fields.flag_set_unless_off("mamba_conv_bias")?,
        bias: [fields.opt_bool("mamba_proj_bias")?.unwrap_or(false); 2],
        steps: step_range(fields)?,
    });
    Ok(())
}

/// Reads a hybrid file's keys. Layers with 0 key heads are scans, and rotary embedding is off
/// unless the file enables it.
fn hybrid_keys(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    factors_of_gguf(keys, spec)?;
    let is_rotated = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let heads = keys.by_layer("attention.head_count_kv", spec.layers.len())?;
    let heads = heads.ok_or_else(|| keys.missing("attention.head_count_kv"))?;
    for (layer, heads) in spec.layers.iter_mut().zip(heads) {
        layer.rope = (is_rotated && heads > 0).then_some(0);
        if heads == 0 {
            layer.mixer = Mixer::StateSpace;
        }
    }
    if !is_rotated {
        spec.ropes.clear();
    }
    if let (None, Some(width)) = (
        spec.experts,
        keys.opt_size("expert_shared_feed_forward_length")?,
    ) {
        spec.ffn = width;
    }
    let kind = StateKind::Heads {
        heads: keys.size("ssm.time_step_rank")?,
        groups: keys.size("ssm.group_count")?,
        eps: spec.norm.eps,
        norm: StateNorm::AfterGate,
    };
    read_gguf_keys(keys, spec, kind)
}

fn factors(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    llama_biases(fields, spec)?;
    let factor = |name| fields.opt_positive(name);
    spec.scales.embedding = factor("embedding_multiplier")?.unwrap_or(1.0) as f32;
    spec.scales.residual = factor("residual_multiplier")?.unwrap_or(1.0) as f32;
    spec.attention.scale = Some(factor("attention_multiplier")?.unwrap_or(1.0));
    spec.scales.logits = 1.0 / factor("logits_scaling")?.unwrap_or(1.0) as f32;
    Ok(())
}

fn factors_of_gguf(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    spec.scales.embedding = keys.opt_factor("embedding_scale")?.unwrap_or(1.0);
    spec.scales.residual = keys.opt_factor("residual_scale")?.unwrap_or(1.0);
    spec.attention.scale = keys.opt_factor("attention.scale")?.map(f64::from);
    spec.scales.logits = 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

fn experts(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
    shared: Option<usize>,
) -> Result<(), ConfigError> {
    let count = fields.size_or_default("num_local_experts")?;
    let used = fields.size_or_default("num_experts_per_tok")?;
    let experts = Experts {
        stored: ExpertTensors::GateThenUp,
        shared: shared.map(|ffn| SharedExpert {
            fused: true,
            ..SharedExpert::new(ffn)
        }),
        ..Experts::new([count, used, spec.ffn], true)
    };
    spec.set_experts(experts, |_| true);
    check_training_fields(fields)
}
