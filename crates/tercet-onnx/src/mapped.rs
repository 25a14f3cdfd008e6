//! Reads files; large files are memory-mapped, so weights are used in place without a copy.
//!
//! No process may truncate or rewrite a mapped file while a model, or an executable with its
//! weights, exists. Replace the file by renaming a new one over it.

use std::fs::File;
use std::io::{self, Read};

use bytes::Bytes;

/// Minimum size in bytes of a memory-mapped file. Smaller files are read, because a mapping costs
/// at least a page and more time.
const MIN_BYTES_FOR_MMAP: u64 = 1 << 16;

/// The bytes of a file from its current position.
///
/// # Errors
/// I/O errors of the operating system.
pub(crate) fn bytes_of(mut file: File) -> io::Result<Bytes> {
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() < MIN_BYTES_FOR_MMAP {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return Ok(bytes.into());
    }
    #[allow(
        unsafe_code,
        reason = "memory mapping has no safe interface; this is the crate's only mapping"
    )]
    // SAFETY: the mapping is read-only, and of a regular file that is not empty. Concurrent
    // truncation or rewriting cannot be detected. The module documentation forbids it, as every
    // memory-mapped reader must.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}
