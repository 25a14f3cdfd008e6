//! The file of `--logits`: a row for each token, written while the model runs.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::CliError;
use crate::npy::{NpyDtype, npy_header};

/// Writes logits to a `.npy` file, F32 `[tokens, vocab]`. The file is deleted unless it is finished.
pub struct LogitsRecorder {
    path: PathBuf,
    file: Arc<Mutex<LogitsFile>>,
    is_finished: bool,
}

struct LogitsFile {
    out: BufWriter<File>,
    shape: [usize; 2],
    /// The first error; rows after it are not written.
    failed: Option<io::Error>,
}

impl LogitsRecorder {
    /// Creates the file for rows of `vocab` logits.
    pub fn create(path: &Path, vocab: usize) -> Result<LogitsRecorder, CliError> {
        let open = || {
            let mut out = BufWriter::new(File::create(path)?);
            out.write_all(&npy_header(NpyDtype::F32, &[0, vocab]))?;
            Ok(LogitsFile {
                out,
                shape: [0, vocab],
                failed: None,
            })
        };
        let file = open().map_err(|source| CliError::Write {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(LogitsRecorder {
            path: path.to_path_buf(),
            file: Arc::new(Mutex::new(file)),
            is_finished: false,
        })
    }

    /// A function that appends rows.
    pub fn observer(&self) -> impl FnMut(&[f32]) + Send + use<> {
        let file = Arc::clone(&self.file);
        move |row: &[f32]| locked(&file).append(row)
    }

    /// Completes the file and returns its shape.
    pub fn finish(mut self) -> Result<[usize; 2], CliError> {
        let done = locked(&self.file).finish();
        self.is_finished = done.is_ok();
        done.map_err(|source| CliError::Write {
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for LogitsRecorder {
    fn drop(&mut self) {
        let is_file = fs::metadata(&self.path).is_ok_and(|found| found.is_file());
        if !self.is_finished && is_file {
            // The error that ended the run is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn locked(file: &Mutex<LogitsFile>) -> MutexGuard<'_, LogitsFile> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogitsFile {
    fn append(&mut self, row: &[f32]) {
        if self.failed.is_some() {
            return;
        }
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        match self.out.write_all(&bytes) {
            Ok(()) => self.shape[0] += 1,
            Err(e) => self.failed = Some(e),
        }
    }

    /// Writes the header again, with the number of rows.
    fn finish(&mut self) -> io::Result<[usize; 2]> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let [_, vocab] = self.shape;
        let header = npy_header(NpyDtype::F32, &self.shape);
        // Headers are padded to multiples of 64 bytes, so any number of rows has this length.
        if header.len() != npy_header(NpyDtype::F32, &[0, vocab]).len() {
            return Err(io::Error::other("the header has no room for the shape"));
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.flush()?;
        Ok(self.shape)
    }
}
