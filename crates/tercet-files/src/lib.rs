//! Model files for Tercet, read through memory maps.
//!
//! | module | content |
//! |---|---|
//! | [`mmap`] | memory-mapped files, and bounded reads of small files |

pub mod mmap;

pub use mmap::{FileError, MappedFile};
