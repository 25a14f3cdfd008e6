//! Readback of output rows and of states, blocking or as a future.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use tercet_ir::backend::{
    TensorFuture, elements_of, find_port, no_run, replaced_elements, rows_of,
};
use tercet_ir::{Bindings, RunError, Tensor, TensorType};

use super::{GpuExecutable, LoadedProgram, ReadbackRange};
use crate::device_data::{self, device_dtype};
use crate::program::BufferSlot;

/// Future of the bytes of a buffer range that is being read back from the device.
pub type PendingReadback = Pin<Box<dyn Future<Output = Result<Vec<u8>, RunError>> + Send>>;

/// A tensor to read back, with its buffer range on the device.
pub(super) struct TensorReadback {
    ty: TensorType,
    /// The word-aligned range to read back; `None` for an empty tensor.
    read: Option<ReadbackRange>,
    /// Number of bytes at the start of the range that do not belong to the tensor.
    skip: usize,
}

impl TensorReadback {
    /// Readback of a tensor of type `ty` that starts at byte `start` of a slot.
    fn new(slot: &BufferSlot, start: usize, ty: TensorType) -> TensorReadback {
        let (aligned, bytes) = (start / 4 * 4, device_data::device_bytes(&ty));
        let read = ReadbackRange {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes + aligned as u64,
            bytes: ((start + bytes).next_multiple_of(4) - aligned) as u64,
        };
        TensorReadback {
            read: (ty.numel() > 0).then_some(read),
            ty,
            skip: start - aligned,
        }
    }

    /// Reads the tensor back, blocking until the device is done.
    pub(super) fn read_now<D: LoadedProgram>(self, driver: &mut D) -> Result<Tensor, RunError> {
        let mut tensor = Tensor::zeros(self.ty)?;
        if let Some(read) = self.read {
            driver.read(read, &mut |bytes| {
                device_data::decode(&bytes[self.skip..], &mut tensor);
            })?;
        }
        Ok(tensor)
    }

    /// Starts the readback and returns a future of the tensor.
    pub(super) fn fetch<D: LoadedProgram>(self, driver: &mut D) -> Result<TensorFuture, RunError> {
        let mut tensor = Tensor::zeros(self.ty)?;
        let Some(read) = self.read else {
            return Ok(Box::pin(std::future::ready(Ok(tensor))));
        };
        let (fetched, skip) = (driver.fetch(read)?, self.skip);
        Ok(Box::pin(async move {
            device_data::decode(&fetched.await?[skip..], &mut tensor);
            Ok(tensor)
        }))
    }
}

impl<D: LoadedProgram> GpuExecutable<D> {
    /// Readback of these rows of an output of the last completed run.
    pub(super) fn output_part(
        &self,
        output: &str,
        rows: &Range<usize>,
    ) -> Result<TensorReadback, RunError> {
        let (at, port) = find_port(&self.program.signature.outputs, "output", output)?;
        let io = &self.program.outputs[at];
        let Some(sizes) = &self.last else {
            return Err(no_run(port));
        };
        let part = rows_of(output, &io.ty.eval(sizes)?, rows)?;
        let row = device_data::device_bytes(&part) / rows.len().max(1);
        Ok(TensorReadback::new(
            self.program.slot(io.slot),
            row * rows.start,
            part,
        ))
    }

    /// Readback of the current value of a state.
    pub(super) fn state_part(&self, name: &str) -> Result<TensorReadback, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let ty = port.ty.eval(&Bindings::new())?;
        let slot = self.program.slot(self.program.states[at].slot);
        Ok(TensorReadback::new(slot, 0, ty))
    }

    /// Readback of these elements of a state.
    pub(super) fn state_elements(
        &self,
        name: &str,
        elements: &Range<usize>,
    ) -> Result<TensorReadback, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let ty = elements_of(port, elements)?;
        let slot = self.program.slot(self.program.states[at].slot);
        let start = elements.start * device_dtype(ty.dtype).size_bytes();
        Ok(TensorReadback::new(slot, start, ty))
    }

    /// Replaces elements of a state. Drivers write whole words, so words that the elements cover in
    /// part are read first.
    pub(super) fn write_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.states, "state", name)?;
        replaced_elements(port, first, values)?;
        let slot = *program.slot(program.states[at].slot);
        let bytes = device_data::encode("state", &port.name, values, &mut self.scratch)?;
        let start = first * device_dtype(values.dtype()).size_bytes();
        let end = start + bytes.len();
        if bytes.is_empty() {
            return Ok(());
        }
        let driver = self.driver.get_mut();
        let aligned = start / 4 * 4;
        if start == aligned && end.is_multiple_of(4) {
            return driver.write(slot.buffer, slot.offset_bytes + start as u64, bytes);
        }
        let mut words = vec![0; end.next_multiple_of(4) - aligned];
        let last = words.len() - 4;
        for word in [0, last] {
            let read = ReadbackRange {
                buffer: slot.buffer,
                offset_bytes: slot.offset_bytes + (aligned + word) as u64,
                bytes: 4,
            };
            driver.read(read, &mut |read| {
                words[word..word + 4].copy_from_slice(&read[..4]);
            })?;
        }
        words[start - aligned..end - aligned].copy_from_slice(bytes);
        driver.write(slot.buffer, slot.offset_bytes + aligned as u64, &words)
    }
}
