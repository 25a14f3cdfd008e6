//! Shape arithmetic with symbols: the operators that exporters emit around `Shape`, evaluated at
//! import time.
//!
//! Elements are integers or symbolic sizes. If the result is not expressible for a symbol (an
//! inexact quotient, or a comparison of two symbols), the graph computes it at run time.

use tercet_ir::{DType, Dim};

use crate::attrs::OnnxAttrs;
use crate::call::axis;
use crate::error::NodeErrorKind;
use crate::val::{ImportedValue, ShapeElem, Sizes};

/// The results of an operator on symbolic numbers; `None` if the graph must compute them.
pub(crate) fn fold(
    op: &str,
    opset: i64,
    ins: &[ImportedValue],
    attrs: &OnnxAttrs<'_>,
) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
    if !ins
        .iter()
        .any(|v| matches!(v, ImportedValue::ShapeValue(_)))
    {
        return Ok(None);
    }
    let folded = match op {
        "Identity" => Some(ins[0].clone()),
        "Cast" if matches!(attrs.int("to", 0)?, 6 | 7) => Some(ins[0].clone()),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" => elementwise(op, ins),
        "Equal" => equal(ins),
        "Where" => choose(ins),
        "Concat" => concat(ins),
        "Gather" => gather(ins, attrs)?,
        "Slice" if opset >= 10 => slice(ins)?,
        "Squeeze" => resized(ins, true),
        "Unsqueeze" => resized(ins, false),
        "Reshape" => reshape(ins),
        "ReduceProd" => reduce(ins, attrs, Dim::checked_mul)?,
        "ReduceSum" => reduce(ins, attrs, Dim::checked_add)?,
        _ => None,
    };
    if folded.is_some() {
        attrs.ignore(&[
            "axis",
            "axes",
            "allowzero",
            "keepdims",
            "fmod",
            "saturate",
            "round_mode",
        ]);
    }
    let dtype = match op {
        "Cast" if attrs.int("to", 0)? == 6 => DType::I32,
        "Cast" => DType::I64,
        _ => dtype_of(ins),
    };
    Ok(folded.map(|v| vec![in_dtype(v, dtype)]))
}

/// The dtype of the numeric operands, from the first one.
fn dtype_of(ins: &[ImportedValue]) -> DType {
    let own = |v: &ImportedValue| match v {
        ImportedValue::ShapeValue(s) => Some(s.dtype),
        ImportedValue::ConstTensor(k) => {
            Some(k.tensor.dtype()).filter(|d| matches!(d, DType::I32 | DType::I64))
        }
        _ => None,
    };
    ins.iter().find_map(own).unwrap_or(DType::I64)
}

/// Converts numbers to a dtype; booleans stay unchanged.
fn in_dtype(val: ImportedValue, dtype: DType) -> ImportedValue {
    match (val.as_sizes(), &val) {
        (Some(sizes), ImportedValue::ShapeValue(_)) => {
            ImportedValue::sizes_of(sizes.nums, sizes.scalar, dtype)
        }
        (Some(sizes), ImportedValue::ConstTensor(k)) if k.tensor.dtype() != DType::Bool => {
            ImportedValue::sizes_of(sizes.nums, sizes.scalar, dtype)
        }
        _ => val,
    }
}

/// Broadcasts operands to one length. The flag is true if the result is a scalar.
fn broadcast(ins: &[ImportedValue]) -> Option<(Vec<Vec<ShapeElem>>, bool)> {
    let sizes: Option<Vec<Sizes>> = ins.iter().map(ImportedValue::as_sizes).collect();
    let sizes = sizes?;
    let len = sizes.iter().map(|s| s.nums.len()).max()?;
    let scalar = sizes.iter().all(|s| s.scalar);
    let stretch = |s: Sizes| match s.nums.len() {
        n if n == len => Some(s.nums),
        1 => Some(vec![s.nums[0].clone(); len]),
        _ => None,
    };
    let lists: Option<Vec<Vec<ShapeElem>>> = sizes.into_iter().map(stretch).collect();
    Some((lists?, scalar))
}

fn elementwise(op: &str, ins: &[ImportedValue]) -> Option<ImportedValue> {
    let (lists, scalar) = broadcast(ins)?;
    let (first, rest) = lists.split_first()?;
    let nums: Option<Vec<ShapeElem>> = (0..first.len())
        .map(|i| {
            rest.iter()
                .try_fold(first[i].clone(), |a, b| binary(op, &a, &b[i]))
        })
        .collect();
    Some(ImportedValue::sizes(nums?, scalar))
}

/// Evaluates one operation; `None` if the result is not expressible.
fn binary(op: &str, a: &ShapeElem, b: &ShapeElem) -> Option<ShapeElem> {
    if let (ShapeElem::Int(a), ShapeElem::Int(b)) = (a, b) {
        return Some(ShapeElem::Int(match op {
            "Add" => a.checked_add(*b)?,
            "Sub" => a.checked_sub(*b)?,
            "Mul" => a.checked_mul(*b)?,
            "Div" => a.checked_div(*b)?,
            "Mod" => a.checked_rem_euclid(*b).filter(|_| *b > 0)?,
            "Min" => *a.min(b),
            "Max" => *a.max(b),
            _ => return None,
        }));
    }
    // Adding 0 to a data-dependent size or multiplying it by 1 does not change it.
    match (op, a, b) {
        ("Add", ShapeElem::Data(_), ShapeElem::Int(0))
        | ("Sub", ShapeElem::Data(_), ShapeElem::Int(0))
        | ("Mul" | "Div", ShapeElem::Data(_), ShapeElem::Int(1)) => return Some(a.clone()),
        ("Add", ShapeElem::Int(0), ShapeElem::Data(_))
        | ("Mul", ShapeElem::Int(1), ShapeElem::Data(_)) => return Some(b.clone()),
        _ => {}
    }
    let known = |n: &ShapeElem| n.int();
    let dim = match (op, known(a), known(b)) {
        ("Add", _, Some(n)) if n < 0 => a
            .dim()?
            .checked_sub(&ShapeElem::Int(n.checked_neg()?).dim()?),
        ("Add", Some(n), _) if n < 0 => b
            .dim()?
            .checked_sub(&ShapeElem::Int(n.checked_neg()?).dim()?),
        ("Add", _, _) => a.dim()?.checked_add(&b.dim()?),
        ("Sub", _, Some(n)) if n < 0 => a
            .dim()?
            .checked_add(&ShapeElem::Int(n.checked_neg()?).dim()?),
        ("Sub", _, _) => a.dim()?.checked_sub(&b.dim()?),
        ("Mul", _, _) => a.dim()?.checked_mul(&b.dim()?),
        ("Div", _, Some(n)) => a.dim()?.div_floor(usize::try_from(n).ok()?),
        ("Div", _, None) => a.dim()?.div_exact(&b.dim()?),
        ("Mod", _, Some(n)) => {
            let (a, n) = (a.dim()?, usize::try_from(n).ok()?);
            let whole = a.div_floor(n)?.checked_mul(&Dim::Known(n))?;
            a.checked_sub(&whole)
        }
        ("Min" | "Max", _, _) => {
            let (a, b) = (a.dim()?, b.dim()?);
            let (least, greatest) = match (a.is_at_least(&b), b.is_at_least(&a)) {
                (true, _) => (b, a),
                (_, true) => (a, b),
                (false, false) => return None,
            };
            Some(if op == "Min" { least } else { greatest })
        }
        _ => None,
    }?;
    Some(ShapeElem::from_dim(&dim))
}

/// Evaluates comparisons that have the same result for all values of the symbols.
fn equal(ins: &[ImportedValue]) -> Option<ImportedValue> {
    let (lists, scalar) = broadcast(ins)?;
    let [a, b] = lists.as_slice() else {
        return None;
    };
    let same = |(a, b): (&ShapeElem, &ShapeElem)| match (a, b) {
        (ShapeElem::Int(a), ShapeElem::Int(b)) => Some(a == b),
        (ShapeElem::Dim(_) | ShapeElem::Data(_), ShapeElem::Int(n))
        | (ShapeElem::Int(n), ShapeElem::Dim(_) | ShapeElem::Data(_))
            if *n < 0 =>
        {
            Some(false)
        }
        (ShapeElem::Dim(a), ShapeElem::Dim(b)) if a == b => Some(true),
        (ShapeElem::Data(a), ShapeElem::Data(b)) if a == b => Some(true),
        _ => None,
    };
    let bools: Option<Vec<bool>> = a.iter().zip(b).map(same).collect();
    let bools = bools?;
    let shape: &[usize] = if scalar { &[] } else { &[bools.len()] };
    tercet_ir::Tensor::from_bools(shape, &bools)
        .ok()
        .map(ImportedValue::known)
}

fn choose(ins: &[ImportedValue]) -> Option<ImportedValue> {
    let [ImportedValue::ConstTensor(cond), a, b] = ins else {
        return None;
    };
    let conds = cond.tensor.to_i64s();
    let (lists, scalar) = broadcast(&[a.clone(), b.clone()])?;
    let [a, b] = lists.as_slice() else {
        return None;
    };
    if conds.len() != a.len() || cond.tensor.shape().len() > 1 {
        return None;
    }
    let nums = conds.iter().zip(a.iter().zip(b));
    let nums = nums.map(|(c, (a, b))| if *c != 0 { a } else { b }.clone());
    Some(ImportedValue::sizes(
        nums.collect(),
        scalar && cond.tensor.shape().is_empty(),
    ))
}

fn concat(ins: &[ImportedValue]) -> Option<ImportedValue> {
    let lists: Option<Vec<Sizes>> = ins.iter().map(ImportedValue::as_sizes).collect();
    let lists = lists?;
    let vectors = lists.iter().all(|s| !s.scalar);
    vectors.then(|| ImportedValue::sizes(lists.into_iter().flat_map(|s| s.nums).collect(), false))
}

fn gather(
    ins: &[ImportedValue],
    attrs: &OnnxAttrs<'_>,
) -> Result<Option<ImportedValue>, NodeErrorKind> {
    let [
        ImportedValue::ShapeValue(data),
        ImportedValue::ConstTensor(idx),
    ] = ins
    else {
        return Ok(None);
    };
    axis(attrs.int("axis", 0)?, 1)?;
    if data.scalar || idx.tensor.shape().len() > 1 {
        return Ok(None);
    }
    let picked: Result<Vec<ShapeElem>, NodeErrorKind> = idx
        .tensor
        .to_i64s()
        .into_iter()
        .map(|i| axis(i, data.nums.len()).map(|i| data.nums[i].clone()))
        .collect();
    Ok(Some(ImportedValue::sizes(
        picked?,
        idx.tensor.shape().is_empty(),
    )))
}

/// Start and end of a slice with a negative step, on an axis of `n` elements; the end is -1 before
/// the first element. As in ONNX Runtime, the start is clamped to the axis, and the maximum integers
/// as an end mean the beginning.
pub(crate) fn backward_bounds(start: i64, end: i64, n: i64) -> (i64, i64) {
    let from_start = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let start = from_start(start).min(n - 1).max(0);
    match is_open_end(end) {
        true => (start, -1),
        false => (start, from_start(end).min(n).max(-1)),
    }
}

/// Whether an end is one of the maximum integers, which mean that a slice has no end.
pub(crate) fn is_open_end(end: i64) -> bool {
    end == i64::MAX || end == i64::from(i32::MAX)
}

fn slice(ins: &[ImportedValue]) -> Result<Option<ImportedValue>, NodeErrorKind> {
    let Some(ImportedValue::ShapeValue(data)) = ins.first() else {
        return Ok(None);
    };
    let single = |i: usize, default: i64| match ins.get(i) {
        None | Some(ImportedValue::Absent) => Some(default),
        Some(ImportedValue::ConstTensor(k)) => match k.tensor.to_i64s().as_slice() {
            [n] => Some(*n),
            _ => None,
        },
        Some(_) => None,
    };
    let (Some(start), Some(end), Some(0 | -1), Some(step)) =
        (single(1, 0), single(2, 0), single(3, 0), single(4, 1))
    else {
        return Ok(None);
    };
    let n = data.nums.len() as i64;
    let at = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let picked: Vec<ShapeElem> = match step {
        1 => {
            let (start, end) = (at(start).clamp(0, n) as usize, at(end).clamp(0, n) as usize);
            data.nums.get(start..end).unwrap_or(&[]).to_vec()
        }
        -1 => {
            let (start, end) = backward_bounds(start, end, n);
            (end + 1..=start.min(n - 1))
                .rev()
                .map(|i| data.nums[i as usize].clone())
                .collect()
        }
        _ => return Ok(None),
    };
    Ok(Some(ImportedValue::sizes(picked, false)))
}

/// Converts a scalar to a list of one number, or the reverse.
fn resized(ins: &[ImportedValue], to_scalar: bool) -> Option<ImportedValue> {
    let sizes = ins.first()?.as_sizes()?;
    (sizes.nums.len() == 1 && sizes.scalar != to_scalar)
        .then(|| ImportedValue::sizes(sizes.nums, to_scalar))
}

fn reshape(ins: &[ImportedValue]) -> Option<ImportedValue> {
    let sizes = ins.first()?.as_sizes()?;
    let ImportedValue::ConstTensor(shape) = ins.get(1)? else {
        return None;
    };
    match shape.tensor.to_i64s().as_slice() {
        [] if sizes.nums.len() == 1 => Some(ImportedValue::sizes(sizes.nums, true)),
        [n] if *n == -1 || *n == sizes.nums.len() as i64 => {
            Some(ImportedValue::sizes(sizes.nums, false))
        }
        _ => None,
    }
}

fn reduce(
    ins: &[ImportedValue],
    attrs: &OnnxAttrs<'_>,
    f: fn(&Dim, &Dim) -> Option<Dim>,
) -> Result<Option<ImportedValue>, NodeErrorKind> {
    let keep = attrs.flag("keepdims", true)?;
    let Some(ImportedValue::ShapeValue(data)) = ins.first() else {
        return Ok(None);
    };
    if data.scalar || attrs.flag("noop_with_empty_axes", false)? {
        return Ok(None);
    }
    let mut dims = data.nums.iter().map(ShapeElem::dim);
    let Some(Some(first)) = dims.next() else {
        return Ok(None);
    };
    let total = dims.try_fold(first, |a, b| f(&a, &b?));
    Ok(total.map(|d| ImportedValue::sizes(vec![ShapeElem::from_dim(&d)], !keep)))
}
