//! Texts and token ids in the forms in which people pass them: one or several, in any sequence.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyString};

use crate::errors::ModelError;

/// Texts of an argument.
pub(crate) struct TextArgs {
    pub(crate) texts: Vec<String>,
    /// Whether the argument was a text and not a sequence of texts. The result then has no axis of
    /// texts.
    pub(crate) is_one: bool,
}

/// Takes a text, or any iterable of texts: lists, arrays, series, generators.
///
/// # Errors
/// `TypeError` with the position of the first item that is not a text.
pub(crate) fn texts_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<TextArgs> {
    if value.is_instance_of::<PyString>() {
        return Ok(TextArgs {
            texts: vec![value.extract()?],
            is_one: true,
        });
    }
    let wrong = |place: &str, found: &Bound<'_, PyAny>| -> PyErr {
        let class = found.get_type();
        let class = class
            .name()
            .map_or_else(|_| "object".into(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "{name}{place} is of class {class}; expected a text"
        ))
    };
    let is_bytes = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>();
    if is_bytes || value.is_instance_of::<PyDict>() {
        return Err(wrong("", value));
    }
    let mut texts = Vec::new();
    for (at, text) in value.try_iter().map_err(|_| wrong("", value))?.enumerate() {
        let text = text?;
        if !text.is_instance_of::<PyString>() {
            return Err(wrong(&format!("[{at}]"), &text));
        }
        texts.push(text.extract()?);
    }
    Ok(TextArgs {
        texts,
        is_one: false,
    })
}

/// Takes token ids: an integer, or any iterable of integers, such as an array with one axis.
///
/// # Errors
/// `TypeError` for other objects, `ModelError` for an id outside the vocabulary.
pub(crate) fn tokens_of(name: &str, value: &Bound<'_, PyAny>, vocab: usize) -> PyResult<Vec<u32>> {
    let expected = || {
        PyTypeError::new_err(format!(
            "{name} is of class {}; expected token ids: a list or an array of integers",
            value.get_type()
        ))
    };
    let id = |item: &Bound<'_, PyAny>| -> PyResult<u32> {
        let id: i128 = item
            .call_method0("__index__")
            .map_err(|_| expected())?
            .extract()?;
        let found = u32::try_from(id).ok().filter(|id| (*id as usize) < vocab);
        found.ok_or_else(|| {
            ModelError::new_err(format!(
                "{name}: token {id} is outside the vocabulary of {vocab}"
            ))
        })
    };
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        return Err(expected());
    }
    // Numbers of an array are objects of NumPy or torch; their list has Python's.
    let list = match value.hasattr("tolist")? {
        true => value.call_method0("tolist")?,
        false => value.clone(),
    };
    if list.hasattr("__index__")? && list.try_iter().is_err() {
        return Ok(vec![id(&list)?]);
    }
    let ids = list.try_iter().map_err(|_| expected())?;
    ids.map(|item| id(&item?)).collect()
}

/// Stop strings: none, one, or several.
///
/// # Errors
/// `TypeError` with the position of the first item that is not a text.
pub(crate) fn stops_of(value: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    match value {
        Some(value) if !value.is_none() => Ok(texts_of("stop", value)?.texts),
        _ => Ok(Vec::new()),
    }
}

/// An adapter of a request: its name or path.
pub(crate) fn adapter_of(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    let path: PathBuf = value.extract()?;
    Ok(Some(path.to_string_lossy().into_owned()))
}
