//! Operators by name, with attributes as keywords.
//!
//! This module contains no list of operators. [`add`] looks an operator up in the list of
//! `tercet-ir`, by its name or, for families such as `unary{f=relu}`, by the name of the function.
//! A new operator therefore becomes a Python method without changes here.

use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tercet::attr::AttrLiteral;
use tercet::{DType, OpKind, Value};

use crate::array;
use crate::errors::{self, GraphError};
use crate::graph::{SharedGraph, lock};
use crate::literal::to_literal;
use crate::value::{PyValue, own};

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

/// Adds a node. Operands are values, or numbers that become constants with the dtype of the first
/// value.
pub(crate) fn add(
    graph: &SharedGraph,
    name: &str,
    operands: &[Bound<'_, PyAny>],
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<Value>> {
    let given: Vec<(String, Bound<'_, PyAny>)> = match given {
        Some(given) => given
            .iter()
            .map(|(k, v)| Ok((k.extract::<String>()?, v)))
            .collect::<PyResult<_>>()?,
        None => Vec::new(),
    };
    let found = candidates(name);
    let takes = |kind: &OpKind| {
        given
            .iter()
            .all(|(attr, _)| kind.attr_names().contains(&attr.as_str()))
    };
    let chosen = found
        .iter()
        .find(|(kind, _)| takes(kind))
        .or_else(|| found.first());
    let Some(&(kind, function)) = chosen else {
        return Err(GraphError::new_err(format!(
            "unknown operator `{name}`; tercet.operators() lists all operators"
        )));
    };
    let mut attrs = Vec::new();
    for (attr, value) in &given {
        let kinds = kind.attr_kinds();
        let takes = kinds.iter().find(|(name, _)| name == attr);
        // The operator rejects unknown attribute names and lists the known ones.
        let literal = to_literal(value, takes.map_or("", |(_, kind)| kind))?;
        attrs.push((attr.clone(), literal));
    }
    complete(graph, kind, function, &mut attrs);
    let op = kind
        .parse(&attrs)
        .map_err(|e| GraphError::new_err(format!("{name}: {}", tercet::one_line(&e))))?;
    let operands = operand_values(graph, operands)?;
    let mut graph = lock(graph);
    let value = graph.add(op, &operands).map_err(errors::graph)?;
    let results = graph.node(value.node).outputs.len();
    Ok((0..results).map(|port| value.port(port as u8)).collect())
}

/// Adds omitted attributes that have an obvious value: the function of a family, the stream of
/// random numbers, and `none` if it is allowed.
fn complete(
    graph: &SharedGraph,
    kind: OpKind,
    function: Option<&str>,
    attrs: &mut Vec<(String, AttrLiteral)>,
) {
    for (attr, takes) in kind.attr_kinds() {
        if attrs.iter().any(|(name, _)| name == attr) {
            continue;
        }
        let literal = match (attr, function) {
            ("f", Some(function)) => AttrLiteral::Ident(function.to_string()),
            ("stream", _) => AttrLiteral::Int(lock(graph).len() as i128),
            _ if takes.ends_with("or `none`") => AttrLiteral::Ident("none".into()),
            _ => continue,
        };
        attrs.push((attr.to_string(), literal));
    }
}

fn operand_values(graph: &SharedGraph, operands: &[Bound<'_, PyAny>]) -> PyResult<Vec<Value>> {
    let first = operands.iter().find_map(|o| o.cast::<PyValue>().ok());
    let dtype = match first {
        Some(value) => lock(graph).ty(own(graph, value.get())?).dtype,
        None => DType::F32,
    };
    let value = |operand: &Bound<'_, PyAny>| {
        if let Ok(value) = operand.cast::<PyValue>() {
            return own(graph, value.get());
        }
        let tensor = array::to_tensor("operand", operand, dtype)?;
        lock(graph).constant(tensor).map_err(errors::graph)
    };
    operands.iter().map(value).collect()
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
    if candidates(name).is_empty() {
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
        results(
            py,
            &self.graph,
            add(&self.graph, &self.name, &all, attributes)?,
        )
    }

    /// Description of the operator, its operands and its attributes.
    #[getter]
    fn doc(&self) -> String {
        let docs = candidates(&self.name).into_iter().map(|(kind, _)| {
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

    fn __repr__(&self) -> String {
        format!("<tercet operator {}>", self.name)
    }
}
