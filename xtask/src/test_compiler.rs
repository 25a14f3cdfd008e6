//! xtask as cargo's `RUSTC_WORKSPACE_WRAPPER`: compiles test programs without optimization.
//!
//! A test program repeats generic code of the libraries. Optimizing it took a quarter of the time
//! of a build of all tests, six times as long as compiling it without. The libraries and commands
//! that a test program tests keep the optimization of their profile, which is that of users.
//!
//! Cargo knows no profile for the programs in `tests` alone. [`process::cargo`] names this program
//! as the wrapper in all commands of xtask, so that they share their build outputs.
//!
//! [`process::cargo`]: crate::process::cargo

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Cargo's variable with the wrapper of the compiler for members of the workspace.
pub(crate) const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Cargo sets this variable for the programs of a package's folders `tests` and `benches` alone.
const IS_TEST_PROGRAM: &str = "CARGO_TARGET_TMPDIR";

/// Test programs that compute so much themselves that they take longer without optimization than
/// the compiler takes with it: 234 and 28 seconds of processor time for `kernels`.
const OPTIMIZED: [&str; 1] = ["kernels"];

/// Whether a program is xtask itself. The program of xtask's tests is no wrapper.
pub(crate) fn is_wrapper(program: &Path) -> bool {
    program.file_stem() == Some("xtask".as_ref())
}

/// Runs the compiler if cargo has started this program as its wrapper, with the path of the
/// compiler as the first argument. `None` if a person has started it.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let (compiler, options) = arguments.split_first()?;
    let is_compiler = Path::new(compiler).file_stem() == Some("rustc".as_ref());
    std::env::var_os(WRAPPER).filter(|_| is_compiler)?;
    let is_test_program = std::env::var_os(IS_TEST_PROGRAM).is_some();
    let status = Command::new(compiler)
        .args(options)
        .args(added_options(is_test_program, options))
        .status();
    Some(match status {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            code.map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("error: {} was not started", compiler.display());
            eprintln!("  because: {error}");
            ExitCode::FAILURE
        }
    })
}

/// The options after those of cargo. The last one of a kind applies.
fn added_options(is_test_program: bool, options: &[OsString]) -> &'static [&'static str] {
    let mut pairs = options.windows(2).filter(|pair| pair[0] == "--crate-name");
    let is_optimized = pairs.any(|pair| OPTIMIZED.iter().any(|name| pair[1] == *name));
    match is_test_program && !is_optimized {
        // Without optimization, the compiler would turn assertions of debug builds on.
        true => &["-C", "opt-level=0", "-C", "debug-assertions=off"],
        false => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn only_test_programs_are_compiled_without_optimization() {
        let options = |name: &str| ["--crate-name", name, "--edition=2024"].map(OsString::from);
        let added = added_options(true, &options("models"));
        assert_eq!(added, ["-C", "opt-level=0", "-C", "debug-assertions=off"]);
        assert!(added_options(true, &options("kernels")).is_empty());
        assert!(added_options(false, &options("models")).is_empty());
    }

    #[test]
    fn arguments_of_a_person_start_no_compiler() {
        assert!(run(&[]).is_none());
        assert!(run(&["test".into(), "rustc".into()]).is_none());
    }

    #[test]
    fn the_program_of_these_tests_is_no_wrapper() {
        assert!(is_wrapper(Path::new("/target/release/xtask")));
        assert!(!is_wrapper(&std::env::current_exe().unwrap()));
        let inherited = std::env::var_os(WRAPPER).is_some();
        let cargo = process::cargo();
        assert!(inherited || cargo.get_envs().all(|(name, _)| name != WRAPPER));
    }
}
