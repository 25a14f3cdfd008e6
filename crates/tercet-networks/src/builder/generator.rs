//! Single-sequence generation: an engine with one slot, whose caller chooses the tokens to append.
//! Tokens are appended in chunks; each run returns logits and, if the graph samples, the next token.

use tercet::ops::Op;
use tercet::random::RngState;
use tercet::{Executable, StepTime};

use super::compiled_decoder::EmbeddingTarget;
use super::decoder::matmul_precision::OverflowFallback;
use super::decoder::{DecoderSizes, MatmulPrecision, Sampling};
use super::engine::drafts::{Draft, DraftError, DraftProposer};
use super::engine::inputs::{ProgramInputs, TextInputs};
use super::engine::sequence::CacheSlot;
use super::engine::speculation::DraftCounts;
use super::engine::{Engine, does_not_sample};
use super::sampling::SamplingOptions;
use super::token_sampler::{TokenSampler, VerifiedTokens};
use super::{ModelError, ModelGraph};
use crate::maybe_async::{WaitMode, block_on_ready};
use tercet_text::constraint::Constraint;
use tercet_text::tokenizer::Tokenizer;

/// Result of a run for its last token.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let options = tercet_networks::DecoderOptions::new(&spec);
/// # let decoder = tercet_networks::Decoder::build(&spec, &weights, options)?;
/// # let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// use tercet_networks::GeneratorStep;
/// let step: GeneratorStep<'_> = generator.forward(&[1, 2, 3])?;
/// let next = step.next.ok_or("the graph does not sample")?;
/// assert!(step.logits.iter().all(|x| *x <= step.logits[next as usize]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GeneratorStep<'a> {
    /// Logits of the next token, `[vocab]`; empty after [`Generator::skip_logits`].
    pub logits: &'a [f32],
    /// The sampled next token, if the graph samples.
    pub next: Option<u32>,
}

/// A compiled language model with its KV cache, for one sequence.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{Decoder, DecoderOptions, Generator};
/// let decoder = Decoder::build(&spec, &weights, DecoderOptions::new(&spec))?;
/// let mut generator: Generator = decoder.generator(&Device::cpu())?;
/// generator.forward(&[1, 2, 3])?;
/// assert_eq!((generator.position(), generator.cached()), (3, &[1, 2, 3][..]));
/// assert_eq!(generator.truncate(1), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Generator {
    engine: Engine,
    /// Receives the logits of every token; see [`Generator::set_logit_observer`].
    logit_observer: Option<LogitObserver>,
}

/// Receives the logits after each token of a sequence.
type LogitObserver = Box<dyn FnMut(&[f32]) + Send>;

/// The only slot of the engine.
const SLOT: usize = 0;

impl Generator {
    /// Wraps an executable whose graph has the inputs and outputs of a decoder.
    pub(super) fn from_executable(
        exe: Box<dyn Executable>,
        rounded: Option<OverflowFallback>,
        model: &ModelGraph,
        sizes: DecoderSizes,
        sampling: Option<Sampling>,
    ) -> Result<Generator, ModelError> {
        let stream = model.graph.nodes().find_map(|(_, node)| match &node.op {
            Op::Sample(sample) => Some(sample.stream),
            _ => None,
        });
        let inputs = TextInputs::new(sizes.has_visible_input);
        let mut engine = Engine::new(
            exe,
            rounded,
            ProgramInputs::Text(Box::new(inputs)),
            [1, 1],
            sizes,
        )?;
        if let (Some(compiled), Some(stream)) = (sampling, stream) {
            engine.slots[SLOT].text.sampler = TokenSampler::new(compiled, stream);
        }
        Ok(Generator {
            engine,
            logit_observer: None,
        })
    }

    fn slot(&self) -> &CacheSlot {
        &self.engine.slots[SLOT]
    }

    /// Passes the logits after each token, `[vocab]`, to `observer`, in the order of the tokens; `None`
    /// ends it. Prompts are then read in chunks of at most
    /// [`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows) tokens, and logits are copied
    /// from the device in each step. They are the model's, before sampling changes them.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] with a draft model, whose runs do not have all rows.
    pub fn set_logit_observer(
        &mut self,
        observer: Option<LogitObserver>,
    ) -> Result<(), ModelError> {
        if observer.is_some() && self.engine.speculation.is_some() {
            let reason = "logits of every token cannot be read with a draft; remove the draft";
            return Err(ModelError::Unsupported(reason.into()));
        }
        self.engine.drop_ahead();
        if observer.is_some() {
            self.engine.next_only = false;
        }
        self.logit_observer = observer;
        Ok(())
    }

    /// Keeps the logits on the device after each step, if the graph samples. Each step then copies
    /// only the next token to the host. [`Generator::logits`] copies the logits on request.
    pub fn skip_logits(&mut self) {
        self.engine.next_only = self.engine.samples;
    }

    /// Logits of the last step, copied from the device, `[vocab]`.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or if no token was appended yet.
    /// [`ModelError::Unsupported`] while the next token's run is pending
    /// ([`Generator::run_ahead`]).
    pub fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        if self.engine.is_ahead() {
            let reason = "the pending run of the next token has overwritten the logits; read them without `run_ahead`";
            return Err(ModelError::Unsupported(reason.into()));
        }
        let logits = (self.engine.compiled).read_rows("logits", 0..1, WaitMode::Blocking);
        block_on_ready(logits)
    }

    /// Enables run-ahead: each decode run is enqueued before the host has read its input token. The
    /// generated tokens stay the same. Takes effect at the next token.
    ///
    /// Run-ahead requires [`Generator::skip_logits`] and a device that can pass the token from run
    /// to run. Run-ahead also requires that the graph alone samples tokens, and that no layer has
    /// recurrent states or a window cache. [`Generator::logits`] is an error while such a run is
    /// pending.
    pub fn run_ahead(&mut self) {
        self.engine.run_ahead();
    }

    /// Binds an additional input tensor, beside the token inputs.
    pub(super) fn bind(
        &mut self,
        input: &str,
        tensor: &tercet::DeviceTensor,
    ) -> Result<(), ModelError> {
        Ok(self.engine.compiled.exe()?.bind(input, tensor)?)
    }

    /// Device time of each step of the last run, if the device measures it.
    pub fn timings(&mut self) -> Vec<StepTime> {
        self.engine.compiled.timings()
    }

    /// Number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.slot().cached_tokens.len()
    }

    /// Capacity of the cache in tokens.
    pub fn context(&self) -> usize {
        self.engine.context
    }

    /// Restarts the random number generator with this seed. The new state takes effect at the next
    /// token.
    pub fn set_seed(&mut self, seed: u64) {
        self.change_random(|random| RngState {
            seed: Some(seed),
            ..random
        });
    }

    /// Restarts the random number generator for a prompt of which `tokens` are not in the cache. The
    /// first token after the prompt has the first random number, however many runs the prompt takes.
    pub fn restart_random(&mut self, seed: u64, tokens: usize) {
        let runs_before = tokens.div_ceil(self.engine.chunk.max(1)).saturating_sub(1);
        self.change_random(|_| RngState {
            seed: Some(seed),
            counter: 0u64.wrapping_sub(runs_before as u64),
        });
    }

    /// Changes the state of the random number generator, from the next token on.
    fn change_random(&mut self, change: impl FnOnce(RngState) -> RngState) {
        self.engine.drop_ahead();
        if let Ok(exe) = self.engine.compiled.exe() {
            let random = exe.random();
            exe.set_random(change(random));
        }
    }

    /// Sets the first position counted by presence and frequency penalties, usually the start of
    /// the completion. The default is the beginning of the cache.
    pub fn set_penalty_start(&mut self, position: usize) {
        let text = &mut self.engine.slots[SLOT].text;
        text.penalties_from = position;
        text.sampler.restart();
    }

    /// Token ids in the cache, oldest first.
    pub fn cached(&self) -> &[u32] {
        &self.slot().cached_tokens
    }

    /// Clears the cache and removes the constraint. The seed and sampling options stay.
    pub fn reset(&mut self) {
        let slot = &mut self.engine.slots[SLOT];
        slot.text.sampler.constraint = None;
        slot.text.penalties_from = 0;
        slot.cut(0);
        self.engine.reset();
    }

    /// Removes the tokens from `position` on and returns the number of tokens that remain.
    ///
    /// The cache becomes empty (0) if layers have recurrent states, or if a sliding window no
    /// longer covers the positions before `position`. The cache stays as it is if `position` is not
    /// before its end.
    pub fn truncate(&mut self, position: usize) -> usize {
        self.engine.truncate(SLOT, position)
    }

    /// Removes the cached tokens that do not begin `ids`, and returns the number that remain: the
    /// tokens from there on are to be appended. At least the last token of `ids` is, because its
    /// logits are needed.
    pub fn truncate_to_prefix(&mut self, ids: &[u32]) -> usize {
        self.truncate(self.slot().common(ids))
    }

    /// Appends tokens, split into chunks if necessary, and returns the logits after the last one.
    ///
    /// # Errors
    /// [`ModelError::Context`] if the tokens do not fit, [`ModelError::Token`],
    /// [`ModelError::NoTokens`]; [`ModelError::Run`] of the device. After an error the cache is in
    /// its state before the failed chunk.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<GeneratorStep<'_>, ModelError> {
        self.forward_with(tokens, &mut |_| true)
    }

    /// Same as [`Generator::forward`], with a callback. `progress` receives the number of tokens
    /// processed after each chunk; if it returns false, the call stops early.
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`].
    pub fn forward_with(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<GeneratorStep<'_>, ModelError> {
        block_on_ready(self.forward_in(tokens, progress, WaitMode::Blocking))
    }

    /// Async form of [`Generator::forward_with`]: awaits the device instead of blocking the thread, if
    /// the executor supports it (browsers require it). If the future is dropped early, the cache
    /// keeps its state before the current chunk.
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`].
    pub async fn forward_async(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<GeneratorStep<'_>, ModelError> {
        self.forward_in(tokens, progress, WaitMode::Awaiting).await
    }

    /// Like [`Generator::forward`], in a wait mode.
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`].
    pub async fn forward_in(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<GeneratorStep<'_>, ModelError> {
        self.engine.check(self.position(), tokens)?;
        let Generator {
            engine,
            logit_observer: observer,
        } = self;
        let (vocab, random) = (engine.vocab, engine.compiled.exe()?.random());
        // An observer needs the logits of all tokens; the next token is sampled after the last one.
        let observed = observer.as_ref().map_or(0, |_| tokens.len() - 1);
        let (observed, tokens) = tokens.split_at(observed);
        let mut each = |logits: &[f32], done: usize| {
            if let Some(observer) = observer {
                logits.chunks_exact(vocab).for_each(observer);
            }
            progress(done)
        };
        if !observed.is_empty() {
            if !engine.append_rows(SLOT, observed, &mut each, waits).await? {
                return Ok(GeneratorStep {
                    logits: &[],
                    next: None,
                });
            }
            // The same random numbers as without an observer.
            engine.compiled.exe()?.set_random(random);
        }
        let each = &mut |logits: &[f32], done| each(logits, observed.len() + done);
        let next = engine.forward(SLOT, tokens, each, waits).await?;
        let logits = match engine.next_only {
            true => None,
            false => engine.compiled.output("logits")?,
        };
        Ok(GeneratorStep {
            logits: logits.unwrap_or_default(),
            next,
        })
    }

    /// Appends tokens and passes the logits after each token, `[vocab]`, to `each` in order. Stops
    /// early if `each` returns false. Rows per run are limited by
    /// [`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows).
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`].
    pub fn forward_rows(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<(), ModelError> {
        self.engine.check(self.position(), tokens)?;
        let vocab = self.engine.vocab;
        let each = &mut |logits: &[f32], _| logits.chunks_exact(vocab).all(&mut *each);
        let rows = (self.engine).append_rows(SLOT, tokens, each, WaitMode::Blocking);
        block_on_ready(rows)?;
        Ok(())
    }

    /// User-facing message about a precision fallback since compilation; usually `None`.
    pub fn fallback_message(&self) -> Option<String> {
        self.engine.compiled.fallback_message()
    }

    /// Matmul precision after an overflow fallback. Compile further models with this precision.
    pub fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.engine.compiled.fallback_precision()
    }

    /// Binds the input for image embeddings of this width, without images.
    pub(super) fn accept_images(&mut self, width: usize) -> Result<(), ModelError> {
        self.set_image_embeddings(width, &[])
    }

    /// Sets the sampling options from the next token on, without recompilation. If the options
    /// equal the compiled sampling, the device samples. Otherwise the logits are copied to the host
    /// for each token and the host samples with the same random numbers.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a value outside its range, or if the graph does not sample;
    /// [`ModelError::Token`] for a bias of a token outside the vocabulary.
    pub fn set_sampling(&mut self, options: &SamplingOptions) -> Result<(), ModelError> {
        self.engine.set_sampling(SLOT, options)
    }

    /// Sets or removes the constraint, from the next token on. The constraint receives each sampled
    /// token and treats it as part of the output. [`Generator::reset`] removes the constraint.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if the graph does not sample.
    pub fn set_constraint(
        &mut self,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<(), ModelError> {
        if constraint.is_some() && !self.engine.samples {
            return Err(does_not_sample());
        }
        self.engine.slots[SLOT].text.sampler.constraint = constraint;
        Ok(())
    }

    /// Sets or removes the draft used by [`Generator::advance`], with at most `most` draft tokens
    /// per run.
    ///
    /// # Errors
    /// [`ModelError::Draft`] if `most` is out of range, or if the graph computes fewer than `most +
    /// 1` rows of logits ([`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows)). The
    /// same error is returned for models with recurrent states, vision-language models and
    /// encoder-decoder models.
    pub fn set_draft(&mut self, draft: Option<Draft>, most: usize) -> Result<(), ModelError> {
        self.engine.set_draft(draft, most)?;
        let options = self.slot().text.sampler.overriding().cloned();
        match (&mut self.engine.speculation, options) {
            (Some(speculation), Some(options)) => speculation.set_sampling(&options),
            _ => Ok(()),
        }
    }

    /// Statistics of the draft so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        self.engine.draft_counts()
    }

    /// Appends a token and returns the next tokens, between one and `most`. Without a draft, the
    /// call returns one token, as [`Generator::forward`] does. All returned tokens except the last
    /// are already in the cache; pass the last one to the next call. Generation stops after a token
    /// in `ends`.
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`], and [`ModelError::Unsupported`] if the graph does not sample; errors
    /// of a draft model.
    pub fn advance(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
    ) -> Result<Vec<u32>, ModelError> {
        block_on_ready(self.advance_in(token, most, ends, WaitMode::Blocking))
    }

    /// Like [`Generator::advance`], in a wait mode.
    ///
    /// # Errors
    /// Same errors as [`Generator::advance`].
    pub async fn advance_in(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
        waits: WaitMode,
    ) -> Result<Vec<u32>, ModelError> {
        self.engine.check(self.position(), &[token])?;
        let random = self.engine.compiled.exe()?.random();
        let drafted = (self.engine).draft_run((SLOT, token), (most, ends), 1, random, waits);
        let Some(verified) = drafted.await? else {
            return Ok(vec![self.fed(token, waits).await?]);
        };
        let VerifiedTokens {
            mut tokens,
            is_decided,
            error,
        } = verified;
        // The rejected tokens give back their random numbers.
        let counter = random.counter.wrapping_add(tokens.len() as u64);
        self.change_random(|random| RngState { counter, ..random });
        if let Some(error) = error {
            return Err(error);
        }
        if !is_decided {
            let token = *tokens.last().unwrap_or(&token);
            tokens.push(self.fed(token, waits).await?);
        }
        Ok(tokens)
    }

    /// Removes the last `tokens` results of [`Generator::advance`] and restores their random
    /// numbers, for a sequence that ended before them.
    pub fn rollback(&mut self, tokens: usize) {
        self.truncate(self.position().saturating_sub(tokens));
        if tokens > 0 {
            self.change_random(|random| RngState {
                counter: random.counter.wrapping_sub(tokens as u64),
                ..random
            });
        }
    }

    /// Next token after `token`, computed by a one-row run.
    async fn fed(&mut self, token: u32, waits: WaitMode) -> Result<u32, ModelError> {
        let step = self.forward_in(&[token], &mut |_| true, waits).await?;
        step.next.ok_or_else(does_not_sample)
    }
}

impl Draft {
    /// Draft model: a smaller model with the same vocabulary as the target model. The draft model's
    /// context may be shorter; beyond it no tokens are proposed.
    ///
    /// # Errors
    /// [`DraftError::VocabularySize`], [`DraftError::Vocabulary`]; [`DraftError::States`] for a
    /// model with recurrent states.
    pub fn model(
        mut draft: Generator,
        own: &Tokenizer,
        target: &Tokenizer,
    ) -> Result<Draft, DraftError> {
        if draft.engine.has_states {
            let which = "the draft model";
            return Err(DraftError::States { which });
        }
        let [n, of_target] = [own.vocab_len(), target.vocab_len()];
        if n != of_target {
            return Err(DraftError::VocabularySize {
                draft: n,
                target: of_target,
            });
        }
        let differs = |token: &u32| own.id_to_token(*token) != target.id_to_token(*token);
        if let Some(token) = (0..n as u32).find(differs) {
            let shown = |of: &Tokenizer| of.id_to_token(token).unwrap_or_default();
            return Err(DraftError::Vocabulary {
                token,
                draft: shown(own),
                target: shown(target),
            });
        }
        draft.skip_logits();
        Ok(Draft {
            source: DraftProposer::Model(Box::new(draft.engine)),
        })
    }
}

impl EmbeddingTarget for Generator {
    fn set_image_embeddings(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError> {
        self.engine.compiled.set_image_embeddings(width, rows)
    }

    fn truncate_from(&mut self, token: u32) {
        self.engine.truncate_from(token);
    }
}
