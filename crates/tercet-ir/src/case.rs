//! Test cases of operators: small graphs with data, and graphs that the builder must reject.
//!
//! A [`OpCase`] builds its graph for one dtype. Results of an executor and of the reference
//! interpreter must agree within the tolerance table. A case may also give expected values for the
//! reference itself.

use std::collections::BTreeMap;

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::quant::{ScaleFormat, Scheme};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

type CaseBuildFn = Box<dyn Fn(&mut CaseGraph) -> Result<(), OpError> + Send + Sync>;

/// One test case of an operator.
///
/// ```
/// use tercet_ir::DType;
/// use tercet_ir::case::{InputFill, OpCase};
/// let case = OpCase::new("odd_rows_7x33", |c| {
///     let x = c.input("x", [7usize, 33], InputFill::Normal)?;
///     let y = c.graph.softmax(x, 1)?;
///     c.output(y)
/// });
/// let case = case.only(DType::FLOATS);
/// assert!(case.runs_with(DType::F16) && !case.runs_with(DType::I32));
/// assert_eq!(case.build(DType::F16)?.tensors["x"].shape(), [7, 33]);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
pub struct OpCase {
    /// The case's name, unique within the operator: `odd_rows_7x33`.
    pub name: String,
    /// The dtypes that the case runs with; `None` for all dtypes of the operator.
    pub only: Option<&'static [DType]>,
    build: CaseBuildFn,
}

impl OpCase {
    /// A case for every dtype of the operator.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&mut CaseGraph) -> Result<(), OpError> + Send + Sync + 'static,
    ) -> OpCase {
        OpCase {
            name: name.into(),
            only: None,
            build: Box::new(build),
        }
    }

    /// Restricts the case to these dtypes.
    pub fn only(mut self, dtypes: &'static [DType]) -> OpCase {
        self.only = Some(dtypes);
        self
    }

    /// True if the case runs with `dtype`.
    pub fn runs_with(&self, dtype: DType) -> bool {
        self.only.is_none_or(|list| list.contains(&dtype))
    }

    /// The graph and data of the case for `dtype`.
    ///
    /// # Errors
    /// [`OpError`] when the case itself is wrong.
    pub fn build(&self, dtype: DType) -> Result<CaseGraph, OpError> {
        let mut c = CaseGraph {
            dtype,
            graph: Graph::new(),
            tensors: BTreeMap::new(),
            sizes: Bindings::new(),
            bounds: Bindings::new(),
            expected: Vec::new(),
            expected_fault: None,
            runs: 1,
        };
        (self.build)(&mut c)?;
        Ok(c)
    }
}

/// A graph that the builder must reject, with a part of the error message.
///
/// ```
/// use tercet_ir::case::RejectCase;
/// use tercet_ir::{DType, Graph, Type, one_line};
/// let case = RejectCase {
///     name: "axis",
///     message: "axis 2 is out of range for rank 1",
///     build: |g| {
///         let x = g.input("x", Type::new(DType::F32, [3]))?;
///         g.softmax(x, 2)
///     },
/// };
/// let error = (case.build)(&mut Graph::new()).unwrap_err();
/// assert!(one_line(&error).contains(case.message));
/// ```
pub struct RejectCase {
    /// The case's name, unique within the operator.
    pub name: &'static str,
    /// A part of the error's text, including its causes.
    pub message: &'static str,
    /// Builds the graph.
    pub build: fn(&mut Graph) -> Result<Value, OpError>,
}

/// How the data of a case's input is generated. The same input name and shape always give the same
/// data.
///
/// ```
/// use tercet_ir::DType;
/// use tercet_ir::case::{InputFill, OpCase};
/// let case = OpCase::new("values", |c| {
///     let x = c.input("x", [3usize], InputFill::Values(vec![1.0, -2.0, 3.0]))?;
///     let y = c.graph.relu(x)?;
///     c.output(y)
/// });
/// assert_eq!(case.build(DType::F32)?.tensors["x"].as_slice::<f32>()?, [1.0, -2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum InputFill {
    /// Approximately standard normal numbers; integers in -8..=8 (0..=8 for unsigned); booleans
    /// with equal probability.
    Normal,
    /// Uniform random numbers of a range.
    Uniform(f64, f64),
    /// Explicit values, row-major.
    Values(Vec<f64>),
    /// Valid indices of an axis of this size, negative ones included.
    Index(usize),
    /// NaN, infinities, signed zeros, subnormals, extremes and ordinary numbers, cyclically. For
    /// integers: the extremes, -1, 0 and 1.
    Special,
    /// Random bytes; finite numbers if `dtype` is a float.
    Bytes,
    /// Whole blocks of quantized weights: any valid quantized values, with scales that keep the
    /// weights between about -1 and 1. Ordinary numbers if the scheme is stored as floats.
    Blocks(Scheme),
}

/// A case under construction, and the result: a graph with its data and expectations.
///
/// ```
/// use tercet_ir::DType;
/// use tercet_ir::case::{CaseGraph, InputFill, OpCase};
/// let case = OpCase::new("symbolic", |c| {
///     let rows = c.sym("rows", 5, 8);
///     let x = c.input("x", [rows], InputFill::Normal)?;
///     let y = c.graph.exp(x)?;
///     c.output(y)
/// });
/// let built: CaseGraph = case.build(DType::F32)?;
/// assert_eq!((built.tensors["x"].shape(), built.runs), (&[5][..], 1));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
pub struct CaseGraph {
    /// The dtype that the case is built for.
    pub dtype: DType,
    /// The graph under test.
    pub graph: Graph,
    /// Data of inputs, parameters and (initial) states by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Sizes of the symbols in this case.
    pub sizes: Bindings,
    /// Upper bounds of the symbols.
    pub bounds: Bindings,
    /// Expected values of outputs, by output index. The reference interpreter must produce these
    /// values.
    pub expected: Vec<(usize, Vec<f64>)>,
    /// A part of the message of the run error that every executor must return.
    pub expected_fault: Option<&'static str>,
    /// The number of runs of the graph; outputs are compared after each.
    pub runs: usize,
}

impl CaseGraph {
    /// Adds a symbol with its size in this case and its upper bound.
    pub fn sym(&mut self, name: &str, size: usize, bound: usize) -> Dim {
        let dim = Dim::sym(name);
        dim.for_each_symbol(|s| {
            self.sizes.set(s, size);
            self.bounds.set(s, bound);
        });
        dim
    }

    /// Adds an input of the case's dtype.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn input(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        fill: InputFill,
    ) -> Result<Value, OpError> {
        self.input_of(name, Type::new(self.dtype, shape), fill)
    }

    /// Adds an input of any type.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn input_of(&mut self, name: &str, ty: Type, fill: InputFill) -> Result<Value, OpError> {
        self.tensors
            .insert(name.to_string(), self.data(name, &ty, &fill));
        self.graph.input(name, ty)
    }

    /// Adds a parameter of any type, for operands that models store as weights.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn param_of(&mut self, name: &str, ty: Type, fill: InputFill) -> Result<Value, OpError> {
        self.tensors
            .insert(name.to_string(), self.data(name, &ty, &fill));
        self.graph.param(name, ty)
    }

    /// Adds a state of any type with its initial data.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn state_of(&mut self, name: &str, ty: Type, fill: InputFill) -> Result<Value, OpError> {
        self.tensors
            .insert(name.to_string(), self.data(name, &ty, &fill));
        self.graph.state(name, ty)
    }

    /// Adds a value as output `out0`, `out1`, ...
    ///
    /// # Errors
    /// [`OpError`] never in practice: the generated names are unique.
    pub fn output(&mut self, value: Value) -> Result<(), OpError> {
        let name = format!("out{}", self.graph.outputs().len());
        self.graph.output(&name, value)
    }

    /// Adds a value as an output, with the values that the reference interpreter must produce.
    ///
    /// # Errors
    /// As [`CaseGraph::output`].
    pub fn output_expect(&mut self, value: Value, expected: &[f64]) -> Result<(), OpError> {
        self.expected
            .push((self.graph.outputs().len(), expected.to_vec()));
        self.output(value)
    }

    /// Makes the case expect that runs fail with an error whose text, including its causes,
    /// contains `message`.
    pub fn expect_fault(&mut self, message: &'static str) {
        self.expected_fault = Some(message);
    }

    fn data(&self, name: &str, ty: &Type, fill: &InputFill) -> Tensor {
        let ty = ty
            .eval(&self.sizes)
            .expect("invariant: a case sizes its symbols first");
        fill.tensor(name, ty)
    }
}

impl InputFill {
    /// The data of an input.
    ///
    /// # Panics
    /// When explicit values do not match the shape: the case is wrong.
    pub fn tensor(&self, name: &str, ty: TensorType) -> Tensor {
        let mut bits = SplitMix64::new(name);
        let n = ty.numel();
        let unsigned = matches!(ty.dtype, DType::U32 | DType::U8);
        let values: Vec<f64> = match self {
            InputFill::Values(v) => v.clone(),
            InputFill::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * bits.unit()).collect(),
            InputFill::Normal if ty.dtype == DType::Bool => {
                (0..n).map(|_| f64::from(bits.unit() < 0.5)).collect()
            }
            InputFill::Normal if unsigned => (0..n).map(|_| (bits.unit() * 9.0).floor()).collect(),
            InputFill::Normal if ty.dtype.is_int() => {
                (0..n).map(|_| (bits.unit() * 17.0).floor() - 8.0).collect()
            }
            // The sum of 12 uniform numbers minus 6 has mean 0 and variance 1.
            InputFill::Normal => (0..n)
                .map(|_| (0..12).map(|_| bits.unit()).sum::<f64>() - 6.0)
                .collect(),
            InputFill::Index(len) => {
                let len = *len as f64;
                let low = if unsigned { 0.0 } else { -len };
                (0..n)
                    .map(|_| (low + (len - low) * bits.unit()).floor())
                    .collect()
            }
            InputFill::Special => {
                let list = special_values(ty.dtype);
                (0..n).map(|i| list[i % list.len()]).collect()
            }
            InputFill::Bytes => (0..n).map(|_| (bits.unit() * 256.0).floor()).collect(),
            InputFill::Blocks(scheme) if scheme.storage().is_float() => {
                (0..n).map(|_| 2.0 * bits.unit() - 1.0).collect()
            }
            InputFill::Blocks(scheme) => {
                let bytes = block_bytes(*scheme, n, 1.0, &mut bits);
                bytes.into_iter().map(f64::from).collect()
            }
        };
        Tensor::from_f64s(ty, &values).expect("invariant: a case's values fit its shape")
    }
}

/// `n` bytes of random blocks of a quantization scheme. The weights have mean 0 and magnitudes up
/// to about `width`. The same name gives the same bytes.
pub fn random_blocks(name: &str, scheme: Scheme, n: usize, width: f64) -> Vec<u8> {
    let mut bits = SplitMix64::new(name);
    let mut bytes = block_bytes(scheme, n, width, &mut bits);
    // Quantized values of many formats are positive, so the sign of their scale decides. The sign
    // is the top bit of an f16.
    let (format, places) = scheme.scales();
    if format == ScaleFormat::F16 {
        for block in bytes.chunks_exact_mut(scheme.block_bytes()) {
            let sign = if bits.unit() < 0.5 { 0x80 } else { 0 };
            places.iter().for_each(|at| block[at + 1] ^= sign);
        }
    }
    bytes
}

/// Random blocks with finite quantized values. The scales of the blocks are chosen from `width` and
/// the scheme's largest quantized value.
fn block_bytes(scheme: Scheme, n: usize, width: f64, bits: &mut SplitMix64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..n).map(|_| (bits.unit() * 256.0) as u8).collect();
    let (format, places) = scheme.scales();
    for block in bytes.chunks_exact_mut(scheme.block_bytes()) {
        // NaN and infinity encodings: all exponent bits set in e5m2, all bits set in e4m3.
        let is_special = |b: u8| {
            scheme == Scheme::Fp8E5m2 && b & 0x7c == 0x7c
                || scheme == Scheme::Fp8E4m3 && b & 0x7f == 0x7f
        };
        for b in block.iter_mut().filter(|b| is_special(**b)) {
            *b &= 0xbf;
        }
        for &at in places {
            let scale = (0.5 + 0.5 * bits.unit()) * width / scheme.greatest_code();
            format.encode(block, at, scale);
        }
    }
    bytes
}

fn special_values(dtype: DType) -> Vec<f64> {
    let (max, min_normal, min_subnormal) = match dtype {
        DType::F32 => (f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE), 1e-45),
        DType::F16 => (65504.0, 6.103515625e-5, 5.960464477539063e-8),
        DType::BF16 => (3.3895313892515355e38, f64::from(f32::MIN_POSITIVE), 9.2e-41),
        DType::F64 => (f64::MAX, f64::MIN_POSITIVE, 5e-324),
        DType::Bool => return vec![0.0, 1.0],
        DType::I32 | DType::U32 | DType::I64 | DType::I8 | DType::U8 => {
            let (lo, hi) = dtype.int_range().expect("invariant: integers have a range");
            return vec![lo as f64, hi as f64, -1.0, 0.0, 1.0, 2.0, 7.0];
        }
    };
    let inf = f64::INFINITY;
    let finite = [
        0.0,
        min_subnormal,
        min_normal,
        0.5,
        1.0,
        1.5,
        2.5,
        88.0,
        max,
    ];
    let signed = finite.iter().flat_map(|&x| [x, -x]);
    [f64::NAN, inf, -inf].into_iter().chain(signed).collect()
}

/// SplitMix64 (Steele, Lea, Flood 2014), seeded by a name: the same data on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn new(name: &str) -> SplitMix64 {
        // FNV-1a hash of the name.
        SplitMix64(name.bytes().fold(0xcbf29ce484222325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100000001b3)
        }))
    }

    /// A uniform number in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_are_finite_and_of_size_one() {
        for &scheme in Scheme::ALL {
            let k = scheme.block_len() * (4096 / scheme.block_len());
            let stored = scheme.stored_len(k).expect("whole blocks");
            let ty = TensorType::new(scheme.storage(), &[stored]);
            let blocks = InputFill::Blocks(scheme).tensor("w", ty);
            let mut values = vec![0.0; k];
            scheme
                .dequantize(blocks.bytes(), &mut values)
                .expect("whole blocks");
            let greatest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(values.iter().all(|v| v.is_finite()), "{scheme:?}");
            assert!((0.25..=2.5).contains(&greatest), "{scheme:?} {greatest}");
        }
    }
}
