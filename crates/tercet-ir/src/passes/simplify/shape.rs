//! Simplification rules of data movement operators.

use super::{Simplification, Simplifier, SimplifyResult};
use crate::graph::Value;
use crate::ops::{Op, OpKind, Reshape, Slice, Transpose};
use crate::passes::view::{first_index, is_full_slice, known_range};

pub(super) const RULES: &[Simplification] = &[
    Simplification {
        name: "reshape_to_same",
        doc: "reshape(x) = x for the shape of x",
        on: OpKind::Reshape,
        apply: to_same_type,
    },
    Simplification {
        name: "reshape_of_reshape",
        doc: "reshape(reshape(x)) = reshape(x)",
        on: OpKind::Reshape,
        apply: same_op_below,
    },
    Simplification {
        name: "transpose_of_transpose",
        doc: "transpose(transpose(x)) = transpose(x)",
        on: OpKind::Transpose,
        apply: transpose_of_transpose,
    },
    Simplification {
        name: "transpose_in_order",
        doc: "transpose(x) = x for the permutation 0, 1, ..",
        on: OpKind::Transpose,
        apply: transpose_in_order,
    },
    Simplification {
        name: "transpose_of_unit_axes",
        doc: "transpose(x) = reshape(x) if only axes of size 1 are exchanged",
        on: OpKind::Transpose,
        apply: transpose_of_unit_axes,
    },
    Simplification {
        name: "expand_to_same",
        doc: "expand(x) = x for the shape of x",
        on: OpKind::Expand,
        apply: to_same_type,
    },
    Simplification {
        name: "expand_of_expand",
        doc: "expand(expand(x)) = expand(x)",
        on: OpKind::Expand,
        apply: same_op_below,
    },
    Simplification {
        name: "slice_of_all",
        doc: "slice(x) = x if it takes every axis whole",
        on: OpKind::Slice,
        apply: slice_of_all,
    },
    Simplification {
        name: "gather_of_wider",
        doc: "gather(cast(x), idx) = cast(gather(x, idx)) for a cast to a wider dtype",
        on: OpKind::Gather,
        apply: gather_of_wider,
    },
    Simplification {
        name: "gather_elements_of_wider",
        doc: "gather_elements(cast(x), idx) = cast(gather_elements(x, idx)) for a cast to a wider dtype",
        on: OpKind::GatherElements,
        apply: gather_of_wider,
    },
    Simplification {
        name: "slice_of_slice",
        doc: "slice(slice(x)) = slice(x) if the sizes are known or one of them takes all elements",
        on: OpKind::Slice,
        apply: slice_of_slice,
    },
    Simplification {
        name: "concat_of_one",
        doc: "concat(x) = x",
        on: OpKind::Concat,
        apply: concat_of_one,
    },
    Simplification {
        name: "pad_of_nothing",
        doc: "pad(x) = x without padding",
        on: OpKind::Pad,
        apply: pad_of_nothing,
    },
    Simplification {
        name: "stop_gradient_of_any",
        doc: "stop_gradient(x) = x: passes run after differentiation",
        on: OpKind::StopGradient,
        apply: operand,
    },
];

fn operand(_: &mut Simplifier<'_, '_>, _: &Op, inputs: &[Value]) -> SimplifyResult {
    Ok(inputs.first().copied())
}

fn to_same_type(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let &[x] = inputs else {
        return Ok(None);
    };
    Ok((s.infer(op, inputs).as_ref() == Some(s.ty(x))).then_some(x))
}

/// Two consecutive operators of one kind: the outer one determines the result, so the inner one can
/// be skipped.
fn same_op_below(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let &[y] = inputs else {
        return Ok(None);
    };
    match (
        s.node(y).op.kind() == op.kind(),
        s.node(y).inputs.as_slice(),
    ) {
        (true, &[x]) => s.add(op.clone(), &[x]).map(Some),
        (_, _) => Ok(None),
    }
}

fn transpose_of_transpose(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Transpose(outer), &[y]) = (op, inputs) else {
        return Ok(None);
    };
    let (Op::Transpose(inner), &[x]) = (&s.node(y).op, s.node(y).inputs.as_slice()) else {
        return Ok(None);
    };
    let perm = outer.perm.iter().map(|&p| inner.perm[p]).collect();
    s.add(Transpose { perm }, &[x]).map(Some)
}

fn transpose_in_order(_: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Transpose(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    Ok(o.perm.iter().copied().eq(0..o.perm.len()).then_some(x))
}

fn transpose_of_unit_axes(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Transpose(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let shape = &s.ty(x).shape;
    let moved: Vec<usize> = (o.perm.iter().copied())
        .filter(|&a| !shape[a].is_one())
        .collect();
    if !moved.is_sorted() {
        return Ok(None);
    }
    let shape = o.perm.iter().map(|&a| shape[a].clone()).collect();
    s.add(Reshape { shape }, &[x]).map(Some)
}

fn slice_of_all(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Slice(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let all = (s.ty(x).shape.iter().enumerate()).all(|(axis, n)| is_full_slice(o, axis, n));
    Ok(all.then_some(x))
}

/// Gathers before widening, so that the wide data needs no memory.
fn gather_of_wider(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let [data, idx] = *inputs else {
        return Ok(None);
    };
    let (Op::Cast(cast), &[x]) = (&s.node(data).op, s.node(data).inputs.as_slice()) else {
        return Ok(None);
    };
    if cast.to.size_bytes() <= s.ty(x).dtype.size_bytes() {
        return Ok(None);
    }
    let cast = cast.clone();
    let narrow = s.add(op.clone(), &[x, idx])?;
    s.add(cast, &[narrow]).map(Some)
}

fn slice_of_slice(s: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Slice(outer), &[y]) = (op, inputs) else {
        return Ok(None);
    };
    let (Op::Slice(inner), &[x]) = (&s.node(y).op, s.node(y).inputs.as_slice()) else {
        return Ok(None);
    };
    let (from, via) = (&s.ty(x).shape, &s.ty(y).shape);
    let Some(to) = s.infer(op, inputs) else {
        return Ok(None);
    };
    let mut joined = Slice {
        starts: Vec::new(),
        ends: Vec::new(),
        steps: Vec::new(),
    };
    for axis in 0..from.rank() {
        let one = match (
            is_full_slice(inner, axis, &from[axis]),
            is_full_slice(outer, axis, &via[axis]),
        ) {
            (true, _) => (outer.starts[axis], outer.ends[axis], outer.steps[axis]),
            (_, true) => (inner.starts[axis], inner.ends[axis], inner.steps[axis]),
            (false, false) => {
                let sizes = (
                    from[axis].known(),
                    via[axis].known(),
                    to.shape[axis].known(),
                );
                let (Some(from), Some(via), Some(to)) = sizes else {
                    return Ok(None);
                };
                let start = first_index(inner, axis, from)
                    + inner.steps[axis] * first_index(outer, axis, via);
                let step = inner.steps[axis].saturating_mul(outer.steps[axis]);
                known_range(start, step, to)
            }
        };
        joined.starts.push(one.0);
        joined.ends.push(one.1);
        joined.steps.push(one.2);
    }
    s.add(joined, &[x]).map(Some)
}

fn concat_of_one(_: &mut Simplifier<'_, '_>, _: &Op, inputs: &[Value]) -> SimplifyResult {
    match inputs {
        &[x] => Ok(Some(x)),
        _ => Ok(None),
    }
}

fn pad_of_nothing(_: &mut Simplifier<'_, '_>, op: &Op, inputs: &[Value]) -> SimplifyResult {
    let (Op::Pad(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let nothing = o.before.iter().chain(&o.after).all(|&n| n == 0);
    Ok(nothing.then_some(x))
}
