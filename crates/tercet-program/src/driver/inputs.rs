//! Inputs of an executable: device tensors bound to them, and which of them are unchanged since the
//! previous run.
//!
//! Only the host, and copies that it requests, write the input buffer. An input that did not change
//! since the previous run is therefore still on the device and is not uploaded again.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{DeviceMemory, DeviceTensor, find_port, no_run};
use tercet_ir::{RunError, Signature, Tensor, TensorIdentity, TensorType};

use super::{GpuExecutable, LoadedProgram, ReadbackRange};
use crate::device_data;

/// A device buffer that holds one tensor. After it is dropped, its memory stays allocated until the
/// device no longer uses it.
pub trait SharedBuffer: Send + Sync + 'static {
    /// Name of the executor.
    fn device(&self) -> &'static str;

    /// Reads the first `bytes` bytes of the buffer, a multiple of 4.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn read(&self, bytes: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError>;
}

/// A tensor in a separate [`SharedBuffer`], stored row-major as in a slot, with I64 narrowed to
/// I32.
struct DeviceInput<S>(S);

impl<S: SharedBuffer> DeviceMemory for DeviceInput<S> {
    fn device(&self) -> &'static str {
        self.0.device()
    }

    fn read(&self, ty: &TensorType) -> Result<Tensor, RunError> {
        let mut tensor = Tensor::zeros(ty.clone())?;
        if ty.numel() > 0 {
            let take = &mut |bytes: &[u8]| device_data::decode(bytes, &mut tensor);
            self.0.read(whole_words(ty), take)?;
        }
        Ok(tensor)
    }
}

/// Size of a tensor on the device in bytes, rounded up to whole words.
fn whole_words(ty: &TensorType) -> u64 {
    device_data::device_bytes(ty).next_multiple_of(4) as u64
}

/// Maximum size of inputs that are compared byte by byte with the previous run's input. Larger
/// inputs are compared by tensor identity, which changes with every write.
const COMPARED_BYTES: usize = 4 << 10;

/// What the host knows about the contents of an input slot on the device.
enum SlotContents {
    /// The host does not know the contents.
    Unknown,
    /// The contents equal these bytes of a host tensor.
    Bytes(Vec<u8>),
    /// The contents equal the host tensor with this identity.
    Tensor(TensorIdentity),
    /// A device tensor.
    Device(DeviceTensor),
}

impl SlotContents {
    fn is(&self, tensor: &Tensor) -> bool {
        match self {
            SlotContents::Unknown | SlotContents::Device(_) => false,
            SlotContents::Bytes(bytes) => bytes == tensor.loose_bytes(),
            SlotContents::Tensor(known) => known.is(tensor),
        }
    }

    /// Records a host tensor as the slot's contents; reuses the memory of the previous record if
    /// possible.
    fn store(&mut self, tensor: &Tensor) {
        let bytes = tensor.loose_bytes();
        match self {
            _ if bytes.len() > COMPARED_BYTES => *self = SlotContents::Tensor(tensor.identity()),
            SlotContents::Bytes(own) => {
                own.clear();
                own.extend_from_slice(bytes);
            }
            SlotContents::Unknown | SlotContents::Tensor(_) | SlotContents::Device(_) => {
                *self = SlotContents::Bytes(bytes.to_vec());
            }
        }
    }
}

/// The inputs of an executable, in signature order.
pub(super) struct InputSlots {
    bound: Vec<Option<DeviceTensor>>,
    contents: Vec<SlotContents>,
}

impl InputSlots {
    pub(super) fn new(count: usize) -> InputSlots {
        InputSlots {
            bound: vec![None; count],
            contents: (0..count).map(|_| SlotContents::Unknown).collect(),
        }
    }

    /// Returns the bound inputs for a cloned executable, whose slots have unknown contents.
    pub(super) fn rebound(&self) -> InputSlots {
        InputSlots {
            bound: self.bound.clone(),
            ..InputSlots::new(self.bound.len())
        }
    }

    /// Appends to `types` the types of all bound inputs whose names are not in it.
    pub(super) fn add_bound<'t, const N: usize>(
        &'t self,
        signature: &'t Signature,
        types: &mut SmallVec<[(&'t str, &'t TensorType); N]>,
    ) {
        for (port, bound) in signature.inputs.iter().zip(&self.bound) {
            if let Some(tensor) = bound
                && !types.iter().any(|(name, _)| *name == port.name)
            {
                types.push((&port.name, tensor.ty()));
            }
        }
    }
}

impl<D: LoadedProgram> GpuExecutable<D> {
    /// Derives the symbol values of a run from the types of `inputs` and of the bound inputs.
    pub(super) fn bind_sizes(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), RunError> {
        let signature = &self.program.signature;
        let given = inputs.iter().map(|(name, tensor)| (*name, tensor.ty()));
        let mut types: SmallVec<[(&str, &TensorType); 16]> = given.collect();
        self.inputs.add_bound(signature, &mut types);
        signature.bind_types(&types, &self.bounds, &mut self.sizes)
    }

    /// Whether the slot of an input already contains the value of this host tensor.
    pub(super) fn has_input(&self, at: usize, tensor: &Tensor) -> bool {
        !self.program.debug.upload && self.inputs.contents[at].is(tensor)
    }

    /// Whether the slot of an input already contains the device tensor that is bound to the input.
    pub(super) fn has_bound(&self, at: usize) -> bool {
        let held = &self.inputs.contents[at];
        if self.program.debug.upload {
            return false;
        }
        let bound = self.inputs.bound[at].as_ref();
        bound.is_some_and(|bound| matches!(held, SlotContents::Device(held) if held.is(bound)))
    }

    /// Records that the slot of an input contains the tensor provided in `inputs`.
    pub(super) fn store_input(&mut self, at: usize, inputs: &[(&str, &Tensor)]) {
        let name = &self.program.signature.inputs[at].name;
        if let Some((_, tensor)) = inputs.iter().find(|(given, _)| given == name) {
            self.inputs.contents[at].store(tensor);
        }
    }

    /// Marks the contents of an input slot as unknown to the host.
    pub(super) fn invalidate_input(&mut self, at: usize) {
        self.inputs.contents[at] = SlotContents::Unknown;
    }

    /// Uploads the tensors of `inputs` and copies bound device tensors into their slots, unless the
    /// slots already contain them.
    pub(super) fn send_inputs(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        for (at, (port, io)) in (program.signature.inputs.iter())
            .zip(&program.inputs)
            .enumerate()
        {
            if let Some((_, tensor)) = inputs.iter().find(|(name, _)| *name == port.name) {
                if self.has_input(at, tensor) {
                    continue;
                }
                let mut held =
                    std::mem::replace(&mut self.inputs.contents[at], SlotContents::Unknown);
                self.send("input", port, io, tensor)?;
                held.store(tensor);
                self.inputs.contents[at] = held;
                continue;
            }
            let Some(tensor) = self.inputs.bound[at].clone() else {
                continue; // `bind_sizes` found every input.
            };
            if self.has_bound(at) {
                continue;
            }
            self.inputs.contents[at] = SlotContents::Unknown;
            let slot = *program.slot(io.slot);
            let bytes = whole_words(tensor.ty());
            if let (Some(DeviceInput(shared)), true) = (
                tensor.memory::<DeviceInput<D::Shared>>(),
                tensor.ty().numel() > 0,
            ) {
                let range = ReadbackRange {
                    buffer: slot.buffer,
                    offset_bytes: slot.offset_bytes,
                    bytes,
                };
                self.driver.get_mut().copy_from_shared(shared, range)?;
            }
            self.inputs.contents[at] = SlotContents::Device(tensor);
        }
        Ok(())
    }

    /// Implements [`tercet_ir::Executable::upload`].
    pub(super) fn to_device(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        let mut scratch = Vec::new();
        let bytes = device_data::encode("tensor", "to upload", tensor, &mut scratch)?;
        let shared = self.driver.borrow_mut().share_bytes(bytes)?;
        let memory = Arc::new(DeviceInput(shared));
        Ok(DeviceTensor::new(tensor.ty().clone(), memory))
    }

    /// Implements [`tercet_ir::Executable::output_on_device`].
    pub(super) fn share_output(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.outputs, "output", output)?;
        let io = &program.outputs[at];
        let Some(sizes) = self.last.as_ref().filter(|_| self.flight.is_none()) else {
            return Err(no_run(port));
        };
        let ty = io.ty.eval(sizes)?;
        let slot = *program.slot(io.slot);
        let range = ReadbackRange {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: whole_words(&ty),
        };
        let memory = Arc::new(DeviceInput(self.driver.get_mut().share(range)?));
        Ok(DeviceTensor::new(ty, memory))
    }

    /// Implements [`tercet_ir::Executable::bind`]. The next run copies the bound tensor into the
    /// input slot.
    pub(super) fn bind_input(
        &mut self,
        input: &str,
        tensor: &DeviceTensor,
    ) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.inputs, "input", input)?;
        let shared = tensor.memory::<DeviceInput<D::Shared>>();
        if !shared.is_some_and(|DeviceInput(s)| self.driver.borrow().is_on_device(s)) {
            return Err(tensor.foreign(input, D::NAME));
        }
        tensor.check(port)?;
        self.inputs.bound[at] = Some(tensor.clone());
        Ok(())
    }

    /// Implements [`tercet_ir::Executable::unbind`].
    pub(super) fn unbind_input(&mut self, input: &str) -> Result<(), RunError> {
        let (at, _) = find_port(&self.program.signature.inputs, "input", input)?;
        self.inputs.bound[at] = None;
        Ok(())
    }
}
