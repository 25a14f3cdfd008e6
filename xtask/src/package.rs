//! `cargo xtask package`: packs the crates for a registry, in an order in which each comes after those that it depends
//! on, and checks the packages:
//!
//! 1. the manifests have what a registry shows, and siblings are required in the version of the workspace,
//! 2. the packages are small, and have the licenses, a README and every file that their code includes,
//! 3. files that a crate has as a copy equal their originals ([`copies`]),
//! 4. with `--check`, the packages build and their tests pass in a folder without the checkout ([`alone`]).

mod alone;
mod contents;
pub(crate) mod copies;
mod manifests;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::{self, XtaskError};
use crate::fetch::remove_dir;
use crate::process;
use crate::python::target_dir;

use manifests::CrateManifest;

/// Maximum size of a package. That of the command has a model of 3.8 MB.
const MAX_PACKAGE_BYTES: u64 = 4_500_000;

/// The options of `package`.
#[derive(Args)]
pub(crate) struct PackageArgs {
    /// Also build the packages and run their tests in a folder without the checkout
    #[arg(long)]
    check: bool,
}

/// A crate as a registry gets it.
struct CratePackage {
    manifest: CrateManifest,
    /// Compressed size.
    bytes: u64,
    /// The folder that it was unpacked into.
    folder: PathBuf,
}

/// Packs the crates, prints them in the order of their publication, and checks them.
pub(crate) fn run(options: &PackageArgs) -> Result<(), XtaskError> {
    let manifests = manifests::published()?;
    let mut problems = copies::differences()?;
    for manifest in &manifests {
        problems.extend(manifest.problems(&manifests));
    }
    let dir = target_dir().join("package").join("alone");
    let packages = pack(manifests, &dir)?;
    for package in &packages {
        println!("{:>9}  {}", package.bytes, package.manifest.name);
        if package.bytes > MAX_PACKAGE_BYTES {
            problems.push(format!(
                "{} has {} bytes, expected at most {MAX_PACKAGE_BYTES}",
                package.manifest.name, package.bytes
            ));
        }
        problems.extend(contents::problems(&package.folder)?);
    }
    if !problems.is_empty() {
        return Err(XtaskError::Packages { problems });
    }
    match options.check {
        true => alone::check(&packages, &dir),
        false => Ok(()),
    }
}

/// Packs the crates and unpacks the packages into a folder.
fn pack(manifests: Vec<CrateManifest>, dir: &Path) -> Result<Vec<CratePackage>, XtaskError> {
    // Packing reads the metadata of every dependency. Then it needs no network.
    process::run(process::cargo().args(["fetch", "--locked", "--quiet"]))?;
    let mut cargo = process::cargo();
    cargo.args([
        "package",
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--quiet",
    ]);
    for manifest in &manifests {
        cargo.args(["--package", &manifest.name]);
    }
    process::run(&mut cargo)?;
    remove_dir(dir)?;
    let unpack = |manifest: CrateManifest| {
        let stem = format!("{}-{}", manifest.name, manifest.version);
        let file = target_dir().join("package").join(format!("{stem}.crate"));
        Ok(CratePackage {
            bytes: unpack(&file, dir)?,
            folder: dir.join(stem),
            manifest,
        })
    };
    manifests.into_iter().map(unpack).collect()
}

/// Unpacks a package into a folder. Returns its compressed size.
fn unpack(file: &Path, to: &Path) -> Result<u64, XtaskError> {
    let bytes = fs::read(file).map_err(error::file("read", file))?;
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
    // All files of packages have one time. cargo recognizes changed files by theirs.
    tar.set_preserve_mtime(false);
    tar.unpack(to).map_err(error::file("unpack", file))?;
    Ok(bytes.len() as u64)
}
