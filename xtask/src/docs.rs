//! `cargo xtask docs`: writes the documentation tables that are generated from the code.

use crate::error::XtaskError;
use crate::process;
use crate::test::SELECTION;

/// The tests that compare a document with the code, and write it if `TERCET_UPDATE_DOCS` is set.
const TESTS: [&str; 3] = ["ops_table", "text_form_doc", "header"];

pub(crate) fn run() -> Result<(), XtaskError> {
    crate::benchmarks::write()?;
    let mut command = process::cargo();
    command.arg("test").args(SELECTION);
    for test in TESTS {
        command.args(["--test", test]);
    }
    command.env(crate::env::UPDATE_DOCS, "1");
    process::run(&mut command)?;
    crate::package::copies::update()?;
    // The command-line reference is a unit test of the binary crate, which has no library.
    let mut command = process::cargo();
    command
        .args([
            "test",
            "--release",
            "--package",
            "tercet-cli",
            "--all-features",
            "--bin",
            "tercet",
        ])
        .arg("reference_page_is_up_to_date")
        .env(crate::env::UPDATE_DOCS, "1");
    process::run(&mut command)
}
