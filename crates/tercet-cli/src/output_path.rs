//! Files that commands write: whether they can be written is asked before the work, not after it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::error::CliError;

/// Refuses a path that cannot be written. A file that is there stays as it is; what is no file, such as a
/// pipe, is not touched.
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
                let reason = format!("there is no folder {}", folder.display());
                return Err(failed(io::Error::new(ErrorKind::NotFound, reason)));
            }
            // A link to nothing: what it names is made when it is written.
            if fs::symlink_metadata(path).is_ok() {
                return Ok(());
            }
            open().map(drop).map_err(failed)?;
            fs::remove_file(path).map_err(failed)
        }
        Err(e) => Err(failed(e)),
    }
}

/// Writes a file of its own; a file that could not be written whole does not stay.
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
