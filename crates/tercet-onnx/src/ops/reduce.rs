//! Reductions, and searches along an axis.

use tercet_ir::ops::{CumSum, ReduceFn, ScanFn};
use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Dim, Value};

use super::shape::{reshaped, two_axes};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axes, axis, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("ReduceSum", 1, |k| reduce(k, 13, plain_sum)),
    op("ReduceMean", 1, |k| {
        reduce(k, 18, |k, x, a, keep| float_reduction(k, x, a, keep, mean))
    }),
    op("ReduceProd", 1, |k| {
        reduce(k, 18, |k, x, a, keep| {
            Ok(k.g().reduce(ReduceFn::Prod, x, a, keep)?)
        })
    }),
    op("ReduceMax", 1, |k| {
        reduce(k, 18, |k, x, a, keep| extreme(k, ReduceFn::Max, x, a, keep))
    }),
    op("ReduceMin", 1, |k| {
        reduce(k, 18, |k, x, a, keep| extreme(k, ReduceFn::Min, x, a, keep))
    }),
    op("ReduceL1", 1, |k| reduce(k, 18, norm_1)),
    op("ReduceL2", 1, |k| {
        reduce(k, 18, |k, x, a, keep| {
            float_reduction(k, x, a, keep, norm_2)
        })
    }),
    op("ReduceSumSquare", 1, |k| reduce(k, 18, sum_square)),
    op("ReduceLogSum", 1, |k| {
        reduce(k, 18, |k, x, a, keep| {
            float_reduction(k, x, a, keep, log_sum)
        })
    }),
    op("ReduceLogSumExp", 1, |k| reduce(k, 18, log_sum_exp)),
    op("ArgMax", 1, |k| arg_extreme(k, true)),
    op("ArgMin", 1, |k| arg_extreme(k, false)),
    op("Softmax", 1, |k| flat(k, soft)).until(12),
    op("Softmax", 13, |k| along(k, soft)),
    op("LogSoftmax", 1, |k| flat(k, log_soft)).until(12),
    op("LogSoftmax", 13, |k| along(k, log_soft)),
    op("Hardmax", 1, |k| flat(k, hard)).until(12),
    op("Hardmax", 13, |k| along(k, hard)),
    op("CumSum", 11, |k| running(k, ScanFn::Sum)),
    op("CumProd", 26, |k| running(k, ScanFn::Prod)),
    op("TopK", 1, top_k),
];

type ReductionFn =
    fn(&mut ImportNode<'_, '_>, Value, &[usize], bool) -> Result<Value, NodeErrorKind>;

/// A reduction along the axes in an attribute, or in an operand from version `since` on.
fn reduce(k: &mut ImportNode<'_, '_>, since: i64, f: ReductionFn) -> NodeOutputs {
    let x = k.x(0)?;
    let (rank, keep) = (k.rank(x), k.attrs.flag("keepdims", true)?);
    let empty_is_none = k.attrs.flag("noop_with_empty_axes", false)?;
    let list = match k.axes(1, since)? {
        Some(list) if !list.is_empty() => axes(&list, rank)?,
        Some(_) | None if empty_is_none => Vec::new(),
        Some(_) | None => (0..rank).collect(),
    };
    one(f(k, x, &list, keep)?)
}

fn plain_sum(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    Ok(k.g().reduce(ReduceFn::Sum, x, list, keep)?)
}

/// A reduction that is defined for floats. Integers are computed in F64 and truncated, as in ONNX
/// Runtime.
fn float_reduction(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
    f: ReductionFn,
) -> Result<Value, NodeErrorKind> {
    let dtype = k.dtype(x);
    if !dtype.is_int() {
        return f(k, x, list, keep);
    }
    let x = k.g().cast(x, DType::F64)?;
    let y = f(k, x, list, keep)?;
    Ok(k.g().cast(y, dtype)?)
}

fn mean(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    Ok(k.g().reduce(ReduceFn::Mean, x, list, keep)?)
}

/// A minimum or maximum; booleans are converted to U8.
fn extreme(
    k: &mut ImportNode<'_, '_>,
    f: ReduceFn,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    match k.dtype(x) {
        DType::Bool => {
            let g = k.g();
            let bytes = g.cast(x, DType::U8)?;
            let y = g.reduce(f, bytes, list, keep)?;
            Ok(g.cast(y, DType::Bool)?)
        }
        _ => Ok(k.g().reduce(f, x, list, keep)?),
    }
}

fn norm_1(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    let size = match k.dtype(x) {
        DType::U8 | DType::U32 => x,
        _ => k.g().abs(x)?,
    };
    plain_sum(k, size, list, keep)
}

fn sum_square(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    let square = k.g().mul(x, x)?;
    plain_sum(k, square, list, keep)
}

/// The Euclidean norm. Narrow floats are squared in F32, because squares of F16 values overflow
/// above 255.
pub(crate) fn norm_2(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    let dtype = k.dtype(x);
    let is_narrow = matches!(dtype, DType::F16 | DType::BF16);
    let x = match is_narrow {
        true => k.g().cast(x, DType::F32)?,
        false => x,
    };
    let sum = sum_square(k, x, list, keep)?;
    let norm = k.g().sqrt(sum)?;
    match is_narrow {
        true => Ok(k.g().cast(norm, dtype)?),
        false => Ok(norm),
    }
}

fn log_sum(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    let sum = plain_sum(k, x, list, keep)?;
    Ok(k.g().unary(UnaryFn::Ln, sum)?)
}

fn log_sum_exp(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
) -> Result<Value, NodeErrorKind> {
    match k.dtype(x).is_int() {
        true => float_reduction(k, x, list, keep, |k, x, list, keep| {
            shifted_log_sum(k, x, list, keep, true)
        }),
        false => shifted_log_sum(k, x, list, keep, false),
    }
}

/// `m + ln(sum(e^(x - m)))`, where `m` is the maximum, or 0 if the maximum is not finite. For
/// integers, ONNX Runtime truncates the powers.
fn shifted_log_sum(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    list: &[usize],
    keep: bool,
    truncated: bool,
) -> Result<Value, NodeErrorKind> {
    let zero = k.like(x, 0.0)?;
    let g = k.g();
    let greatest = g.reduce(ReduceFn::Max, x, list, true)?;
    let infinite = g.unary(UnaryFn::IsInf, greatest)?;
    let m = g.where_(infinite, zero, greatest)?;
    let shifted = g.sub(x, m)?;
    let mut powers = g.exp(shifted)?;
    if truncated {
        powers = g.unary(UnaryFn::Floor, powers)?;
    }
    let sum = g.reduce(ReduceFn::Sum, powers, list, true)?;
    let log = g.unary(UnaryFn::Ln, sum)?;
    let y = g.plus(log, m)?;
    if keep {
        return Ok(y);
    }
    let dims = k.dims(y);
    let kept: Vec<Dim> = (0..dims.len())
        .filter(|i| !list.contains(i))
        .map(|i| dims[i].clone())
        .collect();
    reshaped(k.g(), y, &kept)
}

fn arg_extreme(k: &mut ImportNode<'_, '_>, greatest: bool) -> NodeOutputs {
    let x = k.x(0)?;
    let at = k.axis(0, k.rank(x))?;
    let keep = k.attrs.flag("keepdims", true)?;
    let last = k.attrs.flag("select_last_index", false)?;
    let x = if last { k.g().reverse(x, at)? } else { x };
    let found = match greatest {
        true => k.g().arg_max(x, at, keep)?,
        false => k.g().arg_min(x, at, keep)?,
    };
    let mut y = k.g().cast(found, DType::I64)?;
    if last {
        let n = k.size(x, at)?;
        let end = k.c.scalar(DType::I64, n as f64 - 1.0)?;
        y = k.g().sub(end, y)?;
    }
    one(y)
}

type AxisReductionFn = fn(&mut ImportNode<'_, '_>, Value, usize) -> Result<Value, NodeErrorKind>;

/// Applies a function along one axis.
fn along(k: &mut ImportNode<'_, '_>, f: AxisReductionFn) -> NodeOutputs {
    let x = k.x(0)?;
    let at = k.axis(-1, k.rank(x))?;
    one(f(k, x, at)?)
}

/// The definition before opset 13: all axes from `axis` on are flattened to one.
fn flat(k: &mut ImportNode<'_, '_>, f: AxisReductionFn) -> NodeOutputs {
    let x = k.x(0)?;
    let at = axis(k.attrs.int("axis", 1)?, k.rank(x))?;
    let dims = k.dims(x);
    let two = two_axes(k, x, at)?;
    let y = f(k, two, 1)?;
    one(reshaped(k.g(), y, &dims)?)
}

fn soft(k: &mut ImportNode<'_, '_>, x: Value, at: usize) -> Result<Value, NodeErrorKind> {
    Ok(k.g().softmax(x, at)?)
}

fn log_soft(k: &mut ImportNode<'_, '_>, x: Value, at: usize) -> Result<Value, NodeErrorKind> {
    Ok(k.g().log_softmax(x, at)?)
}

fn hard(k: &mut ImportNode<'_, '_>, x: Value, at: usize) -> Result<Value, NodeErrorKind> {
    let (depth, dtype, rank) = (k.size(x, at)?, k.dtype(x), k.rank(x));
    let found = k.g().arg_max(x, at, false)?;
    let hot = k.g().one_hot(found, depth, dtype)?;
    Ok(k.g().transpose(hot, &last_to(rank, at))?)
}

/// The permutation that moves the last axis to another position.
pub(crate) fn last_to(rank: usize, at: usize) -> Vec<usize> {
    let mut perm: Vec<usize> = (0..rank - 1).collect();
    perm.insert(at, rank - 1);
    perm
}

fn running(k: &mut ImportNode<'_, '_>, f: ScanFn) -> NodeOutputs {
    let x = k.x(0)?;
    let axis = axis(k.int(1)?, k.rank(x))?;
    let (exclusive, reverse) = (
        k.attrs.flag("exclusive", false)?,
        k.attrs.flag("reverse", false)?,
    );
    one(k.g().scan(
        x,
        CumSum {
            axis,
            f,
            exclusive,
            reverse,
        },
    )?)
}

fn top_k(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let at = k.axis(-1, k.rank(x))?;
    let count = match k.opset >= 10 {
        true => k.int(1)?,
        false => k.attrs.int("k", 0)?,
    };
    let count =
        usize::try_from(count).map_err(|_| NodeErrorKind::unsupported(format!("k is {count}")))?;
    let largest = k.attrs.flag("largest", true)?;
    // Sorted order is also valid if the attribute does not require it.
    k.attrs.ignore(&["sorted"]);
    let values = k.g().top_k(x, count, at, largest)?;
    let found = k.g().cast(values.port(1), DType::I64)?;
    Ok(vec![values.into(), ImportedValue::Graph(found)])
}

/// Whether elements equal a constant, such as the ignored index of a loss.
pub(crate) fn equals(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    number: f64,
) -> Result<Value, NodeErrorKind> {
    let number = k.like(x, number)?;
    Ok(k.g().compare(CompareFn::Eq, x, number)?)
}
