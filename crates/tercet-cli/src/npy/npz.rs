//! `.npz` archives: zip files with one `.npy` file per array.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;

use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::{MAX_ARRAY_BYTES, NpyArray, NpyError, file_error, read, write_npy};

const SUFFIX: &str = ".npy";

/// Larger files need the 64-bit form of zip.
const ZIP64_BYTES: usize = u32::MAX as usize - (1 << 20);

/// Reads all arrays of an archive (stored or deflated) in archive order. Names have no `.npy`
/// extension.
///
/// All arrays together may have at most [`MAX_ARRAY_BYTES`].
pub fn read_npz(path: &Path) -> Result<Vec<(String, NpyArray<'static>)>, NpyError> {
    let file = File::open(path).map_err(file_error("open", path))?;
    read_archive(BufReader::new(file), path, MAX_ARRAY_BYTES)
}

pub fn read_archive(
    reader: impl Read + Seek,
    path: &Path,
    limit_bytes: u64,
) -> Result<Vec<(String, NpyArray<'static>)>, NpyError> {
    let archive_error = archive_error("read", path);
    let mut archive = ZipArchive::new(reader).map_err(&archive_error)?;
    let mut arrays = Vec::new();
    let mut names = HashSet::new();
    let mut left_bytes = limit_bytes;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(&archive_error)?;
        let name = entry.name().map_err(&archive_error)?;
        let name = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
        if !names.insert(name.clone()) {
            return Err(NpyError::DuplicateEntry {
                path: path.to_owned(),
                entry: name,
            });
        }
        // The size in an archive is untrusted, so no memory is reserved for it.
        let array = read(&mut entry, 0, left_bytes).map_err(|source| NpyError::Entry {
            path: path.to_owned(),
            entry: name.clone(),
            source,
        })?;
        left_bytes -= array.bytes.len() as u64;
        arrays.push((name, array));
    }
    Ok(arrays)
}

/// Writes arrays, stored without compression as `numpy.savez` does.
pub fn write_npz(writer: impl Write + Seek, arrays: &[(String, NpyArray<'_>)]) -> io::Result<()> {
    let mut archive = ZipWriter::new(writer);
    for (name, array) in arrays {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(array.bytes.len() > ZIP64_BYTES);
        archive.start_file(format!("{name}{SUFFIX}"), options)?;
        write_npy(&mut archive, array)?;
    }
    archive.finish()?.flush()
}

fn archive_error(action: &'static str, path: &Path) -> impl Fn(ZipError) -> NpyError {
    move |source| NpyError::Archive {
        action,
        path: path.to_owned(),
        source,
    }
}
