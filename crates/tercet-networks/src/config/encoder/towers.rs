//! The vision and text towers of vision and vision-language models: one table row for each.

use serde_json::{Map, Value};

use super::super::{ConfigError, ConfigFields, ensure};
use super::families::{BERT, COMMON, ConfigKeys, EncoderFamily, EncoderFamilyRow};
use super::json::read_family;
use super::part::EncoderPartNames;
use super::patches::PatchFamilyRow;
use super::{AttentionPattern, EncoderNorms, EncoderPart, EncoderSpec, TokenTypes};
use crate::config::decoder::{FeedForward, FfnActivation};

/// All towers.
pub(super) const TOWERS: [&EncoderFamilyRow; 7] = [
    &VIT,
    &DINOV2,
    &CLIP_VISION,
    &CLIP_TEXT,
    &SIGLIP_VISION,
    &SIGLIP_TEXT,
    &IDEFICS3_VISION,
];

/// Defaults of the reference implementation for fields that a tower's configuration lacks.
const ASSUMED: [(&str, &[(&str, u64)]); 7] = [
    ("vit", &OF_VIT),
    ("dinov2", &OF_VIT),
    (
        "clip_vision_model",
        &[
            ("hidden_size", 768),
            ("intermediate_size", 3072),
            ("num_hidden_layers", 12),
            ("num_attention_heads", 12),
            ("image_size", 224),
            ("patch_size", 32),
        ],
    ),
    (
        "clip_text_model",
        &[
            ("hidden_size", 512),
            ("intermediate_size", 2048),
            ("num_hidden_layers", 12),
            ("num_attention_heads", 8),
            ("max_position_embeddings", 77),
            ("vocab_size", 49408),
            ("eos_token_id", 49407),
        ],
    ),
    ("siglip_vision_model", &OF_VIT),
    (
        "siglip_text_model",
        &[
            ("hidden_size", 768),
            ("intermediate_size", 3072),
            ("num_hidden_layers", 12),
            ("num_attention_heads", 12),
            ("max_position_embeddings", 64),
            ("vocab_size", 32000),
        ],
    ),
    (
        "idefics3_vision",
        &[
            ("hidden_size", 1152),
            ("intermediate_size", 3072),
            ("num_hidden_layers", 12),
            ("num_attention_heads", 16),
            ("image_size", 224),
            ("patch_size", 32),
        ],
    ),
];

const OF_VIT: [(&str, u64); 6] = [
    ("hidden_size", 768),
    ("intermediate_size", 3072),
    ("num_hidden_layers", 12),
    ("num_attention_heads", 12),
    ("image_size", 224),
    ("patch_size", 16),
];

/// Reads the configuration of the tower of [`TOWERS`] with this `model_type`, which the object need
/// not contain.
pub(crate) fn read_tower(
    json: &Map<String, Value>,
    prefix: &'static str,
    model_type: &'static str,
) -> Result<EncoderSpec, ConfigError> {
    let mut json = json.clone();
    let assumed = ASSUMED.iter().find(|(name, _)| *name == model_type);
    for (name, value) in assumed.into_iter().flat_map(|(_, all)| all.iter()) {
        let own = json.entry(*name).or_insert(Value::Null);
        if own.is_null() {
            *own = Value::from(*value);
        }
    }
    let fields = ConfigFields::new(&json, prefix).of_class(model_type);
    let supported = format!("\"{model_type}\"");
    fields.only("model_type", &supported, |v| v.as_str() == Some(model_type))?;
    let family = EncoderFamily::tower(model_type)
        .expect("invariant: towers are read by a name of their table");
    let spec = read_family(&fields, family)?;
    spec.check()?;
    Ok(spec)
}

/// Fields about training, and about generation, which older versions of transformers wrote into
/// every configuration.
const OF_GENERATION: &[&str] = &[
    "bad_words_ids",
    "begin_suppress_tokens",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "drop_path_rate",
    "dropout",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "initializer_factor",
    "layerscale_value",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "top_k",
    "top_p",
    "typical_p",
    "use_bfloat16",
];

/// Fields of backbones, which select other stages than the last, and of ViT's pooler and
/// pretraining. Neither is implemented.
const OF_PICTURES: &[&str] = &[
    "drop_path_rate",
    "encoder_stride",
    "layerscale_value",
    "out_features",
    "out_indices",
    "pooler_act",
    "pooler_output_size",
    "reshape_hidden_states",
    "stage_names",
    "use_mask_token",
];

/// Sets the properties that all towers share: pre-norm layers and no segments.
fn tower(spec: &mut EncoderSpec) {
    spec.placement = EncoderNorms::Before;
    spec.token_types = TokenTypes::None;
    spec.attention_pattern = AttentionPattern::All;
    spec.embedding_norm = false;
}

/// ViT (Dosovitskiy and others, 2020).
const VIT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "vit",
    patches: Some(PatchFamilyRow {
        class_token: true,
        bias: true,
        interpolated: false,
    }),
    prefix: "vit.",
    names: &[
        (
            EncoderPart::Query,
            "encoder.layer.{}.attention.attention.query",
        ),
        (EncoderPart::Key, "encoder.layer.{}.attention.attention.key"),
        (
            EncoderPart::Value,
            "encoder.layer.{}.attention.attention.value",
        ),
        (
            EncoderPart::AttentionNorm,
            "encoder.layer.{}.layernorm_before",
        ),
        (EncoderPart::FfnNorm, "encoder.layer.{}.layernorm_after"),
        (EncoderPart::FinalNorm, "layernorm"),
    ],
    heads: &[],
    harmless: OF_PICTURES,
    defaults: |spec| {
        tower(spec);
        spec.norm.eps = 1e-12;
    },
    json: |fields, spec| {
        spec.qkv_bias = fields.opt_bool("qkv_bias")?.unwrap_or(true);
        Ok(())
    },
    ..BERT
};

/// DINOv2 (Oquab and others, 2023): ViT with LayerScale, interpolated positions, and a feed-forward
/// width relative to the hidden width. Some models have a gated feed-forward network.
const DINOV2: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "dinov2",
    config_keys: ConfigKeys { ffn: &[], ..COMMON },
    patches: Some(PatchFamilyRow {
        class_token: true,
        bias: true,
        interpolated: true,
    }),
    with_decoder: false,
    prefix: "dinov2.",
    names: &[
        (
            EncoderPart::Query,
            "encoder.layer.{}.attention.attention.query",
        ),
        (EncoderPart::Key, "encoder.layer.{}.attention.attention.key"),
        (
            EncoderPart::Value,
            "encoder.layer.{}.attention.attention.value",
        ),
        (EncoderPart::AttentionNorm, "encoder.layer.{}.norm1"),
        (EncoderPart::GateUp, "encoder.layer.{}.mlp.weights_in"),
        (EncoderPart::Up, "encoder.layer.{}.mlp.fc1"),
        (EncoderPart::Down, "encoder.layer.{}.mlp.fc2"),
        (EncoderPart::FfnNorm, "encoder.layer.{}.norm2"),
        (EncoderPart::FinalNorm, "layernorm"),
    ],
    // Models with a gated feed-forward network use this name for the down projection.
    old_names: &[(EncoderPart::Down, "encoder.layer.{}.mlp.weights_out")],
    gguf_names: &[],
    heads: &[],
    harmless: OF_PICTURES,
    defaults: |spec| {
        tower(spec);
        spec.norm.eps = 1e-6;
        spec.layer_scale = true;
    },
    json: dinov2,
};

fn dinov2(fields: &ConfigFields<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    spec.qkv_bias = fields.opt_bool("qkv_bias")?.unwrap_or(true);
    // DINOv2 ignores this field: `mlp_ratio` determines the width.
    fields.opt_size("intermediate_size")?;
    fields.only("apply_layernorm", "true", |v| v.as_bool() == Some(true))?;
    let ratio = fields.opt_positive("mlp_ratio")?.unwrap_or(4.0);
    let width = spec.hidden as f64 * ratio;
    ensure(width >= 1.0 && width < (1u32 << 31) as f64, || {
        format!("a feed-forward network of {width} elements")
    })?;
    spec.ffn = width as usize;
    if fields.opt_bool("use_swiglu_ffn")?.unwrap_or(false) {
        // A gated network has two thirds of the width, rounded up to a multiple of 8.
        spec.ffn = (((spec.ffn * 2) as f64 / 3.0) as usize).next_multiple_of(8);
        spec.feed_forward = FeedForward::Gated(FfnActivation::Silu);
        spec.fused_gate_up = true;
        spec.old_names = true;
    }
    Ok(())
}

/// The tensor names of the parts of CLIP's layers.
macro_rules! of_clip {
    ($(($part:ident, $name:literal)),* $(,)?) => {
        &[
            (EncoderPart::Query, "encoder.layers.{}.self_attn.q_proj"),
            (EncoderPart::Key, "encoder.layers.{}.self_attn.k_proj"),
            (EncoderPart::Value, "encoder.layers.{}.self_attn.v_proj"),
            (EncoderPart::AttentionOutput, "encoder.layers.{}.self_attn.out_proj"),
            (EncoderPart::AttentionNorm, "encoder.layers.{}.layer_norm1"),
            (EncoderPart::Up, "encoder.layers.{}.mlp.fc1"),
            (EncoderPart::Down, "encoder.layers.{}.mlp.fc2"),
            (EncoderPart::FfnNorm, "encoder.layers.{}.layer_norm2"),
            $((EncoderPart::$part, $name)),*
        ]
    };
}

const OF_TEXT: EncoderPartNames = of_clip![
    (Words, "embeddings.token_embedding"),
    (PositionTable, "embeddings.position_embedding"),
    (FinalNorm, "final_layer_norm"),
];

const OF_VISION: EncoderPartNames = of_clip![
    (PatchProjection, "embeddings.patch_embedding"),
    (ClassToken, "embeddings.class_embedding"),
    (PatchPositions, "embeddings.position_embedding.weight"),
    (EmbeddingNorm, "pre_layrnorm"),
    (FinalNorm, "post_layernorm"),
];

/// The vision tower of CLIP (Radford and others, 2021), which has an embedding norm. The norm's
/// misspelt name is the one in all files.
const CLIP_VISION: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "clip_vision_model",
    patches: Some(PatchFamilyRow {
        class_token: true,
        bias: false,
        interpolated: false,
    }),
    prefix: "vision_model.",
    names: OF_VISION,
    heads: &[],
    harmless: OF_GENERATION,
    defaults: |spec| {
        tower(spec);
        spec.norm.eps = 1e-5;
        spec.feed_forward = FeedForward::Plain(FfnActivation::GeluQuick);
        spec.embedding_norm = true;
    },
    json: |fields, _| {
        // The top-level `projection_dim` takes precedence.
        fields.opt_size("projection_dim")?;
        Ok(())
    },
    ..BERT
};

/// The text tower of CLIP, with causal attention.
const CLIP_TEXT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "clip_text_model",
    patches: None,
    prefix: "text_model.",
    names: OF_TEXT,
    heads: &[],
    harmless: OF_GENERATION,
    defaults: |spec| {
        tower(spec);
        spec.norm.eps = 1e-5;
        spec.feed_forward = FeedForward::Plain(FfnActivation::GeluQuick);
        spec.attention_pattern = AttentionPattern::Causal;
    },
    json: |fields, spec| {
        fields.opt_size("projection_dim")?;
        // Padding follows the end token, and causal attention hides it. Any token works.
        spec.pad = 0;
        Ok(())
    },
    ..BERT
};

/// The vision tower of SigLIP (Zhai and others, 2023), without a class token.
const SIGLIP_VISION: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "siglip_vision_model",
    patches: Some(PatchFamilyRow {
        class_token: false,
        bias: true,
        interpolated: false,
    }),
    prefix: "vision_model.",
    names: OF_VISION,
    heads: &[],
    harmless: OF_GENERATION,
    defaults: siglip,
    json: |fields, _| fields.only("vision_use_head", "true", |v| v.as_bool() == Some(true)),
    ..BERT
};

/// The text tower of SigLIP: tokens attend to all tokens, including padding.
const SIGLIP_TEXT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "siglip_text_model",
    patches: None,
    prefix: "text_model.",
    names: OF_TEXT,
    heads: &[],
    harmless: OF_GENERATION,
    defaults: |spec| {
        siglip(spec);
        spec.pad = 1;
    },
    json: |fields, _| {
        // Mark `projection_size` as read: the reader of the containing model applies it.
        fields.opt_size("projection_size")?;
        Ok(())
    },
    ..BERT
};

fn siglip(spec: &mut EncoderSpec) {
    tower(spec);
    spec.norm.eps = 1e-6;
    spec.feed_forward = FeedForward::Plain(FfnActivation::GeluTanh);
}

/// The vision tower of Idefics3 and SmolVLM: that of SigLIP without pooling.
const IDEFICS3_VISION: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "idefics3_vision",
    prefix: "model.vision_model.",
    harmless: &[
        "max_image_size",
        "size",
        "use_base_siglip",
        "initializer_factor",
    ],
    json: |_, _| Ok(()),
    ..SIGLIP_VISION
};
