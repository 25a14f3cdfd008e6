//! Decoder-only language models: the graph of any [`DecoderSpec`].
//!
//! One graph serves prefill and decode: `s` tokens are appended to a cache of fixed capacity that
//! lives in the executable as state. Its inputs, all I32:
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `tokens` | `[s]` | the new tokens |
//! | `positions` | `[s]` | their positions, consecutive |
//! | `start` | `[4]` | `[0, first position, 0, 0]`: where the cache is written |
//! | `kv_len` | `[]` | positions filled after this run |
//! | `rows` | `[r]` | which of the `s` positions give logits |
//!
//! Where caches are of Q8_0, also `seen` `[kv_len]`, of which the size alone counts. For the layers of each window `W` whose caches do not hold the context ([`windows`]) also `start.W` and `kv_len.W`, which count
//! from the first position of these caches. With [`DecoderOptions::pictures`] also `pictures` F32 `[p, hidden]`: a token `vocab + i` is its row `i`.
//!
//! Outputs: `logits` F32 `[r, vocab]`, and `next` I32 `[r]` when sampling.

pub(crate) mod attention;
mod batch;
pub(crate) mod cache;
mod delta;
mod experts;
mod latent;
pub(crate) mod layer;
pub(crate) mod products;
pub(crate) mod slot_windows;
mod states;
pub(crate) mod windows;

use tercet::ops::SampleOptions;
use tercet::scalar::{BinaryFn, CompareFn};
use tercet::{CompileOptions, DType, Device, Dim, Shape, Tensor, Type, Value};

use super::generator::PICTURES;
use super::tuned::{Mode, ScaledAdapter};
use super::{Builder, Generator, Model, ModelError, Weights};
use crate::config::decoder::{DecoderSpec, Part};
pub(super) use batch::has_rows_apart;
pub use batch::{BatchDecoder, BatchOptions};
pub use cache::CacheFormat;
use cache::check_cache;
pub use products::Products;
use products::Rounded;
use windows::{Windowed, window_caches};

use layer::{
    Attend, MOST_CONTEXT, Seen, Shared, embed, head, layer, norm, query_scales, rope_tables,
};

/// How the next token is chosen from the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the greatest logit; otherwise logits are divided by it.
    pub temperature: f64,
    /// Only the k greatest logits; 0 for all.
    pub top_k: usize,
    /// Only the smallest set of tokens that has this probability; 1 for all.
    pub top_p: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The greatest logit, the lowest token among equals.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };
}

/// Choices of a llama graph.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Capacity of the cache in tokens.
    pub context: usize,
    /// The most tokens of one run; longer prompts are fed in parts.
    pub chunk: usize,
    /// The most rows of logits of one run.
    pub logit_rows: usize,
    /// The float dtype of the arithmetic.
    pub dtype: DType,
    /// How caches store keys and values; in the dtype of the arithmetic where it is none. Another one is for arithmetic in F32.
    pub cache: Option<CacheFormat>,
    /// What rows of F32 become on their way into products; of no effect in other dtypes.
    pub products: Products,
    /// Adds the output `next`.
    pub sampling: Option<Sampling>,
    /// Adapters that change the projections, all at once; none by default.
    pub adapters: Vec<ScaledAdapter>,
    /// The most rows of pictures that tokens may stand for; 0 is a graph of texts alone, without the input `pictures`.
    pub pictures: usize,
}

impl DecoderOptions {
    /// The context that the model was trained for, parts of 512 tokens, one row of logits, F32, products too,
    /// greedy.
    pub fn new(config: &DecoderSpec) -> DecoderOptions {
        DecoderOptions {
            context: config.context,
            chunk: 512.min(config.context),
            logit_rows: 1,
            dtype: DType::F32,
            cache: None,
            products: Products::Exact,
            sampling: Some(Sampling::GREEDY),
            adapters: Vec::new(),
            pictures: 0,
        }
    }
}

/// A decoder: its graph, parameters and configuration.
#[derive(Debug)]
pub struct Decoder {
    /// Graph and parameters.
    pub model: Model,
    /// The configuration it was built from.
    pub config: DecoderSpec,
    /// The options it was built with.
    pub options: DecoderOptions,
}

impl Decoder {
    /// Builds the graph over the weights of a file.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or an option is not
    /// possible; [`ModelError::Adapter`] for an adapter that was made for another model.
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
        check_context(config, options.context)?;
        check_cache(options.dtype, options.cache)?;
        let b = Builder::new(weights, options.dtype).of_decoder(config);
        let mut b = b.in_mode(Mode::Adapted(&options.adapters));
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
            CacheFormat::Q8_0 => Some(seen(&mut b)?),
        };
        let windows = window_caches(&mut b, &windows::windows(config, &options))?;

        let ropes = rope_tables(&mut b, config, options.context, positions)?;
        let query_scales = query_scales(&mut b, config, options.context, positions)?;
        let shared = Shared {
            attend: Attend::Cached {
                start,
                kv_len,
                context: options.context,
                format: options.cache_format(),
                seen,
                windows,
            },
            ropes,
            query_scales,
            batch: Dim::Known(1),
            len,
        };
        let x = match options.pictures {
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

    /// The bounds of the graph's symbols.
    pub fn compile_options(&self) -> CompileOptions {
        let options = CompileOptions::new()
            .bound("s", self.options.chunk.min(self.options.context))
            .bound("r", self.options.logit_rows);
        let options = match self.options.cache_format() {
            CacheFormat::Float(_) => options,
            CacheFormat::Q8_0 => options.bound(SEEN, self.options.context),
        };
        match self.options.pictures {
            0 => options,
            most => options.bound("p", most),
        }
    }

    /// Compiles the model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn generator(&self, device: &Device) -> Result<Generator, ModelError> {
        let products = self.products(device);
        let options = self.compile_options().products_in(products);
        let exe = self.model.compile(device, &options)?;
        let rounded = products.map(|to| Rounded::new(to, device, options, &self.model));
        let (own, config) = (&self.options, &self.config);
        let sizes = Sizes {
            has_states: config.has_states(),
            context: own.context,
            chunk: own.chunk.min(own.context),
            vocab: config.vocab,
            logit_rows: own.logit_rows,
            dtype: match own.cache_format() {
                CacheFormat::Float(cache) => coarser(own.dtype, cache),
                // A code is a step of half a hundredth, as BF16 has.
                CacheFormat::Q8_0 => coarser(own.dtype, DType::BF16),
            },
            counts_seen: own.cache_format() == CacheFormat::Q8_0,
            windows: windows::windows(config, own),
        };
        let mut generator = Generator::of(exe, rounded, &self.model, sizes, own.sampling);
        if own.pictures > 0 {
            generator.see(config.hidden, &[])?;
        }
        Ok(generator)
    }

    /// What rows of F32 are rounded to in products on this device.
    pub fn products(&self, device: &Device) -> Option<DType> {
        let DecoderOptions {
            dtype, products, ..
        } = self.options;
        rounded_to(&self.model, device, dtype, products)
    }
}

/// The one of two float dtypes that rounds more.
fn coarser(a: DType, b: DType) -> DType {
    let order = [DType::BF16, DType::F16];
    let one = order.into_iter().find(|of| [a, b].contains(of));
    one.unwrap_or(a)
}

/// The input, and the symbol of its only axis, that says how far caches are filled where they are decoded.
pub(super) const SEEN: &str = "seen";

/// That input: nothing reads what it holds.
fn seen(b: &mut Builder<'_>) -> Result<Seen, ModelError> {
    let positions = Dim::sym(SEEN);
    let ty = Type::new(DType::I32, [positions.clone()]);
    b.graph.input(SEEN, ty)?;
    let origin = Tensor::from_slice(&[4], &[0i32; 4]);
    let origin = origin.expect("invariant: four numbers fit memory");
    let origin = b.graph.constant(origin)?;
    Ok(Seen { positions, origin })
}

/// The sizes of a decoder's graph.
pub(super) struct Sizes {
    pub(super) has_states: bool,
    pub(super) context: usize,
    pub(super) chunk: usize,
    pub(super) vocab: usize,
    pub(super) logit_rows: usize,
    /// The least precise of the arithmetic and the caches.
    pub(super) dtype: DType,
    /// Whether there is the input [`SEEN`].
    pub(super) counts_seen: bool,
    pub(super) windows: Vec<Windowed>,
}

/// What rows of F32 are rounded to in products of a model of this dtype.
fn rounded_to(model: &Model, device: &Device, dtype: DType, products: Products) -> Option<DType> {
    let chosen = products.of(&model.graph, device);
    chosen.filter(|_| dtype == DType::F32)
}

/// Refuses contexts that a model cannot have.
fn check_context(config: &DecoderSpec, context: usize) -> Result<(), ModelError> {
    check_causal(config)?;
    if context > MOST_CONTEXT {
        return Err(ModelError::Unsupported(format!(
            "a context of {context} tokens; at most {MOST_CONTEXT} are possible"
        )));
    }
    if config.learned_positions && context > config.context {
        let most = config.context;
        return Err(ModelError::Unsupported(format!(
            "a context of {context} tokens; the model has a row for each of {most} positions"
        )));
    }
    Ok(())
}

/// Refuses a model whose tokens see those after them, which cannot be written one by one.
pub(crate) fn check_causal(config: &DecoderSpec) -> Result<(), ModelError> {
    match config.bidirectional {
        false => Ok(()),
        true => Err(ModelError::Unsupported(
            "the model's tokens see those after them (`use_bidirectional_attention`): it embeds texts and writes none; use \
             `tercet embed`"
                .into(),
        )),
    }
}

/// The rows of the embedding at `tokens`, or for those behind the vocabulary rows of pictures.
fn embed_seen(
    b: &mut Builder<'_>,
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

/// All layers over the rows `x`, and the logits of `rows` of them, as output `logits`.
fn logits(
    b: &mut Builder<'_>,
    config: &DecoderSpec,
    shared: &Shared,
    [mut x, rows]: [Value; 2],
) -> Result<Value, ModelError> {
    for at in 0..config.layers.len() {
        x = layer(b, config, shared, at, x)?;
    }
    let x = b.graph.gather(x, rows, 0)?;
    b.only_rows(rows)?;
    let x = norm(b, config, Part::FinalNorm, 0, x)?;
    let logits = head(b, config, x)?;
    b.check_tuned()?;
    b.graph.output("logits", logits)?;
    Ok(logits)
}
