//! The form of commits: `area: imperative verb object`, then the reason in the body.

use std::process::Command;

use crate::error::XtaskError;
use crate::process;

/// The last commit before the rule existed; only its descendants are checked.
pub(super) const BASE: &str = "5193b64a38";

/// Maximum number of characters of a subject.
const MAX_SUBJECT: usize = 72;

/// One line for each commit of the branch that breaks the form. In a clone that does not contain
/// [`BASE`], nothing is checked.
pub(super) fn check() -> Result<Vec<String>, XtaskError> {
    let mut known = Command::new("git");
    known
        .current_dir(process::root())
        .args(["merge-base", "--is-ancestor", BASE, "HEAD"]);
    if !known.output().is_ok_and(|output| output.status.success()) {
        return Ok(Vec::new());
    }
    let mut log = Command::new("git");
    log.current_dir(process::root()).args([
        "log",
        "--no-merges",
        "--format=%h%x00%s%x00%b%x01",
        &format!("{BASE}..HEAD"),
    ]);
    let log = process::output(&mut log)?;
    let log = String::from_utf8_lossy(&log);
    let commits = log.split('\u{1}').filter_map(|commit| {
        let mut fields = commit.trim_start().splitn(3, '\0');
        let (hash, subject) = (fields.next()?, fields.next()?);
        let body = fields.next().unwrap_or_default();
        problem(subject, body).map(|problem| format!("commit {hash}: {problem}: {subject}"))
    });
    Ok(commits.collect())
}

/// The first violation in a commit message; `None` if it has the required form.
fn problem(subject: &str, body: &str) -> Option<&'static str> {
    let Some((area, verb)) = subject.split_once(": ") else {
        return Some("the subject has no area; expected `area: verb object`");
    };
    let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/, ".contains(c);
    let first = verb.split_whitespace().next().unwrap_or_default();
    if area.is_empty() || !area.chars().all(is_area) {
        Some("the area is not a lower-case name")
    } else if !first.starts_with(|c: char| c.is_ascii_lowercase()) {
        Some("the verb is not in lower case")
    } else if ["ed", "ing"].iter().any(|end| first.ends_with(end)) && !IMPERATIVES.contains(&first)
    {
        Some("the verb is not imperative")
    } else if verb.split_whitespace().count() < 2 {
        Some("the verb has no object")
    } else if subject.chars().count() > MAX_SUBJECT {
        Some("the subject has more than 72 characters")
    } else if body.trim().is_empty() {
        Some("the body gives no reason")
    } else {
        None
    }
}

/// Imperatives that end like a past tense or a participle.
const IMPERATIVES: [&str; 6] = ["feed", "embed", "speed", "seed", "bring", "need"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_commit_is_checked() {
        let cases = [
            ("plan: rename `Num` to `SymInt`", "The field's term.", true),
            ("plan, wgpu: embed kernels", "Reason.", true),
            ("plan: rename `Num` to `SymInt`", " \n", false),
            ("A constant's words", "Reason.", false),
            ("plan: renamed a type", "Reason.", false),
            ("plan: Rename a type", "Reason.", false),
            ("plan: rename", "Reason.", false),
        ];
        for (subject, body, expected) in cases {
            assert_eq!(problem(subject, body).is_none(), expected, "{subject}");
        }
    }
}
