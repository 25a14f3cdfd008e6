//! Tests that WGSL fragments declare the names they use from other fragments: `// uses rows.wgsl:
//! THREADS, local` after the header comment. `a.wgsl or b.wgsl` stands for alternatives.
//!
//! Run with `TERCET_BLESS=1` to write the `uses` lines into the WGSL files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tercet_plan::{KernelCode, kernels};

include!("../../build/shader_text.rs");

const MARK: &str = "// uses ";

/// The WGSL files below a folder, by their relative paths.
fn files(root: &Path, folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the shaders are there") {
        let path = entry.expect("the shaders are there").path();
        if path.is_dir() {
            files(root, &path, found);
        } else if path.extension().is_some_and(|e| e == "wgsl") {
            let name = path.strip_prefix(root).expect("it is below");
            found.insert(name.display().to_string(), path);
        }
    }
}

/// Splits a WGSL source into identifiers and single other characters; comments are dropped.
fn tokens(text: &str) -> Vec<&str> {
    let lines = text.lines();
    let code = lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    for line in code {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let len = match is_word(first) {
                true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                false => first.len_utf8(),
            };
            tokens.push(&rest[..len]);
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// Names that a fragment declares for others, and names that it uses but does not declare.
fn names(text: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let tokens = tokens(text);
    let (mut global, mut own, mut used) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut depth = 0_i32;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" => depth += 1,
            "}" | ")" => depth -= 1,
            "fn" | "const" | "override" | "struct" | "alias" | "let" | "var" => {
                let mut next = at + 1;
                if tokens.get(next) == Some(&"<") {
                    next += tokens[next..].iter().position(|t| *t == ">").unwrap_or(0) + 1;
                }
                if let Some(name) = tokens.get(next) {
                    own.insert(*name);
                    if depth == 0 && *token != "let" {
                        global.insert(*name);
                    }
                }
            }
            word => {
                let is_member = at > 0 && tokens[at - 1] == ".";
                if tokens.get(at + 1) == Some(&":") {
                    own.insert(word);
                } else if !is_member {
                    used.insert(word);
                }
            }
        }
    }
    let foreign = used.difference(&own).copied().collect();
    (global, foreign)
}

/// The `uses` lines that each WGSL file should have.
fn expected_lines<'a>(by_text: &BTreeMap<&'a str, &'a str>) -> BTreeMap<&'a str, Vec<String>> {
    let known: BTreeMap<&str, _> = by_text.keys().map(|text| (*text, names(text))).collect();
    // For each file and name, the files that the name comes from.
    let mut from: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for kernel in kernels() {
        let KernelCode::Wgsl(pieces) = kernel.code else {
            continue;
        };
        // A fragment that is not a file is WGSL text that Rust code generates.
        let pieces = pieces.iter().filter(|piece| known.contains_key(**piece));
        for piece in pieces.clone() {
            for other in pieces.clone().filter(|other| *other != piece) {
                let ((_, used), (declared, _)) = (&known[piece], &known[other]);
                for name in used.intersection(declared) {
                    let of = from.entry(by_text[piece]).or_default();
                    of.entry(name).or_default().insert(by_text[other]);
                }
            }
        }
    }
    let lines = |names: BTreeMap<&str, BTreeSet<&str>>| {
        let mut groups: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
        for (name, files) in names {
            let files: Vec<&str> = files.into_iter().collect();
            groups.entry(files).or_default().push(name);
        }
        let line = |(files, names): (Vec<&str>, Vec<&str>)| {
            format!("{MARK}{}: {}", files.join(" or "), names.join(", "))
        };
        groups.into_iter().map(line).collect()
    };
    from.into_iter()
        .map(|(file, names)| (file, lines(names)))
        .collect()
}

#[test]
fn shaders_say_what_they_use() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders/portable");
    let mut paths = BTreeMap::new();
    files(&root, &root, &mut paths);
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("the shaders are there");
    let texts: Vec<(String, String)> = paths.iter().map(|(n, p)| (n.clone(), read(p))).collect();
    let shipped: Vec<String> = texts.iter().map(|(_, text)| shipped_text(text)).collect();
    let names = texts.iter().map(|(name, _)| name.as_str());
    let by_text = shipped.iter().map(String::as_str).zip(names).collect();
    let wanted = expected_lines(&by_text);
    for (name, text) in &texts {
        let lines = wanted.get(name.as_str()).cloned().unwrap_or_default();
        let said: Vec<&str> = text.lines().filter(|line| line.starts_with(MARK)).collect();
        if said == lines {
            continue;
        }
        assert!(
            std::env::var_os("TERCET_BLESS").is_some(),
            "{name} says\n{}\nand uses\n{}",
            said.join("\n"),
            lines.join("\n")
        );
        let mut rest: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with(MARK))
            .collect();
        let header = rest
            .iter()
            .take_while(|line| line.starts_with("//"))
            .count();
        rest.splice(header..header, lines.iter().map(String::as_str));
        std::fs::write(&paths[name], rest.join("\n") + "\n").expect("a shader is written");
    }
}
