//! Inputs that are bound to tensors: on the host, a device's memory is that of tensors, which are shared.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{DeviceMemory, DeviceTensor, find_port};
use tercet_ir::{RunError, Signature, Tensor, TensorType};

/// A tensor in the memory of the host, which the fast executor and the reference share.
struct HostMemory(Tensor);

impl DeviceMemory for HostMemory {
    fn device(&self) -> &'static str {
        "cpu"
    }

    fn read(&self, _: &TensorType) -> Result<Tensor, RunError> {
        Ok(self.0.clone())
    }
}

/// A tensor as one of the host's devices.
pub(crate) fn on_host(tensor: Tensor) -> DeviceTensor {
    DeviceTensor::new(tensor.ty().clone(), Arc::new(HostMemory(tensor)))
}

/// Inputs of a run.
pub(crate) type Given<'a> = SmallVec<[(&'a str, &'a Tensor); 16]>;

/// The inputs of an executable that are bound, by name.
#[derive(Clone, Default)]
pub(crate) struct Bound(Vec<(String, Tensor)>);

impl Bound {
    /// Binds an input.
    ///
    /// # Errors
    /// [`RunError`] when there is no such input, its type differs, or the tensor is not the host's.
    pub(crate) fn bind(
        &mut self,
        signature: &Signature,
        own: &'static str,
        input: &str,
        tensor: &DeviceTensor,
    ) -> Result<(), RunError> {
        let (_, port) = find_port(&signature.inputs, "input", input)?;
        let Some(HostMemory(memory)) = tensor.memory() else {
            return Err(tensor.foreign(input, own));
        };
        tensor.check(port)?;
        self.0.retain(|(name, _)| name != input);
        self.0.push((input.to_string(), memory.clone()));
        Ok(())
    }

    /// Ends a binding.
    ///
    /// # Errors
    /// [`RunError::UnknownName`].
    pub(crate) fn unbind(&mut self, signature: &Signature, input: &str) -> Result<(), RunError> {
        find_port(&signature.inputs, "input", input)?;
        self.0.retain(|(name, _)| name != input);
        Ok(())
    }

    /// What a run is given, and what else is bound.
    pub(crate) fn with<'a>(&'a self, inputs: &'a [(&'a str, &'a Tensor)]) -> Given<'a> {
        let is_given = |name: &str| inputs.iter().any(|(n, _)| *n == name);
        let bound = self.0.iter().filter(|(name, _)| !is_given(name));
        let bound = bound.map(|(name, tensor)| (name.as_str(), tensor));
        inputs.iter().copied().chain(bound).collect()
    }
}
