//! The outputs of the last run, for executors that compute synchronously on the host.

use std::ops::Range;

use tercet_tensor::{DType, Tensor, TensorType};

use super::{OutputSelection, Port, Signature, find_port};
use crate::error::RunError;

/// Stores the outputs of the last run, and which of them the last submission requested. The memory
/// is shared, not copied.
///
/// ```
/// use tercet_ir::{DType, Graph, Signature, Tensor, Type, backend::LastRun};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [3]))?;
/// g.output("y", x)?;
/// let signature = Signature::of(&g);
/// let mut last = LastRun::default();
/// assert!(last.tensor(&signature, "y").is_err());
/// last.retain(&[Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?]);
/// let rows = last.rows(&signature, "y", &(1..3))?;
/// assert_eq!(rows.as_slice::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LastRun {
    outputs: Vec<Tensor>,
    ran: bool,
    pending: Vec<usize>,
}

impl LastRun {
    /// Drops the outputs, so that the next run can write to their memory.
    pub fn clear(&mut self) {
        self.outputs.iter_mut().for_each(Tensor::release);
        self.pending.clear();
        self.ran = false;
    }

    /// Returns the previous run's outputs, so that the next run can reuse their memory.
    pub fn reuse(&mut self) -> Vec<Tensor> {
        self.pending.clear();
        self.ran = false;
        std::mem::take(&mut self.outputs)
    }

    /// Stores the outputs of a run.
    pub fn retain(&mut self, outputs: &[Tensor]) {
        self.outputs.truncate(outputs.len());
        for (own, output) in self.outputs.iter_mut().zip(outputs) {
            own.share(output);
        }
        let new = &outputs[self.outputs.len()..];
        self.outputs.extend_from_slice(new);
        self.ran = true;
    }

    /// Sets the output indices that the next [`LastRun::take_requested`] returns.
    pub fn request(&mut self, places: Vec<usize>) {
        self.pending = places;
    }

    /// Returns the requested outputs, once.
    pub fn take_requested(&mut self, outputs: &mut Vec<Tensor>) {
        outputs.clear();
        let pending = self.pending.drain(..);
        outputs.extend(pending.map(|at| self.outputs[at].clone()));
    }

    /// An output of the last run.
    ///
    /// # Errors
    /// [`RunError`] when the output does not exist or no run has completed.
    pub fn tensor(&self, signature: &Signature, output: &str) -> Result<&Tensor, RunError> {
        let (at, port) = find_port(&signature.outputs, "output", output)?;
        self.outputs
            .get(at)
            .filter(|_| self.ran)
            .ok_or_else(|| no_run(port))
    }

    /// Rows of an output.
    ///
    /// # Errors
    /// [`RunError`] when the output or the rows do not exist, or no run has completed.
    pub fn rows(
        &self,
        signature: &Signature,
        output: &str,
        rows: &Range<usize>,
    ) -> Result<Tensor, RunError> {
        let tensor = self.tensor(signature, output)?;
        let part = rows_of(output, tensor.ty(), rows)?;
        let row_bytes = part.size_bytes().checked_div(rows.len()).unwrap_or(0);
        let bytes = &tensor.bytes()[row_bytes * rows.start..row_bytes * rows.end];
        debug_assert!(part.dtype != DType::Bool || bytes.iter().all(|b| *b < 2));
        Ok(Tensor::from_bytes(part, bytes)?)
    }
}

/// The error of reading an output before any run.
pub fn no_run(port: &Port) -> RunError {
    RunError::Missing {
        what: "a completed run for output",
        name: port.name.clone(),
        ty: port.ty.clone(),
    }
}

/// The indices of the requested outputs in the signature.
///
/// # Errors
/// [`RunError::UnknownName`] for a name that is not an output.
pub fn places(signature: &Signature, wanted: OutputSelection<'_>) -> Result<Vec<usize>, RunError> {
    match wanted {
        OutputSelection::All => Ok((0..signature.outputs.len()).collect()),
        OutputSelection::Only(names) => names
            .iter()
            .map(|name| Ok(find_port(&signature.outputs, "output", name)?.0))
            .collect(),
    }
}

/// The type of a row range of an output, taken along its first axis.
///
/// # Errors
/// [`RunError::Rows`] when the range exceeds the output.
pub fn rows_of(name: &str, ty: &TensorType, rows: &Range<usize>) -> Result<TensorType, RunError> {
    match ty.shape.first() {
        Some(&n) if rows.start <= rows.end && rows.end <= n => {
            let mut part = ty.clone();
            part.shape[0] = rows.len();
            Ok(part)
        }
        Some(_) | None => Err(RunError::Rows {
            name: name.to_string(),
            ty: ty.clone(),
            start: rows.start,
            end: rows.end,
        }),
    }
}
