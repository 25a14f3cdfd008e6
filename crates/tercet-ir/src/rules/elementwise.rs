//! Decompositions of elementwise operators: explicit broadcasts, and fused maps split into single
//! operators.

use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, broadcast_shapes, row_major_strides};

use super::util::{MAX_INDICES, ValueResult};
use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{
    AxisMap, Binary, Cast, Clamp, Compare, Fma, Gather, IndexMap, Map, MapArg, Op, OpKind, Unary,
    Where,
};
use crate::passes::known_range;
use crate::scalar::ScalarOp;

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "map_as_its_steps",
        on: OpKind::Map,
        apply: map,
    },
    LegalizeRule {
        name: "binary_of_equal_shapes",
        on: OpKind::Binary,
        apply: broadcast,
    },
    LegalizeRule {
        name: "compare_of_equal_shapes",
        on: OpKind::Compare,
        apply: broadcast,
    },
    LegalizeRule {
        name: "where_of_equal_shapes",
        on: OpKind::Where,
        apply: broadcast,
    },
    LegalizeRule {
        name: "fma_of_equal_shapes",
        on: OpKind::Fma,
        apply: broadcast,
    },
];

/// Expands operands to the result's shape, for targets whose kernels do not broadcast.
fn broadcast(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let mut shape = Shape::default();
    for v in inputs {
        match broadcast_shapes(&shape, &b.ty(*v).shape) {
            Some(s) => shape = s,
            None => return Ok(None),
        }
    }
    if inputs.iter().all(|v| b.ty(*v).shape == shape) {
        return Ok(None);
    }
    let mut full = Vec::with_capacity(inputs.len());
    for v in inputs {
        full.push(b.expand(*v, shape.clone())?);
    }
    b.add_all(op.clone(), &full).map(Some)
}

fn map(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let Op::Map(map) = op else {
        return Ok(None);
    };
    let mut operands = Vec::with_capacity(inputs.len());
    for (v, index) in inputs.iter().zip(&map.inputs) {
        match operand(b, map, *v, index)? {
            Some(v) => operands.push(v),
            None => return Ok(None),
        }
    }
    let mut steps: Vec<Value> = Vec::with_capacity(map.body.len());
    for step in &map.body {
        let args: Vec<Value> = step
            .args
            .iter()
            .map(|arg| match *arg {
                MapArg::Input(i) => operands[i],
                MapArg::Step(s) => steps[s],
            })
            .collect();
        steps.push(scalar_step(b, &step.op, &args)?);
    }
    let mut results = Vec::with_capacity(map.results.len());
    for &r in &map.results {
        // Here, a step that reads only constants or broadcast operands has a smaller shape than the
        // map, so its result is expanded.
        results.push(b.expand(steps[r], map.shape.clone())?);
    }
    Ok(Some(results))
}

fn scalar_step(b: &mut LegalizeBuilder<'_>, op: &ScalarOp, args: &[Value]) -> ValueResult {
    match op {
        ScalarOp::Const(dtype, value) => b.scalar(*dtype, value.0),
        ScalarOp::Unary(f) => b.add(Unary { f: *f }, args),
        ScalarOp::Binary(f) => b.add(Binary { f: *f }, args),
        ScalarOp::Compare(f) => b.add(Compare { f: *f }, args),
        ScalarOp::Where => b.add(Where {}, args),
        ScalarOp::Fma => b.add(Fma {}, args),
        ScalarOp::Clamp { lo, hi } => b.add(Clamp { lo: *lo, hi: *hi }, args),
        ScalarOp::Cast(to) => b.add(Cast { to: *to }, args),
    }
}

/// An operand as a tensor that broadcasts to the map's shape.
fn operand(
    b: &mut LegalizeBuilder<'_>,
    map: &Map,
    v: Value,
    index: &IndexMap,
) -> Result<Option<Value>, OpError> {
    if index.is_identity(map.shape.rank()) && b.ty(v).shape == map.shape {
        return Ok(Some(v));
    }
    if map.shape.contains(&Dim::Known(0)) {
        // No element is read, so the indices may be out of range.
        return b.scalar(b.dtype(v), 0.0).map(Some);
    }
    let froms: Vec<usize> = index.axes.iter().filter_map(|a| a.from).collect();
    let distinct = froms
        .iter()
        .enumerate()
        .all(|(i, f)| !froms[..i].contains(f));
    match distinct {
        true => by_axes(b, map, v, index),
        false => by_positions(b, map, v, index),
    }
}

/// Slices or gathers each axis, then transposes the axes into the order of the result. Broadcast
/// axes get size 1.
fn by_axes(
    b: &mut LegalizeBuilder<'_>,
    map: &Map,
    v: Value,
    index: &IndexMap,
) -> Result<Option<Value>, OpError> {
    let mut x = v;
    for (i, axis) in index.axes.iter().enumerate() {
        x = match picked(b, map, x, i, axis)? {
            Some(x) => x,
            None => return Ok(None),
        };
    }
    let mut order: Vec<usize> = (0..index.axes.len()).collect();
    // Axes with a constant index have size 1 at this point. The transpose moves these axes to the
    // front, and the reshape removes them.
    order.sort_by_key(|&i| index.axes[i].from);
    let x = b.transpose(x, &order)?;
    let shape: Shape = (0..map.shape.rank())
        .map(|out| match index.axes.iter().any(|a| a.from == Some(out)) {
            true => map.shape[out].clone(),
            false => 1.into(),
        })
        .collect();
    b.reshape(x, shape).map(Some)
}

/// Axis `i` of `x` at the indices of its axis map, in the order of the result.
fn picked(
    b: &mut LegalizeBuilder<'_>,
    map: &Map,
    x: Value,
    i: usize,
    axis: &AxisMap,
) -> Result<Option<Value>, OpError> {
    let size = b.ty(x).shape[i].clone();
    let Some(from) = axis.from else {
        return match size.is_one() {
            true => Ok(Some(x)),
            false => b.slice(x, i, axis.start, axis.start + 1, 1).map(Some),
        };
    };
    let count = &map.shape[from];
    if *axis == AxisMap::axis(from) && size == *count {
        return Ok(Some(x));
    }
    if let Some(count) = count.known() {
        if axis.shift == 0 && axis.step != 0 {
            let (start, end, step) = known_range(axis.start, axis.step, count);
            return b.slice(x, i, start, end, step).map(Some);
        }
        if count > MAX_INDICES {
            return Ok(None);
        }
        let indices: Vec<i64> = (0..count)
            .map(|k| axis.start + axis.step * (k >> axis.shift) as i64)
            .collect();
        let indices = index_constant(b, &indices)?;
        return b.add(Gather { axis: i }, &[x, indices]).map(Some);
    }
    // The slice up to the end of a symbolic axis.
    let rest = size
        .checked_sub(&Dim::Known(axis.start as usize))
        .is_some_and(|rest| rest == *count);
    match rest && axis.step == 1 && axis.shift == 0 {
        true => b.slice(x, i, axis.start, i64::MAX, 1).map(Some),
        false => Ok(None),
    }
}

/// An operand with two axes that follow one axis of the result (a diagonal), gathered by flat
/// position.
fn by_positions(
    b: &mut LegalizeBuilder<'_>,
    map: &Map,
    v: Value,
    index: &IndexMap,
) -> Result<Option<Value>, OpError> {
    let (Some(sizes), Some(out)) = (b.ty(v).shape.as_known(), map.shape.as_known()) else {
        return Ok(None);
    };
    if map
        .shape
        .numel()
        .and_then(|n| n.known())
        .is_none_or(|n| n > MAX_INDICES)
    {
        return Ok(None);
    }
    let strides = row_major_strides(&sizes);
    let mut positions = Vec::new();
    crate::ops::util::for_each_index(&out, |at| {
        let position = index.axes.iter().zip(&strides);
        positions.push(position.map(|(a, &s)| a.index(at) * s as i64).sum());
    });
    let flat = b.reshape(v, [sizes.iter().product::<usize>()])?;
    let indices = index_constant(b, &positions)?;
    let picked = b.add(Gather { axis: 0 }, &[flat, indices])?;
    b.reshape(picked, map.shape.clone()).map(Some)
}

fn index_constant(b: &mut LegalizeBuilder<'_>, indices: &[i64]) -> ValueResult {
    let ty = TensorType::new(DType::I32, &[indices.len()]);
    let tensor = Tensor::from_i64s(ty, indices).expect("invariant: as many values as elements");
    b.constant(tensor)
}
