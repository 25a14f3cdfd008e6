//! Line reader with a length limit and a UTF-8 check for every line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::error::{DataError, LineError};
use tercet_files::mmap::{FileError, open_regular};

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

#[derive(Debug)]
pub(super) struct JsonLineReader {
    path: PathBuf,
    file: BufReader<File>,
    max_bytes: usize,
    /// Number of the last line read, from 1.
    pub(super) line: u64,
    /// Byte offset of the next line.
    offset: u64,
}

/// Opens a data file. An empty file is `DataError::Empty`: the hint of `FileError::Empty` to repeat
/// a download does not apply to data files.
fn open(path: &Path) -> Result<(File, u64), DataError> {
    open_regular(path).map_err(|e| match e {
        FileError::Empty { path } => DataError::Empty { path },
        e => DataError::File(e),
    })
}

impl JsonLineReader {
    pub(super) fn open(path: &Path, max_bytes: usize) -> Result<JsonLineReader, DataError> {
        Ok(JsonLineReader {
            path: path.to_path_buf(),
            file: BufReader::new(open(path)?.0),
            max_bytes,
            line: 0,
            offset: 0,
        })
    }

    /// The next line without its line end, or `None` at the end of the file.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, DataError> {
        let mut bytes = Vec::new();
        let most = (self.max_bytes as u64).saturating_add(2);
        let read = (&mut self.file).take(most).read_until(b'\n', &mut bytes);
        let read = read.map_err(|e| DataError::File(FileError::from_io(&self.path, e)))?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        let mut start = self.offset;
        self.offset += read as u64;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.len() > self.max_bytes {
            let max = self.max_bytes;
            return Err(self.error(LineError::TooLong { max }));
        }
        if start == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
            start += BYTE_ORDER_MARK.len() as u64;
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let offset = start + e.utf8_error().valid_up_to() as u64;
            self.error(LineError::NotUtf8 { offset })
        })?;
        Ok(Some(text))
    }

    /// An error about the last line read.
    pub(super) fn error(&self, source: LineError) -> DataError {
        DataError::Line {
            path: self.path.clone(),
            line: self.line,
            source,
        }
    }
}

/// Reads a whole file as text, without a byte-order mark and with `\n` line ends.
pub(super) fn read_text(path: &Path, max_bytes: u64) -> Result<String, DataError> {
    let (file, len) = open(path)?;
    let mut bytes = Vec::new();
    let read = file
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes);
    read.map_err(|e| DataError::File(FileError::from_io(path, e)))?;
    if bytes.len() as u64 > max_bytes {
        return Err(DataError::File(FileError::TooLong {
            path: path.to_path_buf(),
            len: len.max(bytes.len() as u64),
            max: max_bytes,
        }));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let offset = e.utf8_error().valid_up_to();
        let ends = e.as_bytes()[..offset].iter().filter(|b| **b == b'\n');
        DataError::Line {
            path: path.to_path_buf(),
            line: ends.count() as u64 + 1,
            source: LineError::NotUtf8 {
                offset: offset as u64,
            },
        }
    })?;
    let text = match text.strip_prefix('\u{FEFF}') {
        Some(rest) => rest.to_owned(),
        None => text,
    };
    Ok(match text.contains('\r') {
        true => text.replace("\r\n", "\n"),
        false => text,
    })
}
