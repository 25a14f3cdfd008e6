//! Indexing of values as in NumPy: `x[1:3, ..., -1]`, `x[:, None]`, `x[[0, 2]]`.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};
use tercet::{DType, Dim, Graph, Value};

use crate::array;
use crate::errors::{self, GraphError};
use crate::graph::{SharedGraph, lock};
use crate::value::{PyValue, own};

/// One part of an index.
enum IndexPart {
    /// A position; the axis disappears.
    At(i64),
    /// Start, end and step of a slice, in the form of the operator `slice`.
    Range(i64, i64, i64),
    /// A new axis of size 1.
    NewAxis,
    /// Positions: a value of integers.
    Positions(Value),
}

impl IndexPart {
    /// Whether the part takes an axis of the operand.
    fn takes_axis(&self) -> bool {
        !matches!(self, IndexPart::NewAxis)
    }
}

/// The elements of a value that a Python index selects.
///
/// # Errors
/// `IndexError` for too many or too large indices, `GraphError` for masks, `TypeError` for other
/// objects.
pub(crate) fn indexed(
    graph: &SharedGraph,
    value: Value,
    key: &Bound<'_, PyAny>,
) -> PyResult<Value> {
    let dims = dims(&lock(graph), value);
    let parts = parts(graph, key, &dims)?;
    check_places(&parts)?;
    let mut made = lock(graph);
    let sliced = sliced(&mut made, value, &parts, &dims)?;
    gathered(&mut made, sliced, &parts)
}

fn dims(graph: &Graph, value: Value) -> Vec<Dim> {
    graph.ty(value).shape.iter().cloned().collect()
}

/// The parts of a key, with one for each axis.
fn parts(graph: &SharedGraph, key: &Bound<'_, PyAny>, dims: &[Dim]) -> PyResult<Vec<IndexPart>> {
    let items: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let is_rest = |item: &Bound<'_, PyAny>| item.is_instance_of::<PyEllipsis>();
    if items.iter().filter(|item| is_rest(item)).count() > 1 {
        return Err(PyIndexError::new_err("an index can have only one ellipsis"));
    }
    let taken = items
        .iter()
        .filter(|item| !item.is_none() && !is_rest(item));
    let taken = taken.count();
    let Some(left) = dims.len().checked_sub(taken) else {
        return Err(PyIndexError::new_err(format!(
            "too many indices: {taken} for a value with {}",
            tercet::counted(dims.len(), "axis", "axes")
        )));
    };
    let whole = || IndexPart::Range(0, i64::MAX, 1);
    let mut parts = Vec::new();
    let mut axis = 0;
    for item in &items {
        if is_rest(item) {
            parts.extend((0..left).map(|_| whole()));
            axis += left;
            continue;
        }
        let part = part(graph, item, axis, dims)?;
        axis += usize::from(part.takes_axis());
        parts.push(part);
    }
    parts.extend((axis..dims.len()).map(|_| whole()));
    Ok(parts)
}

fn part(
    graph: &SharedGraph,
    item: &Bound<'_, PyAny>,
    axis: usize,
    dims: &[Dim],
) -> PyResult<IndexPart> {
    if item.is_none() {
        return Ok(IndexPart::NewAxis);
    }
    if let Ok(slice) = item.cast::<PySlice>() {
        return range(slice);
    }
    if let Ok(value) = item.cast::<PyValue>() {
        return positions(graph, own(graph, value.get())?);
    }
    if item.is_instance_of::<PyBool>() {
        return Err(mask());
    }
    if let Ok(at) = item.call_method0("__index__") {
        let at: i64 = at.extract()?;
        if let Some(size) = dims[axis].known().map(|size| size as i64)
            && !(-size..size).contains(&at)
        {
            return Err(PyIndexError::new_err(format!(
                "index {at} is out of range for axis {axis} of size {size}"
            )));
        }
        return Ok(IndexPart::At(at));
    }
    if item.is_instance_of::<pyo3::types::PyString>() {
        return Err(PyTypeError::new_err(
            "an index is a text; expected numbers, slices, `...`, None, or lists of numbers",
        ));
    }
    let numbers = item
        .py()
        .import("numpy")?
        .call_method1("asarray", (item,))?;
    let kind: String = numbers.getattr("dtype")?.getattr("kind")?.extract()?;
    let is_empty = numbers.getattr("size")?.extract::<usize>()? == 0;
    let numbers = match (kind.as_str(), is_empty) {
        ("i" | "u", _) => numbers,
        ("b", false) => return Err(mask()),
        (_, true) => numbers.call_method1("astype", ("int64",))?,
        _ => {
            let dtype = numbers.getattr("dtype")?;
            return Err(PyTypeError::new_err(format!(
                "an index has dtype {dtype}; expected whole numbers, slices, `...` or None"
            )));
        }
    };
    let list = numbers.call_method0("tolist")?;
    let tensor = array::to_tensor("index", &list, DType::I32)?;
    let value = lock(graph).constant(tensor).map_err(errors::graph)?;
    Ok(IndexPart::Positions(value))
}

fn positions(graph: &SharedGraph, value: Value) -> PyResult<IndexPart> {
    match lock(graph).ty(value).dtype {
        DType::Bool => Err(mask()),
        _ => Ok(IndexPart::Positions(value)),
    }
}

fn mask() -> PyErr {
    GraphError::new_err(
        "a mask selects a number of elements that is known only in a run; use where(mask, x, 0), or non_zero()",
    )
}

/// The form that the operator `slice` has for a slice of Python.
fn range(slice: &Bound<'_, PySlice>) -> PyResult<IndexPart> {
    let bound = |name: &str| -> PyResult<Option<i64>> {
        let bound = slice.getattr(name)?;
        match bound.is_none() {
            true => Ok(None),
            false => Ok(Some(bound.call_method0("__index__")?.extract()?)),
        }
    };
    let step = bound("step")?.unwrap_or(1);
    if step == 0 {
        return Err(PyValueError::new_err("the step of a slice is 0"));
    }
    let (first, last) = match step > 0 {
        true => (0, i64::MAX),
        false => (i64::MAX, i64::MIN),
    };
    let (start, end) = (
        bound("start")?.unwrap_or(first),
        bound("stop")?.unwrap_or(last),
    );
    Ok(IndexPart::Range(start, end, step))
}

/// NumPy moves the axes of a list to the front if a slice separates it from another position.
fn check_places(parts: &[IndexPart]) -> PyResult<()> {
    let is_list = |part: &IndexPart| matches!(part, IndexPart::Positions(_));
    let is_point = |part: &IndexPart| is_list(part) || matches!(part, IndexPart::At(_));
    let lists = parts.iter().filter(|part| is_list(part)).count();
    let points: Vec<usize> = (0..parts.len())
        .filter(|at| is_point(&parts[*at]))
        .collect();
    let adjoin = points.windows(2).all(|pair| pair[1] == pair[0] + 1);
    match lists {
        0 => Ok(()),
        1 if adjoin => Ok(()),
        _ => Err(GraphError::new_err(
            "an index with several lists, or a list apart from another position, is not supported; index in two \
             steps, or use gather_nd()",
        )),
    }
}

fn sliced(graph: &mut Graph, value: Value, parts: &[IndexPart], dims: &[Dim]) -> PyResult<Value> {
    let (mut starts, mut ends, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts.iter().filter(|part| part.takes_axis()) {
        let (start, end, step) = match *part {
            IndexPart::At(at) => (at, if at == -1 { i64::MAX } else { at + 1 }, 1),
            IndexPart::Range(start, end, step) => (start, end, step),
            _ => (0, i64::MAX, 1),
        };
        starts.push(start);
        ends.push(end);
        steps.push(step);
    }
    let all =
        (0..dims.len()).all(|axis| (starts[axis], ends[axis], steps[axis]) == (0, i64::MAX, 1));
    match all {
        true => Ok(value),
        false => graph
            .slice(value, &starts, &ends, &steps)
            .map_err(errors::graph),
    }
}

/// Selects the positions, and removes and adds axes.
fn gathered(graph: &mut Graph, mut value: Value, parts: &[IndexPart]) -> PyResult<Value> {
    let taking: Vec<&IndexPart> = parts.iter().filter(|part| part.takes_axis()).collect();
    let mut taken: Vec<Vec<Dim>> = dims(graph, value)
        .into_iter()
        .map(|dim| vec![dim])
        .collect();
    for (axis, part) in taking.iter().enumerate() {
        if let IndexPart::Positions(positions) = part {
            taken[axis] = dims(graph, *positions);
            value = graph
                .gather(value, *positions, axis)
                .map_err(errors::graph)?;
        }
    }
    let mut shape = Vec::new();
    let mut axes = taken.into_iter();
    for part in parts {
        match part {
            IndexPart::NewAxis => shape.push(Dim::Known(1)),
            IndexPart::At(_) => drop(axes.next()),
            _ => shape.extend(axes.next().into_iter().flatten()),
        }
    }
    if shape == dims(graph, value) {
        return Ok(value);
    }
    graph.reshape(value, shape).map_err(errors::graph)
}
