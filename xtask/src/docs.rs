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
    // A test of the program `commands` writes the command-line reference.
    let mut command = process::cargo();
    command.arg("test").args(SELECTION);
    command.args(["--test", "commands", "reference_page_is_up_to_date"]);
    command.env(crate::env::UPDATE_DOCS, "1");
    process::run(&mut command)
}
