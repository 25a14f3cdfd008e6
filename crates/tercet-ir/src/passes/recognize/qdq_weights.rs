//! Products of numbers with weights that are dequantised codes of 8 bits.
//!
//! The codes stay as they are: in blocks of a scheme whose scales are 1, so that the product is one of packed weights, of a quarter
//! of the bytes. The scale of the codes, which is wider than that of a block, multiplies what has fewer elements: the numbers, or
//! the result where each column has its own.

use super::super::rewrite::Rewriter;
use super::super::view::is_weight;
use super::Seen;
use super::codes::{self, Dequantized};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{Binary, Cast, Concat, Const, DequantMatMul, Expand, Op, Reshape, Transpose};
use crate::quant::Scheme;
use crate::scalar::BinaryFn;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// Blocks of bytes with scales and zero points of groups before them.
const SCHEME: Scheme = Scheme::Int8Asym;
/// Groups of a block.
const GROUPS: usize = 4;

/// Codes of weights `[N, K]`, or `[K, N]` that are to be turned.
struct Weights {
    codes: Value,
    turned: bool,
    n: usize,
    blocks: usize,
    /// In unsigned codes.
    zero: u8,
    scale: Value,
    of_columns: bool,
}

/// What stands for a product of numbers with codes.
pub(super) fn of(
    seen: &Seen<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let (Op::MatMul(_), &[x, w]) = (&node.op, node.inputs.as_slice()) else {
        return Ok(None);
    };
    // Codes on both sides are a product of integers.
    if seen.graph.ty(x).rank() < 2 || codes::dequantized(seen, x).is_some() {
        return Ok(None);
    }
    let Some(w) = weights(seen, w) else {
        return Ok(None);
    };
    let packed = packed(rw, &w, seen.graph.ty(w.codes).dtype)?;
    let scale = rw.leaf(w.scale)?;
    let flat = match w.of_columns {
        true => vec![Dim::Known(w.n)],
        false => Vec::new(),
    };
    let scale = rw.add(Reshape { shape: flat.into() }, &[scale])?;
    let mul = Binary { f: BinaryFn::Mul };
    let product = DequantMatMul { scheme: SCHEME };
    let x = rw.value(x);
    if w.of_columns {
        let y = rw.add(product, &[x, packed])?;
        return rw.add(mul, &[y, scale]).map(Some);
    }
    let x = rw.add(mul, &[x, scale])?;
    rw.add(product, &[x, packed]).map(Some)
}

/// Weights of whole blocks that the product alone reads.
fn weights(seen: &Seen<'_>, v: Value) -> Option<Weights> {
    let graph = seen.graph;
    let Dequantized { codes, zero, scale } = codes::dequantized(seen, v)?;
    let [Dim::Known(k), Dim::Known(n)] = graph.ty(v).shape[..] else {
        return None;
    };
    let of_all = graph.ty(scale).shape.iter().all(|n| n.is_one());
    let of_columns = graph.ty(scale).shape[..] == [Dim::Known(1), Dim::Known(n)];
    let known = is_weight(graph, codes) && is_weight(graph, scale) && seen.read_once(v);
    let whole = k > 0 && k.is_multiple_of(SCHEME.block_len());
    if !known || !whole || !(of_all || of_columns) {
        return None;
    }
    let signed = graph.ty(codes).dtype == DType::I8;
    let from = seen.node(codes);
    let (codes, turned) = match (&from.op, from.inputs.as_slice()) {
        (Op::Transpose(t), &[rows]) if t.perm == [1, 0] => (rows, false),
        (_, _) => (codes, true),
    };
    Some(Weights {
        codes,
        turned,
        n,
        blocks: k / SCHEME.block_len(),
        zero: u8::try_from(zero + if signed { 128 } else { 0 }).ok()?,
        scale,
        of_columns: !of_all,
    })
}

/// The blocks, `[N, bytes]`.
fn packed(rw: &mut Rewriter<'_>, w: &Weights, dtype: DType) -> Result<Value, CompileError> {
    let mut codes = rw.leaf(w.codes)?;
    if dtype == DType::I8 {
        codes = rw.add(Cast { to: DType::U8 }, &[codes])?;
        let half = constant(rw, &[128], &[])?;
        codes = rw.add(Binary { f: BinaryFn::Add }, &[codes, half])?;
    }
    if w.turned {
        codes = rw.add(Transpose { perm: vec![1, 0] }, &[codes])?;
    }
    let mut before = Vec::with_capacity(3 * GROUPS);
    for _ in 0..GROUPS {
        before.extend(half::f16::ONE.to_le_bytes());
    }
    before.extend([w.zero; GROUPS]);
    let head = constant(rw, &before, &[1, 1, before.len()])?;
    let each = |last: usize| [w.n, w.blocks, last].map(Dim::Known).to_vec();
    let shape = each(before.len()).into();
    let head = rw.add(Expand { shape }, &[head])?;
    let shape = each(SCHEME.block_len()).into();
    let codes = rw.add(Reshape { shape }, &[codes])?;
    let blocks = rw.add(Concat { axis: 2 }, &[head, codes])?;
    let row = w.blocks * SCHEME.block_bytes();
    let shape = [w.n, row].map(Dim::Known).to_vec().into();
    rw.add(Reshape { shape }, &[blocks])
}

fn constant(rw: &mut Rewriter<'_>, bytes: &[u8], shape: &[usize]) -> Result<Value, CompileError> {
    let tensor = Tensor::from_bytes(TensorType::new(DType::U8, shape), bytes)
        .expect("invariant: as many bytes as elements");
    rw.add(Const { tensor }, &[])
}
