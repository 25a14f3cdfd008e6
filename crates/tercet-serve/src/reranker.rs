//! Rerankers that are served: encoders that score pairs of a query and a document, one request at a time.

use tercet_models::{Classifier, EncoderOptions, ModelFiles, Tokenizer};

use crate::encoder::refused;
use crate::error::{Refusal, ServeError};
use crate::language::Placement;
use crate::options::ServeOptions;
use crate::pool::{Load, Pool};

/// A reranker.
pub(crate) struct Reranker {
    deadline: std::time::Duration,
    pool: Pool<(Classifier, Tokenizer)>,
}

/// The score of each document, and the tokens that were read.
pub(crate) struct Ranked {
    pub(crate) scores: Vec<f32>,
    pub(crate) tokens: usize,
}

impl Reranker {
    /// Whether an encoder is one: its head has one class, of texts, and its folder does not say that it embeds.
    pub(crate) fn is(files: &ModelFiles) -> bool {
        let embeds = files.sentence().is_ok_and(|said| said.stated);
        let head = files.class_head();
        !embeds && head.is_ok_and(|head| !head.of_tokens && head.labels.len() == 1)
    }

    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &Placement,
        options: &ServeOptions,
    ) -> Result<Reranker, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let made = || -> Result<(Classifier, Tokenizer), tercet_models::Error> {
            let positions = files.encoder_spec()?.context;
            let options = EncoderOptions {
                dtype: placement.dtype,
                most: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            let classifier = files.reranker(&placement.device, &options)?;
            Ok((classifier, files.tokenizer()?))
        };
        let worker = made().map_err(failed)?;
        let pool = Pool::start(name, vec![worker], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(Reranker {
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.pool.load()
    }

    /// The scores of documents. Pairs that are too long are cut where `cut` says so, the longer text of the two first; else
    /// refused.
    ///
    /// # Errors
    /// A pair that is too long, a full queue, the deadline, the engine.
    pub(crate) async fn rank(
        &self,
        query: String,
        documents: Vec<String>,
        cut: bool,
    ) -> Result<Ranked, Refusal> {
        let rank = move |(classifier, tokenizer): &mut (Classifier, Tokenizer),
                         go_on: &dyn Fn() -> bool| {
            classifier.set_cutting(cut);
            let most = classifier.most_tokens();
            let mut tokens = 0;
            for document in &documents {
                let row = tokenizer.encode_row(&query, Some(document), None);
                let row = row.map_err(|e| Refusal::failed(&e))?;
                tokens += row.ids.len().min(most);
            }
            let scores = classifier.rerank(&query, &documents, &mut |_| go_on());
            let scores = scores.map_err(|e| refused("documents", &e))?;
            Ok(Ranked { scores, tokens })
        };
        self.pool.ask(self.deadline, rank).await
    }
}
