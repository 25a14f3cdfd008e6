//! The graph of several sequences side by side.
//!
//! Every sequence has a slot. A run takes a new token of each sequence that is written, or a part of one prompt.
//! Projections, norms and the feed-forward network see rows, whatever slots they are of; caches have an axis of slots, and
//! one attention reads those of all ([`Attend::Slots`]). Rows of no slot may follow, so that a run has as many rows as
//! another with more sequences: how a row is computed depends on how many there are, not on the others (ADR 0028).
//!
//! Inputs, all I32:
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `tokens` | `[n]` | the new tokens, one of each of `d` slots or `s` of a prompt; then those of no slot |
//! | `positions` | `[n]` | their positions |
//! | `places` | `[n, 2]` | their slots and positions; `(0, context)` for those of no slot |
//! | `rows` | `[r]` | which of the `n` give logits |
//! | `idle` | `[z]` | nothing; there are as many rows of no slot |
//! | `slots.row` | `[slots]` | which row is each slot's; any where none is |
//! | `slots.kv_len` | `[slots]` | positions of each slot filled after this run; 1 where no row is its own |
//! | `slots.of` | `[d]` | the slots of the first `d` rows |
//! | `prompt.rows` | `[s]` | which rows are of a prompt |
//! | `prompt.start` | `[4]` | `[slot, 0, 0, 0]` |
//! | `prompt.kv_len` | `[]` | positions of that slot filled after this run |
//! | `prompt.seen` | `[c]` | nothing; there are as many of these positions |
//! | `slots.seen` | `[m]` | nothing; the slot that has most has as many; where caches are of Q8_0 |
//! | `adapters` | `[n]` | which adapter each row has, from 1; 0 for none; where there are [`BatchOptions::choices`] |
//!
//! and where layers remember otherwise or choose experts, for each slot `K`
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `rows.K` | `[sK]` | which of the `n` are the slot's; none may be |
//! | `start.K` | `[4]` | `[0, first position, 0, 0]` |
//!
//! and for the layers of each window `W` whose caches do not hold the context what `slot_windows` says.
//!
//! `n` is the sum of `d`, `s` and `z`. Outputs: `logits` F32 `[r, vocab]`, `next` I32 `[r]`, the greatest of them, and `sums`
//! F32 `[r]`, those of all logits of a row, which are finite if these are.

use tercet::ops::{Op, SampleOptions};
use tercet::{CompileOptions, DType, Device, Dim, OpError, Scheme, Shape, Tensor, Type, Value};

use super::cache::{CacheFormat, check_cache};
use super::layer::{Attend, Shared, Slot, SlotRows, embed, query_scales, rope_tables};
use super::slot_windows::{bounded, slot_window_inputs, slot_windows};
use super::{Rounded, Sampling, check_context, logits, rounded_to};
use crate::builder::chosen::{Choices, MOST_CHOICES};
use crate::builder::tuned::{Mode, ScaledAdapter};
use crate::builder::{BatchGenerator, Builder, Model, ModelError, Products, Weights};
use crate::config::decoder::DecoderSpec;

/// More than any device writes at a time; a mistyped number would fill the memory.
const MOST_SLOTS: usize = 256;

/// Choices of a graph of several sequences.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Sequences side by side, 1 to 256.
    pub slots: usize,
    /// Capacity of the cache of each, in tokens.
    pub context: usize,
    /// The most tokens of a prompt in one run; longer prompts are fed in parts, between which others are written.
    pub chunk: usize,
    /// The most sequences that one run writes a token of, at least 1; where there are more they take turns. None for all of
    /// them, or for as many as gain by it where weights are packed ([`Device::packed_rows`]).
    pub together: Option<usize>,
    /// The float dtype of the arithmetic.
    pub dtype: DType,
    /// How caches store keys and values; in the dtype of the arithmetic where it is none. Another one is for arithmetic in F32.
    pub cache: Option<CacheFormat>,
    /// What rows of F32 become on their way into products; of no effect in other dtypes.
    pub products: Products,
    /// Adapters that change the projections, all at once and for all sequences; none by default.
    pub adapters: Vec<ScaledAdapter>,
    /// Adapters of which each sequence has one or none ([`Sequence::adapter`](crate::Sequence::adapter)), at most 64 and not
    /// beside the others; none by default.
    pub choices: Vec<ScaledAdapter>,
}

impl BatchOptions {
    /// So many slots of the context that the model was trained for, parts of 256 tokens, F32, products too.
    pub fn new(config: &DecoderSpec, slots: usize) -> BatchOptions {
        BatchOptions {
            slots,
            context: config.context,
            chunk: 256.min(config.context),
            together: None,
            dtype: DType::F32,
            cache: None,
            products: Products::Exact,
            adapters: Vec::new(),
            choices: Vec::new(),
        }
    }
}

/// A decoder of several sequences: its graph, parameters and configuration.
#[derive(Debug)]
pub struct BatchDecoder {
    /// Graph and parameters.
    pub model: Model,
    /// The configuration it was built from.
    pub config: DecoderSpec,
    /// The options it was built with.
    pub options: BatchOptions,
}

impl BatchDecoder {
    /// Builds the graph over the weights of a file.
    ///
    /// # Errors
    /// As [`Decoder::build`](super::Decoder::build).
    pub fn build(
        config: &DecoderSpec,
        weights: &Weights,
        options: BatchOptions,
    ) -> Result<BatchDecoder, ModelError> {
        check(config, &options)?;
        let BatchOptions {
            slots,
            context,
            dtype,
            ..
        } = options;
        let b = Builder::new(weights, dtype).of_decoder(config);
        let mut b = b.in_mode(Mode::Adapted(&options.adapters));
        let mut input =
            |name: &str, shape: Shape| b.graph.input(name, Type::new(DType::I32, shape));
        let len = Dim::sym("n");
        let idle = Dim::sym("z");
        let tokens = input("tokens", [len.clone()].into())?;
        let positions = input("positions", [len.clone()].into())?;
        let rows = input("rows", [Dim::sym("r")].into())?;
        // Read by nothing: it says how many.
        input("idle", [idle.clone()].into())?;
        let decodes = options.cache_format() == CacheFormat::Q8_0;
        let of_rows = slot_rows(&mut input, (slots, decodes), &len)?;
        let windows = slot_windows(config, context);
        let windows = slot_window_inputs(&mut b, &windows, slots, &len)?;
        let mut input =
            |name: &str, shape: Shape| b.graph.input(name, Type::new(DType::I32, shape));
        let adapters = match options.choices.is_empty() {
            true => None,
            false => Some(input("adapters", [len.clone()].into())?),
        };
        let apart = if has_rows_apart(config) { slots } else { 0 };
        let inputs = (0..apart).map(|slot| {
            Ok(Slot {
                rows: input(&format!("rows.{slot}"), [Dim::sym(&symbol(slot))].into())?,
                start: input(&format!("start.{slot}"), [Dim::Known(4)].into())?,
            })
        });
        let inputs = inputs.collect::<Result<Vec<Slot>, OpError>>()?;
        if let Some(of_row) = adapters {
            let adapters = &options.choices;
            b = b.in_mode(Mode::Chosen(Choices { adapters, of_row }));
        }
        let origin = Tensor::from_slice(&[4], &[0i32; 4]);
        let origin = origin.expect("invariant: four numbers fit memory");
        let ropes = rope_tables(&mut b, config, context, positions)?;
        let query_scales = query_scales(&mut b, config, context, positions)?;
        let shared = Shared {
            attend: Attend::Slots {
                slots: inputs,
                rows: Box::new(of_rows),
                windows,
                idle,
                origin: b.graph.constant(origin)?,
                context,
                format: options.cache_format(),
            },
            ropes,
            query_scales,
            batch: Dim::Known(1),
            len,
        };
        let x = embed(&mut b, config, tokens, positions)?;
        let logits = logits(&mut b, config, &shared, [x, rows])?;
        outputs_beside(&mut b, logits)?;
        let model = b.finish().with_precision(dtype)?;
        Ok(BatchDecoder {
            model,
            config: config.clone(),
            options,
        })
    }

    /// The bounds of the graph's symbols.
    pub fn compile_options(&self) -> CompileOptions {
        let BatchOptions {
            slots,
            context,
            chunk,
            ..
        } = self.options;
        let chunk = chunk.min(context);
        let options = CompileOptions::new()
            .bound("n", chunk.max(slots))
            .bound("z", slots)
            .bound("r", slots)
            .bound("d", slots)
            .bound("s", chunk)
            .bound("c", context);
        let options = match self.options.cache_format() {
            CacheFormat::Float(_) => options,
            CacheFormat::Q8_0 => options.bound("m", context),
        };
        let options = bounded(options, &slot_windows(&self.config, context));
        let apart = if has_rows_apart(&self.config) {
            slots
        } else {
            0
        };
        (0..apart).fold(options, |options, slot| options.bound(&symbol(slot), chunk))
    }

    /// How many rows a run of single tokens has at least. On GPUs a kernel of few rows takes as long for one as for all, and
    /// which one it is depends on how many; on the CPU only a row alone is multiplied otherwise.
    fn least_rows(&self, device: &Device) -> usize {
        let together = self.together(device);
        // Processors have no such number for any scheme.
        match device.packed_rows(Scheme::Q8_0).is_none() && together <= CPU_ROWS {
            true => together.min(2),
            false => together,
        }
    }

    /// How many sequences one run writes a token of.
    fn together(&self, device: &Device) -> usize {
        let BatchOptions {
            slots, together, ..
        } = self.options;
        let nodes = self.model.graph.nodes();
        let rows = nodes.filter_map(|(_, node)| match &node.op {
            Op::DequantMatMul(op) if op.scheme.storage() == DType::U8 => {
                device.packed_rows(op.scheme)
            }
            _ => None,
        });
        match together {
            Some(together) => together.clamp(1, slots),
            None => rows.fold(slots, usize::min),
        }
    }

    /// Compiles the model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn generator(&self, device: &Device) -> Result<BatchGenerator, ModelError> {
        let BatchOptions {
            dtype, products, ..
        } = self.options;
        let products = rounded_to(&self.model, device, dtype, products);
        let options = self.compile_options().products_in(products);
        let exe = self.model.compile(device, &options)?;
        let rounded = products.map(|to| Rounded::new(to, device, options, &self.model));
        Ok(BatchGenerator::new(
            exe,
            rounded,
            [self.least_rows(device), self.together(device)],
            self,
        ))
    }
}

/// Refuses options that are not possible.
fn check(config: &DecoderSpec, options: &BatchOptions) -> Result<(), ModelError> {
    let BatchOptions {
        slots,
        context,
        chunk,
        dtype,
        cache,
        ..
    } = *options;
    if context == 0 || chunk == 0 {
        let reason = "context and chunk must be at least 1";
        return Err(ModelError::Unsupported(reason.into()));
    }
    if !(1..=MOST_SLOTS).contains(&slots) {
        return Err(ModelError::Unsupported(format!(
            "{slots} sequences side by side; 1 to {MOST_SLOTS} are possible"
        )));
    }
    check_context(config, context)?;
    check_cache(dtype, cache)?;
    check_choices(options)
}

/// The outputs `next` and `sums` of logits.
fn outputs_beside(b: &mut Builder<'_>, logits: Value) -> Result<(), ModelError> {
    let greedy = SampleOptions {
        top_k: Sampling::GREEDY.top_k,
        top_p: Sampling::GREEDY.top_p,
        temperature: Sampling::GREEDY.temperature,
    };
    let next = b.graph.sample(logits, greedy, Sampling::GREEDY.seed)?;
    b.graph.output("next", next)?;
    let sums = b.graph.reduce_sum(logits, &[1], false)?;
    b.graph.output("sums", sums)?;
    Ok(())
}

/// Refuses more adapters to choose from than there may be, and others beside them.
fn check_choices(options: &BatchOptions) -> Result<(), ModelError> {
    let count = options.choices.len();
    let refused = match count {
        0 => return Ok(()),
        _ if count > MOST_CHOICES => {
            format!("{count} adapters to choose from; at most {MOST_CHOICES} are possible")
        }
        _ if !options.adapters.is_empty() => {
            "adapters for all sequences beside adapters to choose from; merge the former into the model".into()
        }
        _ => return Ok(()),
    };
    Err(ModelError::Unsupported(refused))
}

/// The inputs that say which rows are whose.
fn slot_rows(
    input: &mut impl FnMut(&str, Shape) -> Result<Value, OpError>,
    (slots, decodes): (usize, bool),
    len: &Dim,
) -> Result<SlotRows, OpError> {
    let seen = Dim::sym("c");
    // Read by nothing: it says how many.
    input("prompt.seen", [seen.clone()].into())?;
    let most = Dim::sym("m");
    if decodes {
        input("slots.seen", [most.clone()].into())?;
    }
    Ok(SlotRows {
        count: slots,
        places: input("places", [len.clone(), Dim::Known(2)].into())?,
        row_of_slot: input("slots.row", [Dim::Known(slots)].into())?,
        kv_lens: input("slots.kv_len", [Dim::Known(slots)].into())?,
        slot_of_row: input("slots.of", [Dim::sym("d")].into())?,
        prompt_rows: input("prompt.rows", [Dim::sym("s")].into())?,
        prompt_start: input("prompt.start", [Dim::Known(4)].into())?,
        prompt_len: input("prompt.kv_len", Shape::default())?,
        prompt_seen: seen,
        slots_seen: decodes.then_some(most),
    })
}

/// Rows from 2 to which products on the CPU have the same bits however many there are: each is multiplied by the same loops.
const CPU_ROWS: usize = 8;

/// Whether rows of a slot are computed by themselves: those of layers that remember in other states than caches, and of
/// experts, which multiply rows of one together.
pub(crate) fn has_rows_apart(config: &DecoderSpec) -> bool {
    config.has_states() || config.experts.is_some()
}

/// The symbol for how many rows are of this slot.
fn symbol(slot: usize) -> String {
    format!("s{slot}")
}
