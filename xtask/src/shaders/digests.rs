//! Digests of the sources of each committed module: lines `NAME SOURCES MODULE` of SHA-256.
//!
//! `SOURCES` covers the kernel and its includes without comments, the compiler options and the
//! compiler version. If both digests match, the compiler built the module from these sources,
//! unless a person edited both the module and its line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::folder::ShaderFolder;
use crate::error::{self, XtaskError};
use crate::{fetch, process};

/// The source code that sets the options of the shader compiler.
const OPTIONS_SOURCE: &str = include_str!("compile.rs");
/// A line of this source code that contains one of these texts sets an option.
const OPTION_MARKS: [&str; 3] = [".set_", "SpirvVersion::V", "const NEWER"];
const COMPILER: &str = "shaderc-sys";

/// Writes the digests of the current modules. Call this function only directly after compiling the
/// modules.
#[cfg(any(test, feature = "glsl"))]
pub(crate) fn write(folder: &ShaderFolder) -> Result<(), XtaskError> {
    let version = compiler_version()?;
    let mut text = String::new();
    for name in folder.sources()? {
        let made = ModuleDigests::now(folder, &name, &version)?;
        text += &format!("{name} {} {}\n", made.sources, made.module);
    }
    let path = folder.digests_path();
    fs::write(&path, text).map_err(error::file("write", &path))
}

/// Fails with the name of every module that has no source, is missing, or was built from other
/// sources.
pub(crate) fn check(folder: &ShaderFolder) -> Result<(), XtaskError> {
    let version = compiler_version()?;
    let path = folder.digests_path();
    let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let mut recorded: BTreeMap<&str, &str> = lines.collect();
    let modules = folder.modules()?;
    let mut problems = Vec::new();
    let mut problem = |name: &str, what: &str| {
        problems.push(format!("{} {what}", folder.module_path(name).display()));
    };
    let sources = folder.sources()?;
    for name in &sources {
        let line = recorded.remove(name.as_str());
        if !modules.contains(name) {
            problem(name, "is missing");
            continue;
        }
        let made = ModuleDigests::now(folder, name, &version)?;
        match line.and_then(|line| line.split_once(' ')) {
            None => problem(name, "has no digest"),
            Some((sources, _)) if sources != made.sources => {
                problem(name, "was made from other sources");
            }
            Some((_, module)) if module != made.module => {
                problem(name, "differs from the module built from its source");
            }
            Some(_) => {}
        }
    }
    let left_over = modules.iter().filter(|name| !sources.contains(name));
    left_over.for_each(|name| problem(name, "has no source"));
    recorded
        .keys()
        .for_each(|name| problem(name, "has a digest and no source"));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(XtaskError::StaleShaders { problems })
    }
}

/// The digests of a module and of its sources.
struct ModuleDigests {
    sources: String,
    module: String,
}

impl ModuleDigests {
    fn now(folder: &ShaderFolder, name: &str, version: &str) -> Result<Self, XtaskError> {
        let mut texts = BTreeMap::new();
        gather(folder, &folder.source_path(name), &mut texts)?;
        let mut hasher = Sha256::new();
        add(&mut hasher, version.as_bytes());
        add(&mut hasher, options().as_bytes());
        for (file, text) in &texts {
            add(&mut hasher, file.as_bytes());
            add(&mut hasher, without_comments(text).as_bytes());
        }
        let path = folder.module_path(name);
        let module = fs::read(&path).map_err(error::file("read", &path))?;
        Ok(Self {
            sources: fetch::hex(&hasher.finalize()),
            module: fetch::hex(&Sha256::digest(module)),
        })
    }
}

/// The lines that set compiler options.
fn options() -> String {
    let lines = OPTIONS_SOURCE.lines().map(str::trim);
    let set = lines.filter(|line| OPTION_MARKS.iter().any(|mark| line.contains(mark)));
    set.collect::<Vec<_>>().join("\n")
}

/// A source without comments and empty lines, which do not change the module.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.trim()
    });
    lines
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Hashes the length first, so that different lists of parts never hash the same bytes.
fn add(hasher: &mut Sha256, part: &[u8]) {
    hasher.update(part.len().to_le_bytes());
    hasher.update(part);
}

/// Collects the text of a file and of all its includes, by name.
fn gather(
    folder: &ShaderFolder,
    path: &Path,
    texts: &mut BTreeMap<String, String>,
) -> Result<(), XtaskError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if texts.contains_key(&*name) {
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(error::file("read", path))?;
    let included: Vec<String> = text.lines().filter_map(included).collect();
    texts.insert(name.into_owned(), text);
    for name in included {
        gather(folder, &folder.include_dir().join(name), texts)?;
    }
    Ok(())
}

/// The name in `#include "NAME"`.
fn included(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("#include")?;
    rest.split('"').nth(1).map(str::to_owned)
}

/// The compiler's version in the lock file.
fn compiler_version() -> Result<String, XtaskError> {
    let path = process::root().join("Cargo.lock");
    let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    let name = format!("name = \"{COMPILER}\"");
    let after = text.lines().skip_while(|line| *line != name);
    Ok(after.take(2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_source_an_include_or_a_module_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-digests-{}", std::process::id()));
        let folder = ShaderFolder::new(root.clone());
        let part = folder.include_dir().join("part.glsl");
        for dir in [folder.include_dir(), root.join("spirv")] {
            fs::create_dir_all(dir).unwrap();
        }
        let files = [
            (folder.source_path("a"), "#include \"part.glsl\"\n"),
            (folder.source_path("b"), "alone\n"),
            (folder.module_path("a"), "1"),
            (folder.module_path("b"), "2"),
            (part.clone(), "#include \"deep.glsl\"\n"),
            (folder.include_dir().join("deep.glsl"), "deep\n"),
        ];
        let restore = || {
            for (path, text) in &files {
                fs::write(path, text).unwrap();
            }
        };
        restore();
        write(&folder).unwrap();
        check(&folder).unwrap();
        for (changed, stale) in [
            (folder.source_path("b"), "b.spv was made from other sources"),
            (part, "a.spv was made from other sources"),
            (files[5].0.clone(), "a.spv was made from other sources"),
            (
                folder.module_path("b"),
                "b.spv differs from the module built",
            ),
            (folder.module_path("c"), "c.spv has no source"),
            (folder.source_path("c"), "c.spv has no digest"),
        ] {
            fs::write(&changed, "changed\n").unwrap();
            let message = check(&folder).unwrap_err().to_string();
            let problems: Vec<_> = message.lines().skip(1).collect();
            assert_eq!(problems.len(), 1, "{message}");
            assert!(problems[0].contains(stale), "{message}");
            restore();
        }
        fs::remove_file(folder.module_path("a")).unwrap();
        let message = check(&folder).unwrap_err().to_string();
        assert!(message.contains("a.spv is missing"), "{message}");
        fs::remove_dir_all(root).unwrap();
    }
}
