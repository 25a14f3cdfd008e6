//! Language models that are served: slots that each write one text at a time, over weights that are shared.
//!
//! A text is written by a slot alone, from an empty cache, with its own seed: it is what the same request gets on an
//! idle server, whoever else is served.

use std::sync::Arc;
#[cfg(feature = "grammar")]
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use axum::http::StatusCode;
use tercet::{DType, Device};
use tercet_models::constraint::ConstraintError;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{Grammar, Grammars};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    DecoderOptions, Event, Finish, Generator, ModelError, ModelFiles, Products, Sampling,
    SamplingOptions, Tokenizer, WriteOptions, turn_ends, write,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error::{Refusal, ServeError};
use crate::metrics::{Metrics, count};
use crate::options::ServeOptions;
use crate::pool::{Load, Pool};

/// How a model is compiled.
#[derive(Clone)]
pub struct Placement {
    /// Where it runs.
    pub device: Device,
    /// The float dtype of the arithmetic.
    pub dtype: DType,
    /// What language models round rows to in products.
    pub products: Products,
    /// Tokens of a text at most, prompt included; as the model was trained by default.
    pub context: Option<usize>,
}

/// A text to be written.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    /// What the text has to be.
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<Grammar>,
    pub(crate) seed: u64,
}

/// What becomes of a text.
#[derive(Debug)]
pub(crate) enum Reply {
    /// More of it.
    Text(String),
    /// It has ended, after so many tokens.
    Done(Finish, usize),
    /// It failed.
    Failed(Refusal),
}

/// A language model with its slots.
pub(crate) struct Language {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
    pub(crate) context: usize,
    vocab: usize,
    /// Made when a request first constrains its text.
    #[cfg(feature = "grammar")]
    grammars: Arc<OnceLock<Result<Grammars, ConstraintError>>>,
    eos: Arc<[u32]>,
    deadline: std::time::Duration,
    pool: Pool<Slot>,
}

/// What a worker has for itself: the compiled model, which takes the greatest logit where a request says nothing else.
type Slot = Generator;

/// Compiles the model for a slot. All of them, and all ways of choosing tokens, share kernels and mapped weights.
fn slot(
    files: &ModelFiles,
    placement: &Placement,
    context: usize,
) -> Result<Slot, tercet_models::Error> {
    let decoder = files.decoder(|spec| DecoderOptions {
        context,
        chunk: 512.min(context),
        dtype: placement.dtype,
        products: placement.products,
        sampling: Some(Sampling::GREEDY),
        ..DecoderOptions::new(spec)
    })?;
    Ok(decoder.generator(&placement.device)?)
}

impl Language {
    pub(crate) fn load(
        name: &str,
        files: ModelFiles,
        placement: Placement,
        options: &ServeOptions,
    ) -> Result<Language, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let spec = files.decoder_spec().map_err(failed)?;
        let tokenizer = Arc::new(files.tokenizer().map_err(failed)?);
        let template = ChatTemplate::of(&files, &tokenizer).map_err(failed)?;
        let context = placement.context.unwrap_or(spec.context);
        let slots = (0..options.slots).map(|_| slot(&files, &placement, context));
        let slots: Result<Vec<Slot>, tercet_models::Error> = slots.collect();
        let pool = Pool::start(name, slots.map_err(failed)?, options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        let eos = turn_ends(&spec.eos, &tokenizer).into();
        Ok(Language {
            tokenizer,
            template,
            context,
            vocab: spec.vocab,
            #[cfg(feature = "grammar")]
            grammars: Arc::default(),
            eos,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.pool.load()
    }

    /// Queues a text. Who drops the receiver ends it.
    ///
    /// # Errors
    /// A prompt that does not fit the context, a bias of a token that the model does not have, or a full queue.
    pub(crate) fn start(
        &self,
        request: Request,
        metrics: &Arc<Metrics>,
    ) -> Result<UnboundedReceiver<Reply>, Refusal> {
        let (n, context) = (request.prompt.len(), self.context);
        if n == 0 {
            return Err(Refusal::bad(
                "the prompt has no tokens; a model needs at least one",
            ));
        }
        if n > context {
            let message =
                format!("the prompt has {n} tokens; the context of the model is {context}");
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "context_length_exceeded",
                message,
            ));
        }
        let mut biased = request.sampling.logit_bias.iter().map(|(token, _)| *token);
        if let Some(token) = biased.find(|&t| t as usize >= self.vocab) {
            return Err(Refusal::bad(format!(
                "token {token} of `logit_bias` is outside the vocabulary of {}",
                self.vocab
            )));
        }
        let (send, receive) = unbounded_channel();
        let job = Job {
            request,
            tokenizer: Arc::clone(&self.tokenizer),
            #[cfg(feature = "grammar")]
            grammars: (Arc::clone(&self.grammars), self.vocab),
            eos: Arc::clone(&self.eos),
            until: Instant::now() + self.deadline,
            replies: send,
            metrics: Arc::clone(metrics),
        };
        let queued = self.pool.submit(move |slot| job.run(slot));
        queued.map_err(|_| Refusal::busy())?;
        Ok(receive)
    }
}

/// A schema or grammar that is refused is the client's, all else ours.
fn refusal(e: &tercet_models::Error) -> Refusal {
    match e {
        tercet_models::Error::Model(ModelError::Constraint(
            e @ ConstraintError::Grammar { .. },
        )) => Refusal::bad(format!("field `response_format`: {e}")),
        e => Refusal::failed(e),
    }
}

/// A text on its way.
struct Job {
    request: Request,
    tokenizer: Arc<Tokenizer>,
    #[cfg(feature = "grammar")]
    grammars: (Arc<OnceLock<Result<Grammars, ConstraintError>>>, usize),
    eos: Arc<[u32]>,
    until: Instant,
    replies: UnboundedSender<Reply>,
    metrics: Arc<Metrics>,
}

impl Job {
    fn run(self, slot: &mut Slot) {
        if self.replies.is_closed() {
            return count(&self.metrics.cancelled, 1);
        }
        if Instant::now() >= self.until {
            return self.fail(Refusal::late(), &self.metrics.late);
        }
        let before = slot.moved_to();
        let written = self.write(slot);
        // The slot keeps what it was compiled for then.
        if slot.moved_to() != before {
            eprintln!("note: {}", slot.note().unwrap_or_default());
        }
        match written {
            Ok(reply) => drop(self.replies.send(reply)),
            Err(e) => drop(self.replies.send(Reply::Failed(refusal(&e)))),
        }
    }

    /// The constraint that the request asks for.
    #[cfg(feature = "grammar")]
    fn constrain(&self, generator: &mut Generator) -> Result<(), tercet_models::Error> {
        let Some(grammar) = &self.request.grammar else {
            return Ok(());
        };
        let (grammars, vocab) = &self.grammars;
        let grammars = grammars.get_or_init(|| Grammars::new(&self.tokenizer, &self.eos, *vocab));
        let grammars = grammars.as_ref().map_err(|e| ModelError::from(e.clone()))?;
        let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
        Ok(generator.set_constraint(Some(Box::new(constraint)))?)
    }

    fn fail(&self, refusal: Refusal, counter: &AtomicU64) {
        count(counter, 1);
        // Who has left needs no answer.
        let _ = self.replies.send(Reply::Failed(refusal));
    }

    fn write(&self, generator: &mut Generator) -> Result<Reply, tercet_models::Error> {
        let Request {
            prompt,
            max_tokens,
            stop,
            sampling,
            seed,
            ..
        } = &self.request;
        generator.reset();
        #[cfg(feature = "grammar")]
        self.constrain(generator)?;
        generator.set_sampling(sampling)?;
        generator.set_seed(*seed);
        generator.skip_logits();
        let options = WriteOptions {
            max_tokens: *max_tokens,
            stop,
            eos: &self.eos,
        };
        let mut late = false;
        let written = write(generator, &self.tokenizer, prompt, &options, &mut |event| {
            late = Instant::now() >= self.until;
            let listened = match event {
                Event::Prompt(_) | Event::Text("", _) => !self.replies.is_closed(),
                Event::Text(text, _) => self.replies.send(Reply::Text(text.to_string())).is_ok(),
            };
            listened && !late
        })?;
        count(&self.metrics.prompt_tokens, prompt.len());
        count(&self.metrics.written_tokens, written.tokens.len());
        if written.finish == Finish::Cancelled {
            let counter = if late {
                &self.metrics.late
            } else {
                &self.metrics.cancelled
            };
            count(counter, 1);
            return Ok(Reply::Failed(Refusal::late()));
        }
        Ok(Reply::Done(written.finish, written.tokens.len()))
    }
}
