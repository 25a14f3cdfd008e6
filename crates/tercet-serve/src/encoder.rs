//! Sentence encoders that are served: one at a time runs a batch.

use tercet_models::{Embedder, EncoderOptions, ModelError, ModelFiles, Tokenizer};

use crate::error::{Refusal, ServeError};
use crate::language::Placement;
use crate::options::ServeOptions;
use crate::pool::{Load, Pool};

/// A sentence encoder.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    max_len: usize,
    deadline: std::time::Duration,
    pool: Pool<Embedder>,
}

/// Embeddings, and the tokens they were made of.
pub(crate) struct Embedded {
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

impl Encoder {
    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &Placement,
        options: &ServeOptions,
    ) -> Result<Encoder, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let made = || -> Result<(Embedder, Tokenizer, usize), tercet_models::Error> {
            let positions = files.text_positions()?;
            let options = EncoderOptions {
                dtype: placement.dtype,
                most: placement.context.map(|most| most.min(positions)),
                ..EncoderOptions::default()
            };
            let embedder = files.embedder(&placement.device, &options)?;
            let max_len = embedder.most_tokens();
            let tokenizer = files.tokenizer()?;
            Ok((embedder, tokenizer, max_len))
        };
        let (embedder, tokenizer, max_len) = made().map_err(failed)?;
        let pool = Pool::start(name, vec![embedder], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(Encoder {
            tokenizer,
            max_len,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.pool.load()
    }

    /// The embeddings of texts. Texts that are too long are cut where `cut` says so, else refused.
    ///
    /// # Errors
    /// A text that is too long, a full queue, the deadline, the engine.
    pub(crate) async fn embed(&self, texts: Vec<String>, cut: bool) -> Result<Embedded, Refusal> {
        let mut tokens = 0;
        for text in &texts {
            let ids = self
                .tokenizer
                .encode(text, true)
                .map_err(|e| Refusal::failed(&e))?;
            tokens += ids.len().min(self.max_len);
        }
        let embed = move |embedder: &mut Embedder, go_on: &dyn Fn() -> bool| {
            embedder.set_cutting(cut);
            let rows = embedder.embed(&texts, &mut |_| go_on());
            rows.map_err(|e| refused("input", &e))
        };
        let rows = self.pool.ask(self.deadline, embed).await?;
        Ok(Embedded { rows, tokens })
    }
}

/// What an encoder says of texts of a field.
pub(crate) fn refused(field: &str, e: &tercet_models::Error) -> Refusal {
    match e {
        tercet_models::Error::Model(e @ ModelError::TextTooLong { .. }) => {
            Refusal::bad(format!("field `{field}`: {e}"))
        }
        e => Refusal::failed(e),
    }
}
