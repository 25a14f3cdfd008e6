//! Storage formats of KV caches.
//!
//! A float cache is one state `[.., heads, size]`. A Q8_0 cache is two states. The int8 values I8
//! `[.., 1, 32 blocks]` contain all heads of a row, zero-padded to whole blocks. The scales F16
//! `[.., 1, blocks]` have the name `name.scale`. Rows are quantized when they are appended. Before
//! attention the visible rows are dequantized to F32.

use tercet::scalar::{BinaryFn, UnaryFn};
use tercet::{DType, Device, Dim, Shape, Type, Value};

use super::super::{ModelBuilder, ModelError};
use super::attention::cast;
use super::matmul_precision::MatmulPrecision;
use crate::config::decoder::DecoderSpec;
use crate::weights::Weights;

/// Storage format of the keys and values in a KV cache.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::{CacheFormat, DecoderOptions};
/// let options = DecoderOptions { cache: Some(CacheFormat::Q8_0), ..DecoderOptions::new(&spec) };
/// assert_eq!(options.cache_format().to_string(), "q8_0");
/// assert_eq!(CacheFormat::from(tercet::DType::F16), CacheFormat::Float(tercet::DType::F16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFormat {
    /// Float dtype: F32, F16 or BF16.
    Float(DType),
    /// Int8 values with one F16 scale per 32 elements, as in GGUF's Q8_0 blocks (34 bytes). A row
    /// contains the keys or the values of all heads at one position, zero-padded to whole blocks.
    Q8_0,
}

impl From<DType> for CacheFormat {
    fn from(dtype: DType) -> CacheFormat {
        CacheFormat::Float(dtype)
    }
}

impl std::fmt::Display for CacheFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CacheFormat::Float(dtype) => write!(f, "{dtype}"),
            CacheFormat::Q8_0 => f.write_str("q8_0"),
        }
    }
}

/// Elements per Q8_0 block.
const BLOCK: usize = 32;

/// Name suffix of the state with the scales.
const SCALE: &str = ".scale";

impl CacheFormat {
    /// The format that a model with these weights has on a device if none is given.
    ///
    /// It is F16 on a GPU whose matmuls are faster in F16, if most weights are F16 or quantized and
    /// `precision` lets matmuls round to F16. Otherwise it is `dtype`: F16 has a smaller range than
    /// weights in BF16 or F32, and the CPU would convert each row.
    ///
    /// ```
    /// use tercet::{DType, Device, Scheme};
    /// use tercet_networks::{CacheFormat, DummyWeights, MatmulPrecision, Weights};
    /// let weights = Weights::Dummy(DummyWeights::packed(Scheme::Q4K));
    /// let format =
    ///     CacheFormat::choose(&weights, &Device::cpu(), DType::F32, MatmulPrecision::Auto);
    /// assert_eq!(format, CacheFormat::Float(DType::F32));
    /// ```
    pub fn choose(
        weights: &Weights,
        device: &Device,
        dtype: DType,
        precision: MatmulPrecision,
    ) -> CacheFormat {
        let faster = match device.name() {
            "cpu" | "reference" => Vec::new(),
            _ => device.fast_matmul_dtypes(),
        };
        CacheFormat::choose_from(weights, &faster, dtype, precision)
    }

    /// `faster` are the dtypes in which matmuls of a GPU are faster than in F32.
    #[doc(hidden)]
    pub fn choose_from(
        weights: &Weights,
        faster: &[DType],
        dtype: DType,
        precision: MatmulPrecision,
    ) -> CacheFormat {
        let rounds_to = match precision {
            MatmulPrecision::Full => None,
            MatmulPrecision::Fixed(to) => Some(to),
            MatmulPrecision::Auto => Some(DType::F16),
        };
        let fits = weights.dtype_of_training(faster) == DType::F16;
        match (dtype, rounds_to) {
            (DType::F32, Some(DType::F16)) if fits => CacheFormat::Float(DType::F16),
            _ => CacheFormat::Float(dtype),
        }
    }

    /// The dtype to which attention converts cached keys and values, if the model computes in F32.
    pub(super) fn attention_dtype(self) -> DType {
        match self {
            CacheFormat::Float(dtype) => dtype,
            CacheFormat::Q8_0 => DType::F32,
        }
    }

    /// Bytes of a row with this number of elements.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        match self {
            CacheFormat::Float(dtype) => elements * dtype.size_bytes(),
            CacheFormat::Q8_0 => elements.div_ceil(BLOCK) * (BLOCK + DType::F16.size_bytes()),
        }
    }

    /// Names of the states that store a cache.
    pub(crate) fn states(self, name: &str) -> Vec<String> {
        match self {
            CacheFormat::Float(_) => vec![name.to_string()],
            CacheFormat::Q8_0 => vec![name.to_string(), format!("{name}{SCALE}")],
        }
    }

    /// Bytes of one position in a layer's KV cache.
    #[must_use]
    pub fn row_bytes(self, spec: &DecoderSpec) -> usize {
        let sizes = [spec.head_dim, spec.value_dim()];
        let bytes = sizes.map(|size| self.bytes(spec.kv_heads * size));
        bytes.iter().sum()
    }
}

/// Checks the cache format: it must be a float or Q8_0, and must equal the arithmetic dtype if that
/// has 16 bits.
pub(super) fn check_cache(dtype: DType, cache: Option<CacheFormat>) -> Result<(), ModelError> {
    let Some(cache) = cache else {
        return Ok(());
    };
    let is_float = |of| matches!(of, DType::F32 | DType::F16 | DType::BF16);
    let refused = match (cache, dtype) {
        (CacheFormat::Float(of), _) if of == dtype => return Ok(()),
        (CacheFormat::Float(of), DType::F32) if is_float(of) => return Ok(()),
        (CacheFormat::Float(of), DType::F32) => {
            format!("caches of {of} are not supported; expected F32, F16, BF16 or Q8_0")
        }
        (CacheFormat::Q8_0, DType::F32) => return Ok(()),
        (cache, _) => format!(
            "caches of {cache} cannot be combined with arithmetic in {dtype}; use F32 arithmetic"
        ),
    };
    Err(ModelError::Unsupported(refused))
}

/// Cache rows in their storage format: floats `[.., heads, size]`, or int8 values and scales.
#[derive(Clone)]
pub(super) struct StoredCacheRows {
    format: CacheFormat,
    /// Number of heads and elements per head.
    heads: [Dim; 2],
    pub(super) parts: Vec<Value>,
}

impl StoredCacheRows {
    /// Converts float rows `[.., heads, size]` to the storage format.
    pub(super) fn new(
        b: &mut ModelBuilder<'_>,
        format: CacheFormat,
        x: Value,
    ) -> Result<StoredCacheRows, ModelError> {
        let (_, heads) = ends(b, x);
        let parts = match format {
            CacheFormat::Float(dtype) => vec![cast(b, x, dtype)?],
            CacheFormat::Q8_0 => coded(b, x)?.into(),
        };
        Ok(StoredCacheRows {
            format,
            heads,
            parts,
        })
    }

    /// Graph states of a cache `[first.., heads, size]` with rows in this format.
    pub(super) fn states(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        first: [usize; 2],
    ) -> Result<StoredCacheRows, ModelError> {
        let names = self.format.states(name);
        let mut parts = Vec::with_capacity(names.len());
        for (name, part) in names.iter().zip(&self.parts) {
            let (_, rest) = ends(b, *part);
            let shape: Vec<Dim> = first.map(Dim::Known).into_iter().chain(rest).collect();
            let ty = Type::new(b.graph.ty(*part).dtype, shape);
            parts.push(b.graph.state(name, ty)?);
        }
        Ok(StoredCacheRows {
            parts,
            ..self.clone()
        })
    }

    /// Applies `f` to each stored tensor (values, or values and scales) and its counterpart in
    /// `other`.
    pub(super) fn with(
        &self,
        b: &mut ModelBuilder<'_>,
        other: &StoredCacheRows,
        mut f: impl FnMut(&mut ModelBuilder<'_>, Value, Value) -> Result<Value, ModelError>,
    ) -> Result<StoredCacheRows, ModelError> {
        let pairs = self.parts.iter().zip(&other.parts);
        let parts = pairs.map(|(own, other)| f(b, *own, *other));
        Ok(StoredCacheRows {
            parts: parts.collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }

    /// Applies `f` to each stored tensor: the values, or the values and scales.
    pub(super) fn map(
        &self,
        b: &mut ModelBuilder<'_>,
        mut f: impl FnMut(&mut ModelBuilder<'_>, Value) -> Result<Value, ModelError>,
    ) -> Result<StoredCacheRows, ModelError> {
        self.with(b, self, |b, part, _| f(b, part))
    }

    /// Reshapes the leading axes of each stored tensor; the last two axes stay.
    pub(super) fn reshaped(
        &self,
        b: &mut ModelBuilder<'_>,
        first: &[Dim],
    ) -> Result<StoredCacheRows, ModelError> {
        self.map(b, |b, part| {
            let (_, rest) = ends(b, part);
            let shape: Vec<Dim> = first.iter().cloned().chain(rest).collect();
            Ok(b.graph.reshape(part, shape)?)
        })
    }

    /// Rows `[1, positions, ..]` of each stored tensor, from the indices `start`, I32 `[4]`.
    pub(super) fn slice(
        &self,
        b: &mut ModelBuilder<'_>,
        start: Value,
        [slots, positions]: [Dim; 2],
    ) -> Result<StoredCacheRows, ModelError> {
        self.map(b, |b, part| {
            let (_, [a, z]) = ends(b, part);
            let window = [slots.clone(), positions.clone(), a, z];
            Ok(b.graph.dynamic_slice(part, start, window)?)
        })
    }

    /// Assigns each stored tensor to the corresponding state of this cache.
    pub(super) fn assign(
        &self,
        b: &mut ModelBuilder<'_>,
        cache: &StoredCacheRows,
    ) -> Result<(), ModelError> {
        for (state, part) in cache.parts.iter().zip(&self.parts) {
            b.graph.assign(*state, *part)?;
        }
        Ok(())
    }

    /// Rows dequantized for attention, `[.., heads, size]`.
    pub(super) fn decoded(&self, b: &mut ModelBuilder<'_>) -> Result<Value, ModelError> {
        let [first, rest @ ..] = self.parts.as_slice() else {
            unreachable!("invariant: rows have at least one part");
        };
        let [scales] = rest else {
            return Ok(*first);
        };
        let (before, [_, blocks]) = ends(b, *scales);
        let before = before.to_vec();
        let of = |rest: [Dim; 2]| -> Shape {
            let all: Vec<Dim> = before.iter().cloned().chain(rest).collect();
            all.into()
        };
        let codes = b
            .graph
            .reshape(*first, of([blocks.clone(), BLOCK.into()]))?;
        let codes = b.graph.cast(codes, DType::F32)?;
        let scales = b.graph.reshape(*scales, of([blocks.clone(), 1.into()]))?;
        let scales = b.graph.cast(scales, DType::F32)?;
        let x = b.graph.mul(codes, scales)?;
        let [heads, size] = known(&self.heads);
        let [blocks] = known(&[blocks]);
        let x = match heads * size == blocks * BLOCK {
            true => x,
            false => {
                let x = b
                    .graph
                    .reshape(x, of([1.into(), (blocks * BLOCK).into()]))?;
                b.graph.narrow(x, before.len() + 1, 0, heads * size)?
            }
        };
        Ok(b.graph.reshape(x, of(self.heads.clone()))?)
    }
}

/// Static sizes of these axes; all are known at build time.
fn known<const N: usize>(dims: &[Dim; N]) -> [usize; N] {
    let of = |at: usize| dims[at].known();
    std::array::from_fn(|at| of(at).expect("invariant: heads and their sizes are known"))
}

/// Leading axes of `x`, and its last two axes.
fn ends(b: &ModelBuilder<'_>, x: Value) -> (Vec<Dim>, [Dim; 2]) {
    let shape = &b.graph.ty(x).shape;
    let (first, rest) = shape.split_at(shape.len() - 2);
    (first.to_vec(), [rest[0].clone(), rest[1].clone()])
}

/// Quantizes rows `[.., heads, size]` to int8 values I8 `[.., 1, 32 blocks]` and scales F16 `[..,
/// 1, blocks]`.
fn coded(b: &mut ModelBuilder<'_>, x: Value) -> Result<[Value; 2], ModelError> {
    let (before, rest) = ends(b, x);
    let [heads, size] = known(&rest);
    let of = |rest: [usize; 2]| -> Shape {
        let rest = rest.map(Dim::Known);
        let all: Vec<Dim> = before.iter().cloned().chain(rest).collect();
        all.into()
    };
    let width = heads * size;
    let blocks = width.div_ceil(BLOCK);
    let mut x = cast(b, x, DType::F32)?;
    if width < blocks * BLOCK {
        x = b.graph.reshape(x, of([1, width]))?;
        let zero = b.graph.scalar(DType::F32, 0.0)?;
        let rest = b.graph.expand(zero, of([1, blocks * BLOCK - width]))?;
        x = b.graph.concat(&[x, rest], before.len() + 1)?;
    }
    let x = b.graph.reshape(x, of([blocks, BLOCK]))?;
    let most = b.graph.unary(UnaryFn::Abs, x)?;
    let axis = before.len() + 1;
    let most = b.graph.reduce_max(most, &[axis], true)?;
    let codes = b.graph.scalar(DType::F32, 127.0)?;
    let scale = b.graph.div(most, codes)?;
    let scale = b.graph.cast(scale, DType::F16)?;
    let divisor = b.graph.cast(scale, DType::F32)?;
    // The minimum divisor avoids 0 / 0: blocks of zeros, or of values too small for an F16 scale,
    // become zeros.
    let least = b.graph.scalar(DType::F32, f64::from(f32::MIN_POSITIVE))?;
    let divisor = b.graph.binary(BinaryFn::Max, divisor, least)?;
    let y = b.graph.div(x, divisor)?;
    // Round half away from zero.
    let half = b.graph.unary(UnaryFn::Sign, y)?;
    let half = b.times(half, 0.5)?;
    let y = b.graph.plus(y, half)?;
    let y = b.graph.unary(UnaryFn::Trunc, y)?;
    let y = b.graph.clamp(y, -127.0, 127.0)?;
    let y = b.graph.cast(y, DType::I8)?;
    Ok([
        b.graph.reshape(y, of([1, blocks * BLOCK]))?,
        b.graph.reshape(scale, of([1, blocks]))?,
    ])
}
