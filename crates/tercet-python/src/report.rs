//! What `explain` and `verify` say.

use pyo3::prelude::*;
use tercet::{Explanation, Verification};

use crate::html;

/// What a compilation would run: kernels, dispatches, barriers, memory.
#[pyclass(name = "Explanation", module = "tercet", frozen)]
pub(crate) struct PyExplanation(Explanation);

impl PyExplanation {
    pub(crate) fn new(explanation: Explanation) -> PyExplanation {
        PyExplanation(explanation)
    }
}

#[pymethods]
impl PyExplanation {
    /// The executor.
    #[getter]
    fn target(&self) -> &str {
        self.0.target
    }

    /// Kernel calls of a run.
    #[getter]
    fn dispatches(&self) -> usize {
        self.0.dispatches
    }

    /// Points where a run waits for all work before.
    #[getter]
    fn barriers(&self) -> usize {
        self.0.barriers
    }

    /// The most bytes that a session holds at once.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.0.peak_bytes()
    }

    /// Operator, kernel and calls in one run.
    #[getter]
    fn kernels(&self) -> Vec<(String, String, usize)> {
        self.0
            .kernels
            .iter()
            .map(|k| (k.op.to_string(), k.kernel.clone(), k.calls))
            .collect()
    }

    /// Every step of the program; empty on the CPU.
    #[getter]
    fn listing(&self) -> &str {
        &self.0.listing
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn _repr_html_(&self) -> String {
        html::explanation(&self.0)
    }
}

/// How far every value of a graph on a device is from the reference.
#[pyclass(name = "Verification", module = "tercet", frozen)]
pub(crate) struct PyVerification(Verification);

impl PyVerification {
    pub(crate) fn new(verification: Verification) -> PyVerification {
        PyVerification(verification)
    }
}

#[pymethods]
impl PyVerification {
    /// Whether every value is within its tolerance.
    #[getter]
    fn ok(&self) -> bool {
        self.0.first_divergence().is_none()
    }

    /// Each value, its operator, and how many tolerances it is off: at most 1 is right.
    #[getter]
    fn nodes(&self) -> Vec<(String, String, f64)> {
        self.0
            .nodes
            .iter()
            .map(|n| (n.value.to_string(), n.op.to_string(), n.units))
            .collect()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn _repr_html_(&self) -> String {
        html::verification(&self.0)
    }
}
