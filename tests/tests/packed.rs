//! Tests that the parity program runs without the source checkout, with the files that
//! `cargo xtask parity --pack` puts beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The variable with the folder of the test data; here a folder that does not exist, as on a machine
/// without the checkout.
const DATA_DIR: &str = tercet_tests::data::DATA_DIR;

fn run(program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env(DATA_DIR, "/no/such/checkout/tests/data");
    command.args(args).output().expect("the program runs")
}

#[test]
fn the_packed_program_lists_its_tests_without_the_checkout() {
    let dir = std::env::temp_dir().join(format!("tercet-packed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let packed = dir.join("packed");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_tercet-parity"));
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let folder = |name: &str| format!("data/{name}={}", data.join(name).display());
    let (texts, images) = (folder("text-to-text"), folder("vision-language"));
    let to = packed.display().to_string();
    let done = run(
        &program,
        &["--pack", &to, "--folder", &texts, "--folder", &images],
    );
    assert!(done.status.success(), "{done:?}");

    let suites = ["--suite", "text-to-text", "--suite", "vision-language"];
    let args = [&suites[..], &["--device", "cpu", "--list"]].concat();
    let listed = run(&packed, &args);
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in ["text-to-text: ", "vision-language: "] {
        assert!(listed.contains(name), "{listed}");
    }
    // A program without packed files has no tests to run, and reports that.
    assert!(!run(&program, &args).status.success());
    std::fs::remove_dir_all(dir).expect("removed");
}
