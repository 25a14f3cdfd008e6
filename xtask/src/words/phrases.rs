//! Phrases that the project's prose does not use: translated syntax that hides the actor or the term.
//!
//! `CONTRIBUTING.md` explains the rules behind the phrases.

use super::text::Part;

/// The pattern for one word of a banned phrase.
enum Word {
    /// This word.
    Is(&'static str),
    /// Any word that starts with this text.
    Starts(&'static str),
    /// Any of these words.
    AnyOf(&'static [&'static str]),
}

use Word::{AnyOf, Is, Starts};

/// The banned phrases.
const PHRASES: &[&[Word]] = &[
    &[AnyOf(&["whoever", "whom", "whatever", "whichever"])],
    &[AnyOf(&["nobody", "somebody", "anybody"])],
    &[Is("so"), Is("many")],
    &[Is("as"), AnyOf(&["often", "many"]), Is("as")],
    &[AnyOf(&["is", "are"]), Is("told")],
    &[Is("of"), AnyOf(&["its", "their"]), Is("own")],
    &[Is("what"), Is("is"), Is("left")],
    &[Is("in"), Is("vain")],
    &[Is("given"), Is("up")],
    &[Starts("foretell")],
    &[Is("no"), Is("such")],
    &[AnyOf(&["likeliest", "unlikeliest"])],
    &[Is("made"), Is("up")],
    &[
        Is("where"),
        AnyOf(&[
            "a", "an", "the", "it", "there", "no", "one", "they", "nothing",
        ]),
    ],
];

/// The banned phrases in a block of prose, each with its line number, counted from 1.
pub(super) fn find(part: &Part) -> Vec<(usize, String)> {
    let words = words(&part.text);
    let mut found = Vec::new();
    for start in 0..words.len() {
        for phrase in PHRASES {
            let Some(window) = words.get(start..start + phrase.len()) else {
                continue;
            };
            let matches = phrase
                .iter()
                .zip(window)
                .all(|(word, (_, text))| match word {
                    Is(word) => word == text,
                    Starts(prefix) => text.starts_with(prefix),
                    AnyOf(words) => words.contains(&text.as_str()),
                });
            if matches {
                let text: Vec<&str> = window.iter().map(|(_, text)| text.as_str()).collect();
                found.push((part.line + window[0].0, text.join(" ")));
            }
        }
    }
    found
}

/// The words of a text in lower case with their line offsets. Words in code spans are left out. An
/// empty word stands for a punctuation mark, so that no phrase matches across it.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut line = 0;
    let mut code = false;
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        match c {
            '`' => code = !code,
            _ if code => {}
            _ if c.is_alphanumeric() || c == '_' || c == '\'' => word.extend(c.to_lowercase()),
            _ => {
                if !word.is_empty() {
                    words.push((line, std::mem::take(&mut word)));
                }
                if matches!(c, '.' | ',' | ';' | ':' | '(' | ')' | '?' | '!') {
                    words.push((line, String::new()));
                }
            }
        }
        if c == '\n' {
            line += 1;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::text::PartKind;
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        find(&Part {
            kind: PartKind::Prose,
            line: 5,
            text: text.to_string(),
        })
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_any_case() {
        let expected = [(5, "where the".to_string()), (6, "of its own".to_string())];
        assert_eq!(found("Where\nthe file has a folder of its\nown"), expected);
    }

    #[test]
    fn code_and_punctuation_break_phrases() {
        assert_eq!(found("`where the` is SQL; where, the reader asks"), []);
    }
}
