//! Tensors in the memory of a device, which inputs can be bound to.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Port;
use crate::error::RunError;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// Memory of a device that holds one tensor, as an executor has it. Nothing writes it after it was made.
pub trait DeviceMemory: Any + Send + Sync {
    /// The executor's name.
    fn device(&self) -> &'static str;

    /// A copy on the host of the tensor of this type that it holds.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn read(&self, ty: &TensorType) -> Result<Tensor, RunError>;
}

/// A tensor in the memory of a device. Its contents never change: executables copy from it or read it, and an output
/// that becomes one ([`Executable::output_on_device`](crate::Executable::output_on_device)) is not that of later runs.
/// Cheap to clone; the memory goes with the last clone, when the device has done with it.
#[derive(Clone)]
pub struct DeviceTensor {
    ty: TensorType,
    memory: Arc<dyn DeviceMemory>,
}

impl DeviceTensor {
    /// A tensor of this type in memory that holds it.
    pub fn new(ty: TensorType, memory: Arc<dyn DeviceMemory>) -> DeviceTensor {
        DeviceTensor { ty, memory }
    }

    /// The dtype and sizes.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The name of the executor whose device it is on.
    pub fn device(&self) -> &'static str {
        self.memory.device()
    }

    /// A copy on the host.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    pub fn read(&self) -> Result<Tensor, RunError> {
        self.memory.read(&self.ty)
    }

    /// The memory, if it is of this kind.
    pub fn memory<M: DeviceMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
    }

    /// True if both are one tensor.
    pub fn is(&self, other: &DeviceTensor) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Checks that an input can be bound to it: dtype and rank; sizes are checked in each run.
    ///
    /// # Errors
    /// [`RunError::Type`].
    pub fn check(&self, port: &Port) -> Result<(), RunError> {
        if self.ty.dtype == port.ty.dtype && self.ty.shape.len() == port.ty.rank() {
            return Ok(());
        }
        Err(RunError::Type {
            what: "input",
            name: port.name.clone(),
            expected: port.ty.clone(),
            found: self.ty.clone(),
        })
    }

    /// The error of binding it to an input of an executable of another device.
    pub fn foreign(&self, input: &str, own: &'static str) -> RunError {
        RunError::OtherDevice {
            input: input.to_string(),
            own,
            found: self.device(),
        }
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.ty, self.device())
    }
}
