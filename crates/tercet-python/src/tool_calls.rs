//! Calls of tools in answers; the Python module `tercet._tool_calls` reads them.

use pyo3::prelude::*;

/// The calls of these tools in an answer.
///
/// # Errors
/// Exceptions of the Python module.
pub(crate) fn calls<'py>(
    py: Python<'py>,
    text: &str,
    names: &[String],
) -> PyResult<Bound<'py, PyAny>> {
    py.import("tercet._tool_calls")?
        .call_method1("read", (text, names.to_vec()))
}
