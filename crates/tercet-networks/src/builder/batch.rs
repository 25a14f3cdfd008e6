//! Continuous batching: a scheduler of sequences over the slots of one engine. Sequences join and
//! leave at any step, each in its own slot.
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
//! checkpoint instead (`engine/checkpoints.rs`). A prefix whose slot another sequence takes moves to the
//! prefix store and back, if there is one (`engine/prefixes.rs`).

mod drafts;

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use tercet::{Executable, StepTime};

use super::compiled_decoder::EmbeddingTarget;
use super::decoder::cache::CacheFormat;
use super::decoder::matmul_precision::OverflowFallback;
use super::decoder::run_rows::{LogitRows, RunRows, SlotChunk};
use super::decoder::{BatchDecoder, DecoderSizes, coarser, has_per_slot_rows};
use super::engine::Engine;
use super::engine::inputs::{BatchInputs, ProgramInputs};
use super::engine::prefixes::PrefixTier;
use super::engine::sequence::{
    ActiveSequence, BatchEvent, BatchEventKind, CacheSlot, Sequence, SequenceId,
};
use super::prefix_store::ModelTag;
use super::{MatmulPrecision, ModelError};
use crate::maybe_async::{WaitMode, block_on_ready};

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
    engine: Engine,
    /// Slot at which the next decode run starts its search.
    next_turn: usize,
    /// Number of adapters that sequences can select from.
    adapter_count: usize,
    /// Sequence that a draft model continues; it holds one text.
    draft_owner: Option<SequenceId>,
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
        (together, tag): (usize, Option<ModelTag>),
        decoder: &BatchDecoder,
    ) -> Result<BatchGenerator, ModelError> {
        let BatchDecoder {
            config, options, ..
        } = decoder;
        let has_visible_input = options.cache_format() == CacheFormat::Q8_0;
        let inputs = BatchInputs::new(
            [options.slots, options.context],
            has_per_slot_rows(config),
            !options.selectable_adapters.is_empty(),
            has_visible_input,
        );
        let sizes = DecoderSizes {
            has_states: config.has_states(),
            context: options.context,
            chunk: options.chunk.min(options.context),
            vocab: config.vocab,
            logit_rows: options.draft_rows(),
            dtype: coarser(options.dtype, options.cache_format()),
            has_visible_input,
            windows: options.window_caches(config),
        };
        let (inputs, slots) = (ProgramInputs::Slots(inputs), [options.slots, together]);
        let mut engine = Engine::new(exe, rounded, inputs, slots, sizes)?;
        engine.next_only = true;
        let tier = options.prefix_store.clone().zip(tag);
        engine.prefixes = tier.map(|(store, model)| PrefixTier::new(store, model));
        if options.max_image_rows > 0 {
            (engine.compiled).set_image_embeddings(config.hidden, &[])?;
        }
        Ok(BatchGenerator {
            engine,
            next_turn: 0,
            adapter_count: options.selectable_adapters.len(),
            draft_owner: None,
            started: 0,
            was_prompt: false,
            logit_owners: Vec::new(),
        })
    }

    /// Number of stored prefixes that this generator can use, and of those of other models or other
    /// options. Zeros without [`BatchOptions::prefix_store`](crate::BatchOptions::prefix_store).
    pub fn stored_prefixes(&self) -> [usize; 2] {
        let tier = self.engine.prefixes.as_ref();
        tier.map_or([0; 2], PrefixTier::count)
    }

    /// Saves the prefixes of all slots in the prefix store and waits until its files are complete. The
    /// slots stay as they are. A prefix that cannot be saved is lost with a warning of the store.
    ///
    /// ```
    /// # let dims = tercet_networks::DecoderDims {
    /// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
    /// #     context: 128,
    /// # };
    /// # let spec = tercet_networks::DecoderSpec::llama(dims);
    /// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
    /// use tercet::Device;
    /// use tercet_networks::{BatchDecoder, BatchOptions, PrefixStore, Sequence};
    /// let store = PrefixStore::in_memory(64 << 20);
    /// let options = BatchOptions {
    ///     chunk: 16,
    ///     prefix_store: Some(store.clone()),
    ///     ..BatchOptions::new(&spec, 2)
    /// };
    /// let mut generator = BatchDecoder::build(&spec, &weights, options)?.generator(&Device::cpu())?;
    /// generator.start(Sequence::new((0..40).collect(), 1))?;
    /// while !generator.step()?.is_empty() {}
    /// generator.save_prefixes();
    /// assert_eq!((store.stats().entries, generator.stored_prefixes()), (1, [1, 0]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save_prefixes(&mut self) {
        for at in 0..self.engine.slots.len() {
            self.engine.save_prefix(at, 0);
        }
        if let Some(tier) = &self.engine.prefixes {
            tier.store.flush();
        }
    }

    /// Maximum number of concurrent sequences.
    pub fn slots(&self) -> usize {
        self.engine.slots.len()
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        let slots = self.engine.slots.iter();
        slots.filter(|slot| slot.active.is_none()).count()
    }

    /// Number of rows of a decode run, one per sequence. A run of fewer sequences is padded to the least
    /// number; if more are active, they take turns. A row has the same bits for any of these numbers.
    pub fn decode_rows(&self) -> RangeInclusive<usize> {
        self.engine.min_rows..=self.engine.together
    }

    /// Device time of each step of the last run, if the device measures it.
    pub fn timings(&mut self) -> Vec<StepTime> {
        self.engine.compiled.timings()
    }

    /// Cache capacity per sequence, in tokens.
    pub fn context(&self) -> usize {
        self.engine.context
    }

    /// User-facing message about a precision fallback since compilation; usually `None`.
    pub fn fallback_message(&self) -> Option<String> {
        self.engine.compiled.fallback_message()
    }

    /// Matmul precision after an overflow fallback. Compile further models with this precision.
    pub fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.engine.compiled.fallback_precision()
    }

    /// Checks a sequence without starting it; ignores whether a slot is free.
    ///
    /// # Errors
    /// Same errors as [`BatchGenerator::start`].
    pub fn check(&self, sequence: &Sequence) -> Result<(), ModelError> {
        self.engine.check(0, &sequence.prompt)?;
        let choices = self.adapter_count;
        if let Some(at) = sequence.adapter.filter(|at| *at >= choices) {
            return Err(ModelError::Unsupported(format!(
                "adapter index {at} is out of range; the model was compiled with {choices} adapters"
            )));
        }
        sequence.sampling.check(self.engine.vocab)
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
        let engine = &mut self.engine;
        let slots = engine.slots.iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.active.is_none());
        let same = |slot: &CacheSlot| match engine.goes_back() {
            true => slot.same(&sequence, engine.chunk),
            false => slot.checkpoint_match(&sequence),
        };
        // A stored prefix is not lost with its slot, so its length is no reason to keep it there.
        let worth = |slot: &CacheSlot| match engine.prefixes.is_some() {
            true => slot.last_used,
            false => slot.chunk_aligned as u64,
        };
        let best = free.max_by_key(|(_, slot)| (same(slot), Reverse(worth(slot))));
        let Some((at, _)) = best else {
            let slots = engine.slots.len();
            return Err(ModelError::NoSlot { slots });
        };
        self.started += 1;
        let id = SequenceId(self.started);
        let same = same(&engine.slots[at]);
        let (at, same) = match engine.load_prefix(&sequence, same) {
            Some(stored) => {
                let at = engine.oldest_free_slot().unwrap_or(at);
                engine.save_prefix(at, 0);
                (at, engine.restore_prefix(at, stored))
            }
            None => {
                engine.save_prefix(at, same);
                (at, same)
            }
        };
        let checkpoints = engine.planned_checkpoints(&sequence, same);
        let slot = &mut engine.slots[at];
        slot.go_back(same);
        slot.adapter = sequence.adapter;
        slot.cache_scope.clone_from(&sequence.cache_scope);
        slot.had_draft = false;
        slot.last_used = self.started;
        let (active, text) = ActiveSequence::new(id, sequence, checkpoints);
        (slot.active, slot.text) = (Some(active), text);
        Ok(id)
    }

    /// Cancels a sequence and frees its slot. Returns true if the sequence was active, false if it
    /// has ended.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let is_its = |slot: &&mut CacheSlot| slot.active.as_ref().is_some_and(|text| text.id == id);
        match self.engine.slots.iter_mut().find(is_its) {
            Some(slot) => slot.end(),
            None => false,
        }
    }

    /// Cancels all sequences and clears the caches of all slots.
    pub fn reset(&mut self) {
        self.engine.slots.fill_with(CacheSlot::default);
        self.logit_owners.clear();
        self.engine.reset();
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
        let writes = self.engine.slots.iter().any(|slot| slot.next().is_some());
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
        let logits = self
            .engine
            .compiled
            .read_rows("logits", rows, WaitMode::Blocking);
        block_on_ready(logits).map(Some)
    }

    /// Slot with the oldest sequence that is still in prefill.
    fn next_prompt(&self) -> Option<usize> {
        let slots = self.engine.slots.iter().enumerate();
        let waiting = slots.filter_map(|(at, slot)| {
            let text = slot.active.as_ref()?;
            (slot.cached_tokens.len() < text.prompt.len()).then_some((text.id, at))
        });
        waiting.min().map(|(_, at)| at)
    }

    /// Runs the next prefill chunk of a slot; after the last chunk it samples a token.
    fn part_of_prompt(&mut self, at: usize) -> Result<Vec<BatchEvent>, ModelError> {
        self.engine.restore_checkpoint(at)?;
        self.engine.save_checkpoint(at)?;
        let slot = &self.engine.slots[at];
        let Some(text) = &slot.active else {
            return Ok(Vec::new());
        };
        let start = slot.cached_tokens.len();
        let end = text.prompt.len().min(start + self.engine.chunk);
        let (id, is_last) = (text.id, end == text.prompt.len());
        let part = self.engine.part(at, text.prompt[start..end].to_vec());
        let sampled: &[usize] = if is_last { &[at] } else { &[] };
        self.run(&RunRows::Chunk(&part, LogitRows::Last), sampled)?;
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

    /// Runs the engine for the next tokens of the slots `sampled`.
    fn run(&mut self, rows: &RunRows<'_>, sampled: &[usize]) -> Result<(), ModelError> {
        self.logit_owners.clear();
        let outputs = self.engine.outputs(sampled);
        block_on_ready(self.engine.run(rows, outputs, WaitMode::Blocking))
    }

    /// Slots with a sequence in decode, from the one whose turn it is.
    fn writing_in_turn(&self) -> Vec<usize> {
        let slots = &self.engine.slots;
        let in_turn = (0..slots.len()).map(|i| (self.next_turn + i) % slots.len());
        in_turn.filter(|at| slots[*at].next().is_some()).collect()
    }

    /// Runs one decode step: computes the last token of each sequence, up to the maximum per run,
    /// and samples the next tokens.
    fn next_tokens(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let mut chosen = self.writing_in_turn();
        chosen.retain(|at| !self.engine.slots[*at].had_draft);
        chosen.truncate(self.engine.together);
        let turn = chosen.last().map_or(0, |last| (last + 1) % self.slots());
        chosen.sort_unstable();
        self.clear_draft_turns();
        let engine = &self.engine;
        let next = |at: &usize| Some(engine.part(*at, vec![engine.slots[*at].next()?]));
        let parts: Vec<SlotChunk> = chosen.iter().filter_map(next).collect();
        let idle = engine.min_rows.saturating_sub(parts.len());
        self.run(&RunRows::Tokens(&parts, idle), &chosen)?;
        self.next_turn = turn;
        let ids = chosen.iter().filter_map(|at| self.engine.slots[*at].id());
        self.logit_owners = ids.collect();
        let mut events = Vec::new();
        let rows: Vec<(usize, usize)> = chosen.into_iter().zip(0..).collect();
        self.sample(&rows, &mut events)?;
        Ok(events)
    }

    /// Samples the next tokens of these slots from their rows of the last run, each `(slot, row)`, and
    /// records the events. Slots are in ascending order.
    fn sample(
        &mut self,
        slots: &[(usize, usize)],
        events: &mut Vec<BatchEvent>,
    ) -> Result<(), ModelError> {
        let (chunk, context) = (self.engine.chunk, self.engine.context);
        let chosen = self.engine.choose(slots, |slot| slot.random(chunk))?;
        for ((at, _), chosen) in slots.iter().zip(chosen) {
            let slot = &mut self.engine.slots[*at];
            let is_full = slot.cached_tokens.len() >= context;
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
                slot.end();
            }
        }
        Ok(())
    }
}

impl EmbeddingTarget for BatchGenerator {
    fn set_image_embeddings(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError> {
        self.engine.compiled.set_image_embeddings(width, rows)
    }

    fn truncate_from(&mut self, token: u32) {
        self.engine.truncate_from(token);
    }
}

fn no_logits() -> ModelError {
    ModelError::Unsupported("the model returned no logits to sample from".into())
}
