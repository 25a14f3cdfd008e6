//! Installs a wheel into fresh virtual environments of the oldest and the newest Python, and runs a model.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::{foreign_python, refused};
use crate::error::XtaskError;
use crate::python::target_dir;
use crate::{fetch, process};

/// The minor versions of Python 3 that are searched; the first is the oldest that wheels support.
const MINORS: std::ops::RangeInclusive<u32> = 9..=20;
/// The processor as Debian names it, the version of its Python, and the platforms of wheels that it takes.
const FOREIGN: (&str, &str, [&str; 3]) = (
    "arm64",
    "3.11",
    [
        "manylinux_2_28_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ],
);
/// Generates text, compares two sentences and runs a graph.
const PROGRAM: &str = "\
import sys, numpy, tercet
model, encoder, graph = map(tercet.load, sys.argv[1:])
print(model.generate('Once', 12, temperature=0).text())
a, b = encoder.embed(['one', 'two'])
print(f'{a @ b:.3f}')
x = numpy.array([0, 1, -2, 1e30], numpy.float32)
y = graph.run({'x': x})['y']
print('graph', numpy.allclose(y, numpy.arcsinh(x.astype(float)), rtol=1e-5))
";
/// Its arguments, below `tests/data`.
const MODELS: [&str; 3] = [
    "tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
    "encoders/sentence-a",
    "cases/onnx/asinh.onnx",
];

/// The oldest and the newest Python of this machine: minor versions and programs.
pub(super) fn pythons() -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = MINORS
        .filter_map(|minor| Some((minor, python(minor)?)))
        .collect();
    if found.len() > 2 {
        found.drain(1..found.len() - 1);
    }
    found
}

/// A Python that can make virtual environments.
fn python(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let is_minor =
        format!("import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))");
    let mut candidates = vec![PathBuf::from(&name)];
    // Versions that pyenv or uv installed need not be on the PATH.
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    for folder in [".pyenv/versions", ".local/share/uv/python"] {
        let entries = std::fs::read_dir(home.join(folder))
            .into_iter()
            .flatten()
            .flatten();
        candidates.extend(entries.map(|entry| entry.path().join("bin").join(&name)));
    }
    let works = |path: &PathBuf| process::works(Command::new(path).args(["-c", &is_minor]));
    candidates.into_iter().find(works)
}

/// Installs a wheel or a source distribution with its dependencies, and runs models.
pub(super) fn check(python: &Path, wheel: &Path, dir: &Path) -> Result<(), XtaskError> {
    let venv = dir.join("venv");
    fetch::remove_dir(&venv)?;
    process::run(Command::new(python).args(["-m", "venv"]).arg(&venv))?;
    let inner = venv.join("bin").join("python");
    let mut pip = Command::new(&inner);
    pip.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]);
    pip.args(["--only-binary", "numpy"]).arg(wheel);
    // A source distribution is built with less optimization, which takes half the time.
    pip.env("CARGO_TARGET_DIR", target_dir().join("sdist"));
    process::run(pip.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"))?;
    run_models(Command::new(&inner), wheel, dir)
}

/// Unpacks a wheel for another processor with its dependencies by this machine's pip, and runs models under `qemu`.
pub(super) fn check_foreign(qemu: &Path, wheel: &Path, dir: &Path) -> Result<(), XtaskError> {
    let root = foreign_python(FOREIGN.0)?;
    let packages = dir.join("packages");
    fetch::remove_dir(&packages)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "install"]);
    pip.args([
        "--quiet",
        "--only-binary",
        ":all:",
        "--implementation",
        "cp",
    ]);
    pip.args(["--python-version", FOREIGN.1, "--target"]);
    pip.arg(&packages);
    for tag in FOREIGN.2 {
        pip.args(["--platform", tag]);
    }
    process::run(pip.arg(wheel))?;
    let mut python = Command::new(qemu);
    python.arg("-L").arg(&root);
    python.arg(root.join(format!("usr/bin/python{}", FOREIGN.1)));
    python.env("PYTHONHOME", root.join("usr"));
    python.env("PYTHONPATH", &packages);
    run_models(python, wheel, dir)
}

/// Runs a language model, an encoder and a graph by a Python that has the wheel.
fn run_models(mut python: Command, wheel: &Path, dir: &Path) -> Result<(), XtaskError> {
    let data = process::root().join("tests").join("data");
    python
        .args(["-c", PROGRAM])
        .args(MODELS.map(|name| data.join(name)));
    let printed = process::output(python.current_dir(dir))?;
    let printed = String::from_utf8_lossy(&printed);
    for expected in [
        super::programs::ANSWER,
        super::programs::SIMILARITY,
        "graph True",
    ] {
        if !printed.contains(expected) {
            return Err(refused(wheel, format!("no {expected:?} in: {printed}")));
        }
    }
    Ok(())
}
