//! Text embedding with a compiled encoder.

use std::ops::Range;
use std::sync::Arc;

use tercet::Device;

use super::super::ModelError;
use super::Encoder;
use super::runner::{EncoderRunner, EncoderTokens, OverlengthPolicy};
use super::text_reader::EncoderTextReader;
use crate::config::TextPooling;
use crate::maybe_async::{WaitMode, block_on_ready};
use tercet_text::tokenizer::{TokenizedRow, Tokenizer};

/// A compiled sentence encoder with its tokenizer. The embedder turns texts into vectors, which
/// have length 1 if the model normalizes.
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
/// let vectors = embedder.embed(&["a b", "b"])?;
/// assert_eq!((vectors.len(), vectors[0].len()), (2, embedder.width()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Embedder {
    runner: EncoderRunner,
    tokenizer: Arc<Tokenizer>,
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
            tokenizer: Arc::new(tokenizer),
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
    #[must_use]
    pub fn pooled(mut self, pooling: TextPooling, (context, pad): (usize, u32)) -> Embedder {
        let pad = self.tokenizer.pad().unwrap_or(pad);
        self.pooling = Some((pooling, context, pad));
        self
    }

    /// Same setting as [`Self::truncating`], for later calls.
    pub fn set_truncating(&mut self, cut: bool) {
        self.overlength = OverlengthPolicy::from_truncate(cut);
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
    /// [`ModelError::Tokenizer`].
    pub fn with_prompt(mut self, prompt: &str) -> Result<Embedder, ModelError> {
        self.prompt = prompt.to_string();
        self.prompt_tokens = 0;
        if !prompt.is_empty() {
            let row = self
                .tokenizer
                .encode_row(&self.text_reader().spelled(""), None, None)?;
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

    /// The tokenization of this embedder, for other threads: with its prompt, without its setting of
    /// [`Self::truncating`].
    pub fn text_reader(&self) -> EncoderTextReader {
        EncoderTextReader::new(Arc::clone(&self.tokenizer), self.max_tokens)
            .with_prompt((&self.prompt, self.prompt_tokens), self.lower_case)
    }

    /// Cuts a text into overlapping pieces that the model reads as a whole, as ranges of bytes. A text
    /// of at most [`Self::max_tokens`] is one piece. Pieces begin and end at white space if possible.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`].
    pub fn pieces(&self, text: &str) -> Result<Vec<Range<usize>>, ModelError> {
        // A token has at least one byte.
        let around = self.token_count("")?;
        let is_short = around + text.len() <= self.max_tokens;
        // Without room beside the prompt no piece fits, and the encoder reports the text.
        if is_short || around >= self.max_tokens {
            return Ok(std::iter::once(0..text.len()).collect());
        }
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let (mut start, mut len) = (0, self.max_tokens.saturating_mul(BYTES_OF_TOKEN));
        loop {
            let end = self.piece_end(text, start, len)?;
            if let Some(last) = pieces.last().filter(|last| end <= last.end) {
                // The overlap alone fills the piece.
                start = last.end;
                continue;
            }
            pieces.push(start..end);
            if end == text.len() {
                return Ok(pieces);
            }
            len = end - start;
            // The next piece is longer than the overlap, so that every piece adds text.
            start = overlap_start(text, start..end).unwrap_or(end);
        }
    }

    /// The end, in bytes, of the longest piece from `start` whose tokens fit the model's input. The
    /// search begins with a piece of `len` bytes.
    fn piece_end(&self, text: &str, start: usize, len: usize) -> Result<usize, ModelError> {
        let most = self.max_tokens;
        let mut len = len;
        let mut best = None;
        // Each try comes closer; a few are enough for texts whose tokens vary in length.
        for _ in 0..MAX_PIECE_TRIES {
            let end = piece_boundary(text, start, start.saturating_add(len));
            let tokens = self.token_count(&text[start..end])?;
            if tokens <= most {
                best = best.max(Some(end));
                if end == text.len() || tokens * 10 >= most * 9 {
                    break;
                }
            }
            // The next length has slightly fewer tokens than the model reads.
            let scale = 0.95 * most as f64 / tokens.max(1) as f64;
            let scaled = ((end - start) as f64 * scale) as usize;
            len = match tokens <= most {
                true => scaled.max(end - start + 1),
                false => scaled.min((end - start) * 9 / 10).max(1),
            };
            if best.is_some_and(|best| start + len <= best) {
                break;
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
        // No length fits. The encoder reports it for the shortest.
        let first = text[start..].chars().next().map_or(1, char::len_utf8);
        Ok(start + first)
    }

    /// Number of tokens of a text with its prompt and the tokens around it.
    fn token_count(&self, text: &str) -> Result<usize, ModelError> {
        let text = self.text_reader().spelled(text);
        Ok(self.tokenizer.encode_row(&text, None, None)?.ids.len())
    }

    /// Embeddings of these texts, in order. Texts of similar length share a batch.
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`] before any text is computed; [`ModelError::Tokenizer`]
    /// or the device.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_with_progress(texts, &mut |_| true)
    }

    /// Like [`Self::embed`]. `progress` receives the number of finished texts after each batch. If
    /// `progress` returns false, the call stops early and the remaining embeddings are empty.
    ///
    /// # Errors
    /// Same errors as [`Self::embed`].
    pub fn embed_with_progress<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        block_on_ready(self.embed_in(texts, progress, WaitMode::Blocking))
    }

    /// Async form of [`Self::embed_with_progress`]: awaits the device instead of blocking the thread, if the
    /// executor supports it (browsers require it).
    ///
    /// # Errors
    /// Same errors as [`Self::embed`].
    pub async fn embed_async<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_in(texts, progress, WaitMode::Awaiting).await
    }

    async fn embed_in<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let truncate = self.overlength == OverlengthPolicy::Truncate;
        let rows = self.text_reader().read(texts, truncate)?;
        self.run_rows(rows, progress, waits).await
    }

    /// Embeddings of texts that are tokenized already, with the special tokens of the model and
    /// without the prompt. Otherwise like [`Self::embed_with_progress`].
    ///
    /// # Errors
    /// [`ModelError::NoTokens`], [`ModelError::TextTooLong`] before any text is computed;
    /// errors of the device, also for a token outside of the vocabulary.
    pub fn embed_tokens(
        &mut self,
        texts: Vec<Vec<u32>>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let truncate = self.overlength == OverlengthPolicy::Truncate;
        let rows = self.text_reader().read_ids(texts, truncate)?;
        self.embed_rows(rows, progress)
    }

    /// Embeddings of texts that [`Self::text_reader`] tokenized. Otherwise like
    /// [`Self::embed_with_progress`].
    ///
    /// # Errors
    /// errors of the device, also for a token outside of the vocabulary.
    pub fn embed_rows(
        &mut self,
        texts: Vec<EncoderTokens>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        block_on_ready(self.run_rows(texts, progress, WaitMode::Blocking))
    }

    async fn run_rows(
        &mut self,
        mut all: Vec<EncoderTokens>,
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
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

/// Typical number of bytes of a token, for the first piece of a text.
const BYTES_OF_TOKEN: usize = 4;
/// The part of a piece that the next piece repeats: one in this number.
const OVERLAP_FRACTION: usize = 5;
/// Maximum number of lengths that are tried for a piece.
const MAX_PIECE_TRIES: usize = 12;

/// The end of a piece at or before `end`: after white space in its second half, or else between
/// characters.
pub fn piece_boundary(text: &str, start: usize, end: usize) -> usize {
    if end >= text.len() {
        return text.len();
    }
    let end = (start + 1..=end)
        .rev()
        .find(|at| text.is_char_boundary(*at));
    let Some(end) = end else {
        // The first character is longer.
        let first = text[start..].chars().next().map_or(1, char::len_utf8);
        return start + first;
    };
    let half = start + (end - start) / 2;
    let space = text[start..end].rfind(char::is_whitespace);
    let space = space.map(|at| start + at).filter(|at| *at > half);
    space.unwrap_or(end)
}

/// The start of the next piece within a piece: the word that begins in the last part, or else the one
/// that reaches into it, or else a character. `None` if that would repeat the whole piece or nothing.
pub fn overlap_start(text: &str, piece: Range<usize>) -> Option<usize> {
    let least = piece.end - piece.len() / OVERLAP_FRACTION;
    let least = (least..piece.end).find(|at| text.is_char_boundary(*at))?;
    let word_after = |from: usize| {
        let word = text[from..piece.end].find(|c: char| !c.is_whitespace())?;
        Some(from + word)
    };
    let begins = text[least..piece.end].find(char::is_whitespace);
    let reaches = text[piece.start..least].rfind(char::is_whitespace);
    let start = begins
        .and_then(|at| word_after(least + at))
        .or_else(|| word_after(piece.start + reaches?))
        .unwrap_or(least);
    (start > piece.start).then_some(start)
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
