//! Serves sentence encoders. One worker computes the texts of all waiting requests together.

use tercet_models::{EncoderOptions, EncoderTextReader, EncoderTokens, ModelError, ModelFiles};

use crate::error::{ApiError, ServeError};
use crate::language::ModelConfig;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;
use crate::queue_ticket::QueueTicket;
use crate::row_batcher::RowBatcher;

/// A served sentence encoder.
pub(crate) struct EncoderModel {
    reader: EncoderTextReader,
    width: usize,
    batcher: RowBatcher<EncoderTokens, Vec<f32>>,
}

/// What a request embeds.
pub(crate) enum EncoderInputs {
    Texts(Vec<String>),
    /// Tokens of the model, with its special tokens.
    Tokens(Vec<Vec<u32>>),
}

/// Embeddings, and the number of input tokens.
pub(crate) struct EmbeddingResult {
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

impl EncoderModel {
    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<EncoderModel, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let made = || {
            let positions = files.text_positions()?;
            let asked = EncoderOptions {
                dtype: placement.dtype,
                max_tokens: placement.context.map(|most| most.min(positions)),
                pooling: options.pooling,
                ..EncoderOptions::default()
            };
            files.embedder(&placement.device, &asked)
        };
        let mut embedder = made().map_err(failed)?;
        let (reader, width) = (embedder.text_reader(), embedder.width());
        let embed = move |rows, go_on: &mut dyn FnMut() -> bool| {
            let rows = embedder.embed_rows(rows, &mut |_| go_on());
            rows.map_err(|e| input_error("input", &e))
        };
        let batcher = RowBatcher::start(name, options.queue, embed);
        let batcher = batcher.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(EncoderModel {
            reader,
            width,
            batcher,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.batcher.load()
    }

    /// Number of elements of an embedding.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Embeds texts or tokens. Those that exceed the model's maximum length are truncated if `cut`
    /// is true.
    ///
    /// # Errors
    /// Returns an error if a text is too long and `cut` is false, a token is unknown, the queue is
    /// full, the deadline is exceeded or the engine fails.
    pub(crate) async fn embed(
        &self,
        inputs: EncoderInputs,
        cut: bool,
        ticket: &QueueTicket,
    ) -> Result<EmbeddingResult, ApiError> {
        let rows = match inputs {
            EncoderInputs::Texts(texts) => {
                let reader = self.reader.clone();
                let bytes = texts.iter().map(String::len).sum();
                let read = move || reader.read(&texts, cut);
                off_the_event_loop(bytes, read).await?
            }
            EncoderInputs::Tokens(rows) => {
                self.check_tokens(&rows)?;
                self.reader.read_ids(rows, cut)
            }
        };
        let rows = rows.map_err(|e| input_error("input", &e))?;
        let tokens = rows.iter().map(EncoderTokens::len).sum();
        let rows = self.batcher.run(rows, ticket).await?;
        Ok(EmbeddingResult { rows, tokens })
    }

    fn check_tokens(&self, rows: &[Vec<u32>]) -> Result<(), ApiError> {
        let vocab = self.reader.tokenizer().vocab_len();
        let unknown = rows.iter().flatten().find(|id| **id as usize >= vocab);
        match unknown {
            None => Ok(()),
            Some(id) => Err(ApiError::bad_request(format!(
                "token {id} of `input` is outside the vocabulary of {vocab}; send texts, or tokens of the model's own tokenizer"
            ))),
        }
    }
}

/// Maximum bytes of texts that are tokenized on the threads of the sockets; more would delay other
/// requests.
const MAX_INLINE_BYTES: usize = 16 << 10;

/// Runs `read`, which tokenizes texts of `bytes` in total; long ones on another thread.
///
/// # Errors
/// Returns an error if the server is shutting down or `read` panics.
pub(crate) async fn off_the_event_loop<T: Send + 'static>(
    bytes: usize,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= MAX_INLINE_BYTES {
        return Ok(read());
    }
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_| ApiError::worker_lost())
}

/// Wraps an encoder error about the texts of a request field.
pub(crate) fn input_error(field: &str, e: &ModelError) -> ApiError {
    match e {
        ModelError::TextTooLong { .. }
        | ModelError::TextTooManyBytes { .. }
        | ModelError::TooManyAddedTokens { .. }
        | ModelError::NoTokens => ApiError::bad_request(format!("field `{field}`: {e}")),
        e => ApiError::failed(e),
    }
}
