//! Text embedding with a compiled encoder.

use tercet::Device;

use super::super::ModelError;
use super::Encoder;
use super::runner::{EncoderRunner, EncoderTokens, OverlengthPolicy, all_tokens};
use crate::config::TextPooling;
use crate::maybe_async::{WaitMode, block_on_ready};
use crate::tokenizer::{TokenizedRow, Tokenizer};

/// A compiled sentence encoder with its tokenizer. The embedder turns texts into vectors, which
/// have length 1 if the model normalizes.
///
/// ```
/// # let dims = tercet_models::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// # let spec = tercet_models::EncoderSpec::bert(dims);
/// # let weights = tercet_models::Weights::Dummy(tercet_models::DummyWeights::dense());
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_models::Tokenizer::from_json(json.as_bytes())?;
/// use tercet::{DType, Device};
/// use tercet_models::{Embedder, Encoder, EncoderOutput};
/// let output = EncoderOutput::mean_normalized();
/// let encoder = Encoder::build(&spec, &weights, &output, DType::F32)?;
/// let mut embedder = Embedder::new(&encoder, tokenizer, &Device::cpu(), None, 16)?;
/// let vectors = embedder.embed(&["a b", "b"], &mut |_| true)?;
/// assert_eq!((vectors.len(), vectors[0].len()), (2, embedder.width()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Embedder {
    runner: EncoderRunner,
    tokenizer: Tokenizer,
    max_tokens: usize,
    width: usize,
    overlength: OverlengthPolicy,
    lower_case: bool,
    prompt: String,
    /// Number of tokens of the prompt.
    prompt_tokens: usize,
    /// Rule for the token whose state represents a text, if the graph has a `place` input. The two
    /// numbers after the rule are the padded length and the padding token id.
    pooling: Option<(TextPooling, usize, u32)>,
}

impl Embedder {
    /// Compiles `encoder` for texts of at most `most` tokens and batches of `batch` texts. The
    /// encoder must be built for [`EncoderOutput::Embedding`](super::EncoderOutput). The default
    /// batch is 32, or smaller for long texts. Longer texts are an error ([`Self::truncating`]).
    ///
    /// # Errors
    /// Same errors as [`Encoder::compile`]; [`ModelError::Unsupported`] if the graph has no embedding output.
    pub fn new(
        encoder: &Encoder,
        tokenizer: Tokenizer,
        device: &Device,
        batch: Option<usize>,
        most: usize,
    ) -> Result<Embedder, ModelError> {
        let pad = tokenizer.pad().unwrap_or(0);
        let runner = EncoderRunner::new(encoder, device, pad, (batch, most))?;
        if runner.output() != Some("embedding") {
            return Err(ModelError::Unsupported(
                "the encoder was built without pooling; build it with the sentence modules of its folder"
                    .into(),
            ));
        }
        Ok(Embedder {
            runner,
            tokenizer,
            max_tokens: most,
            width: encoder.width,
            overlength: OverlengthPolicy::Error,
            lower_case: false,
            prompt: String::new(),
            prompt_tokens: 0,
            pooling: None,
        })
    }

    /// Enables truncation of texts that are too long.
    #[must_use]
    pub fn truncating(mut self, cut: bool) -> Embedder {
        self.set_truncating(cut);
        self
    }

    /// Sets the pooling rule of a graph with a `place` input ([`Encoder::from_text_tower`]), the model's
    /// context length and its padding token id.
    pub(crate) fn pooled(mut self, pooling: TextPooling, (context, pad): (usize, u32)) -> Embedder {
        let pad = self.tokenizer.pad().unwrap_or(pad);
        self.pooling = Some((pooling, context, pad));
        self
    }

    /// Same setting as [`Self::truncating`], for later calls.
    pub fn set_truncating(&mut self, cut: bool) {
        self.overlength = match cut {
            true => OverlengthPolicy::Truncate,
            false => OverlengthPolicy::Error,
        };
    }

    /// Enables conversion of texts to lower case, as some model folders require.
    #[must_use]
    pub fn lower_case(mut self, lower: bool) -> Embedder {
        self.lower_case = lower;
        self
    }

    /// Sets a prompt that is prepended to each text.
    ///
    /// # Errors
    /// [`crate::Error`] of the tokenizer.
    pub fn with_prompt(mut self, prompt: &str) -> Result<Embedder, crate::Error> {
        self.prompt = prompt.to_string();
        self.prompt_tokens = 0;
        if !prompt.is_empty() {
            let row = self.tokenizer.encode_row(&self.text(""), None, None)?;
            let around = self.tokenizer.encode_row("", None, None)?;
            let ended = row.ids.last() == around.ids.last() && !around.ids.is_empty();
            self.prompt_tokens = row.ids.len() - usize::from(ended);
        }
        Ok(self)
    }

    /// Number of elements of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Maximum tokens of a text before truncation or an error.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    fn text(&self, text: &str) -> String {
        let whole = format!("{}{text}", self.prompt);
        match self.lower_case {
            true => whole.to_lowercase(),
            false => whole,
        }
    }

    /// Embeddings of these texts, in order. Texts of similar length share a batch. `progress`
    /// receives the number of finished texts after each batch. If `progress` returns false, the
    /// call stops early and the remaining embeddings are empty.
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`] before any text is computed; [`crate::Error`] of the tokenizer
    /// or the device.
    pub fn embed<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        block_on_ready(self.embed_in(texts, progress, WaitMode::Blocking))
    }

    /// Async form of [`Self::embed`]: awaits the device instead of blocking the thread, if the
    /// executor supports it (browsers require it).
    ///
    /// # Errors
    /// Same errors as [`Self::embed`].
    pub async fn embed_async<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        self.embed_in(texts, progress, WaitMode::Awaiting).await
    }

    async fn embed_in<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        let written = texts.iter().map(|text| (self.text(text.as_ref()), None));
        let written: Vec<(String, Option<String>)> = written.collect();
        let limit = (self.max_tokens, self.overlength);
        let mut all = all_tokens(&self.tokenizer, &written, limit)?;
        for own in &mut all {
            own.unpooled_prefix = self.prompt_tokens;
        }
        self.embed_rows(all, progress, waits).await
    }

    /// Embeddings of texts that are tokenized already, with the special tokens of the model and
    /// without the prompt. Otherwise like [`Self::embed`].
    ///
    /// # Errors
    /// [`ModelError::NoTokens`], [`ModelError::TextTooLong`] before any text is computed;
    /// [`crate::Error`] of the device, also for a token outside of the vocabulary.
    pub fn embed_tokens(
        &mut self,
        texts: Vec<Vec<u32>>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        let most = self.max_tokens;
        let rows = texts.into_iter().enumerate().map(|(at, mut ids)| {
            if self.overlength == OverlengthPolicy::Truncate {
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
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        block_on_ready(self.embed_rows(rows, progress, WaitMode::Blocking))
    }

    async fn embed_rows(
        &mut self,
        mut all: Vec<EncoderTokens>,
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        for own in &mut all {
            if let Some((pooling, context, pad)) = self.pooling {
                own.place = place(pooling, &mut own.row, (context, pad));
            }
        }
        let mut embeddings = vec![Vec::new(); all.len()];
        let take = &mut |at: usize, row: &[f32]| embeddings[at] = row.to_vec();
        self.runner.run_all(&all, progress, take, waits).await?;
        Ok(embeddings)
    }
}

/// Index of the token whose state represents a text. If this token has the last position of the
/// context, the text is padded to the context length.
fn place(pooling: TextPooling, row: &mut TokenizedRow, (context, pad): (usize, u32)) -> usize {
    let ids = &mut row.ids;
    match pooling {
        TextPooling::First(end) => ids.iter().position(|id| *id == end).unwrap_or(0),
        TextPooling::Greatest => {
            let most = ids.iter().max().copied();
            ids.iter().position(|id| Some(*id) == most).unwrap_or(0)
        }
        TextPooling::Last => {
            ids.resize(context, pad);
            context - 1
        }
    }
}
