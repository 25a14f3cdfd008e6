//! The bytes of a file: mapped where there are many, so that weights are read once, in place.
//!
//! A mapped file must not be truncated or rewritten by anybody while a model, or an executable with its weights, lives: replace
//! it by renaming a new one over it, as every downloader does.

use std::fs::File;
use std::io::{self, Read};

use bytes::Bytes;

/// Files below are read: a mapping takes a page of its own and more time.
const MIN_BYTES_FOR_MMAP: u64 = 1 << 16;

/// The bytes of a file from where it stands.
///
/// # Errors
/// What the operating system says.
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
    // SAFETY: the mapping is read-only, and of a regular file that is not empty. That nobody truncates or rewrites it meanwhile
    // cannot be checked; the module documentation makes it a condition of use, as for every memory-mapped reader.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}
