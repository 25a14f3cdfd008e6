//! Recognizes RMS norms that are composed of several operators.

use tercet_tensor::Shape;

use super::super::rewrite::Rewriter;
use super::super::view::is_weight;
use super::{MatchContext, orders};
use crate::attr::FloatAttr;
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{Op, ReduceFn, Reshape, RmsNorm};
use crate::scalar::{BinaryFn, UnaryFn};

/// The norm that ends at the node, which is the product with its weights.
pub(super) fn recognize(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let (Op::Binary(b), &[a, c]) = (&node.op, node.inputs.as_slice()) else {
        return Ok(None);
    };
    let ty = &node.outputs[0];
    if b.f != BinaryFn::Mul || !ty.dtype.is_float() {
        return Ok(None);
    }
    let found = orders([a, c]).into_iter().find_map(|[gamma, y]| {
        let (x, eps) = normalized(seen, y)?;
        let shape = &seen.graph.ty(gamma).shape;
        let (last, ones) = shape.split_last()?;
        let fits = ones.iter().all(|d| d.is_one()) && ty.shape.last() == Some(last);
        let same = seen.graph.ty(x) == ty && seen.graph.ty(gamma).dtype == ty.dtype;
        (fits && same && is_weight(seen.graph, gamma)).then_some((x, gamma, eps))
    });
    let Some((x, gamma, eps)) = found else {
        return Ok(None);
    };
    let last: Shape = seen
        .graph
        .ty(gamma)
        .shape
        .last()
        .cloned()
        .into_iter()
        .collect();
    let x = rw.value(x);
    let mut gamma = rw.value(gamma);
    if rw.new_graph().ty(gamma).shape != last {
        gamma = rw.add(Reshape { shape: last }, &[gamma])?;
    }
    rw.add(
        RmsNorm {
            eps: FloatAttr(eps),
        },
        &[x, gamma],
    )
    .map(Some)
}

/// `x` and `eps` of `x / sqrt(mean(x^2) + eps)` over the last axis, possibly computed in a wider
/// dtype.
fn normalized(seen: &MatchContext<'_>, y: Value) -> Option<(Value, f64)> {
    let y = uncast(seen, y);
    let (x, mean) = match seen.binary(y, BinaryFn::Div) {
        Some([x, root]) => (x, seen.unary(root, UnaryFn::Sqrt)?),
        None => {
            let pair = seen.binary(y, BinaryFn::Mul)?;
            orders(pair).into_iter().find_map(|[x, r]| {
                let inner = seen.unary(r, UnaryFn::Rsqrt).or_else(|| {
                    let root = seen.unary(r, UnaryFn::Recip)?;
                    seen.unary(root, UnaryFn::Sqrt)
                });
                Some((x, inner?))
            })?
        }
    };
    let (mean, eps) = seen.with_number(mean, BinaryFn::Add)?;
    let node = seen.node(mean);
    let (Op::Reduce(r), &[square]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let rank = seen.graph.ty(square).rank();
    let last = r.axes.len() == 1 && r.axes[0] + 1 == rank;
    if !(r.f == ReduceFn::Mean && r.keep_dim && last && eps.is_finite() && eps >= 0.0) {
        return None;
    }
    let wide = match seen.binary(square, BinaryFn::Mul) {
        Some([a, b]) if a == b => a,
        Some(_) => return None,
        None => match seen.binary(square, BinaryFn::Pow)? {
            [a, two] if seen.splat(two) == Some(2.0) => a,
            [_, _] => return None,
        },
    };
    let own = uncast(seen, x);
    (wide == x || uncast(seen, wide) == own).then_some((own, eps))
}

/// The operand of a conversion, or the value itself.
fn uncast(seen: &MatchContext<'_>, v: Value) -> Value {
    let node = seen.node(v);
    match (&node.op, node.inputs.as_slice()) {
        (Op::Cast(_), &[x]) => x,
        (_, _) => v,
    }
}
