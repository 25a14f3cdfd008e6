//! Compiles and runs examples in C against the packed library, in a folder without the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::{ANSWER, PROMPT, ProgramRunner, refused};
use crate::dist::cross::{self, CrossTools};
use crate::dist::{DistInput, GLIBC};
use crate::error::{self, XtaskError};
use crate::{capi, process};

/// The example that other platforms run: texts of two threads, a stop, and a chat.
const EXAMPLE: &str = "generate";
const MODEL: &str = "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf";

/// The words for the table.
pub(super) fn checks(runner: &ProgramRunner) -> &'static str {
    match runner {
        ProgramRunner::Own => {
            "examples in C and C++ by CMake with AddressSanitizer, one by pkg-config, tests of the Node package"
        }
        ProgramRunner::Qemu { .. } => "an example in C under qemu-aarch64",
        ProgramRunner::Wine { .. } => "an example in C under Wine",
        ProgramRunner::Bare { .. } => "an example in C",
    }
}

/// Checks the library in an unpacked archive.
pub(super) fn check(
    input: &DistInput,
    runner: &ProgramRunner,
    prefix: &Path,
    dir: &Path,
) -> Result<(), XtaskError> {
    if let ProgramRunner::Own = runner {
        return capi::check_shared(prefix);
    }
    let lib = prefix.join("lib");
    let program = compiled(input, prefix, dir)?;
    if input.is_windows() {
        let to = dir.join("tercet.dll");
        let from = lib.join("tercet.dll");
        std::fs::copy(&from, to).map_err(error::file("copy", &from))?;
    }
    let mut run = runner.command(&program);
    run.arg(runner.seen(&process::root().join(MODEL)))
        .arg(PROMPT);
    run.env("LD_LIBRARY_PATH", lib);
    let printed = process::output(&mut run)?;
    let printed = String::from_utf8_lossy(&printed).replace("\r\n", "\n");
    match printed.contains(ANSWER) {
        true => Ok(()),
        false => Err(refused(&program, format!("no {ANSWER:?} in: {printed}"))),
    }
}

/// Compiles the example for the target. Returns the path of the program.
fn compiled(input: &DistInput, prefix: &Path, dir: &Path) -> Result<PathBuf, XtaskError> {
    let examples = process::root().join("crates/tercet-c/examples");
    let (mut compile, name) = match input.is_windows() {
        true => {
            cross::require_mingw()?;
            let mut compile = Command::new(cross::MINGW.0);
            compile.arg("-static-libgcc");
            (compile, format!("{EXAMPLE}.exe"))
        }
        false => {
            let architecture = input.target.split('-').next().unwrap_or_default();
            let target = format!("{architecture}-linux-gnu.{GLIBC}");
            let mut compile = CrossTools::fetch()?.c_compiler();
            compile.args(["-target", &target]);
            (compile, EXAMPLE.to_string())
        }
    };
    let program = dir.join(name);
    compile.arg(examples.join(format!("{EXAMPLE}.c")));
    compile.arg("-o").arg(&program);
    compile.arg("-I").arg(prefix.join("include"));
    compile.arg("-L").arg(prefix.join("lib"));
    compile.arg("-ltercet");
    // Windows has no DLL of threads, so the library goes into the program.
    compile.args(match input.is_windows() {
        true => &["-Wl,-Bstatic", "-lpthread"][..],
        false => &["-lpthread"],
    });
    process::run(&mut compile)?;
    Ok(program)
}
