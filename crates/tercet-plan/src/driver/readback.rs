//! Parts of outputs and states, read from the device at once or later.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use tercet_ir::backend::{Fetch, find_port, no_run, rows_of};
use tercet_ir::{Bindings, RunError, Tensor, TensorType};

use super::{Driver, GpuExecutable, Read};
use crate::narrow;
use crate::program::Slot;

/// Bytes of the device on their way.
pub type Fetched = Pin<Box<dyn Future<Output = Result<Vec<u8>, RunError>> + Send>>;

/// A tensor on the device: where its bytes are.
pub(super) struct Part {
    ty: TensorType,
    /// None for a tensor without elements.
    read: Option<Read>,
    /// How many bytes of the range come before the tensor's.
    skip: usize,
}

impl Part {
    /// Bytes of a slot from `start` on.
    fn of(slot: &Slot, start: usize, ty: TensorType) -> Part {
        let (aligned, bytes) = (start / 4 * 4, narrow::device_bytes(&ty));
        let read = Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes + aligned as u64,
            bytes: ((start + bytes).next_multiple_of(4) - aligned) as u64,
        };
        Part {
            read: (ty.numel() > 0).then_some(read),
            ty,
            skip: start - aligned,
        }
    }

    /// Reads it, waiting for the device.
    pub(super) fn read_now<D: Driver>(self, driver: &mut D) -> Result<Tensor, RunError> {
        let mut tensor = Tensor::zeros(self.ty)?;
        if let Some(read) = self.read {
            driver.read(read, &mut |bytes| {
                narrow::decode(&bytes[self.skip..], &mut tensor);
            })?;
        }
        Ok(tensor)
    }

    /// Has it read.
    pub(super) fn fetch<D: Driver>(self, driver: &mut D) -> Result<Fetch, RunError> {
        let mut tensor = Tensor::zeros(self.ty)?;
        let Some(read) = self.read else {
            return Ok(Box::pin(std::future::ready(Ok(tensor))));
        };
        let (fetched, skip) = (driver.fetch(read)?, self.skip);
        Ok(Box::pin(async move {
            narrow::decode(&fetched.await?[skip..], &mut tensor);
            Ok(tensor)
        }))
    }
}

impl<D: Driver> GpuExecutable<D> {
    /// Rows of an output of the last completed run.
    pub(super) fn output_part(&self, output: &str, rows: &Range<usize>) -> Result<Part, RunError> {
        let (at, port) = find_port(&self.program.signature.outputs, "output", output)?;
        let io = &self.program.outputs[at];
        let Some(sizes) = &self.last else {
            return Err(no_run(port));
        };
        let part = rows_of(output, &io.ty.eval(sizes)?, rows)?;
        let row = narrow::device_bytes(&part) / rows.len().max(1);
        Ok(Part::of(self.program.slot(io.slot), row * rows.start, part))
    }

    /// A state.
    pub(super) fn state_part(&self, name: &str) -> Result<Part, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let ty = port.ty.eval(&Bindings::new())?;
        let slot = self.program.slot(self.program.states[at].slot);
        Ok(Part::of(slot, 0, ty))
    }
}
