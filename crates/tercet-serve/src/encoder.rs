//! Serves sentence encoders. One worker runs one batch at a time.

use tercet_models::{Embedder, EncoderOptions, ModelError, ModelFiles, Tokenizer};

use crate::error::{ApiError, ServeError};
use crate::language::ModelConfig;
use crate::options::ServeOptions;
use crate::pool::{PoolStatus, WorkerThreads};

/// A served sentence encoder.
pub(crate) struct EncoderModel {
    tokenizer: Tokenizer,
    max_len: usize,
    width: usize,
    deadline: std::time::Duration,
    pool: WorkerThreads<Embedder>,
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
        let made = || -> Result<(Embedder, Tokenizer), tercet_models::Error> {
            let positions = files.text_positions()?;
            let options = EncoderOptions {
                dtype: placement.dtype,
                max_tokens: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            let embedder = files.embedder(&placement.device, &options)?;
            let tokenizer = files.tokenizer()?;
            Ok((embedder, tokenizer))
        };
        let (embedder, tokenizer) = made().map_err(failed)?;
        let (max_len, width) = (embedder.max_tokens(), embedder.width());
        let pool = WorkerThreads::start(name, vec![embedder], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(EncoderModel {
            tokenizer,
            max_len,
            width,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.pool.load()
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
    ) -> Result<EmbeddingResult, ApiError> {
        let tokens = match &inputs {
            EncoderInputs::Texts(texts) => self.count(texts, cut)?,
            EncoderInputs::Tokens(rows) => {
                self.check_tokens(rows)?;
                let kept = |row: &Vec<u32>| {
                    if cut {
                        row.len().min(self.max_len)
                    } else {
                        row.len()
                    }
                };
                rows.iter().map(kept).sum()
            }
        };
        let embed = move |embedder: &mut Embedder, go_on: &dyn Fn() -> bool| {
            embedder.set_truncating(cut);
            let rows = match inputs {
                EncoderInputs::Texts(texts) => {
                    embedder.embed_with_progress(&texts, &mut |_| go_on())
                }
                EncoderInputs::Tokens(rows) => embedder.embed_tokens(rows, &mut |_| go_on()),
            };
            rows.map_err(|e| input_error("input", &e))
        };
        let rows = self.pool.run_job(self.deadline, embed).await?;
        Ok(EmbeddingResult { rows, tokens })
    }

    /// The number of tokens of texts.
    fn count(&self, texts: &[String], cut: bool) -> Result<usize, ApiError> {
        let mut tokens = 0;
        for (at, text) in texts.iter().enumerate() {
            let bytes = text.len();
            if !cut && bytes > self.tokenizer.max_text_bytes(self.max_len) {
                let (text, most) = (at + 1, self.max_len);
                let e = ModelError::TextTooManyBytes { text, bytes, most };
                return Err(input_error("input", &e.into()));
            }
            let row = self.tokenizer.encode_row(text, None, Some(self.max_len));
            tokens += row.map_err(|e| ApiError::failed(&e))?.ids.len();
        }
        Ok(tokens)
    }

    fn check_tokens(&self, rows: &[Vec<u32>]) -> Result<(), ApiError> {
        let vocab = self.tokenizer.vocab_len();
        let unknown = rows.iter().flatten().find(|id| **id as usize >= vocab);
        match unknown {
            None => Ok(()),
            Some(id) => Err(ApiError::bad_request(format!(
                "token {id} of `input` is outside the vocabulary of {vocab}; send texts, or tokens of the model's own tokenizer"
            ))),
        }
    }
}

/// Wraps an encoder error about the texts of a request field.
pub(crate) fn input_error(field: &str, e: &tercet_models::Error) -> ApiError {
    match e {
        tercet_models::Error::Model(
            e @ (ModelError::TextTooLong { .. }
            | ModelError::TextTooManyBytes { .. }
            | ModelError::TooManyAddedTokens { .. }
            | ModelError::NoTokens),
        ) => ApiError::bad_request(format!("field `{field}`: {e}")),
        e => ApiError::failed(e),
    }
}
