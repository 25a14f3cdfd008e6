//! A compiled decoder and its cache: tokens go in part by part, logits and chosen tokens come out.

use tercet::ops::Op;
use tercet::random::Random;
use tercet::{DType, Executable, Tensor, TensorType};

mod ahead;
mod choice;
mod drafts;
mod run;
mod seen;
mod speculation;
mod windows;

use self::ahead::Ahead;
use self::choice::Chooser;
pub use self::drafts::{Draft, DraftError, MOST_DRAFTED};
pub(super) use self::seen::PICTURES;
use self::seen::Seen;
pub use self::speculation::DraftCounts;
use self::speculation::Speculation;
use self::windows::WindowStates;
use super::decoder::products::{Moved, Rounded};
use super::decoder::{Products, Sampling, Sizes};
use super::{Model, ModelError};
use crate::constraint::Constraint;
use crate::waits::{Waits, now};

/// What one run gave for its last token.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The logits of the next token; empty after [`Generator::skip_logits`].
    pub logits: &'a [f32],
    /// The token chosen, when the graph samples.
    pub next: Option<u32>,
}

/// A compiled language model with its cache.
pub struct Generator {
    /// None where it was to be compiled otherwise, and could not.
    exe: Option<Box<dyn Executable>>,
    /// What it takes to compile it otherwise, where products are rounded.
    rounded: Option<Rounded>,
    moved: Option<Moved>,
    position: usize,
    /// Whether layers remember what they read in states, of which nothing can be taken back.
    has_states: bool,
    /// Whether nothing ran since all states were zeros.
    is_blank: bool,
    context: usize,
    chunk: usize,
    vocab: usize,
    logit_rows: usize,
    dtype: DType,
    inputs: [Tensor; 5],
    /// As long as caches are filled, where these are decoded.
    filled: Option<Tensor>,
    /// Of layers whose caches do not hold the context.
    windows: Vec<WindowStates>,
    outputs: Vec<Tensor>,
    next_only: bool,
    /// The tokens in the cache.
    tokens: Vec<u32>,
    penalties_from: usize,
    sampling: Option<Chooser>,
    constraint: Option<Box<dyn Constraint>>,
    /// What tokens behind the vocabulary stand for, where the model sees.
    seen: Option<Seen>,
    /// What proposes tokens.
    speculation: Option<Speculation>,
    ahead: Ahead,
}

/// Which tokens of a run give logits.
#[derive(Clone, Copy)]
enum Rows {
    /// The last, from which the next token is chosen.
    Last,
    /// All, and no token is chosen.
    All,
}

/// The inputs in the order of [`Generator::inputs`].
const INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl Generator {
    /// Of any graph that has the inputs and outputs of a decoder's.
    pub(super) fn of(
        exe: Box<dyn Executable>,
        rounded: Option<Rounded>,
        model: &Model,
        sizes: Sizes,
        sampling: Option<Sampling>,
    ) -> Generator {
        let Sizes {
            has_states,
            context,
            chunk,
            vocab,
            logit_rows,
            dtype,
            counts_seen,
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
            exe: Some(exe),
            rounded,
            moved: None,
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
            outputs: Vec::new(),
            next_only: false,
            tokens: Vec::new(),
            penalties_from: 0,
            sampling: chooser.map(|(compiled, stream)| Chooser {
                compiled,
                stream,
                set: None,
            }),
            constraint: None,
            seen: None,
            speculation: None,
            ahead: Ahead::default(),
        }
    }

    /// Leaves the logits on the device from now on, if the graph samples: each step then reads back
    /// one number. [`Generator::logits`] still gives them.
    pub fn skip_logits(&mut self) {
        let exe = self.exe.iter();
        let mut outputs = exe.flat_map(|exe| &exe.signature().outputs);
        self.next_only = outputs.any(|o| o.name == "next");
    }

    /// The logits of the last step, read from the device.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or when nothing was fed yet; [`ModelError::Unsupported`] while the run of the next token is
    /// under way ([`Generator::run_ahead`]).
    pub fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        if self.ahead.token.is_some() {
            let reason = "the next token's run has taken the place of the logits; read them without `run_ahead`";
            return Err(ModelError::Unsupported(reason.into()));
        }
        now(self.read_logits(Waits::Blocking))
    }

    async fn read_logits(&mut self, waits: Waits) -> Result<Vec<f32>, ModelError> {
        let exe = self.exe()?;
        let rows = match waits {
            Waits::Blocking => exe.read_output_rows("logits", 0..1)?,
            Waits::Awaiting => exe.fetch_output_rows("logits", 0..1)?.await?,
        };
        let logits = rows.as_slice::<f32>();
        Ok(logits.map_err(|e| not_the_output("logits", &e))?.to_vec())
    }

    /// Binds an input beyond those of tokens.
    pub(super) fn bind(
        &mut self,
        input: &str,
        tensor: &tercet::DeviceTensor,
    ) -> Result<(), ModelError> {
        Ok(self.exe()?.bind(input, tensor)?)
    }

    /// How long each step of the last run took on the device, where it measures.
    pub fn timings(&mut self) -> Vec<tercet::StepTime> {
        self.exe.as_mut().map_or(Vec::new(), |exe| exe.timings())
    }

    /// The number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The capacity of the cache.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Draws as if the model had been built with this seed, from the next token on.
    pub fn set_seed(&mut self, seed: u64) {
        self.drop_ahead();
        if let Some(exe) = &mut self.exe {
            let random = exe.random();
            exe.set_random(Random {
                seed: Some(seed),
                ..random
            });
        }
    }

    /// Draws the next token, and those after it, with these random numbers.
    pub(super) fn set_random(&mut self, random: Random) {
        self.drop_ahead();
        if let Some(exe) = &mut self.exe {
            exe.set_random(random);
        }
    }

    /// The largest part of a text in one run, and the tokens that there are.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.chunk, self.vocab]
    }

    /// Penalties of presence and frequency count tokens from this position on, as an answer begins there; from the
    /// beginning of the cache unless this was called.
    pub fn penalties_from(&mut self, position: usize) {
        self.penalties_from = position;
    }

    /// The tokens in the cache, oldest first.
    pub fn cached(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets every token and a constraint; a seed and ways of choosing that were set stay.
    pub fn reset(&mut self) {
        self.constraint = None;
        self.drop_ahead();
        if let Some(exe) = &mut self.exe {
            exe.reset();
            self.is_blank = true;
        }
        self.position = 0;
        self.penalties_from = 0;
        self.tokens.clear();
    }

    /// Forgets the tokens from `position` on, and gives the number of those that are left: none where layers have states, or
    /// a window before `position` that their caches do not reach back to any more, unless nothing was to be forgotten.
    pub fn truncate(&mut self, position: usize) -> usize {
        if position < self.position {
            self.drop_ahead();
            let stays = !self.has_states && self.windows.iter().all(|own| own.reaches(position));
            self.position = if stays { position } else { 0 };
        }
        self.tokens.truncate(self.position);
        self.position
    }

    /// Appends tokens, in parts if there are many, and gives the logits after the last.
    ///
    /// # Errors
    /// [`ModelError::Context`] when they do not fit, [`ModelError::Token`], [`ModelError::NoTokens`];
    /// [`ModelError::Run`] of the device. After an error the cache is as before the failed part.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Step<'_>, ModelError> {
        self.feed_with(tokens, &mut |_| true)
    }

    /// As [`Generator::feed`]; calls `progress` with the number of tokens done after each part, and
    /// stops early when it returns false.
    ///
    /// # Errors
    /// As [`Generator::feed`].
    pub fn feed_with(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Step<'_>, ModelError> {
        now(self.feed_in(tokens, progress, Waits::Blocking))
    }

    /// As [`Generator::feed_with`], awaiting the device: the thread is not blocked where the executor can be awaited, in
    /// browsers above all. Dropped before it is ready, it leaves the cache as before the part under way.
    ///
    /// # Errors
    /// As [`Generator::feed`].
    pub async fn feed_async(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Step<'_>, ModelError> {
        self.feed_in(tokens, progress, Waits::Awaiting).await
    }

    pub(crate) async fn feed_in(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: Waits,
    ) -> Result<Step<'_>, ModelError> {
        self.check(tokens)?;
        let mut done = 0;
        let mut random = self.exe()?.random();
        for part in tokens.chunks(self.chunk) {
            random = self.exe()?.random();
            self.append(part, Rows::Last, waits).await?;
            done += part.len();
            if !progress(done) {
                break;
            }
        }
        if let Some(next) = self.chosen(random)? {
            let logits = match self.outputs.as_slice() {
                [logits, ..] if !self.next_only => logits
                    .as_slice()
                    .map_err(|e| not_the_output("logits", &e))?,
                _ => &[],
            };
            return Ok(Step {
                logits,
                next: Some(next),
            });
        }
        let (logits, next) = match self.outputs.as_slice() {
            [next] if self.next_only => (None, Some(next)),
            [logits, next, ..] => (Some(logits), Some(next)),
            [logits] => (Some(logits), None),
            [] => (None, None),
        };
        let logits: &[f32] = match logits {
            Some(t) => t.as_slice().map_err(|e| not_the_output("logits", &e))?,
            None => &[],
        };
        let next = match next {
            Some(t) => {
                let next = t
                    .as_slice::<i32>()
                    .map_err(|e| not_the_output("next", &e))?;
                next.first().map(|&t| t as u32)
            }
            None => None,
        };
        Ok(Step { logits, next })
    }

    /// Appends tokens and gives the logits after each of them in order, `[vocab]`; stops early when `each` returns false.
    /// The graph gives as many rows in one run as it was built for ([`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows)).
    ///
    /// # Errors
    /// As [`Generator::feed`].
    pub fn feed_rows(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<(), ModelError> {
        self.check(tokens)?;
        for part in tokens.chunks(self.chunk.min(self.logit_rows)) {
            now(self.append(part, Rows::All, Waits::Blocking))?;
            let Some(logits) = self.outputs.first() else {
                return Ok(());
            };
            let logits = logits.as_slice::<f32>();
            let logits = logits.map_err(|e| not_the_output("logits", &e))?;
            if !logits.chunks_exact(self.vocab).all(&mut *each) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Refuses what cannot be fed.
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
        let known = self.vocab + self.seen.as_ref().map_or(0, |seen| seen.count);
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= known) {
            return Err(ModelError::Token {
                token,
                vocab: self.vocab,
            });
        }
        Ok(())
    }

    /// What happened to the precision of the model since it was compiled, for people; nothing as a rule.
    pub fn note(&self) -> Option<String> {
        self.moved.map(|moved| moved.to_string())
    }

    /// What the model computes products in from now on, where it left a range: for models compiled after it.
    pub fn moved_to(&self) -> Option<Products> {
        self.moved.map(Moved::products)
    }

    fn exe(&mut self) -> Result<&mut Box<dyn Executable>, ModelError> {
        self.exe.as_mut().ok_or_else(no_executable)
    }
}

/// Makes an input of numbers.
fn fill(input: &mut Tensor, shape: &[usize], number: impl Fn(usize) -> usize) {
    let sized = input.reset_to(DType::I32, shape);
    sized.expect("invariant: small shapes fit memory");
    let slots = input.as_slice_mut::<i32>();
    let slots = slots.expect("invariant: the inputs are I32").iter_mut();
    slots.enumerate().for_each(|(i, x)| *x = number(i) as i32);
}

pub(super) fn no_executable() -> ModelError {
    ModelError::Unsupported(
        "the model left the range of its type before, and could not be compiled in another; open it again"
            .to_string(),
    )
}

pub(super) fn not_the_output(name: &str, e: &tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("output `{name}` of the model: {e}"))
}
