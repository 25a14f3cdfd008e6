//! Chat templates: the part of Jinja that they are written in, with bounds.
//!
//! A template comes with a model, that is, from anyone. So whatever it does ends: every step of
//! a rendering is counted, every byte that it makes is counted, and the counts are bounded
//! ([`Limits`]); nesting is bounded as well, of expressions, values and calls. An engine whose
//! steps alone are counted does not do: sixty times `{% set x = x ~ x %}` are few steps.
//!
//! The language is that of Jinja 2 as `transformers` sets it up (`trim_blocks`, `lstrip_blocks`,
//! loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, `tojson` without
//! escaping for HTML). There is `if`, `for`, `set`, `macro`, `filter`, `generation`, `raw`,
//! `break` and `continue`; what is not there (`include`, `extends`, `call`, recursive loops, ...) is
//! an error when the template is read, or, for filters, tests and methods, when it gets there.
//!
//! Tuples are lists here.
//!
//! | file | does |
//! |---|---|
//! | `lexer.rs` | text, tags and their tokens; white space around tags |
//! | `parser.rs`, `expressions.rs` | the tree |
//! | `value.rs` | values, and how Python prints and compares them |
//! | `eval.rs`, `operators.rs` | statements; expressions |
//! | `compare.rs`, `text.rs` | order and equality; values as text and JSON |
//! | `filters.rs`, `methods.rs`, `functions.rs` | what expressions can call |

mod compare;
mod eval;
mod expressions;
mod filters;
mod functions;
mod lexer;
mod methods;
mod operators;
mod parser;
mod text;
mod value;

use std::ops::Range;

pub use value::Value;

use parser::{Expr, Node};

/// A template longer than this is refused (the longest real ones have some 20 kB).
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Why a template was refused, or a rendering ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum TemplateError {
    /// The source is too long.
    #[error("the chat template has {len} bytes, more than the {max} that one may have")]
    TooLong { len: usize, max: usize },
    /// The source is no Jinja.
    #[error("line {line} of the chat template: {reason}")]
    Syntax { line: usize, reason: String },
    /// Jinja has it, this does not.
    #[error("line {line} of the chat template: {what} is not supported")]
    Unsupported { line: usize, what: String },
    /// An operation failed while rendering.
    #[error("line {line} of the chat template: {reason}")]
    Failed { line: usize, reason: String },
    /// The template itself refused the messages (`raise_exception`).
    #[error("the chat template refuses the messages: {message}")]
    Raised { message: String },
    /// A bound of [`Limits`] was reached.
    #[error("line {line} of the chat template: rendering takes more than {limit} {what}")]
    Limit {
        line: usize,
        what: &'static str,
        limit: u64,
    },
}

/// What one rendering may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps: evaluations of a node, items of a loop, and one for each 64 bytes worked on.
    pub steps: u64,
    /// Bytes of text and values made, those that are dropped again included.
    pub bytes: u64,
    /// Nesting of expressions, statements and calls.
    pub depth: u32,
}

impl Default for Limits {
    /// Enough for conversations of some megabytes; a template that uses all of it ends within a
    /// second or so.
    fn default() -> Limits {
        Limits {
            steps: 5_000_000,
            bytes: 512 << 20,
            depth: 200,
        }
    }
}

/// A rendered template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where in `text` the results of `{% generation %}` blocks lie, in bytes, in order.
    pub generated: Vec<Range<usize>>,
}

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template {
    nodes: Vec<Node>,
    /// All expressions; nodes and expressions name others by their place here.
    exprs: Vec<Expr>,
    generation: bool,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError::TooLong`], [`TemplateError::Syntax`], [`TemplateError::Unsupported`].
    pub fn parse(source: &str) -> Result<Template, TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong {
                len: source.len(),
                max: MAX_TEMPLATE_BYTES,
            });
        }
        let pieces = lexer::lex(source)?;
        parser::parse(pieces)
    }

    /// Whether there are `{% generation %}` blocks.
    #[must_use]
    pub fn has_generation(&self) -> bool {
        self.generation
    }

    /// Renders with these variables; `now` is what `strftime_now` prints, seconds since 1970 in
    /// UTC.
    ///
    /// # Errors
    /// [`TemplateError`], all but [`TemplateError::TooLong`].
    pub fn render(
        &self,
        variables: &[(&str, Value)],
        now: i64,
        limits: Limits,
    ) -> Result<Rendered, TemplateError> {
        eval::render(self, variables, now, limits)
    }
}

/// A text of the template for a message, cut short.
fn clip(text: &str) -> String {
    crate::gguf::clip(text)
}
