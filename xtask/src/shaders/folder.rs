//! The folder of GLSL kernels and their compiled SPIR-V modules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{self, XtaskError};

const SOURCE: &str = "comp";
const MODULE: &str = "spv";

/// A compiled kernel: `NAME.comp` without its suffix, and the words of the module as bytes.
#[cfg(any(test, feature = "glsl"))]
pub(crate) struct CompiledKernel {
    pub(crate) name: String,
    pub(crate) spirv: Vec<u8>,
}

/// The shader folder: `NAME.comp`, `spirv/NAME.spv`, and `include/` for shared code.
pub(crate) struct ShaderFolder {
    root: PathBuf,
}

impl ShaderFolder {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn include_dir(&self) -> PathBuf {
        self.root.join("include")
    }

    pub(crate) fn source_path(&self, name: &str) -> PathBuf {
        self.root.join(name).with_extension(SOURCE)
    }

    pub(crate) fn module_path(&self, name: &str) -> PathBuf {
        self.module_dir().join(name).with_extension(MODULE)
    }

    /// The path of the [`digests`](super::digests) file.
    pub(crate) fn digests_path(&self) -> PathBuf {
        self.root.join("digests.txt")
    }

    /// The names of the kernels, sorted.
    pub(crate) fn sources(&self) -> Result<Vec<String>, XtaskError> {
        names(&self.root, SOURCE)
    }

    /// The names of the modules, sorted.
    pub(crate) fn modules(&self) -> Result<Vec<String>, XtaskError> {
        names(&self.module_dir(), MODULE)
    }

    /// Makes the module folder contain exactly `modules`; prints the changes.
    #[cfg(any(test, feature = "glsl"))]
    pub(crate) fn write(&self, modules: &[CompiledKernel]) -> Result<(), XtaskError> {
        let dir = self.module_dir();
        fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
        for ShaderDifference { name, kind } in self.differences(modules)? {
            let path = self.module_path(&name);
            match kind {
                DifferenceKind::Missing | DifferenceKind::Stale => {
                    let module = modules.iter().find(|module| module.name == name);
                    let spirv = module.map_or(&[][..], |module| &module.spirv);
                    fs::write(&path, spirv).map_err(error::file("write", &path))?;
                    println!("wrote {}", path.display());
                }
                DifferenceKind::LeftOver => {
                    fs::remove_file(&path).map_err(error::file("remove", &path))?;
                    println!("removed {}", path.display());
                }
            }
        }
        Ok(())
    }

    /// Fails with the name of every module that differs from its compiled source.
    #[cfg(any(test, feature = "glsl"))]
    pub(crate) fn check(&self, modules: &[CompiledKernel]) -> Result<(), XtaskError> {
        let problems: Vec<String> = self
            .differences(modules)?
            .into_iter()
            .map(|ShaderDifference { name, kind }| {
                let path = self.module_path(&name);
                let what = match kind {
                    DifferenceKind::Missing => "is missing",
                    DifferenceKind::Stale => "differs from its compiled source",
                    DifferenceKind::LeftOver => "has no source",
                };
                format!("{} {what}", path.display())
            })
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(XtaskError::StaleShaders { problems })
        }
    }

    fn module_dir(&self) -> PathBuf {
        self.root.join("spirv")
    }

    #[cfg(any(test, feature = "glsl"))]
    fn differences(&self, modules: &[CompiledKernel]) -> Result<Vec<ShaderDifference>, XtaskError> {
        let mut found = Vec::new();
        for CompiledKernel { name, spirv } in modules {
            let path = self.module_path(name);
            let kind = match fs::read(&path) {
                Ok(committed) if committed == *spirv => continue,
                Ok(_) => DifferenceKind::Stale,
                Err(source) if source.kind() == io::ErrorKind::NotFound => DifferenceKind::Missing,
                Err(source) => return Err(error::file("read", &path)(source)),
            };
            let name = name.clone();
            found.push(ShaderDifference { name, kind });
        }
        for name in self.modules()? {
            if modules.iter().all(|module| module.name != name) {
                let kind = DifferenceKind::LeftOver;
                found.push(ShaderDifference { name, kind });
            }
        }
        Ok(found)
    }
}

#[cfg(any(test, feature = "glsl"))]
struct ShaderDifference {
    name: String,
    kind: DifferenceKind,
}

#[cfg(any(test, feature = "glsl"))]
enum DifferenceKind {
    Missing,
    Stale,
    LeftOver,
}

/// The sorted stems of the files in `dir` with this extension; empty if the folder does not exist.
fn names(dir: &Path, extension: &str) -> Result<Vec<String>, XtaskError> {
    let entries = match fs::read_dir(dir) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(error::file("list", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(error::file("list", dir))?.path();
        if path.extension().is_some_and(|found| found == extension)
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, spirv: &[u8]) -> CompiledKernel {
        CompiledKernel {
            name: name.to_owned(),
            spirv: spirv.to_vec(),
        }
    }

    #[test]
    fn every_stale_missing_and_left_over_module_is_named_and_mended() {
        let root = std::env::temp_dir().join(format!("xtask-shaders-{}", std::process::id()));
        let folder = ShaderFolder::new(root.clone());
        fs::create_dir_all(folder.module_dir()).unwrap();
        for name in ["same", "stale", "missing"] {
            fs::write(folder.source_path(name), "").unwrap();
        }
        for (name, spirv) in [("same", "1"), ("stale", "2"), ("left-over", "3")] {
            fs::write(folder.module_path(name), spirv).unwrap();
        }
        assert_eq!(folder.sources().unwrap(), ["missing", "same", "stale"]);

        let modules = [
            module("missing", b"7"),
            module("same", b"1"),
            module("stale", b"8"),
        ];
        let message = folder.check(&modules).unwrap_err().to_string();
        for (name, what) in [
            ("missing.spv", "is missing"),
            ("stale.spv", "differs from"),
            ("left-over.spv", "has no source"),
        ] {
            let line = message.lines().find(|line| line.contains(name));
            assert!(line.is_some_and(|line| line.contains(what)), "{message}");
        }
        assert!(!message.contains("same.spv"), "{message}");

        folder.write(&modules).unwrap();
        folder.check(&modules).unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}
