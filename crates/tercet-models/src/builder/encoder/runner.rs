//! Batches of texts through a compiled encoder.

#[cfg(not(target_family = "wasm"))]
use rayon::prelude::*;
use tercet::{DType, Device, Executable, Tensor, TensorType, Wanted};

use super::super::{ModelError, Products};
use super::Encoder;
use crate::tokenizer::{Row, Tokenizer};
use crate::waits::Waits;

/// A text as an encoder reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) row: Row,
    /// Leading tokens that take no part in pooling.
    pub(super) left_out: usize,
    /// The token whose state stands for the text, where the graph is told.
    pub(super) place: usize,
}

/// What becomes of texts that are longer than the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Longer {
    /// They are an error.
    Refused,
    /// They are cut.
    Cut,
}

/// The tokens of texts, or of pairs of them, of at most `most` tokens; cores share the work.
pub(super) fn all_tokens<T: AsRef<str> + Sync>(
    tokenizer: &Tokenizer,
    texts: &[(T, Option<T>)],
    (most, longer): (usize, Longer),
) -> Result<Vec<Tokens>, crate::Error> {
    let own = |(at, (text, pair)): (usize, &(T, Option<T>))| {
        let text = (text.as_ref(), pair.as_ref().map(T::as_ref));
        tokens(tokenizer, text, (at, most, longer))
    };
    // Browsers have one thread.
    #[cfg(target_family = "wasm")]
    return texts.iter().enumerate().map(own).collect();
    #[cfg(not(target_family = "wasm"))]
    {
        // The first error is that of the first text.
        let all: Vec<Result<Tokens, crate::Error>> =
            texts.par_iter().enumerate().map(own).collect();
        all.into_iter().collect()
    }
}

/// The tokens of a text, or of a pair of them; `at` is its place among the others.
fn tokens(
    tokenizer: &Tokenizer,
    (text, pair): (&str, Option<&str>),
    (at, most, longer): (usize, usize, Longer),
) -> Result<Tokens, crate::Error> {
    let row = match longer {
        Longer::Cut => tokenizer.encode_row(text, pair, Some(most))?,
        Longer::Refused => tokenizer.encode_row(text, pair, None)?,
    };
    let tokens = row.ids.len();
    if tokens > most {
        let text = at + 1;
        return Err(ModelError::TextTooLong { text, tokens, most }.into());
    }
    if row.ids.is_empty() {
        return Err(ModelError::NoTokens.into());
    }
    Ok(Tokens {
        row,
        left_out: 0,
        place: 0,
    })
}

/// Texts up to so many tokens share batches that are planned for them: memory is planned for the longest text times the
/// batch.
const SHORT: usize = 512;
/// Tokens of a batch of longer texts, unless one text has more.
const LONG_TOKENS: usize = 32 * SHORT;
/// Texts of a batch unless the caller says.
const BATCH: usize = 32;
/// Tokens from which a batch on the CPU gains nothing by more texts that are padded.
const ENOUGH: usize = 512;

/// How many texts run at once, and of how many tokens at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) batch: usize,
    pub(super) most: usize,
}

impl Bounds {
    /// Those of texts of any length, and those of short ones where that is another program.
    fn of(batch: Option<usize>, most: usize) -> (Bounds, Option<Bounds>) {
        let short = Bounds {
            batch: batch.unwrap_or(BATCH),
            most: most.min(SHORT),
        };
        match most > SHORT {
            false => (short, None),
            true => {
                let batch = batch.unwrap_or((LONG_TOKENS / most).clamp(1, BATCH));
                (Bounds { batch, most }, Some(short))
            }
        }
    }
}

/// An encoder with the programs that were compiled of it, and the tensors that they read and write.
pub(super) struct Runner {
    encoder: Encoder,
    device: Device,
    /// Of short texts, or of all.
    short: Program,
    long: Option<Long>,
    /// Whether rows are rounded on their way into products.
    rounded: bool,
    pad: u32,
    inputs: Vec<(Input, Tensor)>,
    outputs: Vec<Tensor>,
}

struct Program {
    exe: Box<dyn Executable>,
    bounds: Bounds,
}

/// What long texts run on, compiled for the first of them.
struct Long {
    bounds: Bounds,
    program: Option<Program>,
}

/// The inputs that encoders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Ids,
    TypeIds,
    Mask,
    Pooled,
    Place,
}

impl Input {
    const ALL: [(Input, &'static str, DType); 5] = [
        (Input::Ids, "ids", DType::I32),
        (Input::TypeIds, "type_ids", DType::I32),
        (Input::Mask, "mask", DType::Bool),
        (Input::Pooled, "pooled", DType::Bool),
        (Input::Place, "place", DType::I32),
    ];

    fn name(self) -> &'static str {
        let of =
            |(input, name, _): &(Input, &'static str, DType)| (*input == self).then_some(*name);
        Input::ALL.iter().find_map(of).unwrap_or_default()
    }
}

impl Runner {
    /// Compiles for texts of at most `most` tokens, `batch` of them at once.
    pub(super) fn new(
        encoder: &Encoder,
        device: &Device,
        pad: u32,
        (batch, most): (Option<usize>, usize),
    ) -> Result<Runner, ModelError> {
        if most > encoder.context {
            return Err(ModelError::Context {
                tokens: most,
                context: encoder.context,
            });
        }
        let (all, short) = Bounds::of(batch, most);
        let bounds = short.unwrap_or(all);
        let exe = encoder.compile(device, bounds.batch, bounds.most)?;
        let long = short.map(|_| Long {
            bounds: all,
            program: None,
        });
        let named = |name: &str| exe.signature().inputs.iter().any(|i| i.name == name);
        let own = Input::ALL.into_iter().filter(|(_, name, _)| named(name));
        let inputs = own.map(|(input, _, dtype)| {
            let empty = Tensor::zeros(TensorType::new(dtype, &[0, 0]));
            (
                input,
                empty.expect("invariant: an empty tensor fits memory"),
            )
        });
        let inputs = inputs.collect();
        Ok(Runner {
            encoder: encoder.clone(),
            device: device.clone(),
            short: Program { exe, bounds },
            long,
            rounded: encoder.rounded_to(device).is_some(),
            pad,
            inputs,
            outputs: Vec::new(),
        })
    }

    /// The name of what the graph gives.
    pub(super) fn output(&self) -> Option<&str> {
        let first = self.short.exe.signature().outputs.first();
        first.map(|output| output.name.as_str())
    }

    /// Runs all texts, those of similar length together, and hands what comes out of each to `take` with its place.
    /// `progress` is called with the number of texts done; false stops early.
    pub(super) async fn run_all(
        &mut self,
        texts: &[Tokens],
        progress: &mut dyn FnMut(usize) -> bool,
        take: &mut dyn FnMut(usize, &[f32]),
        waits: Waits,
    ) -> Result<(), ModelError> {
        let len_of = |at: usize| texts[at].row.ids.len();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&at| len_of(at));
        let mut done = 0;
        let enough = match self.device.name() {
            "cpu" => ENOUGH,
            _ => usize::MAX,
        };
        while done < order.len() {
            let bounds = match &self.long {
                Some(long) if len_of(order[done]) > self.short.bounds.most => long.bounds,
                Some(_) | None => self.short.bounds,
            };
            let part = group(&order[done..], bounds, enough, &len_of);
            let of_part: Vec<&Tokens> = part.iter().map(|&at| &texts[at]).collect();
            let all = self.run(&of_part, waits).await?;
            let each = all.len() / part.len();
            for (at, own) in part.iter().zip(all.chunks_exact(each.max(1))) {
                take(*at, own);
            }
            done += part.len();
            if !progress(done) {
                break;
            }
        }
        Ok(())
    }

    /// What comes out of a batch, row-major, padded to the longest text. Where rounded rows left the range of their type, the
    /// model is compiled without rounding, from this batch on.
    pub(super) async fn run(
        &mut self,
        texts: &[&Tokens],
        waits: Waits,
    ) -> Result<&[f32], ModelError> {
        self.run_once(texts, waits).await?;
        if self.rounded && self.output_values()?.iter().any(|x| !x.is_finite()) {
            self.rounded = false;
            self.encoder.products = Products::Exact;
            let Bounds { batch, most } = self.short.bounds;
            self.short.exe = self.encoder.compile(&self.device, batch, most)?;
            if let Some(long) = &mut self.long {
                long.program = None;
            }
            self.run_once(texts, waits).await?;
        }
        self.output_values()
    }

    fn output_values(&self) -> Result<&[f32], ModelError> {
        let first = self.outputs.first();
        let first = first.ok_or_else(|| ModelError::Unsupported("no output".into()))?;
        first.as_slice::<f32>().map_err(tensor_error)
    }

    async fn run_once(&mut self, texts: &[&Tokens], waits: Waits) -> Result<(), ModelError> {
        let len = texts.iter().map(|t| t.row.ids.len()).max().unwrap_or(0);
        let shape = [texts.len(), len];
        for (input, tensor) in &mut self.inputs {
            let dtype = tensor.dtype();
            let shape = match input {
                Input::Place => [texts.len(), 1],
                _ => shape,
            };
            tensor.reset_to(dtype, &shape).map_err(tensor_error)?;
            match input {
                Input::Place => {
                    let to = tensor.as_slice_mut::<i32>().map_err(tensor_error)?;
                    let places = texts.iter().map(|text| text.place as i32);
                    to.iter_mut().zip(places).for_each(|(to, at)| *to = at);
                }
                Input::Ids | Input::TypeIds => {
                    let ids = *input == Input::Ids;
                    let to = tensor.as_slice_mut::<i32>().map_err(tensor_error)?;
                    to.fill(if ids { self.pad as i32 } else { 0 });
                    for (to, text) in to.chunks_exact_mut(len.max(1)).zip(texts) {
                        let own = if ids {
                            &text.row.ids
                        } else {
                            &text.row.type_ids
                        };
                        to.iter_mut().zip(own).for_each(|(to, id)| *to = *id as i32);
                    }
                }
                Input::Mask | Input::Pooled => {
                    let to = tensor.bytes_mut();
                    to.fill(0);
                    for (to, row) in to.chunks_exact_mut(len.max(1)).zip(texts) {
                        let from = match input {
                            Input::Pooled => row.left_out.min(row.row.ids.len()),
                            _ => 0,
                        };
                        to[from..row.row.ids.len()].fill(1);
                    }
                }
            }
        }
        let inputs: Vec<(&str, &Tensor)> = (self.inputs.iter())
            .map(|(input, tensor)| (input.name(), tensor))
            .collect();
        let program = match &mut self.long {
            Some(long) if len > self.short.bounds.most => {
                long.program(&self.encoder, &self.device)?
            }
            Some(_) | None => &mut self.short,
        };
        let exe = &mut *program.exe;
        waits.submit(exe, &inputs, Wanted::All).await?;
        Ok(exe.wait(&mut self.outputs)?)
    }
}

impl Long {
    fn program(&mut self, encoder: &Encoder, device: &Device) -> Result<&mut Program, ModelError> {
        let Bounds { batch, most } = self.bounds;
        match &mut self.program {
            Some(program) => Ok(program),
            none => {
                let exe = encoder.compile(device, batch, most)?;
                let bounds = self.bounds;
                Ok(none.insert(Program { exe, bounds }))
            }
        }
    }
}

/// The texts that run next, of those that are left by length: as many as the bounds allow, of which at most a fifth is
/// padding, or from `enough` tokens on a 33rd.
fn group<'a>(
    order: &'a [usize],
    bounds: Bounds,
    enough: usize,
    len_of: &dyn Fn(usize) -> usize,
) -> &'a [usize] {
    let mut tokens = 0;
    let mut taken = 0;
    for &at in order.iter().take(bounds.batch.max(1)) {
        let own = len_of(at);
        let padded = own * (taken + 1);
        let part = if tokens < enough { 4 } else { 32 };
        if taken > 0 && (own > bounds.most || padded * part > (tokens + own) * (part + 1)) {
            break;
        }
        tokens += own;
        taken += 1;
    }
    &order[..taken]
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("the batch or the output of the encoder: {e}"))
}

#[cfg(test)]
mod tests {
    use super::{Bounds, group};

    #[test]
    fn texts_of_similar_length_run_together() {
        let lens = [3, 3, 3, 4, 9, 9, 10, 40];
        let order: Vec<usize> = (0..lens.len()).collect();
        let of = |from: usize, batch| {
            let bounds = Bounds { batch, most: 40 };
            group(&order[from..], bounds, usize::MAX, &|at| lens[at])
        };
        assert_eq!(of(0, 8), [0, 1, 2, 3]);
        assert_eq!(of(0, 2), [0, 1]);
        assert_eq!(of(4, 8), [4, 5, 6]);
        assert_eq!(of(7, 8), [7]);
        let bounds = Bounds { batch: 8, most: 40 };
        assert_eq!(group(&order, bounds, 9, &|at| lens[at]), [0, 1, 2]);
    }

    #[test]
    fn long_texts_have_batches_of_their_own() {
        let bounds = |batch, most| Bounds { batch, most };
        assert_eq!(Bounds::of(None, 256), (bounds(32, 256), None));
        let (all, short) = Bounds::of(None, 8192);
        assert_eq!((all, short), (bounds(2, 8192), Some(bounds(32, 512))));
        let (all, _) = Bounds::of(Some(5), 100_000);
        assert_eq!(all, bounds(5, 100_000));
        // The first that is long ends a batch of short ones.
        let lens = [500, 510, 520];
        let order = [0, 1, 2];
        assert_eq!(
            group(&order, bounds(8, 512), usize::MAX, &|at| lens[at]),
            [0, 1]
        );
    }
}
