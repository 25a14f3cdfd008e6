//! How caches store keys and values.
//!
//! Floats are one state of `[.., heads, size]`. Q8_0 is two: codes I8 `[.., 1, 32 blocks]` of all heads of a row, with zeros to whole blocks, and
//! scales F16 `[.., 1, blocks]`, which `name.scale` names. A row is rounded when it is written; what attention sees is decoded in
//! front of it, in F32 (ADR 0051).

use tercet::scalar::{BinaryFn, UnaryFn};
use tercet::{DType, Dim, Shape, Type, Value};

use super::super::{Builder, ModelError};
use super::attention::cast;
use crate::config::decoder::DecoderSpec;

/// How caches store keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFormat {
    /// In a float dtype: F32, F16 or BF16.
    Float(DType),
    /// Codes of 8 bits with an F16 scale for each 32, as GGUF's blocks of this name: 34 bytes. A row is the keys or the values of
    /// all heads of a position, with zeros to whole blocks.
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

/// Elements of a block.
const BLOCK: usize = 32;

/// What the names of the scales of a cache end with.
const SCALE: &str = ".scale";

impl CacheFormat {
    /// The dtype that attention sees, for arithmetic in F32.
    pub(super) fn seen(self) -> DType {
        match self {
            CacheFormat::Float(dtype) => dtype,
            CacheFormat::Q8_0 => DType::F32,
        }
    }

    /// Bytes of a row of so many elements.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        match self {
            CacheFormat::Float(dtype) => elements * dtype.size_bytes(),
            CacheFormat::Q8_0 => elements.div_ceil(BLOCK) * (BLOCK + DType::F16.size_bytes()),
        }
    }

    /// The names of the states of a cache.
    pub(crate) fn states(self, name: &str) -> Vec<String> {
        match self {
            CacheFormat::Float(_) => vec![name.to_string()],
            CacheFormat::Q8_0 => vec![name.to_string(), format!("{name}{SCALE}")],
        }
    }

    /// Bytes of a position of a layer's keys and values.
    pub(crate) fn row_bytes(self, spec: &DecoderSpec) -> usize {
        let sizes = [spec.head_dim, spec.value_dim()];
        let bytes = sizes.map(|size| self.bytes(spec.kv_heads * size));
        bytes.iter().sum()
    }
}

/// Refuses caches that are no floats, and those of another type than 16-bit arithmetic.
pub(super) fn check_cache(dtype: DType, cache: Option<CacheFormat>) -> Result<(), ModelError> {
    let Some(cache) = cache else {
        return Ok(());
    };
    let is_float = |of| matches!(of, DType::F32 | DType::F16 | DType::BF16);
    let refused = match (cache, dtype) {
        (CacheFormat::Float(of), _) if of == dtype => return Ok(()),
        (CacheFormat::Float(of), DType::F32) if is_float(of) => return Ok(()),
        (CacheFormat::Float(of), DType::F32) => {
            format!("caches of {of}; F32, F16, BF16 and Q8_0 are possible")
        }
        (CacheFormat::Q8_0, DType::F32) => return Ok(()),
        (cache, _) => format!(
            "caches of {cache} beside arithmetic in {dtype}; only that in F32 takes caches of another type"
        ),
    };
    Err(ModelError::Unsupported(refused))
}

/// Rows as a cache stores them: `[.., heads, size]`, or codes and scales.
#[derive(Clone)]
pub(super) struct Stored {
    format: CacheFormat,
    /// Heads, and elements of each.
    heads: [Dim; 2],
    pub(super) parts: Vec<Value>,
}

impl Stored {
    /// Rows `[.., heads, size]` as they are stored.
    pub(super) fn of(
        b: &mut Builder<'_>,
        format: CacheFormat,
        x: Value,
    ) -> Result<Stored, ModelError> {
        let (_, heads) = ends(b, x);
        let parts = match format {
            CacheFormat::Float(dtype) => vec![cast(b, x, dtype)?],
            CacheFormat::Q8_0 => coded(b, x)?.into(),
        };
        Ok(Stored {
            format,
            heads,
            parts,
        })
    }

    /// The states of a cache `[first.., heads, size]` of such rows.
    pub(super) fn states(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        first: [usize; 2],
    ) -> Result<Stored, ModelError> {
        let names = self.format.states(name);
        let mut parts = Vec::with_capacity(names.len());
        for (name, part) in names.iter().zip(&self.parts) {
            let (_, rest) = ends(b, *part);
            let shape: Vec<Dim> = first.map(Dim::Known).into_iter().chain(rest).collect();
            let ty = Type::new(b.graph.ty(*part).dtype, shape);
            parts.push(b.graph.state(name, ty)?);
        }
        Ok(Stored {
            parts,
            ..self.clone()
        })
    }

    /// What `f` makes of each part, and of the same part of another.
    pub(super) fn with(
        &self,
        b: &mut Builder<'_>,
        other: &Stored,
        mut f: impl FnMut(&mut Builder<'_>, Value, Value) -> Result<Value, ModelError>,
    ) -> Result<Stored, ModelError> {
        let pairs = self.parts.iter().zip(&other.parts);
        let parts = pairs.map(|(own, other)| f(b, *own, *other));
        Ok(Stored {
            parts: parts.collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }

    /// What `f` makes of each part.
    pub(super) fn map(
        &self,
        b: &mut Builder<'_>,
        mut f: impl FnMut(&mut Builder<'_>, Value) -> Result<Value, ModelError>,
    ) -> Result<Stored, ModelError> {
        self.with(b, self, |b, part, _| f(b, part))
    }

    /// With these axes before the last two of each part.
    pub(super) fn reshaped(
        &self,
        b: &mut Builder<'_>,
        first: &[Dim],
    ) -> Result<Stored, ModelError> {
        self.map(b, |b, part| {
            let (_, rest) = ends(b, part);
            let shape: Vec<Dim> = first.iter().cloned().chain(rest).collect();
            Ok(b.graph.reshape(part, shape)?)
        })
    }

    /// These rows of each part, `[1, positions, ..]` from `start` I32 `[4]` on.
    pub(super) fn slice(
        &self,
        b: &mut Builder<'_>,
        start: Value,
        [slots, positions]: [Dim; 2],
    ) -> Result<Stored, ModelError> {
        self.map(b, |b, part| {
            let (_, [a, z]) = ends(b, part);
            let window = [slots.clone(), positions.clone(), a, z];
            Ok(b.graph.dynamic_slice(part, start, window)?)
        })
    }

    /// Each part becomes the next contents of this cache.
    pub(super) fn assign(&self, b: &mut Builder<'_>, cache: &Stored) -> Result<(), ModelError> {
        for (state, part) in cache.parts.iter().zip(&self.parts) {
            b.graph.assign(*state, *part)?;
        }
        Ok(())
    }

    /// The rows as attention sees them, `[.., heads, size]`.
    pub(super) fn decoded(&self, b: &mut Builder<'_>) -> Result<Value, ModelError> {
        let [first, rest @ ..] = self.parts.as_slice() else {
            unreachable!("invariant: rows have a part at least");
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

/// The sizes of axes of rows.
fn known<const N: usize>(dims: &[Dim; N]) -> [usize; N] {
    let of = |at: usize| dims[at].known();
    std::array::from_fn(|at| of(at).expect("invariant: heads and their sizes are known"))
}

/// The axes of rows, and the two that a row has.
fn ends(b: &Builder<'_>, x: Value) -> (Vec<Dim>, [Dim; 2]) {
    let shape = &b.graph.ty(x).shape;
    let (first, rest) = shape.split_at(shape.len() - 2);
    (first.to_vec(), [rest[0].clone(), rest[1].clone()])
}

/// Codes I8 `[.., 1, 32 blocks]` and scales F16 `[.., 1, blocks]` of rows `[.., heads, size]`.
fn coded(b: &mut Builder<'_>, x: Value) -> Result<[Value; 2], ModelError> {
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
    // A block of zeros, or of numbers below all scales, is one of zeros.
    let least = b.graph.scalar(DType::F32, f64::from(f32::MIN_POSITIVE))?;
    let divisor = b.graph.binary(BinaryFn::Max, divisor, least)?;
    let y = b.graph.div(x, divisor)?;
    // Halves away from zero.
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
