//! Installs an archive in fresh roots of Debian by the install script, pulls a model and generates a token. The Debian
//! package is installed there too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::programs::refused;
use crate::error::{self, XtaskError};
use crate::{cache, debian, fetch, process};

/// The suites with their names for the table; the oldest has glibc 2.31.
pub(super) const RELEASES: [(&str, &str); 3] = [
    ("bookworm", "Debian 12"),
    ("trixie", "Debian 13"),
    ("bullseye", "Debian 11"),
];
/// Maximum time from the start of the install script to the first token.
const LIMIT: Duration = Duration::from_secs(60);
/// Size of the model that is pulled: the embedded model, followed by zeros.
const MODEL_BYTES: usize = 30_000_000;
const REPO: &str = "tercet/tiny";
const FILE: &str = "tiny-Q8_0.gguf";
/// The folder of everything that a check writes into a root.
const FOLDER: &str = "tmp/tercet";
/// Programs that a fresh root must not have.
const COMPILERS: [&str; 4] = ["cc", "gcc", "rustc", "cargo"];

/// Adds the model to a served folder, as a mirror of the hub lists it.
pub(super) fn serve_model(served: &Path) -> Result<(), XtaskError> {
    let from = process::root().join("tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    let mut bytes = crate::dist::read(&from)?;
    bytes.resize(MODEL_BYTES, 0);
    let commit = "1".repeat(40);
    let model = served.join(REPO).join("resolve").join(&commit).join(FILE);
    write(&model, &bytes)?;
    let digest = fetch::sha256(&model).map_err(error::file("read", &model))?;
    let listing = serde_json::json!({
        "id": REPO,
        "sha": commit,
        "siblings": [{
            "rfilename": FILE,
            "size": MODEL_BYTES,
            "blobId": commit,
            "lfs": {"sha256": digest, "size": MODEL_BYTES, "pointerSize": 134},
        }],
    });
    let path = served.join("api/models").join(REPO).join("revision/main");
    write(&path, listing.to_string().as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), XtaskError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(error::file("create", folder))?;
    fs::write(path, bytes).map_err(error::file("write", path))
}

/// The root folder of a release, made once; the reason if that is impossible here.
pub(super) fn root(suite: &str) -> Result<Result<PathBuf, String>, XtaskError> {
    let root = cache::dir()?.join(format!("root-{suite}"));
    if root.is_dir() {
        return Ok(Ok(root));
    }
    if !process::can_install() {
        return Ok(Err("it needs root and `debootstrap`".to_string()));
    }
    if !process::works(Command::new("debootstrap").arg("--version")) {
        process::apt_install(&["debootstrap"])?;
    }
    let partial = root.with_extension("partial");
    fetch::remove_dir(&partial)?;
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include=curl,ca-certificates", suite]);
    make.arg(&partial).arg(debian::mirror()?.uri);
    make.stdout(std::process::Stdio::null());
    if process::run(&mut make).is_err() {
        fetch::remove_dir(&partial)?;
        return Ok(Err(format!("the mirror of this machine has no {suite}")));
    }
    // The packages are of no use after they are installed.
    fetch::remove_dir(&partial.join("var/cache/apt/archives"))?;
    fs::rename(&partial, &root).map_err(error::file("create", &root))?;
    Ok(Ok(root))
}

/// Runs the install script of a server in a root, then pulls the model and generates one token.
pub(super) fn check(root: &Path, url: &str) -> Result<Duration, XtaskError> {
    for name in COMPILERS {
        if root.join("usr/bin").join(name).exists() {
            return Err(refused(root, format!("a fresh root has no `{name}`")));
        }
    }
    let folder = root.join(FOLDER);
    fetch::remove_dir(&folder)?;
    let script = format!(
        "set -e; export HOME=/{FOLDER}/home HF_ENDPOINT={url}; mkdir -p $HOME; \
         curl --fail --silent --show-error {url}/install.sh | sh; \
         $HOME/.local/bin/tercet pull {REPO}; \
         $HOME/.local/bin/tercet generate -hf {REPO} --offline --device cpu --temperature 0 \
         --prompt Once --max-tokens 12"
    );
    let mut command = Command::new("/usr/sbin/chroot");
    command
        .arg(root)
        .args(["/bin/sh", "-c", &script])
        .env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let start = Instant::now();
    let printed = process::limited_output(command, LIMIT)?;
    let took = start.elapsed();
    fetch::remove_dir(&folder)?;
    match printed.contains(super::programs::ANSWER) {
        true => Ok(took),
        false => Err(refused(
            root,
            format!("no answer of the model in: {printed}"),
        )),
    }
}

/// Installs a Debian package in a root, generates text, and removes the package again.
pub(super) fn check_package(root: &Path, package: &Path) -> Result<(), XtaskError> {
    let folder = root.join(FOLDER);
    fetch::remove_dir(&folder)?;
    fs::create_dir_all(&folder).map_err(error::file("create", &folder))?;
    let to = folder.join("tercet.deb");
    fs::copy(package, &to).map_err(error::file("copy", package))?;
    let inside = |script: &str| {
        let mut command = Command::new("/usr/sbin/chroot");
        command
            .arg(root)
            .args(["/bin/sh", "-c", script])
            .env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command.env("HOME", format!("/{FOLDER}"));
        command
    };
    // dpkg refuses a package whose dependencies the root does not have.
    let script = format!(
        "set -e; dpkg --install /{FOLDER}/tercet.deb >&2; \
         tercet generate --device cpu --temperature 0 --prompt Once --max-tokens 12"
    );
    let printed = process::limited_output(inside(&script), LIMIT);
    let removed = process::run(&mut inside("dpkg --purge tercet >&2"));
    fetch::remove_dir(&folder)?;
    let printed = printed?;
    removed?;
    match printed.contains(super::programs::ANSWER) {
        true if !root.join("usr/bin/tercet").exists() => Ok(()),
        true => Err(refused(package, "its removal left the program".to_string())),
        false => Err(refused(
            package,
            format!("no answer of the model in: {printed}"),
        )),
    }
}
