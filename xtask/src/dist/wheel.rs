//! Python wheels for the stable ABI, and their source distribution.

use std::fs;
use std::path::{Path, PathBuf};

use super::compile;
use super::cross::CrossTools;
use super::{DistInput, GLIBC};
use crate::error::{self, XtaskError};
use crate::process;
use crate::python::target_dir;

const CRATE: &str = "crates/tercet-python";
/// The licenses of all dependencies in the folder of the crate, while maturin packs those that the project names.
const THIRD_PARTY: &str = "LICENSE-THIRD-PARTY.txt";
/// Maximum size of a wheel.
const MAX_BYTES: u64 = 20_000_000;

/// Builds the wheel of a target. maturin compares the symbols of the module with those of the platform tag.
pub(super) fn write(
    input: &DistInput,
    licenses: &Path,
    tools: &CrossTools,
) -> Result<PathBuf, XtaskError> {
    let mut maturin = tools.maturin();
    process::share_outputs(&mut maturin);
    maturin.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--target",
        &input.target,
    ]);
    if input.target.ends_with("-linux-gnu") {
        let tag = format!("manylinux_{}", GLIBC.replace('.', "_"));
        maturin.args(["--auditwheel", "check", "--compatibility", &tag]);
    }
    let zig = compile::zig_triple(&input.target);
    tools.enable(&mut maturin, zig.as_deref())?;
    let built = input.out.join("wheel.partial");
    crate::fetch::remove_dir(&built)?;
    maturin.arg("--out").arg(&built);
    maturin.current_dir(process::root().join(CRATE));
    maturin.env("CARGO_TARGET_DIR", target_dir());
    let third_party = process::root().join(CRATE).join(THIRD_PARTY);
    fs::copy(licenses, &third_party).map_err(error::file("copy", licenses))?;
    let run = process::run(&mut maturin);
    fs::remove_file(&third_party).map_err(error::file("remove", &third_party))?;
    run?;
    let wheel = only_file(&built, &input.out)?;
    if !contains(&wheel, THIRD_PARTY)? {
        let problem = format!("it has no {THIRD_PARTY}");
        return Err(XtaskError::DistInput {
            path: wheel,
            problem,
        });
    }
    let bytes = fs::metadata(&wheel)
        .map_err(error::file("read", &wheel))?
        .len();
    match bytes > MAX_BYTES {
        true => Err(XtaskError::WheelSize {
            path: wheel,
            bytes,
            most: MAX_BYTES,
        }),
        false => Ok(wheel),
    }
}

/// Whether a wheel has a file of this name in any folder.
fn contains(wheel: &Path, name: &str) -> Result<bool, XtaskError> {
    let bytes = super::read(wheel)?;
    let zip = zip::ZipArchive::new(std::io::Cursor::new(bytes));
    let zip = zip.map_err(|e| error::file("unpack", wheel)(std::io::Error::other(e)))?;
    Ok(zip
        .file_names()
        .any(|path| path.is_ok_and(|path| Path::new(&*path).ends_with(name))))
}

/// Moves the file of a folder to another folder, and removes the first one.
fn only_file(from: &Path, to: &Path) -> Result<PathBuf, XtaskError> {
    let mut entries = fs::read_dir(from).map_err(error::file("read", from))?;
    let found = entries.find_map(Result::ok).map(|entry| entry.path());
    let found = found.ok_or_else(|| XtaskError::NoWheel { dir: from.into() })?;
    let path = to.join(found.file_name().unwrap_or_default());
    fs::rename(&found, &path).map_err(error::file("create", &path))?;
    crate::fetch::remove_dir(from)?;
    Ok(path)
}
