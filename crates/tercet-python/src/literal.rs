//! Conversion of Python values to operator attributes.
//!
//! Attributes follow the text form (docs/reference/text-format.md). Numbers, `True`, `None` and
//! lists map directly. A string is a string if the operator takes one. Otherwise it is parsed as
//! text form: a word (`"causal"`), a dtype, a dimension (`"2*rows+1"`) or a type (`"f32[rows,
//! 3]"`).

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use tercet::attr::AttrLiteral;
use tercet::{SubGraph, Type, parse_literal};

use crate::graph::PyGraph;
use crate::{array, errors};

/// Converts a value to a literal. `kind` is the documented type of the attribute.
///
/// # Errors
/// `TextError` for a string that is not valid text form, `TypeError` for a value of an unsupported
/// class.
pub(crate) fn to_literal(value: &Bound<'_, PyAny>, kind: &str) -> PyResult<AttrLiteral> {
    if value.is_none() {
        return Ok(AttrLiteral::Ident("none".into()));
    }
    if kind == "dtype" {
        let dtype = array::dtype_of(value)?;
        return Ok(AttrLiteral::Ident(dtype.name().into()));
    }
    // Arrays and numbers of NumPy.
    if !value.is_instance_of::<PyList>() && value.hasattr("tolist")? {
        return to_literal(&value.call_method0("tolist")?, kind);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(AttrLiteral::Ident(truth.is_true().to_string()));
    }
    if let Ok(number) = value.extract::<i128>() {
        return Ok(AttrLiteral::Int(number));
    }
    if let Ok(text) = value.extract::<String>() {
        return match kind.contains("string") {
            true => Ok(AttrLiteral::Str(text)),
            false => parse_literal(&text).map_err(errors::text),
        };
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(AttrLiteral::Float(number));
    }
    if let Ok(graph) = value.cast::<PyGraph>() {
        return Ok(AttrLiteral::Graph(SubGraph::new(
            graph.get().lock().clone(),
        )));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items: PyResult<Vec<AttrLiteral>> = value
            .try_iter()?
            .map(|item| to_literal(&item?, kind))
            .collect();
        return Ok(AttrLiteral::List(items?));
    }
    if let Ok(named) = value.cast::<PyDict>() {
        let items: PyResult<Vec<AttrLiteral>> = named
            .iter()
            .map(|(name, value)| {
                Ok(AttrLiteral::Call(
                    name.extract()?,
                    vec![to_literal(&value, kind)?],
                ))
            })
            .collect();
        return Ok(AttrLiteral::List(items?));
    }
    let class = value.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a value of class {class} cannot be an attribute; expected {kind}"
    )))
}

/// Parses a type such as `f32[rows, 3]`.
///
/// # Errors
/// `TextError`, with the position.
pub(crate) fn to_type(text: &str) -> PyResult<Type> {
    match parse_literal(text).map_err(errors::text)? {
        AttrLiteral::Type(ty) => Ok(ty),
        other => Err(errors::TextError::new_err(format!(
            "`{other}` is not a type; expected a dtype and dimensions, such as f32[rows, 3], or f32[] for a scalar"
        ))),
    }
}
