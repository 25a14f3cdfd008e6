//! Exceptions of the module: one class per type of error, with a common base class.
//!
//! A message contains the Rust error and its causes on one line.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError};
use pyo3::prelude::*;
use tercet::one_line;

create_exception!(
    tercet,
    TercetError,
    PyException,
    "Base class of all exceptions of Tercet."
);
create_exception!(
    tercet,
    GraphError,
    TercetError,
    "An operator rejects its operands or attributes, or a name is already in use."
);
create_exception!(
    tercet,
    TextError,
    TercetError,
    "A text is not a valid graph, type or value; the message has line and column."
);
create_exception!(
    tercet,
    TensorError,
    TercetError,
    "An array cannot be converted to a tensor, because of its dtype or size."
);
create_exception!(
    tercet,
    DeviceError,
    TercetError,
    "A device is not available in this build or on this machine."
);
create_exception!(
    tercet,
    CompileError,
    TercetError,
    "A device cannot run the graph; the message lists every unsupported node with the reason and a remedy."
);
create_exception!(
    tercet,
    RunError,
    TercetError,
    "A run failed; the message names the input, symbol or node."
);
create_exception!(
    tercet,
    GradientError,
    TercetError,
    "A gradient does not exist; the message names the non-differentiable node."
);
create_exception!(
    tercet,
    ModelError,
    TercetError,
    "A model file, configuration, tokenizer or weight is invalid, or a model failed to run."
);

create_exception!(
    tercet,
    TrainError,
    TercetError,
    "A training step failed, or training data or a checkpoint is invalid."
);

/// An exception of class `E` with the full message of `e`.
pub(crate) fn raise<E: pyo3::PyTypeInfo>(e: &dyn std::error::Error) -> PyErr {
    PyErr::new::<E, _>(one_line(e))
}

pub(crate) fn graph(e: tercet::OpError) -> PyErr {
    raise::<GraphError>(&e)
}

pub(crate) fn text(e: tercet::TextError) -> PyErr {
    raise::<TextError>(&e)
}

pub(crate) fn tensor(e: tercet::TensorError) -> PyErr {
    raise::<TensorError>(&e)
}

pub(crate) fn device(e: tercet::DeviceError) -> PyErr {
    raise::<DeviceError>(&e)
}

pub(crate) fn compile(e: tercet::CompileError) -> PyErr {
    raise::<CompileError>(&e)
}

pub(crate) fn run(e: tercet::RunError) -> PyErr {
    raise::<RunError>(&e)
}

pub(crate) fn verify(e: tercet::EvaluateError) -> PyErr {
    match e {
        tercet::EvaluateError::Graph(_) | tercet::EvaluateError::Compile { .. } => {
            raise::<CompileError>(&e)
        }
        tercet::EvaluateError::Missing { .. } | tercet::EvaluateError::Run { .. } => {
            raise::<RunError>(&e)
        }
    }
}

#[cfg(feature = "train")]
pub(crate) fn train(e: tercet::train::TrainError) -> PyErr {
    match e {
        tercet::train::TrainError::Compile(e) => compile(e),
        tercet::train::TrainError::Run(e) => run(e),
        e => raise::<TrainError>(&e),
    }
}

pub(crate) fn model(e: impl Into<tercet_models::Error>) -> PyErr {
    let e = e.into();
    match &e {
        tercet_models::Error::File(tercet_models::FileError::NotFound { .. }) => {
            raise::<PyFileNotFoundError>(&e)
        }
        _ => raise::<ModelError>(&e),
    }
}

/// Adds the exception classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes = [
        ("TercetError", py.get_type::<TercetError>()),
        ("GraphError", py.get_type::<GraphError>()),
        ("TextError", py.get_type::<TextError>()),
        ("TensorError", py.get_type::<TensorError>()),
        ("DeviceError", py.get_type::<DeviceError>()),
        ("CompileError", py.get_type::<CompileError>()),
        ("RunError", py.get_type::<RunError>()),
        ("GradientError", py.get_type::<GradientError>()),
        ("ModelError", py.get_type::<ModelError>()),
        ("TrainError", py.get_type::<TrainError>()),
    ];
    classes
        .into_iter()
        .try_for_each(|(name, class)| module.add(name, class))
}
