//! The exceptions of the module: a class for each kind of failure, under one.
//!
//! Messages are the engine's, with their causes in one line.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError};
use pyo3::prelude::*;
use tercet::one_line;

create_exception!(
    tercet,
    TercetError,
    PyException,
    "Anything that Tercet refuses or that fails in it."
);
create_exception!(
    tercet,
    GraphError,
    TercetError,
    "An operator does not accept its operands or attributes, or a name is taken."
);
create_exception!(
    tercet,
    TextError,
    TercetError,
    "A text is not a graph, a type or a value; the message names line and column."
);
create_exception!(
    tercet,
    TensorError,
    TercetError,
    "An array cannot be a tensor: its dtype, or the number of its elements."
);
create_exception!(
    tercet,
    DeviceError,
    TercetError,
    "There is no such device in this build or on this machine."
);
create_exception!(
    tercet,
    CompileError,
    TercetError,
    "A device cannot run the graph: every node is listed with the reason and a remedy."
);
create_exception!(
    tercet,
    RunError,
    TercetError,
    "A run failed: the message names the input, symbol or node."
);
create_exception!(
    tercet,
    GradientError,
    TercetError,
    "A gradient does not exist; the message names the node in the way."
);
create_exception!(
    tercet,
    ModelError,
    TercetError,
    "A model file, configuration, tokenizer or weight was refused, or a model could not be run."
);

create_exception!(
    tercet,
    TrainError,
    TercetError,
    "A training was refused: its step, its data, or its checkpoint."
);

/// An exception of class `E` with the whole message of `e`.
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

pub(crate) fn verify(e: tercet::VerifyError) -> PyErr {
    match e {
        tercet::VerifyError::Graph(_) | tercet::VerifyError::Compile { .. } => {
            raise::<CompileError>(&e)
        }
        tercet::VerifyError::Missing { .. } | tercet::VerifyError::Run { .. } => {
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

/// Adds the classes to the module.
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
