//! The towers of models of pictures, and of pictures and texts: a row for each.

use serde_json::{Map, Value};

use super::super::{ConfigError, Fields, ensure};
use super::families::{BERT, COMMON, EncoderFamily, FamilyRow, Spelled};
use super::json::read_family;
use super::part::Names;
use super::patches::PatchRow;
use super::{EncoderNorms, EncoderPart, EncoderSpec, TokenTypes, Visible};
use crate::config::decoder::{Activation, FeedForward};

/// All of them.
pub(super) const TOWERS: [&FamilyRow; 7] = [
    &VIT,
    &DINOV2,
    &CLIP_VISION,
    &CLIP_TEXT,
    &SIGLIP_VISION,
    &SIGLIP_TEXT,
    &IDEFICS3_VISION,
];

/// Numbers that the reference assumes where the configuration of a tower does not say them.
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

/// Reads the configuration of a tower, which is one of [`TOWERS`] by `model_type`, whether the object says that or not.
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
    let fields = Fields::new(&json, prefix);
    let supported = format!("\"{model_type}\"");
    fields.only("model_type", &supported, |v| v.as_str() == Some(model_type))?;
    let family = EncoderFamily::tower(model_type)
        .expect("invariant: towers are read by a name of their table");
    let spec = read_family(&fields, family)?;
    spec.check()?;
    Ok(spec)
}

/// Fields about generation, which the reference once wrote into every configuration, and about training.
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

/// Fields of backbones, of which other stages than the last can be asked for, and of ViT's pooler and pretraining, which
/// are not built.
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

/// What all have: norms before, no segments.
fn tower(spec: &mut EncoderSpec) {
    spec.placement = EncoderNorms::Before;
    spec.token_types = TokenTypes::None;
    spec.visible = Visible::All;
    spec.embedding_norm = false;
}

/// ViT (Dosovitskiy and others, 2020).
const VIT: FamilyRow = FamilyRow {
    model_type: "vit",
    patches: Some(PatchRow {
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

/// DINOv2 (Oquab and others, 2023): ViT with layer scale, a feed-forward network by a ratio, maybe gated, and positions that
/// are interpolated.
const DINOV2: FamilyRow = FamilyRow {
    model_type: "dinov2",
    spelled: Spelled { ffn: &[], ..COMMON },
    patches: Some(PatchRow {
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
    // Those of gated networks.
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

fn dinov2(fields: &Fields<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    spec.qkv_bias = fields.opt_bool("qkv_bias")?.unwrap_or(true);
    // Of models of its own kind without influence: the width is the ratio's.
    fields.opt_size("intermediate_size")?;
    fields.only("apply_layernorm", "true", |v| v.as_bool() == Some(true))?;
    let ratio = fields.opt_positive("mlp_ratio")?.unwrap_or(4.0);
    let width = spec.hidden as f64 * ratio;
    ensure(width >= 1.0 && width < (1u32 << 31) as f64, || {
        format!("a feed-forward network of {width} elements")
    })?;
    spec.ffn = width as usize;
    if fields.opt_bool("use_swiglu_ffn")?.unwrap_or(false) {
        // Two thirds, a multiple of 8.
        spec.ffn = (((spec.ffn * 2) as f64 / 3.0) as usize).next_multiple_of(8);
        spec.feed_forward = FeedForward::Gated(Activation::Silu);
        spec.fused_gate_up = true;
        spec.old_names = true;
    }
    Ok(())
}

/// Names of the parts of CLIP's layers.
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

const OF_TEXT: Names = of_clip![
    (Words, "embeddings.token_embedding"),
    (PositionTable, "embeddings.position_embedding"),
    (FinalNorm, "final_layer_norm"),
];

const OF_VISION: Names = of_clip![
    (PatchProjection, "embeddings.patch_embedding"),
    (ClassToken, "embeddings.class_embedding"),
    (PatchPositions, "embeddings.position_embedding.weight"),
    (EmbeddingNorm, "pre_layrnorm"),
    (FinalNorm, "post_layernorm"),
];

/// The pictures' side of CLIP (Radford and others, 2021): a norm of the embeddings, whose name is misspelt in all its
/// files.
const CLIP_VISION: FamilyRow = FamilyRow {
    model_type: "clip_vision_model",
    patches: Some(PatchRow {
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
        spec.feed_forward = FeedForward::Plain(Activation::GeluQuick);
        spec.embedding_norm = true;
    },
    json: |fields, _| {
        // The model's own counts.
        fields.opt_size("projection_dim")?;
        Ok(())
    },
    ..BERT
};

/// The texts' side of CLIP: tokens see those before them.
const CLIP_TEXT: FamilyRow = FamilyRow {
    model_type: "clip_text_model",
    patches: None,
    prefix: "text_model.",
    names: OF_TEXT,
    heads: &[],
    harmless: OF_GENERATION,
    defaults: |spec| {
        tower(spec);
        spec.norm.eps = 1e-5;
        spec.feed_forward = FeedForward::Plain(Activation::GeluQuick);
        spec.visible = Visible::Causal;
    },
    json: |fields, spec| {
        fields.opt_size("projection_dim")?;
        // Padding follows the end, which does not see it: any token will do.
        spec.pad = 0;
        Ok(())
    },
    ..BERT
};

/// The pictures' side of SigLIP (Zhai and others, 2023): no class token.
const SIGLIP_VISION: FamilyRow = FamilyRow {
    model_type: "siglip_vision_model",
    patches: Some(PatchRow {
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

/// The texts' side of SigLIP: tokens see each other, and padding.
const SIGLIP_TEXT: FamilyRow = FamilyRow {
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
        // Of the model around the tower.
        fields.opt_size("projection_size")?;
        Ok(())
    },
    ..BERT
};

fn siglip(spec: &mut EncoderSpec) {
    tower(spec);
    spec.norm.eps = 1e-6;
    spec.feed_forward = FeedForward::Plain(Activation::GeluTanh);
}

/// The pictures' side of Idefics3 and SmolVLM: that of SigLIP without what stands for a whole picture.
const IDEFICS3_VISION: FamilyRow = FamilyRow {
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
