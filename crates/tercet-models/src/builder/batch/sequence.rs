//! Sequences, and the slots that hold them.

use tercet::Tensor;

use crate::builder::decoder::slot_windows::BANKS;
use crate::builder::{ModelError, Sampling, SamplingOptions};
use crate::constraint::Constraint;
use crate::writing::Finish;

/// A text to be written by a [`BatchGenerator`](super::BatchGenerator).
pub struct Sequence {
    /// The tokens that it begins with; at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to write.
    pub max_tokens: usize,
    /// Tokens that end it.
    pub eos: Vec<u32>,
    /// How its tokens are chosen. The greatest logit is found on the device; for anything else logits are read back.
    pub sampling: SamplingOptions,
    /// Of its random numbers: the same seed draws the same tokens from the same logits, however many slots there are.
    pub seed: u64,
    /// Which tokens it may have.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Which of [`BatchOptions::choices`](crate::BatchOptions::choices) changes the model, by its place; none for the model itself.
    pub adapter: Option<usize>,
    /// Whether the logits of each of its tokens will be asked for: then no draft gives it several tokens in one run.
    pub wants_logits: bool,
}

impl Sequence {
    /// At most so many tokens after a prompt, each of the greatest logit; nothing else ends it.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Sequence {
        Sequence {
            prompt,
            max_tokens,
            eos: Vec::new(),
            sampling: SamplingOptions::default(),
            seed: 0,
            constraint: None,
            adapter: None,
            wants_logits: false,
        }
    }

    /// Refuses what cannot be written with so many tokens of context, in the vocabulary, and adapters to choose from.
    pub(super) fn check(&self, [context, vocab, choices]: [usize; 3]) -> Result<(), ModelError> {
        let tokens = self.prompt.len();
        if tokens == 0 {
            return Err(ModelError::NoTokens);
        }
        if tokens > context {
            return Err(ModelError::Context { tokens, context });
        }
        let mut prompt = self.prompt.iter();
        if let Some(&token) = prompt.find(|&&token| token as usize >= vocab) {
            return Err(ModelError::Token { token, vocab });
        }
        if let Some(at) = self.adapter.filter(|at| *at >= choices) {
            return Err(ModelError::Unsupported(format!(
                "a sequence asks for the adapter at {at}; the model was compiled with {choices}"
            )));
        }
        self.sampling.check(vocab)
    }
}

/// Tells the sequences of a [`BatchGenerator`](super::BatchGenerator) apart; none is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(super) u64);

/// What a step did for a sequence.
#[derive(Debug)]
pub struct BatchEvent {
    /// Which.
    pub sequence: SequenceId,
    /// What.
    pub happened: Happened,
}

/// What happens to a sequence.
#[derive(Debug)]
pub enum Happened {
    /// So many tokens of the prompt are done.
    Prompt(usize),
    /// Its next token.
    Token(u32),
    /// It has ended, and its slot is free; never [`Finish::Stop`] or [`Finish::Cancelled`], which others decide on.
    Ended(Finish),
    /// No token can be chosen, as its constraint does not go on; its slot is free.
    Failed(ModelError),
}

/// Caches of one sequence.
#[derive(Default)]
pub(super) struct Slot {
    /// The tokens whose keys and values they hold.
    pub(super) cached: Vec<u32>,
    /// How many of these were computed in whole parts of prompts, from the first on.
    pub(super) whole: usize,
    /// The adapter that they were computed with.
    pub(super) adapter: Option<usize>,
    /// Which of the places of a slot holds them in caches of windows.
    pub(super) bank: usize,
    /// What layers remembered of the first of them.
    pub(super) kept: Option<Kept>,
    /// States are not those of `cached` yet, but `kept` has them.
    pub(super) is_behind: bool,
    /// The sequence.
    pub(super) text: Option<Text>,
}

/// What layers that do not remember all positions held when a part of a prompt began.
pub(super) struct Kept {
    /// How many tokens they had read.
    pub(super) at: usize,
    pub(super) bank: usize,
    /// Of layers that scan, by name.
    pub(super) states: Vec<(String, Tensor)>,
}

impl Slot {
    /// How many tokens of a sequence's prompt need not be computed here, in whole parts: never the last one, whose logits are wanted.
    pub(super) fn same(&self, sequence: &Sequence, chunk: usize) -> usize {
        if self.adapter != sequence.adapter {
            return 0;
        }
        let prompt = &sequence.prompt;
        let held = &self.cached[..self.whole.min(self.cached.len())];
        let pairs = held.iter().zip(&prompt[..prompt.len().saturating_sub(1)]);
        let same = pairs.take_while(|(a, b)| a == b).count();
        same - same % chunk
    }

    /// How many tokens of a sequence's prompt need not be computed where layers do not remember all positions: those that were
    /// kept, if it begins with them.
    pub(super) fn kept_of(&self, sequence: &Sequence) -> usize {
        let Some(kept) = (self.kept.as_ref()).filter(|_| self.adapter == sequence.adapter) else {
            return 0;
        };
        let prompt = &sequence.prompt;
        let is_same = prompt.len() > kept.at && prompt[..kept.at] == self.cached[..kept.at];
        if is_same { kept.at } else { 0 }
    }

    /// Goes back to the first tokens, all that were kept or none where layers do not remember all positions.
    pub(super) fn go_back(&mut self, tokens: usize) {
        self.cut(tokens);
        self.kept = self.kept.take().filter(|kept| kept.at == tokens);
        self.is_behind = false;
        if let Some(kept) = &self.kept {
            self.bank = kept.bank;
            self.is_behind = !kept.states.is_empty();
        }
    }

    /// The bank where `cached` is, and that to which the next tokens go: another one where the former is kept.
    pub(super) fn banks(&self) -> [usize; 2] {
        let stays = |kept: &Kept| kept.at == self.cached.len() && kept.bank == self.bank;
        match self.kept.as_ref().is_some_and(stays) {
            true => [self.bank, BANKS - 1 - self.bank],
            false => [self.bank; 2],
        }
    }

    /// Forgets all tokens but the first.
    pub(super) fn cut(&mut self, tokens: usize) {
        self.cached.truncate(tokens);
        self.whole = self.whole.min(tokens);
    }

    pub(super) fn id(&self) -> Option<SequenceId> {
        self.text.as_ref().map(|text| text.id)
    }

    /// The token that is to be computed next, where the prompt is done.
    pub(super) fn next(&self) -> Option<u32> {
        self.text.as_ref()?.next
    }
}

/// A sequence that has a slot.
pub(super) struct Text {
    pub(super) id: SequenceId,
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) eos: Vec<u32>,
    /// None for the greatest logit.
    sampling: Option<SamplingOptions>,
    pub(super) seed: u64,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    pub(super) written: usize,
    /// The token chosen last, not computed yet.
    pub(super) next: Option<u32>,
    /// Before which part of the prompt what layers remember is kept; 0 for none.
    pub(super) keep_at: usize,
}

impl Text {
    pub(super) fn new(id: SequenceId, sequence: Sequence, keep_at: usize) -> Text {
        let Sequence {
            prompt,
            max_tokens,
            eos,
            sampling,
            seed,
            constraint,
            adapter: _,
            wants_logits: _,
        } = sequence;
        Text {
            id,
            prompt,
            max_tokens,
            eos,
            sampling: (!sampling.is(&Sampling::GREEDY)).then_some(sampling),
            seed,
            constraint,
            written: 0,
            next: None,
            keep_at,
        }
    }

    /// Whether its tokens are chosen from logits that are read back.
    pub(super) fn is_on_host(&self) -> bool {
        self.sampling.is_some() || self.constraint.is_some()
    }

    /// Adds that no token can be chosen; the text ends so.
    pub(super) fn fail(&self, e: ModelError, events: &mut Vec<BatchEvent>) -> bool {
        events.push(BatchEvent {
            sequence: self.id,
            happened: Happened::Failed(e),
        });
        false
    }

    /// Adds what becomes of the text by its next token; false where it ends so. `is_full` says that no other would find room.
    pub(super) fn take(&mut self, token: u32, is_full: bool, events: &mut Vec<BatchEvent>) -> bool {
        let sequence = self.id;
        let mut happened = |happened| events.push(BatchEvent { sequence, happened });
        if self.written >= self.max_tokens {
            happened(Happened::Ended(Finish::Length));
            return false;
        }
        if self.eos.contains(&token) {
            happened(Happened::Ended(Finish::End));
            return false;
        }
        self.written += 1;
        happened(Happened::Token(token));
        let ended = match self.written >= self.max_tokens {
            true => Finish::Length,
            false if is_full => Finish::Context,
            false => {
                self.next = Some(token);
                return true;
            }
        };
        happened(Happened::Ended(ended));
        false
    }

    /// The run, from its first one on, that gives the logits of the next token: where its random numbers are.
    pub(super) fn draw(&self, chunk: usize) -> u64 {
        (self.prompt.len().div_ceil(chunk) - 1 + self.written) as u64
    }

    /// The token chosen from a row of logits; `cached` is what the model has seen.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        cached: &[u32],
        unit: f64,
    ) -> Result<Option<u32>, ModelError> {
        let mut allowed = Vec::new();
        let logits = match &mut self.constraint {
            Some(constraint) => {
                allowed.extend_from_slice(logits);
                constraint.mask(&mut allowed)?;
                allowed.as_slice()
            }
            None => logits,
        };
        let written = cached.get(self.prompt.len()..).unwrap_or(&[]);
        let chosen = match &self.sampling {
            Some(options) => options.choose(logits, cached, written, unit),
            None => SamplingOptions::default().choose(logits, cached, written, unit),
        };
        if let (Some(constraint), Some(token)) = (&mut self.constraint, chosen) {
            constraint.take(token)?;
        }
        Ok(chosen)
    }
}
