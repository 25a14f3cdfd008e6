//! Unpacks artifacts, and runs the program of each one away from the checkout: directly, in an empty root, or by an
//! emulator. A table shows what ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{DistInput, GLIBC, elf, library as c_library};
use crate::error::{self, XtaskError};
use crate::{fetch, process};

mod container;
mod library;
mod npm;
mod programs;
mod roots;
mod table;
mod wheels;

use container::ImageRunner;
use programs::{ProgramRunner, ProgramTrial, expect_version, refused};
pub(super) use table::CheckTable;

/// Maximum sizes of the smallest archive of a target, and of its program. The goal for programs is 42 MB, which the
/// program for x86-64 Linux exceeds by 5.0 MB.
const MAX_ARCHIVE_BYTES: u64 = 18_000_000;
/// The same for zip: Windows unpacks Deflate, which leaves 1.5 times the bytes of xz.
const MAX_ZIP_BYTES: u64 = 26_000_000;
const MAX_PROGRAM_BYTES: u64 = 48_500_000;
/// The program for Windows, by MinGW, has larger code and tables for unwinding.
const MAX_WINDOWS_PROGRAM_BYTES: u64 = 53_500_000;
/// Parts of a release that this machine cannot run, with the reason.
const ELSEWHERE: [(&str, &str); 4] = [
    (
        "macOS",
        "its programs and wheels are built and run on a Mac, by the workflow",
    ),
    (
        "install.ps1",
        "it needs Windows; `cargo xtask lint` parses it if `pwsh` is installed",
    ),
    (
        "Homebrew, winget",
        "the formula needs a Mac, the manifests need Windows",
    ),
    ("Nix flake", "it needs Nix"),
];

/// Checks the artifacts of a target.
pub(super) fn run(
    input: &DistInput,
    artifacts: &[PathBuf],
    options: CheckOptions,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    let name = format!("xtask-dist-check-{}-{}", std::process::id(), input.target);
    let dir = std::env::temp_dir().join(name);
    fetch::remove_dir(&dir)?;
    fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
    let runner = ProgramRunner::find(&input.target, &dir)?;
    for path in artifacts {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let to = dir.join(name.as_ref());
        if name.ends_with(".json") || name.ends_with(".txt") {
            continue;
        }
        let runner = match &runner {
            Ok(runner) => runner,
            Err(reason) => {
                table.not_run(path, reason);
                continue;
            }
        };
        let is_own = matches!(runner, ProgramRunner::Own);
        match () {
            () if name.starts_with(c_library::PREFIX) => {
                let checks = library::checks(runner);
                let result = unpack(input, path, &to).and_then(|()| {
                    let stem = name.trim_end_matches(".zip").trim_end_matches(".tar.xz");
                    library::check(input, runner, &to.join(stem), &to)
                });
                table.record(path, checks, result);
            }
            () if name.ends_with(".tar.xz") || name.ends_with(".zip") => {
                check_program(input, runner, path, &to, options, table)?;
                if is_own && cfg!(unix) {
                    check_script(input, artifacts, &dir.join("served"), options, table)?;
                }
            }
            () if is_sdist(&name) => check_sdist(path, &to, options, table)?,
            () if name.ends_with(".tar.gz") => {
                table.record(path, "the same files as in .tar.xz", same_as_xz(path));
            }
            () if name.ends_with(".deb") => check_deb(runner, path, &to, options, table)?,
            () if name.ends_with(".whl") => check_wheel(runner, path, &to, table)?,
            () if name.ends_with(".tgz") => {
                let checks = "types; installed by npm, and a model on the CPU in Node";
                match npm::check(path, &to) {
                    Ok(Err(reason)) => table.not_run(path, reason),
                    Ok(Ok(())) => table.record(path, checks, Ok(())),
                    Err(error) => table.record(path, checks, Err(error)),
                }
            }
            () if name.ends_with(".oci.tar") && runs_images(runner) => {
                match ImageRunner::find(options.is_whole)? {
                    Some(runner) => {
                        let place = runner.place();
                        let checks = format!("version, serve, health check and stop {place}");
                        table.record(path, &checks, container::check(&runner, path, &to));
                    }
                    None => table.not_run(path, "`chroot` needs root"),
                }
            }
            () => table.not_run(path, "no check for this artifact on this machine"),
        }
    }
    match &runner {
        Ok(ProgramRunner::Qemu { .. }) if options.is_whole => check_variants(&input.target, table),
        Ok(ProgramRunner::Own) if options.is_whole => check_parity(&input.target, table),
        Ok(_) | Err(_) => {}
    }
    fetch::remove_dir(&dir)
}

/// Runs suites by the packed program while the checkout is hidden.
fn check_parity(target: &str, table: &mut CheckTable) {
    let label = format!("tercet-parity for {target}");
    if !process::can_install() {
        return table.not_run(Path::new(&label), "hiding the checkout needs root");
    }
    let (checks, result) = match crate::parity::without_checkout(target) {
        Ok(numbers) => (numbers, Ok(())),
        Err(error) => (String::new(), Err(error)),
    };
    let checks = format!("packed; suites on the CPU while the checkout is hidden: {checks}");
    table.record(Path::new(&label), &checks, result);
}

/// Runs each operator on every kernel variant of a foreign processor.
fn check_variants(target: &str, table: &mut CheckTable) {
    let (checks, result) = match crate::parity::emulated_variants(target) {
        Ok(numbers) => (numbers, Ok(())),
        Err(error) => (String::new(), Err(error)),
    };
    let label = format!("tercet-parity for {target}");
    let checks =
        format!("every kernel variant in cases of each operator, under qemu-aarch64: {checks}");
    table.record(Path::new(&label), &checks, result);
}

/// How much is checked.
#[derive(Clone, Copy)]
pub(super) struct CheckOptions {
    /// Also install in fresh roots of Debian, and build the source distribution.
    pub(super) is_whole: bool,
}

/// The command that runs a program for a target on this machine.
pub(super) fn command(target: &str, dir: &Path, program: &Path) -> Result<Command, XtaskError> {
    match ProgramRunner::find(target, dir)? {
        Ok(runner) => Ok(runner.command(program)),
        Err(reason) => Err(refused(program, reason)),
    }
}

/// Records the parts of a release that need another machine.
pub(super) fn elsewhere(table: &mut CheckTable) {
    for (part, reason) in ELSEWHERE {
        table.not_run(Path::new(part), reason);
    }
}

/// Unpacks the program of an archive, compares sizes with the limits, and runs it.
fn check_program(
    input: &DistInput,
    runner: &ProgramRunner,
    path: &Path,
    to: &Path,
    options: CheckOptions,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    let program = to.join(input.stem()).join(input.program());
    // A packed program of this machine may need its C library.
    let has_glibc = options.is_whole && input.target.ends_with("-linux-gnu");
    let limits = unpack(input, path, to)
        .and_then(|()| check_limits(input, path, &program))
        .and_then(|()| match has_glibc {
            true => check_glibc(&program),
            false => Ok(String::new()),
        });
    let glibc = match limits {
        Ok(glibc) => glibc,
        Err(error) => {
            table.record(path, "sizes and C library", Err(error));
            return Ok(());
        }
    };
    let megabytes = fs::metadata(&program).map_or(0, |m| m.len()) as f64 / 1e6;
    let program = match runner {
        ProgramRunner::Bare { root } => {
            let only = root.join(input.program());
            fs::rename(&program, &only).map_err(error::file("move", &program))?;
            only
        }
        _ => program,
    };
    let trial = ProgramTrial {
        runner,
        program: &program,
        dir: to,
    };
    let (checks, result) = trial.run();
    table.record(
        path,
        &format!("{megabytes:.1} MB unpacked; {glibc}{checks}"),
        result,
    );
    Ok(())
}

/// Compares the sizes of an archive and of its program with their limits, and the version of glibc that it needs.
fn check_limits(input: &DistInput, archive: &Path, program: &Path) -> Result<(), XtaskError> {
    let (max_packed, max_program) = match input.is_windows() {
        true => (MAX_ZIP_BYTES, MAX_WINDOWS_PROGRAM_BYTES),
        false => (MAX_ARCHIVE_BYTES, MAX_PROGRAM_BYTES),
    };
    for (path, most) in [(archive, max_packed), (program, max_program)] {
        let bytes = fs::metadata(path).map_err(error::file("read", path))?.len();
        if bytes > most {
            let problem = format!("it has {bytes} bytes, expected at most {most}");
            return Err(refused(path, problem));
        }
    }
    Ok(())
}

/// Compares the version of glibc that a program needs with the one that it was built for. Returns it for the table.
fn check_glibc(program: &Path) -> Result<String, XtaskError> {
    let Some((major, minor)) = elf::glibc(&super::read(program)?) else {
        return Err(refused(program, "it needs no glibc".to_string()));
    };
    let oldest = GLIBC
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    match oldest.is_some_and(|oldest| (major, minor) <= oldest) {
        true => Ok(format!("needs glibc {major}.{minor}; ")),
        false => Err(refused(
            program,
            format!("it needs glibc {major}.{minor}, expected at most {GLIBC}"),
        )),
    }
}

/// Unpacks an archive into a folder.
fn unpack(input: &DistInput, path: &Path, to: &Path) -> Result<(), XtaskError> {
    fs::create_dir_all(to).map_err(error::file("create", to))?;
    let bytes = super::read(path)?;
    let failed = error::file("unpack", path);
    match input.is_windows() {
        true => {
            let zip = zip::ZipArchive::new(std::io::Cursor::new(bytes));
            let unpacked = zip.and_then(|mut zip| zip.extract(to));
            unpacked.map_err(|e| failed(std::io::Error::other(e)))?;
        }
        false => {
            let reader = lzma_rust2::XzReader::new(&bytes[..], false);
            tar::Archive::new(reader).unpack(to).map_err(failed)?;
        }
    }
    Ok(())
}

/// Whether both archives of a target have the same contents.
fn same_as_xz(path: &Path) -> Result<(), XtaskError> {
    use std::io::Read as _;
    let other = path.with_extension("xz");
    let (gzip, xz) = (super::read(path)?, super::read(&other)?);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    flate2::read::GzDecoder::new(&gzip[..])
        .read_to_end(&mut a)
        .map_err(error::file("unpack", path))?;
    lzma_rust2::XzReader::new(&xz[..], false)
        .read_to_end(&mut b)
        .map_err(error::file("unpack", &other))?;
    match a == b {
        true => Ok(()),
        false => Err(refused(
            path,
            format!("it differs from {}", other.display()),
        )),
    }
}

/// Installs the archives of this machine by the install script, from a server on this machine.
fn check_script(
    input: &DistInput,
    artifacts: &[PathBuf],
    served: &Path,
    options: CheckOptions,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    fs::create_dir_all(served).map_err(error::file("create", served))?;
    let names = artifacts
        .iter()
        .filter_map(|path| Some((path, path.file_name()?)));
    for (path, name) in names.filter(|(path, _)| path.to_string_lossy().contains(".tar.")) {
        fs::copy(path, served.join(name)).map_err(error::file("copy", path))?;
    }
    let server = crate::web::server::PageServer::start(served, 0)?;
    let url = format!("http://127.0.0.1:{}", server.port());
    super::describe::run(served, &url)?;
    let script = served.join("install.sh");
    let prefix = served.with_file_name("prefix");
    let mut install = Command::new("sh");
    install.arg(&script).args(["--target", &input.target]);
    install.arg("--prefix").arg(&prefix);
    let installed = process::run(install.env_remove("TERCET_BASE_URL"));
    let program = prefix.join("bin/tercet");
    let result = installed.and_then(|()| expect_version(Command::new(&program), &program));
    table.record(&script, "install and version here", result);
    if !options.is_whole {
        return Ok(());
    }
    roots::serve_model(served)?;
    for (suite, release) in roots::RELEASES {
        let label = script.with_file_name(format!("install.sh on {release}"));
        match roots::root(suite)? {
            Ok(root) => {
                let result = roots::check(&root, &url);
                let took = result.as_ref().map_or(0.0, Duration::as_secs_f64);
                let checks =
                    format!("from the script to the answer of a pulled model: {took:.1} s");
                table.record(&label, &checks, result.map(drop));
            }
            Err(reason) => table.not_run(&label, reason),
        }
    }
    Ok(())
}

/// Unpacks the program of a package, and runs it.
fn check_deb(
    runner: &ProgramRunner,
    path: &Path,
    to: &Path,
    options: CheckOptions,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    if !process::works(Command::new("dpkg-deb").arg("--version")) {
        table.not_run(path, "it needs `dpkg-deb`");
        return Ok(());
    }
    let unpacked = process::run(Command::new("dpkg-deb").arg("-x").arg(path).arg(to));
    let program = to.join("usr/bin/tercet");
    let result = unpacked.and_then(|()| expect_version(runner.command(&program), path));
    table.record(path, "unpacked by dpkg-deb; version", result);
    if !options.is_whole || !matches!(runner, ProgramRunner::Own) {
        return Ok(());
    }
    for (suite, release) in roots::RELEASES {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let label = path.with_file_name(format!("{name} on {release}"));
        match roots::root(suite)? {
            Ok(root) => {
                let checks = "installed by dpkg in a fresh root, generate, and removed";
                table.record(&label, checks, roots::check_package(&root, path));
            }
            Err(reason) => table.not_run(&label, reason),
        }
    }
    Ok(())
}

/// Installs a wheel in virtual environments, or for an emulated Python, and runs a model.
fn check_wheel(
    runner: &ProgramRunner,
    path: &Path,
    to: &Path,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    fs::create_dir_all(to).map_err(error::file("create", to))?;
    match runner {
        ProgramRunner::Own => {}
        ProgramRunner::Qemu { program, .. } => {
            let result = wheels::check_foreign(program, path, to);
            let checks = "unpacked by pip, and three models in Python 3.11 under qemu-aarch64";
            table.record(path, checks, result);
            return Ok(());
        }
        ProgramRunner::Bare { .. } | ProgramRunner::Wine { .. } => {
            table.not_run(path, "it needs a machine of its platform");
            return Ok(());
        }
    }
    let pythons = wheels::pythons();
    if pythons.is_empty() {
        table.not_run(path, "no Python 3.9 or newer with the module `venv`");
    }
    for (minor, python) in pythons {
        let result = wheels::check(&python, path, to);
        table.record(
            path,
            &format!("installed and three models in Python 3.{minor}"),
            result,
        );
    }
    Ok(())
}

/// Whether a file is the source distribution: its name has no target.
fn is_sdist(name: &str) -> bool {
    name == format!("tercet-{}.tar.gz", super::VERSION)
}

/// Builds a wheel from the source distribution as pip does, installs it and runs a model.
fn check_sdist(
    path: &Path,
    to: &Path,
    options: CheckOptions,
    table: &mut CheckTable,
) -> Result<(), XtaskError> {
    match wheels::pythons().pop() {
        None => table.not_run(path, "no Python 3.9 or newer with the module `venv`"),
        Some(_) if !options.is_whole => table.not_run(path, "its build takes minutes"),
        Some((minor, python)) => {
            fs::create_dir_all(to).map_err(error::file("create", to))?;
            let result = wheels::check(&python, path, to);
            let checks = format!("built by pip, installed and three models in Python 3.{minor}");
            table.record(path, &checks, result);
        }
    }
    Ok(())
}

/// Whether images for the target of a runner start on this machine.
fn runs_images(runner: &ProgramRunner) -> bool {
    matches!(runner, ProgramRunner::Own | ProgramRunner::Bare { .. })
}
