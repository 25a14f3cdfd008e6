//! `cargo xtask dist`: packs release binaries for users, into `target/dist`. The artifacts of a target are:
//!
//! 1. archives with the program and the licenses (`.tar.xz` and `.tar.gz`, or `.zip` for Windows),
//! 2. a Debian package,
//! 3. an OCI image for `tercet serve`, written without a daemon,
//! 4. a Python wheel, and the source distribution of the Python package,
//! 5. the C library with its header, and the browser package for npm,
//! 6. a bill of materials in CycloneDX, and the licenses of all dependencies.
//!
//! `SHA256SUMS` lists the files of the folder. `--describe DIR` then writes the files that need all archives: install
//! scripts with the URL of the release, a Homebrew formula and winget manifests. The same inputs give the same bytes.

mod archive;
mod check;
mod compile;
mod cross;
mod deb;
mod dependencies;
mod describe;
mod elf;
mod image;
mod library;
mod licenses;
mod npm;
mod sbom;
mod sdist;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};

use check::{CheckOptions, CheckTable};
use cross::CrossTools;

use crate::error::{self, XtaskError};
use crate::process;
use crate::python::target_dir;

/// The version of all artifacts.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMMARY: &str = "Machine-learning models on any machine: no Python, no CUDA";
/// The oldest glibc that programs and wheels for Linux run with.
const GLIBC: &str = "2.28";
/// The targets that x86-64 Linux builds.
const OWN_TARGETS: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-gnu",
    "x86_64-pc-windows-gnu",
];

#[cfg(test)]
pub(crate) use archive::xz;

/// The options of `dist`.
#[derive(Args)]
pub(crate) struct DistArgs {
    /// Artifacts to write [default: all that the target has]
    #[arg(value_enum, value_name = "ARTIFACT")]
    what: Vec<DistArtifact>,
    /// Platform of the binary; repeatable [default: all that this machine can build]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Pack this `tercet` program instead of building one with all features
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Folder of the artifacts [default: `dist` in the target folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Unpack the artifacts, run the program of each, and print a table
    #[arg(long)]
    check: bool,
    /// With --check: also install in fresh roots of Debian, and build the source distribution; the default without
    /// --binary
    #[arg(long, requires = "check")]
    whole: bool,
    /// Write checksums, install scripts and package manifests for the archives in a folder
    #[arg(long, value_name = "DIR", requires = "base_url", conflicts_with_all = ["what", "target", "binary", "out"])]
    describe: Option<PathBuf>,
    /// URL of the folder that will have the archives
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
}

/// A kind of artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DistArtifact {
    /// The program with its licenses, for the install scripts
    Archive,
    /// A Debian package
    Deb,
    /// An OCI image layout in a tar file
    Oci,
    /// A Python wheel
    Wheel,
    /// The source distribution of the Python package
    Sdist,
    /// The shared C library with its header, for CMake and pkg-config
    Library,
    /// The browser package for npm, with types
    Npm,
    /// A bill of materials in CycloneDX
    Sbom,
    /// The licenses of all dependencies
    Licenses,
}

/// A binary with the properties of its artifacts.
struct DistInput {
    target: String,
    binary: PathBuf,
    out: PathBuf,
    /// Seconds since 1970 of all files in archives.
    time: u64,
}

/// Writes the artifacts, or describes those of a folder.
pub(crate) fn run(options: &DistArgs) -> Result<(), XtaskError> {
    if let (Some(dir), Some(url)) = (&options.describe, &options.base_url) {
        return describe::run(dir, url);
    }
    let host = host()?;
    let targets = match (&options.target[..], &options.binary) {
        ([], None) if host == OWN_TARGETS[0] => OWN_TARGETS.map(str::to_string).to_vec(),
        ([], _) => vec![host.clone()],
        (targets, _) => targets.to_vec(),
    };
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| target_dir().join("dist"));
    fs::create_dir_all(&out).map_err(error::file("create", &out))?;
    let mut table = CheckTable::default();
    for target in &targets {
        let artifacts = options.artifacts(target);
        let has_zig = options.binary.is_none() && compile::needs_zig(target);
        let tools = match has_zig || artifacts.iter().any(|artifact| artifact.is_compiled()) {
            true => Some(CrossTools::fetch()?),
            false => None,
        };
        let zig = tools.as_ref().filter(|_| has_zig);
        let binary = match &options.binary {
            Some(path) => path.clone(),
            None => compile::program(target, target == &host, zig, "tercet")?,
        };
        let input = DistInput {
            target: target.clone(),
            binary,
            out: out.clone(),
            time: source_time()?,
        };
        let written = pack(&input, &artifacts, tools.as_ref())?;
        if options.check {
            let is_whole = options.whole || options.binary.is_none();
            check::run(&input, &written, CheckOptions { is_whole }, &mut table)?;
        }
    }
    describe::write_sums(&out)?;
    if options.check {
        check::elsewhere(&mut table);
    }
    table.finish()
}

/// Builds a program of the workspace for another platform, and returns the command that runs it here.
pub(crate) fn foreign_program(target: &str, name: &'static str) -> Result<Command, XtaskError> {
    let tools = match compile::needs_zig(target) {
        true => Some(CrossTools::fetch()?),
        false => None,
    };
    let program = compile::program(target, target == host()?, tools.as_ref(), name)?;
    let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
    check::command(target, &dir, &program)
}

/// Writes the artifacts of a target, and prints their sizes.
fn pack(
    input: &DistInput,
    artifacts: &[DistArtifact],
    tools: Option<&CrossTools>,
) -> Result<Vec<PathBuf>, XtaskError> {
    let mut written = Vec::new();
    let dependencies = dependencies::read(dependencies::COMMAND, &input.target)?;
    let licenses = licenses::write(&dependencies, input)?;
    for artifact in artifacts {
        match (artifact, tools) {
            (DistArtifact::Archive, _) => written.extend(archive::write(input, &licenses)?),
            (DistArtifact::Deb, _) => written.push(deb::write(input, &licenses)?),
            (DistArtifact::Oci, _) => written.push(image::write(input, &licenses)?),
            (DistArtifact::Wheel, Some(tools)) => {
                written.push(wheel::write(input, &licenses, tools)?);
            }
            (DistArtifact::Library, Some(tools)) => {
                written.push(library::write(input, &licenses, tools)?);
            }
            (DistArtifact::Sdist, _) => written.push(sdist::write(&input.out, input.time)?),
            (DistArtifact::Npm, _) => written.push(npm::write(input)?),
            (DistArtifact::Sbom, _) => written.push(sbom::write(&dependencies, input)?),
            (DistArtifact::Licenses, _) => written.push(licenses.clone()),
            (DistArtifact::Wheel | DistArtifact::Library, None) => {}
        }
    }
    if !artifacts.contains(&DistArtifact::Licenses) {
        fs::remove_file(&licenses).map_err(error::file("remove", &licenses))?;
    }
    for path in &written {
        let metadata = fs::metadata(path).map_err(error::file("read", path))?;
        println!("{:>10}  {}", metadata.len(), path.display());
    }
    Ok(written)
}

impl DistArgs {
    /// The artifacts to write for a target. A packed program has by default those that nothing is compiled for.
    fn artifacts(&self, target: &str) -> Vec<DistArtifact> {
        let is_default = |artifact: &DistArtifact| {
            let is_built = self.binary.is_none() || !artifact.is_compiled();
            is_built && artifact.is_of(target)
        };
        match self.what.is_empty() {
            true => {
                let all = DistArtifact::value_variants().iter().copied();
                all.filter(is_default).collect()
            }
            false => self.what.clone(),
        }
    }
}

impl DistArtifact {
    /// Whether it is compiled apart from the program.
    fn is_compiled(self) -> bool {
        matches!(
            self,
            DistArtifact::Wheel | DistArtifact::Library | DistArtifact::Npm
        )
    }

    /// Whether a target has the artifact by default.
    fn is_of(self, target: &str) -> bool {
        let has_libraries = !target.ends_with("-musl");
        match self {
            DistArtifact::Deb => target.ends_with("-linux-gnu"),
            // The image of a program with shared libraries needs those of its processor.
            DistArtifact::Oci => {
                ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"].contains(&target)
            }
            DistArtifact::Wheel | DistArtifact::Library => has_libraries,
            // One for all targets.
            DistArtifact::Sdist | DistArtifact::Npm => target == OWN_TARGETS[0],
            DistArtifact::Archive | DistArtifact::Sbom | DistArtifact::Licenses => true,
        }
    }
}

impl DistInput {
    /// The name of the folder in the archive, and of artifacts without their extension.
    fn stem(&self) -> String {
        format!("tercet-{VERSION}-{}", self.target)
    }

    /// The processor as Debian and OCI name it.
    fn architecture(&self) -> Result<&'static str, XtaskError> {
        match self.target.split('-').next() {
            Some("x86_64") => Ok("amd64"),
            Some("aarch64") => Ok("arm64"),
            _ => Err(XtaskError::DistInput {
                path: self.binary.clone(),
                problem: format!("`{}` is neither for x86_64 nor for aarch64", self.target),
            }),
        }
    }

    fn is_windows(&self) -> bool {
        self.target.contains("-windows-")
    }

    fn program(&self) -> &'static str {
        if self.is_windows() {
            "tercet.exe"
        } else {
            "tercet"
        }
    }

    /// The binary, the licenses and the README: the name, the path and whether it is a program.
    fn files(&self, licenses: &Path) -> Vec<(&'static str, PathBuf, bool)> {
        let root = process::root();
        vec![
            (self.program(), self.binary.clone(), true),
            ("LICENSE-APACHE", root.join("LICENSE-APACHE"), false),
            ("LICENSE-MIT", root.join("LICENSE-MIT"), false),
            ("README.md", root.join("README.md"), false),
            ("THIRD-PARTY.txt", licenses.to_path_buf(), false),
        ]
    }
}

/// Reads a file as bytes.
fn read(path: &Path) -> Result<Vec<u8>, XtaskError> {
    fs::read(path).map_err(error::file("read", path))
}

/// Writes an artifact by one rename, so that an interrupted run leaves no incomplete one.
fn write(path: &Path, bytes: &[u8]) -> Result<(), XtaskError> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).map_err(error::file("write", &partial))?;
    fs::rename(&partial, path).map_err(error::file("create", path))
}

/// The target triple of this machine's compiler.
fn host() -> Result<String, XtaskError> {
    let printed = process::output(Command::new("rustc").arg("-vV"))?;
    let printed = String::from_utf8_lossy(&printed);
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.unwrap_or("unknown").to_string())
}

/// Seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of the commit.
fn source_time() -> Result<u64, XtaskError> {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok();
    if let Some(time) = named.and_then(|time| time.parse().ok()) {
        return Ok(time);
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(process::root());
    let printed = process::output(&mut git)?;
    Ok(String::from_utf8_lossy(&printed)
        .trim()
        .parse()
        .unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::remove_dir;

    /// A small program in place of the binary, in a folder for its artifacts.
    pub(super) fn input(name: &str, target: &str, program: &[u8]) -> DistInput {
        let out = std::env::temp_dir().join(format!("xtask-dist-{name}-{}", std::process::id()));
        remove_dir(&out).unwrap();
        fs::create_dir_all(&out).unwrap();
        let binary = out.join("program");
        fs::write(&binary, program).unwrap();
        DistInput {
            target: target.to_string(),
            binary,
            out,
            time: 1_700_000_000,
        }
    }

    /// A file in place of the collected licenses.
    pub(super) fn licenses(input: &DistInput) -> PathBuf {
        let path = input.out.join("licenses");
        fs::write(&path, "all licenses\n").unwrap();
        path
    }

    #[test]
    fn targets_have_their_artifacts() {
        let has = |target: &str| {
            let artifacts = DistArtifact::value_variants().iter();
            artifacts.filter(|artifact| artifact.is_of(target)).count()
        };
        let targets = [
            "x86_64-unknown-linux-gnu",
            "x86_64-unknown-linux-musl",
            "aarch64-apple-darwin",
            "x86_64-pc-windows-gnu",
        ];
        assert_eq!(targets.map(has), [9, 4, 5, 5]);
    }

    /// `.ci/run` packs a program that it has built, and compiles nothing else for it.
    #[test]
    fn a_packed_program_has_what_is_not_compiled() {
        let mut options = DistArgs {
            what: Vec::new(),
            target: Vec::new(),
            binary: Some(PathBuf::from("tercet")),
            out: None,
            check: true,
            whole: false,
            describe: None,
            base_url: None,
        };
        let found = options.artifacts("x86_64-unknown-linux-gnu");
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(!found.iter().any(|artifact| artifact.is_compiled()));
        options.what = vec![DistArtifact::Npm];
        assert_eq!(options.artifacts("a"), [DistArtifact::Npm]);
    }

    #[test]
    fn other_processors_are_refused() {
        let input = input("processor", "riscv64gc-unknown-linux-gnu", b"");
        let error = input.architecture().unwrap_err().to_string();
        assert!(error.contains("riscv64gc"), "{error}");
        remove_dir(&input.out).unwrap();
    }
}
