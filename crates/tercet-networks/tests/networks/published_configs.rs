//! Configurations of published models, each with its repository or package: Tercet reads every
//! one, or names a key of it that changes the result.
//!
//! `published_configs.jsonl` has one configuration a line, with the keys and values of the file.
//! `repo`, `commit` and `path` name a file of a public Git repository; `package`, `version` and
//! `path` name one of a published package. `part` is the heading in a file with several
//! configurations. `left_out` counts the entries of labels, lists of tokens and lists of module
//! names that the line has not. Numbers that JSON does not have, such as `Infinity`, are `null`, as
//! the reader of a folder makes them. `made_for_tests` marks small models of other projects' tests;
//! they add families and do not count as published.
//!
//! `published_configs.txt` is what Tercet says of each. After a change that is meant, write it anew
//! with `TERCET_WRITE_CONFIG_TABLE=1 cargo test -p tercet-networks --test networks published`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};
use tercet_networks::ConfigError;
use tercet_networks::config::ignored_keys;

const CONFIGS: &str = include_str!("published_configs.jsonl");

const TABLE: &str = "tests/networks/published_configs.txt";

/// The number of published configurations that the file has at least.
const AT_LEAST: usize = 150;

struct Published {
    place: String,
    made_for_tests: bool,
    config: Map<String, Value>,
}

impl Published {
    fn parse(line: &str) -> Published {
        let mut entry: Map<String, Value> = serde_json::from_str(line).unwrap();
        let Some(Value::Object(config)) = entry.remove("config") else {
            panic!("no configuration: {line}");
        };
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let place = match (text("repo"), text("package")) {
            (Some(repo), None) => {
                let commit = text("commit").unwrap();
                assert!(commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()));
                assert!(repo.split('/').count() == 2, "{repo}");
                format!("{repo}@{}", &commit[..10])
            }
            (None, Some(package)) => format!("{package} {}", text("version").unwrap()),
            _ => panic!("no place: {line}"),
        };
        let mut place = format!("{place} {}", text("path").unwrap());
        if let Some(part) = text("part") {
            write!(place, " ({part})").unwrap();
        }
        Published {
            place,
            made_for_tests: entry.contains_key("made_for_tests"),
            config,
        }
    }

    fn model_type(&self) -> &str {
        self.config["model_type"].as_str().unwrap()
    }

    /// Whether the configuration has a key, with a dot before keys of nested objects.
    fn has(&self, path: &str) -> bool {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| self.config.get(key));
        keys.try_fold(first, |value, key| Some(value.and_then(|v| v.get(key))))
            .flatten()
            .is_some()
    }
}

fn all() -> impl Iterator<Item = Published> {
    CONFIGS.lines().map(Published::parse)
}

#[test]
fn published_configurations_are_distinct_and_enough() {
    let mut seen = HashSet::new();
    let mut published = 0;
    for one in all() {
        let text = Value::Object(one.config.clone()).to_string();
        assert!(seen.insert(text), "twice: {}", one.place);
        published += usize::from(!one.made_for_tests);
    }
    assert!(published >= AT_LEAST, "{published}");
}

/// What Tercet says of a configuration.
fn said(one: &Published) -> String {
    match ignored_keys(&one.config) {
        Ok(ignored) if ignored.is_empty() => "reads".to_string(),
        Ok(ignored) => {
            format!("reads, ignores {}", ignored.join(" "))
        }
        // No other error names a key whose value changes the result.
        Err(ConfigError::Unsupported { field, found, .. }) => match one.has(&field) {
            true => format!("refused: {field} = {found}"),
            false => format!("FAULT: no {field} = {found}"),
        },
        Err(other) => format!("FAULT: {other}"),
    }
}

#[test]
fn published_configurations_are_read_or_refused_by_a_key() {
    let mut table = String::from(
        "# What Tercet says of each line of published_configs.jsonl. published_configs.rs says how\n\
         # to write this file anew.\n",
    );
    let mut refused = BTreeMap::new();
    for (i, one) in all().enumerate() {
        let said = said(&one);
        if said.starts_with("refused") {
            *refused.entry(one.model_type().to_string()).or_insert(0) += 1;
        }
        writeln!(
            table,
            "{} {} {}: {said}",
            i + 1,
            one.model_type(),
            one.place
        )
        .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if std::env::var_os("TERCET_WRITE_CONFIG_TABLE").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (now, before) in table.lines().zip(committed.lines()) {
        assert_eq!(now, before, "see the head of published_configs.rs");
    }
    assert_eq!(table.lines().count(), committed.lines().count());
    println!("refused: {refused:?}");
    let faults: Vec<&str> = table
        .lines()
        .filter(|line| line.contains(": FAULT: "))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
