//! The C library for a target: the shared library, `tercet.h`, and the files for CMake and pkg-config.
//!
//! The static library has ten times the bytes, because it has all object files of all crates. `cargo xtask capi`
//! installs it on the machine that needs it.

use std::fs;
use std::path::{Path, PathBuf};

use super::archive::{self, ArchiveFile};
use super::compile;
use super::cross::CrossTools;
use super::{DistInput, VERSION};
use crate::error::{self, XtaskError};
use crate::{capi, fetch, process};

/// The start of the archive's name.
pub(super) const PREFIX: &str = "tercet-c-";
/// Static libraries, as targets name them. The import library of a DLL belongs to the shared one.
const STATIC: [&str; 2] = ["libtercet.a", "tercet.lib"];

/// Builds the library of a target and packs it.
pub(super) fn write(
    input: &DistInput,
    licenses: &Path,
    tools: &CrossTools,
) -> Result<PathBuf, XtaskError> {
    let built = compile::library(&input.target, tools)?;
    let prefix = input.out.join("library.partial");
    fetch::remove_dir(&prefix)?;
    capi::install(&built, &prefix)?;
    let stem = format!("{PREFIX}{VERSION}-{}", input.target);
    let mut files = Vec::new();
    list(&prefix, &stem, &mut files)?;
    let root = process::root();
    for (name, path) in [
        ("LICENSE-APACHE", root.join("LICENSE-APACHE")),
        ("LICENSE-MIT", root.join("LICENSE-MIT")),
        ("THIRD-PARTY.txt", licenses.to_path_buf()),
    ] {
        files.push((format!("{stem}/{name}"), path, false));
    }
    let path = archive::smallest(input, &stem, &files)?;
    fetch::remove_dir(&prefix)?;
    Ok(path)
}

/// Adds the files below a folder, sorted by name, without static libraries.
fn list(folder: &Path, inside: &str, files: &mut Vec<ArchiveFile>) -> Result<(), XtaskError> {
    let entries = fs::read_dir(folder).map_err(error::file("read", folder))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inside = format!("{inside}/{name}");
        if path.is_dir() {
            list(&path, &inside, files)?;
        } else if !STATIC.contains(&&*name) {
            files.push((inside, path, false));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_libraries_are_left_out() {
        let dir = std::env::temp_dir().join(format!("xtask-library-{}", std::process::id()));
        let lib = dir.join("lib");
        fs::create_dir_all(&lib).unwrap();
        for name in ["libtercet.so", "libtercet.a", "libtercet.dll.a"] {
            fs::write(lib.join(name), name).unwrap();
        }
        let mut files = Vec::new();
        list(&dir, "stem", &mut files).unwrap();
        let names: Vec<&str> = files.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["stem/lib/libtercet.dll.a", "stem/lib/libtercet.so"]);
        fetch::remove_dir(&dir).unwrap();
    }
}
