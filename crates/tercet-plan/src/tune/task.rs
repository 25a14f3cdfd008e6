//! What can be measured: problems with their operands and some of their results.

use tercet_ir::case::Fill;
use tercet_ir::ops::{AttentionOptions, Layout, Window};
use tercet_ir::{CompileError, DType, Graph, OpError, Tensor, TensorType, Type};

use super::Failure;
use super::scan::{StateScan, scan};
use crate::tuning::{GemmProblem, Key, Weights};

/// Results that are compared, as rows and places in each of so many.
const ROWS: usize = 5;
const PLACES: usize = 37;

/// A problem with operands in states and parameters, and the result `y`.
#[derive(Debug)]
pub struct Task {
    /// The problem as tables have it.
    pub key: Key,
    /// Multiplications and additions.
    pub flops: f64,
    pub(super) dtype: DType,
    pub(super) graph: Graph,
    pub(super) states: Vec<(&'static str, Tensor)>,
    pub(super) params: Vec<(&'static str, Tensor)>,
    pub(super) wanted: Vec<Element>,
    /// Tilings are measured, not variants.
    pub(super) tilings: Option<GemmProblem>,
}

/// A result: its row along the first axis, its place in that, its value, and how large what it sums is.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) row: usize,
    pub(super) at: usize,
    pub(super) value: f64,
    pub(super) scale: f64,
}

impl Element {
    pub(super) fn sum(row: usize, at: usize, terms: impl Iterator<Item = f64>) -> Element {
        let (mut value, mut squares) = (0.0, 0.0);
        for term in terms {
            value += term;
            squares += term * term;
        }
        Element {
            row,
            at,
            value,
            scale: squares.sqrt(),
        }
    }
}

fn failed(e: &Failure) -> CompileError {
    CompileError::Device {
        reason: tercet_ir::one_line(e),
    }
}

/// Graph and operands under construction.
pub(super) struct Draft {
    pub(super) graph: Graph,
    pub(super) states: Vec<(&'static str, Tensor)>,
    params: Vec<(&'static str, Tensor)>,
}

impl Draft {
    pub(super) fn new() -> Draft {
        Draft {
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
    ) -> Result<tercet_ir::Value, Failure> {
        Ok(self.state_of(name, pattern(name, dtype, shape)?)?)
    }

    /// A state that begins as this tensor.
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

impl Task {
    /// The tilings of a product of two states on cooperative matrices.
    ///
    /// # Errors
    /// [`CompileError`] when the operands cannot be made.
    pub fn tilings(problem: &GemmProblem) -> Result<Task, CompileError> {
        let GemmProblem {
            dtype,
            b_transposed,
            m,
            n,
            k,
        } = *problem;
        let weights = match b_transposed {
            true => Weights::Along(dtype),
            false => Weights::Across(dtype),
        };
        let task = product(dtype, weights, [m, n, k], false).map_err(|e| failed(&e))?;
        Ok(Task {
            key: problem.key(),
            tilings: Some(*problem),
            ..task
        })
    }

    /// The variants of a product of rows of a type with weights that are parameters: of few rows up to eight, of many
    /// beyond.
    ///
    /// # Errors
    /// [`CompileError`] when the operands cannot be made: weights are whole blocks.
    pub fn product(
        dtype: DType,
        weights: Weights,
        sizes: [usize; 3],
    ) -> Result<Task, CompileError> {
        product(dtype, weights, sizes, true).map_err(|e| failed(&e))
    }

    /// The variants of causal attention: key heads of all batch entries, query heads of each, queries, keys, elements of
    /// a head.
    ///
    /// # Errors
    /// [`CompileError`] when the operands cannot be made.
    pub fn attention(dtype: DType, sizes: [usize; 5]) -> Result<Task, CompileError> {
        attention(dtype, sizes).map_err(|e| failed(&e))
    }

    /// The variants of a convolution of one group whose windows keep sizes: batch, channels, sides of the image, channels
    /// of the result, sides of a window.
    ///
    /// # Errors
    /// [`CompileError`] when the operands cannot be made.
    pub fn conv(dtype: DType, sizes: [usize; 5]) -> Result<Task, CompileError> {
        conv(dtype, sizes).map_err(|e| failed(&e))
    }

    /// The variants of a scan over states: batch, steps, heads, channels of a head, states of a channel.
    ///
    /// # Errors
    /// [`CompileError`] when the operands cannot be made, or a selective scan has heads of several channels.
    pub fn scan(op: StateScan, dtype: DType, sizes: [usize; 5]) -> Result<Task, CompileError> {
        scan(op, dtype, sizes).map_err(|e| failed(&e))
    }

    /// Expects something else of one result, so that tests see wrong candidates fail.
    #[doc(hidden)]
    pub fn spoil(&mut self) {
        self.wanted[0].value += 10.0 + 10.0 * self.wanted[0].scale;
    }
}

fn product(
    dtype: DType,
    weights: Weights,
    [m, n, k]: [usize; 3],
    is_constant: bool,
) -> Result<Task, Failure> {
    let mut draft = Draft::new();
    let x = draft.state("a", dtype, &[m, k])?;
    let other = |e: tercet_ir::quant::QuantError| Failure::Other(e.to_string());
    let (w, columns) = match weights {
        Weights::Packed(scheme) => {
            let bytes = scheme.row_bytes(k).ok_or_else(|| {
                Failure::Other(format!(
                    "{k} weights are not whole blocks of {}",
                    scheme.name()
                ))
            })?;
            let blocks = Fill::Blocks(scheme).tensor("b", TensorType::new(DType::U8, &[n, bytes]));
            let mut columns = Vec::new();
            for j in spread(n, PLACES) {
                let mut values = vec![0.0; k];
                let row = &blocks.bytes()[j * bytes..][..bytes];
                scheme.dequantize(row, &mut values).map_err(other)?;
                columns.push((j, values.into_iter().map(f64::from).collect()));
            }
            (draft.param("b", blocks)?, columns)
        }
        Weights::Along(of) | Weights::Across(of) => {
            let along = matches!(weights, Weights::Along(_));
            let shape = if along { [n, k] } else { [k, n] };
            let b = pattern("b", of, &shape)?;
            let place = |j: usize, l: usize| if along { j * k + l } else { l * n + j };
            let column = |j: usize| (0..k).map(|l| element(&b, place(j, l))).collect();
            let columns: Vec<(usize, Vec<f64>)> =
                spread(n, PLACES).map(|j| (j, column(j))).collect();
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
        Weights::Packed(scheme) => draft.graph.dequant_matmul(x, w, scheme)?,
        Weights::Along(_) | Weights::Across(_) => draft.graph.matmul(x, w)?,
    };
    draft.graph.output("y", y)?;
    let a = &draft.states[0].1;
    let mut wanted = Vec::new();
    for i in spread(m, ROWS) {
        let row: Vec<f64> = (0..k).map(|l| element(a, i * k + l)).collect();
        for (j, column) in &columns {
            let terms = row.iter().zip(column).map(|(a, b)| a * b);
            wanted.push(Element::sum(i, *j, terms));
        }
    }
    let key = match m <= 8 {
        true => Key::rows(dtype, weights, [m, n, k]),
        false => Key::many(dtype, weights, [m, n, k]),
    };
    Ok(task(
        draft,
        key,
        dtype,
        2.0 * (m * n) as f64 * k as f64,
        wanted,
    ))
}

pub(super) fn task(draft: Draft, key: Key, dtype: DType, flops: f64, wanted: Vec<Element>) -> Task {
    Task {
        key,
        flops,
        dtype,
        graph: draft.graph,
        states: draft.states,
        params: draft.params,
        wanted,
        tilings: None,
    }
}

fn attention(
    dtype: DType,
    [heads, group, queries, keys, dim]: [usize; 5],
) -> Result<Task, Failure> {
    let mut draft = Draft::new();
    let q = draft.state("q", dtype, &[1, heads * group, queries, dim])?;
    let k = draft.state("k", dtype, &[1, heads, keys, dim])?;
    let v = draft.state("v", dtype, &[1, heads, keys, dim])?;
    let options = AttentionOptions::new(heads * group, heads, Layout::Bhsd).causal();
    let y = draft.graph.attention(q, k, v, options)?;
    // Rows of results are those of heads.
    let y = draft.graph.reshape(y, [heads * group, queries * dim])?;
    draft.graph.output("y", y)?;
    let [(_, q), (_, k), (_, v)] = &draft.states[..] else {
        unreachable!("invariant: there are three operands")
    };
    let mut wanted = Vec::new();
    for head in spread(heads * group, ROWS) {
        let kv = head / group * keys;
        for query in spread(queries, 3) {
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
            for d in spread(dim, 5) {
                let terms = weights.iter().enumerate();
                let terms = terms.map(|(key, w)| w / all * element(v, (kv + key) * dim + d));
                wanted.push(Element::sum(head, query * dim + d, terms));
            }
        }
    }
    let sizes = [heads, group, queries, keys, dim];
    let flops = 4.0 * (heads * group * queries) as f64 * (keys * dim) as f64;
    Ok(task(
        draft,
        Key::attention(dtype, sizes),
        dtype,
        flops,
        wanted,
    ))
}

fn conv(dtype: DType, [batch, own, side, channels, size]: [usize; 5]) -> Result<Task, Failure> {
    let mut draft = Draft::new();
    let x = draft.state("x", dtype, &[batch, own, side, side])?;
    let w = pattern("w", dtype, &[channels, own, size, size])?;
    let w = draft.param("w", w)?;
    let pad = size / 2;
    let windows = Window::new(2).with_pads(&[pad; 2], &[pad; 2]);
    let y = draft.graph.conv(x, w, None, windows, 1)?;
    draft.graph.output("y", y)?;
    let (x, w) = (&draft.states[0].1, &draft.params[0].1);
    // As many as windows start at.
    let out = side + 2 * pad + 1 - size;
    let mut wanted = Vec::new();
    for entry in spread(batch, 2) {
        for channel in spread(channels, PLACES) {
            for at in spread(out * out, 5) {
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
                wanted.push(Element::sum(entry, channel * out * out + at, taps));
            }
        }
    }
    let sums = own * size * size;
    let windows = batch * out * out;
    let key = Key::conv(dtype, [1, channels, sums, windows, size * size]);
    let flops = 2.0 * (channels * sums) as f64 * windows as f64;
    Ok(task(draft, key, dtype, flops, wanted))
}

/// Up to `count` different places below `n`, both ends among them.
pub(super) fn spread(n: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(n);
    (0..count).map(move |i| match count {
        1 => 0,
        _ => i * (n - 1) / (count - 1),
    })
}

/// Numbers in [-1, 1), others for another name; beyond a million elements a prime number of them repeats.
pub(super) fn pattern(name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor, Failure> {
    const MOST: usize = 999_983;
    let ty = TensorType::new(dtype, shape);
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15u64, |seed, byte| {
        seed.rotate_left(7) ^ u64::from(byte).wrapping_mul(0xD1B5_4A32_D192_ED03)
    });
    let part: Vec<f64> = (0..ty.numel().min(MOST))
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

/// An element of a tensor of floats.
pub(super) fn element(t: &Tensor, at: usize) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_to_both_ends() {
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
        assert_eq!(spread(2, 5).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(spread(1, 5).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn elements_are_those_of_the_tensor() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let values = [0.0, -1.5, 6e-8, 65504.0, f64::INFINITY];
            let t = Tensor::from_f64s(TensorType::new(dtype, &[5]), &values).unwrap();
            let found: Vec<f64> = (0..5).map(|at| element(&t, at)).collect();
            assert_eq!(found, t.to_f64s());
        }
    }
}
