//! Continuous batching over one compiled model: sequences join and leave at any step, each in its
//! own slot.
//!
//! [`BatchGenerator::step`] is one run: a prefill chunk of one prompt, or one decode step of all
//! sequences in decode. If prefill and decode are both pending, their runs alternate. A decode run
//! is padded only to the smallest number of rows for which the executor chooses the same kernels as
//! for the largest run. The output of a sequence is therefore bitwise independent of the other
//! sequences (ADR 0028).
//!
//! Nothing is compiled per sequence. A slot keeps its cache when its sequence ends, and the next
//! sequence with the same prefix reuses it. Only whole chunks are reused, so the result is bitwise
//! equal to a run from an empty slot. Models with recurrent states or window caches resume from a
//! checkpoint instead (`prefix_cache.rs`).

mod inputs;
mod prefix_cache;
mod run;
pub(crate) mod sequence;
mod speculation;
mod windows;

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use rayon::prelude::*;
use tercet::{Executable, RunError, StepTime};

use super::compiled_decoder::{CompiledDecoder, EmbeddingTarget, elements};
use super::decoder::cache::CacheFormat;
use super::decoder::matmul_precision::OverflowFallback;
use super::decoder::slot_windows::{BANKS, slot_windows};
use super::decoder::{BatchDecoder, coarser, has_per_slot_rows};
use super::generator::Speculation;
use super::token_sampler::near_tie;
use super::{MatmulPrecision, ModelError};
use crate::maybe_async::{WaitMode, block_on_ready};
use inputs::{BatchInputs, BatchRunRows, SlotChunk};
use sequence::{ActiveSequence, CacheSlot};
pub use sequence::{BatchEvent, BatchEventKind, FinishReason, Sequence, SequenceId};

/// Minimum sequences per decode run for which sequences take turns so that a lone one is not padded.
const MIN_TURN: usize = 8;

/// A compiled language model that generates several sequences concurrently.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{BatchDecoder, BatchOptions, Sequence};
/// let decoder = BatchDecoder::build(&spec, &weights, BatchOptions::new(&spec, 2))?;
/// let mut generator = decoder.generator(&Device::cpu())?;
/// let id = generator.start(Sequence::new(vec![1, 2, 3], 4))?;
/// let events = generator.step()?;
/// assert_eq!((generator.free(), events[0].sequence), (1, id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BatchGenerator {
    compiled: CompiledDecoder,
    /// Minimum rows of a decode run. A row has the same bits for any number of rows from this minimum
    /// to `together`.
    min_rows: usize,
    /// The `together` that was asked for.
    max_together: usize,
    /// Maximum sequences per decode run. The field after it is the slot at which the next decode
    /// run starts its search.
    together: usize,
    next_turn: usize,
    /// True if layers keep recurrent states.
    has_states: bool,
    /// True if layers have sliding-window caches.
    has_windows: bool,
    context: usize,
    chunk: usize,
    vocab: usize,
    /// Number of adapters that sequences can select from.
    adapter_count: usize,
    slots: Vec<CacheSlot>,
    inputs: BatchInputs,
    speculation: Option<Speculation>,
    /// Sequence that a draft model continues; it holds one text.
    draft_owner: Option<SequenceId>,
    /// Rows of logits of a draft run.
    draft_rows: usize,
    /// Minimum lead of a greedy token of a draft run.
    near_tie: f32,
    /// Number of sequences started so far.
    started: u64,
    /// True if the last run was a prefill chunk.
    was_prompt: bool,
    /// Sequence of each logits row of the last run.
    logit_owners: Vec<SequenceId>,
}

impl BatchGenerator {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        rounded: Option<OverflowFallback>,
        together: usize,
        decoder: &BatchDecoder,
    ) -> Result<BatchGenerator, ModelError> {
        let BatchDecoder {
            config, options, ..
        } = decoder;
        let windows = slot_windows(config, options.context);
        let mut inputs = BatchInputs::new(
            [options.slots, options.context],
            has_per_slot_rows(config),
            !options.selectable_adapters.is_empty(),
            (&windows, options.cache_format() == CacheFormat::Q8_0),
        );
        let mut compiled = CompiledDecoder::new(exe, rounded);
        if options.max_image_rows > 0 {
            compiled.set_image_embeddings(config.hidden, &[])?;
        }
        let rows = equal_row_counts(compiled.exe()?.as_ref(), &mut inputs, together)?;
        Ok(BatchGenerator {
            compiled,
            max_together: together,
            min_rows: *rows.start(),
            together: *rows.end(),
            next_turn: 0,
            has_states: config.has_states(),
            has_windows: !windows.is_empty(),
            context: options.context,
            chunk: options.chunk.min(options.context),
            vocab: config.vocab,
            adapter_count: options.selectable_adapters.len(),
            slots: (0..options.slots).map(|_| CacheSlot::default()).collect(),
            inputs,
            speculation: None,
            draft_owner: None,
            draft_rows: options.draft_rows(),
            near_tie: near_tie(coarser(options.dtype, options.cache_format())),
            started: 0,
            was_prompt: false,
            logit_owners: Vec::new(),
        })
    }

    /// Maximum number of concurrent sequences.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.active.is_none())
            .count()
    }

    /// Number of rows of a decode run, one per sequence. A run of fewer sequences is padded to the least
    /// number; if more are active, they take turns. A row has the same bits for any of these numbers.
    pub fn decode_rows(&self) -> RangeInclusive<usize> {
        self.min_rows..=self.together
    }

    /// Device time of each step of the last run, if the device measures it.
    pub fn timings(&mut self) -> Vec<StepTime> {
        self.compiled.timings()
    }

    /// Cache capacity per sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// User-facing message about a precision fallback since compilation; usually `None`.
    pub fn fallback_message(&self) -> Option<String> {
        self.compiled.fallback_message()
    }

    /// Matmul precision after an overflow fallback. Compile further models with this precision.
    pub fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.compiled.fallback_precision()
    }

    /// Checks a sequence without starting it; ignores whether a slot is free.
    ///
    /// # Errors
    /// Same errors as [`BatchGenerator::start`].
    pub fn check(&self, sequence: &Sequence) -> Result<(), ModelError> {
        let sizes = [self.context, self.vocab, self.adapter_count];
        sequence.check(sizes, self.compiled.image_rows())
    }

    /// Assigns a free slot to a sequence; [`BatchGenerator::step`] computes it.
    ///
    /// # Errors
    /// [`ModelError::NoSlot`] if no slot is free. [`ModelError::NoTokens`], [`ModelError::Context`]
    /// and [`ModelError::Token`] for the prompt. [`ModelError::Unsupported`] and
    /// [`ModelError::Token`] for the sampling options. [`ModelError::Unsupported`] for an adapter
    /// index that the model was not compiled with.
    pub fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
        self.check(&sequence)?;
        let chunk = self.chunk;
        let slots = self.slots.iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.active.is_none());
        let forgets = self.has_states || self.has_windows;
        let same = |slot: &CacheSlot| match forgets {
            true => slot.checkpoint_match(&sequence),
            false => slot.same(&sequence, chunk),
        };
        let best = free.max_by_key(|(_, slot)| (same(slot), Reverse(slot.chunk_aligned)));
        let Some((at, _)) = best else {
            let slots = self.slots.len();
            return Err(ModelError::NoSlot { slots });
        };
        self.started += 1;
        let id = SequenceId(self.started);
        let same = same(&self.slots[at]);
        let keep_at = self.checkpoint_position(&sequence, same);
        let slot = &mut self.slots[at];
        slot.go_back(same);
        slot.adapter = sequence.adapter;
        slot.cache_scope.clone_from(&sequence.cache_scope);
        slot.had_draft = false;
        slot.active = Some(ActiveSequence::new(id, sequence, keep_at));
        Ok(id)
    }

    /// Cancels a sequence and frees its slot. Returns true if the sequence was active, false if it
    /// has ended.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let is_its = |slot: &&mut CacheSlot| slot.active.as_ref().is_some_and(|text| text.id == id);
        match self.slots.iter_mut().find(is_its) {
            Some(slot) => slot.active.take().is_some(),
            None => false,
        }
    }

    /// Cancels all sequences and clears the caches of all slots.
    pub fn reset(&mut self) {
        self.slots.fill_with(CacheSlot::default);
        self.logit_owners.clear();
        self.compiled.reset();
    }

    /// Performs one run and returns its events in slot order; the list is empty if no sequence is
    /// active. A sequence that ends or fails frees its slot. A run that verifies a draft
    /// ([`BatchGenerator::set_draft`]) gives several tokens of one sequence.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device; all sequences keep their previous state. A failure of one
    /// sequence is a [`BatchEventKind::Failed`] event.
    pub fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let prompt = self.next_prompt();
        let writes = self.slots.iter().any(|slot| slot.next().is_some());
        match prompt {
            Some(slot) if !(writes && self.was_prompt) => {
                self.was_prompt = true;
                self.part_of_prompt(slot)
            }
            _ if writes => {
                self.was_prompt = false;
                match self.draft_run()? {
                    Some(events) => Ok(events),
                    None => self.next_tokens(),
                }
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Logits of a sequence from the last run, `[vocab]`, copied from the device. Logits exist
    /// after the last prefill chunk and after each generated token, the final one included. `None`
    /// if the last run produced none for this sequence.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device.
    pub fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(row) = self.logit_owners.iter().position(|given| *given == id) else {
            return Ok(None);
        };
        let rows = row..row + 1;
        let logits = self.compiled.read_rows("logits", rows, WaitMode::Blocking);
        block_on_ready(logits).map(Some)
    }

    /// Slot with the oldest sequence that is still in prefill.
    fn next_prompt(&self) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        let waiting = slots.filter_map(|(at, slot)| {
            let text = slot.active.as_ref()?;
            (slot.cached_tokens.len() < text.prompt.len()).then_some((text.id, at))
        });
        waiting.min().map(|(_, at)| at)
    }

    /// Runs the next prefill chunk of a slot; after the last chunk it samples a token.
    fn part_of_prompt(&mut self, at: usize) -> Result<Vec<BatchEvent>, ModelError> {
        self.restore_checkpoint(at)?;
        self.save_checkpoint(at)?;
        let slot = &self.slots[at];
        let Some(text) = &slot.active else {
            return Ok(Vec::new());
        };
        let start = slot.cached_tokens.len();
        let end = text.prompt.len().min(start + self.chunk);
        let (id, is_last) = (text.id, end == text.prompt.len());
        let part = SlotChunk {
            slot: at,
            adapter: slot.adapter,
            start,
            banks: slot.banks(),
            tokens: text.prompt[start..end].to_vec(),
        };
        let on_host = is_last && text.sampler.is_on_host();
        self.run(&BatchRunRows::Prompt(&part), on_host)?;
        let slot = &mut self.slots[at];
        if end - start == self.chunk && slot.chunk_aligned == start {
            slot.chunk_aligned = end;
        }
        let mut events = vec![BatchEvent {
            sequence: id,
            kind: BatchEventKind::Prompt(end),
        }];
        if is_last {
            self.logit_owners.push(id);
            self.sample(&[(at, 0)], &mut events)?;
        }
        Ok(events)
    }

    /// Slots with a sequence in decode, from the one whose turn it is.
    fn writing_in_turn(&self) -> Vec<usize> {
        let slots = self.slots.len();
        let in_turn = (0..slots).map(|i| (self.next_turn + i) % slots);
        in_turn
            .filter(|at| self.slots[*at].next().is_some())
            .collect()
    }

    /// Runs one decode step: computes the last token of each sequence, up to the maximum per run,
    /// and samples the next tokens.
    fn next_tokens(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let slots = self.slots.len();
        let mut chosen = self.writing_in_turn();
        chosen.retain(|at| !self.slots[*at].had_draft);
        chosen.truncate(self.together);
        let turn = chosen.last().map_or(0, |last| (last + 1) % slots);
        chosen.sort_unstable();
        self.clear_draft_turns();
        let mut parts = Vec::with_capacity(chosen.len());
        let mut on_host = false;
        for at in chosen {
            let slot = &self.slots[at];
            let (Some(token), Some(text)) = (slot.next(), &slot.active) else {
                continue;
            };
            on_host |= text.sampler.is_on_host();
            parts.push(SlotChunk {
                slot: at,
                adapter: slot.adapter,
                start: slot.cached_tokens.len(),
                banks: slot.banks(),
                tokens: vec![token],
            });
        }
        let idle = self.min_rows.saturating_sub(parts.len());
        self.run(&BatchRunRows::Tokens(&parts, idle), on_host)?;
        self.next_turn = turn;
        let ids = parts.iter().filter_map(|part| self.slots[part.slot].id());
        self.logit_owners = ids.collect();
        let mut events = Vec::new();
        let slots: Vec<(usize, usize)> = parts.iter().map(|part| part.slot).zip(0..).collect();
        self.sample(&slots, &mut events)?;
        Ok(events)
    }

    /// Samples the next tokens of these slots from their rows of the last run, each `(slot, row)`, and
    /// records the events. Slots are in ascending order.
    fn sample(
        &mut self,
        slots: &[(usize, usize)],
        events: &mut Vec<BatchEvent>,
    ) -> Result<(), ModelError> {
        let [next, logits @ ..] = self.compiled.outputs.as_slice() else {
            return Ok(());
        };
        let next = elements(next, "next")?;
        let logits = logits.first().map(|logits| elements(logits, "logits"));
        let logits = logits.transpose()?;
        let rows = LastRows {
            next,
            logits,
            vocab: self.vocab,
            chunk: self.chunk,
        };
        let mut wanted = slots.iter().peekable();
        let all = self.slots.iter_mut().enumerate();
        let mut sampled: Vec<(&mut CacheSlot, usize)> = all
            .filter_map(|(at, slot)| Some((slot, wanted.next_if(|(own, _)| *own == at)?.1)))
            .collect();
        // Sampling of one row of a large vocabulary takes a fraction of a millisecond.
        let chosen: Vec<Result<Option<u32>, ModelError>> = sampled
            .par_iter_mut()
            .map(|(slot, row)| rows.choose(slot, *row))
            .collect();
        for ((slot, _), chosen) in sampled.into_iter().zip(chosen) {
            let is_full = slot.cached_tokens.len() >= self.context;
            let Some(text) = &mut slot.active else {
                continue;
            };
            text.is_near_tie = false;
            let goes_on = match chosen {
                Ok(Some(token)) => text.accept(token, is_full, events),
                Ok(None) => text.fail(no_logits(), events),
                Err(e) => text.fail(e, events),
            };
            if !goes_on {
                slot.active = None;
            }
        }
        Ok(())
    }
}

impl EmbeddingTarget for BatchGenerator {
    fn set_image_embeddings(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError> {
        self.compiled.set_image_embeddings(width, rows)
    }

    fn truncate_from(&mut self, token: u32) {
        for slot in &mut self.slots {
            let at = slot.cached_tokens.iter().position(|own| *own >= token);
            let Some(at) = at else {
                continue;
            };
            slot.checkpoint = None;
            // Windows and states cannot go back.
            slot.cut(if self.has_states || self.has_windows {
                0
            } else {
                at
            });
        }
    }
}

/// Outputs of the last run.
struct LastRows<'a> {
    /// Greatest logit of each row.
    next: &'a [i32],
    /// `[rows, vocab]`, if they were copied.
    logits: Option<&'a [f32]>,
    vocab: usize,
    chunk: usize,
}

impl LastRows<'_> {
    /// The next token of a slot's sequence; `None` without a sequence or without logits.
    fn choose(&self, slot: &mut CacheSlot, row: usize) -> Result<Option<u32>, ModelError> {
        let Some(text) = &mut slot.active else {
            return Ok(None);
        };
        if !text.sampler.is_on_host() {
            return Ok(self.next.get(row).map(|token| *token as u32));
        }
        let own = row * self.vocab..(row + 1) * self.vocab;
        let Some(logits) = self.logits.and_then(|logits| logits.get(own)) else {
            return Ok(None);
        };
        let (so_far, random) = (text.text(&slot.cached_tokens), text.random(self.chunk));
        text.sampler.choose(logits, so_far, random)
    }
}

/// Numbers of rows of a decode run for which a row has the same bits: those for which the executor
/// chooses the same kernels.
///
/// If the kernels of one row serve many rows, a run has at most as many, and further sequences take
/// turns. Otherwise a run has at most `together` rows.
fn equal_row_counts(
    exe: &dyn Executable,
    inputs: &mut BatchInputs,
    together: usize,
) -> Result<RangeInclusive<usize>, ModelError> {
    if together == 1 {
        return Ok(1..=1);
    }
    // The kernels must depend neither on the number of sequences nor on that of padding rows.
    let mut variants = |rows: usize| {
        let part = |slot| SlotChunk {
            slot,
            adapter: None,
            start: 0,
            banks: [0; 2],
            tokens: vec![0],
        };
        let parts: Vec<SlotChunk> = (0..rows).map(part).collect();
        inputs.fill(&BatchRunRows::Tokens(&parts, 0));
        let full = exe.kernel_variants(&inputs.named())?;
        inputs.fill(&BatchRunRows::Tokens(&parts[..1], rows - 1));
        let padded = exe.kernel_variants(&inputs.named())?;
        Ok::<_, RunError>((full == padded).then_some(full))
    };
    let one = variants(1)?;
    let mut end = 1;
    while one.is_some() && end < together && variants(end + 1)? == one {
        end += 1;
    }
    if end >= MIN_TURN.min(together) {
        return Ok(1..=end);
    }
    let all = variants(together)?;
    let mut start = together;
    while all.is_some() && start > 1 && variants(start - 1)? == all {
        start -= 1;
    }
    Ok(start..=together)
}

fn no_logits() -> ModelError {
    ModelError::Unsupported("the model returned no logits to sample from".into())
}
