//! `config.json` of text-to-text encoder-decoders (T5).

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::bounds::checked_layers;
use super::decoder::FeedForward;
use super::{ConfigError, ConfigFields, EncoderFamily, EncoderSpec, decoder, encoder};
use tercet_files::folder_weights::HfWeights;

/// The specification of a text-to-text encoder-decoder (T5, T5 1.1 and Flan-T5). The decoder has
/// the same widths, heads, norms and relative-position buckets as the encoder, and adds
/// cross-attention to the encoder's output. Encoder and decoder share the token embeddings.
///
/// ```
/// use tercet_networks::Seq2SeqSpec;
///
/// let json = r#"{
///     "model_type": "t5", "is_encoder_decoder": true, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4,
///     "num_layers": 2, "num_decoder_layers": 3, "vocab_size": 300, "feed_forward_proj": "gated-gelu",
///     "decoder_start_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
/// }"#;
/// let spec = Seq2SeqSpec::from_json(&serde_json::from_str(json)?)?;
/// assert_eq!((spec.encoder.layers.len(), spec.decoder_layers), (2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Seq2SeqSpec {
    /// The encoder. The decoder has the same widths, heads, norms and feed-forward networks.
    pub encoder: EncoderSpec,
    /// Number of decoder layers.
    pub decoder_layers: usize,
    /// Whether the decoder's hidden states are divided by the square root of the hidden width
    /// before the output projection. Models trained with tied embeddings need this division.
    pub scaled_output: bool,
    /// Whether the output projection has a separate matrix instead of the embedding matrix. The
    /// tensors of the folder decide it.
    pub untied_output: bool,
    /// The decoder's start token. This token precedes the generated text and is not part of it.
    pub start: u32,
    /// The end-of-sequence tokens; may be empty.
    pub eos: Vec<u32>,
}

impl Seq2SeqSpec {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Seq2SeqSpec, ConfigError> {
        // The encoder's reader also rejects unknown fields.
        let encoder = EncoderSpec::from_json(json)?;
        let fields = ConfigFields::new(json, "");
        fields.only("model_type", "t5", |_| encoder.family.has_decoder())?;
        fields.only("is_encoder_decoder", "true", |v| v.as_bool() == Some(true))?;
        let layers = fields.opt_size("num_decoder_layers")?;
        let tied = fields.opt_bool("tie_word_embeddings")?;
        let scaled = fields.opt_bool("scale_decoder_outputs")?;
        let start = fields.opt_token("decoder_start_token_id")?;
        let spec = Seq2SeqSpec {
            decoder_layers: checked_layers(
                "num_decoder_layers",
                layers.unwrap_or(encoder.layers.len()),
            )?,
            // Newer versions of transformers write `scale_decoder_outputs`; without it, tied
            // embeddings imply it.
            scaled_output: scaled.unwrap_or(tied != Some(false)),
            untied_output: false,
            start: start.unwrap_or(encoder.pad),
            eos: fields.tokens("eos_token_id")?,
            encoder,
        };
        spec.check()?;
        Ok(spec)
    }

    /// Checks that the special tokens are inside the vocabulary.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let vocab = self.encoder.vocab;
        let mut all = self.eos.iter().chain([&self.start]);
        let beyond = all.find(|id| **id as usize >= vocab);
        super::ensure(beyond.is_none(), || {
            let id = beyond.copied().unwrap_or_default();
            format!("the special token {id} is beyond the vocabulary of {vocab}")
        })
    }

    /// Sets `untied_output` from the folder's tensors, and rejects tensors that the model does not
    /// have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`].
    pub(crate) fn settle_tensors(&mut self, weights: &HfWeights) -> Result<(), ConfigError> {
        self.untied_output = weights.find("lm_head.weight").is_some();
        let mut known: HashSet<String> = self.decoder_tensors().collect();
        let names = encoder::EncoderNames::new(
            &self.encoder,
            &crate::weights::Weights::Hf(weights.clone()),
        );
        known.extend(encoder::known_tensors(&self.encoder, &names));
        // Some folders store copies of the shared embedding table under the names inserted here.
        for of in ["encoder", "decoder"] {
            known.insert(format!("{of}.embed_tokens.weight"));
        }
        known.insert("lm_head.weight".to_string());
        let tensors = weights.tensors().map(|(_, info)| info.name());
        decoder::reject_names(tensors, &known)
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

/// Whether `name` is the `model_type` of a supported encoder-decoder.
#[must_use]
pub fn is_model_type(name: &str) -> bool {
    encoder::for_model_type(name).is_some_and(EncoderFamily::has_decoder)
}
