//! The forms in which NumPy and PyTorch write operators: other names of operators and attributes,
//! attributes by position, negative axes, and attributes that have a usual value.
//!
//! [`operator`](crate::operator) calls the functions in the order of this file.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyString, PyTuple};
use tercet::attr::AttrLiteral;
use tercet::ops::Op;
use tercet::{DType, Dim, OpKind, Shape};

use crate::errors::GraphError;
use crate::value::PyValue;

/// Names of NumPy and PyTorch, and ours.
const OPERATORS: [(&str, &str); 36] = [
    ("absolute", "abs"),
    ("arctan2", "atan2"),
    ("argmax", "arg_max"),
    ("argmin", "arg_min"),
    ("astype", "cast"),
    ("bitwise_and", "and"),
    ("bitwise_or", "or"),
    ("bitwise_xor", "xor"),
    ("broadcast_to", "expand"),
    ("cat", "concat"),
    ("clip", "clamp"),
    ("concatenate", "concat"),
    ("cumsum", "cum_sum"),
    ("divide", "div"),
    ("equal", "eq"),
    ("greater", "gt"),
    ("greater_equal", "ge"),
    ("isinf", "is_inf"),
    ("isnan", "is_nan"),
    ("less", "lt"),
    ("less_equal", "le"),
    ("log", "ln"),
    ("logical_and", "and"),
    ("logical_not", "not"),
    ("logical_or", "or"),
    ("matmul", "mat_mul"),
    ("maximum", "max"),
    ("minimum", "min"),
    ("multiply", "mul"),
    ("negative", "neg"),
    ("not_equal", "ne"),
    ("permute", "transpose"),
    ("power", "pow"),
    ("reciprocal", "recip"),
    ("subtract", "sub"),
    ("topk", "top_k"),
];

/// Names of attributes in NumPy and PyTorch, and ours; the first that an operator has is meant.
const ATTRIBUTES: [(&str, &[&str]); 12] = [
    ("axis", &["axes"]),
    ("axes", &["perm"]),
    ("dim", &["axis", "axes"]),
    ("dims", &["axes", "perm", "axis"]),
    ("keepdim", &["keep_dim"]),
    ("keepdims", &["keep_dim"]),
    ("dtype", &["to", "dtype"]),
    ("a_min", &["lo"]),
    ("a_max", &["hi"]),
    ("min", &["lo"]),
    ("max", &["hi"]),
    ("newshape", &["shape"]),
];

/// Our name of an operator.
pub(crate) fn operator_name(name: &str) -> &str {
    let known = OPERATORS.iter().find(|(other, _)| *other == name);
    known.map_or(name, |(_, own)| *own)
}

/// Our name of an attribute of this operator, if it has it.
pub(crate) fn attribute_name(kind: OpKind, name: &str) -> Option<&str> {
    let names = kind.attr_names();
    if names.contains(&name) {
        return Some(name);
    }
    let (_, own) = ATTRIBUTES.iter().find(|(other, _)| *other == name)?;
    own.iter().find(|own| names.contains(*own)).copied()
}

/// Whether NumPy passes this argument without a meaning for graphs, as `np.sum(x)` and
/// `np.reshape(x, 6)` do.
pub(crate) fn is_ignored(name: &str, value: &Bound<'_, PyAny>) -> bool {
    match name {
        "out" | "dtype" | "copy" => value.is_none(),
        "order" => value.extract::<String>().is_ok_and(|order| order == "C"),
        _ => false,
    }
}

/// The operands, with lists of values spread out.
pub(crate) fn spread<'py>(operands: &[Bound<'py, PyAny>]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut all = Vec::with_capacity(operands.len());
    for operand in operands {
        let is_list = operand.is_instance_of::<PyList>() || operand.is_instance_of::<PyTuple>();
        let items: Vec<Bound<'py, PyAny>> = match is_list {
            true => operand.try_iter()?.collect::<PyResult<_>>()?,
            false => Vec::new(),
        };
        match items.iter().any(|item| item.is_instance_of::<PyValue>()) {
            true => all.extend(items),
            false => all.push(operand.clone()),
        }
    }
    Ok(all)
}

/// The family that a function such as `max` means, by the number of operands and the attributes.
pub(crate) fn family(
    found: &[(OpKind, Option<&str>)],
    operands: usize,
    given: &[(String, Bound<'_, PyAny>)],
) -> Option<OpKind> {
    let has = |names: &[&str]| given.iter().any(|(name, _)| names.contains(&name.as_str()));
    let is_binary = found.iter().any(|(kind, _)| *kind == OpKind::Binary);
    let wanted = if has(&["exclusive", "reverse"]) {
        OpKind::CumSum
    } else if has(&["kernel"]) {
        OpKind::Pool
    } else if operands == 1
        || !is_binary
        || has(&["axis", "axes", "dim", "keep_dim", "keepdim", "keepdims"])
    {
        OpKind::Reduce
    } else {
        return None;
    };
    let mut kinds = found.iter().map(|(kind, _)| *kind);
    kinds.find(|kind| *kind == wanted)
}

/// Refuses `x.max(0)`, which is an axis for NumPy and an operand for us.
///
/// # Errors
/// `GraphError` with both ways to write it.
pub(crate) fn check_extreme(name: &str, operands: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let is_axis = |value: &Bound<'_, PyAny>| {
        value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>()
    };
    match (name, operands) {
        ("max" | "min", [_, axis]) if is_axis(axis) => Err(GraphError::new_err(format!(
            "{name}({axis}) is ambiguous; write {name}(axis={axis}) for a reduction, or {name}({axis}.0) for the \
             {name} of each element and a number"
        ))),
        _ => Ok(()),
    }
}

/// Moves operands beyond those of the operator to its attributes, in their order: `x.softmax(-1)`,
/// `x.clip(0, 1)`, `x.reshape(2, -1)`.
pub(crate) fn by_position<'py>(
    kind: OpKind,
    operands: &mut Vec<Bound<'py, PyAny>>,
    given: &mut Vec<(String, Bound<'py, PyAny>)>,
) -> PyResult<()> {
    let names = kind.doc().operands;
    if names.iter().any(|name| name.ends_with(['.', '?'])) || operands.len() <= names.len() {
        return Ok(());
    }
    if (operands[names.len()..].iter()).any(|extra| extra.is_instance_of::<PyValue>()) {
        return Ok(());
    }
    let extras = operands.split_off(names.len());
    let attrs = kind.attr_kinds();
    let is_free = |name: &str| {
        let mut all = given.iter();
        name != "f" && !all.any(|(other, _)| attribute_name(kind, other) == Some(name))
    };
    let free: Vec<(&str, String)> = attrs
        .into_iter()
        .filter(|(name, _)| is_free(name))
        .collect();
    let is_size = |value: &Bound<'py, PyAny>| {
        !value.is_instance_of::<PyBool>()
            && (value.is_instance_of::<PyInt>() || value.is_instance_of::<PyString>())
    };
    // Those of one list may be written without it.
    let is_spread = match kind {
        OpKind::Reduce => extras.len() > 1,
        OpKind::Reshape | OpKind::Transpose | OpKind::Expand | OpKind::Tile => true,
        _ => false,
    };
    if let (true, Some((first, _))) = (is_spread && extras.iter().all(is_size), free.first()) {
        let list = PyList::new(extras[0].py(), &extras)?;
        given.push((first.to_string(), list.into_any()));
        return Ok(());
    }
    if extras.len() > free.len() {
        let free: Vec<&str> = free.iter().map(|(name, _)| *name).collect();
        let (operands, attributes) = (names.join(", "), free.join(", "));
        return Err(GraphError::new_err(format!(
            "{} got {} positional arguments; expected the operands ({operands}) and the attributes ({attributes})",
            kind.doc().name,
            names.len() + extras.len(),
        )));
    }
    let named = free.into_iter().zip(extras);
    given.extend(named.map(|((name, _), value)| (name.to_string(), value)));
    Ok(())
}

/// The position of the operand whose axes an attribute counts.
fn counted_operand(attr: &str) -> Option<usize> {
    match attr {
        "axis" | "axes" | "perm" | "lhs_contract" | "lhs_batch" => Some(0),
        "rhs_contract" | "rhs_batch" => Some(1),
        _ => None,
    }
}

/// Counts negative axes from the end, and makes a list of one axis where the operator takes a list.
///
/// # Errors
/// `GraphError` for an axis below the first one.
pub(crate) fn resolve_axes(
    kind: OpKind,
    ranks: &[usize],
    attrs: &mut [(String, AttrLiteral)],
) -> PyResult<()> {
    let kinds = kind.attr_kinds();
    for (name, literal) in attrs {
        let name = name.as_str();
        let Some(&rank) = counted_operand(name).and_then(|at| ranks.get(at)) else {
            continue;
        };
        let resolved = |axis: i128| {
            let from_start = if axis < 0 { axis + rank as i128 } else { axis };
            match from_start < 0 {
                false => Ok(AttrLiteral::Int(from_start)),
                true => Err(GraphError::new_err(format!(
                    "{}: {name} {axis} is out of range; the operand has {}",
                    kind.doc().name,
                    tercet::counted(rank, "axis", "axes")
                ))),
            }
        };
        let takes_list = kinds
            .iter()
            .any(|(attr, kind)| *attr == name && kind.starts_with("list"));
        *literal = match std::mem::replace(literal, AttrLiteral::Int(0)) {
            AttrLiteral::Int(axis) if takes_list => AttrLiteral::List(vec![resolved(axis)?]),
            AttrLiteral::Int(axis) => resolved(axis)?,
            AttrLiteral::List(items) => {
                let items = items.into_iter().map(|item| match item {
                    AttrLiteral::Int(axis) => resolved(axis),
                    other => Ok(other),
                });
                let mut items: Vec<AttrLiteral> = items.collect::<PyResult<_>>()?;
                // Reductions take their axes in ascending order.
                if kind == OpKind::Reduce {
                    items.sort_by_key(|item| match item {
                        AttrLiteral::Int(axis) => *axis,
                        _ => i128::MAX,
                    });
                }
                AttrLiteral::List(items)
            }
            other => other,
        };
    }
    Ok(())
}

fn all_axes(rank: usize) -> AttrLiteral {
    AttrLiteral::List(
        (0..rank)
            .map(|axis| AttrLiteral::Int(axis as i128))
            .collect(),
    )
}

/// The value of an attribute that is not given, if NumPy and PyTorch agree on one.
pub(crate) fn usual_value(kind: OpKind, attr: &str, rank: usize) -> Option<AttrLiteral> {
    let truth = |value: bool| Some(AttrLiteral::Ident(value.to_string()));
    let last = || Some(AttrLiteral::Int(rank.saturating_sub(1) as i128));
    match (kind, attr) {
        (OpKind::Reduce, "axes") => Some(all_axes(rank)),
        (OpKind::Reduce | OpKind::ArgMax | OpKind::ArgMin, "keep_dim") => truth(false),
        (OpKind::CumSum, "exclusive" | "reverse") => truth(false),
        (OpKind::CumSum, "f") => Some(AttrLiteral::Ident("sum".into())),
        (OpKind::TopK | OpKind::Sort, "axis") => last(),
        (OpKind::TopK, "largest") => truth(true),
        (OpKind::Sort, "descending") => truth(false),
        (OpKind::Concat, "axis") => Some(AttrLiteral::Int(0)),
        (OpKind::Clamp, "lo") => Some(AttrLiteral::Float(f64::NEG_INFINITY)),
        (OpKind::Clamp, "hi") => Some(AttrLiteral::Float(f64::INFINITY)),
        (OpKind::Transpose, "perm") => {
            let axes = (0..rank).rev().map(|axis| AttrLiteral::Int(axis as i128));
            Some(AttrLiteral::List(axes.collect()))
        }
        _ => None,
    }
}

/// Whether `None` stands for the usual value of an attribute, or for all elements.
pub(crate) fn is_optional(kind: OpKind, attr: &str, rank: usize) -> bool {
    matches!((kind, attr), (OpKind::ArgMax | OpKind::ArgMin, "axis"))
        || usual_value(kind, attr, rank).is_some()
}

/// The dtype of operands that are numbers or lists, if the operator fixes it by their name.
pub(crate) fn dtype_of_operand(kind: OpKind, at: usize) -> Option<DType> {
    let names = kind.doc().operands;
    let name = names.get(at).or(names.last())?;
    match name.trim_end_matches(['?', '.']) {
        "idx" | "starts" | "expert" => Some(DType::I32),
        "cond" | "pred" => Some(DType::Bool),
        _ => None,
    }
}

/// Replaces the size -1 of a reshape by 1, and returns its axis.
///
/// # Errors
/// `GraphError` for two such sizes.
pub(crate) fn take_open_size(
    kind: OpKind,
    attrs: &mut [(String, AttrLiteral)],
) -> PyResult<Option<usize>> {
    if kind != OpKind::Reshape {
        return Ok(None);
    }
    let mut open = None;
    for (_, literal) in attrs {
        let AttrLiteral::List(sizes) = literal else {
            continue;
        };
        for (axis, size) in sizes.iter_mut().enumerate() {
            if *size == AttrLiteral::Int(-1) {
                *size = AttrLiteral::Int(1);
                if open.replace(axis).is_some() {
                    return Err(GraphError::new_err("reshape: at most one size can be -1"));
                }
            }
        }
    }
    Ok(open)
}

/// Sets the open size of a reshape: the elements of the operand divided by the other sizes.
///
/// # Errors
/// `GraphError` if the number of elements is no multiple of the other sizes.
pub(crate) fn fill_open_size(op: &mut Op, open: Option<usize>, operand: &Shape) -> PyResult<()> {
    let (Op::Reshape(reshape), Some(axis)) = (op, open) else {
        return Ok(());
    };
    let (all, others) = (operand.numel(), reshape.shape.numel());
    let size = all.as_ref().zip(others.as_ref());
    let size = size.and_then(|(all, others)| all.div_exact(others));
    let shown = |count: Option<Dim>| count.map_or("too many".into(), |count| count.to_string());
    let Some(size) = size else {
        return Err(GraphError::new_err(format!(
            "reshape: {} elements are no multiple of {}; specify every size",
            shown(all),
            shown(others)
        )));
    };
    reshape.shape.dims_mut()[axis] = size;
    Ok(())
}
