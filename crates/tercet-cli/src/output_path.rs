//! Output files of commands. Whether a path is writable is checked before the work starts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::error::CliError;

/// Returns an error if the path cannot be written. An existing file is not changed. Special files,
/// such as pipes, are not opened.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::Write {
        path: path.to_path_buf(),
        source,
    };
    let open = || {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
    };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(failed(io::Error::other("it is a folder"))),
        Ok(found) if found.is_file() => open().map(drop).map_err(failed),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|f| !f.exists()) {
                let reason = format!("the folder {} does not exist", folder.display());
                return Err(failed(io::Error::new(ErrorKind::NotFound, reason)));
            }
            // A dangling link: writing creates its target.
            if fs::symlink_metadata(path).is_ok() {
                return Ok(());
            }
            open().map(drop).map_err(failed)?;
            fs::remove_file(path).map_err(failed)
        }
        Err(e) => Err(failed(e)),
    }
}

/// Writes a file, and deletes it if writing fails.
pub(crate) fn write(
    path: &Path,
    print: impl FnOnce(File) -> io::Result<()>,
) -> Result<(), CliError> {
    let written = File::create(path).and_then(|file| {
        let regular = file.metadata().is_ok_and(|m| m.is_file());
        print(file).inspect_err(|_| {
            if regular {
                // The first error is the one to report.
                let _ = fs::remove_file(path);
            }
        })
    });
    written.map_err(|source| CliError::Write {
        path: path.to_path_buf(),
        source,
    })
}
