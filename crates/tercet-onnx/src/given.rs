//! What a run of a session is given: tensors on the host, and on the device.

use tercet_ir::{DeviceTensor, RunError, Tensor, TensorType};

/// What is given for an input, and where it is.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Host(&'a Tensor),
    Device(&'a DeviceTensor),
}

/// An input with what is given for it.
pub(crate) type Given<'a> = (&'a str, Source<'a>);

impl Source<'_> {
    pub(crate) fn ty(&self) -> &TensorType {
        match self {
            Source::Host(tensor) => tensor.ty(),
            Source::Device(tensor) => tensor.ty(),
        }
    }

    /// On the host, in memory of its own: that of an input may be written into after the run, by whoever lent it.
    pub(crate) fn read(&self) -> Result<Tensor, RunError> {
        match self {
            Source::Host(tensor) => {
                let mut own = (*tensor).clone();
                own.bytes_mut();
                Ok(own)
            }
            Source::Device(tensor) => tensor.read(),
        }
    }
}

/// The types of what is given.
pub(crate) fn types<'a>(inputs: &'a [Given<'_>]) -> Vec<(&'a str, &'a TensorType)> {
    inputs
        .iter()
        .map(|(name, source)| (*name, source.ty()))
        .collect()
}

/// Whether what is given is this tensor to the bit.
pub(crate) fn same(source: &Source<'_>, value: &Tensor) -> bool {
    let ty = source.ty();
    if ty.dtype != value.dtype() || ty.shape != value.shape() {
        return false;
    }
    match source {
        Source::Host(tensor) => tensor.bytes() == value.bytes(),
        Source::Device(tensor) => tensor.read().is_ok_and(|own| own.bytes() == value.bytes()),
    }
}
