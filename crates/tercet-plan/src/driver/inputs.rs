//! Inputs between runs: what they are bound to, and what of them the device holds already.
//!
//! Nothing but the host, and copies that it asks for, writes the buffer of inputs. So an input that is what it was in
//! the run before is there still.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{DeviceMemory, DeviceTensor, find_port, no_run};
use tercet_ir::{Identity, RunError, Signature, Tensor, TensorType};

use super::{Driver, GpuExecutable, Read};
use crate::narrow;

/// A buffer on a device that holds one tensor. Dropped, it stays until the device has done with it.
pub trait SharedBuffer: Send + Sync + 'static {
    /// The executor's name.
    fn device(&self) -> &'static str;

    /// Reads its first bytes, a multiple of 4.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn read(&self, bytes: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError>;
}

/// A tensor in such a buffer, laid out and narrowed as in slots.
struct OnDevice<S>(S);

impl<S: SharedBuffer> DeviceMemory for OnDevice<S> {
    fn device(&self) -> &'static str {
        self.0.device()
    }

    fn read(&self, ty: &TensorType) -> Result<Tensor, RunError> {
        let mut tensor = Tensor::zeros(ty.clone())?;
        if ty.numel() > 0 {
            let take = &mut |bytes: &[u8]| narrow::decode(bytes, &mut tensor);
            self.0.read(whole_words(ty), take)?;
        }
        Ok(tensor)
    }
}

/// The bytes of a tensor on the device, in whole words.
fn whole_words(ty: &TensorType) -> u64 {
    narrow::device_bytes(ty).next_multiple_of(4) as u64
}

/// Inputs up to this size are compared byte by byte with a copy; of larger ones it is told whether they are the same
/// tensor, not written since.
const COMPARED_BYTES: usize = 4 << 10;

/// What an input's slot holds.
enum Held {
    /// It is not known.
    Unknown,
    /// These bytes of the host's tensor.
    Bytes(Vec<u8>),
    /// This tensor of the host.
    Tensor(Identity),
    /// This tensor of the device.
    Device(DeviceTensor),
}

impl Held {
    fn is(&self, tensor: &Tensor) -> bool {
        match self {
            Held::Unknown | Held::Device(_) => false,
            Held::Bytes(bytes) => bytes == tensor.loose_bytes(),
            Held::Tensor(known) => known.is(tensor),
        }
    }

    /// Notes a tensor, in the memory of the last one where that is possible.
    fn note(&mut self, tensor: &Tensor) {
        let bytes = tensor.loose_bytes();
        match self {
            _ if bytes.len() > COMPARED_BYTES => *self = Held::Tensor(tensor.identity()),
            Held::Bytes(own) => {
                own.clear();
                own.extend_from_slice(bytes);
            }
            Held::Unknown | Held::Tensor(_) | Held::Device(_) => {
                *self = Held::Bytes(bytes.to_vec());
            }
        }
    }
}

/// The inputs of an executable, in the order of the signature.
pub(super) struct Inputs {
    bound: Vec<Option<DeviceTensor>>,
    held: Vec<Held>,
}

impl Inputs {
    pub(super) fn new(count: usize) -> Inputs {
        Inputs {
            bound: vec![None; count],
            held: (0..count).map(|_| Held::Unknown).collect(),
        }
    }

    /// The same bindings, for a clone, whose slots hold nothing yet.
    pub(super) fn rebound(&self) -> Inputs {
        Inputs {
            bound: self.bound.clone(),
            ..Inputs::new(self.bound.len())
        }
    }

    /// Adds the types of those that are bound and not among the types given.
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

impl<D: Driver> GpuExecutable<D> {
    /// The sizes of a run that is given these inputs; what is bound gives the others.
    pub(super) fn bind_sizes(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), RunError> {
        let signature = &self.program.signature;
        let given = inputs.iter().map(|(name, tensor)| (*name, tensor.ty()));
        let mut types: SmallVec<[(&str, &TensorType); 16]> = given.collect();
        self.inputs.add_bound(signature, &mut types);
        signature.bind_types(&types, &self.bounds, &mut self.sizes)
    }

    /// Whether the slot of an input holds this tensor.
    pub(super) fn has_input(&self, at: usize, tensor: &Tensor) -> bool {
        self.inputs.held[at].is(tensor)
    }

    /// Whether the slot of an input holds what it is bound to.
    pub(super) fn has_bound(&self, at: usize) -> bool {
        let held = &self.inputs.held[at];
        let bound = self.inputs.bound[at].as_ref();
        bound.is_some_and(|bound| matches!(held, Held::Device(held) if held.is(bound)))
    }

    /// The slot of an input holds what is given for it here.
    pub(super) fn note_input(&mut self, at: usize, inputs: &[(&str, &Tensor)]) {
        let name = &self.program.signature.inputs[at].name;
        if let Some((_, tensor)) = inputs.iter().find(|(given, _)| given == name) {
            self.inputs.held[at].note(tensor);
        }
    }

    /// The slot of an input holds something that the host does not know.
    pub(super) fn forget_input(&mut self, at: usize) {
        self.inputs.held[at] = Held::Unknown;
    }

    /// Sees to it that the slots hold what the run is given, else what they are bound to.
    pub(super) fn send_inputs(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        for (at, (port, io)) in (program.signature.inputs.iter())
            .zip(&program.inputs)
            .enumerate()
        {
            if let Some((_, tensor)) = inputs.iter().find(|(name, _)| *name == port.name) {
                if self.inputs.held[at].is(tensor) {
                    continue;
                }
                let mut held = std::mem::replace(&mut self.inputs.held[at], Held::Unknown);
                self.send("input", port, io, tensor)?;
                held.note(tensor);
                self.inputs.held[at] = held;
                continue;
            }
            let Some(tensor) = self.inputs.bound[at].clone() else {
                continue; // `bind_sizes` found every input.
            };
            if matches!(&self.inputs.held[at], Held::Device(held) if held.is(&tensor)) {
                continue;
            }
            self.inputs.held[at] = Held::Unknown;
            let slot = *program.slot(io.slot);
            let bytes = whole_words(tensor.ty());
            if let (Some(OnDevice(shared)), true) = (
                tensor.memory::<OnDevice<D::Shared>>(),
                tensor.ty().numel() > 0,
            ) {
                let range = Read {
                    buffer: slot.buffer,
                    offset_bytes: slot.offset_bytes,
                    bytes,
                };
                self.driver.get_mut().take(shared, range)?;
            }
            self.inputs.held[at] = Held::Device(tensor);
        }
        Ok(())
    }

    /// See [`tercet_ir::Executable::upload`].
    pub(super) fn to_device(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        let mut scratch = Vec::new();
        let bytes = narrow::encode("tensor", "to upload", tensor, &mut scratch)?;
        let shared = self.driver.borrow_mut().share_bytes(bytes)?;
        let memory = Arc::new(OnDevice(shared));
        Ok(DeviceTensor::new(tensor.ty().clone(), memory))
    }

    /// See [`tercet_ir::Executable::output_on_device`].
    pub(super) fn share_output(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.outputs, "output", output)?;
        let io = &program.outputs[at];
        let Some(sizes) = self.last.as_ref().filter(|_| self.flight.is_none()) else {
            return Err(no_run(port));
        };
        let ty = io.ty.eval(sizes)?;
        let slot = *program.slot(io.slot);
        let range = Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: whole_words(&ty),
        };
        let memory = Arc::new(OnDevice(self.driver.get_mut().share(range)?));
        Ok(DeviceTensor::new(ty, memory))
    }

    /// See [`tercet_ir::Executable::bind`]; nothing is copied before the next run.
    pub(super) fn bind_input(
        &mut self,
        input: &str,
        tensor: &DeviceTensor,
    ) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.inputs, "input", input)?;
        let shared = tensor.memory::<OnDevice<D::Shared>>();
        if !shared.is_some_and(|OnDevice(s)| self.driver.borrow().reaches(s)) {
            return Err(tensor.foreign(input, D::NAME));
        }
        tensor.check(port)?;
        self.inputs.bound[at] = Some(tensor.clone());
        Ok(())
    }

    /// See [`tercet_ir::Executable::unbind`].
    pub(super) fn unbind_input(&mut self, input: &str) -> Result<(), RunError> {
        let (at, _) = find_port(&self.program.signature.inputs, "input", input)?;
        self.inputs.bound[at] = None;
        Ok(())
    }
}
