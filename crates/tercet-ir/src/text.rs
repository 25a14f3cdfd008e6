//! The text form of graphs: readable, complete, and unchanged after a round trip.
//!
//! ```text
//! graph {
//!   %0 = input{name="x", ty=f32[s, 4]}() : f32[s, 4]
//!   %1 = top_k{k=2, axis=1, largest=true}(%0) : f32[s, 2], i32[s, 2]
//!   return %1 as "values", %1.1 as "indices"
//! }
//! ```
//!
//! `docs/reference/text-format.md` contains the grammar and the syntax of every operator. `Display`
//! of [`Graph`](crate::Graph) prints a graph. [`parse`] and `str::parse` read a graph;
//! [`parse_with`] also supports custom operators.

mod lex;
mod parse;
mod print;

pub use parse::{TextError, parse, parse_literal, parse_with};

const UTF_16: &str = "the text is UTF-16 or binary; save it as UTF-8";

/// Decodes the bytes of a text file.
///
/// # Errors
/// [`TextError`] at the first byte that is not UTF-8. For UTF-16 the message names that encoding.
pub fn decode(bytes: &[u8]) -> Result<&str, TextError> {
    let error = |line: usize, column: usize, message: &str| TextError {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
        message: message.to_string(),
    };
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        return Err(error(1, 1, UTF_16));
    }
    std::str::from_utf8(bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let line = before.lines().count().max(1);
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let line = line + usize::from(before.ends_with('\n'));
        error(line, column, "the text is not UTF-8")
    })
}
