//! Autotuning tasks: problems with their operands and some expected results.

use tercet_ir::fill::InputFill;
use tercet_ir::ops::{AttentionLayout, AttentionOptions, Window};
use tercet_ir::{CompileError, DType, Graph, OpError, Tensor, TensorType, Type};

use super::TuneFailure;
use super::scan::{StateScan, scan};
use crate::tuning::{GemmProblem, TuningKey, WeightLayout};

/// Number of rows with compared results, and number of compared elements per row.
const ROWS: usize = 5;
const PLACES: usize = 37;

/// A problem with operands in states and parameters, and the output `y`.
#[derive(Debug)]
pub struct TuneTask {
    /// Key of the problem in autotuning tables.
    pub key: TuningKey,
    /// Number of multiplications and additions.
    pub flops: f64,
    pub(super) dtype: DType,
    pub(super) graph: Graph,
    pub(super) states: Vec<(&'static str, Tensor)>,
    pub(super) params: Vec<(&'static str, Tensor)>,
    pub(super) expected: Vec<ExpectedElement>,
    /// The problem for which tilings are measured; `None` for tasks that measure variants.
    pub(super) tilings: Option<GemmProblem>,
}

/// An expected result: its row along the first axis, index within the row, value, and the magnitude
/// of the summed terms.
#[derive(Debug)]
pub(super) struct ExpectedElement {
    pub(super) row: usize,
    pub(super) at: usize,
    pub(super) value: f64,
    pub(super) scale: f64,
}

impl ExpectedElement {
    pub(super) fn sum(row: usize, at: usize, terms: impl Iterator<Item = f64>) -> ExpectedElement {
        let (mut value, mut squares) = (0.0, 0.0);
        for term in terms {
            value += term;
            squares += term * term;
        }
        ExpectedElement {
            row,
            at,
            value,
            scale: squares.sqrt(),
        }
    }
}

fn failed(e: &TuneFailure) -> CompileError {
    CompileError::Device {
        reason: tercet_ir::one_line(e),
    }
}

/// Graph and operands under construction.
pub(super) struct TaskBuilder {
    pub(super) graph: Graph,
    pub(super) states: Vec<(&'static str, Tensor)>,
    params: Vec<(&'static str, Tensor)>,
}

impl TaskBuilder {
    pub(super) fn new() -> TaskBuilder {
        TaskBuilder {
            graph: Graph::new(),
            states: Vec::new(),
            params: Vec::new(),
        }
    }

    fn state(
        &mut self,
        name: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<tercet_ir::Value, TuneFailure> {
        Ok(self.state_of(name, pattern(name, dtype, shape)?)?)
    }

    /// Adds a state with this tensor as initial value to the graph.
    pub(super) fn state_of(
        &mut self,
        name: &'static str,
        tensor: Tensor,
    ) -> Result<tercet_ir::Value, OpError> {
        let ty = Type::new(tensor.dtype(), tensor.shape());
        self.states.push((name, tensor));
        self.graph.state(name, ty)
    }

    fn param(&mut self, name: &'static str, tensor: Tensor) -> Result<tercet_ir::Value, OpError> {
        let ty = Type::new(tensor.dtype(), tensor.shape());
        self.params.push((name, tensor));
        self.graph.param(name, ty)
    }
}

impl TuneTask {
    /// A task for the tilings of a matmul of two states on cooperative matrices.
    ///
    /// # Errors
    /// [`CompileError`] if the operands cannot be created.
    pub fn tilings(problem: &GemmProblem) -> Result<TuneTask, CompileError> {
        let GemmProblem {
            dtype,
            b_transposed,
            m,
            n,
            k,
        } = *problem;
        let weights = match b_transposed {
            true => WeightLayout::KMajor(dtype),
            false => WeightLayout::NMajor(dtype),
        };
        let task = product(dtype, weights, [m, n, k], false).map_err(|e| failed(&e))?;
        Ok(TuneTask {
            key: problem.key(),
            tilings: Some(*problem),
            ..task
        })
    }

    /// A task for the variants of a matmul with parameters as weights: those of skinny GEMM up to
    /// eight rows, those of large-M GEMM beyond.
    ///
    /// # Errors
    /// [`CompileError`] if the operands cannot be created; quantized weights must consist of whole
    /// blocks.
    pub fn product(
        dtype: DType,
        weights: WeightLayout,
        sizes: [usize; 3],
    ) -> Result<TuneTask, CompileError> {
        product(dtype, weights, sizes, true).map_err(|e| failed(&e))
    }

    /// A task for the variants of causal attention. Sizes: KV heads of all batch entries, query
    /// heads per KV head, queries, keys, head size.
    ///
    /// # Errors
    /// [`CompileError`] if the operands cannot be created.
    pub fn attention(dtype: DType, sizes: [usize; 5]) -> Result<TuneTask, CompileError> {
        attention(dtype, sizes).map_err(|e| failed(&e))
    }

    /// A task for the variants of a convolution with one group and "same" padding. Sizes: batch,
    /// input channels, image side, output channels, window side.
    ///
    /// # Errors
    /// [`CompileError`] if the operands cannot be created.
    pub fn conv(dtype: DType, sizes: [usize; 5]) -> Result<TuneTask, CompileError> {
        conv(dtype, sizes).map_err(|e| failed(&e))
    }

    /// A task for the variants of a scan over states. Sizes: batch, steps, heads, channels per
    /// head, states per channel.
    ///
    /// # Errors
    /// [`CompileError`] if the operands cannot be created, or if a selective scan has several
    /// channels per head.
    pub fn scan(op: StateScan, dtype: DType, sizes: [usize; 5]) -> Result<TuneTask, CompileError> {
        scan(op, dtype, sizes).map_err(|e| failed(&e))
    }

    /// Falsifies one expected result, so that tests can check that wrong candidates fail.
    #[doc(hidden)]
    pub fn corrupt_expected(&mut self) {
        self.expected[0].value += 10.0 + 10.0 * self.expected[0].scale;
    }
}

fn product(
    dtype: DType,
    weights: WeightLayout,
    [m, n, k]: [usize; 3],
    is_constant: bool,
) -> Result<TuneTask, TuneFailure> {
    let mut draft = TaskBuilder::new();
    let x = draft.state("a", dtype, &[m, k])?;
    let other = |e: tercet_ir::quant::QuantError| TuneFailure::Other(e.to_string());
    let (w, columns) = match weights {
        WeightLayout::Packed(scheme) => {
            let bytes = scheme.row_bytes(k).ok_or_else(|| {
                TuneFailure::Other(format!(
                    "{k} weights per row are not a multiple of the block length {}",
                    scheme.name()
                ))
            })?;
            let blocks =
                InputFill::Blocks(scheme).tensor("b", TensorType::new(DType::U8, &[n, bytes]));
            let mut columns = Vec::new();
            for j in spread_indices(n, PLACES) {
                let mut values = vec![0.0; k];
                let row = &blocks.bytes()[j * bytes..][..bytes];
                scheme.dequantize(row, &mut values).map_err(other)?;
                columns.push((j, values.into_iter().map(f64::from).collect()));
            }
            (draft.param("b", blocks)?, columns)
        }
        WeightLayout::KMajor(of) | WeightLayout::NMajor(of) => {
            let along = matches!(weights, WeightLayout::KMajor(_));
            let shape = if along { [n, k] } else { [k, n] };
            let b = pattern("b", of, &shape)?;
            let place = |j: usize, l: usize| if along { j * k + l } else { l * n + j };
            let column = |j: usize| (0..k).map(|l| element(&b, place(j, l))).collect();
            let columns: Vec<(usize, Vec<f64>)> =
                spread_indices(n, PLACES).map(|j| (j, column(j))).collect();
            let mut w = match is_constant {
                true => draft.param("b", b)?,
                false => draft.state("b", of, &shape)?,
            };
            if along {
                w = draft.graph.transpose(w, &[1, 0])?;
            }
            (w, columns)
        }
    };
    let y = match weights {
        WeightLayout::Packed(scheme) => draft.graph.dequant_matmul(x, w, scheme)?,
        WeightLayout::KMajor(_) | WeightLayout::NMajor(_) => draft.graph.matmul(x, w)?,
    };
    draft.graph.output("y", y)?;
    let a = &draft.states[0].1;
    let mut wanted = Vec::new();
    for i in spread_indices(m, ROWS) {
        let row: Vec<f64> = (0..k).map(|l| element(a, i * k + l)).collect();
        for (j, column) in &columns {
            let terms = row.iter().zip(column).map(|(a, b)| a * b);
            wanted.push(ExpectedElement::sum(i, *j, terms));
        }
    }
    let key = match m <= 8 {
        true => TuningKey::rows(dtype, weights, [m, n, k]),
        false => TuningKey::large_m(dtype, weights, [m, n, k]),
    };
    Ok(task(
        draft,
        key,
        dtype,
        2.0 * (m * n) as f64 * k as f64,
        wanted,
    ))
}

pub(super) fn task(
    draft: TaskBuilder,
    key: TuningKey,
    dtype: DType,
    flops: f64,
    wanted: Vec<ExpectedElement>,
) -> TuneTask {
    TuneTask {
        key,
        flops,
        dtype,
        graph: draft.graph,
        states: draft.states,
        params: draft.params,
        expected: wanted,
        tilings: None,
    }
}

fn attention(
    dtype: DType,
    [heads, group, queries, keys, dim]: [usize; 5],
) -> Result<TuneTask, TuneFailure> {
    let mut draft = TaskBuilder::new();
    let q = draft.state("q", dtype, &[1, heads * group, queries, dim])?;
    let k = draft.state("k", dtype, &[1, heads, keys, dim])?;
    let v = draft.state("v", dtype, &[1, heads, keys, dim])?;
    let options = AttentionOptions::new(heads * group, heads, AttentionLayout::Bhsd).causal();
    let y = draft.graph.attention(q, k, v, options)?;
    // The results are reshaped to one row per query head.
    let y = draft.graph.reshape(y, [heads * group, queries * dim])?;
    draft.graph.output("y", y)?;
    let [(_, q), (_, k), (_, v)] = &draft.states[..] else {
        unreachable!("invariant: there are three operands")
    };
    let mut wanted = Vec::new();
    for head in spread_indices(heads * group, ROWS) {
        let kv = head / group * keys;
        for query in spread_indices(queries, 3) {
            let seen = (keys + query + 1).saturating_sub(queries);
            let row = (head * queries + query) * dim;
            let score = |key: usize| -> f64 {
                let terms =
                    (0..dim).map(|d| element(q, row + d) * element(k, (kv + key) * dim + d));
                terms.sum::<f64>() / (dim as f64).sqrt()
            };
            let scores: Vec<f64> = (0..seen).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let all: f64 = weights.iter().sum();
            for d in spread_indices(dim, 5) {
                let terms = weights.iter().enumerate();
                let terms = terms.map(|(key, w)| w / all * element(v, (kv + key) * dim + d));
                wanted.push(ExpectedElement::sum(head, query * dim + d, terms));
            }
        }
    }
    let sizes = [heads, group, queries, keys, dim];
    let flops = 4.0 * (heads * group * queries) as f64 * (keys * dim) as f64;
    Ok(task(
        draft,
        TuningKey::attention(dtype, sizes),
        dtype,
        flops,
        wanted,
    ))
}

fn conv(
    dtype: DType,
    [batch, own, side, channels, size]: [usize; 5],
) -> Result<TuneTask, TuneFailure> {
    let mut draft = TaskBuilder::new();
    let x = draft.state("x", dtype, &[batch, own, side, side])?;
    let w = pattern("w", dtype, &[channels, own, size, size])?;
    let w = draft.param("w", w)?;
    let pad = size / 2;
    let windows = Window::new(2).with_pads(&[pad; 2], &[pad; 2]);
    let y = draft.graph.conv(x, w, None, windows, 1)?;
    draft.graph.output("y", y)?;
    let (x, w) = (&draft.states[0].1, &draft.params[0].1);
    // Number of window positions.
    let out = side + 2 * pad + 1 - size;
    let mut wanted = Vec::new();
    for entry in spread_indices(batch, 2) {
        for channel in spread_indices(channels, PLACES) {
            for at in spread_indices(out * out, 5) {
                let (top, left) = (at / out, at % out);
                let taps = (0..own * size * size).filter_map(|tap| {
                    let (c, dy, dx) = (tap / (size * size), tap / size % size, tap % size);
                    let row = (top + dy).checked_sub(pad).filter(|row| *row < side)?;
                    let column = (left + dx)
                        .checked_sub(pad)
                        .filter(|column| *column < side)?;
                    let x = element(x, ((entry * own + c) * side + row) * side + column);
                    Some(x * element(w, channel * own * size * size + tap))
                });
                wanted.push(ExpectedElement::sum(entry, channel * out * out + at, taps));
            }
        }
    }
    let sums = own * size * size;
    let windows = batch * out * out;
    let key = TuningKey::conv(dtype, [1, channels, sums, windows, size * size]);
    let flops = 2.0 * (channels * sums) as f64 * windows as f64;
    Ok(task(draft, key, dtype, flops, wanted))
}

/// Up to `count` distinct indices below `n`, including both ends.
pub fn spread_indices(n: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(n);
    (0..count).map(move |i| match count {
        1 => 0,
        _ => i * (n - 1) / (count - 1),
    })
}

/// Deterministic numbers in [-1, 1) that depend on the name. After `VALUE_PERIOD` elements, the
/// sequence of numbers repeats.
pub(super) fn pattern(name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor, TuneFailure> {
    const VALUE_PERIOD: usize = 999_983;
    let ty = TensorType::new(dtype, shape);
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15u64, |seed, byte| {
        seed.rotate_left(7) ^ u64::from(byte).wrapping_mul(0xD1B5_4A32_D192_ED03)
    });
    let part: Vec<f64> = (0..ty.numel().min(VALUE_PERIOD))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f64 / f64::from(1u32 << 23) - 1.0
        })
        .collect();
    let part = Tensor::from_f64s(TensorType::new(dtype, &[part.len()]), &part)?;
    let mut bytes = Vec::with_capacity(ty.size_bytes());
    while bytes.len() < ty.size_bytes() {
        let rest = ty.size_bytes() - bytes.len();
        bytes.extend_from_slice(&part.bytes()[..rest.min(part.bytes().len())]);
    }
    Ok(Tensor::from_bytes(ty, &bytes)?)
}

/// Reads an element of a float tensor as f64.
pub fn element(t: &Tensor, at: usize) -> f64 {
    let bytes = t.bytes();
    match t.dtype() {
        DType::F32 => {
            let bits = [0, 1, 2, 3].map(|i| bytes[4 * at + i]);
            f64::from(f32::from_le_bytes(bits))
        }
        DType::BF16 => {
            let bits = u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
            f64::from(f32::from_bits(u32::from(bits) << 16))
        }
        _ => half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f64(),
    }
}
