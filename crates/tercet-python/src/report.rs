//! What `explain`, `verify` and `trace` say.

use std::fmt::Write;
use std::path::PathBuf;

use pyo3::prelude::*;
use tercet::{Explanation, StepTime, Verification};

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

/// Runs of a graph and when each of their steps ran.
#[pyclass(name = "Trace", module = "tercet", frozen)]
pub(crate) struct PyTrace {
    /// When a run began and how long it took, in microseconds from the first one's beginning, and its steps.
    runs: Vec<(f64, f64, Vec<StepTime>)>,
}

/// Of which run, operator, kernel, and in microseconds when and how long.
type TracedStep = (usize, String, String, f64, f64);

impl PyTrace {
    pub(crate) fn new(runs: Vec<(f64, f64, Vec<StepTime>)>) -> PyTrace {
        PyTrace { runs }
    }

    fn all(&self) -> impl Iterator<Item = TracedStep> {
        self.runs
            .iter()
            .enumerate()
            .flat_map(|(run, (at, _, steps))| {
                steps.iter().map(move |step| {
                    let (start, took) = (step.start_ns as f64 / 1e3, step.ns as f64 / 1e3);
                    (
                        run,
                        step.op.to_string(),
                        step.kernel.clone(),
                        at + start,
                        took,
                    )
                })
            })
    }
}

#[pymethods]
impl PyTrace {
    /// The run of each step (from 0), its operator, its kernel, when it began and how long it took, both in microseconds;
    /// nothing on the CPU, which does not measure them.
    #[getter]
    fn steps(&self) -> Vec<TracedStep> {
        self.all().collect()
    }

    /// How long each run took, in microseconds.
    #[getter]
    fn runs(&self) -> Vec<f64> {
        self.runs.iter().map(|(_, took, _)| *took).collect()
    }

    /// Writes a trace for ui.perfetto.dev or chrome://tracing.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut events = String::new();
        for (thread, name) in [(1, "host"), (2, "device")] {
            // Writing to a string does not fail.
            let _ = writeln!(
                events,
                "{{\"ph\": \"M\", \"pid\": 1, \"tid\": {thread}, \"name\": \"thread_name\", \"args\": {{\"name\": \"{name}\"}}}},"
            );
        }
        for (at, took, _) in &self.runs {
            let _ = writeln!(
                events,
                "{{\"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"name\": \"run\", \"ts\": {at}, \"dur\": {took}}},"
            );
        }
        for (_, op, kernel, at, took) in self.all() {
            let (op, kernel) = (escaped(&op), escaped(&kernel));
            let _ = writeln!(
                events,
                "{{\"ph\": \"X\", \"pid\": 1, \"tid\": 2, \"name\": \"{op}\", \"ts\": {at}, \"dur\": {took}, \"args\": {{\"kernel\": \"{kernel}\"}}}},"
            );
        }
        let events = events.trim_end().trim_end_matches(',');
        let document =
            format!("{{\"traceEvents\": [\n{events}\n], \"displayTimeUnit\": \"ms\"}}\n");
        Ok(py.detach(|| std::fs::write(&path, document))?)
    }

    fn __repr__(&self) -> String {
        let steps: usize = self.runs.iter().map(|(_, _, steps)| steps.len()).sum();
        format!("<tercet.Trace: {} runs, {steps} steps>", self.runs.len())
    }
}
