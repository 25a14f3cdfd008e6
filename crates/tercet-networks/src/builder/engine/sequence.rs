//! Slots of an engine: cached tokens, sampling of their text, and the sequence that a scheduler runs
//! in them.

use tercet::Tensor;
use tercet::random::RngState;

use super::speculation::DraftLength;
use crate::builder::decoder::windows::BANKS;
use crate::builder::token_sampler::{SampledText, TokenSampler};
use crate::builder::{ModelError, Sampling, SamplingOptions};
use tercet_text::constraint::Constraint;

/// Random number stream for sampling tokens.
pub(crate) const STREAM: u32 = 0;

/// The reason why generation ended.
///
/// ```
/// use tercet_models::{FinishReason, Generation};
/// let generation = Generation { tokens: vec![5, 9], finish: FinishReason::Stop };
/// assert!(matches!(generation.finish, FinishReason::End | FinishReason::Stop));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token.
    End,
    /// A stop string was generated.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// Cancelled by the caller.
    Cancelled,
}

/// A generation request for a [`BatchGenerator`](crate::BatchGenerator).
///
/// ```
/// use tercet_networks::{SamplingOptions, Sequence};
/// let sampling = SamplingOptions { temperature: 0.7, ..SamplingOptions::default() };
/// let sequence = Sequence { eos: vec![2], sampling, ..Sequence::new(vec![1, 5, 9], 64) };
/// assert_eq!((sequence.prompt.len(), sequence.max_tokens), (3, 64));
/// ```
pub struct Sequence {
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of generated tokens.
    pub max_tokens: usize,
    /// Token ids that end the sequence.
    pub eos: Vec<u32>,
    /// Sampling options. Greedy decoding runs on the device; all other options copy the logits to
    /// the host.
    pub sampling: SamplingOptions,
    /// Seed of sampling. The same seed and logits give the same tokens for any number of slots.
    pub seed: u64,
    /// Constraint on the allowed tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Index of the adapter in
    /// [`BatchOptions::selectable_adapters`](crate::BatchOptions::selectable_adapters); `None` uses
    /// the base model.
    pub adapter: Option<usize>,
    /// Cached prefixes are reused only between sequences of the same scope.
    pub cache_scope: String,
    /// Makes the logits of every token available. The option disables drafts, which generate
    /// several tokens per run.
    pub needs_logits: bool,
}

impl Sequence {
    /// Greedy sequence of at most `max_tokens` generated tokens, without end tokens.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Sequence {
        Sequence {
            prompt,
            max_tokens,
            eos: Vec::new(),
            sampling: SamplingOptions::default(),
            seed: 0,
            constraint: None,
            adapter: None,
            cache_scope: String::new(),
            needs_logits: false,
        }
    }
}

/// Unique identifier of a sequence within a [`BatchGenerator`](crate::BatchGenerator); never
/// reused.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let options = tercet_networks::BatchOptions::new(&spec, 2);
/// # let decoder = tercet_networks::BatchDecoder::build(&spec, &weights, options)?;
/// # let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// use tercet_networks::{Sequence, SequenceId};
/// let first: SequenceId = generator.start(Sequence::new(vec![1, 2, 3], 4))?;
/// let second = generator.start(Sequence::new(vec![1, 2, 3], 4))?;
/// assert!(first < second);
/// assert!(generator.cancel(first));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u64);

/// A result of a step for one sequence.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let options = tercet_networks::BatchOptions::new(&spec, 2);
/// # let decoder = tercet_networks::BatchDecoder::build(&spec, &weights, options)?;
/// # let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// use tercet_networks::{BatchEvent, Sequence};
/// let id = generator.start(Sequence::new(vec![1, 2, 3], 4))?;
/// let events: Vec<BatchEvent> = generator.step()?;
/// assert!(events.iter().all(|event| event.sequence == id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BatchEvent {
    /// Sequence that the event belongs to.
    pub sequence: SequenceId,
    /// Payload of the event.
    pub kind: BatchEventKind,
}

/// Payload of a batch event.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let options = tercet_networks::BatchOptions::new(&spec, 2);
/// # let decoder = tercet_networks::BatchDecoder::build(&spec, &weights, options)?;
/// # let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// use tercet_networks::{BatchEventKind, FinishReason, Sequence};
/// generator.start(Sequence::new(vec![1, 2, 3], 2))?;
/// let mut finish = None;
/// for _ in 0..4 {
///     for event in generator.step()? {
///         if let BatchEventKind::Ended(reason) = event.kind { finish = Some(reason) }
///     }
/// }
/// assert_eq!(finish, Some(FinishReason::Length));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum BatchEventKind {
    /// Number of prompt tokens computed so far.
    Prompt(usize),
    /// Next generated token id.
    Token(u32),
    /// The sequence ended and its slot is free. The reason is never [`FinishReason::Stop`] or
    /// [`FinishReason::Cancelled`], which only the caller decides.
    Ended(FinishReason),
    /// The sequence failed because no token satisfies its constraint; its slot is free.
    Failed(ModelError),
}

/// Cache state of one slot.
#[doc(hidden)]
#[derive(Default)]
pub struct CacheSlot {
    /// Token ids whose keys and values are cached.
    pub cached_tokens: Vec<u32>,
    /// Number of leading cached tokens that were computed in whole prefill chunks.
    pub chunk_aligned: usize,
    /// Index of the adapter used for the cached tokens.
    pub(crate) adapter: Option<usize>,
    /// Cache scope of the cached tokens.
    pub cache_scope: String,
    /// Index of the buffer that holds the current window caches.
    pub(crate) buffer_index: usize,
    /// Prefix checkpoint of the cached tokens.
    pub checkpoint: Option<PrefixCheckpoint>,
    /// Sampling of the slot's text.
    pub(crate) text: SlotText,
    /// True if the recurrent states must be restored from the checkpoint before the next run.
    pub(crate) needs_restore: bool,
    /// Number of the last sequence that started in the slot.
    pub(crate) last_used: u64,
    /// Active sequence of the slot.
    pub(crate) active: Option<ActiveSequence>,
    /// True if the sequence had a draft run since the last decode run of all sequences.
    pub(crate) had_draft: bool,
}

/// Sampling of the text in a slot.
pub(crate) struct SlotText {
    pub(crate) sampler: TokenSampler,
    /// First token that presence and frequency penalties count.
    pub(crate) penalties_from: usize,
    /// Length of the next draft.
    pub(crate) draft_len: DraftLength,
}

impl Default for SlotText {
    fn default() -> SlotText {
        SlotText {
            sampler: TokenSampler::new(Sampling::GREEDY, STREAM),
            penalties_from: 0,
            draft_len: DraftLength::default(),
        }
    }
}

/// Recurrent states and window caches at the start of a prefill chunk.
#[doc(hidden)]
pub struct PrefixCheckpoint {
    /// Number of tokens before the checkpoint.
    pub at: usize,
    /// Index of the bank of buffers that holds the window caches.
    pub bank: usize,
    /// Recurrent states by name.
    pub states: Vec<(String, Tensor)>,
    /// True if sequences diverged here, so that further ones may share the prefix.
    pub is_branch: bool,
}

/// A position in a prompt at which to save a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedCheckpoint {
    pub(crate) at: usize,
    /// True if sequences diverge here.
    pub(crate) is_branch: bool,
}

impl CacheSlot {
    /// Whether a sequence may reuse the cache: its adapter and its cache scope are those of the slot.
    fn is_shared_with(&self, sequence: &Sequence) -> bool {
        self.adapter == sequence.adapter && self.cache_scope == sequence.cache_scope
    }

    /// Number of prompt tokens that the cache already covers, rounded down to whole chunks. The
    /// last prompt token never counts, because its logits are required.
    pub fn same(&self, sequence: &Sequence, chunk: usize) -> usize {
        if !self.is_shared_with(sequence) {
            return 0;
        }
        let same = self.common(&sequence.prompt).min(self.chunk_aligned);
        same - same % chunk
    }

    /// Number of leading tokens of `ids` that are cached. The last one never counts, because its
    /// logits are required.
    pub(crate) fn common(&self, ids: &[u32]) -> usize {
        self.shared(&ids[..ids.len().saturating_sub(1)])
    }

    /// Number of leading tokens of `ids` that are cached.
    pub(crate) fn shared(&self, ids: &[u32]) -> usize {
        let pairs = self.cached_tokens.iter().zip(ids);
        pairs.take_while(|(a, b)| a == b).count()
    }

    /// Sampling of the text, and the tokens of it.
    pub(crate) fn sampler(&mut self) -> (&mut TokenSampler, SampledText<'_>) {
        let so_far = SampledText {
            tokens: &self.cached_tokens,
            penalties_from: self.text.penalties_from,
        };
        (&mut self.text.sampler, so_far)
    }

    /// Number of prompt tokens that the checkpoint covers if the prompt starts with them, otherwise
    /// 0. Only models with recurrent states or window caches have checkpoints.
    pub fn checkpoint_match(&self, sequence: &Sequence) -> usize {
        let Some(kept) = (self.checkpoint.as_ref()).filter(|_| self.is_shared_with(sequence))
        else {
            return 0;
        };
        let prompt = &sequence.prompt;
        let is_same = prompt.len() > kept.at && prompt[..kept.at] == self.cached_tokens[..kept.at];
        if is_same { kept.at } else { 0 }
    }

    /// Rolls the slot back to its first `tokens` tokens. With recurrent states or window caches,
    /// `tokens` is the checkpoint position or 0.
    pub(crate) fn go_back(&mut self, tokens: usize) {
        self.cut(tokens);
        self.checkpoint = self.checkpoint.take().filter(|kept| kept.at == tokens);
        self.needs_restore = false;
        if let Some(kept) = &self.checkpoint {
            self.buffer_index = kept.bank;
            self.needs_restore = !kept.states.is_empty();
        }
    }

    /// Buffers of the window caches to read and to write. The two buffers differ if the one to read
    /// contains the checkpoint.
    pub(crate) fn banks(&self) -> [usize; 2] {
        let stays = |kept: &PrefixCheckpoint| {
            kept.at == self.cached_tokens.len() && kept.bank == self.buffer_index
        };
        match self.checkpoint.as_ref().is_some_and(stays) {
            true => [self.buffer_index, BANKS - 1 - self.buffer_index],
            false => [self.buffer_index; 2],
        }
    }

    /// Removes all cached tokens after the first `tokens`, and a checkpoint after them.
    pub(crate) fn cut(&mut self, tokens: usize) {
        self.cached_tokens.truncate(tokens);
        self.checkpoint = self.checkpoint.take().filter(|kept| kept.at <= tokens);
        self.chunk_aligned = self.chunk_aligned.min(tokens);
    }

    pub(crate) fn id(&self) -> Option<SequenceId> {
        self.active.as_ref().map(|text| text.id)
    }

    /// Ends the sequence of the slot, whose cache stays. Returns false if there was none.
    pub(crate) fn end(&mut self) -> bool {
        self.text = SlotText::default();
        self.active.take().is_some()
    }

    /// Random state of the next token of the slot's sequence.
    pub(crate) fn random(&self, chunk: usize) -> RngState {
        let text = self.active.as_ref();
        text.map_or_else(RngState::default, |text| text.random(chunk))
    }

    /// Token to compute in the next decode run; `None` during prefill.
    pub(crate) fn next(&self) -> Option<u32> {
        self.active.as_ref()?.next
    }
}

/// State of a sequence that occupies a slot.
pub(crate) struct ActiveSequence {
    pub(crate) id: SequenceId,
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) eos: Vec<u32>,
    pub(crate) seed: u64,
    /// True if the logits of every token are read, so that no draft runs.
    pub(crate) needs_logits: bool,
    /// True if the last draft run ended at a near tie, which a run of one row decides.
    pub(crate) is_near_tie: bool,
    pub(crate) generated: usize,
    /// Last sampled token; the next run computes its keys, values and logits.
    pub(crate) next: Option<u32>,
    /// Prompt positions of prefix checkpoints, in ascending order.
    pub(crate) checkpoints: Vec<PlannedCheckpoint>,
}

impl ActiveSequence {
    /// A sequence that starts in a slot, and the sampling of its text.
    pub(crate) fn new(
        id: SequenceId,
        sequence: Sequence,
        checkpoints: Vec<PlannedCheckpoint>,
    ) -> (ActiveSequence, SlotText) {
        let mut text = SlotText {
            penalties_from: sequence.prompt.len(),
            ..SlotText::default()
        };
        text.sampler.set_options(&sequence.sampling);
        text.sampler.constraint = sequence.constraint;
        let active = ActiveSequence {
            id,
            prompt: sequence.prompt,
            max_tokens: sequence.max_tokens,
            eos: sequence.eos,
            seed: sequence.seed,
            needs_logits: sequence.needs_logits,
            is_near_tie: false,
            generated: 0,
            next: None,
            checkpoints,
        };
        (active, text)
    }

    /// Records a failure event and returns false: the sequence ends.
    pub(crate) fn fail(&self, e: ModelError, events: &mut Vec<BatchEvent>) -> bool {
        events.push(BatchEvent {
            sequence: self.id,
            kind: BatchEventKind::Failed(e),
        });
        false
    }

    /// Records the events of a sampled token. Returns false if the sequence ends. `is_full` is true
    /// if the cache has no room for another token.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        is_full: bool,
        events: &mut Vec<BatchEvent>,
    ) -> bool {
        let sequence = self.id;
        let mut happened = |happened| {
            events.push(BatchEvent {
                sequence,
                kind: happened,
            })
        };
        if self.generated >= self.max_tokens {
            happened(BatchEventKind::Ended(FinishReason::Length));
            return false;
        }
        if self.eos.contains(&token) {
            happened(BatchEventKind::Ended(FinishReason::End));
            return false;
        }
        self.generated += 1;
        happened(BatchEventKind::Token(token));
        let ended = match self.generated >= self.max_tokens {
            true => FinishReason::Length,
            false if is_full => FinishReason::Context,
            false => {
                self.next = Some(token);
                return true;
            }
        };
        happened(BatchEventKind::Ended(ended));
        false
    }

    /// Random state of the next token. Its counter is the index of the run that computes the logits,
    /// counted from the first prefill chunk.
    pub(crate) fn random(&self, chunk: usize) -> RngState {
        let counter = (self.prompt.len().div_ceil(chunk) - 1 + self.generated) as u64;
        RngState {
            seed: Some(self.seed),
            counter,
        }
    }
}
