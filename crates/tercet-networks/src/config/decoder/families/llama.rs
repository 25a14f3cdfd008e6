//! Llama (Touvron and others, 2023), and families that differ from it only in windows, rotated
//! layers and query scale. The other families are Mistral (Jiang and others, "Mistral 7B", 2023),
//! Ministral 3 with position-dependent query scale, and SmolLM3. Every fourth layer of SmolLM3 has
//! no rotary embedding.

use super::{DecoderFamilyRow, DecoderSizeKeys, no_keys, plain};
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::rope::yarn_attention;
use crate::config::decoder::{
    AttentionTemperature, ConfigError, ConfigFields, DecoderPart, DecoderSpec, Experts, RopeLayout,
    RopeScaling, ensure,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&LLAMA, &MISTRAL, &MIXTRAL, &SMOLLM3, &MINISTRAL3];

pub(super) const LLAMA: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "llama",
    config_class: None,
    architecture: "llama",
    varies_in_gguf: false,
    bidirectional_in_gguf: false,
    sizes: DecoderSizeKeys {
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
    transposed: &[],
    quantized: None,
    rope_in_folders: RopeLayout::Halves,
    rope_in_gguf: RopeLayout::Pairs,
    qkv_by_group_in_folders: false,
    eps: "rms_norm_eps",
    activations: &["hidden_act"],
    // Applies to Mixtral, whose GGUF files use the llama architecture.
    normalizes_experts: Some(true),
    has_sections: false,
    grows_queries: false,
    yarn_is_longrope: false,
    has_value_length: false,
    defaults: plain,
    json: llama_biases,
    // Sets the sliding window of Mistral, whose GGUF files use the llama architecture.
    keys: window_of_all,
};

pub(super) const MISTRAL: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "mistral",
    json: |fields, spec| windows(fields, spec, |_| true),
    ..LLAMA
};

/// Ministral 3. GGUF files of this architecture may also be Mistral Small 3.1 and later, which have
/// no query scale.
pub(super) const MINISTRAL3: DecoderFamilyRow = DecoderFamilyRow {
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
        read_partial_rope(keys, spec)?;
        let beta = keys.opt_factor("attention.temperature_scale")?;
        let original = keys.opt_size("rope.scaling.original_context_length")?;
        let original = original.unwrap_or(spec.context);
        spec.attention.temperature = beta.map(|beta| AttentionTemperature { beta, original });
        Ok(())
    },
    ..LLAMA
};

/// Divides the factor of cosines and sines by YaRN's factor for `mscale_all_dim`, which files of
/// this architecture store.
fn read_partial_rope(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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

pub(super) const MIXTRAL: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "mixtral",
    names: &[
        (DecoderPart::Router, "model.layers.{}.block_sparse_moe.gate"),
        (
            DecoderPart::ExpertGate,
            "model.layers.{}.block_sparse_moe.experts.[].w1",
        ),
        (
            DecoderPart::ExpertUp,
            "model.layers.{}.block_sparse_moe.experts.[].w3",
        ),
        (
            DecoderPart::ExpertDown,
            "model.layers.{}.block_sparse_moe.experts.[].w2",
        ),
    ],
    json: |fields, spec| {
        let count = fields.size_or_default("num_local_experts")?;
        let used = fields.size_or_default("num_experts_per_tok")?;
        let experts = Experts::new([count, used, spec.ffn], true);
        spec.set_experts(experts, |_| true);
        check_training_fields(fields)?;
        windows(fields, spec, |_| true)
    },
    ..LLAMA
};

/// Reads the fields of experts that only training uses.
pub(super) fn check_training_fields(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    fields.only("output_router_logits", "true or false", |v| v.is_boolean())?;
    fields.only("router_aux_loss_coef", "a number", |v| v.is_number())?;
    fields.only("router_jitter_noise", "a number", |v| v.is_number())
}

pub(super) const SMOLLM3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "smollm3",
    architecture: "smollm3",
    normalizes_experts: None,
    defaults: |spec| {
        spec.tied_embeddings = true;
        leave_every(spec, STEP);
    },
    json: |fields, spec| {
        llama_biases(fields, spec)?;
        unrotated(fields, spec)?;
        if fields.opt_bool("use_sliding_window")?.unwrap_or(false) {
            let is_off = !fields.has_value("sliding_window");
            let unrotated: Vec<bool> = spec.layers.iter().map(|l| l.rope.is_none()).collect();
            return windows(fields, spec, |i| unrotated[i] && !is_off);
        }
        // The window has no effect if `use_sliding_window` is false.
        fields.only("sliding_window", "a number", serde_json::Value::is_number)?;
        let full = |v: &serde_json::Value| v.as_str() == Some("full_attention");
        fields.only("layer_types", "full_attention", |v| {
            v.as_array().is_some_and(|a| a.iter().all(full))
        })
    },
    keys: no_keys,
    ..LLAMA
};

/// Reads one window for all layers; 0 means none.
pub(super) fn window_of_all(
    keys: &GgufKeys<'_>,
    spec: &mut DecoderSpec,
) -> Result<(), ConfigError> {
    let key = keys.key("attention.sliding_window");
    if let Some(window @ 1..) = keys.gguf.metadata().opt_u32(&key)? {
        spec.set_windows(window as usize, |_| true);
    }
    Ok(())
}

/// Every fourth layer of SmolLM3 has no rotary embedding.
const STEP: usize = 4;

/// Disables rotary embedding in every `step`th layer.
fn leave_every(spec: &mut DecoderSpec, step: usize) {
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.rope = (!(i + 1).is_multiple_of(step)).then_some(0);
    }
}

/// Reads `no_rope_layers`, which has a 1 for each layer with rotary embedding, contrary to its
/// name.
fn unrotated(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
