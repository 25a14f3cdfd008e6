//! Recognizes matmuls of float activations with dequantized int8 weights (weight-only QDQ).
//!
//! The int8 values remain unchanged, in blocks of a scheme with scale 1. The matmul becomes one
//! with quantized weights, a quarter of the bytes. The quantization scale has more precision than a
//! block scale, so it multiplies the smaller operand: the activations, or the result if each column
//! has a separate scale.

use tercet_tensor::quant::Scheme;
use tercet_tensor::{DType, Dim, Tensor, TensorType};

use super::super::rewrite::Rewriter;
use super::super::view::is_weight;
use super::MatchContext;
use super::qdq::{self, DequantizedValue};
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{Binary, Cast, Concat, Const, DequantMatMul, Expand, Op, Reshape, Transpose};
use crate::scalar::BinaryFn;

/// The scheme of the blocks: bytes preceded by scales and zero points of groups.
const SCHEME: Scheme = Scheme::Int8Asym;
/// Groups per block.
const GROUPS: usize = 4;

/// Int8 weights `[N, K]`, or `[K, N]` that must be transposed.
struct QdqWeights {
    codes: Value,
    transposed: bool,
    n: usize,
    blocks: usize,
    /// The zero point in unsigned values.
    zero: u8,
    scale: Value,
    of_columns: bool,
}

/// The replacement of a matmul of floats with int8 weights.
pub(super) fn recognize(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let (Op::MatMul(_), &[x, w]) = (&node.op, node.inputs.as_slice()) else {
        return Ok(None);
    };
    // If both sides are quantized, the matmul is an integer matmul.
    if seen.graph.ty(x).rank() < 2 || qdq::dequantized(seen, x).is_some() {
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

/// Weights that consist of whole blocks and that only the matmul reads.
fn weights(seen: &MatchContext<'_>, v: Value) -> Option<QdqWeights> {
    let graph = seen.graph;
    let DequantizedValue { codes, zero, scale } = qdq::dequantized(seen, v)?;
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
    Some(QdqWeights {
        codes,
        transposed: turned,
        n,
        blocks: k / SCHEME.block_len(),
        zero: u8::try_from(zero + if signed { 128 } else { 0 }).ok()?,
        scale,
        of_columns: !of_all,
    })
}

/// The weights packed as blocks, `[N, bytes]`.
fn packed(rw: &mut Rewriter<'_>, w: &QdqWeights, dtype: DType) -> Result<Value, CompileError> {
    let mut codes = rw.leaf(w.codes)?;
    if dtype == DType::I8 {
        codes = rw.add(Cast { to: DType::U8 }, &[codes])?;
        let half = constant(rw, &[128], &[])?;
        codes = rw.add(Binary { f: BinaryFn::Add }, &[codes, half])?;
    }
    if w.transposed {
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
