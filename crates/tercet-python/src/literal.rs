//! Values of Python as attributes of operators.
//!
//! An attribute is what the text form has for it (docs/text-form.md): numbers, `True`, `None` and lists are what they
//! are; a string is a string where the operator takes one, and else what the text form spells so: a word (`"causal"`),
//! a dtype, a dimension (`"2*rows+1"`), a type (`"f32[rows, 3]"`).

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use tercet::attr::Literal;
use tercet::{SubGraph, Type, parse_literal};

use crate::errors;
use crate::graph::PyGraph;

/// The literal of a value; `kind` is what the attribute takes, in the words of the documentation.
///
/// # Errors
/// `TextError` for a string that the text form does not have, `TypeError` for a value of another class.
pub(crate) fn to_literal(value: &Bound<'_, PyAny>, kind: &str) -> PyResult<Literal> {
    if value.is_none() {
        return Ok(Literal::Ident("none".into()));
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Literal::Ident(truth.is_true().to_string()));
    }
    if let Ok(number) = value.extract::<i128>() {
        return Ok(Literal::Int(number));
    }
    if let Ok(text) = value.extract::<String>() {
        return match kind.contains("string") {
            true => Ok(Literal::Str(text)),
            false => parse_literal(&text).map_err(errors::text),
        };
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(Literal::Float(number));
    }
    if let Ok(graph) = value.cast::<PyGraph>() {
        return Ok(Literal::Graph(SubGraph::new(graph.get().lock().clone())));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items: PyResult<Vec<Literal>> = value
            .try_iter()?
            .map(|item| to_literal(&item?, kind))
            .collect();
        return Ok(Literal::List(items?));
    }
    if let Ok(named) = value.cast::<PyDict>() {
        let items: PyResult<Vec<Literal>> = named
            .iter()
            .map(|(name, value)| {
                Ok(Literal::Call(
                    name.extract()?,
                    vec![to_literal(&value, kind)?],
                ))
            })
            .collect();
        return Ok(Literal::List(items?));
    }
    let class = value.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a value of class {class} is no attribute; expected {kind}"
    )))
}

/// The type of a text such as `f32[rows, 3]`.
///
/// # Errors
/// `TextError` with the place.
pub(crate) fn to_type(text: &str) -> PyResult<Type> {
    match parse_literal(text).map_err(errors::text)? {
        Literal::Type(ty) => Ok(ty),
        other => Err(errors::TextError::new_err(format!(
            "`{other}` is no type; write a dtype and dimensions, such as f32[rows, 3], or f32[] for a number"
        ))),
    }
}
