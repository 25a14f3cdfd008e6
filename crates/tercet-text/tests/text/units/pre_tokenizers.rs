//! The table of pre-tokenizers.

use tercet_text::internals::PRE_TOKENIZERS;

#[test]
fn names_are_unique_and_patterns_compile() {
    let mut names: Vec<_> = PRE_TOKENIZERS
        .iter()
        .flat_map(|entry| entry.names)
        .collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    for entry in PRE_TOKENIZERS {
        entry.build().unwrap();
    }
}
