//! Executable inputs that are bound to host tensors. On the CPU, device memory is a shared tensor.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{DeviceMemory, DeviceTensor, find_port};
use tercet_ir::{RunError, Signature, Tensor, TensorType};

/// A tensor in host memory, usable by the fast executor and the reference executor.
struct HostMemory(Tensor);

impl DeviceMemory for HostMemory {
    fn device(&self) -> &'static str {
        "cpu"
    }

    fn read(&self, _: &TensorType) -> Result<Tensor, RunError> {
        Ok(self.0.clone())
    }
}

/// Wraps a host tensor as a [`DeviceTensor`].
pub(crate) fn on_host(tensor: Tensor) -> DeviceTensor {
    DeviceTensor::new(tensor.ty().clone(), Arc::new(HostMemory(tensor)))
}

/// Inputs of a run: (name, tensor) pairs.
pub(crate) type RunInputs<'a> = SmallVec<[(&'a str, &'a Tensor); 16]>;

/// Bound inputs of an executable, as (name, tensor) pairs.
#[derive(Clone, Default)]
pub(crate) struct BoundInputs(Vec<(String, Tensor)>);

impl BoundInputs {
    /// Binds an input to a tensor.
    ///
    /// # Errors
    /// [`RunError`] if the input does not exist, its type differs, or the tensor is not in host
    /// memory.
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

    /// Removes the binding of an input.
    ///
    /// # Errors
    /// [`RunError::UnknownName`] if the input does not exist.
    pub(crate) fn unbind(&mut self, signature: &Signature, input: &str) -> Result<(), RunError> {
        find_port(&signature.inputs, "input", input)?;
        self.0.retain(|(name, _)| name != input);
        Ok(())
    }

    /// Inputs of a run: the provided ones, then bound inputs that were not provided.
    pub(crate) fn with<'a>(&'a self, inputs: &'a [(&'a str, &'a Tensor)]) -> RunInputs<'a> {
        let is_given = |name: &str| inputs.iter().any(|(n, _)| *n == name);
        let bound = self.0.iter().filter(|(name, _)| !is_given(name));
        let bound = bound.map(|(name, tensor)| (name.as_str(), tensor));
        inputs.iter().copied().chain(bound).collect()
    }
}
