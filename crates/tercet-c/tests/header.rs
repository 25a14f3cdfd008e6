//! The committed header and the table of the reference page are those of the code. With `TERCET_UPDATE_DOCS` set, the
//! tests write them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- begin: functions of tercet.h -->\n";
const END: &str = "<!-- end: functions of tercet.h -->";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generated_header() -> String {
    let folder = folder();
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let builder = cbindgen::Builder::new().with_config(config);
    // cbindgen follows the modules.
    let builder = builder.with_src(folder.join("src").join("lib.rs"));
    let mut generated = Vec::new();
    builder.generate().expect("bindings").write(&mut generated);
    String::from_utf8(generated).expect("UTF-8")
}

/// Compares a file with its text, or writes it.
fn check(path: &Path, text: &str) {
    if std::env::var_os("TERCET_UPDATE_DOCS").is_some() {
        fs::write(path, text).expect("write");
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == text,
        "{} is not that of the code; run `cargo xtask docs` and commit it",
        path.display()
    );
}

/// Each function of the header with the first sentence of its documentation.
fn functions(header: &str) -> Vec<(String, String)> {
    let (mut found, mut doc) = (Vec::new(), String::new());
    let mut is_doc = false;
    for line in header.lines() {
        match line.trim() {
            "/**" => (doc, is_doc) = (String::new(), true),
            "*/" => is_doc = false,
            line if is_doc => doc = format!("{doc} {}", line.trim_start_matches('*').trim()),
            _ => {
                let name = line.split('(').next().unwrap_or_default();
                let name = name.rsplit([' ', '*']).next().unwrap_or_default();
                let is_function = line.contains('(') && !line.starts_with([' ', '#', '/', '}']);
                if is_function && name.starts_with("tercet_") {
                    let sentence = doc.trim().split(". ").next().unwrap_or_default();
                    let sentence = sentence.split(": ").next().unwrap_or_default();
                    let sentence = format!("{}.", sentence.trim_end_matches('.'));
                    found.push((name.to_string(), sentence));
                }
            }
        }
    }
    found
}

#[test]
fn the_header_is_that_of_the_code() {
    check(
        &folder().join("include").join("tercet.h"),
        &generated_header(),
    );
}

#[test]
fn the_reference_page_lists_each_function() {
    let functions = functions(&generated_header());
    assert!(functions.len() > 30, "{functions:?}");
    let undocumented = functions.iter().find(|(_, doc)| doc.len() < 10);
    assert_eq!(undocumented, None);
    let mut table = String::from("\n| function | description |\n|---|---|\n");
    for (name, doc) in functions {
        writeln!(table, "| `{name}` | {} |", doc.replace('|', "\\|")).expect("a string");
    }
    table.push('\n');
    let page = folder().join("../../docs/reference/c-api.md");
    let text = fs::read_to_string(&page).expect("the reference page");
    let (before, rest) = text.split_once(BEGIN).expect("the first mark");
    let (_, after) = rest.split_once(END).expect("the second mark");
    check(&page, &format!("{before}{BEGIN}{table}{END}{after}"));
}

#[test]
fn functions_are_found_with_their_first_sentence() {
    let header = "/**\n * Frees a thing. More.\n */\nTercetStatus tercet_free(const void *x);\n\n\
                  /**\n * A name: valid.\n */\nconst char *tercet_name(void);\n\
                  typedef bool (*TercetCallback)(void *user);\n";
    let found = functions(header);
    let found: Vec<_> = found
        .iter()
        .map(|(n, d)| (n.as_str(), d.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("tercet_free", "Frees a thing."),
            ("tercet_name", "A name.")
        ]
    );
}
