//! Nemotron-H: layers that are a scan over states, attention without rotation, or a feed-forward network with `max(x, 0)^2`, of experts
//! in some models.

use serde_json::Value;

use super::mamba::{MAMBA, OF_BACKBONE, of_gguf, of_training, step_range};
use super::{FamilyRow, Sizes};
use crate::config::decoder::keys::Keys;
use crate::config::decoder::{
    Activation, ConfigError, DecoderSpec, Experts, FeedForward, Fields, Groups, LayerSpec, Mixer,
    Part, Scores, Shared, StateKind, StateNorm, StateSpace, ensure,
};

pub(super) const NEMOTRON_H: FamilyRow = FamilyRow {
    model_type: "nemotron_h",
    architecture: "nemotron_h",
    varies_in_gguf: true,
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
        (Part::Router, "backbone.layers.{}.mixer.gate"),
        (
            Part::RouterChoice,
            "backbone.layers.{}.mixer.gate.e_score_correction_bias=",
        ),
        (
            Part::ExpertUp,
            "backbone.layers.{}.mixer.experts.[].up_proj",
        ),
        (
            Part::ExpertDown,
            "backbone.layers.{}.mixer.experts.[].down_proj",
        ),
        (
            Part::SharedUp,
            "backbone.layers.{}.mixer.shared_experts.up_proj",
        ),
        (
            Part::SharedDown,
            "backbone.layers.{}.mixer.shared_experts.down_proj",
        ),
        (Part::ExpertsIn, "backbone.layers.{}.mixer.fc1_latent_proj"),
        (Part::ExpertsOut, "backbone.layers.{}.mixer.fc2_latent_proj"),
    ],
    activations: &[],
    defaults: |spec| {
        spec.ropes.clear();
        spec.feed_forward = FeedForward::Plain(Activation::ReluSquared);
    },
    json,
    keys,
    names_of_gguf: |_| &[(Part::FfnNorm, "blk.{}.attn_norm")],
    beside: &["mtp."],
    ..MAMBA
};

/// Its files with experts have an architecture of their own.
pub(super) const NEMOTRON_H_MOE: FamilyRow = FamilyRow {
    architecture: "nemotron_h_moe",
    normalizes_experts: Some(true),
    ..NEMOTRON_H
};

/// The experts of a group's score.
const BEST: usize = 2;

/// A layer that attends and does nothing else.
const ATTENTION: LayerSpec = LayerSpec {
    feed_forward: false,
    rope: None,
    ..LayerSpec::FULL
};

/// A layer that is a feed-forward network.
const FEED_FORWARD: LayerSpec = LayerSpec {
    mixer: Mixer::None,
    rope: None,
    ..LayerSpec::FULL
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
    // Of layers that foretell further tokens, which stand beside the model.
    for name in [
        "num_nextn_predict_layers",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
    ] {
        fields.get(name);
    }
    spec.mlp_bias = fields.opt_bool("mlp_bias")?.unwrap_or(false);
    let heads = fields.size("mamba_num_heads")?;
    spec.states = Some(StateSpace {
        kind: StateKind::Heads {
            heads,
            groups: fields.opt_size("n_groups")?.unwrap_or(8),
            eps: spec.norm.eps,
            norm: StateNorm::AfterGate,
        },
        inner: heads * fields.size("mamba_head_dim")?,
        states: fields.size("ssm_state_size")?,
        kernel: fields.opt_size("conv_kernel")?.unwrap_or(4),
        conv_bias: fields.opt_bool("use_conv_bias")?.unwrap_or(true),
        bias: [fields.opt_bool("use_bias")?.unwrap_or(false); 2],
        steps: step_range(fields)?,
    });
    experts(fields, spec)
}

/// The experts of the layers that have some, without gates; scores are sigmoids, of which a group's best two count.
fn experts(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let sizes = [
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    let of_groups = ["n_group", "topk_group"];
    if !spec.layers.iter().any(|layer| layer.experts) {
        let others = ["n_shared_experts", "moe_shared_expert_intermediate_size"];
        for name in sizes.iter().chain(&of_groups).chain(&others) {
            fields.only(name, "a number", Value::is_number)?;
        }
        fields.only("routed_scaling_factor", "a number", Value::is_number)?;
        fields.only("norm_topk_prob", "true or false", Value::is_boolean)?;
        return fields.only("moe_latent_size", "a number", Value::is_number);
    }
    let [count, used, ffn] = sizes.map(|name| fields.size(name));
    fields.only("n_shared_experts", "1", |v| v.as_u64() == Some(1))?;
    let [groups, chosen] = of_groups.map(|name| fields.opt_size(name));
    let factor = fields.opt_positive("routed_scaling_factor")?;
    let normalized = fields.opt_bool("norm_topk_prob")?.unwrap_or(true);
    spec.experts = Some(Experts {
        scores: Scores::Sigmoid,
        choice_bias: true,
        groups: grouped(groups?.unwrap_or(1), chosen?.unwrap_or(1)),
        scale: factor.map(|factor| factor as f32),
        latent: fields.opt_size("moe_latent_size")?,
        shared: Some(Shared {
            bias: spec.mlp_bias,
            ..Shared::new(fields.size("moe_shared_expert_intermediate_size")?)
        }),
        ..Experts::new([count?, used?, ffn?], normalized)
    });
    Ok(())
}

/// Groups of experts; one is none.
fn grouped(count: usize, used: usize) -> Option<Groups> {
    (count > 1).then_some(Groups {
        count,
        used,
        best: BEST,
    })
}

/// Layers without key heads and a feed-forward network scan.
fn keys(keys: &Keys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let layers = spec.layers.len();
    let numbers = |name: &str| {
        let found = keys.by_layer(name, layers)?;
        found.ok_or_else(|| keys.missing(name))
    };
    let heads = numbers("attention.head_count_kv")?;
    let widths = numbers("feed_forward_length")?;
    for ((layer, heads), width) in spec.layers.iter_mut().zip(heads).zip(widths) {
        let has_experts = layer.experts;
        *layer = match (heads, width) {
            (0, 0) => LayerSpec::STATES,
            (0, _) => FEED_FORWARD,
            (_, 0) => ATTENTION,
            (heads, width) => {
                return Err(ConfigError::Inconsistent {
                    reason: format!(
                        "a layer with {heads} key heads and a feed-forward network of {width}"
                    ),
                });
            }
        };
        layer.experts = has_experts && layer.mixer == Mixer::None;
    }
    // Nothing is rotated.
    for name in [
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
    ] {
        keys.key(name);
    }
    let groups = [
        keys.opt_size("expert_group_count")?,
        keys.opt_size("expert_group_used_count")?,
    ];
    let latent = keys.opt_size("moe_latent_size")?;
    let scale = keys.opt_factor("expert_weights_scale")?;
    let normalized = keys.opt_bool("expert_weights_norm")?.unwrap_or(false);
    for name in ["expert_shared_count", "expert_gating_func"] {
        keys.key(name);
    }
    if let Some(experts) = &mut spec.experts {
        *experts = Experts {
            scores: Scores::Sigmoid,
            choice_bias: true,
            groups: grouped(groups[0].unwrap_or(1), groups[1].unwrap_or(1)),
            scale,
            normalized,
            latent,
            ..*experts
        };
    }
    let kind = StateKind::Heads {
        heads: keys.size("ssm.time_step_rank")?,
        groups: keys.size("ssm.group_count")?,
        eps: spec.norm.eps,
        norm: StateNorm::AfterGate,
    };
    of_gguf(keys, spec, kind)
}

/// The kinds of layers: a letter each, or a word.
fn layers(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let of = |kind: &str| match kind {
        "M" | "mamba" | "linear_attention" => Some(LayerSpec::STATES),
        "*" | "attention" | "full_attention" => Some(ATTENTION),
        "-" | "mlp" => Some(FEED_FORWARD),
        "E" | "moe" => Some(LayerSpec {
            experts: true,
            ..FEED_FORWARD
        }),
        _ => None,
    };
    let mut found = None;
    fields.only(
        "hybrid_override_pattern",
        "M, *, - or E for each layer",
        |v| {
            let letters = v.as_str().unwrap_or_default().chars();
            found = letters.map(|c| of(&c.to_string())).collect();
            found.is_some()
        },
    )?;
    for name in ["layers_block_type", "layer_types"] {
        fields.only(name, "mamba, attention, mlp or moe for each layer", |v| {
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
