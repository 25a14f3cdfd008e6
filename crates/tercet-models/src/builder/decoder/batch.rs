//! The graph of several sequences side by side.
//!
//! Every sequence has a slot, and every slot caches of its own. A run takes rows of tokens in the order of their slots: one of
//! each sequence that is written, or a part of one prompt. Projections, norms and the feed-forward network see rows, whatever
//! slots they are of; attention takes each slot's rows apart ([`Attend::Slots`]). Rows of no slot may follow, so that a run
//! has as many rows as another with more sequences: how a row is computed depends on how many there are, not on the others
//! (ADR 0028).
//!
//! Inputs, all I32; `K` is the number of a slot:
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `tokens` | `[n]` | the new tokens, those of slot 0 first; then those of no slot |
//! | `positions` | `[n]` | their positions |
//! | `rows` | `[r]` | which of the `n` give logits |
//! | `idle` | `[z]` | nothing; there are as many rows of no slot |
//! | `rows.K` | `[sK]` | which of the `n` are the slot's; none may be |
//! | `start.K` | `[4]` | `[0, first position, 0, 0]` |
//! | `kv_len.K` | `[]` | positions of the slot filled after this run |
//!
//! `n` is the sum of all `sK` and `z`. Outputs: `logits` F32 `[r, vocab]`, and `next` I32 `[r]`, the greatest of them.

use tercet::ops::{Op, SampleOptions};
use tercet::{CompileOptions, DType, Device, Dim, Shape, Tensor, Type};

use super::layer::{Attend, Shared, Slot, rope_tables};
use super::{Rounded, Sampling, check_context, logits, rounded_to};
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
    /// them, or for 8 where GPUs multiply packed weights, which kernels read once for up to so many rows.
    pub together: Option<usize>,
    /// The float dtype of the arithmetic and of the caches.
    pub dtype: DType,
    /// What rows of F32 become on their way into products; of no effect in other dtypes.
    pub products: Products,
    /// Adapters that change the projections, all at once and for all sequences; none by default.
    pub adapters: Vec<ScaledAdapter>,
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
            products: Products::Exact,
            adapters: Vec::new(),
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
        let BatchOptions {
            slots,
            context,
            chunk,
            dtype,
            ..
        } = options;
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
        let mut inputs = Vec::with_capacity(slots);
        for slot in 0..slots {
            inputs.push(Slot {
                rows: input(&format!("rows.{slot}"), [Dim::sym(&symbol(slot))].into())?,
                start: input(&format!("start.{slot}"), [Dim::Known(4)].into())?,
                kv_len: input(&format!("kv_len.{slot}"), Shape::default())?,
            });
        }
        let origin = Tensor::from_slice(&[4], &[0i32; 4]);
        let origin = origin.expect("invariant: four numbers fit memory");
        let ropes = rope_tables(&mut b, config, context, positions)?;
        let shared = Shared {
            attend: Attend::Slots {
                slots: inputs,
                idle,
                origin: b.graph.constant(origin)?,
                context,
                dtype,
            },
            ropes,
            batch: Dim::Known(1),
            len,
        };
        let logits = logits(&mut b, config, &shared, [tokens, positions, rows])?;
        let greedy = SampleOptions {
            top_k: Sampling::GREEDY.top_k,
            top_p: Sampling::GREEDY.top_p,
            temperature: Sampling::GREEDY.temperature,
        };
        let next = b.graph.sample(logits, greedy, Sampling::GREEDY.seed)?;
        b.graph.output("next", next)?;
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
            .bound("r", slots);
        (0..slots).fold(options, |options, slot| options.bound(&symbol(slot), chunk))
    }

    /// How many rows a run of single tokens has at least. On GPUs a kernel of few rows takes as long for one as for all, and
    /// which one it is depends on how many; on the CPU only a row alone is multiplied otherwise.
    fn least_rows(&self, device: &Device) -> usize {
        let together = self.together(device);
        match device.name() == "cpu" && together <= CPU_ROWS {
            true => together.min(2),
            false => together,
        }
    }

    /// How many sequences one run writes a token of.
    fn together(&self, device: &Device) -> usize {
        let BatchOptions {
            slots, together, ..
        } = self.options;
        let mut nodes = self.model.graph.nodes();
        let is_packed = nodes.any(|(_, node)| matches!(node.op, Op::DequantMatMul(_)));
        match together {
            Some(together) => together.clamp(1, slots),
            None if is_packed && device.name() != "cpu" => slots.min(PACKED_ROWS),
            None => slots,
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

/// Rows from 2 to which products on the CPU have the same bits however many there are: each is multiplied by the same loops.
const CPU_ROWS: usize = 8;

/// Rows up to which GPUs read packed weights once (`FEW_ROWS` of products in `tercet-plan`, on every device): beyond them kernels of long prompts run, for which few rows are as many.
const PACKED_ROWS: usize = 8;

/// The symbol for how many rows are of this slot.
fn symbol(slot: usize) -> String {
    format!("s{slot}")
}
