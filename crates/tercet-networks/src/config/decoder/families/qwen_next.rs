//! Qwen3-Next and Qwen3.5. Three of every four layers have a gated delta rule; the fourth has gated
//! attention. Models have experts with a shared expert, or a plain feed-forward network.

use serde_json::Value;

use super::qwen::{QWEN3_MOE, experts_from};
use super::{DecoderFamilyRow, DecoderPartNames, DecoderSizeKeys};
use crate::config::activation;
use crate::config::decoder::json::llama_biases;
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, DeltaRows, ExpertTensors, LayerSpec,
    Mixer, SsmSpec, StateKind, ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&QWEN3_NEXT, &QWEN3_5, &QWEN3_5_MOE];

/// The default distance between layers with full attention.
const INTERVAL: usize = 4;

/// The folder names of the parts of a delta rule with fused projections.
const OF_DELTA: DecoderPartNames = &[
    (
        DecoderPart::StatesIn,
        "model.layers.{}.linear_attn.in_proj_qkvz",
    ),
    (
        DecoderPart::StatesConv,
        "model.layers.{}.linear_attn.conv1d",
    ),
    (
        DecoderPart::StatesStepBias,
        "model.layers.{}.linear_attn.dt_bias=",
    ),
    (
        DecoderPart::StatesDecay,
        "model.layers.{}.linear_attn.A_log=",
    ),
    (DecoderPart::StatesNorm, "model.layers.{}.linear_attn.norm"),
    (
        DecoderPart::StatesOut,
        "model.layers.{}.linear_attn.out_proj",
    ),
];

/// The folder names of the parts of a delta rule with separate projections.
const OF_DELTA_APART: DecoderPartNames = &[
    (
        DecoderPart::StatesIn,
        "model.layers.{}.linear_attn.in_proj_qkv",
    ),
    OF_DELTA[1],
    OF_DELTA[2],
    OF_DELTA[3],
    OF_DELTA[4],
    OF_DELTA[5],
    (
        DecoderPart::ExpertDown,
        "model.layers.{}.mlp.experts.down_proj=",
    ),
];

pub(super) const QWEN3_NEXT: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen3_next",
    architecture: "qwen3next",
    names: OF_DELTA,
    names_of_gguf: |spec| match spec.states.map(|s| s.kind) {
        Some(StateKind::Delta { rows, .. }) if !rows.fused => &[
            (DecoderPart::StatesIn, "blk.{}.attn_qkv"),
            (DecoderPart::FfnNorm, "blk.{}.post_attention_norm"),
        ],
        _ => &[(DecoderPart::FfnNorm, "blk.{}.post_attention_norm")],
    },
    beside: &["mtp."],
    normalizes_experts: Some(true),
    defaults: |spec| {
        (QWEN3_MOE.defaults)(spec);
        spec.norm.one_plus = true;
        spec.attention.gated = true;
        spec.rope_dims = spec.head_dim / 4;
    },
    json: |fields, spec| {
        // The field is required: the family's default head size is not `hidden / heads`.
        fields.size("head_dim")?;
        llama_biases(fields, spec)?;
        activation::only_silu(fields, "hidden_act")?;
        fields.only("use_sliding_window", "false", |v| {
            v.as_bool() == Some(false)
        })?;
        let shared = Some(fields.size("shared_expert_intermediate_size")?);
        experts_from(fields, spec, shared)?;
        delta_of_json(
            fields,
            spec,
            DeltaRows {
                fused: true,
                rates_fused: true,
                tiled: false,
            },
        )
    },
    keys: |keys, spec| {
        let interval = keys
            .opt_size("full_attention_interval")?
            .unwrap_or(INTERVAL);
        set_delta(spec, |i| !(i + 1).is_multiple_of(interval));
        // Older files fuse queries, keys, values and gates into one projection.
        let first = spec.layers.iter().position(|l| l.mixer.scans());
        let fused = format!("blk.{}.ssm_in.weight", first.unwrap_or(0));
        let rows = DeltaRows {
            fused: keys.gguf.has_tensor(&fused),
            rates_fused: true,
            tiled: false,
        };
        delta_of_gguf(keys, spec, rows)
    },
    ..QWEN3_MOE
};

/// Qwen3.5: Qwen3-Next with separate delta-rule projections and one feed-forward network per layer.
/// The sections of rotated elements are for images and do not change text-only inputs.
pub(super) const QWEN3_5: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen3_5_text",
    architecture: "qwen35",
    names: OF_DELTA_APART,
    normalizes_experts: None,
    has_sections: true,
    json: |fields, spec| {
        fields.size("head_dim")?;
        llama_biases(fields, spec)?;
        activation::only_silu(fields, "hidden_act")?;
        apart(fields, spec)
    },
    keys: apart_of_gguf,
    ..QWEN3_NEXT
};

pub(super) const QWEN3_5_MOE: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "qwen3_5_moe_text",
    architecture: "qwen35moe",
    sizes: DecoderSizeKeys {
        ffn: &["intermediate_size", "moe_intermediate_size"],
        ..QWEN3_NEXT.sizes
    },
    names_of: |spec| match spec.experts.map(|experts| experts.stored) {
        Some(ExpertTensors::Separate) => &[(
            DecoderPart::ExpertDown,
            "model.layers.{}.mlp.experts.[].down_proj",
        )],
        Some(ExpertTensors::GateThenUp | ExpertTensors::TransposedPairs) | None => &[],
    },
    normalizes_experts: Some(true),
    json: |fields, spec| {
        (QWEN3_5.json)(fields, spec)?;
        let shared = Some(fields.size("shared_expert_intermediate_size")?);
        experts_from(fields, spec, shared)?;
        if let Some(experts) = &mut spec.experts {
            experts.normalized = true;
            experts.stored = ExpertTensors::GateThenUp;
        }
        Ok(())
    },
    ..QWEN3_5
};

/// Reads the fields of models with separate projections.
fn apart(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    fields.only("mlp_only_layers", "[]", |v| {
        v.as_array().is_some_and(Vec::is_empty)
    })?;
    fields.only("mtp_num_hidden_layers", "a number", Value::is_number)?;
    fields.only("mamba_ssm_dtype", "a string", Value::is_string)?;
    fields.only("attn_output_gate", "true", |v| v.as_bool() == Some(true))?;
    fields.only(
        "mtp_use_dedicated_embeddings",
        "true or false",
        Value::is_boolean,
    )?;
    delta_of_json(
        fields,
        spec,
        DeltaRows {
            fused: false,
            rates_fused: false,
            tiled: false,
        },
    )
}

fn apart_of_gguf(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let interval = keys
        .opt_size("full_attention_interval")?
        .unwrap_or(INTERVAL);
    set_delta(spec, |i| !(i + 1).is_multiple_of(interval));
    keys.key("rope.dimension_sections");
    delta_of_gguf(
        keys,
        spec,
        DeltaRows {
            fused: false,
            rates_fused: false,
            tiled: true,
        },
    )
}

/// Sets a delta rule on the layers for which `delta(layer)` is true.
fn set_delta(spec: &mut DecoderSpec, delta: impl Fn(usize) -> bool) {
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if delta(i) {
            *layer = LayerSpec {
                mixer: Mixer::StateSpace,
                rope: None,
                ..*layer
            };
        }
    }
}

/// Reads the layers with delta rules, and the sizes of the delta rule.
fn delta_of_json(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
    rows: DeltaRows,
) -> Result<(), ConfigError> {
    let layers = spec.layers.len();
    let interval = fields
        .opt_size("full_attention_interval")?
        .unwrap_or(INTERVAL);
    let mut delta: Vec<bool> = (0..layers)
        .map(|i| !(i + 1).is_multiple_of(interval))
        .collect();
    let supported = format!("linear_attention or full_attention for each of {layers} layers");
    fields.only("layer_types", &supported, |v| {
        let of = |v: &Value| match v.as_str() {
            Some("linear_attention") => Some(true),
            Some("full_attention") => Some(false),
            Some(_) | None => None,
        };
        let all: Option<Vec<bool>> = v.as_array().and_then(|all| all.iter().map(of).collect());
        delta = all.unwrap_or_default();
        delta.len() == layers
    })?;
    set_delta(spec, |i| delta[i]);
    let heads = fields.size("linear_num_value_heads")?;
    spec.states = Some(SsmSpec {
        kind: StateKind::Delta {
            heads,
            key_heads: fields.size("linear_num_key_heads")?,
            eps: spec.norm.eps,
            rows,
        },
        inner: heads * fields.size("linear_value_head_dim")?,
        states: fields.size("linear_key_head_dim")?,
        kernel: fields.opt_size("linear_conv_kernel_dim")?.unwrap_or(4),
        conv_bias: false,
        bias: [false; 2],
        steps: [0.0, f32::INFINITY],
    });
    Ok(())
}

/// Reads the sizes of the delta rule from the keys `ssm.*`, which are named after state-space
/// scans.
fn delta_of_gguf(
    keys: &GgufKeys<'_>,
    spec: &mut DecoderSpec,
    rows: DeltaRows,
) -> Result<(), ConfigError> {
    // `attn_qkv` is the projection of the delta rule here, not a fused attention projection.
    (spec.storage.fused_qkv, spec.attention.gated) = (false, true);
    let heads = keys.size("ssm.time_step_rank")?;
    let inner = keys.size("ssm.inner_size")?;
    ensure(inner.is_multiple_of(heads), || {
        format!("{inner} value elements are not a multiple of {heads} heads")
    })?;
    spec.states = Some(SsmSpec {
        kind: StateKind::Delta {
            heads,
            key_heads: keys.size("ssm.group_count")?,
            eps: spec.norm.eps,
            rows,
        },
        inner,
        states: keys.size("ssm.state_size")?,
        kernel: keys.size("ssm.conv_kernel")?,
        conv_bias: false,
        bias: [false; 2],
        steps: [0.0, f32::INFINITY],
    });
    Ok(())
}
