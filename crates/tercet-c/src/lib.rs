//! The C API of Tercet: devices, sessions of graphs and ONNX models, language models, embeddings and transcription.
//!
//! `include/tercet.h` is generated from this crate by cbindgen; the test `header` compares it and writes it anew with
//! `TERCET_UPDATE_DOCS=1`, as `cargo xtask docs` does. `cbindgen.toml` has the rules that hold for all functions.
//!
//! A handle is a number in [`handles`] that looks like a pointer. Neither side dereferences it, so a handle that was
//! freed, or is of another type, is an error. Pointers to memory of the caller are read in [`boundary`] only.
//!
//! Every fallible function runs in [`boundary::Caller::guard`], which turns errors and panics into a status.
#![allow(
    unsafe_code,
    reason = "exports C functions; each block refers to the rules of the header or of `boundary`"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the head of the header has the rules on pointers for all functions"
)]

mod boundary;
pub mod device;
pub mod embedder;
pub mod error;
pub mod generator;
mod handles;
pub mod model;
pub mod recognizer;
pub mod session;
pub mod tensor;

#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_void};

use boundary::Caller;
use error::{TercetError, TercetStatus};

/// Version of the binary interface. Programs that were compiled for a version run with every library of that version.
/// New functions, status codes and option fields do not change it.
pub const TERCET_ABI_VERSION: u32 = 1;

/// Version of the library, such as "0.2.0": a text that stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `TERCET_ABI_VERSION` of the library. A program should compare it with that of its header.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_abi_version() -> u32 {
    TERCET_ABI_VERSION
}

/// Frees any handle. NULL is allowed and has no effect.
///
/// Memory that was read from the handle becomes invalid. Calls of other threads that use the handle complete first or
/// fail with TERCET_STATUS_HANDLE; both are safe.
///
/// Returns TERCET_STATUS_HANDLE, without any effect, if the handle was already freed or is not a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_free(handle: *const c_void) -> TercetStatus {
    // SAFETY: no pointer is passed on; the handle is only compared.
    let caller = unsafe { Caller::new(std::ptr::null_mut::<*mut TercetError>()) };
    caller.guard(|_| handles::remove(handle))
}

/// Number of live handles of the process, to find leaks in tests.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_live_handles() -> usize {
    handles::count()
}
