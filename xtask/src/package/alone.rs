//! Builds the packages and runs their tests in a folder that has nothing but the packages. They are the members of a
//! workspace, which replaces the siblings of each by the other packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::CratePackage;
use super::contents::sources;
use crate::error::{self, XtaskError};
use crate::process;
use crate::python::target_dir;

/// The command. Its tests read the pages of the documentation.
const PROGRAM: &str = "tercet-cli";
/// Code of doc tests that open a model of the repository.
const NEEDS_CHECKOUT: &str = "\"/../../tests/";

/// Builds every package and runs the tests that it has.
pub(super) fn check(packages: &[CratePackage], dir: &Path) -> Result<(), XtaskError> {
    let root = process::root();
    let own = root.join("Cargo.toml");
    let own = fs::read_to_string(&own).map_err(error::file("read", &own))?;
    let manifest = dir.join("Cargo.toml");
    let names: Vec<&str> = packages.iter().map(|p| &*p.manifest.name).collect();
    let folders: Vec<&Path> = packages.iter().map(|p| &*p.folder).collect();
    let text = workspace(&names, &folders, &own);
    fs::write(&manifest, text).map_err(error::file("write", &manifest))?;
    let lock = root.join("Cargo.lock");
    fs::copy(&lock, dir.join("Cargo.lock")).map_err(error::file("copy", &lock))?;
    process::run(cargo(dir).args(["build", "--release", "--workspace"]))?;
    let mut tests = cargo(dir);
    tests.args(["test", "--release", "--tests", "--workspace"]);
    process::run(tests.args(["--exclude", PROGRAM]))?;
    let mut doc_tests = cargo(dir);
    doc_tests.args(["test", "--release", "--doc"]);
    for package in packages {
        let name = &*package.manifest.name;
        match needs_checkout(&package.folder)? {
            true => println!("NOT RUN: doc tests of {name}, which read models of the repository"),
            false if name == PROGRAM => {}
            false => _ = doc_tests.args(["--package", name]),
        }
    }
    process::run(&mut doc_tests)
}

/// cargo in the folder. It shares the builds of other crates with the workspace.
fn cargo(dir: &Path) -> Command {
    let mut cargo = process::cargo();
    cargo.current_dir(dir).env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// The manifest of a workspace of packages. Other crates have the profile of the repository's manifest `own`; the
/// packages are optimized less, which takes a third of the time.
fn workspace(names: &[&str], folders: &[&Path], own: &str) -> String {
    let mut text =
        format!("[workspace]\nresolver = \"3\"\nmembers = {folders:?}\n\n[patch.crates-io]\n");
    for (name, folder) in names.iter().zip(folders) {
        text += &format!("{name} = {{ path = {folder:?} }}\n");
    }
    let profiles = own.find("[profile.release]").map(|at| &own[at..]);
    let profiles = profiles.unwrap_or_default();
    let profiles = profiles.replace(
        "[profile.release]\n",
        "\n[profile.release]\nopt-level = 1\n",
    );
    text + &profiles.replace(
        "[profile.release.package]\n",
        "[profile.release.package]\n\"*\" = { opt-level = 3 }\n",
    )
}

/// Whether doc tests of a package read files of the repository.
fn needs_checkout(folder: &Path) -> Result<bool, XtaskError> {
    for path in sources(folder)? {
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        if text.contains(NEEDS_CHECKOUT) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_come_from_the_packages() {
        let own = fs::read_to_string(process::root().join("Cargo.toml")).unwrap();
        let text = workspace(
            &["a", "b"],
            &[Path::new("/x/a-0.1.0"), Path::new("/x/b-0.1.0")],
            &own,
        );
        for part in [
            "members = [\"/x/a-0.1.0\", \"/x/b-0.1.0\"]\n",
            "[patch.crates-io]\na = { path = \"/x/a-0.1.0\" }\nb = { path = \"/x/b-0.1.0\" }\n",
            "[profile.release]\nopt-level = 1\nstrip",
            "[profile.release.package]\n\"*\" = { opt-level = 3 }\n",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }

    #[test]
    fn doc_tests_with_models_of_the_repository_are_found() {
        let dir = std::env::temp_dir().join(format!("xtask-alone-{}", std::process::id()));
        fs::create_dir_all(dir.join("src")).unwrap();
        let file = dir.join("src").join("lib.rs");
        fs::write(&file, "//! ```\n//! ```\n").unwrap();
        assert!(!needs_checkout(&dir).unwrap());
        let needs =
            "/// # let data = concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../../tests/data/\");\n";
        fs::write(&file, needs).unwrap();
        assert!(needs_checkout(&dir).unwrap());
        fs::remove_dir_all(dir).unwrap();
    }
}
