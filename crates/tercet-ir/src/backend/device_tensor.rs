//! Tensors in device memory, to which inputs can be bound.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tercet_tensor::{Tensor, TensorType};

use super::Port;
use crate::error::RunError;

/// Device memory that holds one tensor, in the executor's representation. The memory is immutable
/// after creation.
///
/// ```
/// # use std::sync::Arc;
/// use tercet_ir::{DeviceMemory, DeviceTensor, RunError, Tensor, TensorType};
/// /// Memory of a device that is the host itself.
/// struct HostMemory(Tensor);
/// impl DeviceMemory for HostMemory {
/// #    fn device(&self) -> &'static str {
/// #        "host"
/// #    }
///     fn read(&self, _: &TensorType) -> Result<Tensor, RunError> {
///         Ok(self.0.clone())
///     }
/// }
/// let tensor = Tensor::from_slice(&[2], &[1f32, 2.0])?;
/// let on_device = DeviceTensor::new(tensor.ty().clone(), Arc::new(HostMemory(tensor)));
/// assert!(on_device.memory::<HostMemory>().is_some());
/// # Ok::<(), tercet_ir::TensorError>(())
/// ```
pub trait DeviceMemory: Any + Send + Sync {
    /// Name of the executor.
    fn device(&self) -> &'static str;

    /// Copies the stored tensor, of type `ty`, to the host.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn read(&self, ty: &TensorType) -> Result<Tensor, RunError>;
}

/// An immutable tensor in device memory. Executables read the tensor or copy from it. A tensor made
/// from an output ([`Executable::output_on_device`](crate::Executable::output_on_device)) is not
/// overwritten by later runs. A [`DeviceTensor`] is cheap to clone. The memory is freed after the
/// last clone is dropped and the device has finished using it.
///
/// ```
/// # use std::sync::Arc;
/// # use tercet_ir::{DeviceMemory, RunError, TensorType};
/// use tercet_ir::{DeviceTensor, Tensor};
/// # struct HostMemory(Tensor);
/// # impl DeviceMemory for HostMemory {
/// #     fn device(&self) -> &'static str { "host" }
/// #     fn read(&self, _: &TensorType) -> Result<Tensor, RunError> { Ok(self.0.clone()) }
/// # }
/// # fn upload(t: &Tensor) -> Result<DeviceTensor, RunError> {
/// #     Ok(DeviceTensor::new(t.ty().clone(), Arc::new(HostMemory(t.clone()))))
/// # }
/// // `upload` is that of an executable.
/// let on_device: DeviceTensor = upload(&Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// assert_eq!(format!("{on_device:?}"), "f32[2] on host");
/// assert_eq!(on_device.read()?.as_slice::<f32>()?, [1.0, 2.0]);
/// assert!(on_device.is(&on_device.clone()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceTensor {
    ty: TensorType,
    memory: Arc<dyn DeviceMemory>,
}

impl DeviceTensor {
    /// A tensor of type `ty` stored in `memory`.
    pub fn new(ty: TensorType, memory: Arc<dyn DeviceMemory>) -> DeviceTensor {
        DeviceTensor { ty, memory }
    }

    /// The tensor's dtype and sizes.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Name of the executor whose device holds the tensor.
    pub fn device(&self) -> &'static str {
        self.memory.device()
    }

    /// Copies the tensor to the host.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    pub fn read(&self) -> Result<Tensor, RunError> {
        self.memory.read(&self.ty)
    }

    /// The memory, if its Rust type is `M`.
    pub fn memory<M: DeviceMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
    }

    /// True if both are the same tensor.
    pub fn is(&self, other: &DeviceTensor) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Checks that the dtype and rank match an input; each run checks the sizes.
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

    /// The error of binding this tensor to an input of an executable on another device.
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
