//! Serves rerankers: encoders that score pairs of a query and a document, one request at a time.

use tercet_models::{EncoderOptions, ModelFiles, TextClassifier, Tokenizer};

use crate::encoder::input_error;
use crate::error::{ApiError, ServeError};
use crate::language::ModelConfig;
use crate::options::ServeOptions;
use crate::pool::{PoolStatus, WorkerThreads};

/// A served reranker.
pub(crate) struct RerankerModel {
    deadline: std::time::Duration,
    pool: WorkerThreads<(TextClassifier, Tokenizer)>,
}

/// Scores of the documents, and the number of input tokens.
pub(crate) struct RerankResult {
    pub(crate) scores: Vec<f32>,
    pub(crate) tokens: usize,
}

impl RerankerModel {
    /// Whether an encoder is a reranker: its head classifies texts into one class, and its folder
    /// is not configured for embeddings.
    pub(crate) fn is(files: &ModelFiles) -> bool {
        let embeds = files.sentence().is_ok_and(|said| said.stated);
        let head = files.class_head();
        !embeds && head.is_ok_and(|head| !head.per_token && head.labels.len() == 1)
    }

    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<RerankerModel, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let made = || -> Result<(TextClassifier, Tokenizer), tercet_models::Error> {
            let positions = files.encoder_spec()?.context;
            let options = EncoderOptions {
                dtype: placement.dtype,
                max_tokens: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            let classifier = files.reranker(&placement.device, &options)?;
            Ok((classifier, files.tokenizer()?))
        };
        let worker = made().map_err(failed)?;
        let pool = WorkerThreads::start(name, vec![worker], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(RerankerModel {
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.pool.load()
    }

    /// Scores documents. Pairs that exceed the maximum length are truncated if `cut` is true,
    /// starting with the longer text.
    ///
    /// # Errors
    /// Returns an error if a pair is too long and `cut` is false, the queue is full, the deadline
    /// is exceeded or the engine fails.
    pub(crate) async fn rank(
        &self,
        query: String,
        documents: Vec<String>,
        cut: bool,
    ) -> Result<RerankResult, ApiError> {
        let rank = move |(classifier, tokenizer): &mut (TextClassifier, Tokenizer),
                         go_on: &dyn Fn() -> bool| {
            classifier.set_truncating(cut);
            let most = classifier.max_tokens();
            let mut tokens = 0;
            for document in &documents {
                let row = tokenizer.encode_row(&query, Some(document), Some(most));
                tokens += row.map_err(|e| ApiError::failed(&e))?.ids.len();
            }
            let scores = classifier.rerank_with_progress(&query, &documents, &mut |_| go_on());
            let scores = scores.map_err(|e| input_error("documents", &e))?;
            Ok(RerankResult { scores, tokens })
        };
        self.pool.run_job(self.deadline, rank).await
    }
}
