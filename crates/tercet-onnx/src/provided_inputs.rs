//! The inputs of a session run: tensors on the host or on the device.

use tercet_ir::{DeviceTensor, RunError, Tensor, TensorType};

/// The tensor of an input, with its location.
#[derive(Clone, Copy)]
pub(crate) enum ProvidedInputSource<'a> {
    Host(&'a Tensor),
    Device(&'a DeviceTensor),
}

/// An input name with its tensor.
pub(crate) type ProvidedInput<'a> = (&'a str, ProvidedInputSource<'a>);

impl ProvidedInputSource<'_> {
    pub(crate) fn ty(&self) -> &TensorType {
        match self {
            ProvidedInputSource::Host(tensor) => tensor.ty(),
            ProvidedInputSource::Device(tensor) => tensor.ty(),
        }
    }

    /// Copies the tensor to host memory. The caller may overwrite a borrowed tensor after the run.
    pub(crate) fn read(&self) -> Result<Tensor, RunError> {
        match self {
            ProvidedInputSource::Host(tensor) => {
                let mut own = (*tensor).clone();
                own.bytes_mut();
                Ok(own)
            }
            ProvidedInputSource::Device(tensor) => tensor.read(),
        }
    }
}

/// The types of the provided inputs.
pub(crate) fn types<'a>(inputs: &'a [ProvidedInput<'_>]) -> Vec<(&'a str, &'a TensorType)> {
    inputs
        .iter()
        .map(|(name, source)| (*name, source.ty()))
        .collect()
}

/// Whether the input is bitwise equal to a tensor.
pub(crate) fn same(source: &ProvidedInputSource<'_>, value: &Tensor) -> bool {
    let ty = source.ty();
    if ty.dtype != value.dtype() || ty.shape != value.shape() {
        return false;
    }
    match source {
        ProvidedInputSource::Host(tensor) => tensor.bytes() == value.bytes(),
        ProvidedInputSource::Device(tensor) => {
            tensor.read().is_ok_and(|own| own.bytes() == value.bytes())
        }
    }
}
