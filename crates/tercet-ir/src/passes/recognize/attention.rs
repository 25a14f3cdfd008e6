//! Recognizes attention that is composed of two matmuls with a softmax between them.

use tercet_tensor::{DType, Dim, Shape};

use super::super::rewrite::Rewriter;
use super::MatchContext;
use crate::attr::FloatAttr;
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{Attention, AttentionLayout, MaskKind, Op, Reshape, Transpose};
use crate::scalar::BinaryFn;

/// The operands of an attention, of rank 4 in head-major order; keys in the form that the matmul
/// reads.
struct AttentionMatch {
    q: Value,
    keys: Value,
    v: Value,
    mask: Option<Value>,
    scale: f64,
    heads: usize,
}

/// The attention that ends at the node, which is the matmul with the values.
pub(super) fn recognize(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let Some(parts) = parts(seen, node) else {
        return Ok(None);
    };
    let q = rw.value(parts.q);
    let k = rows(seen, rw, parts.keys)?;
    let mut operands = vec![q, k, rw.value(parts.v)];
    if let Some(mask) = parts.mask {
        let mut mask = rw.value(mask);
        let shape = &rw.new_graph().ty(mask).shape;
        if shape.rank() < 4 {
            let ones = vec![Dim::Known(1); 4 - shape.rank()];
            let shape: Shape = ones.into_iter().chain(shape.iter().cloned()).collect();
            mask = rw.add(Reshape { shape }, &[mask])?;
        }
        operands.push(mask);
    }
    let op = Attention {
        q_heads: parts.heads,
        kv_heads: parts.heads,
        layout: AttentionLayout::Bhsd,
        mask: match parts.mask {
            Some(_) => MaskKind::Bias,
            None => MaskKind::None,
        },
        scale: Some(FloatAttr(parts.scale)),
        softcap: None,
        kv_len: false,
    };
    rw.add(op, &operands).map(Some)
}

fn parts(seen: &MatchContext<'_>, node: &Node) -> Option<AttentionMatch> {
    let g = seen.graph;
    let (Op::MatMul(_), &[weights, v]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let soft = seen.node(weights);
    let (Op::Softmax(s), &[scores]) = (&soft.op, soft.inputs.as_slice()) else {
        return None;
    };
    let ty = g.ty(v);
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    if ty.rank() != 4 || s.axis != 3 || !dtypes.contains(&ty.dtype) || !seen.read_once(weights) {
        return None;
    }
    let (product, mask, mut scale) = scored(seen, scores)?;
    let &[q, keys] = seen.node(product).inputs.as_slice() else {
        return None;
    };
    let (q, by) = seen.scaled(q);
    let (keys, also_by) = seen.scaled(keys);
    scale *= by * also_by;
    let [q_shape, k_shape] = [q, keys].map(|x| &g.ty(x).shape);
    let heads = ty.shape[1].known()?;
    let same = |shape: &Shape| shape.rank() == 4 && shape[..2] == ty.shape[..2];
    if !same(q_shape) || !same(k_shape) || heads == 0 || !scale.is_finite() {
        return None;
    }
    // Empty heads remain matmuls.
    if k_shape[2].known() == Some(0) || ty.shape[3].known() == Some(0) {
        return None;
    }
    let full = &g.ty(scores).shape;
    if let Some(mask) = mask {
        let own = &g.ty(mask).shape;
        let pairs = own.iter().rev().zip(full.iter().rev());
        let fits = own.rank() <= 4 && pairs.into_iter().all(|(m, n)| m.is_one() || m == n);
        if !fits || g.ty(mask).dtype != ty.dtype {
            return None;
        }
    }
    Some(AttentionMatch {
        q,
        keys,
        v,
        mask,
        scale,
        heads,
    })
}

/// The matmul of queries and keys behind the scores, the added mask, and the scale factor.
fn scored(seen: &MatchContext<'_>, scores: Value) -> Option<(Value, Option<Value>, f64)> {
    let product = |v: Value| {
        let (x, scale) = seen.scaled(v);
        let once = seen.read_once(v) && seen.read_once(x);
        let found = matches!(seen.node(x).op, Op::MatMul(_)) && once;
        found.then_some((x, scale))
    };
    if let Some((x, scale)) = product(scores) {
        return Some((x, None, scale));
    }
    if !seen.read_once(scores) {
        return None;
    }
    let [a, b] = seen.binary(scores, BinaryFn::Add)?;
    let ((x, scale), mask) = match (product(a), product(b)) {
        (Some(found), _) => (found, b),
        (None, Some(found)) => (found, a),
        (None, None) => return None,
    };
    (seen.graph.ty(x) == seen.graph.ty(scores)).then_some((x, Some(mask), scale))
}

/// Keys as rows, computed from keys as columns. If the columns are a transpose of rows, the
/// transpose is removed.
fn rows(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    keys: Value,
) -> Result<Value, CompileError> {
    let node = seen.node(keys);
    if let (Op::Transpose(t), &[x]) = (&node.op, node.inputs.as_slice()) {
        let mut perm = t.perm.clone();
        perm.swap(2, 3);
        let x = rw.value(x);
        return match perm.iter().enumerate().all(|(i, p)| i == *p) {
            true => Ok(x),
            false => rw.add(Transpose { perm }, &[x]),
        };
    }
    if let Some(x) = flattened(seen, keys) {
        return Ok(rw.value(x));
    }
    let keys = rw.value(keys);
    let perm = vec![0, 1, 3, 2];
    rw.add(Transpose { perm }, &[keys])
}

/// The rows of keys that were transposed with batch and heads merged into one axis.
fn flattened(seen: &MatchContext<'_>, keys: Value) -> Option<Value> {
    let reshaped = |v: Value| {
        let node = seen.node(v);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Reshape(_), &[x]) => Some(x),
            (_, _) => None,
        }
    };
    let turned = reshaped(keys)?;
    let node = seen.node(turned);
    let (Op::Transpose(t), &[flat]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let x = reshaped(flat)?;
    let mut shape = seen.graph.ty(x).shape.to_vec();
    let swapped = shape.len() == 4 && t.perm == [0, 2, 1];
    if !swapped {
        return None;
    }
    // The value with batch and heads merged must have the same last two axes.
    let flat = &seen.graph.ty(flat).shape;
    let kept = flat[1] == shape[2] && flat[2] == shape[3];
    shape.swap(2, 3);
    (kept && seen.graph.ty(keys).shape[..] == shape[..]).then_some(x)
}
