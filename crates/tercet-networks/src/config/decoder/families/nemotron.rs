//! Nemotron-H: each layer is a state-space scan, attention without rotary embedding, or a
//! feed-forward network with squared ReLU. Some models have experts.

use serde_json::Value;

use super::mamba::{MAMBA, OF_BACKBONE, check_training_fields, read_gguf_keys, step_range};
use super::{DecoderFamilyRow, DecoderSizeKeys};
use crate::config::activation;
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, ExpertGroups, Experts, FeedForward,
    FfnActivation, LayerSpec, Mixer, RouterScoring, SharedExpert, SsmSpec, StateKind, StateNorm,
    ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&NEMOTRON_H, &NEMOTRON_H_MOE];

pub(super) const NEMOTRON_H: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "nemotron_h",
    architecture: "nemotron_h",
    varies_in_gguf: true,
    sizes: DecoderSizeKeys {
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
        (DecoderPart::Query, "backbone.layers.{}.mixer.q_proj"),
        (DecoderPart::Key, "backbone.layers.{}.mixer.k_proj"),
        (DecoderPart::Value, "backbone.layers.{}.mixer.v_proj"),
        (
            DecoderPart::AttentionOutput,
            "backbone.layers.{}.mixer.o_proj",
        ),
        (DecoderPart::Up, "backbone.layers.{}.mixer.up_proj"),
        (DecoderPart::Down, "backbone.layers.{}.mixer.down_proj"),
        (DecoderPart::Router, "backbone.layers.{}.mixer.gate"),
        (
            DecoderPart::RouterBias,
            "backbone.layers.{}.mixer.gate.e_score_correction_bias=",
        ),
        (
            DecoderPart::ExpertUp,
            "backbone.layers.{}.mixer.experts.[].up_proj",
        ),
        (
            DecoderPart::ExpertDown,
            "backbone.layers.{}.mixer.experts.[].down_proj",
        ),
        (
            DecoderPart::SharedUp,
            "backbone.layers.{}.mixer.shared_experts.up_proj",
        ),
        (
            DecoderPart::SharedDown,
            "backbone.layers.{}.mixer.shared_experts.down_proj",
        ),
        (
            DecoderPart::ExpertsIn,
            "backbone.layers.{}.mixer.fc1_latent_proj",
        ),
        (
            DecoderPart::ExpertsOut,
            "backbone.layers.{}.mixer.fc2_latent_proj",
        ),
    ],
    activations: &[],
    defaults: |spec| {
        spec.ropes.clear();
        spec.feed_forward = FeedForward::Plain(FfnActivation::ReluSquared);
    },
    json,
    keys,
    names_of_gguf: |_| &[(DecoderPart::FfnNorm, "blk.{}.attn_norm")],
    beside: &["mtp."],
    ..MAMBA
};

/// Nemotron-H with experts, whose GGUF files have a separate architecture name.
pub(super) const NEMOTRON_H_MOE: DecoderFamilyRow = DecoderFamilyRow {
    architecture: "nemotron_h_moe",
    normalizes_experts: Some(true),
    ..NEMOTRON_H
};

/// Number of experts whose scores are added up for a group's score.
const BEST: usize = 2;

/// A layer with attention only.
const ATTENTION: LayerSpec = LayerSpec {
    feed_forward: false,
    rope: None,
    ..LayerSpec::FULL
};

/// A layer with a feed-forward network only.
const FEED_FORWARD: LayerSpec = LayerSpec {
    mixer: Mixer::None,
    rope: None,
    ..LayerSpec::FULL
};

fn json(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    check_training_fields(fields)?;
    layers(fields, spec)?;
    fields.only("mlp_hidden_act", "relu2", |v| v.as_str() == Some("relu2"))?;
    activation::only_silu(fields, "mamba_hidden_act")?;
    fields.only("sliding_window", "null", |_| false)?;
    // The reference implementation ignores the field and never has attention biases.
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
    // Fields of multi-token prediction layers, which are not part of the decoder.
    for name in [
        "num_nextn_predict_layers",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
    ] {
        fields.get(name);
    }
    spec.biases.mlp = fields.opt_bool("mlp_bias")?.unwrap_or(false);
    let heads = fields.size("mamba_num_heads")?;
    spec.states = Some(SsmSpec {
        kind: StateKind::Heads {
            heads,
            groups: fields.opt_size("n_groups")?.unwrap_or(8),
            eps: spec.norm.eps,
            norm: StateNorm::AfterGate,
        },
        inner: heads * fields.size("mamba_head_dim")?,
        states: fields.size("ssm_state_size")?,
        kernel: fields.opt_size("conv_kernel")?.unwrap_or(4),
        conv_bias: fields.flag_set_unless_off("use_conv_bias")?,
        bias: [fields.opt_bool("use_bias")?.unwrap_or(false); 2],
        steps: step_range(fields)?,
    });
    experts(fields, spec)
}

/// Reads the experts, which are ungated. Scores are sigmoids; a group's score is the sum of its
/// best two.
fn experts(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
    let normalized = fields.flag_set_unless_off("norm_topk_prob")?;
    spec.experts = Some(Experts {
        scores: RouterScoring::Sigmoid,
        router_bias: true,
        groups: grouped(groups?.unwrap_or(1), chosen?.unwrap_or(1)),
        scale: factor.map(|factor| factor as f32),
        latent: fields.opt_size("moe_latent_size")?,
        shared: Some(SharedExpert {
            bias: spec.biases.mlp,
            ..SharedExpert::new(fields.size("moe_shared_expert_intermediate_size")?)
        }),
        ..Experts::new([count?, used?, ffn?], normalized)
    });
    Ok(())
}

/// The groups of experts; `None` for a single group.
fn grouped(count: usize, used: usize) -> Option<ExpertGroups> {
    (count > 1).then_some(ExpertGroups {
        count,
        used,
        best: BEST,
    })
}

/// Reads the layer types: a layer with neither key heads nor a feed-forward width is a scan.
fn keys(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
    // The model has no rotary embedding.
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
            scores: RouterScoring::Sigmoid,
            router_bias: true,
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
    read_gguf_keys(keys, spec, kind)
}

/// Reads the layer types, stored as one letter or one word per layer.
fn layers(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
            "found types for {} layers; expected {}",
            found.len(),
            spec.layers.len()
        )
    })?;
    spec.layers = found;
    Ok(())
}
