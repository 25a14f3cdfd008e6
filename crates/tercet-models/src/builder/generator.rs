//! A compiled decoder and its cache: tokens go in part by part, logits and chosen tokens come out.

use tercet::random::Random;
use tercet::{DType, Executable, Tensor, TensorType, Wanted};

use super::ModelError;
use super::decoder::DecoderOptions;
use crate::config::DecoderSpec;

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
    exe: Box<dyn Executable>,
    position: usize,
    context: usize,
    chunk: usize,
    vocab: usize,
    inputs: [Tensor; 5],
    outputs: Vec<Tensor>,
    next_only: bool,
}

/// The inputs in the order of [`Generator::inputs`].
const INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl Generator {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        config: &DecoderSpec,
        options: &DecoderOptions,
    ) -> Generator {
        let empty = |shape: &[usize]| {
            Tensor::zeros(TensorType::new(DType::I32, shape))
                .expect("invariant: small shapes fit memory")
        };
        Generator {
            exe,
            position: 0,
            context: options.context,
            chunk: options.chunk.min(options.context),
            vocab: config.vocab,
            inputs: [
                empty(&[0]),
                empty(&[0]),
                empty(&[4]),
                empty(&[]),
                empty(&[1]),
            ],
            outputs: Vec::new(),
            next_only: false,
        }
    }

    /// Leaves the logits on the device from now on, if the graph samples: each step then reads back
    /// one number. [`Generator::logits`] still gives them.
    pub fn skip_logits(&mut self) {
        let outputs = &self.exe.signature().outputs;
        self.next_only = outputs.iter().any(|o| o.name == "next");
    }

    /// The logits of the last step, read from the device.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or when nothing was fed yet.
    pub fn logits(&mut self) -> Result<Vec<f32>, ModelError> {
        let rows = self.exe.read_output_rows("logits", 0..1)?;
        let logits = rows.as_slice::<f32>();
        Ok(logits.map_err(|e| not_the_output("logits", &e))?.to_vec())
    }

    /// How long each step of the last run took on the device, where it measures.
    pub fn timings(&mut self) -> Vec<tercet::StepTime> {
        self.exe.timings()
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
        let random = self.exe.random();
        self.exe.set_random(Random {
            seed: Some(seed),
            ..random
        });
    }

    /// Forgets every token; a seed that was set stays.
    pub fn reset(&mut self) {
        self.exe.reset();
        self.position = 0;
    }

    /// Forgets the tokens from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
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
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= self.vocab) {
            return Err(ModelError::Token {
                token,
                vocab: self.vocab,
            });
        }
        let mut done = 0;
        for part in tokens.chunks(self.chunk) {
            self.run(part)?;
            done += part.len();
            if !progress(done) {
                break;
            }
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

    fn run(&mut self, part: &[u32]) -> Result<(), ModelError> {
        let (n, start) = (part.len(), self.position);
        let [tokens, positions, at, kv_len, rows] = &mut self.inputs;
        let write = |t: &mut Tensor, shape: &[usize], f: &dyn Fn(usize) -> usize| {
            t.reset_to(DType::I32, shape)
                .expect("invariant: small shapes fit memory");
            let slots = t
                .as_slice_mut::<i32>()
                .expect("invariant: the inputs are I32");
            slots
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = f(i) as i32);
        };
        write(tokens, &[n], &|i| part[i] as usize);
        write(positions, &[n], &|i| start + i);
        write(at, &[4], &|i| if i == 1 { start } else { 0 });
        write(kv_len, &[], &|_| start + n);
        write(rows, &[1], &|_| n - 1);
        let inputs: [(&str, &Tensor); 5] = std::array::from_fn(|i| (INPUTS[i], &self.inputs[i]));
        match self.next_only {
            true => {
                self.exe.submit(&inputs, Wanted::Only(&["next"]))?;
                self.exe.wait(&mut self.outputs)?;
            }
            false => self.exe.run_into(&inputs, &mut self.outputs)?,
        }
        self.position += n;
        Ok(())
    }
}

fn not_the_output(name: &str, e: &tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("output `{name}` of the model: {e}"))
}
