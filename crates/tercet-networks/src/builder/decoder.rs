//! Decoder-only language models: the graph of any [`DecoderSpec`].
//!
//! One graph serves prefill and decode: it appends `s` tokens to a KV cache of fixed capacity. The
//! cache is state of the executable. The inputs are all I32:
//!
//! | input | shape | contents |
//! |---|---|---|
//! | `tokens` | `[s]` | new tokens |
//! | `positions` | `[s]` | positions of the tokens, consecutive |
//! | `start` | `[4]` | `[0, first position, 0, 0]`: start indices of the cache update |
//! | `kv_len` | `[]` | filled positions after this run |
//! | `rows` | `[r]` | indices of the `s` tokens that produce logits |
//!
//! Q8_0 caches add the input `seen` `[kv_len]`; only its length counts. Sliding windows `W` whose
//! caches are shorter than the context ([`windows`]) add `start.W` and `kv_len.W`, relative to the
//! first position of those caches. [`DecoderOptions::max_image_rows`] adds `pictures` F32 `[p, hidden]`:
//! token id `vocab + i` refers to its row `i`.
//!
//! Outputs: `logits` F32 `[r, vocab]`, and `next` I32 `[r]` if the graph samples.

pub(crate) mod attention;
mod batch;
pub(crate) mod cache;
mod delta;
mod experts;
mod latent;
pub(crate) mod layer;
pub(crate) mod matmul_precision;
pub(super) mod run_rows;
mod states;
pub(crate) mod windows;

use tercet::ops::SampleOptions;
use tercet::scalar::{BinaryFn, CompareFn};
use tercet::{CompileOptions, DType, Device, Dim, Shape, Tensor, Type, Value};

use super::trainable::{ScaledAdapter, WeightUse};
use super::{Generator, ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::RopeOverrides;
use crate::config::decoder::{DecoderPart, DecoderSpec};
pub(super) use batch::has_per_slot_rows;
pub use batch::{BatchDecoder, BatchOptions};
pub use cache::CacheFormat;
use cache::check_cache;
pub use matmul_precision::MatmulPrecision;
use matmul_precision::OverflowFallback;
use windows::WindowCaches;
use windows::ordered::window_caches;

use layer::{
    AttentionMode, ForwardContext, MAX_CONTEXT, VisibleCache, embed, head, layer, norm,
    query_scales, rope_tables,
};

/// Sampling compiled into a graph.
///
/// ```
/// use tercet_networks::Sampling;
/// let sampling = Sampling { temperature: 0.8, top_k: 40, ..Sampling::GREEDY };
/// assert_eq!((sampling.top_p, sampling.seed), (1.0, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 selects greedy decoding.
    pub temperature: f64,
    /// Keeps only the `k` greatest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with at least this total probability; 1 keeps all.
    pub top_p: f64,
    /// Seed of the random number generator.
    pub seed: u64,
}

impl Sampling {
    /// Greedy decoding: the token with the greatest logit, the lowest id among equals.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };
}

/// Options of a decoder graph.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::{DecoderOptions, Sampling};
/// let options = DecoderOptions { context: 64, ..DecoderOptions::new(&spec) };
/// assert_eq!((options.logit_rows, options.sampling), (1, Some(Sampling::GREEDY)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Capacity of the KV cache in tokens.
    pub context: usize,
    /// Length of the text in tokens, if it is known. The length selects the divisors of LongRoPE,
    /// as in the reference implementations; otherwise `context` does.
    pub text_length: Option<usize>,
    /// Maximum tokens per run; longer prompts are split into chunks.
    pub chunk: usize,
    /// Maximum rows of logits per run.
    pub logit_rows: usize,
    /// Float dtype of the arithmetic.
    pub dtype: DType,
    /// Storage format of the KV caches; `None` means the dtype of the arithmetic. Other formats
    /// require F32 arithmetic.
    pub cache: Option<CacheFormat>,
    /// Precision of matmul inputs with F32 arithmetic; no effect in other dtypes.
    pub matmul_precision: MatmulPrecision,
    /// Sampling in the graph: adds the output `next`.
    pub sampling: Option<Sampling>,
    /// Adapters that apply to the projections, all at once; none by default.
    pub adapters: Vec<ScaledAdapter>,
    /// Maximum image embedding rows. 0 builds a text-only graph without the input `pictures`.
    pub max_image_rows: usize,
    /// Changes of the rotary positions; none by default.
    pub rope: RopeOverrides,
}

impl DecoderOptions {
    /// Default options: context length of training, chunks of 512 tokens, one row of logits, F32
    /// arithmetic and matmuls, greedy decoding.
    pub fn new(config: &DecoderSpec) -> DecoderOptions {
        DecoderOptions {
            context: config.context,
            text_length: None,
            chunk: 512.min(config.context),
            logit_rows: 1,
            dtype: DType::F32,
            cache: None,
            matmul_precision: MatmulPrecision::Full,
            sampling: Some(Sampling::GREEDY),
            adapters: Vec::new(),
            max_image_rows: 0,
            rope: RopeOverrides::default(),
        }
    }
}

/// A decoder: graph, parameters and configuration.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{Decoder, DecoderOptions};
/// let decoder = Decoder::build(&spec, &weights, DecoderOptions::new(&spec))?;
/// let mut generator = decoder.generator(&Device::cpu())?;
/// assert_eq!(generator.forward(&[1, 2, 3])?.logits.len(), decoder.config.vocab);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    /// Graph and parameters.
    pub model: ModelGraph,
    /// Configuration that the graph was built from.
    pub config: DecoderSpec,
    /// Options that the graph was built with.
    pub options: DecoderOptions,
}

impl Decoder {
    /// Builds the graph from the weights of a file.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if an option
    /// is out of range. [`ModelError::Adapter`] for an adapter of another model.
    pub fn build(
        config: &DecoderSpec,
        weights: &Weights,
        options: DecoderOptions,
    ) -> Result<Decoder, ModelError> {
        if options.context == 0 || options.chunk == 0 || options.logit_rows == 0 {
            return Err(ModelError::Unsupported(
                "context, chunk and logit rows must be at least 1".into(),
            ));
        }
        let config = &with_rope(config, &options.rope)?;
        check_context(config, options.context)?;
        check_cache(options.dtype, options.cache)?;
        let chosen = options.text_length;
        let config = &chosen.map_or(config.clone(), |n| config.clone().for_text_length(n));
        let b = ModelBuilder::new(weights, options.dtype).with_decoder_spec(config);
        let mut b = b.in_mode(WeightUse::Adapted(&options.adapters));
        let len = Dim::sym("s");
        let tokens = b
            .graph
            .input("tokens", Type::new(DType::I32, [len.clone()]))?;
        let positions = b
            .graph
            .input("positions", Type::new(DType::I32, [len.clone()]))?;
        let start = b.graph.input("start", Type::new(DType::I32, [4]))?;
        let kv_len = b
            .graph
            .input("kv_len", Type::new(DType::I32, Shape::default()))?;
        let rows = b
            .graph
            .input("rows", Type::new(DType::I32, [Dim::sym("r")]))?;
        let seen = match options.cache_format() {
            CacheFormat::Float(_) => None,
            CacheFormat::Q8_0 => Some(visible_cache(&mut b)?),
        };
        let windows = window_caches(&mut b, &options.window_caches(config), &len)?;

        let ropes = rope_tables(&mut b, config, options.context, positions)?;
        let query_scales = query_scales(&mut b, config, options.context, positions)?;
        let shared = ForwardContext {
            attend: AttentionMode::Cached {
                start,
                kv_len,
                context: options.context,
                format: options.cache_format(),
                visible: seen,
                windows,
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
        if let Some(s) = options.sampling {
            let options = SampleOptions {
                top_k: s.top_k,
                top_p: s.top_p,
                temperature: s.temperature,
            };
            let next = b.graph.sample(logits, options, s.seed)?;
            b.graph.output("next", next)?;
        }
        let model = b.finish().with_precision(options.dtype)?;
        Ok(Decoder {
            model,
            config: config.clone(),
            options,
        })
    }

    /// Upper bounds of the graph's symbolic sizes.
    pub fn compile_options(&self) -> CompileOptions {
        let options = CompileOptions::new()
            .bound("s", self.options.chunk.min(self.options.context))
            .bound("r", self.options.logit_rows);
        let options = match self.options.cache_format() {
            CacheFormat::Float(_) => options,
            CacheFormat::Q8_0 => options.bound(SEEN, self.options.context),
        };
        match self.options.max_image_rows {
            0 => options,
            most => options.bound("p", most),
        }
    }

    /// Compiles the model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn generator(&self, device: &Device) -> Result<Generator, ModelError> {
        let products = self.matmul_dtype(device);
        let options = self.compile_options().with_matmul_precision(products);
        let exe = self.model.compile(device, &options)?;
        let rounded = products.map(|to| OverflowFallback::new(to, device, options, &self.model));
        let (own, config) = (&self.options, &self.config);
        let sizes = DecoderSizes {
            has_states: config.has_states(),
            context: own.context,
            chunk: own.chunk.min(own.context),
            vocab: config.vocab,
            logit_rows: own.logit_rows,
            dtype: coarser(own.dtype, own.cache_format()),
            has_visible_input: own.cache_format() == CacheFormat::Q8_0,
            windows: own.window_caches(config),
        };
        let mut generator =
            Generator::from_executable(exe, rounded, &self.model, sizes, own.sampling)?;
        if own.max_image_rows > 0 {
            generator.accept_images(config.hidden)?;
        }
        Ok(generator)
    }

    /// Dtype to which this device rounds F32 matmul inputs; `None` if it does not round.
    pub fn matmul_dtype(&self, device: &Device) -> Option<DType> {
        let DecoderOptions {
            dtype,
            matmul_precision: products,
            ..
        } = self.options;
        rounded_to(&self.model, device, dtype, products)
    }
}

/// The less precise dtype of the arithmetic and the caches.
pub(super) fn coarser(arithmetic: DType, cache: CacheFormat) -> DType {
    let cache = match cache {
        CacheFormat::Float(cache) => cache,
        // Q8_0 values have a relative step of about 1/127, similar to BF16.
        CacheFormat::Q8_0 => DType::BF16,
    };
    let order = [DType::BF16, DType::F16];
    let one = order
        .into_iter()
        .find(|of| [arithmetic, cache].contains(of));
    one.unwrap_or(arithmetic)
}

/// Name of the input whose only axis is the filled length of the caches, for caches that are
/// dequantized. The symbol of that length has the same name.
pub(super) const SEEN: &str = "seen";

/// Name of the input with the image embeddings.
pub(super) const PICTURES: &str = "pictures";

/// Adds the input [`SEEN`]; only its length counts, no node reads its contents.
fn visible_cache(b: &mut ModelBuilder<'_>) -> Result<VisibleCache, ModelError> {
    let positions = Dim::sym(SEEN);
    let ty = Type::new(DType::I32, [positions.clone()]);
    b.graph.input(SEEN, ty)?;
    let origin = Tensor::from_slice(&[4], &[0i32; 4]);
    let origin = origin.expect("invariant: four numbers fit memory");
    let origin = b.graph.constant(origin)?;
    Ok(VisibleCache { positions, origin })
}

/// Sizes and properties of a decoder graph.
pub(super) struct DecoderSizes {
    pub(super) has_states: bool,
    pub(super) context: usize,
    pub(super) chunk: usize,
    pub(super) vocab: usize,
    pub(super) logit_rows: usize,
    /// The less precise dtype of the arithmetic and the caches.
    pub(super) dtype: DType,
    /// True if the graph has the input [`SEEN`].
    pub(super) has_visible_input: bool,
    pub(super) windows: Vec<WindowCaches>,
}

/// Dtype to which F32 matmul inputs are rounded in a model of this arithmetic dtype.
fn rounded_to(
    model: &ModelGraph,
    device: &Device,
    dtype: DType,
    products: MatmulPrecision,
) -> Option<DType> {
    let chosen = products.resolve(&model.graph, device);
    chosen.filter(|_| dtype == DType::F32)
}

/// Returns an error for a context length that the model does not support.
/// The specification with changed rotary positions.
fn with_rope(config: &DecoderSpec, rope: &RopeOverrides) -> Result<DecoderSpec, ModelError> {
    let changed = rope.apply(config);
    changed.map_err(|e| ModelError::Unsupported(format!("rotary positions: {e}")))
}

fn check_context(config: &DecoderSpec, context: usize) -> Result<(), ModelError> {
    check_causal(config)?;
    if context > MAX_CONTEXT {
        return Err(ModelError::Unsupported(format!(
            "context length {context} is out of range; expected at most {MAX_CONTEXT} tokens"
        )));
    }
    if config.has_learned_positions() && context > config.context {
        let most = config.context;
        return Err(ModelError::Unsupported(format!(
            "context length {context} is out of range; the position table has a row for each of {most} positions"
        )));
    }
    Ok(())
}

/// Returns an error for a bidirectional model, which cannot generate token by token.
pub(crate) fn check_causal(config: &DecoderSpec) -> Result<(), ModelError> {
    match config.is_bidirectional() {
        false => Ok(()),
        true => Err(ModelError::Unsupported(
            "the model has bidirectional attention (`is_causal` or `use_bidirectional_attention` in its configuration): it embeds texts and cannot generate; use \
             `tercet embed`"
                .into(),
        )),
    }
}

/// Token embeddings; token ids above the vocabulary select image embedding rows.
fn embed_seen(
    b: &mut ModelBuilder<'_>,
    config: &DecoderSpec,
    tokens: Value,
    positions: Value,
) -> Result<Value, ModelError> {
    let shape = [Dim::sym("p"), config.hidden.into()];
    let pictures = b.graph.input(PICTURES, Type::new(DType::F32, shape))?;
    let zero = b.graph.scalar(DType::I32, 0.0)?;
    let vocab = b.graph.scalar(DType::I32, config.vocab as f64)?;
    let is_text = b.graph.compare(CompareFn::Lt, tokens, vocab)?;
    let words = b.graph.where_(is_text, tokens, zero)?;
    let words = embed(b, config, words, positions)?;
    let places = b.graph.binary(BinaryFn::Sub, tokens, vocab)?;
    let places = b.graph.where_(is_text, zero, places)?;
    let seen = b.graph.gather(pictures, places, 0)?;
    let is_text = b.graph.unsqueeze(is_text, 1)?;
    Ok(b.graph.where_(is_text, words, seen)?)
}

/// Runs all layers over the rows `x` and adds the output `logits` for the selected `rows`.
fn logits(
    b: &mut ModelBuilder<'_>,
    config: &DecoderSpec,
    shared: &ForwardContext,
    [mut x, rows]: [Value; 2],
) -> Result<Value, ModelError> {
    for at in 0..config.layers.len() {
        x = layer(b, config, shared, at, x)?;
    }
    let x = b.graph.gather(x, rows, 0)?;
    b.only_rows(rows)?;
    let x = norm(b, config, DecoderPart::FinalNorm, 0, x)?;
    let logits = head(b, config, x)?;
    b.check_tuned()?;
    b.graph.output("logits", logits)?;
    Ok(logits)
}
