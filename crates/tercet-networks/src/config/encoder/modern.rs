//! Encoders with rotary embeddings and gated feed-forward networks.

use serde_json::{Map, Value};

use super::super::{ConfigError, ConfigFields, activation, ensure};
use super::families::{BERT, COMMON, ConfigKeys, EncoderFamilyRow};
use super::json::only_false;
use super::{EncoderNorms, EncoderPart, EncoderSpec, PositionEncoding, TokenTypes};
use crate::config::decoder::{FeedForward, FfnActivation, RopeSpec, stretched};

/// ModernBERT (Warner and others, 2024): pre-norm layers, GeGLU and rotary embeddings. Two of every
/// three layers have a window and a separate rotary base.
pub(super) const MODERNBERT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "modernbert",
    config_keys: ConfigKeys {
        eps: &["norm_eps"],
        activation: &["hidden_activation"],
        ..COMMON
    },
    prefix: "model.",
    names: &[
        (EncoderPart::Words, "embeddings.tok_embeddings"),
        (EncoderPart::EmbeddingNorm, "embeddings.norm"),
        (EncoderPart::Qkv, "layers.{}.attn.Wqkv"),
        (EncoderPart::AttentionOutput, "layers.{}.attn.Wo"),
        (EncoderPart::AttentionNorm, "layers.{}.attn_norm"),
        (EncoderPart::GateUp, "layers.{}.mlp.Wi"),
        (EncoderPart::Down, "layers.{}.mlp.Wo"),
        (EncoderPart::FfnNorm, "layers.{}.mlp_norm"),
        (EncoderPart::HeadDense, "head.dense"),
    ],
    gguf_names: &[
        (EncoderPart::AttentionNorm, "blk.{}.attn_norm"),
        (EncoderPart::FfnNorm, "blk.{}.ffn_norm"),
    ],
    heads: &["head.", "decoder.", "classifier."],
    harmless: &[
        "decoder_bias",
        "deterministic_flash_attn",
        "embedding_dropout",
        "initializer_cutoff_factor",
        // Options of the reference implementation's kernels.
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "mlp_dropout",
    ],
    defaults: |spec| {
        spec.norm.eps = 1e-5;
        spec.norm.bias = false;
        spec.placement = EncoderNorms::Before;
        spec.positions = PositionEncoding::Rotary;
        spec.token_types = TokenTypes::None;
        spec.feed_forward = FeedForward::Gated(FfnActivation::Gelu);
        (spec.fused_qkv, spec.fused_gate_up) = (true, true);
        (spec.qkv_bias, spec.output_bias, spec.mlp_bias) = (false, false, false);
        spec.head.dense = Some(FfnActivation::Gelu);
        (spec.head.dense_bias, spec.head.norm) = (false, true);
        spec.head.dense_of_tokens = true;
    },
    json: modernbert,
    ..BERT
};

fn modernbert(fields: &ConfigFields<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    spec.norm.bias = fields.opt_bool("norm_bias")?.unwrap_or(false);
    let bias = fields.opt_bool("attention_bias")?.unwrap_or(false);
    (spec.qkv_bias, spec.output_bias) = (bias, bias);
    spec.mlp_bias = fields.opt_bool("mlp_bias")?.unwrap_or(false);
    first_follows_a_norm(spec);
    let every = fields.opt_size("global_attn_every_n_layers")?.unwrap_or(3);
    // Half of it is on each side: 0 and 1 are the token itself.
    let whole = fields.opt_window("local_attention", 0)?.unwrap_or(128);
    ensure(!fields.is_null("local_attention"), || {
        "local_attention is null; expected an integer from 0 to 2^31".to_string()
    })?;
    let count = spec.layers.len();
    let mut types: Option<Vec<bool>> = None;
    let supported =
        format!("\"full_attention\" or \"sliding_attention\" for each of {count} layers");
    fields.only("layer_types", &supported, |v| {
        let of = |v: &Value| match v.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            Some(_) | None => None,
        };
        types = v.as_array().and_then(|a| a.iter().map(of).collect());
        types.as_ref().is_some_and(|types| types.len() == count)
    })?;
    match types {
        Some(types) => spec.set_windows(whole / 2, |i| types[i]),
        None => spec.set_windows(whole / 2, |i| i % every != 0),
    }
    let global = fields.opt_positive("global_rope_theta")?;
    let local = fields.opt_positive("local_rope_theta")?;
    let thetas = [global.unwrap_or(160_000.0), local.unwrap_or(10_000.0)];
    spec.ropes = two_ropes(fields, thetas, spec.context)?;
    for layer in &mut spec.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    let head = &mut spec.head;
    head.dense_bias = fields.opt_bool("classifier_bias")?.unwrap_or(false);
    if let Some(found) = activation::read(fields, "classifier_activation")? {
        head.dense = Some(found);
    }
    fields.only("classifier_pooling", "\"cls\" or \"mean\"", |v| {
        head.mean = v.as_str() == Some("mean");
        head.mean || v.as_str() == Some("cls")
    })
}

/// Removes the first layer's attention norm, because the embedding norm precedes it.
pub(super) fn first_follows_a_norm(spec: &mut EncoderSpec) {
    if let Some(first) = spec.layers.first_mut() {
        first.attention_norm = false;
    }
}

/// Reads the rotary embeddings of layers without and with windows. `rope_parameters` has one object
/// for each, or one `rope_scaling` object applies to both.
fn two_ropes(
    fields: &ConfigFields<'_>,
    thetas: [f64; 2],
    context: usize,
) -> Result<Vec<RopeSpec>, ConfigError> {
    let scaling = fields.opt_object("rope_scaling")?;
    let both = fields.opt_object("rope_parameters")?;
    let empty = Map::new();
    let names = ["full_attention", "sliding_attention"];
    if let Some(both) = both {
        let inner = ConfigFields::new(both, "rope_parameters.");
        for name in names {
            inner.opt_object(name)?;
        }
        inner.finish_scaling("default")?;
    }
    let mut ropes = Vec::new();
    for (name, theta) in names.into_iter().zip(thetas) {
        let own = both.and_then(|both| both.get(name));
        let own = own.and_then(Value::as_object);
        let prefix = match own {
            Some(_) => "rope_parameters.",
            None => "rope_scaling.",
        };
        let inner = ConfigFields::new(own.or(scaling).unwrap_or(&empty), prefix);
        let found = stretched(&inner, None, context)?;
        ropes.push(RopeSpec {
            theta: found.theta.unwrap_or(theta),
            scaling: found.scaling,
        });
    }
    Ok(ropes)
}

/// Nomic BERT (Nussbaum and others, 2024): BERT's norms and segments with rotary embeddings and
/// SwiGLU. Only norms have biases. The first Nomic BERT folders have GPT-2's field names and a
/// fused QKV projection.
pub(super) const NOMIC_BERT: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "nomic_bert",
    config_keys: ConfigKeys {
        hidden: &["hidden_size", "n_embd"],
        layers: &["num_hidden_layers", "n_layer"],
        heads: &["num_attention_heads", "n_head"],
        head_dim: Some("head_dim"),
        ffn: &["intermediate_size", "n_inner"],
        context: &["max_position_embeddings", "n_positions"],
        typical_context: None,
        eps: &["layer_norm_eps", "layer_norm_epsilon"],
        activation: &["hidden_act"],
    },
    prefix: "nomic_bert.",
    names: &[
        (EncoderPart::Query, "layers.{}.self_attn.q_proj"),
        (EncoderPart::Key, "layers.{}.self_attn.k_proj"),
        (EncoderPart::Value, "layers.{}.self_attn.v_proj"),
        (EncoderPart::AttentionOutput, "layers.{}.self_attn.o_proj"),
        (
            EncoderPart::AttentionNorm,
            "layers.{}.post_attention_layernorm",
        ),
        (EncoderPart::Gate, "layers.{}.mlp.gate_proj"),
        (EncoderPart::Up, "layers.{}.mlp.up_proj"),
        (EncoderPart::Down, "layers.{}.mlp.down_proj"),
        (EncoderPart::FfnNorm, "layers.{}.post_mlp_layernorm"),
    ],
    old_names: &[
        (EncoderPart::EmbeddingNorm, "emb_ln"),
        (EncoderPart::Qkv, "encoder.layers.{}.attn.Wqkv"),
        (
            EncoderPart::AttentionOutput,
            "encoder.layers.{}.attn.out_proj",
        ),
        (EncoderPart::AttentionNorm, "encoder.layers.{}.norm1"),
        (EncoderPart::Gate, "encoder.layers.{}.mlp.fc12"),
        (EncoderPart::Up, "encoder.layers.{}.mlp.fc11"),
        (EncoderPart::Down, "encoder.layers.{}.mlp.fc2"),
        (EncoderPart::FfnNorm, "encoder.layers.{}.norm2"),
    ],
    harmless: &[
        "attn_pdrop",
        "dense_seq_output",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "max_trained_positions",
        "pad_vocab_size_multiple",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "use_flash_attn",
        "use_xentropy",
    ],
    defaults: |spec| {
        spec.positions = PositionEncoding::Rotary;
        spec.feed_forward = FeedForward::Gated(FfnActivation::Silu);
        (spec.qkv_bias, spec.output_bias, spec.mlp_bias) = (false, false, false);
        spec.ropes = vec![RopeSpec::new(1000.0)];
        for layer in &mut spec.layers {
            layer.rope = Some(0);
        }
    },
    json: nomic_bert,
    ..BERT
};

fn nomic_bert(fields: &ConfigFields<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    spec.old_names = fields.get("n_embd").is_some();
    spec.fused_qkv = spec.old_names;
    only_false(
        fields,
        &[
            "causal",
            "mlp_fc1_bias",
            "mlp_fc2_bias",
            "parallel_block",
            "parallel_block_tied_norm",
            "prenorm",
            "qkv_proj_bias",
            "rotary_emb_interleaved",
            "scale_attn_by_inverse_layer_idx",
            "use_rms_norm",
        ],
    )?;
    fields.only("activation_function", "\"swiglu\"", |v| {
        v.as_str() == Some("swiglu")
    })?;
    fields.only("scale_attn_weights", "true", |v| v.as_bool() == Some(true))?;
    fields.only("rotary_emb_fraction", "1", |v| v.as_f64() == Some(1.0))?;
    fields.only("rotary_emb_scale_base", "null", |_| false)?;
    fields.only("rotary_scaling_factor", "null", |_| false)?;
    let outer = fields.opt_positive("rotary_emb_base")?;
    let rope = &mut spec.ropes[0];
    if let Some(parameters) = fields.opt_object("rope_parameters")? {
        let found = stretched(
            &ConfigFields::new(parameters, "rope_parameters."),
            None,
            spec.context,
        )?;
        rope.scaling = found.scaling;
        rope.theta = found.theta.unwrap_or(rope.theta);
        if let Some(outer) = outer {
            let inner = rope.theta;
            ensure(outer == inner, || {
                format!("rotary_emb_base is {outer}, but rope_parameters.rope_theta is {inner}")
            })?;
        }
    }
    rope.theta = outer.unwrap_or(rope.theta);
    Ok(())
}
