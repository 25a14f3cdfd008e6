//! Nemotron-H: layers that are a scan over states, attention without rotation, or a feed-forward network with `max(x, 0)^2`.

use serde_json::Value;

use super::mamba::{MAMBA, OF_BACKBONE, of_training, step_range};
use super::{FamilyRow, Sizes, no_keys};
use crate::config::decoder::{
    Activation, ConfigError, DecoderSpec, FeedForward, Fields, LayerSpec, Mixer, Part, StateKind,
    StateSpace, ensure,
};

pub(super) const NEMOTRON_H: FamilyRow = FamilyRow {
    model_type: "nemotron_h",
    architecture: "nemotron_h",
    only_folders: true,
    sizes: Sizes {
        heads: &["num_attention_heads"],
        ffn: &["intermediate_size"],
        context: &["max_position_embeddings"],
        typical_context: None,
        ..MAMBA.sizes
    },
    names: &[
        OF_BACKBONE[0],
        OF_BACKBONE[1],
        OF_BACKBONE[2],
        OF_BACKBONE[3],
        (Part::Query, "backbone.layers.{}.mixer.q_proj"),
        (Part::Key, "backbone.layers.{}.mixer.k_proj"),
        (Part::Value, "backbone.layers.{}.mixer.v_proj"),
        (Part::AttentionOutput, "backbone.layers.{}.mixer.o_proj"),
        (Part::Up, "backbone.layers.{}.mixer.up_proj"),
        (Part::Down, "backbone.layers.{}.mixer.down_proj"),
    ],
    activations: &[],
    defaults: |spec| {
        spec.ropes.clear();
        spec.feed_forward = FeedForward::Plain(Activation::ReluSquared);
    },
    json,
    keys: no_keys,
    ..MAMBA
};

fn json(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    of_training(fields)?;
    layers(fields, spec)?;
    fields.only("mlp_hidden_act", "relu2", |v| v.as_str() == Some("relu2"))?;
    fields.only("mamba_hidden_act", "silu", |v| v.as_str() == Some("silu"))?;
    fields.only("sliding_window", "null", |_| false)?;
    // Attention never had biases in this family, whatever the field says.
    fields.only("attention_bias", "false", |v| v.as_bool() == Some(false))?;
    fields.only("expand", "a number", Value::is_number)?;
    fields.only("mamba_ssm_cache_dtype", "a string", Value::is_string)?;
    fields.only("mamba_proj_bias", "true or false", Value::is_boolean)?;
    fields.only("num_logits_to_keep", "a number", Value::is_number)?;
    fields.only("output_router_logits", "true or false", Value::is_boolean)?;
    fields.only(
        "moe_shared_expert_overlap",
        "true or false",
        Value::is_boolean,
    )?;
    // Of layers with experts, which are refused, and of those that predict further tokens, which files lack.
    for name in [
        "n_routed_experts",
        "n_shared_experts",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
    ] {
        fields.only(name, "a number", Value::is_number)?;
    }
    fields.only("norm_topk_prob", "true or false", Value::is_boolean)?;
    fields.only("num_nextn_predict_layers", "0", |v| v.as_u64() == Some(0))?;
    fields.only("mtp_layers_block_type", "a list", Value::is_array)?;
    fields.only("mtp_hybrid_override_pattern", "a string", Value::is_string)?;
    spec.mlp_bias = fields.opt_bool("mlp_bias")?.unwrap_or(false);
    let heads = fields.size("mamba_num_heads")?;
    spec.states = Some(StateSpace {
        kind: StateKind::Heads {
            heads,
            groups: fields.opt_size("n_groups")?.unwrap_or(8),
            eps: spec.norm.eps,
        },
        inner: heads * fields.size("mamba_head_dim")?,
        states: fields.size("ssm_state_size")?,
        kernel: fields.opt_size("conv_kernel")?.unwrap_or(4),
        conv_bias: fields.opt_bool("use_conv_bias")?.unwrap_or(true),
        bias: fields.opt_bool("use_bias")?.unwrap_or(false),
        steps: step_range(fields)?,
    });
    Ok(())
}

/// The kinds of layers: a letter each, or a word.
fn layers(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let of = |kind: &str| match kind {
        "M" | "mamba" | "linear_attention" => Some(LayerSpec::STATES),
        "*" | "attention" | "full_attention" => Some(LayerSpec {
            feed_forward: false,
            rope: None,
            ..LayerSpec::FULL
        }),
        "-" | "mlp" => Some(LayerSpec {
            mixer: Mixer::None,
            rope: None,
            ..LayerSpec::FULL
        }),
        _ => None,
    };
    let mut found = None;
    fields.only("hybrid_override_pattern", "M, * or - for each layer", |v| {
        let letters = v.as_str().unwrap_or_default().chars();
        found = letters.map(|c| of(&c.to_string())).collect();
        found.is_some()
    })?;
    for name in ["layers_block_type", "layer_types"] {
        fields.only(name, "mamba, attention or mlp for each layer", |v| {
            let all = v.as_array().into_iter().flatten();
            found = all.map(|v| of(v.as_str()?)).collect();
            found.is_some()
        })?;
    }
    let found: Vec<LayerSpec> = fields.required("hybrid_override_pattern", found)?;
    ensure(found.len() == spec.layers.len(), || {
        format!(
            "there are kinds for {} layers, not for {}",
            found.len(),
            spec.layers.len()
        )
    })?;
    spec.layers = found;
    Ok(())
}
