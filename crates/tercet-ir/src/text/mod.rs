//! The text form of graphs: readable, complete, and the same after a round trip.
//!
//! ```text
//! graph {
//!   %0 = input{name="x", ty=f32[s, 4]}() : f32[s, 4]
//!   %1 = top_k{k=2, axis=1, largest=true}(%0) : f32[s, 2], i32[s, 2]
//!   return %1 as "values", %1.1 as "indices"
//! }
//! ```
//!
//! `docs/text-form.md` has the grammar and the spelling of every operator. Printing is `Display` of
//! [`Graph`](crate::Graph); parsing is [`parse`], or `str::parse`, or [`parse_with`] where there are operators from
//! outside.

mod lex;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use parse::{TextError, parse, parse_with};
