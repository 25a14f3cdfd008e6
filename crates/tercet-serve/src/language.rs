//! Serves language models: the slots of one compiled model generate several sequences in one batch.
//!
//! Each sequence has a separate slot and seed. The tokens of a sequence are bitwise independent of
//! other sequences in the batch (ADR 0028).

use std::sync::Arc;
use std::sync::OnceLock;

use axum::http::StatusCode;
use tercet::{DType, Device};
use tercet_models::answer::AnswerFormat;
use tercet_models::constraint::Constraint;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{ConstraintError, Grammar, GrammarCompiler};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    CacheFormat, ContextFit, ContextRequest, DRY_BREAKERS, DryBreakers, FinishReason, Image,
    ImagePromptReader, MatmulPrecision, ModelFiles, SamplingOptions, ScaledAdapter, Sequence,
    Tokenizer, end_ids,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::engine::{BatchEngine, QueuedRequest, ResponseSender};
use crate::error::{ApiError, ServeError};
use crate::forced_tokens::ForcedTokens;
use crate::generator::{CHUNK, SpeculativeOptions, compiled, slots, text_spec};
use crate::logprobs::TokenLogprob;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;
use crate::queue_ticket::QueueTicket;
use crate::thought_budget::{ThoughtBudget, ThoughtLimit};

/// Device and compile options of a served model.
///
/// ```
/// use tercet::{DType, Device};
/// use tercet_models::MatmulPrecision;
/// let config = tercet_serve::ModelConfig {
///     device: Device::cpu(),
///     dtype: DType::F32,
///     cache: None,
///     matmul_precision: MatmulPrecision::Full,
///     context: Some(4096),
///     adapters: Vec::new(),
///     draft: None,
/// };
/// assert_eq!(config.device.name(), "cpu");
/// ```
#[derive(Clone)]
pub struct ModelConfig {
    /// Device to run on.
    pub device: Device,
    /// Float dtype of the computation.
    pub dtype: DType,
    /// KV cache format of language models; `None` means that of [`CacheFormat::choose`].
    pub cache: Option<CacheFormat>,
    /// Precision of the matmuls of language models.
    pub matmul_precision: MatmulPrecision,
    /// Maximum tokens of a sequence, prompt included. `Some(0)` means the trained context length;
    /// `None` means what the memory holds for all slots ([`ContextFit`]).
    pub context: Option<usize>,
    /// Named adapters of a language model. A request selects one as `model:NAME`, or none. Adapters
    /// stay separate from the model's weights.
    pub adapters: Vec<(String, ScaledAdapter)>,
    /// Draft for speculative decoding of language models.
    pub draft: Option<SpeculativeOptions>,
}

impl ModelConfig {
    /// The given format of the KV cache, or the one for these weights.
    pub(crate) fn cache_format(&self, files: &ModelFiles) -> CacheFormat {
        let precision = self.matmul_precision;
        let choose = || CacheFormat::choose(&files.weights(), &self.device, self.dtype, precision);
        self.cache.unwrap_or_else(choose)
    }
}

/// A completion to generate.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: Vec<u32>,
    /// Images that tokens of the prompt refer to.
    pub(crate) images: Arc<[Image]>,
    /// Tokens after the prompt that the model reads one by one, so that they have logprobs.
    pub(crate) forced: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    /// Special tokens that are part of the text.
    pub(crate) spelled: Arc<[u32]>,
    /// Tokens that end the completion, in addition to those of the model.
    pub(crate) stop_tokens: Vec<u32>,
    /// Whether the model's end tokens are banned.
    pub(crate) ignore_eos: bool,
    /// DRY sequence breakers; `None` for the default ones.
    pub(crate) dry_breakers: Option<Vec<String>>,
    pub(crate) sampling: SamplingOptions,
    /// Grammar that constrains the completion, and the request field that set it.
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    /// Limit of the thoughts before the answer.
    pub(crate) thoughts: Option<ThoughtLimit>,
    pub(crate) seed: u64,
    /// Number of top logprobs to return per token; `None` disables logprobs.
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) details: TokenDetails,
}

impl GenerationRequest {
    /// Makes the model read the tokens of the prompt one by one, except the first, so that they have
    /// logprobs.
    pub(crate) fn force_prompt(&mut self) {
        if !self.prompt.is_empty() {
            self.forced = self.prompt.split_off(1);
        }
    }
}

/// What a response has about each token, besides its text and logprobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenDetails {
    /// Token ids.
    pub(crate) ids: bool,
    /// The logits that each token was sampled from, before all sampling options.
    pub(crate) logits: bool,
}

/// Maximum bytes of the logits of a request.
const MAX_LOGIT_BYTES: usize = 128 << 20;

/// The message for a prompt that exceeds the context. Clients of OpenAI's and of Anthropic's API look for these words
/// and then shorten the conversation.
pub(crate) fn context_error(tokens: usize, context: usize) -> String {
    format!(
        "prompt is too long: {tokens} tokens > {context} maximum; this model's maximum context length is {context} tokens"
    )
}

/// Event of a completion in progress.
#[derive(Debug)]
pub(crate) enum ResponseEvent {
    /// Generated text, with the logprobs of its tokens if requested.
    Text(String, Vec<TokenLogprob>),
    /// A token, and its logits if requested; sent before its text if the request has any
    /// [`TokenDetails`].
    Token(u32, Vec<f32>),
    /// The completion is finished.
    Done {
        finish: FinishReason,
        /// Number of generated tokens.
        tokens: usize,
        /// Number of prompt tokens that a cache had.
        cached: usize,
        /// The stop string that ended the completion.
        stop: Option<String>,
    },
    /// The completion failed.
    Failed(ApiError),
}

/// Events with the index of their completion. The model stays loaded until the receiver is dropped.
pub(crate) struct ResponseReceiver {
    events: UnboundedReceiver<(usize, ResponseEvent)>,
    _model: Arc<ServedLanguageModel>,
}

impl ResponseReceiver {
    /// The next event; `None` if the engine is gone.
    pub(crate) async fn recv(&mut self) -> Option<(usize, ResponseEvent)> {
        self.events.recv().await
    }
}

/// The context that a language model is asked to have.
pub(crate) fn context_request(
    files: &ModelFiles,
    placement: &ModelConfig,
    slots: usize,
) -> ContextRequest {
    ContextRequest {
        context: placement.context,
        slots,
        chunk: CHUNK,
        dtype: placement.dtype,
        cache: Some(placement.cache_format(files)),
    }
}

/// A served language model with its slots.
pub(crate) struct ServedLanguageModel {
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// The reader of prompts with images, if the model takes them.
    pub(crate) images: Option<ImagePromptReader>,
    pub(crate) template: ChatTemplate,
    /// How the model writes thoughts and calls, by its template.
    pub(crate) answers: AnswerFormat,
    pub(crate) context: usize,
    /// How `context` was determined.
    pub(crate) fit: ContextFit,
    /// Number of stored prefixes that the model found when it was loaded, and of those of other models.
    pub(crate) stored_prefixes: [usize; 2],
    vocab: usize,
    #[cfg(feature = "grammar")]
    constraints: Arc<ConstraintFactory>,
    eos: Vec<u32>,
    /// The default DRY sequence breakers, created when a request first uses them.
    dry_breakers: OnceLock<Arc<DryBreakers>>,
    /// Adapter names; the position of a name is the adapter index of a sequence.
    adapters: Vec<String>,
    engine: BatchEngine,
}

impl ServedLanguageModel {
    pub(crate) fn load(
        name: &str,
        files: ModelFiles,
        placement: ModelConfig,
        options: &ServeOptions,
    ) -> Result<ServedLanguageModel, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let spec = text_spec(&files).map_err(failed)?;
        let slots = slots(&files, options);
        let tokenizer = Arc::new(files.tokenizer().map_err(failed)?);
        let template = match &options.chat_template {
            Some(source) => ChatTemplate::from_model_with(&files, &tokenizer, source),
            None => ChatTemplate::from_model(&files, &tokenizer),
        };
        let template = template.map_err(|e| failed(e.into()))?;
        let request = context_request(&files, &placement, slots);
        let fit = ContextFit::new(&files, &spec, &placement.device, &request);
        let fit = fit.map_err(|e| failed(e.into()))?;
        let context = fit.context;
        let store = options.prefix_store.as_ref();
        let sizes = ([context, slots], &options.rope, store);
        let generator = compiled(name, &files, &tokenizer, &placement, sizes)?;
        let images = generator.prompt_reader();
        let stored_prefixes = generator.slots.stored_prefixes();
        // Prefixes in memory alone end with the process.
        let saves = store.is_some_and(|store| store.options().folder.is_some());
        let limits = (options.queue, CHUNK.min(context), saves);
        let engine = BatchEngine::start(name, generator, Arc::clone(&tokenizer), limits);
        let engine = engine.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        let eos = end_ids(&spec.eos, &tokenizer);
        Ok(ServedLanguageModel {
            #[cfg(feature = "grammar")]
            constraints: Arc::new(ConstraintFactory {
                tokenizer: Arc::clone(&tokenizer),
                eos: eos.clone(),
                vocab: spec.vocab,
                grammars: OnceLock::new(),
                compile_lock: tokio::sync::Mutex::new(()),
            }),
            tokenizer,
            images,
            answers: AnswerFormat::from_template(&template),
            template,
            context,
            fit,
            stored_prefixes,
            vocab: spec.vocab,
            eos,
            dry_breakers: OnceLock::new(),
            adapters: placement
                .adapters
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
            engine,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.engine.load()
    }

    /// Tokens that end a text.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.eos
    }

    /// Names of the adapters that requests can select.
    pub(crate) fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// Queues completions that use this adapter. The receiver gets events with the index of their
    /// completion; dropping it cancels them.
    ///
    /// # Errors
    /// - The request has more completions than the server accepts.
    /// - A prompt exceeds the context.
    /// - A logit bias names an unknown token.
    /// - A grammar is invalid.
    /// - The queue is full.
    pub(crate) async fn start(
        self: &Arc<Self>,
        requests: Vec<GenerationRequest>,
        adapter: Option<usize>,
        ticket: QueueTicket,
    ) -> Result<ResponseReceiver, ApiError> {
        let (count, most) = (requests.len(), self.engine.capacity());
        if count > most {
            return Err(ApiError::bad_request(format!(
                "the request has {count} completions; the server accepts at most {most}"
            )));
        }
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        self.check_logits(&requests)?;
        self.engine.check_capacity(&ticket, count)?;
        let (send, receive) = unbounded_channel();
        let mut jobs = Vec::with_capacity(count);
        for (index, request) in requests.into_iter().enumerate() {
            let (eos, sampling) = self.ends_and_sampling(&request)?;
            #[cfg(feature = "grammar")]
            let constraint = self.constraint(request.grammar).await?;
            #[cfg(not(feature = "grammar"))]
            let constraint: Option<Box<dyn Constraint>> = None;
            let constraint = match request.thoughts {
                Some(limit) => {
                    let texts = (&self.tokenizer, &request.spelled);
                    let budget = ThoughtBudget::new(limit, texts, constraint);
                    Some(Box::new(budget) as Box<dyn Constraint>)
                }
                None => constraint,
            };
            let (forced, constraint) = match request.forced.len() {
                0 => (0, constraint),
                forced => {
                    let constraint = ForcedTokens::new(request.forced, constraint);
                    (forced, Some(Box::new(constraint) as Box<dyn Constraint>))
                }
            };
            jobs.push(QueuedRequest {
                sequence: Sequence {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens.saturating_add(forced),
                    eos,
                    sampling,
                    seed: request.seed,
                    constraint,
                    adapter,
                    cache_scope: ticket.cache_scope.clone(),
                    needs_logits: request.top_logprobs.is_some() || request.details.logits,
                },
                images: request.images,
                forced,
                stop: request.stop,
                spelled: request.spelled,
                top_logprobs: request.top_logprobs,
                details: request.details,
                ticket: ticket.clone(),
                responses: ResponseSender {
                    index,
                    sender: send.clone(),
                },
            });
        }
        self.engine.submit(&ticket, jobs)?;
        Ok(ResponseReceiver {
            events: receive,
            _model: Arc::clone(self),
        })
    }

    /// Rejects a text that is too long for the context, before it is tokenized.
    ///
    /// # Errors
    /// 400 if no prompt of this many bytes fits.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), ApiError> {
        let most = self.tokenizer.max_text_bytes(self.context);
        match bytes <= most {
            true => Ok(()),
            false => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "context_length_exceeded",
                format!(
                    "prompt is too long: {bytes} bytes; this model's maximum context length is {} tokens",
                    self.context
                ),
            )),
        }
    }

    /// The tokens that end a completion, and its sampling options with the parts that depend on the
    /// vocabulary.
    fn ends_and_sampling(
        &self,
        request: &GenerationRequest,
    ) -> Result<(Vec<u32>, SamplingOptions), ApiError> {
        let mut eos = self.eos.clone();
        eos.extend(&request.stop_tokens);
        let mut sampling = request.sampling.clone();
        sampling.min_tokens = match sampling.min_tokens {
            0 => 0,
            tokens => tokens.saturating_add(request.forced.len()),
        };
        sampling.ends = match request.ignore_eos {
            true => {
                sampling.min_tokens = usize::MAX;
                let ends = self.eos.iter().copied();
                ends.filter(|id| !request.stop_tokens.contains(id))
                    .collect()
            }
            false => eos.clone(),
        };
        if sampling.dry.multiplier > 0.0 {
            let breakers = |texts: &[String]| {
                let made = DryBreakers::from_texts(texts, &self.tokenizer);
                made.map(Arc::new).map_err(|e| ApiError::failed(&e))
            };
            sampling.dry.breakers = match &request.dry_breakers {
                Some(texts) => breakers(texts)?,
                None => match self.dry_breakers.get() {
                    Some(made) => Arc::clone(made),
                    None => {
                        let made = breakers(&DRY_BREAKERS.map(str::to_string))?;
                        Arc::clone(self.dry_breakers.get_or_init(|| made))
                    }
                },
            };
        }
        Ok((eos, sampling))
    }

    fn check(&self, request: &GenerationRequest) -> Result<(), ApiError> {
        let (n, context) = (request.prompt.len() + request.forced.len(), self.context);
        if n == 0 {
            return Err(ApiError::bad_request(
                "the prompt has no tokens; at least one is required",
            ));
        }
        if n > context {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "context_length_exceeded",
                context_error(n, context),
            ));
        }
        let is_end = |token: &&u32| self.eos.contains(token) || request.stop_tokens.contains(token);
        if let Some(token) = request.forced.iter().find(is_end) {
            return Err(ApiError::bad_request(format!(
                "the prompt contains the token {token}, which ends completions; leave out `echo` or `logprobs`"
            )));
        }
        let biased = request.sampling.logit_bias.iter();
        let biased = biased.map(|(token, _)| ("logit_bias", *token));
        let stops = request.stop_tokens.iter();
        let mut all = biased.chain(stops.map(|token| ("stop_token_ids", *token)));
        match all.find(|(_, token)| *token as usize >= self.vocab) {
            Some((field, token)) => Err(ApiError::bad_request(format!(
                "token {token} of `{field}` is outside the vocabulary of {}",
                self.vocab
            ))),
            None => Ok(()),
        }
    }

    /// Rejects requests whose logits are too large for a response.
    fn check_logits(&self, requests: &[GenerationRequest]) -> Result<(), ApiError> {
        let requests = requests.iter().filter(|request| request.details.logits);
        let tokens = requests.map(|request| {
            let room = self.context.saturating_sub(request.prompt.len());
            request.max_tokens.min(room.saturating_add(1))
        });
        let tokens: usize = tokens.sum();
        let most = MAX_LOGIT_BYTES / (self.vocab * size_of::<f32>()).max(1);
        match tokens <= most {
            true => Ok(()),
            false => Err(ApiError::bad_request(format!(
                "field `logits` with {tokens} tokens of {} logits exceeds {MAX_LOGIT_BYTES} bytes; set `max_tokens` to {most} or less",
                self.vocab
            ))),
        }
    }

    /// Compiles the constraint of a completion. Compilation runs outside the engine thread, because
    /// compiling would block all sequences. Only one constraint compiles at a time.
    #[cfg(feature = "grammar")]
    async fn constraint(
        &self,
        grammar: Option<(&'static str, Grammar)>,
    ) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        let Some((field, grammar)) = grammar else {
            return Ok(None);
        };
        let of = Arc::clone(&self.constraints);
        let turn = self.constraints.compile_lock.lock().await;
        let made = tokio::task::spawn_blocking(move || of.compile(&grammar)).await;
        drop(turn);
        match made {
            Ok(Ok(constraint)) => Ok(Some(constraint)),
            Ok(Err(e @ ConstraintError::Grammar { .. })) => {
                Err(ApiError::bad_request(format!("field `{field}`: {e}")).with_param(field))
            }
            Ok(Err(e)) => Err(ApiError::failed(&e)),
            Err(_) => Err(ApiError::worker_lost()),
        }
    }
}

/// Compiles grammars to constraints.
#[cfg(feature = "grammar")]
struct ConstraintFactory {
    tokenizer: Arc<Tokenizer>,
    eos: Vec<u32>,
    vocab: usize,
    /// The compiler is created when a request first uses a constraint.
    grammars: OnceLock<Result<GrammarCompiler, ConstraintError>>,
    compile_lock: tokio::sync::Mutex<()>,
}

#[cfg(feature = "grammar")]
impl ConstraintFactory {
    fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, ConstraintError> {
        let new = || GrammarCompiler::new(&self.tokenizer, &self.eos, self.vocab);
        let grammars = self.grammars.get_or_init(new).as_ref();
        let constraint = grammars
            .map_err(ConstraintError::clone)?
            .constraint(grammar)?;
        Ok(Box::new(constraint))
    }
}
