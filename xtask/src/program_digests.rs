//! `cargo xtask programs --digest`: digests of the GPU programs of all operator cases on all device
//! profiles.
//!
//! The committed digests are stored next to the test that computes them. A change that only renames
//! or documents the compiler leaves the digests equal. A change of kernels or of planning updates
//! the digests, so that review sees the affected operators and profiles.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::error::{self, XtaskError};
use crate::{fetch, process};

/// Command-line options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Compute the digests, compare them with the committed ones and print one digest of all
    #[arg(long, required = true)]
    digest: bool,
    /// Write the digests to the committed file instead of comparing
    #[arg(long)]
    update: bool,
}

/// Runs `cargo xtask programs`.
pub(crate) fn run(options: &Options) -> Result<(), XtaskError> {
    debug_assert!(options.digest, "clap requires it");
    let committed = process::root().join("crates/tercet-plan/tests/programs/digests.txt");
    let found = compute()?;
    println!("{}", fetch::hex(&Sha256::digest(&found)));
    if options.update {
        return fs::write(&committed, found).map_err(error::file("write", &committed));
    }
    let expected = fs::read_to_string(&committed).map_err(error::file("read", &committed))?;
    let problems = compare(&expected, &found);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Programs { problems }),
    }
}

/// The digests as the test writes them: lines `PROFILE OPERATOR CASES DIGEST`.
fn compute() -> Result<String, XtaskError> {
    let path: PathBuf =
        std::env::temp_dir().join(format!("program-digests-{}", std::process::id()));
    let mut command = process::cargo();
    command
        .args(["test", "--release", "--quiet", "--package", "tercet-plan"])
        .args(["--test", "programs", "--"])
        .args(["--ignored", "--exact", "digests::write"])
        .env("TERCET_PROGRAM_DIGESTS", &path)
        .stdout(std::process::Stdio::null());
    process::run(&mut command)?;
    let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    fs::remove_file(&path).map_err(error::file("remove", &path))?;
    Ok(text)
}

/// One line for each operator and profile whose programs differ.
fn compare(expected: &str, found: &str) -> Vec<String> {
    let (expected, found) = (by_operator(expected), by_operator(found));
    let mut problems = Vec::new();
    for (key, digest) in &found {
        match expected.get(key) {
            Some(known) if known == digest => {}
            Some(_) => problems.push(format!("{} {}: the programs differ", key.0, key.1)),
            None => problems.push(format!("{} {}: no digest is committed", key.0, key.1)),
        }
    }
    let gone = expected.keys().filter(|key| !found.contains_key(*key));
    problems.extend(gone.map(|key| format!("{} {}: the operator has no cases", key.0, key.1)));
    problems
}

/// Number of cases and digest by profile and operator.
fn by_operator(lines: &str) -> BTreeMap<(&str, &str), &str> {
    let fields = lines.lines().filter_map(|line| {
        let (profile, rest) = line.split_once(' ')?;
        let (operator, digest) = rest.split_once(' ')?;
        Some(((profile, operator), digest))
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_named() {
        let committed = "h200 add 3 aa\nh200 mul 3 bb\n";
        assert_eq!(compare(committed, committed), Vec::<String>::new());
        let found = "h200 add 3 ab\nh200 sub 3 cc\n";
        let expected = [
            "h200 add: the programs differ",
            "h200 sub: no digest is committed",
            "h200 mul: the operator has no cases",
        ];
        assert_eq!(compare(committed, found), expected);
    }
}
