//! The source distribution of the Python package: the crates of the wheel and a build description.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::archive::{TarWriter, gzip};
use super::{SUMMARY, VERSION};
use crate::error::{self, XtaskError};
use crate::process;

const CRATE: &str = "tercet-python";
/// Files and folders of the repository that the crates are built from, besides themselves.
const SHARED: [&str; 4] = ["Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT", "clippy.toml"];

#[derive(Deserialize)]
struct CargoMembers {
    packages: Vec<CargoMember>,
}

#[derive(Deserialize)]
struct CargoMember {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MemberDependency>,
}

#[derive(Deserialize)]
struct MemberDependency {
    name: String,
    /// The folder of a crate of the workspace.
    path: Option<PathBuf>,
}

/// Writes the source distribution into a folder.
pub(super) fn write(out: &Path, time: u64) -> Result<PathBuf, XtaskError> {
    let stem = format!("tercet-{VERSION}");
    let root = process::root();
    let folders = folders(&members()?, &root);
    let mut tar = TarWriter::new(time);
    for name in listed(&root, &folders)? {
        let file = root.join(&name);
        tar.copy(&format!("{stem}/{name}"), 0o644, &file)?;
    }
    let manifest = root.join("Cargo.toml");
    let project = root.join("crates").join(CRATE).join("pyproject.toml");
    let texts = [
        ("Cargo.toml", workspace(&text(&manifest)?, &folders)),
        ("pyproject.toml", build_description(&text(&project)?)),
        ("PKG-INFO", information()),
    ];
    for (name, text) in texts {
        let path = format!("{stem}/{name}");
        tar.file(&path, 0o644, text.as_bytes())
            .map_err(error::file("pack", out))?;
    }
    let path = out.join(format!("{stem}.tar.gz"));
    let packed: io::Result<Vec<u8>> = tar.finish().and_then(|bytes| gzip(&bytes));
    super::write(&path, &packed.map_err(error::file("pack", &path))?)?;
    Ok(path)
}

fn text(path: &Path) -> Result<String, XtaskError> {
    std::fs::read_to_string(path).map_err(error::file("read", path))
}

/// The crates of the workspace.
fn members() -> Result<Vec<CargoMember>, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let printed = process::output(&mut cargo)?;
    let members: CargoMembers =
        serde_json::from_slice(&printed).map_err(XtaskError::CargoMessage)?;
    Ok(members.packages)
}

/// The folders of the module's crate and of all crates of the workspace that it depends on, for tests too: cargo reads
/// their manifests.
fn folders(members: &[CargoMember], root: &Path) -> BTreeSet<String> {
    let named: BTreeMap<&str, &CargoMember> = members.iter().map(|m| (&*m.name, m)).collect();
    let mut found = BTreeSet::new();
    let mut open = vec![CRATE];
    while let Some(member) = open.pop().and_then(|name| named.get(name)) {
        let folder = member.manifest_path.parent().unwrap_or(root);
        let folder = folder.strip_prefix(root).unwrap_or(folder);
        if found.insert(folder.to_string_lossy().replace('\\', "/")) {
            let own = member
                .dependencies
                .iter()
                .filter(|used| used.path.is_some());
            open.extend(own.map(|used| &*used.name));
        }
    }
    found
}

/// The committed files below folders, and the shared ones.
fn listed(root: &Path, folders: &BTreeSet<String>) -> Result<Vec<String>, XtaskError> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--"])
        .args(folders)
        .args(SHARED);
    let printed = process::output(git.current_dir(root))?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let names = printed.split('\0').filter(|name| !name.is_empty());
    Ok(names.map(str::to_string).collect())
}

/// The manifest of the workspace with only these members.
fn workspace(manifest: &str, folders: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for line in manifest.lines() {
        match line.split(" = ").next() {
            Some("members") => {
                let quoted: Vec<String> = folders.iter().map(|f| format!("{f:?}")).collect();
                text += &format!("members = [{}]\n", quoted.join(", "));
            }
            Some("default-members" | "exclude") => {}
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

/// The build description for the root folder of the distribution.
fn build_description(project: &str) -> String {
    let folder = format!("crates/{CRATE}");
    let source =
        format!("manifest-path = \"{folder}/Cargo.toml\"\npython-source = \"{folder}/python\"");
    let readme = format!("readme = \"{folder}/README.md\"");
    let project = project.replace("python-source = \"python\"", &source);
    project.replace("readme = \"README.md\"", &readme)
}

/// The metadata that package indexes read.
fn information() -> String {
    format!(
        "Metadata-Version: 2.4\nName: tercet\nVersion: {VERSION}\nSummary: {SUMMARY}\n\
         License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\n\
         Requires-Python: >=3.9\nRequires-Dist: numpy>=1.22\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// cargo resolves the unpacked workspace without changes of the lock file that add packages.
    #[test]
    fn the_distribution_has_every_crate_of_the_module() {
        let dir = std::env::temp_dir().join(format!("xtask-sdist-{}", std::process::id()));
        crate::fetch::remove_dir(&dir).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        let path = write(&dir, 1_700_000_000).unwrap();
        assert!(path.ends_with(format!("tercet-{VERSION}.tar.gz")));
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 10_000_000, "{} bytes", bytes.len());
        let mut tar = Vec::new();
        let mut reader = flate2::read::GzDecoder::new(&bytes[..]);
        reader.read_to_end(&mut tar).unwrap();
        tar::Archive::new(&tar[..]).unpack(&dir).unwrap();
        let root = dir.join(format!("tercet-{VERSION}"));
        let project = text(&root.join("pyproject.toml")).unwrap();
        assert!(
            project.contains("manifest-path = \"crates/tercet-python/Cargo.toml\""),
            "{project}"
        );
        assert!(project.contains("readme = \"crates/tercet-python/README.md\""));
        for name in [
            "crates/tercet-python/python/tercet/__init__.py",
            "crates/tercet-python/README.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
        ] {
            assert!(root.join(name).is_file(), "no {name}");
        }
        let mut cargo = process::cargo();
        // Packages of other platforms may not have been downloaded.
        let host = super::super::host().unwrap();
        cargo.args(["metadata", "--offline", "--format-version", "1"]);
        cargo.args(["--filter-platform", &host]);
        process::output(cargo.current_dir(&root)).unwrap();
        crate::fetch::remove_dir(&dir).unwrap();
    }

    #[test]
    fn the_workspace_has_only_the_packed_members() {
        let folders = BTreeSet::from(["crates/a".to_string(), "crates/b".to_string()]);
        let manifest = "[workspace]\nmembers = [\"x/*\"]\ndefault-members = [\"x\"]\nexclude = [\"y\"]\nresolver = \"3\"\n";
        assert_eq!(
            workspace(manifest, &folders),
            "[workspace]\nmembers = [\"crates/a\", \"crates/b\"]\nresolver = \"3\"\n"
        );
    }
}
