//! Simplification rules of elementwise operators.

use tercet_tensor::DType;

use super::{Simplification, Simplifier, SimplifyResult};
use crate::graph::Value;
use crate::ops::{Binary, Cast, Expand, Op, OpKind};
use crate::passes::fuse_elementwise::splat_value;
use crate::scalar::{BinaryFn, UnaryFn};

pub(super) const RULES: &[Simplification] = &[
    Simplification {
        name: "involution",
        doc: "neg(neg(x)) = x, not(not(x)) = x",
        on: OpKind::Unary,
        apply: involution,
    },
    Simplification {
        name: "idempotent",
        doc: "f(f(x)) = f(x) for relu, abs, sign, floor, ceil, round, trunc",
        on: OpKind::Unary,
        apply: idempotent,
    },
    Simplification {
        name: "abs_of_neg",
        doc: "abs(neg(x)) = abs(x)",
        on: OpKind::Unary,
        apply: abs_of_neg,
    },
    Simplification {
        name: "round_of_integers",
        doc: "floor(x) = ceil(x) = round(x) = trunc(x) = x for integers",
        on: OpKind::Unary,
        apply: round_of_integers,
    },
    Simplification {
        name: "neutral_operand",
        doc: "x * 1 = x / 1 = x ^ 1 = x - 0 = x << 0 = x >> 0 = x | 0 = x ^ 0 = x; x + 0 = x for \
              integers, x + -0.0 = x for floats",
        on: OpKind::Binary,
        apply: neutral_operand,
    },
    Simplification {
        name: "absorbing_operand",
        doc: "x * 0 = x & 0 = 0 for integers and booleans",
        on: OpKind::Binary,
        apply: absorbing_operand,
    },
    Simplification {
        name: "same_operands",
        doc: "max(x, x) = min(x, x) = x & x = x | x = x",
        on: OpKind::Binary,
        apply: same_operands,
    },
    Simplification {
        name: "add_of_neg",
        doc: "a + neg(b) = a - b",
        on: OpKind::Binary,
        apply: add_of_neg,
    },
    Simplification {
        name: "where_of_constant",
        doc: "where(true, a, b) = a, where(false, a, b) = b",
        on: OpKind::Where,
        apply: where_of_constant,
    },
    Simplification {
        name: "where_of_same",
        doc: "where(c, a, a) = a",
        on: OpKind::Where,
        apply: where_of_same,
    },
    Simplification {
        name: "cast_to_same",
        doc: "cast(x) = x for the dtype of x",
        on: OpKind::Cast,
        apply: cast_to_same,
    },
    Simplification {
        name: "cast_of_lossless_cast",
        doc: "cast(cast(x)) = cast(x) if the inner cast preserves every value",
        on: OpKind::Cast,
        apply: cast_of_lossless_cast,
    },
];

/// For a unary node on a unary node: the outer function, the inner function and its operand.
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

fn involution(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    Ok(match unary_pair(s, op, inputs) {
        Some((UnaryFn::Neg, UnaryFn::Neg, y) | (UnaryFn::Not, UnaryFn::Not, y)) => Some(y),
        Some(_) | None => None,
    })
}

fn idempotent(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    use UnaryFn::{Abs, Ceil, Floor, Relu, Round, Sign, Trunc};
    let Some((outer, inner, _)) = unary_pair(s, op, inputs) else {
        return Ok(None);
    };
    let once = matches!(outer, Relu | Abs | Sign | Floor | Ceil | Round | Trunc);
    Ok((once && outer == inner).then(|| inputs[0]))
}

fn abs_of_neg(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    match unary_pair(s, op, inputs) {
        Some((UnaryFn::Abs, UnaryFn::Neg, y)) => s.add(op.clone(), &[y]).map(Some),
        Some(_) | None => Ok(None),
    }
}

fn round_of_integers(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Unary(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let rounds = matches!(
        o.f,
        UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Round | UnaryFn::Trunc
    );
    Ok((rounds && s.ty(x).dtype.is_int()).then_some(x))
}

/// The common value of a constant's elements, looking through operators that only change its shape.
fn splat(s: &Simplifier<'_, '_>, mut v: Value) -> Option<f64> {
    loop {
        let node = s.node(v);
        v = match (&node.op, node.inputs.as_slice()) {
            (Op::Const(c), _) => return splat_value(&c.tensor),
            (Op::Expand(_) | Op::Reshape(_) | Op::Transpose(_), &[x]) => x,
            (_, _) => return None,
        };
    }
}

/// `x` broadcast to the result shape of `op`.
fn in_result_shape(
    s: &mut Simplifier<'_, '_>,
    op: &Op,
    inputs: &[Value],
    x: Value,
) -> SimplifyResult {
    let Some(ty) = s.infer(op, inputs) else {
        return Ok(None);
    };
    match *s.ty(x) == ty {
        true => Ok(Some(x)),
        false => s.add(Expand { shape: ty.shape }, &[x]).map(Some),
    }
}

fn neutral_operand(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    use BinaryFn::{Add, Div, Mul, Or, Pow, Shl, Shr, Sub, Xor};
    let (Op::Binary(o), &[a, b]) = (op, inputs) else {
        return Ok(None);
    };
    let float = s.ty(a).dtype.is_float();
    let is = |v: Value, want: f64| splat(s, v).is_some_and(|x| x.to_bits() == want.to_bits());
    // -0.0 + x equals x for every float; integers have no signed zero.
    let zero_sum = if float { -0.0 } else { 0.0 };
    let (left, right) = match o.f {
        Add => (Some(zero_sum), Some(zero_sum)),
        Mul => (Some(1.0), Some(1.0)),
        Or | Xor => (Some(0.0), Some(0.0)),
        Sub | Shl | Shr => (None, Some(0.0)),
        Div | Pow => (None, Some(1.0)),
        BinaryFn::Rem | BinaryFn::Max | BinaryFn::Min | BinaryFn::Atan2 | BinaryFn::And => {
            (None, None)
        }
    };
    let kept = if right.is_some_and(|n| is(b, n)) {
        a
    } else if left.is_some_and(|n| is(a, n)) {
        b
    } else {
        return Ok(None);
    };
    in_result_shape(s, op, inputs, kept)
}

fn absorbing_operand(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Binary(o), &[a, b]) = (op, inputs) else {
        return Ok(None);
    };
    let absorbs = matches!(o.f, BinaryFn::Mul | BinaryFn::And) && !s.ty(a).dtype.is_float();
    match [a, b].into_iter().find(|v| splat(s, *v) == Some(0.0)) {
        Some(zero) if absorbs => in_result_shape(s, op, inputs, zero),
        Some(_) | None => Ok(None),
    }
}

fn same_operands(_: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    use BinaryFn::{And, Max, Min, Or};
    let (Op::Binary(o), &[a, b]) = (op, inputs) else {
        return Ok(None);
    };
    Ok((a == b && matches!(o.f, Max | Min | And | Or)).then_some(a))
}

fn add_of_neg(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Binary(o), &[a, b]) = (op, inputs) else {
        return Ok(None);
    };
    if o.f != BinaryFn::Add {
        return Ok(None);
    }
    for (kept, negated) in [(a, b), (b, a)] {
        let node = s.node(negated);
        if let (Op::Unary(u), &[y]) = (&node.op, node.inputs.as_slice())
            && u.f == UnaryFn::Neg
        {
            let f = BinaryFn::Sub;
            return s.add(Binary { f }, &[kept, y]).map(Some);
        }
    }
    Ok(None)
}

fn where_of_constant(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let &[cond, a, b] = inputs else {
        return Ok(None);
    };
    match splat(s, cond) {
        Some(truth) => in_result_shape(s, op, inputs, if truth != 0.0 { a } else { b }),
        None => Ok(None),
    }
}

fn where_of_same(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    match inputs {
        &[_, a, b] if a == b => in_result_shape(s, op, inputs, a),
        _ => Ok(None),
    }
}

fn cast_to_same(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Cast(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    Ok((s.ty(x).dtype == o.to).then_some(x))
}

fn cast_of_lossless_cast(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Cast(outer), &[y]) = (op, inputs) else {
        return Ok(None);
    };
    let (Op::Cast(inner), &[x]) = (&s.node(y).op, s.node(y).inputs.as_slice()) else {
        return Ok(None);
    };
    let (from, via, to) = (s.ty(x).dtype, inner.to, outer.to);
    // Integers wrap but floats saturate, so narrowing through a float is a different function.
    let saturates = !from.is_float() && via.is_float() && !to.is_float() && !keeps_values(from, to);
    if !keeps_values(from, via) || (saturates && to != DType::Bool) {
        return Ok(None);
    }
    s.add(Cast { to }, &[x]).map(Some)
}

/// True if `to` represents every value of `from` exactly.
fn keeps_values(from: DType, to: DType) -> bool {
    /// The largest magnitude up to which all integers are exact in a float dtype.
    const fn exact_integers(d: DType) -> i64 {
        match d {
            DType::F64 => 1 << 53,
            DType::F32 => 1 << 24,
            DType::F16 => 1 << 11,
            DType::BF16 => 1 << 8,
            DType::I32
            | DType::U32
            | DType::I64
            | DType::I16
            | DType::I8
            | DType::U8
            | DType::Bool => 0,
        }
    }
    match (from.int_range(), to.int_range()) {
        _ if from == to => true,
        (Some((lo, hi)), Some((to_lo, to_hi))) => to != DType::Bool && lo >= to_lo && hi <= to_hi,
        (Some((lo, hi)), None) => {
            let exact = exact_integers(to);
            lo >= -exact && hi <= exact
        }
        (None, Some(_)) => false,
        (None, None) => match (from, to) {
            (DType::F16 | DType::BF16, DType::F32) => true,
            (_, DType::F64) => true,
            (_, _) => false,
        },
    }
}
