//! Files that a crate needs and that have another place in the repository. A package has only the files of its folder,
//! and links do not work on every system, so the crates have copies.

use std::fs;
use std::path::Path;

use crate::error::{self, XtaskError};
use crate::process;

/// The originals and their copies.
const COPIES: [(&str, &str); 2] = [
    (
        "docs/reference/operators.md",
        "crates/tercet-cli/src/commands/operators.txt",
    ),
    (
        "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
        "crates/tercet-cli/model/tiny-rust-llama-q8_0.gguf",
    ),
];

/// The copies that differ from their originals, as sentences.
pub(super) fn differences() -> Result<Vec<String>, XtaskError> {
    differing(&process::root(), &COPIES)
}

fn differing(root: &Path, copies: &[(&str, &str)]) -> Result<Vec<String>, XtaskError> {
    let read = |name: &str| {
        let path = root.join(name);
        fs::read(&path).map_err(error::file("read", &path))
    };
    let mut problems = Vec::new();
    for (original, copy) in copies {
        if read(original)? != read(copy)? {
            problems.push(format!(
                "{copy} differs from {original}; run `cargo xtask docs`"
            ));
        }
    }
    Ok(problems)
}

/// Copies the files again.
pub(crate) fn update() -> Result<(), XtaskError> {
    let root = process::root();
    for (original, copy) in COPIES {
        let original = root.join(original);
        fs::copy(&original, root.join(copy)).map_err(error::file("copy", &original))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_equal_their_originals() {
        assert_eq!(differences().unwrap(), [""; 0]);
    }

    #[test]
    fn a_stale_copy_is_named() {
        let root = std::env::temp_dir().join(format!("xtask-copies-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        fs::write(root.join("b"), "2").unwrap();
        let problems = differing(&root, &[("a", "b"), ("a", "a")]).unwrap();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("b differs from a"), "{problems:?}");
        let error = differing(&root, &[("a", "c")]).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
        fs::remove_dir_all(root).unwrap();
    }
}
