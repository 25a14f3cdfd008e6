//! Single-sequence generation: a compiled decoder with its KV cache. Tokens are appended in chunks;
//! each run returns logits and, if the graph samples, the next token.

use tercet::ops::Op;
use tercet::random::RngState;
use tercet::{DType, Executable, Tensor, TensorType};

pub(crate) mod drafts;
mod run;
mod run_ahead;
mod speculation;
mod windows;

pub use self::drafts::{Draft, DraftError, MAX_DRAFT_TOKENS};
use self::run_ahead::RunAhead;
pub use self::speculation::DraftCounts;
pub(super) use self::speculation::{DraftLength, DraftTarget, DraftedText, Speculation};
use self::windows::WindowStates;
use super::compiled_decoder::{CompiledDecoder, EmbeddingTarget, elements};
use super::decoder::matmul_precision::OverflowFallback;
use super::decoder::{DecoderSizes, MatmulPrecision, Sampling};
use super::sampling::SamplingOptions;
use super::token_sampler::{SampledText, TokenSampler};
use super::{ModelError, ModelGraph};
use crate::maybe_async::{WaitMode, block_on_ready};
use tercet_text::constraint::Constraint;

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
    compiled: CompiledDecoder,
    position: usize,
    /// True if layers keep recurrent states. Recurrent states cannot be rolled back to an earlier
    /// token.
    has_states: bool,
    /// True until the first run after all states were zeroed.
    is_blank: bool,
    context: usize,
    chunk: usize,
    vocab: usize,
    logit_rows: usize,
    dtype: DType,
    inputs: [Tensor; 5],
    /// Input whose length is the filled part of the caches, for caches that are decoded to another
    /// dtype.
    filled: Option<Tensor>,
    /// Sliding-window caches: these layers cache fewer positions than the context.
    windows: Vec<WindowStates>,
    next_only: bool,
    /// Token ids in the cache, oldest first.
    tokens: Vec<u32>,
    penalties_from: usize,
    /// `None` if the graph does not sample.
    sampler: Option<TokenSampler>,
    /// State of speculative decoding.
    speculation: Option<Speculation>,
    draft_len: DraftLength,
    run_ahead: RunAhead,
    /// Receives the logits of every token; see [`Generator::set_logit_observer`].
    logit_observer: Option<LogitObserver>,
}

/// Receives the logits after each token of a sequence.
type LogitObserver = Box<dyn FnMut(&[f32]) + Send>;

/// Selects the tokens of a run that produce logits.
#[derive(Clone, Copy)]
enum LogitRowSelection {
    /// Only the last token, which the next token is sampled from.
    Last,
    /// All tokens; no next token is sampled.
    All,
}

/// Input names, in the order of [`Generator::inputs`].
const INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl Generator {
    /// Wraps an executable whose graph has the inputs and outputs of a decoder.
    pub(super) fn from_executable(
        exe: Box<dyn Executable>,
        rounded: Option<OverflowFallback>,
        model: &ModelGraph,
        sizes: DecoderSizes,
        sampling: Option<Sampling>,
    ) -> Generator {
        let DecoderSizes {
            has_states,
            context,
            chunk,
            vocab,
            logit_rows,
            dtype,
            has_visible_input: counts_seen,
            windows,
        } = sizes;
        let stream = model.graph.nodes().find_map(|(_, node)| {
            let Op::Sample(sample) = &node.op else {
                return None;
            };
            Some(sample.stream)
        });
        let chooser = sampling.zip(stream);
        let empty = |shape: &[usize]| {
            Tensor::zeros(TensorType::new(DType::I32, shape))
                .expect("invariant: small shapes fit memory")
        };
        Generator {
            compiled: CompiledDecoder::new(exe, rounded),
            position: 0,
            has_states,
            is_blank: true,
            context,
            chunk,
            vocab,
            logit_rows,
            dtype,
            inputs: [
                empty(&[0]),
                empty(&[0]),
                empty(&[4]),
                empty(&[]),
                empty(&[1]),
            ],
            filled: counts_seen.then(|| empty(&[0])),
            windows: windows.into_iter().map(WindowStates::new).collect(),
            next_only: false,
            tokens: Vec::new(),
            penalties_from: 0,
            sampler: chooser.map(|(compiled, stream)| TokenSampler::new(compiled, stream)),
            speculation: None,
            draft_len: DraftLength::default(),
            run_ahead: RunAhead::default(),
            logit_observer: None,
        }
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
        if observer.is_some() && self.speculation.is_some() {
            let reason = "logits of every token cannot be read with a draft; remove the draft";
            return Err(ModelError::Unsupported(reason.into()));
        }
        self.drop_ahead();
        if observer.is_some() {
            self.next_only = false;
        }
        self.logit_observer = observer;
        Ok(())
    }

    /// Passes the rows of logits of the last run to the observer.
    fn show_logits(&mut self) -> Result<(), ModelError> {
        let Some(observer) = &mut self.logit_observer else {
            return Ok(());
        };
        if let Some(logits) = self.compiled.outputs.first() {
            let logits = elements::<f32>(logits, "logits")?;
            logits.chunks_exact(self.vocab).for_each(observer);
        }
        Ok(())
    }

    /// Keeps the logits on the device after each step, if the graph samples. Each step then copies
    /// only the next token to the host. [`Generator::logits`] copies the logits on request.
    pub fn skip_logits(&mut self) {
        let exe = self.compiled.exe().ok();
        self.next_only =
            exe.is_some_and(|exe| exe.signature().outputs.iter().any(|o| o.name == "next"));
    }

    /// Logits of the last step, copied from the device, `[vocab]`.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or if no token was appended yet.
    /// [`ModelError::Unsupported`] while the next token's run is pending
    /// ([`Generator::run_ahead`]).
    pub fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        if self.run_ahead.token.is_some() {
            let reason = "the pending run of the next token has overwritten the logits; read them without `run_ahead`";
            return Err(ModelError::Unsupported(reason.into()));
        }
        block_on_ready(self.read_logits(WaitMode::Blocking))
    }

    async fn read_logits(&mut self, waits: WaitMode) -> Result<Vec<f32>, ModelError> {
        self.compiled.read_rows("logits", 0..1, waits).await
    }

    /// Binds an additional input tensor, beside the token inputs.
    pub(super) fn bind(
        &mut self,
        input: &str,
        tensor: &tercet::DeviceTensor,
    ) -> Result<(), ModelError> {
        Ok(self.compiled.exe()?.bind(input, tensor)?)
    }

    /// Device time of each step of the last run, if the device measures it.
    pub fn timings(&mut self) -> Vec<tercet::StepTime> {
        self.compiled.timings()
    }

    /// Number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Capacity of the cache in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Restarts the random number generator with this seed. The new state takes effect at the next
    /// token.
    pub fn set_seed(&mut self, seed: u64) {
        self.drop_ahead();
        if let Ok(exe) = self.compiled.exe() {
            let random = exe.random();
            exe.set_random(RngState {
                seed: Some(seed),
                ..random
            });
        }
    }

    /// Restarts the random number generator for a prompt of which `tokens` are not in the cache. The
    /// first token after the prompt has the first random number, however many runs the prompt takes.
    pub fn restart_random(&mut self, seed: u64, tokens: usize) {
        let runs_before = tokens.div_ceil(self.chunk.max(1)).saturating_sub(1);
        self.set_random(RngState {
            seed: Some(seed),
            counter: 0u64.wrapping_sub(runs_before as u64),
        });
    }

    /// Sets the random number stream of host-side sampling.
    pub(super) fn set_stream(&mut self, stream: u32) {
        if let Some(sampler) = &mut self.sampler {
            sampler.stream = stream;
        }
    }

    /// Sets the state of the random number generator. The new state takes effect at the next token.
    fn set_random(&mut self, random: RngState) {
        self.drop_ahead();
        if let Ok(exe) = self.compiled.exe() {
            exe.set_random(random);
        }
    }

    /// Sets the first position counted by presence and frequency penalties, usually the start of
    /// the completion. The default is the beginning of the cache.
    pub fn set_penalty_start(&mut self, position: usize) {
        self.penalties_from = position;
        if let Some(sampler) = &mut self.sampler {
            sampler.restart();
        }
    }

    /// Token ids in the cache, oldest first.
    pub fn cached(&self) -> &[u32] {
        &self.tokens
    }

    /// Clears the cache and removes the constraint. The seed and sampling options stay.
    pub fn reset(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            sampler.constraint = None;
        }
        self.drop_ahead();
        self.compiled.reset();
        self.is_blank = true;
        self.position = 0;
        self.penalties_from = 0;
        self.tokens.clear();
    }

    /// Removes the tokens from `position` on and returns the number of tokens that remain.
    ///
    /// The cache becomes empty (0) if layers have recurrent states, or if a sliding window no
    /// longer covers the positions before `position`. The cache stays as it is if `position` is not
    /// before its end.
    pub fn truncate(&mut self, position: usize) -> usize {
        if position < self.position {
            self.drop_ahead();
            let stays = !self.has_states && self.windows.iter().all(|own| own.reaches(position));
            self.position = if stays { position } else { 0 };
        }
        self.tokens.truncate(self.position);
        self.position
    }

    /// Removes the cached tokens that do not begin `ids`, and returns the number that remain: the
    /// tokens from there on are to be appended. At least the last token of `ids` is, because its
    /// logits are needed.
    pub fn truncate_to_prefix(&mut self, ids: &[u32]) -> usize {
        let cached = self.tokens.iter().zip(ids);
        let same = cached.take_while(|(a, b)| a == b).count();
        self.truncate(same.min(ids.len().saturating_sub(1)))
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
        self.check(tokens)?;
        let mut done = 0;
        let mut random = self.compiled.exe()?.random();
        // An observer needs the logits of all tokens; the next token is sampled after the last one.
        let observed = match &self.logit_observer {
            Some(_) => tokens.len().saturating_sub(1),
            None => 0,
        };
        let (observed, tokens) = tokens.split_at(observed);
        for part in observed.chunks(self.chunk.min(self.logit_rows)) {
            self.append(part, LogitRowSelection::All, waits).await?;
            self.show_logits()?;
            done += part.len();
            if !progress(done) {
                return Ok(GeneratorStep {
                    logits: &[],
                    next: None,
                });
            }
        }
        if !observed.is_empty() {
            // The same random numbers as without an observer.
            self.compiled.exe()?.set_random(random);
        }
        for part in tokens.chunks(self.chunk) {
            random = self.compiled.exe()?.random();
            self.append(part, LogitRowSelection::Last, waits).await?;
            self.show_logits()?;
            done += part.len();
            if !progress(done) {
                break;
            }
        }
        if let Some(next) = self.sampled_token(random)? {
            let logits = match self.compiled.outputs.as_slice() {
                [logits, ..] if !self.next_only => elements(logits, "logits")?,
                _ => &[],
            };
            return Ok(GeneratorStep {
                logits,
                next: Some(next),
            });
        }
        let (logits, next) = match self.compiled.outputs.as_slice() {
            [next] if self.next_only => (None, Some(next)),
            [logits, next, ..] => (Some(logits), Some(next)),
            [logits] => (Some(logits), None),
            [] => (None, None),
        };
        let logits: &[f32] = match logits {
            Some(t) => elements(t, "logits")?,
            None => &[],
        };
        let next = match next {
            Some(t) => elements::<i32>(t, "next")?.first().map(|&t| t as u32),
            None => None,
        };
        Ok(GeneratorStep { logits, next })
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
        self.check(tokens)?;
        for part in tokens.chunks(self.chunk.min(self.logit_rows)) {
            block_on_ready(self.append(part, LogitRowSelection::All, WaitMode::Blocking))?;
            let Some(logits) = self.compiled.outputs.first() else {
                return Ok(());
            };
            let logits = elements::<f32>(logits, "logits")?;
            if !logits.chunks_exact(self.vocab).all(&mut *each) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns an error if the tokens are empty, out of vocabulary or longer than the remaining
    /// context.
    fn check(&self, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::NoTokens);
        }
        let total = self.position + tokens.len();
        if total > self.context {
            return Err(ModelError::Context {
                tokens: total,
                context: self.context,
            });
        }
        let known = self.vocab + self.compiled.image_rows();
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= known) {
            return Err(ModelError::Token {
                token,
                vocab: self.vocab,
            });
        }
        Ok(())
    }

    /// User-facing message about a precision fallback since compilation; usually `None`.
    pub fn fallback_message(&self) -> Option<String> {
        self.compiled.fallback_message()
    }

    /// Matmul precision after an overflow fallback. Compile further models with this precision.
    pub fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.compiled.fallback_precision()
    }

    /// Binds the input for image embeddings of this width, without images.
    pub(super) fn accept_images(&mut self, width: usize) -> Result<(), ModelError> {
        self.compiled.set_image_embeddings(width, &[])
    }

    /// Sets the sampling options from the next token on, without recompilation. If the options
    /// equal the compiled sampling, the device samples. Otherwise the logits are copied to the host
    /// for each token and the host samples with the same random numbers.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a value outside its range, or if the graph does not sample;
    /// [`ModelError::Token`] for a bias of a token outside the vocabulary.
    pub fn set_sampling(&mut self, options: &SamplingOptions) -> Result<(), ModelError> {
        options.check(self.vocab)?;
        let sampler = self.sampler.as_mut().ok_or_else(does_not_sample)?;
        sampler.set_options(options);
        match &mut self.speculation {
            Some(speculation) => speculation.set_sampling(options),
            None => Ok(()),
        }
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
        match &mut self.sampler {
            Some(sampler) => sampler.constraint = constraint,
            None if constraint.is_some() => return Err(does_not_sample()),
            None => {}
        }
        Ok(())
    }

    /// True if the host samples, because of a constraint or overriding options.
    fn on_host(&self) -> bool {
        self.sampler.as_ref().is_some_and(TokenSampler::is_on_host)
    }

    /// Samples a token on the host from the logits of the last run; `None` if the device samples.
    /// `random` is the random state of that run.
    fn sampled_token(&mut self, random: RngState) -> Result<Option<u32>, ModelError> {
        let (Some(sampler), Some(logits)) = (&mut self.sampler, self.compiled.outputs.first())
        else {
            return Ok(None);
        };
        if !sampler.is_on_host() {
            return Ok(None);
        }
        let text = SampledText {
            tokens: &self.tokens,
            penalties_from: self.penalties_from,
        };
        sampler.choose(elements(logits, "logits")?, text, random)
    }
}

impl EmbeddingTarget for Generator {
    fn set_image_embeddings(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError> {
        self.compiled.set_image_embeddings(width, rows)
    }

    fn truncate_from(&mut self, token: u32) {
        if let Some(at) = self.tokens.iter().position(|own| *own >= token) {
            self.truncate(at);
        }
    }
}

/// Resizes an I32 input and fills it with `number(index)`.
fn fill(input: &mut Tensor, shape: &[usize], number: impl Fn(usize) -> usize) {
    let sized = input.reset_to(DType::I32, shape);
    sized.expect("invariant: small shapes fit memory");
    let slots = input.as_slice_mut::<i32>();
    let slots = slots.expect("invariant: the inputs are I32").iter_mut();
    slots.enumerate().for_each(|(i, x)| *x = number(i) as i32);
}

fn does_not_sample() -> ModelError {
    let reason = "the graph of the model does not sample; build it with sampling options";
    ModelError::Unsupported(reason.into())
}
