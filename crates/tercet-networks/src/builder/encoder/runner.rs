//! Batched execution of texts on a compiled encoder.

#[cfg(not(target_family = "wasm"))]
use rayon::prelude::*;
use tercet::{DType, Device, Executable, OutputSelection, Tensor, TensorType};

use super::super::{MatmulPrecision, ModelError};
use super::Encoder;
use crate::maybe_async::WaitMode;
use tercet_text::tokenizer::{TokenizedRow, Tokenizer};

/// A tokenized text, or pair of texts, for an encoder.
///
/// [`EncoderTextReader`](super::EncoderTextReader) creates it.
///
/// ```
/// use tercet_networks::{EncoderTextReader, EncoderTokens};
/// /// The tokens that a reader counts in a text.
/// fn count(reader: &EncoderTextReader, text: &str) -> Result<usize, tercet_networks::ModelError> {
///     let rows = reader.read(&[text], true)?;
///     Ok(rows.iter().map(EncoderTokens::len).sum())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct EncoderTokens {
    pub(super) row: TokenizedRow,
    /// Number of leading tokens that pooling excludes.
    pub(super) unpooled_prefix: usize,
    /// Index of the token whose state represents the text, if the graph has a `place` input.
    pub(super) place: usize,
}

impl EncoderTokens {
    /// Number of tokens, with those of the prompt and special tokens.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a text without tokens is an error"
    )]
    pub fn len(&self) -> usize {
        self.row.ids.len()
    }
}

/// Policy for texts that exceed the maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverlengthPolicy {
    /// Return an error.
    Error,
    /// Truncate the text.
    Truncate,
}

impl OverlengthPolicy {
    pub(super) fn from_truncate(truncate: bool) -> OverlengthPolicy {
        match truncate {
            true => OverlengthPolicy::Truncate,
            false => OverlengthPolicy::Error,
        }
    }
}

/// Tokenizes texts or pairs of texts in parallel; each has at most `most` tokens.
pub(super) fn all_tokens<T: AsRef<str> + Sync>(
    tokenizer: &Tokenizer,
    texts: &[(T, Option<T>)],
    (most, longer): (usize, OverlengthPolicy),
) -> Result<Vec<EncoderTokens>, ModelError> {
    let own = |(at, (text, pair)): (usize, &(T, Option<T>))| {
        let text = (text.as_ref(), pair.as_ref().map(T::as_ref));
        tokens(tokenizer, text, (at, most, longer))
    };
    // WebAssembly in browsers runs on a single thread.
    #[cfg(target_family = "wasm")]
    return texts.iter().enumerate().map(own).collect();
    #[cfg(not(target_family = "wasm"))]
    {
        // Collect in order, so that the reported error belongs to the first failing text.
        let all: Vec<Result<EncoderTokens, ModelError>> =
            texts.par_iter().enumerate().map(own).collect();
        all.into_iter().collect()
    }
}

/// Tokenizes a text or a pair; `at` is its index for error messages.
fn tokens(
    tokenizer: &Tokenizer,
    (text, pair): (&str, Option<&str>),
    (at, most, longer): (usize, usize, OverlengthPolicy),
) -> Result<EncoderTokens, ModelError> {
    let row = match longer {
        OverlengthPolicy::Truncate => tokenizer.encode_row(text, pair, Some(most))?,
        OverlengthPolicy::Error => {
            let bytes = text.len() + pair.map_or(0, str::len);
            if bytes > tokenizer.max_text_bytes(most) {
                let text = at + 1;
                return Err(ModelError::TextTooManyBytes { text, bytes, most });
            }
            tokenizer.encode_row(text, pair, None)?
        }
    };
    let tokens = row.ids.len();
    if tokens > most {
        let text = at + 1;
        return Err(match longer {
            OverlengthPolicy::Error => ModelError::TextTooLong { text, tokens, most },
            OverlengthPolicy::Truncate => ModelError::TooManyAddedTokens { text, tokens, most },
        });
    }
    if row.ids.is_empty() {
        return Err(ModelError::NoTokens);
    }
    Ok(EncoderTokens {
        row,
        unpooled_prefix: 0,
        place: 0,
    })
}

/// Maximum tokens of a short text. Short texts have a separate program, because a program's memory
/// is proportional to its longest text times its batch.
const MAX_SHORT_TEXT_TOKENS: usize = 512;
/// Maximum total tokens in a batch of long texts; a single text may exceed it.
const MAX_LONG_BATCH_TOKENS: usize = 32 * MAX_SHORT_TEXT_TOKENS;
/// Default number of texts per batch.
const BATCH: usize = 32;
/// Number of tokens above which a CPU batch does not profit from further, padded texts.
const MIN_TOKENS_FOR_FULL_BATCH: usize = 512;

/// Maximum texts per batch and maximum tokens per text.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderBatchBounds {
    /// Maximum number of texts of a batch.
    pub batch: usize,
    /// Maximum number of tokens of a text.
    pub max_tokens: usize,
}

impl EncoderBatchBounds {
    /// Bounds for texts of any length, and bounds for short texts if these have a separate program.
    pub fn for_batch(
        batch: Option<usize>,
        most: usize,
    ) -> (EncoderBatchBounds, Option<EncoderBatchBounds>) {
        let short = EncoderBatchBounds {
            batch: batch.unwrap_or(BATCH),
            max_tokens: most.min(MAX_SHORT_TEXT_TOKENS),
        };
        match most > MAX_SHORT_TEXT_TOKENS {
            false => (short, None),
            true => {
                let batch = batch.unwrap_or((MAX_LONG_BATCH_TOKENS / most).clamp(1, BATCH));
                (
                    EncoderBatchBounds {
                        batch,
                        max_tokens: most,
                    },
                    Some(short),
                )
            }
        }
    }
}

/// An encoder with its compiled programs and reusable input and output tensors.
pub(super) struct EncoderRunner {
    encoder: Encoder,
    device: Device,
    /// Program for short texts, or for all texts if there is no long program.
    short: EncoderProgram,
    long: Option<LongTextProgram>,
    /// True if matmul inputs are rounded to a narrow dtype.
    is_reduced_precision: bool,
    pad: u32,
    inputs: Vec<(EncoderInput, Tensor)>,
    outputs: Vec<Tensor>,
}

struct EncoderProgram {
    exe: Box<dyn Executable>,
    bounds: EncoderBatchBounds,
}

/// Program for long texts, compiled when the first one arrives.
struct LongTextProgram {
    bounds: EncoderBatchBounds,
    program: Option<EncoderProgram>,
}

/// Possible inputs of an encoder graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncoderInput {
    Ids,
    TypeIds,
    Mask,
    Pooled,
    Place,
}

impl EncoderInput {
    const ALL: [(EncoderInput, &'static str, DType); 5] = [
        (EncoderInput::Ids, "ids", DType::I32),
        (EncoderInput::TypeIds, "type_ids", DType::I32),
        (EncoderInput::Mask, "mask", DType::Bool),
        (EncoderInput::Pooled, "pooled", DType::Bool),
        (EncoderInput::Place, "place", DType::I32),
    ];

    fn name(self) -> &'static str {
        let of = |(input, name, _): &(EncoderInput, &'static str, DType)| {
            (*input == self).then_some(*name)
        };
        EncoderInput::ALL.iter().find_map(of).unwrap_or_default()
    }
}

impl EncoderRunner {
    /// Compiles the encoder for texts of at most `most` tokens in batches of `batch` texts.
    pub(super) fn new(
        encoder: &Encoder,
        device: &Device,
        pad: u32,
        (batch, most): (Option<usize>, usize),
    ) -> Result<EncoderRunner, ModelError> {
        if most > encoder.context {
            return Err(ModelError::Context {
                tokens: most,
                context: encoder.context,
            });
        }
        let (all, short) = EncoderBatchBounds::for_batch(batch, most);
        let bounds = short.unwrap_or(all);
        let exe = encoder.compile(device, bounds.batch, bounds.max_tokens)?;
        let long = short.map(|_| LongTextProgram {
            bounds: all,
            program: None,
        });
        let named = |name: &str| exe.signature().inputs.iter().any(|i| i.name == name);
        let own = EncoderInput::ALL
            .into_iter()
            .filter(|(_, name, _)| named(name));
        let inputs = own.map(|(input, _, dtype)| {
            let empty = Tensor::zeros(TensorType::new(dtype, &[0, 0]));
            (
                input,
                empty.expect("invariant: an empty tensor fits memory"),
            )
        });
        let inputs = inputs.collect();
        Ok(EncoderRunner {
            encoder: encoder.clone(),
            device: device.clone(),
            short: EncoderProgram { exe, bounds },
            long,
            is_reduced_precision: encoder.matmul_dtype(device).is_some(),
            pad,
            inputs,
            outputs: Vec::new(),
        })
    }

    /// Name of the graph's output.
    pub(super) fn output(&self) -> Option<&str> {
        let first = self.short.exe.signature().outputs.first();
        first.map(|output| output.name.as_str())
    }

    /// Runs all texts in batches of similar length and passes each result to `take` with the text's
    /// index. `progress` receives the number of finished texts; if it returns false, the call stops
    /// early.
    pub(super) async fn run_all(
        &mut self,
        texts: &[EncoderTokens],
        progress: &mut dyn FnMut(usize) -> bool,
        take: &mut dyn FnMut(usize, &[f32]),
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let len_of = |at: usize| texts[at].row.ids.len();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&at| len_of(at));
        let mut done = 0;
        let enough = match self.device.name() {
            "cpu" => MIN_TOKENS_FOR_FULL_BATCH,
            _ => usize::MAX,
        };
        while done < order.len() {
            let bounds = match &self.long {
                Some(long) if len_of(order[done]) > self.short.bounds.max_tokens => long.bounds,
                Some(_) | None => self.short.bounds,
            };
            let part = group(&order[done..], bounds, enough, &len_of);
            let of_part: Vec<&EncoderTokens> = part.iter().map(|&at| &texts[at]).collect();
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

    /// Output of one batch, row-major, padded to the longest text. If rounded matmuls overflow, the
    /// model is recompiled without rounding for this and later batches.
    pub(super) async fn run(
        &mut self,
        texts: &[&EncoderTokens],
        waits: WaitMode,
    ) -> Result<&[f32], ModelError> {
        self.run_once(texts, waits).await?;
        if self.is_reduced_precision && self.output_values()?.iter().any(|x| !x.is_finite()) {
            self.is_reduced_precision = false;
            self.encoder.matmul_precision = MatmulPrecision::Full;
            let EncoderBatchBounds {
                batch,
                max_tokens: most,
            } = self.short.bounds;
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

    async fn run_once(
        &mut self,
        texts: &[&EncoderTokens],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let len = texts.iter().map(|t| t.row.ids.len()).max().unwrap_or(0);
        let shape = [texts.len(), len];
        for (input, tensor) in &mut self.inputs {
            let dtype = tensor.dtype();
            let shape = match input {
                EncoderInput::Place => [texts.len(), 1],
                _ => shape,
            };
            tensor.reset_to(dtype, &shape).map_err(tensor_error)?;
            match input {
                EncoderInput::Place => {
                    let to = tensor.as_slice_mut::<i32>().map_err(tensor_error)?;
                    let places = texts.iter().map(|text| text.place as i32);
                    to.iter_mut().zip(places).for_each(|(to, at)| *to = at);
                }
                EncoderInput::Ids | EncoderInput::TypeIds => {
                    let ids = *input == EncoderInput::Ids;
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
                EncoderInput::Mask | EncoderInput::Pooled => {
                    let to = tensor.bytes_mut();
                    to.fill(0);
                    for (to, row) in to.chunks_exact_mut(len.max(1)).zip(texts) {
                        let from = match input {
                            EncoderInput::Pooled => row.unpooled_prefix.min(row.row.ids.len()),
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
            Some(long) if len > self.short.bounds.max_tokens => {
                long.program(&self.encoder, &self.device)?
            }
            Some(_) | None => &mut self.short,
        };
        let exe = &mut *program.exe;
        waits.submit(exe, &inputs, OutputSelection::All).await?;
        Ok(exe.wait(&mut self.outputs)?)
    }
}

impl LongTextProgram {
    fn program(
        &mut self,
        encoder: &Encoder,
        device: &Device,
    ) -> Result<&mut EncoderProgram, ModelError> {
        let EncoderBatchBounds {
            batch,
            max_tokens: most,
        } = self.bounds;
        match &mut self.program {
            Some(program) => Ok(program),
            none => {
                let exe = encoder.compile(device, batch, most)?;
                let bounds = self.bounds;
                Ok(none.insert(EncoderProgram { exe, bounds }))
            }
        }
    }
}

/// Longest prefix of the length-sorted texts that forms the next batch within the bounds. Padding
/// is limited to a fifth of the batch, or to 1/33 once the batch has `max_run_tokens` tokens.
pub fn group<'a>(
    order: &'a [usize],
    bounds: EncoderBatchBounds,
    max_run_tokens: usize,
    len_of: &dyn Fn(usize) -> usize,
) -> &'a [usize] {
    let mut tokens = 0;
    let mut taken = 0;
    for &at in order.iter().take(bounds.batch.max(1)) {
        let own = len_of(at);
        let padded = own * (taken + 1);
        let part = if tokens < max_run_tokens { 4 } else { 32 };
        if taken > 0 && (own > bounds.max_tokens || padded * part > (tokens + own) * (part + 1)) {
            break;
        }
        tokens += own;
        taken += 1;
    }
    &order[..taken]
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("encoder batch or output: {e}"))
}
