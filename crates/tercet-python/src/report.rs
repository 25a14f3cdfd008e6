//! Results of `explain`, `verify` and `trace`.

use std::fmt::Write;
use std::path::PathBuf;

use pyo3::prelude::*;
use tercet::{Explanation, StepTime, Verification};

use crate::html;

/// Description of a compiled program: kernels, dispatches, barriers, memory.
#[pyclass(name = "Explanation", module = "tercet", frozen)]
pub(crate) struct PyExplanation(Explanation);

impl PyExplanation {
    pub(crate) fn new(explanation: Explanation) -> PyExplanation {
        PyExplanation(explanation)
    }
}

#[pymethods]
impl PyExplanation {
    /// Name of the executor.
    #[getter]
    fn target(&self) -> &str {
        self.0.target
    }

    /// Kernel launches per run.
    #[getter]
    fn dispatches(&self) -> usize {
        self.0.dispatches
    }

    /// Number of barriers, at which a run waits for all previous work.
    #[getter]
    fn barriers(&self) -> usize {
        self.0.barriers
    }

    /// Peak memory of a session in bytes.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.0.peak_bytes()
    }

    /// Tuples (operator, kernel, launches per run).
    #[getter]
    fn kernels(&self) -> Vec<(String, String, usize)> {
        self.0
            .kernels
            .iter()
            .map(|k| (k.op.to_string(), k.kernel.clone(), k.calls))
            .collect()
    }

    /// Listing of all steps of the program; empty on the CPU.
    #[getter]
    fn listing(&self) -> &str {
        &self.0.listing
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!(
            "<tercet.Explanation on {}: {}, {} bytes>",
            self.0.target,
            tercet::counted(self.0.dispatches, "dispatch", "dispatches"),
            self.0.peak_bytes()
        )
    }

    fn _repr_html_(&self) -> String {
        html::explanation(&self.0)
    }
}

/// Differences of all values of a graph on a device from the reference.
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

    /// Tuples (value, operator, error). The unit of an error is the tolerance of the operator: a value is
    /// correct if its error is at most 1.
    #[getter]
    fn nodes(&self) -> Vec<(String, String, f64)> {
        self.0
            .nodes
            .iter()
            .map(|n| (n.value.to_string(), n.op.to_string(), n.error_in_tolerances))
            .collect()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let state = if self.ok() { "agrees" } else { "diverges" };
        let values = tercet::counted(self.0.nodes.len(), "value", "values");
        format!("<tercet.Verification of {values}: {state}>")
    }

    fn _repr_html_(&self) -> String {
        html::verification(&self.0)
    }
}

/// Runs of a graph with the times of their steps.
#[pyclass(name = "Trace", module = "tercet", frozen)]
pub(crate) struct PyTrace {
    /// Start of each run relative to the first one and its duration, in microseconds, and its
    /// steps.
    runs: Vec<(f64, f64, Vec<StepTime>)>,
}

/// Run index, operator, kernel, start and duration; times in microseconds.
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
    /// Tuples (run, operator, kernel, start, duration), with times in microseconds and runs counted
    /// from 0. Empty on the CPU, which does not measure steps.
    #[getter]
    fn steps(&self) -> Vec<TracedStep> {
        self.all().collect()
    }

    /// Durations of the runs in microseconds.
    #[getter]
    fn runs(&self) -> Vec<f64> {
        self.runs.iter().map(|(_, took, _)| *took).collect()
    }

    /// Writes a trace file for ui.perfetto.dev or chrome://tracing.
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

    fn _repr_html_(&self) -> String {
        let rows: Vec<_> = self.runs.iter().enumerate().collect();
        let rows = rows.into_iter().map(|(run, (_, took, steps))| {
            vec![
                run.to_string(),
                format!("{took:.1}"),
                steps.len().to_string(),
            ]
        });
        html::rows("tercet.Trace", &["run", "microseconds", "steps"], rows)
    }

    fn __repr__(&self) -> String {
        let steps: usize = self.runs.iter().map(|(_, _, steps)| steps.len()).sum();
        format!("<tercet.Trace: {} runs, {steps} steps>", self.runs.len())
    }
}
