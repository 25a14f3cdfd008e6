//! `config.json` of encoder-decoders of texts.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::decoder::FeedForward;
use super::{ConfigError, EncoderFamily, EncoderSpec, Fields, decoder, encoder};
use crate::hf::HfWeights;

/// What an encoder-decoder of texts consists of (T5, 1.1 and Flan among it): an encoder, and a decoder of the same widths, heads, norms
/// and buckets of distances that also attends to what the encoder read. Both have the same embeddings.
///
/// ```
/// use tercet_models::TextToTextSpec;
///
/// let json = r#"{
///     "model_type": "t5", "is_encoder_decoder": true, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4,
///     "num_layers": 2, "num_decoder_layers": 3, "vocab_size": 300, "feed_forward_proj": "gated-gelu",
///     "decoder_start_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
/// }"#;
/// let spec = TextToTextSpec::from_json(&serde_json::from_str(json)?)?;
/// assert_eq!((spec.encoder.layers.len(), spec.decoder_layers), (2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TextToTextSpec {
    /// The encoder, and what layers of the decoder have, too.
    pub encoder: EncoderSpec,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Whether states are divided by the root of the width before the output projection, as in models that were trained
    /// with one matrix for embeddings and output.
    pub scaled_output: bool,
    /// Whether the output projection has a matrix of its own; else it is that of the embeddings. A folder's tensors say it.
    pub own_output: bool,
    /// The token that a text that is written begins with; it is not part of it.
    pub start: u32,
    /// The tokens that end one; may be empty.
    pub eos: Vec<u32>,
}

impl TextToTextSpec {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<TextToTextSpec, ConfigError> {
        // It refuses what nobody knows.
        let encoder = EncoderSpec::from_json(json)?;
        let fields = Fields::new(json, "");
        fields.only("model_type", "t5", |_| encoder.family.has_decoder())?;
        fields.only("is_encoder_decoder", "true", |v| v.as_bool() == Some(true))?;
        let layers = fields.opt_size("num_decoder_layers")?;
        let tied = fields.opt_bool("tie_word_embeddings")?;
        let scaled = fields.opt_bool("scale_decoder_outputs")?;
        let start = fields.opt_token("decoder_start_token_id")?;
        let spec = TextToTextSpec {
            decoder_layers: layers.unwrap_or(encoder.layers.len()),
            // The library writes the one where the other no longer says it.
            scaled_output: scaled.unwrap_or(tied != Some(false)),
            own_output: false,
            start: start.unwrap_or(encoder.pad),
            eos: fields.tokens("eos_token_id")?,
            encoder,
        };
        spec.check()?;
        Ok(spec)
    }

    /// Refuses tokens that there are none of.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let vocab = self.encoder.vocab;
        let mut all = self.eos.iter().chain([&self.start]);
        let beyond = all.find(|id| **id as usize >= vocab);
        super::ensure(beyond.is_none(), || {
            let id = beyond.copied().unwrap_or_default();
            format!("the special token {id} is beyond the vocabulary of {vocab}")
        })
    }

    /// Takes from a folder's tensors whether the output has a matrix of its own, and refuses a tensor that the model does not
    /// have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`].
    pub(crate) fn settle_tensors(&mut self, weights: &HfWeights) -> Result<(), ConfigError> {
        self.own_output = weights.find("lm_head.weight").is_some();
        let mut known: HashSet<String> = self.decoder_tensors().collect();
        let names =
            encoder::EncoderNames::of(&self.encoder, &crate::builder::Weights::Hf(weights.clone()));
        known.extend(encoder::known_tensors(&self.encoder, &names));
        // The same table under three names.
        for of in ["encoder", "decoder"] {
            known.insert(format!("{of}.embed_tokens.weight"));
        }
        known.insert("lm_head.weight".to_string());
        let tensors = weights.tensors().map(|(_, info)| info.name());
        decoder::refuse(tensors, &known)
    }

    fn decoder_tensors(&self) -> impl Iterator<Item = String> + '_ {
        let mlp: &[&str] = match self.encoder.feed_forward {
            FeedForward::Gated(_) => &["wi_0", "wi_1", "wo"],
            FeedForward::Plain(_) => &["wi", "wo"],
        };
        let of_layer = move |at: usize| {
            let block = format!("decoder.block.{at}.layer");
            let mut all = Vec::new();
            for part in ["q", "k", "v", "o"] {
                all.push(format!("{block}.0.SelfAttention.{part}.weight"));
                all.push(format!("{block}.1.EncDecAttention.{part}.weight"));
            }
            all.extend(
                mlp.iter()
                    .map(|part| format!("{block}.2.DenseReluDense.{part}.weight")),
            );
            all.extend([0, 1, 2].map(|half| format!("{block}.{half}.layer_norm.weight")));
            all
        };
        let outside = [
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "decoder.final_layer_norm.weight",
        ];
        let outside = outside.into_iter().map(str::to_string);
        (0..self.decoder_layers).flat_map(of_layer).chain(outside)
    }
}

/// Whether a `model_type` is one of these.
pub(crate) fn is_model_type(name: &str) -> bool {
    encoder::of_model_type(name).is_some_and(EncoderFamily::has_decoder)
}
