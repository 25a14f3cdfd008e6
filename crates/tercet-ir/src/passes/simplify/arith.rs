//! Rules of elementwise operators.

use super::{Simplification, Simplified, Simplifier};
use crate::graph::Value;
use crate::ops::{Op, OpKind};
use crate::scalar::UnaryFn;

pub(super) const RULES: &[Simplification] = &[
    Simplification {
        name: "involution",
        doc: "neg(neg(x)) = x, not(not(x)) = x",
        on: OpKind::Unary,
        apply: involution,
    },
    Simplification {
        name: "idempotent",
        doc: "f(f(x)) = f(x) for relu, abs, sign, floor, ceil, round",
        on: OpKind::Unary,
        apply: idempotent,
    },
    Simplification {
        name: "abs_of_neg",
        doc: "abs(neg(x)) = abs(x)",
        on: OpKind::Unary,
        apply: abs_of_neg,
    },
];

/// The function and the operand's function with its operand, of a unary node on a unary node.
fn unary_pair(
    s: &Simplifier<'_, '_>,
    op: &Op,
    inputs: &[Value],
) -> Option<(UnaryFn, UnaryFn, Value)> {
    let (Op::Unary(outer), &[x]) = (op, inputs) else {
        return None;
    };
    match (&s.node(x).op, s.node(x).inputs.as_slice()) {
        (Op::Unary(inner), &[y]) => Some((outer.f, inner.f, y)),
        (_, _) => None,
    }
}

fn involution(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> Simplified {
    Ok(match unary_pair(s, op, inputs) {
        Some((UnaryFn::Neg, UnaryFn::Neg, y)) | Some((UnaryFn::Not, UnaryFn::Not, y)) => Some(y),
        Some(_) | None => None,
    })
}

fn idempotent(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> Simplified {
    use UnaryFn::{Abs, Ceil, Floor, Relu, Round, Sign};
    let Some((outer, inner, _)) = unary_pair(s, op, inputs) else {
        return Ok(None);
    };
    let once = matches!(outer, Relu | Abs | Sign | Floor | Ceil | Round);
    Ok((once && outer == inner).then(|| inputs[0]))
}

fn abs_of_neg(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> Simplified {
    match unary_pair(s, op, inputs) {
        Some((UnaryFn::Abs, UnaryFn::Neg, y)) => s.add(op.clone(), &[y]).map(Some),
        Some(_) | None => Ok(None),
    }
}
