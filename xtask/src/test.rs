//! `cargo xtask test`: every test of the workspace, with what they need set up first.
//!
//! Fetches MiniLM, finds or builds nextest, then runs the tests and the doc tests. The variables
//! of [`env`](mod@crate::env) are set so that a missing model or executor fails.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::{cache, env, fetch, process};

const SELECTION: [&str; 2] = ["--workspace", "--all-features"];
const NEXTEST_CONFIG: &str = ".cargo/nextest.toml";

/// Runs the tests; `args` go to the test runner. Doc tests have no such filters and run only when
/// there are no `args`.
pub(crate) fn run(args: &[OsString]) -> Result<(), Error> {
    let cache = cache::dir()?;
    let minilm = fetch::minilm(&cache)?;
    let tests = match nextest(&cache)? {
        Some(runner) => process::run(prepare(runner, &minilm).args(SELECTION).args(args)),
        None => {
            let mut cargo = process::cargo();
            cargo.args(["test", "--tests", "--no-fail-fast"]);
            process::run(prepare(cargo, &minilm).args(SELECTION).args(args))
        }
    };
    if !args.is_empty() {
        return tests;
    }
    // Both run even if the first fails: one run shows all that is wrong.
    let mut doc = process::cargo();
    doc.args(["test", "--doc"]);
    let doc_tests = process::run(prepare(doc, &minilm).args(SELECTION));
    tests.and(doc_tests)
}

fn prepare(mut command: Command, minilm: &Path) -> Command {
    command.env(env::MINILM_DIR, minilm);
    if std::env::var_os(env::REQUIRE).is_none_or(|value| value.is_empty()) {
        command.env(env::REQUIRE, env::REQUIRE_DEFAULT);
    }
    command
}

/// `cargo nextest run`: from the PATH, else from the cache folder, else built into it. `None` when
/// building fails: the tests then run under plain `cargo test`.
fn nextest(cache: &Path) -> Result<Option<Command>, Error> {
    if process::works(process::cargo().args(["nextest", "--version"])) {
        return Ok(Some(nextest_run(process::cargo())));
    }
    let tools = cache.join("tools");
    let binary = tools.join("bin").join("cargo-nextest");
    if !process::works(Command::new(&binary).args(["nextest", "--version"])) {
        eprintln!(
            "building cargo-nextest into {} (once, some minutes)",
            tools.display()
        );
        let mut cargo = process::cargo();
        cargo
            .args(["install", "cargo-nextest", "--locked", "--root"])
            .arg(&tools);
        if let Err(error) = process::run(&mut cargo) {
            eprintln!("{error}: running the tests under plain cargo test");
            return Ok(None);
        }
    }
    let mut command = Command::new(binary);
    command.current_dir(process::root());
    Ok(Some(nextest_run(command)))
}

fn nextest_run(mut command: Command) -> Command {
    command.args(["nextest", "run", "--config-file", NEXTEST_CONFIG].map(OsStr::new));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_where_the_model_is_and_what_is_required() {
        let command = prepare(Command::new("x"), Path::new("/cache/minilm"));
        let value = |name: &str| {
            command
                .get_envs()
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value)
        };
        assert_eq!(value(env::MINILM_DIR), Some(OsStr::new("/cache/minilm")));
        let inherited = std::env::var_os(env::REQUIRE).is_some_and(|value| !value.is_empty());
        assert_eq!(
            value(env::REQUIRE),
            (!inherited).then_some(OsStr::new("cpu"))
        );
    }

    #[test]
    fn nextest_reads_the_committed_configuration() {
        let command = nextest_run(Command::new("cargo"));
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["nextest", "run", "--config-file", NEXTEST_CONFIG]);
        assert!(process::root().join(NEXTEST_CONFIG).is_file());
    }
}
