//! Models of state-space scans only: Mamba (Gu and Dao, 2023), Falcon Mamba, which normalizes the
//! inputs of the scan, and Mamba-2 (Dao and Gu, 2024).

use serde_json::Value;

use super::llama::LLAMA;
use super::{DecoderFamilyRow, DecoderPartNames, DecoderSizeKeys};
use crate::config::activation;
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, LayerSpec, SsmSpec, StateKind, StateNorm,
    ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&MAMBA, &FALCON_MAMBA, &MAMBA2];

/// Folder names of models whose layers consist of a norm and a mixer.
pub(super) const OF_BACKBONE: DecoderPartNames = &[
    (DecoderPart::Embedding, "backbone.embeddings"),
    (DecoderPart::AttentionNorm, "backbone.layers.{}.norm"),
    (DecoderPart::FfnNorm, "backbone.layers.{}.norm"),
    (DecoderPart::FinalNorm, "backbone.norm_f"),
];

pub(super) const MAMBA: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "mamba",
    architecture: "mamba",
    sizes: DecoderSizeKeys {
        heads: &[],
        ffn: &[],
        context: &[],
        // State size does not depend on the context length.
        typical_context: Some(1 << 20),
        ..LLAMA.sizes
    },
    names: OF_BACKBONE,
    eps: "layer_norm_epsilon",
    normalizes_experts: None,
    defaults: |spec| {
        spec.tied_embeddings = true;
        without_attention(spec);
    },
    // The scan's convolution and gate use `hidden_act`; only SiLU is supported.
    activations: &[],
    json: |fields, spec| channels(fields, spec, None),
    keys: |keys, spec| {
        let rank = keys.size("ssm.time_step_rank")?;
        // Falcon Mamba's GGUF files use this architecture.
        let normed = keys.opt_bool("ssm.dt_b_c_rms")?.unwrap_or(false);
        let normed = normed.then_some(spec.norm.eps);
        read_gguf_keys(keys, spec, StateKind::Channels { rank, normed })
    },
    ..LLAMA
};

pub(super) const FALCON_MAMBA: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "falcon_mamba",
    json: |fields, spec| {
        let eps = fields.opt_positive("mixer_rms_eps")?.unwrap_or(1e-6);
        fields.only("use_falcon_mambapy", "true or false", Value::is_boolean)?;
        channels(fields, spec, Some(eps as f32))
    },
    ..MAMBA
};

pub(super) const MAMBA2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "mamba2",
    architecture: "mamba2",
    defaults: without_attention,
    json: |fields, spec| {
        let (heads, size) = (fields.size("num_heads")?, fields.size("head_dim")?);
        check_training_fields(fields)?;
        activation::only_silu(fields, "hidden_act")?;
        fields.only("expand", "a number", Value::is_number)?;
        fields.only("time_step_rank", "auto or a number", |v| {
            v.is_number() || v.as_str() == Some("auto")
        })?;
        fields.only("rms_norm", "true", |v| v.as_bool() == Some(true))?;
        fields.only("norm_before_gate", "false", |v| v.as_bool() == Some(false))?;
        spec.states = Some(SsmSpec {
            kind: StateKind::Heads {
                heads,
                groups: fields.opt_size("n_groups")?.unwrap_or(8),
                eps: spec.norm.eps,
                norm: StateNorm::AfterGate,
            },
            inner: heads * size,
            states: fields.size("state_size")?,
            ..common(fields)?
        });
        Ok(())
    },
    keys: |keys, spec| {
        let kind = StateKind::Heads {
            heads: keys.size("ssm.time_step_rank")?,
            groups: keys.size("ssm.group_count")?,
            eps: spec.norm.eps,
            norm: StateNorm::AfterGate,
        };
        read_gguf_keys(keys, spec, kind)
    },
    ..MAMBA
};

fn without_attention(spec: &mut DecoderSpec) {
    spec.ropes.clear();
    spec.layers.fill(LayerSpec::STATES);
    spec.rope_dims = 0;
}

/// Reads the convolution and the projections, which all variants share. The caller sets the other
/// fields.
fn common(fields: &ConfigFields<'_>) -> Result<SsmSpec, ConfigError> {
    Ok(SsmSpec {
        kind: StateKind::Channels {
            rank: 0,
            normed: None,
        },
        inner: 0,
        states: 0,
        kernel: fields.opt_size("conv_kernel")?.unwrap_or(4),
        conv_bias: fields.flag_set_unless_off("use_conv_bias")?,
        bias: [fields.opt_bool("use_bias")?.unwrap_or(false); 2],
        steps: step_range(fields)?,
    })
}

/// Reads `time_step_limit`, a pair. Infinity may appear as null or as an object `{"__float__":
/// "Infinity"}`.
pub(super) fn step_range(fields: &ConfigFields<'_>) -> Result<[f32; 2], ConfigError> {
    let mut range = [0.0, f32::INFINITY];
    fields.only("time_step_limit", "two numbers", |v| {
        let Some([least, most]) = v.as_array().map(Vec::as_slice) else {
            return false;
        };
        let named = |v: &Value| v.get("__float__").and_then(Value::as_str) == Some("Infinity");
        let max_found = match most {
            Value::Null => Some(f64::INFINITY),
            Value::Object(_) if named(most) => Some(f64::INFINITY),
            _ => most.as_f64(),
        };
        let (Some(least), Some(most)) = (least.as_f64(), max_found) else {
            return false;
        };
        range = [least as f32, most as f32];
        true
    })?;
    Ok(range)
}

/// Reads fields that concern only training or the implementation.
pub(super) fn check_training_fields(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    for name in [
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "time_step_scale",
        "chunk_size",
        "pad_vocab_size_multiple",
    ] {
        fields.only(name, "a number", Value::is_number)?;
    }
    for name in [
        "residual_in_fp32",
        "rescale_prenorm_residual",
        "use_mambapy",
        "use_associative_scan",
        "fused_add_norm",
        "use_mamba_kernels",
    ] {
        fields.only(name, "true or false", Value::is_boolean)?;
    }
    fields.only("time_step_init_scheme", "a string", Value::is_string)
}

/// Reads Mamba's fields.
fn channels(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
    normed: Option<f32>,
) -> Result<(), ConfigError> {
    check_training_fields(fields)?;
    activation::only_silu(fields, "hidden_act")?;
    // The files of Falcon Mamba have an `expand` that the model does not use.
    let expanded = fields.opt_size("expand")?.unwrap_or(2) * spec.hidden;
    let inner = fields.stated_size("intermediate_size")?.unwrap_or(expanded);
    for (name, derived) in [
        ("d_inner", inner),
        ("d_model", spec.hidden),
        ("n_layer", spec.layers.len()),
    ] {
        if let Some(found) = fields.opt_size(name)? {
            ensure(found == derived, || {
                format!("{name} is {found}, but {derived} follows from other fields")
            })?;
        }
    }
    fields.only("rms_norm", "true", |v| v.as_bool() == Some(true))?;
    fields.only("ssm_cfg", "{}", |v| {
        v.as_object().is_some_and(serde_json::Map::is_empty)
    })?;
    let rank = match fields.get("time_step_rank").and_then(Value::as_str) {
        Some("auto") => None,
        _ => fields.opt_size("time_step_rank")?,
    };
    spec.states = Some(SsmSpec {
        kind: StateKind::Channels {
            rank: rank.unwrap_or(spec.hidden.div_ceil(16)),
            normed,
        },
        inner,
        states: fields.opt_size("state_size")?.unwrap_or(16),
        steps: [0.0, f32::INFINITY],
        ..common(fields)?
    });
    Ok(())
}

/// Reads the keys `ssm.*` of a file; biases are detected from its tensors.
pub(super) fn read_gguf_keys(
    keys: &GgufKeys<'_>,
    spec: &mut DecoderSpec,
    kind: StateKind,
) -> Result<(), ConfigError> {
    let first = spec.layers.iter().position(|l| l.mixer.scans());
    let has = |part: DecoderPart| {
        let name = part.gguf(spec, first.unwrap_or(0));
        keys.gguf.has_tensor(&format!("{name}.bias"))
    };
    spec.states = Some(SsmSpec {
        kind,
        inner: keys.size("ssm.inner_size")?,
        states: keys.size("ssm.state_size")?,
        kernel: keys.size("ssm.conv_kernel")?,
        conv_bias: has(DecoderPart::StatesConv),
        bias: [DecoderPart::StatesIn, DecoderPart::StatesOut].map(has),
        steps: [0.0, f32::INFINITY],
    });
    Ok(())
}
