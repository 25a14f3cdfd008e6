//! Several sequences over one compiled model: each has a slot, is started, ends or is cancelled whenever it likes, and the
//! others go on.
//!
//! [`BatchGenerator::step`] is one run: the next part of one prompt, or the next token of every sequence whose prompt is done.
//! Where there are both they take turns. A run of the second kind always has as many rows as there are slots, whoever writes
//! (on the CPU as many as bits do not depend on), so that what a sequence gets depends on nothing but itself: the same
//! bits in any company (ADR 0028).
//!
//! Nothing is compiled for a sequence. What slots hold after a sequence has ended stays, and the next one that begins
//! with the same tokens does not compute them again: whole parts only, so that its bits are those of a slot that held nothing.
//! Where layers do not remember all positions, it goes on where what they remember was kept (`kept.rs`).

mod drafted;
mod inputs;
mod kept;
mod run;
mod sequence;
mod windows;

use std::cmp::Reverse;

use tercet::random::Random;
use tercet::{DType, Executable, Tensor};

use super::decoder::cache::CacheFormat;
use super::decoder::products::{Moved, Rounded, Wider};
use super::decoder::slot_windows::slot_windows;
use super::decoder::{BatchDecoder, has_rows_apart};
use super::generator::{no_executable, not_the_output};
use super::{ModelError, Products};
pub use drafted::DraftedGenerator;
use inputs::{Inputs, Part, Rows};
pub use sequence::{BatchEvent, Happened, Sequence, SequenceId};
use sequence::{Slot, Text};

/// The stream of random numbers that tokens are drawn with.
const STREAM: u32 = 0;

/// A compiled language model that writes several sequences side by side.
pub struct BatchGenerator {
    /// None where it was to be compiled otherwise, and could not.
    exe: Option<Box<dyn Executable>>,
    /// What it takes to compile it otherwise, where products are rounded.
    rounded: Option<Rounded>,
    moved: Option<Moved>,
    /// How many rows a run of single tokens has at least: with fewer or more, up to the number of slots, a row has the same bits.
    least_rows: usize,
    /// How many sequences a run of single tokens has at most, and the slot with which the next such run begins to look for them.
    together: usize,
    turn: usize,
    /// Layers remember what they read in states.
    has_states: bool,
    /// Layers have caches of what a window reaches.
    has_windows: bool,
    context: usize,
    chunk: usize,
    vocab: usize,
    /// How many adapters sequences choose from.
    choices: usize,
    slots: Vec<Slot>,
    inputs: Inputs,
    outputs: Vec<Tensor>,
    /// Sequences started so far.
    started: u64,
    /// The last run was a part of a prompt.
    was_prompt: bool,
    /// Whose logits the last run gave, row by row.
    given: Vec<SequenceId>,
}

impl BatchGenerator {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        rounded: Option<Rounded>,
        [least_rows, together]: [usize; 2],
        decoder: &BatchDecoder,
    ) -> BatchGenerator {
        let BatchDecoder {
            config, options, ..
        } = decoder;
        let windows = slot_windows(config, options.context);
        BatchGenerator {
            exe: Some(exe),
            rounded,
            least_rows,
            together,
            turn: 0,
            moved: None,
            has_states: config.has_states(),
            has_windows: !windows.is_empty(),
            context: options.context,
            chunk: options.chunk.min(options.context),
            vocab: config.vocab,
            choices: options.choices.len(),
            slots: (0..options.slots).map(|_| Slot::default()).collect(),
            inputs: Inputs::new(
                [options.slots, options.context],
                has_rows_apart(config),
                !options.choices.is_empty(),
                (&windows, options.cache_format() == CacheFormat::Q8_0),
            ),
            outputs: Vec::new(),
            started: 0,
            was_prompt: false,
            given: Vec::new(),
        }
    }

    /// How many sequences there may be at once.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// How many more may be started now.
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|slot| slot.text.is_none()).count()
    }

    /// The capacity of the cache of each sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What happened to the precision of the model since it was compiled, for people; nothing as a rule.
    pub fn note(&self) -> Option<String> {
        self.moved.map(|moved| moved.to_string())
    }

    /// What the model computes products in from now on, where it left a range: for models compiled after it.
    pub fn moved_to(&self) -> Option<Products> {
        self.moved.map(Moved::products)
    }

    /// Refuses what [`BatchGenerator::start`] would for any other reason than that all slots are taken.
    ///
    /// # Errors
    /// As [`BatchGenerator::start`].
    pub fn check(&self, sequence: &Sequence) -> Result<(), ModelError> {
        sequence.check([self.context, self.vocab, self.choices])
    }

    /// Gives a sequence a free slot; [`BatchGenerator::step`] computes it.
    ///
    /// # Errors
    /// [`ModelError::NoSlot`] when there is none; [`ModelError::NoTokens`], [`ModelError::Context`] and
    /// [`ModelError::Token`] of the prompt, [`ModelError::Unsupported`] and [`ModelError::Token`] of how tokens are chosen, and
    /// the former of an adapter that the model was not compiled with.
    pub fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
        self.check(&sequence)?;
        let chunk = self.chunk;
        let slots = self.slots.iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.text.is_none());
        let forgets = self.has_states || self.has_windows;
        let same = |slot: &Slot| match forgets {
            true => slot.kept_of(&sequence),
            false => slot.same(&sequence, chunk),
        };
        let best = free.max_by_key(|(_, slot)| (same(slot), Reverse(slot.whole)));
        let Some((at, _)) = best else {
            let slots = self.slots.len();
            return Err(ModelError::NoSlot { slots });
        };
        self.started += 1;
        let id = SequenceId(self.started);
        let same = same(&self.slots[at]);
        let keep_at = self.keep_at(&sequence, same);
        let slot = &mut self.slots[at];
        slot.go_back(same);
        slot.adapter = sequence.adapter;
        slot.text = Some(Text::new(id, sequence, keep_at));
        Ok(id)
    }

    /// Takes the slot of a sequence away from it. True where it had one: one that has ended has none any more.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let is_its = |slot: &&mut Slot| slot.text.as_ref().is_some_and(|text| text.id == id);
        match self.slots.iter_mut().find(is_its) {
            Some(slot) => slot.text.take().is_some(),
            None => false,
        }
    }

    /// Cancels all sequences and forgets what slots hold.
    pub fn reset(&mut self) {
        self.slots.fill_with(Slot::default);
        self.given.clear();
        if let Some(exe) = &mut self.exe {
            exe.reset();
        }
    }

    /// One run, and what came of it, in the order of the slots; nothing where there is no sequence. A sequence that has
    /// ended, or failed, has no slot any more.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device: sequences are as they were before. What fails for one sequence alone is
    /// [`Happened::Failed`].
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
                self.next_tokens()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The logits that the last run gave a sequence, `[vocab]`, read from the device, where it gave it some: after the last
    /// part of its prompt and each of its tokens, the last one included.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device.
    pub fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(row) = self.given.iter().position(|given| *given == id) else {
            return Ok(None);
        };
        let logits = self.exe()?.read_output_rows("logits", row..row + 1)?;
        let logits = logits.as_slice::<f32>();
        Ok(Some(
            logits.map_err(|e| not_the_output("logits", &e))?.to_vec(),
        ))
    }

    /// The slot whose prompt is not done and was started first.
    fn next_prompt(&self) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        let waiting = slots.filter_map(|(at, slot)| {
            let text = slot.text.as_ref()?;
            (slot.cached.len() < text.prompt.len()).then_some((text.id, at))
        });
        waiting.min().map(|(_, at)| at)
    }

    /// Computes the next part of the prompt in this slot and, after the last one, chooses a token.
    fn part_of_prompt(&mut self, at: usize) -> Result<Vec<BatchEvent>, ModelError> {
        self.put_back(at)?;
        self.keep(at)?;
        let slot = &self.slots[at];
        let Some(text) = &slot.text else {
            return Ok(Vec::new());
        };
        let start = slot.cached.len();
        let end = text.prompt.len().min(start + self.chunk);
        let (id, is_last) = (text.id, end == text.prompt.len());
        let part = Part {
            slot: at,
            adapter: slot.adapter,
            start,
            banks: slot.banks(),
            tokens: text.prompt[start..end].to_vec(),
        };
        let on_host = is_last && text.is_on_host();
        self.run(&Rows::Prompt(&part), on_host)?;
        let slot = &mut self.slots[at];
        if end - start == self.chunk && slot.whole == start {
            slot.whole = end;
        }
        let mut events = vec![BatchEvent {
            sequence: id,
            happened: Happened::Prompt(end),
        }];
        if is_last {
            self.given.push(id);
            self.choose(at, 0, &mut events)?;
        }
        Ok(events)
    }

    /// Computes the token that each sequence has chosen last, or those whose turn it is, and chooses the next.
    fn next_tokens(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        let slots = self.slots.len();
        let in_turn = (0..slots).map(|i| (self.turn + i) % slots);
        let writing = in_turn.filter(|at| self.slots[*at].next().is_some());
        let mut chosen: Vec<usize> = writing.take(self.together).collect();
        let turn = chosen.last().map_or(0, |last| (last + 1) % slots);
        chosen.sort_unstable();
        let mut parts = Vec::with_capacity(chosen.len());
        let mut on_host = false;
        for at in chosen {
            let slot = &self.slots[at];
            let (Some(token), Some(text)) = (slot.next(), &slot.text) else {
                continue;
            };
            on_host |= text.is_on_host();
            parts.push(Part {
                slot: at,
                adapter: slot.adapter,
                start: slot.cached.len(),
                banks: slot.banks(),
                tokens: vec![token],
            });
        }
        let idle = self.least_rows.saturating_sub(parts.len());
        self.run(&Rows::Tokens(&parts, idle), on_host)?;
        self.turn = turn;
        let ids = parts.iter().filter_map(|part| self.slots[part.slot].id());
        self.given = ids.collect();
        let mut events = Vec::new();
        for (row, part) in parts.iter().enumerate() {
            self.choose(part.slot, row, &mut events)?;
        }
        Ok(events)
    }

    /// Chooses the next token of a sequence from a row of the last run, and says what becomes of it.
    fn choose(
        &mut self,
        at: usize,
        row: usize,
        events: &mut Vec<BatchEvent>,
    ) -> Result<(), ModelError> {
        let [next, logits @ ..] = self.outputs.as_slice() else {
            return Ok(());
        };
        let next = next.as_slice::<i32>();
        let next = next.map_err(|e| not_the_output("next", &e))?;
        let next = next.get(row).map(|token| *token as u32);
        let logits = match logits.first() {
            Some(logits) => logits
                .as_slice::<f32>()
                .map_err(|e| not_the_output("logits", &e))?
                .get(row * self.vocab..(row + 1) * self.vocab),
            None => None,
        };
        let slot = &mut self.slots[at];
        let Some(text) = &mut slot.text else {
            return Ok(());
        };
        let random = Random {
            seed: Some(text.seed),
            counter: text.draw(self.chunk),
        };
        let unit = random.stream(0, STREAM).unit(DType::F32, 0);
        let chosen = match (text.is_on_host(), logits) {
            (true, Some(logits)) => text.choose(logits, &slot.cached, unit),
            (true, None) => Ok(None),
            (false, _) => Ok(next),
        };
        let is_full = slot.cached.len() >= self.context;
        let goes_on = match chosen {
            Ok(Some(token)) => text.take(token, is_full, events),
            Ok(None) => text.fail(no_logits(), events),
            Err(e) => text.fail(e, events),
        };
        if !goes_on {
            slot.text = None;
        }
        Ok(())
    }
}

fn no_logits() -> ModelError {
    ModelError::Unsupported("the model gave no logits to choose a token from".into())
}
