//! Language models that are served: slots that each write one text at a time, over weights that are shared.
//!
//! A text is written by a slot alone, from an empty cache, with its own seed: it is what the same request gets on an
//! idle server, whoever else is served.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use axum::http::StatusCode;
use tercet::{DType, Device};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    DecoderOptions, Event, Finish, Generator, ModelFiles, Products, Sampling, Tokenizer,
    WriteOptions, write,
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

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) temperature: f64,
    pub(crate) top_k: usize,
    pub(crate) top_p: f64,
}

/// A text to be written.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) choice: Choice,
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
    eos: Arc<[u32]>,
    deadline: std::time::Duration,
    pool: Pool<Slot>,
}

/// What a worker has for itself.
struct Slot {
    files: Arc<ModelFiles>,
    placement: Placement,
    context: usize,
    compiled: Option<(Choice, Generator)>,
}

impl Slot {
    /// The compiled model, empty, for a choice. Another choice than before is another graph: the kernels are there
    /// already, and the weights are mapped, not read.
    fn generator(&mut self, choice: Choice) -> Result<&mut Generator, tercet_models::Error> {
        if self.compiled.as_ref().is_none_or(|(c, _)| *c != choice) {
            self.settle();
            // The old cache goes before a new one comes.
            self.compiled = None;
            let decoder = self.files.decoder(|spec| DecoderOptions {
                context: self.context,
                chunk: 512.min(self.context),
                dtype: self.placement.dtype,
                products: self.placement.products,
                sampling: Some(Sampling {
                    temperature: choice.temperature,
                    top_k: choice.top_k,
                    top_p: choice.top_p,
                    ..Sampling::GREEDY
                }),
                ..DecoderOptions::new(spec)
            })?;
            let generator = decoder.generator(&self.placement.device)?;
            self.compiled = Some((choice, generator));
        }
        match &mut self.compiled {
            Some((_, generator)) => {
                generator.reset();
                Ok(generator)
            }
            None => unreachable!("invariant: it was compiled above"),
        }
    }
}

impl Slot {
    /// Remembers, and says, that the model left the range of the type that it was multiplied in.
    fn settle(&mut self) {
        let Some((_, generator)) = &self.compiled else {
            return;
        };
        if let Some(products) = generator.moved_to()
            && products != self.placement.products
        {
            self.placement.products = products;
            eprintln!("note: {}", generator.note().unwrap_or_default());
        }
    }
}

/// The choice that slots are compiled for before a request comes.
const FIRST: Choice = Choice {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
};

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
        let files = Arc::new(files);
        let slot = |_| {
            let (files, placement) = (Arc::clone(&files), placement.clone());
            let mut slot = Slot {
                files,
                placement,
                context,
                compiled: None,
            };
            slot.generator(FIRST).map(drop)?;
            Ok(slot)
        };
        let slots: Result<Vec<Slot>, tercet_models::Error> = (0..options.slots).map(slot).collect();
        let pool = Pool::start(name, slots.map_err(failed)?, options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        let eos = ends(&spec.eos, &tokenizer);
        Ok(Language {
            tokenizer,
            template,
            context,
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
    /// A prompt that does not fit the context, or a full queue.
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
        let (send, receive) = unbounded_channel();
        let job = Job {
            request,
            tokenizer: Arc::clone(&self.tokenizer),
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

/// The tokens that end a turn of chat models beside the one that ends a text.
const TURN_ENDS: [&str; 5] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
];

fn ends(eos: &[u32], tokenizer: &Tokenizer) -> Arc<[u32]> {
    let of_turns = TURN_ENDS.iter().filter_map(|t| tokenizer.token_to_id(t));
    eos.iter().copied().chain(of_turns).collect()
}

/// A text on its way.
struct Job {
    request: Request,
    tokenizer: Arc<Tokenizer>,
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
        let written = slot
            .generator(self.request.choice)
            .and_then(|generator| self.write(generator));
        slot.settle();
        match written {
            Ok(reply) => drop(self.replies.send(reply)),
            Err(e) => drop(self.replies.send(Reply::Failed(Refusal::failed(&e)))),
        }
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
            seed,
            ..
        } = &self.request;
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
