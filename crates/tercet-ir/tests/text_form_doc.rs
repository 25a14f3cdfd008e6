//! Checks that `docs/reference/text-format.md` agrees with the code: the table of operators comes
//! from `OpKind::ALL`, and its example parses and prints as shown. `TERCET_UPDATE_DOCS=1` rewrites
//! both in place.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tercet_ir::{OpKind, parse};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/text-format.md")
}

fn read() -> String {
    // Normalizes line ends, which depend on the checkout.
    std::fs::read_to_string(path())
        .expect("docs/reference/text-format.md is read")
        .replace("\r\n", "\n")
}

/// The text between `<!-- begin NAME -->` and `<!-- end NAME -->`.
fn section<'a>(doc: &'a str, name: &str) -> &'a str {
    let (_, rest) = doc
        .split_once(&format!("<!-- begin {name} -->\n"))
        .expect("the section begins");
    rest.split_once(&format!("<!-- end {name} -->"))
        .expect("the section ends")
        .0
}

/// The document with this section replaced by `text`.
fn with_section(doc: &str, name: &str, text: &str) -> String {
    let start = section(doc, name).as_ptr() as usize - doc.as_ptr() as usize;
    let end = start + section(doc, name).len();
    format!("{}{text}{}", &doc[..start], &doc[end..])
}

fn fenced(section: &str) -> &str {
    let inner = section
        .strip_prefix("```text\n")
        .and_then(|s| s.strip_suffix("```\n"));
    inner.expect("the section is one fenced block")
}

/// The numbers of results of this kind's nodes in its cases.
fn results(kind: OpKind) -> String {
    let mut counts = BTreeSet::new();
    for case in tercet_cases::cases(kind) {
        let dtype = kind.doc().dtypes.iter().find(|d| case.runs_with(**d));
        let dtype = *dtype.expect("every case runs with a dtype");
        let built = case.build(dtype).expect("cases build");
        let nodes = built.graph.nodes().filter(|(_, n)| n.op.kind() == kind);
        counts.extend(nodes.map(|(_, n)| n.outputs.len()));
    }
    match counts.iter().collect::<Vec<_>>().as_slice() {
        [one] => one.to_string(),
        [] => panic!("{} has no case", kind.doc().name),
        [_, _, ..] => "1 or more".to_string(),
    }
}

fn row(kind: OpKind) -> String {
    let doc = kind.doc();
    let attrs: Vec<String> = kind
        .attr_kinds()
        .iter()
        .map(|(name, kind)| format!("`{name}`: {kind}"))
        .collect();
    let operands: Vec<String> = doc.operands.iter().map(|o| format!("`{o}`")).collect();
    let cells = [
        format!("`{}`", doc.name),
        attrs.join("; "),
        operands.join(" "),
        results(kind),
        doc.text.to_string(),
    ];
    let cells = cells.map(|c| c.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

#[test]
#[cfg_attr(
    not(feature = "splat"),
    ignore = "the list has the operators of every feature"
)]
fn document_is_up_to_date() {
    let doc = read();
    let written = fenced(section(&doc, "example"));
    let graph = parse(written).unwrap_or_else(|e| panic!("{e}"));
    let printed = graph.to_string();
    assert_eq!(parse(&printed).unwrap_or_else(|e| panic!("{e}")), graph);
    let mut table = String::from("| operator | attributes | operands | results | meaning |\n");
    table += "|---|---|---|---|---|\n";
    OpKind::ALL.iter().for_each(|&kind| table += &row(kind));
    let want = with_section(&doc, "printed", &format!("```text\n{printed}\n```\n"));
    let want = with_section(&want, "operators", &table);
    if doc == want {
        return;
    }
    if std::env::var_os("TERCET_UPDATE_DOCS").is_some() {
        std::fs::write(path(), want).expect("docs/reference/text-format.md is written");
        return;
    }
    let pairs = doc.lines().zip(want.lines());
    let first = pairs.enumerate().find(|(_, (a, b))| a != b);
    panic!(
        "docs/reference/text-format.md is stale, first at {first:?}; run this test with TERCET_UPDATE_DOCS=1"
    );
}
