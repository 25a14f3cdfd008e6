//! Recognizes activations that are composed of several operators.

use super::super::rewrite::Rewriter;
use super::{MatchContext, orders, other};
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{Op, Unary};
use crate::scalar::{BinaryFn, UnaryFn};

/// Maximum deviation of a graph's constants from the constants of a formula.
const ROUNDED: f64 = 1e-3;

/// The activation that ends at the node, with its operand.
pub(super) fn recognize(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let Op::Binary(b) = &node.op else {
        return Ok(None);
    };
    let &[x, y] = node.inputs.as_slice() else {
        return Ok(None);
    };
    if !node.outputs[0].dtype.is_float() {
        return Ok(None);
    }
    let found = match b.f {
        BinaryFn::Mul => silu(seen, [x, y]).or_else(|| gelu(seen, [x, y])),
        BinaryFn::Min => relu6(seen, [x, y]),
        _ => None,
    };
    match found {
        Some((x, f)) if *seen.graph.ty(x) == node.outputs[0] => {
            let x = rw.value(x);
            rw.add(Unary { f }, &[x]).map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

fn silu(seen: &MatchContext<'_>, pair: [Value; 2]) -> Option<(Value, UnaryFn)> {
    orders(pair).into_iter().find_map(|[x, gate]| {
        (seen.unary(gate, UnaryFn::Sigmoid) == Some(x)).then_some((x, UnaryFn::Silu))
    })
}

/// Matches `min(max(x, 0), 6)`.
fn relu6(seen: &MatchContext<'_>, pair: [Value; 2]) -> Option<(Value, UnaryFn)> {
    orders(pair).into_iter().find_map(|[low, six]| {
        let six = seen.splat(six)? == 6.0;
        let (x, zero) = seen.with_number(low, BinaryFn::Max)?;
        (six && zero == 0.0).then_some((x, UnaryFn::Relu6))
    })
}

/// Matches a product of `x`, `1 + erf(x / sqrt(2))` and 1/2 in any order.
fn gelu(seen: &MatchContext<'_>, pair: [Value; 2]) -> Option<(Value, UnaryFn)> {
    orders(pair).into_iter().find_map(|[a, b]| {
        // The factor 1/2 multiplies either the product of the other two or one of them.
        let (rest, half) = match seen.splat(b) {
            Some(half) => (seen.binary(a, BinaryFn::Mul)?, half),
            None => {
                let (inner, half) = seen.with_number(a, BinaryFn::Mul)?;
                ([inner, b], half)
            }
        };
        let bell = |[x, gate]: [Value; 2]| {
            let (erf, one) = seen.with_number(gate, BinaryFn::Add)?;
            let (inner, factor) = seen.scaled(seen.unary(erf, UnaryFn::Erf)?);
            let right = (factor - std::f64::consts::FRAC_1_SQRT_2).abs() < ROUNDED;
            (one == 1.0 && right && inner == x).then_some(x)
        };
        let x = orders(rest).into_iter().find_map(bell)?;
        other(rest, x)?;
        (half == 0.5).then_some((x, UnaryFn::Gelu))
    })
}
