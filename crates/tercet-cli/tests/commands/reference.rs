//! `docs/reference/cli.md` and the commands that the documentation shows, checked against the parser.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, CommandFactory, Parser};
use tercet_cli::internals::{EXIT_CODES, TercetCli, arguments};

/// Environment variables that the command reads, with their effect.
const ENVIRONMENT: [(&str, &str); 5] = [
    (
        "TERCET_CACHE_DIR",
        "folder of compiled pipelines and tuning tables; default: `tercet` in the user's cache folder",
    ),
    (
        "TERCET_API_KEY",
        "key that clients of `tercet serve` must send, unless a flag sets keys",
    ),
    (
        "XDG_CACHE_HOME",
        "the user's cache folder on Linux; default: `$HOME/.cache`",
    ),
    (
        "VK_DRIVER_FILES",
        "read by the Vulkan loader: the driver manifests to use",
    ),
    (
        "NO_COLOR",
        "turns colours of progress bars off, if set to anything",
    ),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The reference page of the command, generated from its parser.
fn page() -> String {
    let mut page = String::from(
        "# Command line\n\n\
         `cargo xtask docs` generates this page from the command's own help.\n\n\
         ## Exit codes\n\n| code | meaning |\n|---|---|\n",
    );
    for line in EXIT_CODES.lines().skip(1) {
        let (code, meaning) = line.trim().split_once(' ').expect("a code and a meaning");
        let _ = writeln!(page, "| {code} | {} |", cell(meaning.trim()));
    }
    page += "\n## Environment variables\n\n| variable | effect |\n|---|---|\n";
    for (name, effect) in ENVIRONMENT {
        let _ = writeln!(page, "| `{name}` | {effect} |");
    }
    let mut command = TercetCli::command();
    command.build();
    add_command(&mut page, &command, "tercet");
    page
}

fn add_command(page: &mut String, command: &clap::Command, path: &str) {
    let mut command = command.clone();
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = write!(page, "\n## `{path}`\n\n{}\n\n", about.trim());
    let _ = write!(page, "```text\n{usage}\n```\n");
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|a| !a.is_hide_set() && !["help", "version"].contains(&a.get_id().as_str()))
        .collect();
    if !arguments.is_empty() {
        *page += "\n| argument | meaning |\n|---|---|\n";
        for argument in arguments {
            let _ = writeln!(page, "| `{}` | {} |", spelling(argument), meaning(argument));
        }
    }
    for sub in command.get_subcommands() {
        if sub.get_name() != "help" && !sub.is_hide_set() {
            add_command(page, sub, &format!("{path} {}", sub.get_name()));
        }
    }
}

/// An argument as a user types it.
fn spelling(argument: &Arg) -> String {
    let value = match argument.get_action() {
        ArgAction::Set | ArgAction::Append => {
            let names = argument.get_value_names().unwrap_or_default();
            let names: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
            names.join(" ")
        }
        _ => String::new(),
    };
    let short = argument.get_short().map(|c| format!("-{c}"));
    let long = argument.get_long().map(|name| format!("--{name}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let spelling = match flags.is_empty() {
        true => value,
        false => format!("{} {value}", flags.join(", ")),
    };
    cell(spelling.trim())
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut meaning = help.map(ToString::to_string).unwrap_or_default();
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    if !aliases.is_empty() {
        let _ = write!(meaning, " (also `--{}`)", aliases.join("`, `--"));
    }
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_string())
        .collect();
    if !values.is_empty() && argument.get_action().takes_values() {
        let _ = write!(meaning, "; one of `{}`", values.join("`, `"));
    }
    let defaults = argument.get_default_values();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let defaults: Vec<_> = defaults.iter().map(|v| v.to_string_lossy()).collect();
        let _ = write!(meaning, "; default: `{}`", defaults.join(" "));
    }
    cell(&meaning)
}

/// A text in a cell of a Markdown table.
fn cell(text: &str) -> String {
    let text: Vec<&str> = text.split_whitespace().collect();
    text.join(" ").replace('|', "\\|")
}

#[test]
#[cfg_attr(
    not(all(
        feature = "audio",
        feature = "serve",
        feature = "splat",
        feature = "grammar",
        feature = "hub",
        feature = "vulkan",
        feature = "wgpu"
    )),
    ignore = "the page has the commands of every feature"
)]
fn reference_page_is_up_to_date() {
    let path = repository().join("docs/reference/cli.md");
    let expected = page();
    if std::env::var_os("TERCET_UPDATE_DOCS").is_some() {
        std::fs::write(&path, expected).expect("the page can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let first = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/reference/cli.md is stale, first at {first:?}; run `cargo xtask docs`"
    );
}

/// All Markdown pages of the repository.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![repository()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).expect("a folder of the repository");
        for entry in entries {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "data" {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The calls of `tercet` in the shell blocks of a page, as words.
fn calls(page: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    let mut is_shell = false;
    let mut line = String::new();
    for text in page.lines() {
        if let Some(info) = text.trim_start().strip_prefix("```") {
            is_shell = matches!(info.trim(), "sh" | "bash" | "shell" | "console");
            continue;
        }
        if !is_shell {
            continue;
        }
        if let Some(start) = text.strip_suffix('\\') {
            line += start;
            continue;
        }
        line += text;
        for words in split_commands(&std::mem::take(&mut line)) {
            let program = words.iter().position(|word| !is_assignment(word));
            let Some(program) = program else { continue };
            let words = &words[program..];
            let name = words[0].rsplit('/').next().unwrap_or_default();
            // `cargo run --release -- ARGUMENTS` of the default member.
            let through_cargo = words[0] == "cargo" && words.get(1).is_some_and(|w| w == "run");
            let arguments = match through_cargo {
                true if !words.iter().any(|w| w == "-p" || w == "--package") => words
                    .iter()
                    .position(|w| w == "--")
                    .map(|i| &words[i + 1..]),
                true => None,
                false if name == "tercet" => Some(&words[1..]),
                false => None,
            };
            if let Some(arguments) = arguments {
                let program = ["tercet".to_string()].into_iter();
                calls.push(program.chain(arguments.iter().cloned()).collect());
            }
        }
    }
    calls
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

/// The words of each command of a shell line: quotes are removed, redirections end a command's words.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut open, mut quote) = (String::new(), false, None);
    let mut redirected = false;
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.push(c),
            (None, '"' | '\'') => (quote, open) = (Some(c), true),
            (None, '#') if word.is_empty() && !open => break,
            (None, '>' | '<') => redirected = true,
            (None, ' ' | '\t' | '|' | '&' | ';') => {
                if (open || !word.is_empty()) && !redirected {
                    let last = commands.last_mut().expect("it is never empty");
                    last.push(std::mem::take(&mut word));
                }
                word.clear();
                open = false;
                if matches!(c, '|' | '&' | ';') {
                    redirected = false;
                    commands.push(Vec::new());
                }
            }
            (None, c) => word.push(c),
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}

#[test]
fn commands_in_the_documentation_parse() {
    let mut count = 0;
    let mut problems = Vec::new();
    for path in pages() {
        let page = std::fs::read_to_string(&path).expect("a page can be read");
        for words in calls(&page) {
            count += 1;
            let given = words.iter().map(Into::into).collect();
            if let Err(error) = TercetCli::try_parse_from(arguments(given)) {
                use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
                if !matches!(error.kind(), DisplayHelp | DisplayVersion) {
                    problems.push(format!("{}: {}\n{error}", path.display(), words.join(" ")));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 30, "the documentation has only {count} commands");
}

#[test]
fn shell_lines_are_split_into_commands() {
    let page = "```sh\nTERCET_CACHE_DIR=x tercet embed \"a b\" \\\n  --json > out 2>&1 | head # why\n\
                cargo run --release -- generate -n 3\nls && ./tercet devices\n```\n`tercet no`\n";
    let expected: [&[&str]; 3] = [
        &["tercet", "embed", "a b", "--json"],
        &["tercet", "generate", "-n", "3"],
        &["tercet", "devices"],
    ];
    assert_eq!(calls(page), expected);
}

/// Relative links lead to files, and their anchors to headings.
#[test]
fn links_in_the_documentation_lead_somewhere() {
    let mut problems = Vec::new();
    for path in pages() {
        let page = std::fs::read_to_string(&path).expect("a page can be read");
        let folder = path.parent().expect("a page has a folder");
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file.is_empty() {
                true => path.clone(),
                false => folder.join(file),
            };
            if !target.exists() {
                problems.push(format!("{}: {link}: no file", path.display()));
            } else if !anchor.is_empty() && target.extension().is_some_and(|e| e == "md") {
                let text = std::fs::read_to_string(&target).expect("a page can be read");
                if !anchors(&text).iter().any(|known| known == anchor) {
                    problems.push(format!("{}: {link}: no heading", path.display()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Every page of `docs/` is in the table of contents of the book.
#[test]
fn the_book_has_every_page() {
    let docs = repository().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let listed = links(&summary);
    let pages = pages().into_iter();
    let missing: Vec<String> = pages
        .filter_map(|page| {
            let relative = page.strip_prefix(&docs).ok()?;
            Some(relative.to_string_lossy().into_owned())
        })
        .filter(|page| page != "SUMMARY.md" && !listed.contains(page))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
}

/// The targets of the inline links of a page, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece is a span of code.
        let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let starts = text.match_indices("](").map(|(index, _)| index + 2);
        let targets = starts.filter_map(|start| {
            let end = text[start..].find(')')?;
            let target = text[start..start + end].trim_matches(['<', '>']);
            target.split_whitespace().next().map(str::to_string)
        });
        links.extend(targets);
    }
    links
}

/// The anchors of the headings of a page, as mdBook and GitHub make them.
fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let title = title.trim().to_lowercase();
        let anchor: String = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = anchors
            .iter()
            .filter(|known| **known == anchor || known.starts_with(&format!("{anchor}-")))
            .count();
        match count {
            0 => anchors.push(anchor),
            n => anchors.push(format!("{anchor}-{n}")),
        }
    }
    anchors
}
