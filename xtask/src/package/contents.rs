//! The files of an unpacked package: licenses and README, and the files that its code includes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{self, XtaskError};
use crate::process;

const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// Code before the name of a file that belongs to the crate, relative to the source file.
const INCLUSIONS: [&str; 3] = ["include_str!(\"", "include_bytes!(\"", "#[path = \""];

/// What is missing in a package, as sentences.
pub(super) fn problems(folder: &Path) -> Result<Vec<String>, XtaskError> {
    let package = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut problems = Vec::new();
    for name in LICENSES {
        let original = process::root().join(name);
        let text = fs::read(&original).map_err(error::file("read", &original))?;
        // On a system without links, the file in the checkout has the path of the license as its text.
        if fs::read(folder.join(name)).ok().as_ref() != Some(&text) {
            problems.push(format!("{package} has no text of {name}"));
        }
    }
    if !folder.join("README.md").is_file() {
        problems.push(format!("{package} has no README.md"));
    }
    for path in sources(folder)? {
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        let parent = path.parent().unwrap_or(folder);
        for name in included(&text) {
            if !parent.join(name).is_file() {
                let path = path.strip_prefix(folder).unwrap_or(&path).display();
                problems.push(format!("{package} lacks {name}, which {path} includes"));
            }
        }
    }
    Ok(problems)
}

/// The Rust files below a folder.
pub(super) fn sources(folder: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).map_err(error::file("read", &folder))? {
            let path = entry.map_err(error::file("read", &folder))?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The files that code includes by name. Names with variables are left to the build.
fn included(text: &str) -> Vec<&str> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let names = code.flat_map(|line| {
        INCLUSIONS.iter().filter_map(move |start| {
            let (_, rest) = line.split_once(start)?;
            rest.split('"').next()
        })
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_of_a_package_are_named() {
        let folder = std::env::temp_dir().join(format!("xtask-contents-{}", std::process::id()));
        fs::create_dir_all(folder.join("src/deep")).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let lib = "// include_str!(\"comment.txt\")\nconst A: &str = include_str!(\"a.txt\");\n\
                   #[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\nmod readme {}\n\
                   const E: &str = include_str!(concat!(env!(\"OUT_DIR\"), \"/e.txt\"));\n";
        write("src/lib.rs", lib);
        write(
            "src/deep/b.rs",
            "const B: &[u8] = include_bytes!(\"../../../shaders/b.spv\");\n",
        );
        write(
            "src/deep/c.rs",
            "#[path = \"../../tests/common.rs\"]\nmod common;\n",
        );
        for name in LICENSES {
            write(name, &format!("../../{name}"));
        }
        let mut found = problems(&folder).unwrap();
        found.sort();
        let ends = [
            "has no README.md",
            "has no text of LICENSE-APACHE",
            "has no text of LICENSE-MIT",
            "lacks ../../../shaders/b.spv, which src/deep/b.rs includes",
            "lacks ../../tests/common.rs, which src/deep/c.rs includes",
            "lacks ../README.md, which src/lib.rs includes",
            "lacks a.txt, which src/lib.rs includes",
        ];
        assert_eq!(found.len(), ends.len(), "{found:#?}");
        for (problem, end) in found.iter().zip(ends) {
            assert!(problem.ends_with(end), "{problem}");
        }
        for name in LICENSES {
            fs::copy(process::root().join(name), folder.join(name)).unwrap();
        }
        write("README.md", "");
        write("src/a.txt", "");
        for name in ["src/deep/b.rs", "src/deep/c.rs"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
        assert_eq!(problems(&folder).unwrap(), [""; 0]);
        fs::remove_dir_all(folder).unwrap();
    }
}
