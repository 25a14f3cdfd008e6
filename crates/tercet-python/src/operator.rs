//! Operators by name, with attributes as keywords.
//!
//! This module contains no list of operators. [`add`] looks an operator up in the list of
//! `tercet-ir`, by its name or, for families such as `unary{f=relu}`, by the name of the function.
//! A new operator therefore becomes a Python method without changes here.

use std::sync::Arc;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tercet::attr::AttrLiteral;
use tercet::{DType, OpKind, Shape, Tensor, Value};

use crate::errors::{self, GraphError};
use crate::graph::{SharedGraph, lock};
use crate::literal::to_literal;
use crate::value::{PyValue, own};
use crate::{array, forms, html};

/// An operator as a callable method that takes operands and attributes.
#[pyclass(name = "Operator", module = "tercet", frozen)]
pub(crate) struct PyOperator {
    graph: SharedGraph,
    name: String,
    first: Option<Value>,
}
/// Operators with this name, and families that have a function with this name.
fn candidates(name: &str) -> Vec<(OpKind, Option<&str>)> {
    let own = OpKind::ALL
        .iter()
        .filter(|k| k.doc().name == name)
        .map(|k| (*k, None));
    let word = format!("`{name}`");
    let is_function = |k: &&OpKind| {
        k.attr_kinds()
            .iter()
            .any(|(attr, kind)| *attr == "f" && kind.contains(&word))
    };
    let families = OpKind::ALL
        .iter()
        .filter(is_function)
        .map(|k| (*k, Some(name)));
    own.chain(families).collect()
}

/// An operand: a value of the graph, or numbers that become a constant.
enum OperandSource {
    Value(Value),
    Constant(Tensor),
}

/// Adds a node. Operands are values, or numbers and arrays that become constants; numbers get the
/// dtype of the first value. Attributes may have the names, positions and negative axes of NumPy and
/// PyTorch ([`forms`]).
pub(crate) fn add(
    graph: &SharedGraph,
    name: &str,
    operands: &[Bound<'_, PyAny>],
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<Value>> {
    let name = forms::operator_name(name);
    let mut given: Vec<(String, Bound<'_, PyAny>)> = match given {
        Some(given) => given
            .iter()
            .map(|(k, v)| Ok((k.extract::<String>()?, v)))
            .collect::<PyResult<_>>()?,
        None => Vec::new(),
    };
    let mut operands = forms::spread(operands)?;
    let (kind, function) = chosen(name, operands.len(), &given)?;
    given.retain(|(attr, value)| {
        kind.attr_names().contains(&attr.as_str()) || !forms::is_ignored(attr, value)
    });
    forms::by_position(kind, &mut operands, &mut given)?;
    let sources = sources(graph, kind, &operands)?;
    let shapes: Vec<Shape> = sources.iter().map(|source| shape(graph, source)).collect();
    let ranks: Vec<usize> = shapes.iter().map(Shape::rank).collect();
    let rank = ranks.first().copied().unwrap_or(0);
    let mut attrs = Vec::new();
    for (attr, value) in &given {
        // The operator rejects unknown attribute names and lists the known ones.
        let attr = forms::attribute_name(kind, attr).unwrap_or(attr);
        if value.is_none() && forms::is_optional(kind, attr, rank) {
            continue;
        }
        let kinds = kind.attr_kinds();
        let takes = kinds.iter().find(|(name, _)| *name == attr);
        let literal = to_literal(value, takes.map_or("", |(_, kind)| kind))?;
        attrs.push((attr.to_string(), literal));
    }
    complete(graph, kind, function, rank, &mut attrs);
    forms::resolve_axes(kind, &ranks, &mut attrs)?;
    let open = forms::take_open_size(kind, &mut attrs)?;
    let is_flat = matches!(kind, OpKind::ArgMax | OpKind::ArgMin)
        && !attrs.iter().any(|(attr, _)| attr == "axis");
    if is_flat {
        attrs.push(("axis".into(), AttrLiteral::Int(0)));
    }
    let mut op = kind
        .parse(&attrs)
        .map_err(|e| GraphError::new_err(format!("{name}: {}", tercet::one_line(&e))))?;
    if let Some(shape) = shapes.first() {
        forms::fill_open_size(&mut op, open, shape)?;
    }
    let mut graph = lock(graph);
    let mut values = Vec::with_capacity(sources.len());
    for source in sources {
        values.push(match source {
            OperandSource::Value(value) => value,
            OperandSource::Constant(tensor) => graph.constant(tensor).map_err(errors::graph)?,
        });
    }
    if let (true, Some(first)) = (is_flat, values.first_mut()) {
        *first = graph.flatten(*first, 0..rank).map_err(errors::graph)?;
    }
    let value = graph.add(op, &values).map_err(errors::graph)?;
    let results = graph.node(value.node).outputs.len();
    Ok((0..results).map(|port| value.port(port as u8)).collect())
}

/// The operator that a name, a number of operands and the names of attributes mean, and the function
/// of its family.
fn chosen<'a>(
    name: &'a str,
    operands: usize,
    given: &[(String, Bound<'_, PyAny>)],
) -> PyResult<(OpKind, Option<&'a str>)> {
    let found = candidates(name);
    let takes = |kind: &OpKind| {
        let mut names = given.iter();
        names.all(|(attr, value)| {
            forms::is_ignored(attr, value) || forms::attribute_name(*kind, attr).is_some()
        })
    };
    let family = forms::family(&found, operands, given);
    let of_family = found.iter().find(|(kind, _)| Some(*kind) == family);
    let taking = || found.iter().find(|(kind, _)| takes(kind));
    let chosen = of_family.or_else(taking).or_else(|| found.first());
    chosen.copied().ok_or_else(|| {
        GraphError::new_err(format!(
            "unknown operator `{name}`; tercet.operators() lists all operators"
        ))
    })
}

/// Adds omitted attributes that have an obvious value: the function of a family, the stream of
/// random numbers, `none` if it is allowed, and the values that NumPy and PyTorch share.
fn complete(
    graph: &SharedGraph,
    kind: OpKind,
    function: Option<&str>,
    rank: usize,
    attrs: &mut Vec<(String, AttrLiteral)>,
) {
    for (attr, takes) in kind.attr_kinds() {
        if attrs.iter().any(|(name, _)| name == attr) {
            continue;
        }
        let usual = forms::usual_value(kind, attr, rank);
        let literal = match (attr, function) {
            ("f", Some(function)) => AttrLiteral::Ident(function.to_string()),
            ("stream", _) => AttrLiteral::Int(lock(graph).len() as i128),
            _ if takes.ends_with("or `none`") => AttrLiteral::Ident("none".into()),
            _ => match usual {
                Some(usual) => usual,
                None => continue,
            },
        };
        attrs.push((attr.to_string(), literal));
    }
}

/// The operands. Numbers get the dtype that the operator fixes, or that of the first value whose
/// dtype it does not fix.
fn sources(
    graph: &SharedGraph,
    kind: OpKind,
    operands: &[Bound<'_, PyAny>],
) -> PyResult<Vec<OperandSource>> {
    let fixed = |at: usize| forms::dtype_of_operand(kind, at);
    let mut free = operands.iter().enumerate();
    let first = free.find_map(|(at, operand)| match fixed(at) {
        None => operand.cast::<PyValue>().ok(),
        Some(_) => None,
    });
    let dtype = match first {
        Some(value) => lock(graph).ty(own(graph, value.get())?).dtype,
        None => DType::F32,
    };
    let source = |(at, operand): (usize, &Bound<'_, PyAny>)| {
        if let Ok(value) = operand.cast::<PyValue>() {
            return Ok(OperandSource::Value(own(graph, value.get())?));
        }
        let dtype = fixed(at).unwrap_or(dtype);
        constant(operand, dtype).map(OperandSource::Constant)
    };
    operands.iter().enumerate().map(source).collect()
}

/// Numbers as a constant. An array without axes counts as a number.
fn constant(operand: &Bound<'_, PyAny>, dtype: DType) -> PyResult<Tensor> {
    let is_number = operand
        .cast::<PyUntypedArray>()
        .is_ok_and(|array| array.ndim() == 0);
    match is_number {
        true => array::to_tensor("operand", &operand.get_item(())?, dtype),
        false => array::to_tensor("operand", operand, dtype),
    }
}

fn shape(graph: &SharedGraph, source: &OperandSource) -> Shape {
    match source {
        OperandSource::Value(value) => lock(graph).ty(*value).shape.clone(),
        OperandSource::Constant(tensor) => Shape::known(tensor.shape()),
    }
}

/// A value for an operand: itself, or a constant of this dtype.
pub(crate) fn value_of(
    graph: &SharedGraph,
    operand: &Bound<'_, PyAny>,
    dtype: DType,
) -> PyResult<Value> {
    if let Ok(value) = operand.cast::<PyValue>() {
        return own(graph, value.get());
    }
    let tensor = constant(operand, dtype)?;
    lock(graph).constant(tensor).map_err(errors::graph)
}

/// Returns one value, or a tuple of several.
pub(crate) fn results<'py>(
    py: Python<'py>,
    graph: &SharedGraph,
    values: Vec<Value>,
) -> PyResult<Bound<'py, PyAny>> {
    let made = |value: Value| Bound::new(py, PyValue::new(graph, value));
    match values.as_slice() {
        [one] => Ok(made(*one)?.into_any()),
        _ => {
            let all: PyResult<Vec<_>> = values.into_iter().map(made).collect();
            Ok(PyTuple::new(py, all?)?.into_any())
        }
    }
}
/// The operator with this name, as a method of a graph or, if `first` is set, of a value.
pub(crate) fn named(graph: &SharedGraph, name: &str, first: Option<Value>) -> PyResult<PyOperator> {
    if candidates(forms::operator_name(name)).is_empty() {
        return Err(PyAttributeError::new_err(format!(
            "`{name}` is neither a method nor an operator; tercet.operators() lists all operators"
        )));
    }
    let graph = Arc::clone(graph);
    Ok(PyOperator {
        graph,
        name: name.to_string(),
        first,
    })
}

pub(crate) fn names() -> impl Iterator<Item = String> {
    OpKind::ALL.iter().map(|k| k.doc().name.to_string())
}

#[pymethods]
impl PyOperator {
    #[pyo3(signature = (*operands, **attributes))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        operands: Vec<Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut all = Vec::with_capacity(operands.len() + 1);
        if let Some(value) = self.first {
            let first = PyValue::new(&self.graph, value);
            all.push(Bound::new(py, first)?.into_any());
        }
        all.extend(operands);
        if self.first.is_some() {
            forms::check_extreme(&self.name, &all)?;
        }
        results(
            py,
            &self.graph,
            add(&self.graph, &self.name, &all, attributes)?,
        )
    }

    /// Description of the operator, its operands and its attributes.
    #[getter]
    fn doc(&self) -> String {
        let docs = candidates(forms::operator_name(&self.name))
            .into_iter()
            .map(|(kind, _)| {
                let attrs = kind
                    .attr_kinds()
                    .into_iter()
                    .map(|(name, kind)| format!("\n  {name}: {kind}"));
                let doc = kind.doc();
                format!(
                    "{}({})\n\n{}\n{}",
                    doc.name,
                    doc.operands.join(", "),
                    doc.text,
                    attrs.collect::<String>()
                )
            });
        docs.collect::<Vec<_>>().join("\n\n")
    }

    fn _repr_html_(&self) -> String {
        html::text(&self.__repr__(), &self.doc())
    }

    fn __repr__(&self) -> String {
        format!("<tercet operator {}>", self.name)
    }
}
