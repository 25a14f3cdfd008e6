//! Status codes and error handles.

use std::error::Error;
use std::ffi::{CString, c_char};

use tercet::{CompileError, DeviceError, RunError, TensorError, TextError, one_line};
use tercet_models::onnx::SessionError;
use tercet_models::{FileError, GgufError, HfError, ModelError, ModelPathError, SafeTensorsError};

use crate::boundary::{Caller, c_string};
use crate::handles::{self, HandleObject};

/// The result of a call. Later versions may add codes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TercetStatus {
    /// The call succeeded.
    Ok = 0,
    /// A pointer that must not be NULL is NULL.
    Null = 1,
    /// A handle was freed, is not from this library, or is of another type.
    Handle = 2,
    /// An argument is invalid: a number out of range, an unknown constant, options that exclude each other.
    Argument = 3,
    /// A text is not UTF-8.
    Utf8 = 4,
    /// The device is unknown, not in this build, or not on this machine.
    Device = 5,
    /// A graph in text form is invalid.
    Graph = 6,
    /// The device cannot run the graph.
    Compile = 7,
    /// A tensor has another dtype, shape or number of bytes than expected.
    Type = 8,
    /// A name is unknown, or a required one is missing: an input, output, parameter or state.
    Name = 9,
    /// A run failed, for example because an index is out of range or the device was lost.
    Run = 10,
    /// A model file is invalid, or of another kind.
    Model = 11,
    /// A file or a model does not exist.
    NotFound = 12,
    /// The model or this build does not support what was asked for.
    Unsupported = 13,
    /// Memory is not sufficient.
    Memory = 14,
    /// A callback called a function of the same handle.
    Busy = 15,
    /// A callback asked to stop, and there is no partial result.
    Cancelled = 16,
    /// A bug in Tercet; the message has the details.
    Internal = 17,
}

/// An error with its status and message.
pub struct TercetError {
    _opaque: (),
}

/// The error of a call, before it gets a handle.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) status: TercetStatus,
    pub(crate) message: String,
}

/// The object of a `TercetError`.
pub(crate) struct ErrorObject {
    status: TercetStatus,
    message: CString,
}

impl HandleObject for ErrorObject {
    const TYPE: &'static str = "TercetError";
    type Opaque = TercetError;
}

impl ErrorObject {
    pub(crate) fn new(error: &CallError) -> ErrorObject {
        ErrorObject {
            status: error.status,
            message: c_string(&error.message),
        }
    }
}

impl CallError {
    pub(crate) fn new(status: TercetStatus, message: impl Into<String>) -> CallError {
        CallError {
            status,
            message: message.into(),
        }
    }

    /// The error of an invalid argument.
    pub(crate) fn argument(message: impl Into<String>) -> CallError {
        CallError::new(TercetStatus::Argument, message)
    }
}

/// Every typed error of Tercet, with the most specific status of its causes.
impl<E: Error + 'static> From<E> for CallError {
    fn from(error: E) -> CallError {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        let mut status = None;
        while let Some(found) = cause {
            status = status_of(found).or(status);
            cause = found.source();
        }
        // All errors without a row are errors of models and their files.
        CallError::new(status.unwrap_or(TercetStatus::Model), one_line(&error))
    }
}

/// The error of a file in a reader's error, which shows it as itself, so that `source` skips it.
fn file_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a FileError> {
    match error.downcast_ref::<GgufError>() {
        Some(GgufError::File(error)) => return Some(error),
        Some(_) => return None,
        None => {}
    }
    match (
        error.downcast_ref::<HfError>(),
        error.downcast_ref::<SafeTensorsError>(),
    ) {
        (Some(HfError::File(error)), _) | (_, Some(SafeTensorsError::File(error))) => Some(error),
        _ => None,
    }
}

/// The status of an error without its causes.
fn status_of(error: &(dyn Error + 'static)) -> Option<TercetStatus> {
    if let Some(error) = error.downcast_ref::<tercet_models::Error>() {
        // These variants show their only cause as themselves, and `source` skips it.
        return match error {
            tercet_models::Error::File(error) => status_of(error),
            tercet_models::Error::Path(error) => status_of(error),
            tercet_models::Error::Model(error) => status_of(error),
            _ => None,
        };
    }
    if error.is::<DeviceError>() {
        return Some(TercetStatus::Device);
    }
    if error.is::<TextError>() {
        return Some(TercetStatus::Graph);
    }
    if error.is::<CompileError>() {
        return Some(TercetStatus::Compile);
    }
    if let Some(error) = error.downcast_ref::<RunError>() {
        return Some(match error {
            RunError::UnknownName { .. } | RunError::Missing { .. } => TercetStatus::Name,
            RunError::Type { .. } | RunError::Conflict { .. } | RunError::AboveBound { .. } => {
                TercetStatus::Type
            }
            RunError::Tensor(error) => return status_of(error),
            RunError::OutOfMemory { .. } => TercetStatus::Memory,
            _ => TercetStatus::Run,
        });
    }
    if let Some(error) = error.downcast_ref::<TensorError>() {
        return Some(match error {
            TensorError::OutOfMemory { .. } => TercetStatus::Memory,
            TensorError::Length { .. }
            | TensorError::Overflow { .. }
            | TensorError::DType { .. } => TercetStatus::Type,
        });
    }
    if let Some(error) = error.downcast_ref::<SessionError>() {
        return Some(match error {
            SessionError::Import(_) => TercetStatus::Model,
            SessionError::Compile(_) => TercetStatus::Compile,
            SessionError::Run(_) => TercetStatus::Run,
            SessionError::UnknownInput { .. } | SessionError::UnknownOutput { .. } => {
                TercetStatus::Name
            }
            SessionError::Input { .. } => TercetStatus::Type,
        });
    }
    if let Some(error) = file_error(error) {
        return status_of(error);
    }
    if let Some(FileError::NotFound { .. }) = error.downcast_ref::<FileError>() {
        return Some(TercetStatus::NotFound);
    }
    if let Some(error) = error.downcast_ref::<ModelPathError>() {
        return match error {
            ModelPathError::File(error) => status_of(error),
            ModelPathError::NotInHub { .. } | ModelPathError::NotInOllama { .. } => {
                Some(TercetStatus::NotFound)
            }
            _ => Some(TercetStatus::Model),
        };
    }
    match error.downcast_ref::<ModelError>()? {
        ModelError::Unsupported(_) => Some(TercetStatus::Unsupported),
        ModelError::Context { .. } | ModelError::TextTooLong { .. } => Some(TercetStatus::Argument),
        ModelError::ContextMemory { .. } => Some(TercetStatus::Memory),
        _ => None,
    }
}

/// Status of an error; TERCET_STATUS_HANDLE if `error` is not a live error.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_error_status(error: *const TercetError) -> TercetStatus {
    match handles::get::<ErrorObject>(error, "error") {
        Ok(error) => error.status,
        Err(error) => error.status,
    }
}

/// Message of an error in one line: what is wrong, where, and how to fix it. The text is valid until the error is
/// freed. Returns a fixed text if `error` is not a live error.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_error_message(error: *const TercetError) -> *const c_char {
    match handles::get::<ErrorObject>(error, "error") {
        // The table keeps the object alive until the error is freed.
        Ok(error) => error.message.as_ptr(),
        Err(_) => c"not a live error".as_ptr(),
    }
}

/// Name of a status, such as "TERCET_STATUS_OK": a text that stays valid. "unknown status" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_status_name(status: i32) -> *const c_char {
    let names = [
        c"TERCET_STATUS_OK",
        c"TERCET_STATUS_NULL",
        c"TERCET_STATUS_HANDLE",
        c"TERCET_STATUS_ARGUMENT",
        c"TERCET_STATUS_UTF8",
        c"TERCET_STATUS_DEVICE",
        c"TERCET_STATUS_GRAPH",
        c"TERCET_STATUS_COMPILE",
        c"TERCET_STATUS_TYPE",
        c"TERCET_STATUS_NAME",
        c"TERCET_STATUS_RUN",
        c"TERCET_STATUS_MODEL",
        c"TERCET_STATUS_NOT_FOUND",
        c"TERCET_STATUS_UNSUPPORTED",
        c"TERCET_STATUS_MEMORY",
        c"TERCET_STATUS_BUSY",
        c"TERCET_STATUS_CANCELLED",
        c"TERCET_STATUS_INTERNAL",
    ];
    let found = usize::try_from(status).ok().and_then(|at| names.get(at));
    found.copied().unwrap_or(c"unknown status").as_ptr()
}

impl Caller {
    /// Gives the error a handle, if the caller has a place for it. Returns the status.
    pub(crate) fn report(&self, error: &CallError) -> TercetStatus {
        if self.wants_error() {
            let handle = handles::insert(ErrorObject::new(error));
            self.set_error(handle.unwrap_or(std::ptr::null_mut()));
        }
        error.status
    }
}
