//! Language models that are served: slots of one compiled model, which write texts side by side.
//!
//! A text has a slot and a seed of its own, and each of its tokens is computed as it would be alone: it is what the same
//! request gets on an idle server, whoever else is served (ADR 0028).

use std::sync::Arc;
#[cfg(feature = "grammar")]
use std::sync::OnceLock;
use std::time::Instant;

use axum::http::StatusCode;
use tercet::{DType, Device};
use tercet_models::constraint::Constraint;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{ConstraintError, Grammar, Grammars};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    CacheFormat, Finish, ModelFiles, Products, SamplingOptions, ScaledAdapter, Sequence, Tokenizer,
    turn_ends,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::engine::{Engine, Job, Replies};
use crate::error::{Refusal, ServeError};
use crate::likely::Scored;
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::pool::Load;
use crate::writer::{Drafting, compiled};

/// How a model is compiled.
#[derive(Clone)]
pub struct Placement {
    /// Where it runs.
    pub device: Device,
    /// The float dtype of the arithmetic.
    pub dtype: DType,
    /// The type of the caches of language models; that of the arithmetic where it is none.
    pub cache: Option<CacheFormat>,
    /// What language models round rows to in products.
    pub products: Products,
    /// Tokens of a text at most, prompt included; as the model was trained by default.
    pub context: Option<usize>,
    /// Adapters of a language model with their names: a request takes the one that it names behind the model's name and a
    /// colon, or none. All of them lie beside the model's weights.
    pub adapters: Vec<(String, ScaledAdapter)>,
    /// What proposes tokens of language models, which have one slot and no adapters then.
    pub draft: Option<Drafting>,
}

/// A text to be written.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    /// What the text has to be, and the field that says so.
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    pub(crate) seed: u64,
    /// How many of the likeliest tokens are told beside each token and its probability; nothing of either for none.
    pub(crate) likeliest: Option<usize>,
}

/// What becomes of a text.
#[derive(Debug)]
pub(crate) enum Reply {
    /// More of it, and the probabilities of the tokens since, where they are asked for.
    Text(String, Vec<Scored>),
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
    #[cfg(feature = "grammar")]
    constraints: Arc<Constraints>,
    eos: Vec<u32>,
    deadline: std::time::Duration,
    /// Names of adapters, in the order in which sequences know them.
    adapters: Vec<String>,
    engine: Engine,
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
        let sizes = [context, options.slots.max(1)];
        let writer = compiled(name, &files, &tokenizer, &placement, sizes)?;
        let engine = Engine::start(name, writer, Arc::clone(&tokenizer), options.queue);
        let engine = engine.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        let eos = turn_ends(&spec.eos, &tokenizer);
        Ok(Language {
            #[cfg(feature = "grammar")]
            constraints: Arc::new(Constraints {
                tokenizer: Arc::clone(&tokenizer),
                eos: eos.clone(),
                vocab: spec.vocab,
                grammars: OnceLock::new(),
                turn: tokio::sync::Mutex::new(()),
            }),
            tokenizer,
            template,
            context,
            vocab: spec.vocab,
            eos,
            deadline: options.deadline,
            adapters: placement
                .adapters
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
            engine,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.engine.load()
    }

    /// The names of the adapters that requests may take.
    pub(crate) fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// Queues texts, written with this adapter, whose pieces come with their places among them. Who drops the receiver ends them.
    ///
    /// # Errors
    /// More texts than the server takes, a prompt that does not fit the context, a bias of a token that the model does not
    /// have, a grammar that is none, or a full queue.
    pub(crate) async fn start(
        &self,
        requests: Vec<Request>,
        adapter: Option<usize>,
        metrics: &Arc<Metrics>,
    ) -> Result<UnboundedReceiver<(usize, Reply)>, Refusal> {
        let (count, most) = (requests.len(), self.engine.capacity());
        if count > most {
            return Err(Refusal::bad(format!(
                "the request asks for {count} texts; the server takes {most} at once"
            )));
        }
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        let until = Instant::now() + self.deadline;
        let room = self.engine.check_room(count);
        room.map_err(|_| Refusal::busy())?;
        let (send, receive) = unbounded_channel();
        let mut jobs = Vec::with_capacity(count);
        for (index, request) in requests.into_iter().enumerate() {
            #[cfg(feature = "grammar")]
            let constraint = self.constraint(request.grammar).await?;
            #[cfg(not(feature = "grammar"))]
            let constraint: Option<Box<dyn Constraint>> = None;
            jobs.push(Job {
                sequence: Sequence {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens,
                    eos: self.eos.clone(),
                    sampling: request.sampling,
                    seed: request.seed,
                    constraint,
                    adapter,
                    wants_logits: request.likeliest.is_some(),
                },
                stop: request.stop,
                likeliest: request.likeliest,
                until,
                replies: Replies {
                    index,
                    to: send.clone(),
                },
                metrics: Arc::clone(metrics),
            });
        }
        self.engine.submit(jobs).map_err(|_| Refusal::busy())?;
        Ok(receive)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
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
        match biased.find(|&t| t as usize >= self.vocab) {
            Some(token) => Err(Refusal::bad(format!(
                "token {token} of `logit_bias` is outside the vocabulary of {}",
                self.vocab
            ))),
            None => Ok(()),
        }
    }

    /// What a text is constrained by. It is made beside the engine, which would keep all texts waiting, and one at a time.
    #[cfg(feature = "grammar")]
    async fn constraint(
        &self,
        grammar: Option<(&'static str, Grammar)>,
    ) -> Result<Option<Box<dyn Constraint>>, Refusal> {
        let Some((field, grammar)) = grammar else {
            return Ok(None);
        };
        let of = Arc::clone(&self.constraints);
        let turn = self.constraints.turn.lock().await;
        let made = tokio::task::spawn_blocking(move || of.make(&grammar)).await;
        drop(turn);
        match made {
            Ok(Ok(constraint)) => Ok(Some(constraint)),
            Ok(Err(e @ ConstraintError::Grammar { .. })) => {
                Err(Refusal::bad(format!("field `{field}`: {e}")))
            }
            Ok(Err(e)) => Err(Refusal::failed(&e)),
            Err(_) => Err(Refusal::lost()),
        }
    }
}

/// Makes constraints of grammars.
#[cfg(feature = "grammar")]
struct Constraints {
    tokenizer: Arc<Tokenizer>,
    eos: Vec<u32>,
    vocab: usize,
    /// Made when a request first constrains its text.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
    turn: tokio::sync::Mutex<()>,
}

#[cfg(feature = "grammar")]
impl Constraints {
    fn make(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, ConstraintError> {
        let new = || Grammars::new(&self.tokenizer, &self.eos, self.vocab);
        let grammars = self.grammars.get_or_init(new).as_ref();
        let constraint = grammars
            .map_err(ConstraintError::clone)?
            .constraint(grammar)?;
        Ok(Box::new(constraint))
    }
}
