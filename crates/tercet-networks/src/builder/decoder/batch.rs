//! Decoder graph for continuous batching: several sequences in one run.
//!
//! Every sequence has a slot. A run computes either one new token per decoding sequence, or a
//! prefill chunk of one prompt. Projections, norms and the feed-forward network process rows
//! independently of their slots. Caches have a slot axis, and one attention reads the caches of all
//! slots ([`AttentionMode::Slots`]). Padding rows may follow: the rounding of a row depends on the number
//! of rows, not on their contents (ADR 0028).
//!
//! Inputs, all I32:
//!
//! | input | shape | contents |
//! |---|---|---|
//! | `tokens` | `[n]` | new tokens: one for each of `d` slots, or `s` of a prompt; then padding |
//! | `positions` | `[n]` | position of each token |
//! | `places` | `[n, 2]` | slot and position of each row; `(0, context)` for padding |
//! | `rows` | `[r]` | indices of the rows that produce logits |
//! | `idle` | `[z]` | unused; only its length counts: number of padding rows |
//! | `slots.row` | `[slots]` | row of each slot; any value for a slot without a row |
//! | `slots.kv_len` | `[slots]` | filled positions of each slot after this run; 1 for a slot without a row |
//! | `results` | `[n]` | attention result of each row: its slot, or `slots` plus its index in the prompt; 0 for padding |
//! | `prompt.rows` | `[s]` | indices of the rows that belong to a prompt |
//! | `prompt.start` | `[4]` | `[slot, 0, 0, 0]` |
//! | `prompt.kv_len` | `[]` | filled positions of that slot after this run |
//! | `prompt.seen` | `[c]` | unused; only its length counts: the same number of positions |
//! | `slots.seen` | `[m]` | unused; only its length counts: the longest filled slot; only with Q8_0 caches |
//! | `adapters` | `[n]` | adapter index of each row, from 1, 0 for none; only with [`BatchOptions::selectable_adapters`] |
//!
//! Models with recurrent states or experts have these inputs for each slot `K`:
//!
//! | input | shape | contents |
//! |---|---|---|
//! | `rows.K` | `[sK]` | indices of the slot's rows; may be empty |
//! | `start.K` | `[4]` | `[0, first position, 0, 0]` |
//!
//! Sliding windows `W` whose caches are shorter than the context add the inputs described in
//! `windows/rings.rs`.
//!
//! `n` is the sum of `d`, `s` and `z`. Outputs: `logits` F32 `[r, vocab]`, `next` I32 `[r]` (argmax
//! of the logits), and `sums` F32 `[r]` (sum of the logits of a row). The sums are finite if all
//! logits are.

use tercet::ops::{Op, SampleOptions};
use tercet::{CompileOptions, DType, Device, Dim, OpError, Shape, Tensor, Type, Value};

use super::cache::{CacheFormat, check_cache};
use super::layer::{
    AttentionMode, ForwardContext, SlotInputs, SlotRows, embed, query_scales, rope_tables,
};
use super::windows::rings::slot_windows;
use super::{OverflowFallback, Sampling, check_context, embed_seen, logits, rounded_to};
use crate::builder::multi_lora::{MAX_ADAPTERS, MultiLora};
use crate::builder::prefix_store::{ModelTag, PrefixStore};
use crate::builder::trainable::{ScaledAdapter, WeightUse};
use crate::builder::{
    BatchGenerator, MatmulPrecision, ModelBuilder, ModelError, ModelGraph, Weights,
};
use crate::config::RopeOverrides;
use crate::config::decoder::DecoderSpec;

/// Maximum number of slots; it catches typing errors that would exhaust the memory.
const MAX_SLOTS: usize = 256;

/// Options of a continuous-batching graph.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::{BatchOptions, CacheFormat};
/// let options = BatchOptions { cache: Some(CacheFormat::Q8_0), ..BatchOptions::new(&spec, 4) };
/// assert_eq!((options.slots, options.context), (4, spec.context));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Maximum concurrent sequences, 1 to 256.
    pub slots: usize,
    /// Cache capacity per sequence, in tokens.
    pub context: usize,
    /// Maximum prompt tokens per run. Longer prompts are split into chunks, and decode steps of
    /// other sequences run in between.
    pub chunk: usize,
    /// Maximum sequences per decode run, at least 1; further sequences take turns. `None` means all
    /// sequences, or for quantized weights the largest number that is profitable
    /// ([`Device::max_small_m_rows`]).
    pub together: Option<usize>,
    /// Float dtype of the arithmetic.
    pub dtype: DType,
    /// Storage format of the KV caches; `None` means the dtype of the arithmetic. Other formats
    /// require F32 arithmetic.
    pub cache: Option<CacheFormat>,
    /// Precision of matmul inputs with F32 arithmetic; no effect in other dtypes.
    pub matmul_precision: MatmulPrecision,
    /// Adapters that apply to the projections of all sequences, all at once; none by default.
    pub adapters: Vec<ScaledAdapter>,
    /// Adapters that each sequence can select one of
    /// ([`Sequence::adapter`](crate::Sequence::adapter)), at most 64. This option cannot be
    /// combined with `adapters`; none by default.
    pub selectable_adapters: Vec<ScaledAdapter>,
    /// Maximum draft tokens per run ([`BatchGenerator::set_draft`]); 0 builds a graph without drafts.
    pub draft_tokens: usize,
    /// Maximum image embedding rows, for one slot. 0 builds a text-only graph.
    pub max_image_rows: usize,
    /// Changes of the rotary positions; none by default.
    pub rope: RopeOverrides,
    /// Store of the prefixes of sequences that have left their slots; none by default. The bits of a
    /// sequence are the same with and without it. If the store has a folder, compiling digests all
    /// weights.
    pub prefix_store: Option<PrefixStore>,
}

impl BatchOptions {
    /// Options for this number of slots: context length of training, prefill chunks of 256 tokens,
    /// F32 arithmetic and matmuls.
    pub fn new(config: &DecoderSpec, slots: usize) -> BatchOptions {
        BatchOptions {
            slots,
            context: config.context,
            chunk: 256.min(config.context),
            together: None,
            dtype: DType::F32,
            cache: None,
            matmul_precision: MatmulPrecision::Full,
            adapters: Vec::new(),
            selectable_adapters: Vec::new(),
            draft_tokens: 0,
            max_image_rows: 0,
            rope: RopeOverrides::default(),
            prefix_store: None,
        }
    }

    /// Rows of logits of a draft run.
    pub(in crate::builder) fn draft_rows(&self) -> usize {
        let rows = self.draft_tokens.saturating_add(1);
        rows.min(self.chunk).min(self.context)
    }
}

/// A decoder for several sequences: graph, parameters and configuration.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::{BatchDecoder, BatchOptions};
/// let decoder = BatchDecoder::build(&spec, &weights, BatchOptions::new(&spec, 2))?;
/// assert_eq!((decoder.options.slots, &decoder.config), (2, &spec));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BatchDecoder {
    /// Graph and parameters.
    pub model: ModelGraph,
    /// Configuration that the graph was built from.
    pub config: DecoderSpec,
    /// Options that the graph was built with.
    pub options: BatchOptions,
}

impl BatchDecoder {
    /// Builds the graph from the weights of a file.
    ///
    /// # Errors
    /// Same errors as [`Decoder::build`](super::Decoder::build).
    pub fn build(
        config: &DecoderSpec,
        weights: &Weights,
        options: BatchOptions,
    ) -> Result<BatchDecoder, ModelError> {
        let config = &super::with_rope(config, &options.rope)?;
        check(config, &options)?;
        let BatchOptions {
            slots,
            context,
            dtype,
            ..
        } = options;
        let b = ModelBuilder::new(weights, dtype).with_decoder_spec(config);
        let mut b = b.in_mode(WeightUse::Adapted(&options.adapters));
        let mut input =
            |name: &str, shape: Shape| b.graph.input(name, Type::new(DType::I32, shape));
        let len = Dim::sym("n");
        let idle = Dim::sym("z");
        let tokens = input("tokens", [len.clone()].into())?;
        let positions = input("positions", [len.clone()].into())?;
        let rows = input("rows", [Dim::sym("r")].into())?;
        // No node reads this input; its length sets the number of padding rows.
        input("idle", [idle.clone()].into())?;
        let decodes = options.cache_format() == CacheFormat::Q8_0;
        let of_rows = slot_rows(&mut input, (slots, decodes), &len)?;
        let windows = slot_windows(&mut b, &options.window_caches(config), &len)?;
        let mut input =
            |name: &str, shape: Shape| b.graph.input(name, Type::new(DType::I32, shape));
        let adapters = match options.selectable_adapters.is_empty() {
            true => None,
            false => Some(input("adapters", [len.clone()].into())?),
        };
        let apart = if has_per_slot_rows(config) { slots } else { 0 };
        let inputs = (0..apart).map(|slot| {
            Ok(SlotInputs {
                rows: input(&format!("rows.{slot}"), [Dim::sym(&symbol(slot))].into())?,
                start: input(&format!("start.{slot}"), [Dim::Known(4)].into())?,
            })
        });
        let inputs = inputs.collect::<Result<Vec<SlotInputs>, OpError>>()?;
        if let Some(of_row) = adapters {
            let adapters = &options.selectable_adapters;
            b = b.in_mode(WeightUse::MultiLora(MultiLora {
                adapters,
                adapter_of_row: of_row,
            }));
        }
        let origin = Tensor::from_slice(&[4], &[0i32; 4]);
        let origin = origin.expect("invariant: four numbers fit memory");
        let ropes = rope_tables(&mut b, config, context, positions)?;
        let query_scales = query_scales(&mut b, config, context, positions)?;
        let shared = ForwardContext {
            attend: AttentionMode::Slots {
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
        let x = match options.max_image_rows {
            0 => embed(&mut b, config, tokens, positions)?,
            _ => embed_seen(&mut b, config, tokens, positions)?,
        };
        let logits = logits(&mut b, config, &shared, [x, rows])?;
        outputs_beside(&mut b, logits)?;
        let model = b.finish().with_precision(dtype)?;
        Ok(BatchDecoder {
            model,
            config: config.clone(),
            options,
        })
    }

    /// Upper bounds of the graph's symbolic sizes.
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
            .bound("r", slots.max(self.options.draft_rows()))
            .bound("s", chunk)
            .bound("c", context);
        let options = match self.options.cache_format() {
            CacheFormat::Float(_) => options,
            CacheFormat::Q8_0 => options.bound("m", context),
        };
        let options = match self.options.max_image_rows {
            0 => options,
            most => options.bound("p", most),
        };
        let windows = self.options.window_caches(&self.config);
        let options = windows
            .iter()
            .fold(options, |options, own| own.bounded(options));
        let apart = if has_per_slot_rows(&self.config) {
            slots
        } else {
            0
        };
        (0..apart).fold(options, |options, slot| options.bound(&symbol(slot), chunk))
    }

    /// Maximum number of sequences in one decode run.
    fn together(&self, device: &Device) -> usize {
        let BatchOptions {
            slots, together, ..
        } = self.options;
        let nodes = self.model.graph.nodes();
        let rows = nodes.filter_map(|(_, node)| match &node.op {
            Op::DequantMatMul(op) if op.scheme.storage() == DType::U8 => {
                device.max_small_m_rows(op.scheme)
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
            dtype,
            matmul_precision: products,
            ..
        } = self.options;
        let products = rounded_to(&self.model, device, dtype, products);
        let options = self.compile_options().with_matmul_precision(products);
        let exe = self.model.compile(device, &options)?;
        let tag = self.prefix_tag(device, &options)?;
        let rounded = products.map(|to| OverflowFallback::new(to, device, options, &self.model));
        BatchGenerator::new(exe, rounded, (self.together(device), tag), self)
    }

    /// The tag of this model in its prefix store; `None` without a store.
    fn prefix_tag(
        &self,
        device: &Device,
        options: &CompileOptions,
    ) -> Result<Option<ModelTag>, ModelError> {
        let BatchOptions {
            slots,
            context,
            chunk,
            together,
            dtype,
            cache,
            matmul_precision,
            adapters,
            selectable_adapters,
            draft_tokens,
            max_image_rows,
            rope,
            prefix_store,
        } = &self.options;
        let Some(store) = prefix_store else {
            return Ok(None);
        };
        // Weights of adapters are parameters of the graph.
        let scales = |of: &[ScaledAdapter]| of.iter().map(|own| own.scale).collect::<Vec<_>>();
        let adapters = (scales(adapters), scales(selectable_adapters));
        let sizes = (
            slots,
            context,
            chunk,
            together,
            draft_tokens,
            max_image_rows,
        );
        let description = format!(
            "{:?} {sizes:?} {dtype} {cache:?} {matmul_precision:?} {adapters:?} {rope:?}",
            self.config
        );
        let tag = store.tag(&description, &self.model, device, options)?;
        Ok(Some(tag))
    }
}

/// Checks the options for valid ranges and combinations.
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
    if !(1..=MAX_SLOTS).contains(&slots) {
        return Err(ModelError::Unsupported(format!(
            "number of slots {slots} is out of range; expected 1 to {MAX_SLOTS}"
        )));
    }
    if options.max_image_rows > 0 && slots > 1 {
        let reason = "a model with images generates one sequence at a time; use one slot";
        return Err(ModelError::Unsupported(reason.into()));
    }
    check_context(config, context)?;
    check_cache(dtype, cache)?;
    check_choices(options)
}

/// Adds the outputs `next` and `sums` for the logits.
fn outputs_beside(b: &mut ModelBuilder<'_>, logits: Value) -> Result<(), ModelError> {
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

/// Checks the number of selectable adapters and that no other adapters are set.
fn check_choices(options: &BatchOptions) -> Result<(), ModelError> {
    let count = options.selectable_adapters.len();
    let refused = match count {
        0 => return Ok(()),
        _ if count > MAX_ADAPTERS => {
            format!("{count} selectable adapters; expected at most {MAX_ADAPTERS}")
        }
        _ if !options.adapters.is_empty() => {
            "adapters for all sequences cannot be combined with selectable adapters; merge the former into the model".into()
        }
        _ => return Ok(()),
    };
    Err(ModelError::Unsupported(refused))
}

/// Adds the inputs that map rows to slots.
fn slot_rows(
    input: &mut impl FnMut(&str, Shape) -> Result<Value, OpError>,
    (slots, decodes): (usize, bool),
    len: &Dim,
) -> Result<SlotRows, OpError> {
    let seen = Dim::sym("c");
    // No node reads this input; its length sets the number of visible positions.
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
        source_of_row: input("results", [len.clone()].into())?,
        prompt_rows: input("prompt.rows", [Dim::sym("s")].into())?,
        prompt_start: input("prompt.start", [Dim::Known(4)].into())?,
        prompt_len: input("prompt.kv_len", Shape::default())?,
        prompt_visible: seen,
        slots_visible: decodes.then_some(most),
    })
}

/// True if the rows of each slot are computed separately: for recurrent states and for experts,
/// which group rows by expert.
pub(crate) fn has_per_slot_rows(config: &DecoderSpec) -> bool {
    config.has_states() || config.experts.is_some()
}

/// Symbol for the number of rows of this slot.
fn symbol(slot: usize) -> String {
    format!("s{slot}")
}
