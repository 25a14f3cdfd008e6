//! Tables of a run's results: cases by operator, and the reasons of import errors.

use std::collections::BTreeMap;

use super::replaced::{self, version, version_text};
use super::{OnnxCaseLine, OnnxCaseOutcome};

/// The number of cases of an operator by outcome, on one executor.
#[derive(Clone, Copy, Default)]
struct OutcomeCounts {
    passed: usize,
    given: usize,
    rounded: usize,
    refused: usize,
    replaced: usize,
    wrong: usize,
    panicked: usize,
}

impl OutcomeCounts {
    fn add(&mut self, outcome: OnnxCaseOutcome) {
        let count = match outcome {
            OnnxCaseOutcome::Passed => &mut self.passed,
            OnnxCaseOutcome::Provided => &mut self.given,
            OnnxCaseOutcome::Rounded => &mut self.rounded,
            OnnxCaseOutcome::Refused => &mut self.refused,
            OnnxCaseOutcome::Replaced => &mut self.replaced,
            OnnxCaseOutcome::Wrong => &mut self.wrong,
            OnnxCaseOutcome::Panicked => &mut self.panicked,
        };
        *count += 1;
    }

    fn all(&self) -> usize {
        let done = self.passed + self.given + self.rounded;
        done + self.refused + self.replaced + self.wrong + self.panicked
    }

    /// Formats the counts, such as `8 + 2 given, 1 refused`.
    fn shown(&self) -> String {
        let mut text = match (self.passed, self.given) {
            (passed, 0) => passed.to_string(),
            (passed, given) => format!("{passed} + {given}"),
        };
        let others = [
            (self.rounded, "rounding"),
            (self.refused, "refused"),
            (self.replaced, "replaced"),
            (self.wrong, "wrong"),
            (self.panicked, "panicked"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!(", {count} {what}"));
        }
        text
    }
}

/// Renders both tables. Each column has the name of an executor and its lines.
pub(super) fn render(columns: &[(&str, Vec<OnnxCaseLine>)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = header(&["operator", "cases"], &names);
    let mut rows: BTreeMap<&str, Vec<OutcomeCounts>> = BTreeMap::new();
    let mut node = vec![OutcomeCounts::default(); columns.len()];
    for (at, (_, lines)) in columns.iter().enumerate() {
        for line in lines {
            let row = rows.entry(&line.operator).or_default();
            row.resize(columns.len(), OutcomeCounts::default());
            row[at].add(line.outcome);
            if line.case.starts_with("node/") {
                node[at].add(line.outcome);
            }
        }
    }
    for (operator, counts) in &rows {
        text.push_str(&row(operator, counts));
    }
    text.push_str(&row("**all of `node`**", &node));
    text.push_str("\nBy version of `onnx`, without the cases that a later one has:\n\n");
    text.push_str(&header(&["version", "cases"], &names));
    text.push_str(&versions(columns));
    text.push_str("\nCases with another result:\n\n");
    text.push_str(&header(&["case", "executor"], &["result"]));
    text.push_str(&differing(columns));
    text.push_str("\nReplaced cases:\n\n");
    text.push_str(&header(
        &["case", "replaced data of", "passes in"],
        &["result for the newest replaced data"],
    ));
    text.push_str(&replaced::rows(columns));
    text.push_str("\nWhy cases are refused:\n\n");
    text.push_str(&header(&["reason"], &names));
    text.push_str(&reasons(columns));
    text
}

fn header(first: &[&str], names: &[&str]) -> String {
    let cells: Vec<&str> = first.iter().chain(names).copied().collect();
    let line = vec!["---"; cells.len()].join("|");
    format!("| {} |\n|{line}|\n", cells.join(" | "))
}

fn row(name: &str, counts: &[OutcomeCounts]) -> String {
    let most = counts.iter().map(OutcomeCounts::all).max().unwrap_or(0);
    let cells: Vec<String> = counts.iter().map(OutcomeCounts::shown).collect();
    format!("| {name} | {most} | {} |\n", cells.join(" | "))
}

/// The rows of cases by version, newest first.
fn versions(columns: &[(&str, Vec<OnnxCaseLine>)]) -> String {
    let mut rows: BTreeMap<Vec<u32>, Vec<OutcomeCounts>> = BTreeMap::new();
    for (at, (_, lines)) in columns.iter().enumerate() {
        for line in lines {
            let row = rows.entry(version(&line.case)).or_default();
            row.resize(columns.len(), OutcomeCounts::default());
            row[at].add(line.outcome);
        }
    }
    rows.iter()
        .rev()
        .map(|(version, counts)| row(&version_text(version), counts))
        .collect()
}

/// The cases whose results differ, on each executor.
fn differing(columns: &[(&str, Vec<OnnxCaseLine>)]) -> String {
    const SHOWN: usize = 160;
    let mut text = String::new();
    for (executor, lines) in columns {
        for line in lines {
            let result = match line.outcome {
                OnnxCaseOutcome::Wrong => line.reason.replace('|', "\\|"),
                OnnxCaseOutcome::Panicked => "panicked".to_string(),
                _ => continue,
            };
            let result: String = result.chars().take(SHOWN).collect();
            text.push_str(&format!("| {} | {executor} | {result} |\n", line.case));
        }
    }
    match text.is_empty() {
        true => "| none | | |\n".to_string(),
        false => text,
    }
}

/// The table of reasons, most frequent first.
fn reasons(columns: &[(&str, Vec<OnnxCaseLine>)]) -> String {
    let mut rows: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, (_, lines)) in columns.iter().enumerate() {
        for line in lines
            .iter()
            .filter(|l| l.outcome == OnnxCaseOutcome::Refused)
        {
            let row = rows.entry(grouped(&line.reason)).or_default();
            row.resize(columns.len(), 0);
            row[at] += 1;
        }
    }
    let mut rows: Vec<(String, Vec<usize>)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().copied().max()));
    let mut text = String::new();
    for (reason, counts) in rows {
        let cells: Vec<String> = counts.iter().map(usize::to_string).collect();
        text.push_str(&format!("| {reason} | {} |\n", cells.join(" | ")));
    }
    text
}

/// A reason without the details of a case: value names, versions, and all unsupported nodes after
/// the first.
fn grouped(reason: &str) -> String {
    if let Some((_, nodes)) = reason.split_once(" of the graph's nodes:") {
        let first = nodes.split_once("-> ").map_or(nodes, |(_, rest)| rest);
        let why = first.split_once(": ").map_or(first, |(_, why)| why);
        let why = why.split_once(';').map_or(why, |(why, _)| why);
        return format!("a device cannot run a node: {}", why.trim());
    }
    let mut text = String::new();
    for (at, part) in reason.split('`').enumerate() {
        match at % 2 {
            0 => text.push_str(part),
            // Names in backquotes that come from the test case, as opposed to names of the ONNX
            // specification.
            _ if part.len() > 24 || part.contains('/') => text.push_str("..."),
            _ => text.push_str(&format!("`{part}`")),
        }
    }
    let text = text.replace('|', "\\|");
    match text.split_once(" in opset ") {
        Some((before, _)) => before.to_string(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(outcome: OnnxCaseOutcome, operator: &str, reason: &str) -> OnnxCaseLine {
        OnnxCaseLine {
            outcome,
            case: format!("node/test_{operator}@1.22.0"),
            operator: operator.into(),
            reason: reason.into(),
        }
    }

    #[test]
    fn cases_are_counted_by_operator_and_reason() {
        let refused = |v| line(OnnxCaseOutcome::Refused, "Adam", v);
        let cpu = vec![
            line(OnnxCaseOutcome::Passed, "Abs", ""),
            line(OnnxCaseOutcome::Provided, "Abs", ""),
            refused("Adam: the operator is not supported in opset 1"),
            refused("Adam: the operator is not supported in opset 2"),
        ];
        let device =
            "wgpu cannot run 2 of the graph's nodes:   %1 cast -> f64[3]: no f64; cast   %2 add";
        let wgpu = vec![
            line(OnnxCaseOutcome::Wrong, "Abs", ""),
            line(OnnxCaseOutcome::Refused, "Abs", device),
        ];
        let text = render(&[("cpu", cpu), ("wgpu", wgpu)]);
        assert!(
            text.contains("| 1.22.0 | 4 | 1 + 1, 2 refused | 0, 1 refused, 1 wrong |\n"),
            "{text}"
        );
        assert!(
            text.contains("| node/test_Abs@1.22.0 | wgpu |  |\n"),
            "{text}"
        );
        assert!(
            text.contains("| a device cannot run a node: no f64 | 0 | 1 |\n"),
            "{text}"
        );
        assert!(
            text.contains("| Abs | 2 | 1 + 1 | 0, 1 refused, 1 wrong |\n"),
            "{text}"
        );
        assert!(text.contains("| Adam | 2 | 0, 2 refused | 0 |\n"), "{text}");
        assert!(
            text.contains("| Adam: the operator is not supported | 2 | 0 |\n"),
            "{text}"
        );
        assert!(
            text.contains("| **all of `node`** | 4 | 1 + 1, 2 refused |"),
            "{text}"
        );
    }
}
