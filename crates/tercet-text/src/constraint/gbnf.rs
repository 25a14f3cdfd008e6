//! Grammars in GBNF, the notation of llama.cpp, translated to Lark.
//!
//! A GBNF grammar describes characters, whereas the grammar compiler first splits a text into
//! lexemes, greedily. The translation therefore avoids lexemes of which one is the start of another.
//! A grammar without recursion becomes a single lexeme, a regular expression. In a recursive
//! grammar, each character is a lexeme of its own.

mod lark;
mod parser;

use super::ConstraintError;

/// An element of a sequence on the right side of a GBNF rule.
#[derive(Clone, Debug, PartialEq)]
enum GbnfItem {
    /// A literal; not empty.
    Text(Vec<char>),
    /// Ranges of characters, both ends included.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// A use of the rule with this index.
    Rule(usize),
    /// A token of the vocabulary, in Lark notation.
    Token(String),
    /// Any token but this one and the end tokens.
    OtherToken(u32),
    Group(GbnfAlternatives),
    /// An item, its minimum and its maximum number of repetitions.
    Repeat(Box<GbnfItem>, u32, Option<u32>),
}

/// Alternative sequences.
type GbnfAlternatives = Vec<Vec<GbnfItem>>;

/// The rules of a grammar.
#[derive(Debug, Default)]
struct GbnfGrammar {
    rules: Vec<GbnfAlternatives>,
    root: usize,
}

/// Whether a text is in GBNF rather than in Lark notation: a line starts with `NAME ::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.split_once("::=").map(|(name, _)| name.trim());
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        name.is_some_and(|name| !name.is_empty() && name.chars().all(known))
    })
}

/// Translates a grammar to Lark notation, for a vocabulary with these end tokens.
///
/// # Errors
/// [`ConstraintError::Grammar`] with line and column.
pub(super) fn to_lark(text: &str, ends: &[u32]) -> Result<String, ConstraintError> {
    Ok(lark::write(&parser::parse(text)?, ends))
}
