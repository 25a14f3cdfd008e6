//! Encoders of encoder-decoder models.

use super::super::{ConfigError, ConfigFields, activation, ensure};
use super::families::{BERT, ConfigKeys, EncoderFamilyRow};
use super::{
    EncoderNorms, EncoderPart, EncoderSpec, PositionEncoding, RelativePositionBias, TokenTypes,
};
use crate::config::decoder::{FeedForward, FfnActivation, NormKind};

/// T5 (Raffel and others, "Exploring the limits of transfer learning", 2020) and its successors T5
/// 1.1 and Flan-T5. T5 models have pre-norm layers with RMS norms, relative position biases,
/// unscaled attention scores and no biases. The first T5 models have an ungated feed-forward
/// network.
pub(super) const T5: EncoderFamilyRow = EncoderFamilyRow {
    model_type: "t5",
    config_keys: ConfigKeys {
        hidden: &["d_model"],
        layers: &["num_layers"],
        heads: &["num_heads"],
        head_dim: Some("d_kv"),
        ffn: &["d_ff"],
        context: &["n_positions"],
        typical_context: Some(512),
        eps: &["layer_norm_epsilon"],
        activation: &[],
    },
    with_decoder: true,
    prefix: "",
    names: &[
        (EncoderPart::Words, "shared"),
        (
            EncoderPart::RelativeBias,
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        ),
        (
            EncoderPart::Query,
            "encoder.block.{}.layer.0.SelfAttention.q",
        ),
        (EncoderPart::Key, "encoder.block.{}.layer.0.SelfAttention.k"),
        (
            EncoderPart::Value,
            "encoder.block.{}.layer.0.SelfAttention.v",
        ),
        (
            EncoderPart::AttentionOutput,
            "encoder.block.{}.layer.0.SelfAttention.o",
        ),
        (
            EncoderPart::AttentionNorm,
            "encoder.block.{}.layer.0.layer_norm",
        ),
        (
            EncoderPart::Gate,
            "encoder.block.{}.layer.1.DenseReluDense.wi_0",
        ),
        (
            EncoderPart::Up,
            "encoder.block.{}.layer.1.DenseReluDense.wi_1",
        ),
        (
            EncoderPart::Down,
            "encoder.block.{}.layer.1.DenseReluDense.wo",
        ),
        (EncoderPart::FfnNorm, "encoder.block.{}.layer.1.layer_norm"),
        (EncoderPart::FinalNorm, "encoder.final_layer_norm"),
    ],
    old_names: &[(
        EncoderPart::Up,
        "encoder.block.{}.layer.1.DenseReluDense.wi",
    )],
    gguf_names: &[
        (EncoderPart::RelativeBias, "enc.blk.0.attn_rel_b"),
        (EncoderPart::Query, "enc.blk.{}.attn_q"),
        (EncoderPart::Key, "enc.blk.{}.attn_k"),
        (EncoderPart::Value, "enc.blk.{}.attn_v"),
        (EncoderPart::AttentionOutput, "enc.blk.{}.attn_o"),
        (EncoderPart::AttentionNorm, "enc.blk.{}.attn_norm"),
        (EncoderPart::Gate, "enc.blk.{}.ffn_gate"),
        (EncoderPart::Up, "enc.blk.{}.ffn_up"),
        (EncoderPart::Down, "enc.blk.{}.ffn_down"),
        (EncoderPart::FfnNorm, "enc.blk.{}.ffn_norm"),
        (EncoderPart::FinalNorm, "enc.output_norm"),
    ],
    // Tensors of the decoder and of heads; the shared embedding table may appear under three names.
    heads: &[
        "decoder.",
        "lm_head.",
        "classification_head.",
        "encoder.embed_tokens.",
    ],
    harmless: &[
        // Fields about the decoder, which the decoder's own reader handles, and about generation.
        "decoder_start_token_id",
        "num_decoder_layers",
        "scale_decoder_outputs",
        "task_specific_params",
        "dropout_rate",
        "initializer_factor",
    ],
    defaults: |spec| {
        spec.positions = PositionEncoding::Distances;
        spec.token_types = TokenTypes::None;
        spec.embedding_norm = false;
        spec.placement = EncoderNorms::Before;
        spec.norm.kind = NormKind::Rms;
        spec.norm.eps = 1e-6;
        spec.norm.bias = false;
        (spec.qkv_bias, spec.output_bias, spec.mlp_bias) = (false, false, false);
        spec.attention_scale = Some(1.0);
        spec.relative_position_bias = Some(RelativePositionBias {
            buckets: 32,
            farthest: 128,
        });
    },
    json: t5,
    ..BERT
};

fn t5(fields: &ConfigFields<'_>, spec: &mut EncoderSpec) -> Result<(), ConfigError> {
    if let Some(terms) = &mut spec.relative_position_bias {
        let buckets = fields.opt_size("relative_attention_num_buckets")?;
        let farthest = fields.opt_size("relative_attention_max_distance")?;
        terms.buckets = buckets.unwrap_or(terms.buckets);
        terms.farthest = farthest.unwrap_or(terms.farthest);
    }
    // transformers also writes two fields that it derives from `feed_forward_proj`. Files exist that
    // have only these.
    let said = fields.opt_bool("is_gated_act")?;
    let named = fields.opt_str("dense_act_fn")?;
    let found = fields.opt_str("feed_forward_proj")?;
    let (gated, name) = match found.map(|found| found.strip_prefix("gated-")) {
        Some(Some(name)) => (true, name),
        Some(None) => (false, found.unwrap_or_default()),
        None => (said.unwrap_or(false), named.unwrap_or("relu")),
    };
    // The reference implementation uses tanh GELU for `gated-gelu` and exact GELU for `gelu`.
    let own = match (found, name) {
        (Some("gated-gelu"), _) => "gelu_new",
        (_, name) => name,
    };
    let function = activation::by_name(own);
    let supported = activation::supported() + ", with `gated-` before it or without";
    for field in ["feed_forward_proj", "dense_act_fn"] {
        fields.only(field, &supported, |_| function.is_some())?;
    }
    // An unsupported activation is already an error above.
    let function = function.unwrap_or(FfnActivation::Relu);
    spec.feed_forward = match gated {
        true => FeedForward::Gated(function),
        false => FeedForward::Plain(function),
    };
    spec.old_names = !gated;
    let found = found.unwrap_or("relu");
    ensure(said.is_none_or(|said| said == gated), || {
        format!(
            "is_gated_act is {}, but feed_forward_proj is {found}",
            !gated
        )
    })?;
    ensure(named.is_none_or(|named| named == own), || {
        format!(
            "dense_act_fn is {}, but feed_forward_proj is {found}",
            named.unwrap_or_default()
        )
    })
}
