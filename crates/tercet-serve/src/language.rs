//! Serves language models: the slots of one compiled model generate several sequences in one batch.
//!
//! Each sequence has a separate slot and seed. Its tokens are bitwise independent of other
//! sequences in the batch (ADR 0028).

use std::sync::Arc;
#[cfg(feature = "grammar")]
use std::sync::OnceLock;
use std::time::Instant;

use axum::http::StatusCode;
use tercet::{DType, Device};
use tercet_models::constraint::Constraint;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{ConstraintError, Grammar, GrammarCompiler};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    CacheFormat, FinishReason, MatmulPrecision, ModelFiles, SamplingOptions, ScaledAdapter,
    Sequence, Tokenizer, end_of_turn_ids,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::engine::{BatchEngine, QueuedRequest, ResponseSender};
use crate::error::{ApiError, ServeError};
use crate::generator::{SpeculativeOptions, compiled};
use crate::logprobs::TokenLogprob;
use crate::metrics::ServerMetrics;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;

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
    /// KV cache format of language models; `None` means `dtype`.
    pub cache: Option<CacheFormat>,
    /// Precision of the matmuls of language models.
    pub matmul_precision: MatmulPrecision,
    /// Maximum tokens of a sequence, prompt included; `None` means the trained context length.
    pub context: Option<usize>,
    /// Named adapters of a language model. A request selects one as `model:NAME`, or none. Adapters
    /// stay separate from the model's weights.
    pub adapters: Vec<(String, ScaledAdapter)>,
    /// Draft for speculative decoding of language models. It requires one slot and no adapters.
    pub draft: Option<SpeculativeOptions>,
}

/// A completion to generate.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    /// Grammar that constrains the completion, and the request field that set it.
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    pub(crate) seed: u64,
    /// Number of top logprobs to return per token; `None` disables logprobs.
    pub(crate) top_logprobs: Option<usize>,
}

/// Event of a completion in progress.
#[derive(Debug)]
pub(crate) enum ResponseEvent {
    /// Generated text, with the logprobs of its tokens if requested.
    Text(String, Vec<TokenLogprob>),
    /// The completion is finished, with this number of tokens.
    Done(FinishReason, usize),
    /// The completion failed.
    Failed(ApiError),
}

/// A served language model with its slots.
pub(crate) struct LanguageModel {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
    pub(crate) context: usize,
    vocab: usize,
    #[cfg(feature = "grammar")]
    constraints: Arc<ConstraintFactory>,
    eos: Vec<u32>,
    deadline: std::time::Duration,
    /// Adapter names; the position of a name is the adapter index of a sequence.
    adapters: Vec<String>,
    engine: BatchEngine,
}

impl LanguageModel {
    pub(crate) fn load(
        name: &str,
        files: ModelFiles,
        placement: ModelConfig,
        options: &ServeOptions,
    ) -> Result<LanguageModel, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let spec = files.decoder_spec().map_err(failed)?;
        let tokenizer = Arc::new(files.tokenizer().map_err(failed)?);
        let template = ChatTemplate::from_model(&files, &tokenizer).map_err(failed)?;
        let context = placement.context.unwrap_or(spec.context);
        let sizes = [context, options.slots.max(1)];
        let writer = compiled(name, &files, &tokenizer, &placement, sizes)?;
        let engine = BatchEngine::start(name, writer, Arc::clone(&tokenizer), options.queue);
        let engine = engine.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        let eos = end_of_turn_ids(&spec.eos, &tokenizer);
        Ok(LanguageModel {
            #[cfg(feature = "grammar")]
            constraints: Arc::new(ConstraintFactory {
                tokenizer: Arc::clone(&tokenizer),
                eos: eos.clone(),
                vocab: spec.vocab,
                grammars: OnceLock::new(),
                compile_lock: tokio::sync::Mutex::new(()),
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

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.engine.load()
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
        &self,
        requests: Vec<GenerationRequest>,
        adapter: Option<usize>,
        metrics: &Arc<ServerMetrics>,
    ) -> Result<UnboundedReceiver<(usize, ResponseEvent)>, ApiError> {
        let (count, most) = (requests.len(), self.engine.capacity());
        if count > most {
            return Err(ApiError::bad_request(format!(
                "the request has {count} completions; the server accepts at most {most}"
            )));
        }
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        let until = Instant::now() + self.deadline;
        let room = self.engine.check_capacity(count);
        room.map_err(|_| ApiError::overloaded())?;
        let (send, receive) = unbounded_channel();
        let mut jobs = Vec::with_capacity(count);
        for (index, request) in requests.into_iter().enumerate() {
            #[cfg(feature = "grammar")]
            let constraint = self.constraint(request.grammar).await?;
            #[cfg(not(feature = "grammar"))]
            let constraint: Option<Box<dyn Constraint>> = None;
            jobs.push(QueuedRequest {
                sequence: Sequence {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens,
                    eos: self.eos.clone(),
                    sampling: request.sampling,
                    seed: request.seed,
                    constraint,
                    adapter,
                    needs_logits: request.top_logprobs.is_some(),
                },
                stop: request.stop,
                top_logprobs: request.top_logprobs,
                deadline: until,
                responses: ResponseSender {
                    index,
                    sender: send.clone(),
                },
                metrics: Arc::clone(metrics),
            });
        }
        self.engine
            .submit(jobs)
            .map_err(|_| ApiError::overloaded())?;
        Ok(receive)
    }

    fn check(&self, request: &GenerationRequest) -> Result<(), ApiError> {
        let (n, context) = (request.prompt.len(), self.context);
        if n == 0 {
            return Err(ApiError::bad_request(
                "the prompt has no tokens; at least one is required",
            ));
        }
        if n > context {
            let message = format!(
                "the prompt has {n} tokens, which exceeds the model's context of {context}"
            );
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "context_length_exceeded",
                message,
            ));
        }
        let mut biased = request.sampling.logit_bias.iter().map(|(token, _)| *token);
        match biased.find(|&t| t as usize >= self.vocab) {
            Some(token) => Err(ApiError::bad_request(format!(
                "token {token} of `logit_bias` is outside the vocabulary of {}",
                self.vocab
            ))),
            None => Ok(()),
        }
    }

    /// Compiles the constraint of a completion. It runs outside the engine thread, because
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
                Err(ApiError::bad_request(format!("field `{field}`: {e}")))
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
    /// Created when a request first uses a constraint.
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
