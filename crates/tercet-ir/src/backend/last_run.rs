//! The outputs of the last run, for executors that run at once on the host.

use std::ops::Range;

use super::{Port, Signature, Wanted, find_port};
use crate::dtype::DType;
use crate::error::RunError;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// Keeps the outputs of the last run (their memory is shared, not copied) and what of them a
/// submission wants.
#[derive(Clone, Debug, Default)]
pub struct LastRun {
    outputs: Vec<Tensor>,
    ran: bool,
    pending: Vec<usize>,
}

impl LastRun {
    /// Forgets the outputs, so that their memory can be written by the next run.
    pub fn forget(&mut self) {
        self.outputs.iter_mut().for_each(Tensor::release);
        self.pending.clear();
        self.ran = false;
    }

    /// The outputs of the run before, whose memory the next run may use again.
    pub fn reuse(&mut self) -> Vec<Tensor> {
        self.pending.clear();
        self.ran = false;
        std::mem::take(&mut self.outputs)
    }

    /// Keeps the outputs of a run.
    pub fn keep(&mut self, outputs: &[Tensor]) {
        self.outputs.truncate(outputs.len());
        for (own, output) in self.outputs.iter_mut().zip(outputs) {
            own.share(output);
        }
        let new = &outputs[self.outputs.len()..];
        self.outputs.extend_from_slice(new);
        self.ran = true;
    }

    /// Says what the next [`LastRun::take`] gives.
    pub fn want(&mut self, places: Vec<usize>) {
        self.pending = places;
    }

    /// The wanted outputs, once.
    pub fn take(&mut self, outputs: &mut Vec<Tensor>) {
        outputs.clear();
        let pending = self.pending.drain(..);
        outputs.extend(pending.map(|at| self.outputs[at].clone()));
    }

    /// An output.
    ///
    /// # Errors
    /// [`RunError`] when there is no such output or no run yet.
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
    /// [`RunError`] when there is no such output, no run yet, or no such rows.
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

/// The places of the wanted outputs in the signature.
///
/// # Errors
/// [`RunError::UnknownName`] for a name that is no output's.
pub fn places(signature: &Signature, wanted: Wanted<'_>) -> Result<Vec<usize>, RunError> {
    match wanted {
        Wanted::All => Ok((0..signature.outputs.len()).collect()),
        Wanted::Only(names) => names
            .iter()
            .map(|name| Ok(find_port(&signature.outputs, "output", name)?.0))
            .collect(),
    }
}

/// The type of some rows of an output: parts along its first axis.
///
/// # Errors
/// [`RunError::Rows`] when it has no such rows.
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
