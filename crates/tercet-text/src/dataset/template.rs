//! Chat templates: the subset of Jinja that they use, with resource limits.
//!
//! A template comes with a model and is untrusted. [`TemplateLimits`] bounds every rendering: each
//! evaluation step and each allocated byte is counted. The nesting of expressions, values and calls
//! is bounded as well. Counting steps alone is not enough: sixty times `{% set x = x ~ x %}` takes
//! few steps but exponential memory.
//!
//! The language is Jinja 2 as configured by `transformers`: `trim_blocks`, `lstrip_blocks`, loop
//! controls, `{% generation %}`, `raise_exception`, `strftime_now`, and `tojson` without HTML
//! escapes. The language has `if`, `for`, `set`, `macro`, `filter`, `generation`, `raw`, `break`
//! and `continue`. Other statements (`include`, `extends`, `call`, recursive loops, ...) are a
//! parse error. Unknown filters, tests and methods are an error at evaluation.
//!
//! Tuples are lists.
//!
//! | file | content |
//! |---|---|
//! | `lexer.rs` | text, tags and their tokens; white space around tags |
//! | `parser.rs`, `expressions.rs` | the syntax tree |
//! | `value.rs` | values, with Python's formatting and comparison |
//! | `eval.rs`, `operators.rs` | evaluation of statements and expressions |
//! | `spoken.rs` | texts that record which parts come from people |
//! | `compare.rs`, `text.rs` | order and equality; values as text and JSON |
//! | `filters.rs`, `methods.rs`, `functions.rs` | filters, methods and functions |

mod compare;
mod eval;
mod expressions;
mod filters;
mod functions;
mod lexer;
mod methods;
mod operators;
mod parser;
mod sequence_filters;
pub(crate) mod spoken;
mod text;
mod text_filters;
mod value;

use std::ops::Range;

pub use spoken::TemplateText;
pub use value::TemplateValue;

use parser::{TemplateExpr, TemplateNode};

/// Maximum template size, in bytes (the longest known templates have about 20 kB).
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// The reason why a template is rejected or a rendering fails.
///
/// ```
/// use tercet_text::dataset::template::{Template, TemplateError, TemplateLimits};
/// let template = Template::parse("{{ raise_exception('roles must alternate') }}")?;
/// let error = template.render(&[], 0, TemplateLimits::default()).unwrap_err();
/// let TemplateError::Raised { message } = error else { panic!("another error") };
/// assert_eq!(message, "roles must alternate");
/// # Ok::<(), TemplateError>(())
/// ```
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
    /// The source is not valid Jinja.
    #[error("line {line} of the chat template: {reason}")]
    Syntax { line: usize, reason: String },
    /// The source uses a Jinja feature that is not supported.
    #[error("line {line} of the chat template: {what} is not supported")]
    Unsupported { line: usize, what: String },
    /// An operation failed during rendering.
    #[error("line {line} of the chat template: {reason}")]
    Failed { line: usize, reason: String },
    /// The template raised an error about the messages (`raise_exception`).
    #[error("the chat template rejects the messages: {message}")]
    Raised { message: String },
    /// A limit of [`TemplateLimits`] was reached.
    #[error("line {line} of the chat template: rendering exceeds the limit of {limit} {what}")]
    Limit {
        line: usize,
        what: &'static str,
        limit: u64,
    },
}

/// Resource limits of one rendering.
///
/// ```
/// use tercet_text::dataset::template::{Template, TemplateError, TemplateLimits};
/// let template = Template::parse("{% for i in range(1000) %}{{ i }}{% endfor %}")?;
/// let limits = TemplateLimits { steps: 100, ..TemplateLimits::default() };
/// let error = template.render(&[], 0, limits).unwrap_err();
/// assert!(matches!(error, TemplateError::Limit { .. }));
/// # Ok::<(), TemplateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Maximum number of steps: evaluations of a node, loop items, and one step per 64 bytes of
    /// text processed.
    pub steps: u64,
    /// Maximum number of allocated bytes of texts and values, including discarded ones.
    pub bytes: u64,
    /// Maximum nesting depth of expressions, statements and calls.
    pub depth: u32,
}

impl Default for TemplateLimits {
    /// Limits for conversations of some megabytes; a template that reaches them ends within about a
    /// second.
    fn default() -> TemplateLimits {
        TemplateLimits {
            steps: 5_000_000,
            bytes: 512 << 20,
            depth: 200,
        }
    }
}

/// The result of a rendering.
///
/// ```
/// use tercet_text::dataset::template::{RenderedTemplate, Template, TemplateLimits};
/// let template = Template::parse("Answer: {% generation %}42{% endgeneration %}")?;
/// let rendered: RenderedTemplate = template.render(&[], 0, TemplateLimits::default())?;
/// assert_eq!(&rendered.text[rendered.generated[0].clone()], "42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedTemplate {
    /// The rendered text.
    pub text: String,
    /// Byte ranges in `text` of the results of `{% generation %}` blocks, in order.
    pub generated: Vec<Range<usize>>,
    /// Byte ranges in `text` that come from literal values ([`TemplateValue::into_literal`]), such
    /// as message content, in order. Special tokens spelled in these ranges are ordinary text.
    pub literal: Vec<Range<usize>>,
}

/// A parsed template.
///
/// ```
/// use tercet_text::dataset::template::{Template, TemplateLimits, TemplateValue};
/// let template = Template::parse("Hello {{ name }}!")?;
/// let variables = [("name", TemplateValue::text("Ada"))];
/// let rendered = template.render(&variables, 0, TemplateLimits::default())?;
/// assert_eq!(rendered.text, "Hello Ada!");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Template {
    nodes: Vec<TemplateNode>,
    /// All expressions; nodes and other expressions refer to them by index.
    exprs: Vec<TemplateExpr>,
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

    /// Whether the template has `{% generation %}` blocks.
    #[must_use]
    pub fn has_generation(&self) -> bool {
        self.generation
    }

    /// Renders the template with these variables. `now` is the time that `strftime_now` prints, in
    /// seconds since 1970, UTC.
    ///
    /// # Errors
    /// [`TemplateError`], all but [`TemplateError::TooLong`].
    pub fn render(
        &self,
        variables: &[(&str, TemplateValue)],
        now: i64,
        limits: TemplateLimits,
    ) -> Result<RenderedTemplate, TemplateError> {
        eval::render(self, variables, now, limits)
    }
}

/// An excerpt of a template for an error message, truncated.
fn clip(text: &str) -> String {
    tercet_files::clip(text)
}
