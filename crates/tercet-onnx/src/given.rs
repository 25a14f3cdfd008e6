//! What a run of a session is given: tensors on the host, and on the device.

use tercet_ir::{DeviceTensor, RunError, Tensor, TensorType};

/// What is given for an input, and where it is.
#[derive(Clone, Copy)]
pub(crate) enum ProvidedInputSource<'a> {
    Host(&'a Tensor),
    Device(&'a DeviceTensor),
}

/// An input with what is given for it.
pub(crate) type ProvidedInput<'a> = (&'a str, ProvidedInputSource<'a>);

impl ProvidedInputSource<'_> {
    pub(crate) fn ty(&self) -> &TensorType {
        match self {
            ProvidedInputSource::Host(tensor) => tensor.ty(),
            ProvidedInputSource::Device(tensor) => tensor.ty(),
        }
    }

    /// On the host, in memory of its own: that of an input may be written into after the run, by whoever lent it.
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

/// The types of what is given.
pub(crate) fn types<'a>(inputs: &'a [ProvidedInput<'_>]) -> Vec<(&'a str, &'a TensorType)> {
    inputs
        .iter()
        .map(|(name, source)| (*name, source.ty()))
        .collect()
}

/// Whether what is given is this tensor to the bit.
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
