//! The crates that are linked into a package of the workspace, such as the `tercet` command, for a target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{self, XtaskError};
use crate::process;

/// The package of the `tercet` command.
pub(super) const COMMAND: &str = "tercet-cli";

/// A crate of the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkedCrate {
    pub(super) name: String,
    pub(super) version: String,
    /// The SPDX expression.
    pub(super) license: Option<String>,
    pub(super) authors: Vec<String>,
    pub(super) repository: Option<String>,
    pub(super) description: Option<String>,
    /// The folder of its sources.
    pub(super) folder: PathBuf,
    /// SHA-256 of its package; absent for crates of the workspace.
    pub(super) checksum: Option<String>,
    /// Names and versions of the crates that it uses directly.
    pub(super) uses: BTreeSet<(String, String)>,
}

impl LinkedCrate {
    /// Whether the crate belongs to this repository.
    pub(super) fn is_own(&self) -> bool {
        self.checksum.is_none()
    }
}

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<CargoPackage>,
    resolve: CargoResolve,
}

#[derive(Deserialize)]
struct CargoPackage {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    repository: Option<String>,
    description: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct CargoResolve {
    nodes: Vec<CargoNode>,
}

#[derive(Deserialize)]
struct CargoNode {
    id: String,
    deps: Vec<CargoDependency>,
}

#[derive(Deserialize)]
struct CargoDependency {
    pkg: String,
    dep_kinds: Vec<CargoDependencyKind>,
}

#[derive(Deserialize)]
struct CargoDependencyKind {
    /// `None` for dependencies that are linked.
    kind: Option<String>,
}

/// Reads the crates that a package links from cargo, sorted by name and version; the package itself is one of them.
pub(super) fn read(package: &str, target: &str) -> Result<Vec<LinkedCrate>, XtaskError> {
    let mut tree = process::cargo();
    tree.args(["tree", "--locked", "--package", package, "--all-features"]);
    tree.args([
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let printed = process::output(tree.args(["--target", target]))?;
    let linked = linked(&String::from_utf8_lossy(&printed));
    let mut metadata = process::cargo();
    metadata.args([
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--all-features",
    ]);
    let printed = process::output(metadata.args(["--filter-platform", target]))?;
    let metadata = serde_json::from_slice(&printed).map_err(XtaskError::CargoMessage)?;
    let lock = process::root().join("Cargo.lock");
    let text = std::fs::read_to_string(&lock).map_err(error::file("read", &lock))?;
    Ok(combine(&linked, metadata, &checksums(&text)))
}

/// Names and versions in the lines of `cargo tree`: `name v1.2.3 (proc-macro)`.
fn linked(tree: &str) -> BTreeSet<(String, String)> {
    let crates = tree.lines().filter(|line| !line.contains("(proc-macro)"));
    let crates = crates.filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        let version = rest.split_whitespace().next()?;
        Some((name.to_string(), version.to_string()))
    });
    crates.collect()
}

/// The SHA-256 of each package of the registry in a lock file.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
            Some(line.trim_end_matches('"').to_string())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            checksums.insert((name, version), sum);
        }
    }
    checksums
}

fn combine(
    linked: &BTreeSet<(String, String)>,
    metadata: CargoMetadata,
    checksums: &BTreeMap<(String, String), String>,
) -> Vec<LinkedCrate> {
    let key = |package: &CargoPackage| (package.name.clone(), package.version.clone());
    let keys = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), key(package)));
    let keys: BTreeMap<&str, (String, String)> = keys.collect();
    let nodes = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node));
    let nodes: BTreeMap<&str, &CargoNode> = nodes.collect();
    let uses = |id: &str| -> BTreeSet<(String, String)> {
        let edges = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        let edges = edges.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        let used = edges.filter_map(|edge| keys.get(edge.pkg.as_str()));
        used.filter(|used| linked.contains(*used))
            .cloned()
            .collect()
    };
    let packages = metadata.packages.iter();
    let crates = packages
        .filter(|package| linked.contains(&key(package)))
        .map(|package| LinkedCrate {
            name: package.name.clone(),
            version: package.version.clone(),
            // The old form of a choice between two licenses.
            license: package
                .license
                .as_ref()
                .map(|text| text.replace('/', " OR ")),
            authors: package.authors.clone(),
            repository: package.repository.clone(),
            description: package.description.clone(),
            folder: package
                .manifest_path
                .parent()
                .unwrap_or(Path::new(""))
                .to_path_buf(),
            checksum: checksums.get(&key(package)).cloned(),
            uses: uses(&package.id),
        });
    let mut crates: Vec<LinkedCrate> = crates.collect();
    crates.sort();
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_read() {
        let tree = "tercet-cli v0.1.0 (/a/b)\nserde v1.0.1\nserde v1.0.1 (*)\nserde_derive v1.0.1 (proc-macro)\n\n";
        let found = linked(tree);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["serde", "tercet-cli"]);
    }

    #[test]
    fn each_linked_crate_is_described() {
        let crates = read(COMMAND, "x86_64-unknown-linux-gnu").unwrap();
        assert!(crates.len() > 100, "{}", crates.len());
        let find = |name: &str| crates.iter().find(|c| c.name == name);
        assert!(find(COMMAND).is_some_and(LinkedCrate::is_own));
        assert!(find("serde").is_some_and(|c| !c.is_own()));
        // Programs of the build and of tests are not part of the command.
        for absent in ["proptest", "insta", "serde_derive", "syn", "cc"] {
            assert!(find(absent).is_none(), "{absent}");
        }
        assert!(
            crates
                .iter()
                .all(|c| c.license.as_ref().is_some_and(|text| !text.contains('/')))
        );
        let command = find(COMMAND).unwrap();
        assert!(command.uses.iter().any(|(name, _)| name == "clap"));
        assert!(find("ash").is_some());
    }
}
