//! Rules of names: banned words in identifiers, repeated type names, public types without examples.

use std::collections::BTreeMap;

/// First words of constants and functions that have a standard spelling: `MAX_`, `MIN_`.
const BANNED_PREFIXES: [&str; 4] = ["MOST_", "LEAST_", "most_", "least_"];

/// Bare participles and vague nouns that say nothing as the whole name of a type.
const BANNED_NAMES: [&str; 32] = [
    "Held", "Given", "Seen", "Made", "Kept", "Taken", "Wanted", "Told", "Sought", "Left", "Put",
    "Said", "Written", "Built", "Played", "Chosen", "Drawn", "Joined", "Normed", "Applied",
    "Ruled", "Laid", "Cut", "Shown", "Carried", "Opened", "Happened", "Way", "Job", "Place",
    "Whose", "Foretold",
];

/// Types that are declared twice on purpose, each with the reason.
const DELIBERATE_PAIRS: [(&str, &str); 3] = [
    ("Params", "the parameter block of each shader in a string"),
    ("ShaderCache", "one per platform, under `cfg`"),
    ("SubgroupUsage", "one per platform, under `cfg`"),
];

/// The banned word of an identifier, if it has one.
pub(super) fn banned(identifier: &str) -> Option<&'static str> {
    let prefix = BANNED_PREFIXES
        .into_iter()
        .find(|prefix| identifier.starts_with(prefix));
    prefix.or_else(|| BANNED_NAMES.into_iter().find(|name| *name == identifier))
}

/// All type declarations of the crates.
#[derive(Default)]
pub(super) struct Declarations {
    by_name: BTreeMap<String, Vec<(String, usize)>>,
}

impl Declarations {
    /// Adds the structs, enums, traits and unions that a file declares.
    pub(super) fn add(&mut self, file: &str, text: &str) {
        for (index, line) in text.lines().enumerate() {
            if let Some((name, _)) = declaration(line) {
                let places = self.by_name.entry(name.to_string()).or_default();
                places.push((file.to_string(), index + 1));
            }
        }
    }

    /// The number of declarations.
    pub(super) fn len(&self) -> usize {
        self.by_name.values().map(Vec::len).sum()
    }

    /// File, line and name of each declaration whose name has another one.
    pub(super) fn repeated(&self) -> Vec<(String, usize, String)> {
        let is_pair = |name: &str| DELIBERATE_PAIRS.iter().any(|(pair, _)| *pair == name);
        let repeated = self
            .by_name
            .iter()
            .filter(|(name, places)| places.len() > 1 && !is_pair(name));
        repeated
            .flat_map(|(name, places)| {
                let places = places.iter();
                places.map(move |(file, line)| (file.clone(), *line, name.clone()))
            })
            .collect()
    }
}

/// Name and visibility of the type that a line declares.
fn declaration(line: &str) -> Option<(&str, bool)> {
    let mut rest = line.trim_start();
    let mut is_public = false;
    if let Some(after) = rest.strip_prefix("pub") {
        is_public = after.starts_with(' ');
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1.trim_start(),
            None => after.strip_prefix(' ')?,
        };
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let keywords = ["struct ", "enum ", "trait ", "union "];
    let rest = keywords.iter().find_map(|k| rest.strip_prefix(k))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    (!name.is_empty()).then_some((name, is_public))
}

/// Line and name of each public type whose rustdoc has no block of code. Hidden types have
/// no rustdoc.
pub(super) fn public_types_without_examples(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some((name, true)) = declaration(line) else {
            continue;
        };
        // Skip indented declarations: types inside functions, modules and macros do not need an
        // example.
        if line.starts_with(' ') {
            continue;
        }
        let about = lines[..index].iter().rev().take_while(|above| {
            let above = above.trim_start();
            above.starts_with("///") || above.starts_with("#[") || above.starts_with(")]")
        });
        let is_enough = |line: &&str| line.contains("```") || line.trim() == "#[doc(hidden)]";
        if !about.into_iter().any(is_enough) {
            found.push((index + 1, name.to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_of_all_kinds_are_read() {
        let names = [
            ("pub struct Tile<T> {", Some(("Tile", true))),
            ("    pub(crate) enum Kind {", Some(("Kind", false))),
            ("unsafe trait Raw: Copy {", Some(("Raw", false))),
            ("structure(x)", None),
            ("// struct No", None),
        ];
        for (line, expected) in names {
            assert_eq!(declaration(line), expected, "{line}");
        }
    }

    #[test]
    fn a_name_in_two_files_is_repeated_in_both() {
        let mut declarations = Declarations::default();
        declarations.add("a.rs", "struct Rows;\nstruct Tile;");
        declarations.add("b.rs", "\nenum Rows {}");
        let expected = [
            ("a.rs".to_string(), 1, "Rows".to_string()),
            ("b.rs".to_string(), 2, "Rows".to_string()),
        ];
        assert_eq!(declarations.repeated(), expected);
        assert_eq!(declarations.len(), 3);
    }

    #[test]
    fn limits_have_their_standard_prefix() {
        assert_eq!(banned("MOST_ROWS"), Some("MOST_"));
        assert_eq!(banned("Held"), Some("Held"));
        assert_eq!(banned("HeldOut"), None);
        assert_eq!(banned("mostly"), None);
    }

    #[test]
    fn an_example_in_the_rustdoc_counts() {
        let text = "/// A.\n///\n/// ```\n/// a();\n/// ```\n#[derive(Debug)]\npub struct A;\npub struct B;\nstruct C;\n#[doc(hidden)]\npub struct D;\n";
        assert_eq!(public_types_without_examples(text), [(8, "B".to_string())]);
    }
}
