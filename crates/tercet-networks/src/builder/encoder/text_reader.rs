//! Tokenization of texts for an encoder, apart from the encoder.

use std::sync::Arc;

use super::super::ModelError;
use super::runner::{EncoderTokens, OverlengthPolicy, all_tokens};
use tercet_text::tokenizer::{TokenizedRow, Tokenizer};

/// Tokenizes texts for an [`Embedder`](super::Embedder) or a
/// [`TextClassifier`](super::TextClassifier). A server tokenizes requests on other threads than the
/// one that runs the encoder. Clones share the tokenizer.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// # let spec = tercet_networks::EncoderSpec::bert(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::tokenizer::Tokenizer::from_json(json.as_bytes())?;
/// use tercet::{DType, Device};
/// use tercet_networks::{Embedder, Encoder, EncoderOutput};
/// let output = EncoderOutput::mean_normalized();
/// let encoder = Encoder::build(&spec, &weights, &output, DType::F32)?;
/// let mut embedder = Embedder::new(&encoder, tokenizer, &Device::cpu(), None, 16)?;
/// let reader = embedder.text_reader();
/// let rows = std::thread::spawn(move || reader.read(&["a b", "b"], false)).join().unwrap()?;
/// assert_eq!(rows[0].len(), 2);
/// let vectors = embedder.embed_rows(rows, &mut |_| true)?;
/// assert_eq!(vectors, embedder.embed(&["a b", "b"])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EncoderTextReader {
    tokenizer: Arc<Tokenizer>,
    max_tokens: usize,
    lower_case: bool,
    prompt: String,
    /// Number of tokens of the prompt.
    prompt_tokens: usize,
}

impl EncoderTextReader {
    /// A reader without a prompt, for texts of at most `max_tokens` tokens.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, max_tokens: usize) -> EncoderTextReader {
        EncoderTextReader {
            tokenizer,
            max_tokens,
            lower_case: false,
            prompt: String::new(),
            prompt_tokens: 0,
        }
    }

    /// Adds the prompt, which has `tokens` tokens, and the conversion to lower case.
    pub(super) fn with_prompt(
        mut self,
        (prompt, tokens): (&str, usize),
        lower_case: bool,
    ) -> EncoderTextReader {
        self.prompt = prompt.to_string();
        self.prompt_tokens = tokens;
        self.lower_case = lower_case;
        self
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Maximum tokens of a text.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Tokens of texts, in order. Longer texts are truncated if `truncate` is true.
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`], [`ModelError::NoTokens`]; [`ModelError::Tokenizer`].
    pub fn read<T: AsRef<str>>(
        &self,
        texts: &[T],
        truncate: bool,
    ) -> Result<Vec<EncoderTokens>, ModelError> {
        let texts = texts.iter().map(|text| (self.spelled(text.as_ref()), None));
        let texts: Vec<(String, Option<String>)> = texts.collect();
        let limit = (self.max_tokens, OverlengthPolicy::from_truncate(truncate));
        let mut rows = all_tokens(&self.tokenizer, &texts, limit)?;
        for row in &mut rows {
            row.unpooled_prefix = self.prompt_tokens;
        }
        Ok(rows)
    }

    /// Tokens of pairs of `query` and each document, for a reranker. Of a pair that is too long, the
    /// longer text is truncated first if `truncate` is true.
    ///
    /// # Errors
    /// Same errors as [`Self::read`].
    pub fn read_pairs<T: AsRef<str>>(
        &self,
        query: &str,
        documents: &[T],
        truncate: bool,
    ) -> Result<Vec<EncoderTokens>, ModelError> {
        let pairs = documents.iter().map(|text| (query, Some(text.as_ref())));
        let pairs: Vec<(&str, Option<&str>)> = pairs.collect();
        let limit = (self.max_tokens, OverlengthPolicy::from_truncate(truncate));
        all_tokens(&self.tokenizer, &pairs, limit)
    }

    /// Texts that are tokenized already, with the special tokens of the model and without the
    /// prompt.
    ///
    /// # Errors
    /// [`ModelError::NoTokens`], [`ModelError::TextTooLong`].
    pub fn read_ids(
        &self,
        texts: Vec<Vec<u32>>,
        truncate: bool,
    ) -> Result<Vec<EncoderTokens>, ModelError> {
        let most = self.max_tokens;
        let rows = texts.into_iter().enumerate().map(|(at, mut ids)| {
            if truncate {
                ids.truncate(most);
            }
            let (text, tokens) = (at + 1, ids.len());
            match tokens {
                0 => Err(ModelError::NoTokens),
                _ if tokens > most => Err(ModelError::TextTooLong { text, tokens, most }),
                _ => Ok(EncoderTokens {
                    row: TokenizedRow {
                        type_ids: vec![0; tokens],
                        ids,
                    },
                    ..EncoderTokens::default()
                }),
            }
        });
        rows.collect()
    }

    /// The text with its prompt, in lower case if the model requires it.
    pub(super) fn spelled(&self, text: &str) -> String {
        let whole = format!("{}{text}", self.prompt);
        match self.lower_case {
            true => whole.to_lowercase(),
            false => whole,
        }
    }
}
