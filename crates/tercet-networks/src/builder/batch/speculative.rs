//! Speculative decoding of one sequence behind the batch API: a draft proposes several tokens and
//! one run verifies them (ADR 0045). The interface is that of a
//! [`BatchGenerator`](super::BatchGenerator) with one slot, on top of a [`Generator`] with a draft.
//!
//! The output is the same as without a draft, and independent of earlier sequences. For this reason
//! the prefix cache reuses only whole prefill chunks of the previous prompt.

use tercet::random::RngState;

use super::super::{DraftCounts, Generator, MatmulPrecision, ModelError};

use super::sequence::{ActiveSequence, BatchEvent, BatchEventKind, Sequence, SequenceId};

/// A compiled language model that generates one sequence at a time with a draft.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{Decoder, DecoderOptions, Draft, Sequence, SpeculativeGenerator};
/// let options = DecoderOptions { logit_rows: 5, ..DecoderOptions::new(&spec) };
/// let mut generator = Decoder::build(&spec, &weights, options)?.generator(&Device::cpu())?;
/// generator.set_draft(Some(Draft::ngrams()), 4)?;
/// let mut generator = SpeculativeGenerator::new(generator);
/// let id = generator.start(Sequence::new(vec![1, 2, 3], 4))?;
/// assert_eq!((generator.slots(), generator.cancel(id)), (1, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SpeculativeGenerator {
    generator: Generator,
    /// Number of leading cached tokens that were computed in whole prefill chunks.
    chunk_aligned: usize,
    /// Cache scope of the cached tokens.
    cache_scope: String,
    /// Number of sequences started so far.
    started: u64,
    needs_logits: bool,
    text: Option<ActiveSequence>,
}

impl SpeculativeGenerator {
    /// Wraps a model with greedy sampling in its graph and a draft ([`Generator::set_draft`]).
    /// Without a draft each run generates one token.
    #[must_use]
    pub fn new(mut generator: Generator) -> SpeculativeGenerator {
        generator.reset();
        generator.skip_logits();
        generator.draw_in(super::STREAM);
        SpeculativeGenerator {
            generator,
            chunk_aligned: 0,
            cache_scope: String::new(),
            started: 0,
            needs_logits: false,
            text: None,
        }
    }

    /// Maximum number of concurrent sequences: 1.
    pub fn slots(&self) -> usize {
        1
    }

    /// Counts of proposed and accepted draft tokens so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        self.generator.draft_counts()
    }

    /// User-facing message about a precision fallback, as
    /// [`BatchGenerator::fallback_message`](super::BatchGenerator::fallback_message).
    pub fn fallback_message(&self) -> Option<String> {
        self.generator.fallback_message()
    }

    /// Matmul precision after an overflow fallback, as
    /// [`BatchGenerator::fallback_precision`](super::BatchGenerator::fallback_precision).
    pub fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.generator.fallback_precision()
    }

    /// Starts a sequence if no other is active; [`SpeculativeGenerator::step`] computes it.
    ///
    /// # Errors
    /// Same errors as [`BatchGenerator::start`](super::BatchGenerator::start). Selecting an adapter is an
    /// error.
    pub fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
        let [chunk, vocab] = self.generator.sizes();
        let sizes = [self.generator.context(), vocab, 0];
        sequence.check(sizes, self.generator.image_rows())?;
        if self.text.is_some() {
            return Err(ModelError::NoSlot { slots: 1 });
        }
        self.generator.set_sampling(&sequence.sampling)?;
        let prompt = &sequence.prompt;
        if self.cache_scope != sequence.cache_scope {
            self.chunk_aligned = 0;
            self.cache_scope.clone_from(&sequence.cache_scope);
        }
        // The last prompt token is always recomputed because its logits are required.
        let held = &self.generator.cached()[..self.chunk_aligned];
        let pairs = held.iter().zip(&prompt[..prompt.len() - 1]);
        let same = pairs.take_while(|(a, b)| a == b).count();
        self.chunk_aligned = self.generator.truncate(same - same % chunk);
        self.generator.set_penalty_start(prompt.len());
        self.started += 1;
        let id = SequenceId(self.started);
        self.needs_logits = sequence.needs_logits;
        self.text = Some(ActiveSequence::new(id, sequence, 0));
        Ok(id)
    }

    /// Changes the generator before the next sequence, for example to set the images of its prompt
    /// ([`ImageEncoder::set_images`](crate::ImageEncoder::set_images)), and returns the result of
    /// `change`.
    ///
    /// # Errors
    /// [`ModelError::NoSlot`] while a sequence is active; the errors of `change`.
    pub fn change_generator<T>(
        &mut self,
        change: impl FnOnce(&mut Generator) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        if self.text.is_some() {
            return Err(ModelError::NoSlot { slots: 1 });
        }
        let result = change(&mut self.generator);
        self.chunk_aligned = self.chunk_aligned.min(self.generator.cached().len());
        result
    }

    /// Cancels the sequence. Returns true if the sequence was active, false if it has ended.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let is_it = self.text.as_ref().is_some_and(|text| text.id == id);
        is_it && self.text.take().is_some()
    }

    /// Cancels the sequence and clears the cache.
    pub fn reset(&mut self) {
        self.text = None;
        self.chunk_aligned = 0;
        self.generator.reset();
    }

    /// Runs the next prefill chunk, or one decode run that generates one or more tokens. Returns
    /// the resulting events; the list is empty if no sequence is active.
    ///
    /// # Errors
    /// Errors of the device and of the draft. The state of the sequence is then undefined; call
    /// [`SpeculativeGenerator::reset`].
    pub fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let Some(text) = &mut self.text else {
            return Ok(Vec::new());
        };
        let mut events = Vec::new();
        let tokens = match text.next {
            Some(token) => {
                let most = match self.needs_logits {
                    true => 1,
                    false => text.max_tokens - text.generated,
                };
                self.generator.advance(token, most, &text.eos)
            }
            None => {
                let part = part_of_prompt(&mut self.generator, &mut self.chunk_aligned, text);
                if let Ok((done, _)) = part {
                    events.push(BatchEvent {
                        sequence: text.id,
                        kind: BatchEventKind::Prompt(done),
                    });
                }
                part.map(|(_, token)| Vec::from_iter(token))
            }
        };
        let tokens = match tokens {
            Ok(tokens) => tokens,
            // Only this sequence fails: its output can no longer satisfy the constraint.
            Err(e @ ModelError::Constraint(_)) => {
                text.fail(e, &mut events);
                self.text = None;
                return Ok(events);
            }
            Err(e) => return Err(e),
        };
        // The last token of the run is not in the cache yet.
        let behind = (0..tokens.len()).rev();
        let is_full = |behind| self.generator.position() - behind >= self.generator.context();
        let goes_on = tokens
            .into_iter()
            .zip(behind)
            .all(|(token, behind)| text.accept(token, is_full(behind), &mut events));
        if !goes_on {
            self.text = None;
        }
        Ok(events)
    }

    /// Logits of the last generated token, `[vocab]`, copied from the device. `None` unless the
    /// sequence has `needs_logits`.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device.
    pub fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
        let is_last = id.0 == self.started && self.needs_logits;
        is_last.then(|| self.generator.logits()).transpose()
    }
}

/// Runs the next prefill chunk. Returns the number of finished prompt tokens and, after the last
/// chunk, the first generated token.
fn part_of_prompt(
    generator: &mut Generator,
    whole: &mut usize,
    text: &mut ActiveSequence,
) -> Result<(usize, Option<u32>), ModelError> {
    let [chunk, _] = generator.sizes();
    let start = generator.position();
    let end = text.prompt.len().min(start + chunk);
    let is_last = end == text.prompt.len();
    // Only the last chunk samples a token, so only it needs the constraint.
    let constraint = text.constraint.take_if(|_| is_last);
    generator.set_constraint(constraint)?;
    if is_last {
        // Use the same random numbers as a sequence in a slot of `BatchGenerator`.
        generator.set_random(RngState {
            seed: Some(text.seed),
            counter: text.draw(chunk),
        });
    }
    let next = generator.forward(&text.prompt[start..end])?.next;
    let next = next.ok_or_else(super::no_logits)?;
    if end - start == chunk && *whole == start {
        *whole = end;
    }
    Ok((end, is_last.then_some(next)))
}
