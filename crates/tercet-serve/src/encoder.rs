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
    deadline: std::time::Duration,
    pool: WorkerThreads<Embedder>,
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
        let made = || -> Result<(Embedder, Tokenizer, usize), tercet_models::Error> {
            let positions = files.text_positions()?;
            let options = EncoderOptions {
                dtype: placement.dtype,
                max_tokens: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            let embedder = files.embedder(&placement.device, &options)?;
            let max_len = embedder.max_tokens();
            let tokenizer = files.tokenizer()?;
            Ok((embedder, tokenizer, max_len))
        };
        let (embedder, tokenizer, max_len) = made().map_err(failed)?;
        let pool = WorkerThreads::start(name, vec![embedder], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(EncoderModel {
            tokenizer,
            max_len,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.pool.load()
    }

    /// Embeds texts. Texts that exceed the model's maximum length are truncated if `cut` is true.
    ///
    /// # Errors
    /// Returns an error if a text is too long and `cut` is false, the queue is full, the deadline
    /// is exceeded or the engine fails.
    pub(crate) async fn embed(
        &self,
        texts: Vec<String>,
        cut: bool,
    ) -> Result<EmbeddingResult, ApiError> {
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
        let embed = move |embedder: &mut Embedder, go_on: &dyn Fn() -> bool| {
            embedder.set_truncating(cut);
            let rows = embedder.embed(&texts, &mut |_| go_on());
            rows.map_err(|e| input_error("input", &e))
        };
        let rows = self.pool.run_job(self.deadline, embed).await?;
        Ok(EmbeddingResult { rows, tokens })
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
