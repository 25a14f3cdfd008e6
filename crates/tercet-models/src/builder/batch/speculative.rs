//! One sequence at a time, several of whose tokens are proposed and checked in one run (ADR 0045): what has the face of a
//! [`BatchGenerator`](super::BatchGenerator) of one slot, over a [`Generator`] with a draft.
//!
//! A sequence is what it is without the draft, and, as there, the same whatever was written before it: of what the cache
//! holds only whole parts of prompts stay for the next one.

use tercet::random::Random;

use super::super::{DraftCounts, Generator, ModelError, Products};
use super::sequence::{BatchEvent, Happened, Sequence, SequenceId, Text};

/// A compiled language model that writes one sequence at a time.
pub struct DraftedGenerator {
    generator: Generator,
    /// How many tokens in the cache were computed in whole parts of prompts, from the first on.
    whole: usize,
    /// Sequences started so far.
    started: u64,
    wants_logits: bool,
    text: Option<Text>,
}

impl DraftedGenerator {
    /// Of a model whose graph takes the greatest logit, with its draft ([`Generator::set_draft`]); without one it writes a token in each run.
    #[must_use]
    pub fn new(mut generator: Generator) -> DraftedGenerator {
        generator.reset();
        generator.skip_logits();
        generator.draw_in(super::STREAM);
        DraftedGenerator {
            generator,
            whole: 0,
            started: 0,
            wants_logits: false,
            text: None,
        }
    }

    /// How many sequences there may be at once.
    pub fn slots(&self) -> usize {
        1
    }

    /// What became of the proposals so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        self.generator.draft_counts()
    }

    /// As [`BatchGenerator::note`](super::BatchGenerator::note).
    pub fn note(&self) -> Option<String> {
        self.generator.note()
    }

    /// As [`BatchGenerator::moved_to`](super::BatchGenerator::moved_to).
    pub fn moved_to(&self) -> Option<Products> {
        self.generator.moved_to()
    }

    /// Takes a sequence, where there is none; [`DraftedGenerator::step`] computes it.
    ///
    /// # Errors
    /// As [`BatchGenerator::start`](super::BatchGenerator::start); no adapter can be chosen.
    pub fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
        let [chunk, vocab] = self.generator.sizes();
        sequence.check([self.generator.context(), vocab, 0])?;
        if self.text.is_some() {
            return Err(ModelError::NoSlot { slots: 1 });
        }
        self.generator.set_sampling(&sequence.sampling)?;
        let prompt = &sequence.prompt;
        // The last token's logits are wanted.
        let held = &self.generator.cached()[..self.whole];
        let pairs = held.iter().zip(&prompt[..prompt.len() - 1]);
        let same = pairs.take_while(|(a, b)| a == b).count();
        self.whole = self.generator.truncate(same - same % chunk);
        self.generator.penalties_from(prompt.len());
        self.started += 1;
        let id = SequenceId(self.started);
        self.wants_logits = sequence.wants_logits;
        self.text = Some(Text::new(id, sequence, 0));
        Ok(id)
    }

    /// Takes away a sequence. True where it was there: one that has ended is not any more.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let is_it = self.text.as_ref().is_some_and(|text| text.id == id);
        is_it && self.text.take().is_some()
    }

    /// Cancels the sequence and forgets what the cache holds.
    pub fn reset(&mut self) {
        self.text = None;
        self.whole = 0;
        self.generator.reset();
    }

    /// The next part of the prompt, or one run that gives one token or several, and what came of it; nothing where there is no
    /// sequence.
    ///
    /// # Errors
    /// Those of the device and of the draft: what the sequence is then is not known, and only
    /// [`DraftedGenerator::reset`] helps.
    pub fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let Some(text) = &mut self.text else {
            return Ok(Vec::new());
        };
        let mut events = Vec::new();
        let tokens = match text.next {
            Some(token) => {
                let most = match self.wants_logits {
                    true => 1,
                    false => text.max_tokens - text.written,
                };
                self.generator.advance(token, most, &text.eos)
            }
            None => {
                let part = part_of_prompt(&mut self.generator, &mut self.whole, text);
                if let Ok((done, _)) = part {
                    events.push(BatchEvent {
                        sequence: text.id,
                        happened: Happened::Prompt(done),
                    });
                }
                part.map(|(_, token)| Vec::from_iter(token))
            }
        };
        let tokens = match tokens {
            Ok(tokens) => tokens,
            // The constraint of this sequence alone does not go on.
            Err(e @ ModelError::Constraint(_)) => {
                text.fail(e, &mut events);
                self.text = None;
                return Ok(events);
            }
            Err(e) => return Err(e),
        };
        // The last of them is not in the cache yet.
        let behind = (0..tokens.len()).rev();
        let is_full = |behind| self.generator.position() - behind >= self.generator.context();
        let goes_on = tokens
            .into_iter()
            .zip(behind)
            .all(|(token, behind)| text.take(token, is_full(behind), &mut events));
        if !goes_on {
            self.text = None;
        }
        Ok(events)
    }

    /// The logits of the token that a sequence that wants them was given last, `[vocab]`, read from the device.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device.
    pub fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
        let is_last = id.0 == self.started && self.wants_logits;
        is_last.then(|| self.generator.logits()).transpose()
    }
}

/// Computes the next part of a prompt; how many tokens of it are done and, after the last, the first token of the text.
fn part_of_prompt(
    generator: &mut Generator,
    whole: &mut usize,
    text: &mut Text,
) -> Result<(usize, Option<u32>), ModelError> {
    let [chunk, _] = generator.sizes();
    let start = generator.position();
    let end = text.prompt.len().min(start + chunk);
    let is_last = end == text.prompt.len();
    // What a run of another part gives is not chosen from.
    let constraint = text.constraint.take_if(|_| is_last);
    generator.set_constraint(constraint)?;
    if is_last {
        // Those with which a sequence in a slot draws its tokens.
        generator.set_random(Random {
            seed: Some(text.seed),
            counter: text.draw(chunk),
        });
    }
    let next = generator.feed(&text.prompt[start..end])?.next;
    let next = next.ok_or_else(super::no_logits)?;
    if end - start == chunk && *whole == start {
        *whole = end;
    }
    Ok((end, is_last.then_some(next)))
}
