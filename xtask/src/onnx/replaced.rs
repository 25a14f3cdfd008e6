//! Cases of old versions of `onnx` that later versions contain with other data, because the old data
//! was wrong or the operator was defined otherwise.
//!
//! Only names and versions decide: a case is replaced if it is wrong and the case of the same name
//! in a later version passes.

use std::collections::{BTreeMap, BTreeSet};

use super::{OnnxCaseLine, OnnxCaseOutcome};

/// The version of a case: `1, 22, 0` of `node/test_abs@1.22.0`.
pub(super) fn version(case: &str) -> Vec<u32> {
    let text = case.rsplit_once('@').map_or("", |(_, version)| version);
    text.split('.').filter_map(|n| n.parse().ok()).collect()
}

pub(super) fn version_text(version: &[u32]) -> String {
    let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
    numbers.join(".")
}

/// The name of a case without its version.
fn name(case: &str) -> &str {
    case.rsplit_once('@').map_or(case, |(name, _)| name)
}

/// The versions in which each case passes.
fn passing(lines: &[OnnxCaseLine]) -> BTreeMap<String, BTreeSet<Vec<u32>>> {
    use OnnxCaseOutcome::{Passed, Provided, Rounded};
    let mut found: BTreeMap<String, BTreeSet<Vec<u32>>> = BTreeMap::new();
    for line in lines {
        if matches!(line.outcome, Passed | Provided | Rounded) {
            let versions = found.entry(name(&line.case).to_string()).or_default();
            versions.insert(version(&line.case));
        }
    }
    found
}

/// Changes the outcome of wrong cases that the package replaced to [`OnnxCaseOutcome::Replaced`].
pub(super) fn mark(lines: &mut [OnnxCaseLine]) {
    let passing = passing(lines);
    for line in lines
        .iter_mut()
        .filter(|l| l.outcome == OnnxCaseOutcome::Wrong)
    {
        let newest = passing.get(name(&line.case)).and_then(BTreeSet::last);
        if newest.is_some_and(|newest| *newest > version(&line.case)) {
            line.outcome = OnnxCaseOutcome::Replaced;
        }
    }
}

/// A row per replaced case: its old versions, the first later version in which it passes, and the
/// result for the newest of the old ones.
pub(super) fn rows(columns: &[(&str, Vec<OnnxCaseLine>)]) -> String {
    const SHOWN: usize = 120;
    let mut rows: BTreeMap<&str, BTreeMap<Vec<u32>, &str>> = BTreeMap::new();
    for line in columns.iter().flat_map(|(_, lines)| lines) {
        if line.outcome == OnnxCaseOutcome::Replaced {
            let row = rows.entry(name(&line.case)).or_default();
            row.entry(version(&line.case)).or_insert(&line.reason);
        }
    }
    let mut later: BTreeMap<String, BTreeSet<Vec<u32>>> = BTreeMap::new();
    for (_, lines) in columns {
        for (case, versions) in passing(lines) {
            later.entry(case).or_default().extend(versions);
        }
    }
    let mut text = String::new();
    for (case, old) in rows {
        let Some((last, reason)) = old.last_key_value() else {
            continue;
        };
        let new = later
            .get(case)
            .and_then(|all| all.iter().find(|v| *v > last));
        let versions: Vec<String> = old.keys().map(|v| version_text(v)).collect();
        let reason: String = reason.replace('|', "\\|").chars().take(SHOWN).collect();
        let new = new.map_or_else(String::new, |v| version_text(v));
        text.push_str(&format!(
            "| {case} | {} | {new} | {reason} |\n",
            versions.join(", ")
        ));
    }
    match text.is_empty() {
        true => "| none | | | |\n".to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(outcome: OnnxCaseOutcome, case: &str) -> OnnxCaseLine {
        OnnxCaseLine {
            outcome,
            case: case.into(),
            operator: "Adam".into(),
            reason: format!("reason {case}"),
        }
    }

    #[test]
    fn a_wrong_case_is_replaced_only_if_a_later_version_passes() {
        use OnnxCaseOutcome::{Passed, Provided, Refused, Replaced, Wrong};
        let mut lines = vec![
            line(Provided, "node/test_adam@1.10.0"),
            line(Wrong, "node/test_adam@1.9.0"),
            line(Wrong, "node/test_adam@1.7.0"),
            // The later case fails, too.
            line(Wrong, "node/test_x@1.10.0"),
            line(Wrong, "node/test_x@1.9.0"),
            line(Refused, "node/test_y@1.10.0"),
            line(Wrong, "node/test_y@1.9.0"),
            // Only an earlier case passes.
            line(Wrong, "node/test_z@1.10.0"),
            line(Passed, "node/test_z@1.9.0"),
            // Another case has a similar name.
            line(Passed, "node/test_w_more@1.10.0"),
            line(Wrong, "node/test_w@1.9.0"),
        ];
        mark(&mut lines);
        let outcomes: Vec<OnnxCaseOutcome> = lines.iter().map(|l| l.outcome).collect();
        let kept = [Wrong, Wrong, Refused, Wrong, Wrong, Passed, Passed, Wrong];
        assert_eq!(outcomes[..3], [Provided, Replaced, Replaced]);
        assert_eq!(outcomes[3..], kept);
        assert_eq!(
            rows(&[("cpu", lines)]),
            "| node/test_adam | 1.7.0, 1.9.0 | 1.10.0 | reason node/test_adam@1.9.0 |\n"
        );
    }
}
