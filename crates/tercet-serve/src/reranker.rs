//! Serves rerankers: encoders that score pairs of a query and a document. One worker computes the
//! pairs of all waiting requests together.

use tercet_models::{EncoderOptions, EncoderTextReader, EncoderTokens, ModelFiles};

use crate::encoder::{input_error, off_the_event_loop};
use crate::error::{ApiError, ServeError};
use crate::language::ModelConfig;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;
use crate::queue_ticket::QueueTicket;
use crate::row_batcher::RowBatcher;

/// A served reranker.
pub(crate) struct RerankerModel {
    reader: EncoderTextReader,
    batcher: RowBatcher<EncoderTokens, f32>,
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
        let made = || {
            let positions = files.encoder_spec()?.context;
            let options = EncoderOptions {
                dtype: placement.dtype,
                max_tokens: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            files.reranker(&placement.device, &options)
        };
        let mut classifier = made().map_err(failed)?;
        let reader = classifier.text_reader();
        let rank = move |rows: Vec<EncoderTokens>, go_on: &mut dyn FnMut() -> bool| {
            let scores = classifier.score_rows(&rows, &mut |_| go_on());
            let scores = scores.map_err(|e| input_error("documents", &e))?;
            // A pair without a score was not computed, as no client waits for it.
            let scores = scores.into_iter().map(|of| of.first().copied());
            Ok(scores.map(|score| score.unwrap_or(f32::NAN)).collect())
        };
        let batcher = RowBatcher::start(name, options.queue, rank);
        let batcher = batcher.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(RerankerModel { reader, batcher })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.batcher.load()
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
        ticket: &QueueTicket,
    ) -> Result<RerankResult, ApiError> {
        let reader = self.reader.clone();
        let of_documents = documents.iter().map(|text| text.len() + query.len());
        let bytes = of_documents.sum();
        let read = move || reader.read_pairs(&query, &documents, cut);
        let rows = off_the_event_loop(bytes, read).await?;
        let rows = rows.map_err(|e| input_error("documents", &e))?;
        let tokens = rows.iter().map(EncoderTokens::len).sum();
        let scores = self.batcher.run(rows, ticket).await?;
        Ok(RerankResult { scores, tokens })
    }
}
