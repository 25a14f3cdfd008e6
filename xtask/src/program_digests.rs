//! `cargo xtask programs --digest`: digests of the GPU programs of all operator cases on all device
//! profiles.
//!
//! The committed digests are stored next to the test that computes them. A change that only renames
//! or documents the compiler leaves the digests equal. A change of kernels or of planning updates
//! the digests, so that review sees the affected operators and profiles.
//!
//! `cargo xtask programs --diff FROM` compares the programs of two commits, case by case: kernels,
//! dispatches and barriers. Each commit is checked out into a separate folder.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::{self, XtaskError};
use crate::{fetch, process};

/// Command-line options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Compute the digests, compare them with the committed ones and print one digest of all
    #[arg(long, required_unless_present = "diff", conflicts_with = "diff")]
    digest: bool,
    /// Write the digests to the committed file instead of comparing
    #[arg(long, requires = "digest")]
    update: bool,
    /// Print the cases whose programs differ between this commit and the working tree
    #[arg(long, value_name = "COMMIT")]
    diff: Option<String>,
    /// With --diff: compare with this commit instead of the working tree
    #[arg(long, value_name = "COMMIT", requires = "diff")]
    to: Option<String>,
    /// Build profile of the compiler
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
}

/// Runs `cargo xtask programs`.
pub(crate) fn run(options: &Options) -> Result<(), XtaskError> {
    if let Some(from) = &options.diff {
        return diff(from, options.to.as_deref(), &options.profile);
    }
    debug_assert!(options.digest, "clap requires it");
    let committed = process::root().join("crates/tercet-plan/tests/programs/digests.txt");
    let found = compute(&process::root(), &options.profile)?.digests;
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

/// The programs of a checkout.
struct ProgramListing {
    /// Lines `PROFILE OPERATOR CASES DIGEST`.
    digests: String,
    /// Lines `PROFILE CASE DIGEST SUMMARY`; empty for commits whose test does not write them.
    cases: String,
}

/// The programs of a checkout, as its test writes them.
fn compute(root: &Path, profile: &str) -> Result<ProgramListing, XtaskError> {
    let file =
        |name: &str| std::env::temp_dir().join(format!("program-{name}-{}", std::process::id()));
    let (digests, cases) = (file("digests"), file("cases"));
    let mut command = process::cargo();
    command
        .current_dir(root)
        .args(["test", "--profile", profile, "--quiet"])
        .args(["--package", "tercet-plan", "--test", "programs", "--"])
        .args(["--ignored", "--exact", "digests::write"])
        .env("CARGO_TARGET_DIR", process::target_dir())
        .env("TERCET_PROGRAM_DIGESTS", &digests)
        .env("TERCET_PROGRAM_CASES", &cases)
        .stdout(std::process::Stdio::null());
    process::run(&mut command)?;
    let take = |path: &Path| -> Result<String, XtaskError> {
        let text = fs::read_to_string(path).map_err(error::file("read", path))?;
        fs::remove_file(path).map_err(error::file("remove", path))?;
        Ok(text)
    };
    Ok(ProgramListing {
        digests: take(&digests)?,
        cases: match cases.exists() {
            true => take(&cases)?,
            false => String::new(),
        },
    })
}

/// The programs of a commit, checked out into a folder that is removed afterwards.
fn compute_commit(commit: &str, profile: &str) -> Result<ProgramListing, XtaskError> {
    let folder = std::env::temp_dir().join(format!("program-checkout-{}", std::process::id()));
    let git = |args: &[&OsStr]| {
        let mut command = Command::new("git");
        process::run(command.current_dir(process::root()).args(args))
    };
    let worktree: [&OsStr; 2] = ["worktree".as_ref(), "add".as_ref()];
    let quiet: [&OsStr; 2] = ["--quiet".as_ref(), "--detach".as_ref()];
    let place: [&OsStr; 2] = [folder.as_ref(), commit.as_ref()];
    git(&[&worktree[..], &quiet, &place].concat())?;
    let found = compute(&folder, profile);
    let remove: [&OsStr; 3] = ["worktree".as_ref(), "remove".as_ref(), "--force".as_ref()];
    git(&[&remove[..], &[folder.as_ref()]].concat())?;
    found
}

/// Prints the differences between the programs of two commits.
fn diff(from: &str, to: Option<&str>, profile: &str) -> Result<(), XtaskError> {
    let before = compute_commit(from, profile)?;
    let after = match to {
        Some(to) => compute_commit(to, profile)?,
        None => compute(&process::root(), profile)?,
    };
    let lines = match before.cases.is_empty() || after.cases.is_empty() {
        // A commit before the list of cases has the digests of operators only.
        true => compare(&before.digests, &after.digests),
        false => compare_cases(&before.cases, &after.cases),
    };
    lines.iter().for_each(|line| println!("{line}"));
    let names = [from, to.unwrap_or("the working tree")];
    match lines.len() {
        0 => println!("the programs of {} and {} are equal", names[0], names[1]),
        n => println!("{n} differences between {} and {}", names[0], names[1]),
    }
    Ok(())
}

/// One line for each case whose programs differ, with what changed.
fn compare_cases(before: &str, after: &str) -> Vec<String> {
    let (before, after) = (by_case(before), by_case(after));
    let mut lines = Vec::new();
    for (key, (digest, summary)) in &after {
        let (profile, case) = key;
        match before.get(key) {
            Some((known, _)) if known == digest => {}
            // The programs differ in constants, sizes or the text of kernels.
            Some((_, known)) if known == summary => {
                lines.push(format!("{profile} {case}: {summary}, with other contents"));
            }
            Some((_, known)) => lines.push(format!("{profile} {case}: {known} -> {summary}")),
            None => lines.push(format!("{profile} {case}: new, {summary}")),
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    lines.extend(gone.map(|(profile, case)| format!("{profile} {case}: gone")));
    lines
}

/// Digest and summary by profile and case.
fn by_case(lines: &str) -> BTreeMap<(&str, &str), (&str, &str)> {
    let fields = lines.lines().filter_map(|line| {
        let mut fields = line.splitn(4, ' ');
        let (profile, case) = (fields.next()?, fields.next()?);
        Some(((profile, case), (fields.next()?, fields.next()?)))
    });
    fields.collect()
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

    #[test]
    fn cases_show_what_changed() {
        let before = "h200 add/a aa 1 dispatch: map\nh200 mul/b bb 2 dispatches: gemm\nh200 sub/c cc error\n";
        let after =
            "h200 add/a aa 1 dispatch: map\nh200 mul/b bd 1 dispatch: gemv\nh200 neg/d dd error\n";
        let expected = [
            "h200 mul/b: 2 dispatches: gemm -> 1 dispatch: gemv",
            "h200 neg/d: new, error",
            "h200 sub/c: gone",
        ];
        assert_eq!(compare_cases(before, after), expected);
        let other = before.replace("aa", "ab");
        let expected = ["h200 add/a: 1 dispatch: map, with other contents"];
        assert_eq!(compare_cases(before, &other), expected);
        assert_eq!(compare_cases(before, before), Vec::<String>::new());
    }
}
