//! `cargo xtask words`: the project's rules of prose and names, counted per crate.
//!
//! The command reads all tracked files and counts violations by area and metric. `xtask/words.txt` holds
//! the accepted counts. The command fails if a count rises, and asks for `--update` if one falls.
//!
//! | metric | what it counts |
//! |---|---|
//! | `phrases` | banned phrases in comments, rustdoc, string literals and Markdown, see [`phrases`] |
//! | `sentences` | sentences above [`MAX_WORDS`] words |
//! | `columns` | lines of comments and Markdown above [`MAX_COLUMNS`] columns, except tables, links and code |
//! | `names` | banned words in identifiers, see [`names`] |
//! | `types` | declarations of a type name that has another declaration |
//! | `examples` | public types that a user meets and whose rustdoc has no example |
//!
//! The command also checks the form of the commits since [`commits::BASE`].

mod commits;
mod names;
mod phrases;
mod text;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::process;
use text::{Part, PartKind};

/// Maximum number of words in a sentence.
const MAX_WORDS: usize = 30;
/// Maximum number of columns of a line of prose.
const MAX_COLUMNS: usize = 120;
/// The files that the rules apply to.
const PATTERNS: [&str; 5] = ["*.rs", "*.wgsl", "*.glsl", "*.comp", "*.md"];
/// The crates whose public types a user meets. Types of other crates reach users only as reexports
/// of these crates, so they are not counted.
const PUBLIC_CRATES: [&str; 10] = [
    "crates/tercet",
    "crates/tercet-files",
    "crates/tercet-ir",
    "crates/tercet-models",
    "crates/tercet-networks",
    "crates/tercet-onnx",
    "crates/tercet-serve",
    "crates/tercet-splat",
    "crates/tercet-tensor",
    "crates/tercet-text",
];

/// Command-line options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the counts of today to `xtask/words.txt`
    #[arg(long)]
    update: bool,
    /// List every violation of one metric, such as `phrases`
    #[arg(long, value_name = "METRIC")]
    list: Option<String>,
    /// Restrict `--list` to files whose path starts with this prefix
    #[arg(long, value_name = "PREFIX", requires = "list")]
    under: Option<String>,
}

/// One violation of a rule.
struct Violation {
    metric: &'static str,
    file: String,
    /// One-based line number.
    line: usize,
    detail: String,
}

/// Number of violations by area and metric.
type Counts = BTreeMap<(String, String), usize>;

/// Runs `cargo xtask words`.
pub(crate) fn run(options: &Options) -> Result<(), XtaskError> {
    let files = tracked_files()?;
    let mut violations = Vec::new();
    let mut declarations = names::Declarations::default();
    for (name, text) in &files {
        check_file(name, text, &mut violations);
        if is_crate_source(name) {
            declarations.add(name, text);
        }
    }
    for (file, line, detail) in declarations.repeated() {
        violations.push(Violation {
            metric: "types",
            file,
            line,
            detail,
        });
    }
    if let Some(metric) = &options.list {
        let under = options.under.as_deref().unwrap_or_default();
        for v in violations.iter().filter(|v| v.metric == metric) {
            if v.file.starts_with(under) {
                println!("{}:{}: {}", v.file, v.line, v.detail);
            }
        }
        return Ok(());
    }
    let counts = count(&violations);
    print_table(&counts);
    println!(
        "{} type declarations, {} of them with a repeated name",
        declarations.len(),
        violations.iter().filter(|v| v.metric == "types").count()
    );
    let path = process::root().join("xtask/words.txt");
    if options.update {
        return fs::write(&path, to_lines(&counts)).map_err(error::file("write", &path));
    }
    let accepted = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    let mut problems = compare(&counts, &from_lines(&accepted));
    problems.extend(commits::check()?);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Words { problems }),
    }
}

/// All tracked files that the rules apply to, with their text. Files in `tests/data` are left out,
/// because they are not prose.
fn tracked_files() -> Result<Vec<(String, String)>, XtaskError> {
    let mut command = Command::new("git");
    command
        .current_dir(process::root())
        .args(["ls-files", "-z", "--"]);
    let tracked = process::output(command.args(PATTERNS))?;
    let tracked = String::from_utf8_lossy(&tracked);
    let mut files = Vec::new();
    for name in tracked.split_terminator('\0') {
        let path: PathBuf = process::root().join(name);
        // Skip test data, and files that are deleted but not yet committed as deleted.
        if name.starts_with("tests/data/") || !path.is_file() {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        files.push((name.to_string(), text));
    }
    Ok(files)
}

fn is_crate_source(name: &str) -> bool {
    name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs")
}

/// The area that a file is counted in: a crate, the shaders of all crates, or a folder of the root.
fn area(name: &str) -> String {
    let is_shader = [".wgsl", ".glsl", ".comp"]
        .iter()
        .any(|end| name.ends_with(end));
    if is_shader && name.starts_with("crates/") {
        return "shaders".to_string();
    }
    let mut parts = name.split('/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("crates" | "examples" | "benches", Some(second)) => format!("{first}/{second}"),
        ("docs" | "tests" | "xtask", _) => first.to_string(),
        _ => "root".to_string(),
    }
}

fn check_file(name: &str, text: &str, violations: &mut Vec<Violation>) {
    let mut add = |metric, line, detail: String| {
        violations.push(Violation {
            metric,
            file: name.to_string(),
            line,
            detail,
        });
    };
    let is_markdown = name.ends_with(".md");
    let parts = match is_markdown {
        true => text::markdown(text),
        false => text::source(text),
    };
    for part in &parts {
        match part.kind {
            PartKind::Prose => {
                for (line, phrase) in phrases::find(part) {
                    add("phrases", line, phrase);
                }
                for (line, sentence) in long_sentences(part) {
                    add("sentences", line, sentence);
                }
            }
            // Rule files and this command's own tables quote what they ban.
            PartKind::String if !name.starts_with("xtask/src/words") => {
                for (line, phrase) in phrases::find(part) {
                    add("phrases", line, phrase);
                }
            }
            PartKind::String => {}
            PartKind::Identifier => {
                if let Some(word) = names::banned(&part.text) {
                    add("names", part.line, format!("{} (`{word}`)", part.text));
                }
            }
        }
    }
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let uncommented = trimmed.trim_start_matches(['/', '!']).trim_start();
        let is_fence = uncommented.starts_with("```") && (is_markdown || uncommented != trimmed);
        if is_fence {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let is_prose = is_markdown || trimmed.starts_with("//");
        if is_prose && line.chars().count() > MAX_COLUMNS && !may_be_long(trimmed) {
            add("columns", index + 1, line.chars().take(60).collect());
        }
    }
    if PUBLIC_CRATES
        .iter()
        .any(|c| name.starts_with(&format!("{c}/src/")))
    {
        for (line, item) in names::public_types_without_examples(text) {
            add("examples", line, item);
        }
    }
}

/// True for rows of tables, links and generated lines, which have no line breaks.
fn may_be_long(line: &str) -> bool {
    let line = line.trim_start_matches(['/', '!']).trim_start();
    let generated = line.starts_with("uses ");
    generated
        || line.starts_with('|')
        || line.starts_with("    ")
        || line.contains("](")
        || line.contains("://")
}

/// The sentences of a block of prose that have more than [`MAX_WORDS`] words, each with the line on
/// which the block starts.
fn long_sentences(part: &Part) -> Vec<(usize, String)> {
    text::sentences(&part.text)
        .into_iter()
        .filter(|sentence| sentence.split_whitespace().count() > MAX_WORDS)
        .map(|sentence| (part.line, sentence.chars().take(60).collect()))
        .collect()
}

fn count(violations: &[Violation]) -> Counts {
    let mut counts = Counts::new();
    for v in violations {
        *counts
            .entry((area(&v.file), v.metric.to_string()))
            .or_default() += 1;
    }
    counts
}

fn print_table(counts: &Counts) {
    for ((area, metric), count) in counts {
        println!("{area:24} {metric:10} {count:6}");
    }
}

fn to_lines(counts: &Counts) -> String {
    let mut lines = String::new();
    for ((area, metric), count) in counts {
        let _ = writeln!(lines, "{area} {metric} {count}");
    }
    lines
}

fn from_lines(lines: &str) -> Counts {
    let fields = lines.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let key = (fields.next()?.to_string(), fields.next()?.to_string());
        Some((key, fields.next()?.parse().ok()?))
    });
    fields.collect()
}

/// One line for each count that differs from the accepted one.
fn compare(counts: &Counts, accepted: &Counts) -> Vec<String> {
    let keys: std::collections::BTreeSet<_> = counts.keys().chain(accepted.keys()).collect();
    let of = |counts: &Counts, key| counts.get(key).copied().unwrap_or(0);
    let differing = keys.into_iter().filter_map(|key| {
        let (area, metric) = key;
        let (found, expected) = (of(counts, key), of(accepted, key));
        let remedy = match found.cmp(&expected) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => {
                format!("`cargo xtask words --list {metric} --under {area}` lists them")
            }
            std::cmp::Ordering::Less => "accept it: `cargo xtask words --update`".to_string(),
        };
        Some(format!(
            "{area}: {metric}: expected at most {expected}, found {found}; {remedy}"
        ))
    });
    differing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(name: &str, text: &str) -> Vec<(&'static str, usize)> {
        let mut violations = Vec::new();
        check_file(name, text, &mut violations);
        violations.iter().map(|v| (v.metric, v.line)).collect()
    }

    #[test]
    fn prose_strings_and_names_are_checked() {
        let text = "\
/// Whoever calls this waits.
const MOST_ROWS: u32 = 3;
fn f() -> &'static str {
    \"this is given up\"
}
";
        let expected = [("phrases", 1), ("names", 2), ("phrases", 4)];
        assert_eq!(metrics("crates/tercet-cpu/src/a.rs", text), expected);
    }

    #[test]
    fn long_sentences_and_lines_are_found_outside_of_code() {
        let words = "word ".repeat(31);
        let text = format!("{words}.\n\n```text\n{words}\n```\n");
        let expected = [("sentences", 1), ("columns", 1)];
        assert_eq!(metrics("docs/a.md", &text), expected[..]);
    }

    #[test]
    fn a_count_that_rises_or_falls_is_a_problem() {
        let accepted = from_lines("docs phrases 2\n");
        assert_eq!(compare(&accepted, &accepted), Vec::<String>::new());
        for other in ["docs phrases 3\n", "docs phrases 1\n", ""] {
            assert_eq!(compare(&from_lines(other), &accepted).len(), 1, "{other}");
        }
    }
}
