//! Calls of tools and thoughts of answers, as Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tercet_models::answer::ToolCall;

/// Calls as dictionaries, as in OpenAI's API.
///
/// # Errors
/// Errors of Python.
pub(crate) fn calls<'py>(py: Python<'py>, calls: &[ToolCall]) -> PyResult<Bound<'py, PyAny>> {
    let all = PyList::empty(py);
    for call in calls {
        let function = PyDict::new(py);
        function.set_item("name", &call.name)?;
        function.set_item("arguments", &call.arguments)?;
        let found = PyDict::new(py);
        found.set_item("id", &call.id)?;
        found.set_item("type", "function")?;
        found.set_item("function", function)?;
        all.append(found)?;
    }
    Ok(all.into_any())
}
