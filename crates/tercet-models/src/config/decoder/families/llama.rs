//! Llama (Touvron and others, 2023) and what differs from it in windows, rotated layers and factors of queries only: Mistral
//! (Jiang and others, "Mistral 7B", 2023), Ministral 3, whose queries grow with their positions, and SmolLM3, of whose layers
//! every fourth rotates nothing.

use super::{FamilyRow, Sizes, no_keys, plain};
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::keys::Keys;
use crate::config::decoder::rope::yarn_attention;
use crate::config::decoder::{
    ConfigError, DecoderSpec, Experts, Fields, Part, QueryGrowth, RopeLayout, RopeScaling, ensure,
};

pub(super) const LLAMA: FamilyRow = FamilyRow {
    model_type: "llama",
    architecture: "llama",
    varies_in_gguf: false,
    bidirectional_in_gguf: false,
    sizes: Sizes {
        hidden: &["hidden_size"],
        layers: &["num_hidden_layers"],
        heads: &["num_attention_heads"],
        ffn: &["intermediate_size"],
        ffn_is_derived: false,
        context: &["max_position_embeddings"],
        typical_context: None,
    },
    names: &[],
    names_of: |_| &[],
    names_of_gguf: |_| &[],
    prefix: "",
    derived: &[],
    beside: &[],
    turned: &[],
    quantized: None,
    rope_in_folders: RopeLayout::Halves,
    rope_in_gguf: RopeLayout::Pairs,
    qkv_by_group_in_folders: false,
    eps: "rms_norm_eps",
    activations: &["hidden_act"],
    // Of Mixtral, whose files are of this architecture.
    normalizes_experts: Some(true),
    has_sections: false,
    grows_queries: false,
    has_value_length: false,
    defaults: plain,
    json: |fields, spec| {
        fields.only("sliding_window", "null", |_| false)?;
        llama_biases(fields, spec)
    },
    // Of Mistral, whose files are of this architecture.
    keys: window_of_all,
};

pub(super) const MISTRAL: FamilyRow = FamilyRow {
    model_type: "mistral",
    json: |fields, spec| windows(fields, spec, |_| true),
    ..LLAMA
};

/// Its GGUF files may be of Mistral Small 3.1 and later as well, whose queries do not grow.
pub(super) const MINISTRAL3: FamilyRow = FamilyRow {
    model_type: "ministral3",
    architecture: "mistral3",
    grows_queries: true,
    json: |fields, spec| {
        let ropes = ["rope_parameters", "rope_scaling"].map(|name| fields.get(name));
        fields.required("rope_parameters", ropes.into_iter().flatten().next())?;
        windows(fields, spec, |_| true)
    },
    keys: |keys, spec| {
        window_of_all(keys, spec)?;
        turned_less(keys, spec)?;
        let beta = keys.opt_factor("attention.temperature_scale")?;
        let original = keys.opt_size("rope.scaling.original_context_length")?;
        let original = original.unwrap_or(spec.context);
        spec.query_growth = beta.map(|beta| QueryGrowth { beta, original });
        Ok(())
    },
    ..LLAMA
};

/// The factor of cosines and sines is by what YaRN would have of scores as well, which files of this architecture say by
/// `mscale_all_dim`.
fn turned_less(keys: &Keys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let all = keys.opt_factor("rope.scaling.yarn_log_multiplier")?;
    for rope in &mut spec.ropes {
        if let RopeScaling::Yarn {
            factor, attention, ..
        } = &mut rope.scaling
        {
            *attention /= all.map_or(1.0, |all| yarn_attention(*factor, all));
        }
    }
    Ok(())
}

pub(super) const MIXTRAL: FamilyRow = FamilyRow {
    model_type: "mixtral",
    names: &[
        (Part::Router, "model.layers.{}.block_sparse_moe.gate"),
        (
            Part::ExpertGate,
            "model.layers.{}.block_sparse_moe.experts.[].w1",
        ),
        (
            Part::ExpertUp,
            "model.layers.{}.block_sparse_moe.experts.[].w3",
        ),
        (
            Part::ExpertDown,
            "model.layers.{}.block_sparse_moe.experts.[].w2",
        ),
    ],
    json: |fields, spec| {
        let count = fields.size("num_local_experts")?;
        let used = fields.size("num_experts_per_tok")?;
        let experts = Experts::new([count, used, spec.ffn], true);
        spec.set_experts(experts, |_| true);
        of_training(fields)?;
        windows(fields, spec, |_| true)
    },
    ..LLAMA
};

/// What experts have for training only.
pub(super) fn of_training(fields: &Fields<'_>) -> Result<(), ConfigError> {
    fields.only("output_router_logits", "true or false", |v| v.is_boolean())?;
    fields.only("router_aux_loss_coef", "a number", |v| v.is_number())?;
    fields.only("router_jitter_noise", "a number", |v| v.is_number())
}

pub(super) const SMOLLM3: FamilyRow = FamilyRow {
    model_type: "smollm3",
    architecture: "smollm3",
    normalizes_experts: None,
    defaults: |spec| {
        spec.tied_embeddings = true;
        leave_every(spec, STEP);
    },
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        // With false the window has no part in the result.
        fields.only("use_sliding_window", "false", |v| {
            v.as_bool() == Some(false)
        })?;
        fields.only("sliding_window", "a number", |v| v.is_u64())?;
        let full = |v: &serde_json::Value| v.as_str() == Some("full_attention");
        fields.only("layer_types", "full_attention", |v| {
            v.as_array().is_some_and(|a| a.iter().all(full))
        })?;
        unrotated(fields, spec)
    },
    keys: no_keys,
    ..LLAMA
};

/// One window for all layers; 0 is none.
pub(super) fn window_of_all(keys: &Keys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let key = keys.key("attention.sliding_window");
    if let Some(window @ 1..) = keys.gguf.metadata().opt_u32(&key)? {
        spec.set_windows(window as usize, |_| true);
    }
    Ok(())
}

/// Of so many layers of SmolLM3 the last rotates nothing.
const STEP: usize = 4;

/// Every `step`th layer rotates nothing.
fn leave_every(spec: &mut DecoderSpec, step: usize) {
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.rope = (!(i + 1).is_multiple_of(step)).then_some(0);
    }
}

/// `no_rope_layers` has a 1 for each layer that rotates, against its name.
fn unrotated(fields: &Fields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    if let Some(step) = fields.opt_size("no_rope_layer_interval")? {
        leave_every(spec, step);
    }
    let mut rotated = None;
    fields.only("no_rope_layers", "a list of 0 and 1", |v| {
        let of = |v: &serde_json::Value| v.as_u64().filter(|x| *x < 2).map(|x| x == 1);
        rotated = v
            .as_array()
            .and_then(|a| a.iter().map(of).collect::<Option<Vec<bool>>>());
        rotated.is_some()
    })?;
    let Some(rotated) = rotated else {
        return Ok(());
    };
    ensure(rotated.len() == spec.layers.len(), || {
        format!(
            "no_rope_layers has {} numbers for {} layers",
            rotated.len(),
            spec.layers.len()
        )
    })?;
    for (layer, rotates) in spec.layers.iter_mut().zip(rotated) {
        layer.rope = rotates.then_some(0);
    }
    Ok(())
}
