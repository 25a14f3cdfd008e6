//! DeepSeek V2 (DeepSeek-AI, 2024) and V3 (2024): latent attention, grouped experts with a shared
//! expert, and dense first layers. V3 scores experts by sigmoids and selects them with a bias.

use serde_json::Value;

use super::DecoderFamilyRow;
use super::llama::{LLAMA, check_training_fields};
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::rope::yarn_attention;
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderPart, DecoderSpec, ExpertGroups, Experts, LatentAttention,
    RopeLayout, RopeScaling, RouterScoring, SharedExpert,
};
use crate::config::ensure;

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&DEEPSEEK_V2, &DEEPSEEK_V3, &KIMI_K2];

/// The epsilon of the latent rows' norms, which folders do not specify.
const EPS: f32 = 1e-6;

/// The default factor of V3's expert scores.
const FACTOR: f32 = 2.5;

/// Number of experts that V3 adds up for a group's score.
const BEST: usize = 2;

pub(super) const DEEPSEEK_V2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "deepseek_v2",
    architecture: "deepseek2",
    names: &[
        (
            DecoderPart::SharedGate,
            "model.layers.{}.mlp.shared_experts.gate_proj",
        ),
        (
            DecoderPart::SharedUp,
            "model.layers.{}.mlp.shared_experts.up_proj",
        ),
        (
            DecoderPart::SharedDown,
            "model.layers.{}.mlp.shared_experts.down_proj",
        ),
    ],
    names_of: |spec| match spec.attention.latent.and_then(|latent| latent.query_rank) {
        Some(_) => &[(DecoderPart::Query, "model.layers.{}.self_attn.q_b_proj")],
        None => &[],
    },
    names_of_gguf: |spec| match spec.attention.latent.and_then(|latent| latent.query_rank) {
        Some(_) => &[(DecoderPart::Query, "blk.{}.attn_q_b")],
        None => &[],
    },
    rope_in_folders: RopeLayout::Pairs,
    rope_in_gguf: RopeLayout::Pairs,
    has_value_length: true,
    normalizes_experts: Some(false),
    defaults: |_| (),
    json: |fields, spec| {
        let shape = LatentHeadShape::from_fields(fields)?;
        shape.attention(fields, spec)?;
        fields.only("scoring_func", "softmax", |v| v.as_str() == Some("softmax"))?;
        fields.only("norm_topk_prob", "false", |v| v.as_bool() == Some(false))?;
        let mut method = None;
        fields.only("topk_method", "greedy or group_limited_greedy", |v| {
            method = v.as_str().map(String::from);
            matches!(v.as_str(), Some("greedy" | "group_limited_greedy"))
        })?;
        let limited = method.as_deref() == Some("group_limited_greedy");
        shape.experts(fields, spec, |experts, groups| Experts {
            groups: groups.filter(|_| limited),
            ..experts
        })
    },
    keys,
    ..LLAMA
};

pub(super) const DEEPSEEK_V3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "deepseek_v3",
    json: |fields, spec| {
        let shape = LatentHeadShape::from_fields(fields)?;
        shape.attention(fields, spec)?;
        if !fields.flag_set_unless_off("rope_interleave")? {
            spec.rope_layout = RopeLayout::Halves;
        }
        fields.only("scoring_func", "sigmoid", |v| v.as_str() == Some("sigmoid"))?;
        fields.only("topk_method", "noaux_tc", |v| {
            v.as_str() == Some("noaux_tc")
        })?;
        let normalized = fields.flag_set_unless_off("norm_topk_prob")?;
        shape.experts(fields, spec, |experts, groups| Experts {
            scores: RouterScoring::Sigmoid,
            scale: experts.scale.or(Some(FACTOR)),
            router_bias: true,
            normalized,
            groups: groups.map(|groups| ExpertGroups {
                best: BEST,
                ..groups
            }),
            ..experts
        })
    },
    ..DEEPSEEK_V2
};

/// Kimi K2 (Moonshot AI, 2025), which has the structure of V3 and a separate `model_type`.
pub(super) const KIMI_K2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "kimi_k2",
    config_class: Some("deepseek_v3"),
    ..DEEPSEEK_V3
};

/// The sizes of heads and latent rows in a folder's configuration.
struct LatentHeadShape {
    plain: usize,
    rotated: usize,
    latent: LatentAttention,
}

impl LatentHeadShape {
    fn from_fields(fields: &ConfigFields<'_>) -> Result<LatentHeadShape, ConfigError> {
        Ok(LatentHeadShape {
            plain: fields.size("qk_nope_head_dim")?,
            rotated: fields.size("qk_rope_head_dim")?,
            latent: LatentAttention {
                query_rank: fields.opt_size("q_lora_rank")?,
                rank: fields.size("kv_lora_rank")?,
                value_dim: fields.size("v_head_dim")?,
                eps: EPS,
                split: false,
            },
        })
    }

    fn attention(
        &self,
        fields: &ConfigFields<'_>,
        spec: &mut DecoderSpec,
    ) -> Result<(), ConfigError> {
        let bias = fields.opt_bool("attention_bias")?.unwrap_or(false);
        (spec.biases.qkv, spec.biases.output) = (bias, bias);
        spec.biases.mlp = fields.opt_bool("mlp_bias")?.unwrap_or(false);
        fields.only("qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim", |v| {
            v.as_u64() == Some((self.plain + self.rotated) as u64)
        })?;
        let kv_heads = spec.heads;
        heads(spec, [self.plain, self.rotated], self.latent);
        fields.only("num_key_value_heads", "num_attention_heads", |v| {
            v.as_u64() == Some(kv_heads as u64)
        })?;
        // YaRN's `mscale_all_dim` also scales the attention scores.
        for name in ["rope_scaling", "rope_parameters"] {
            let number = |of: &str| {
                fields
                    .get(name)
                    .and_then(|o| o.get(of))
                    .and_then(Value::as_f64)
            };
            if let (Some(factor), Some(all)) = (number("factor"), number("mscale_all_dim"))
                && all != 0.0
            {
                scale_scores(spec, yarn_attention(factor as f32, all as f32));
            }
        }
        Ok(())
    }

    /// Reads the experts, for the layers that have some.
    fn experts(
        &self,
        fields: &ConfigFields<'_>,
        spec: &mut DecoderSpec,
        own: impl FnOnce(Experts, Option<ExpertGroups>) -> Experts,
    ) -> Result<(), ConfigError> {
        let count = fields.size_or_default("n_routed_experts")?;
        let used = fields.size_or_default("num_experts_per_tok")?;
        let ffn = fields.size("moe_intermediate_size")?;
        let shared = fields
            .size_or_default("n_shared_experts")?
            .saturating_mul(ffn);
        let factor = fields.opt_positive("routed_scaling_factor")?;
        let groups = match (fields.opt_size("n_group")?, fields.opt_size("topk_group")?) {
            (Some(count), Some(used)) => Some(ExpertGroups {
                count,
                used,
                best: 1,
            }),
            (None, _) | (_, None) => None,
        };
        let first = fields.opt_count("first_k_dense_replace")?;
        fields.only("moe_layer_freq", "1", |v| v.as_u64() == Some(1))?;
        let experts = Experts {
            shared: Some(SharedExpert::new(shared)),
            scale: factor.map(|factor| factor as f32),
            ..Experts::new([count, used, ffn], false)
        };
        let first = first.unwrap_or(0);
        spec.set_experts(own(experts, groups), |i| i as u64 >= first);
        // The fields listed here concern training, or how transformers executes the experts.
        fields.only("aux_loss_alpha", "a number", Value::is_number)?;
        fields.only("seq_aux", "true or false", Value::is_boolean)?;
        fields.only("ep_size", "a number", Value::is_number)?;
        check_training_fields(fields)?;
        // Multi-token prediction layers are not part of the decoder.
        for name in ["num_nextn_predict_layers", "num_mtp_layers"] {
            fields.get(name);
        }
        Ok(())
    }
}

/// Sets the head sizes of latent attention; each query head has its own key and value head.
fn heads(spec: &mut DecoderSpec, [plain, turned]: [usize; 2], latent: LatentAttention) {
    (spec.head_dim, spec.rope_dims) = (plain + turned, turned);
    spec.kv_heads = spec.heads;
    spec.attention.latent = Some(latent);
}

/// Sets the score factor to `head_dim^-0.5` times the square of `factor`.
fn scale_scores(spec: &mut DecoderSpec, factor: f32) {
    let factor = f64::from(factor);
    spec.attention.scale = Some((spec.head_dim as f64).powf(-0.5) * factor * factor);
}

fn keys(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let split = keys.gguf.has_tensor("blk.0.attn_k_b.weight");
    let turned = keys.size("rope.dimension_count")?;
    // Files with a split projection store the latent sizes under the keys that otherwise hold the
    // head sizes.
    let own = |name| keys.opt_size(name);
    let all = own("attention.key_length_mla")?.unwrap_or(spec.head_dim);
    let value_dim = match own("attention.value_length_mla")? {
        Some(size) => size,
        None => keys.size("attention.value_length")?,
    };
    ensure(turned < all, || {
        format!("cannot rotate {turned} of a head's {all} elements")
    })?;
    let latent = LatentAttention {
        query_rank: keys.opt_size("attention.q_lora_rank")?,
        rank: keys.size("attention.kv_lora_rank")?,
        value_dim,
        eps: spec.norm.eps,
        split,
    };
    heads(spec, [all - turned, turned], latent);
    // In these GGUF files YaRN's factors of attention scores and of cosines cancel, so cosines and
    // sines remain unscaled.
    let per = keys.opt_factor("rope.scaling.yarn_log_multiplier")?;
    let mut stretched = None;
    for rope in &mut spec.ropes {
        if let RopeScaling::Yarn {
            factor, attention, ..
        } = &mut rope.scaling
        {
            *attention = 1.0;
            stretched = Some(*factor);
        }
    }
    if let (Some(per), Some(factor)) = (per, stretched) {
        // The stored value is a tenth of `mscale_all_dim`.
        scale_scores(spec, yarn_attention(factor, 10.0 * per));
    }
    experts_of(keys, spec)
}

/// Reads this architecture's expert keys, in addition to the common ones.
fn experts_of(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let shared = keys.opt_size("expert_shared_count")?;
    let scale = keys.opt_factor("expert_weights_scale")?;
    let normalized = keys.opt_bool("expert_weights_norm")?.unwrap_or(false);
    let gating = keys.opt_size("expert_gating_func")?.unwrap_or(1);
    let groups = (
        keys.opt_size("expert_group_count")?,
        keys.opt_size("expert_group_used_count")?,
    );
    // The tensors of a layer also determine whether it is dense.
    let dense = keys.key("leading_dense_block_count");
    let dense = keys.gguf.metadata().opt_u32(&dense)?.unwrap_or(0);
    let Some(first) = spec.layers.iter().position(|layer| layer.experts) else {
        return Ok(());
    };
    ensure(dense as usize == first, || {
        format!("{first} layers have no experts, but leading_dense_block_count is {dense}")
    })?;
    let bias = DecoderPart::RouterBias.gguf(spec, first);
    let choice_bias = keys.gguf.has_tensor(bias.trim_end_matches('='));
    let Some(experts) = &mut spec.experts else {
        return Ok(());
    };
    experts.scores = match gating {
        1 => RouterScoring::Softmax,
        2 => RouterScoring::Sigmoid,
        found => {
            return Err(ConfigError::Unsupported {
                field: keys.key("expert_gating_func"),
                found: found.to_string(),
                supported: "1 (softmax) or 2 (sigmoid)".to_string(),
            });
        }
    };
    let best = match experts.scores {
        RouterScoring::Softmax => 1,
        RouterScoring::Sigmoid => BEST,
    };
    experts.groups = match groups {
        (Some(count), Some(used)) if count > 1 => Some(ExpertGroups { count, used, best }),
        _ => None,
    };
    (experts.scale, experts.normalized) = (scale, normalized);
    experts.router_bias = choice_bias;
    experts.shared = shared.map(|n| SharedExpert::new(n.saturating_mul(experts.ffn)));
    Ok(())
}
