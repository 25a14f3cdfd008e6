//! CPU executors of Tercet: the reference interpreter and the fast executor.

pub mod kernels;
pub mod reference;
pub use reference::ReferenceBackend;
