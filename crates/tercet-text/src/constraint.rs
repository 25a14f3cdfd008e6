//! Constrained decoding: a [`Constraint`] restricts the next token of a generator.
//!
//! [`GrammarCompiler`] compiles JSON schemas, regular expressions and context-free grammars to constraints
//! (feature `grammar`).

#[cfg(feature = "grammar")]
pub(crate) mod exact_numbers;
#[cfg(feature = "grammar")]
mod gbnf;
#[cfg(feature = "grammar")]
mod generation_schema;
#[cfg(feature = "grammar")]
mod grammar;
#[cfg(feature = "grammar")]
pub(crate) mod limits;
#[cfg(feature = "grammar")]
pub use exact_numbers::exact_schema;
#[cfg(feature = "grammar")]
pub use generation_schema::{GenerationSchema, SchemaError, SchemaNote};
#[cfg(feature = "grammar")]
pub use grammar::{Grammar, GrammarCompiler};

/// Error of creating or applying a constraint.
///
/// ```
/// use tercet_text::constraint::ConstraintError;
/// let error = ConstraintError::Stuck { reason: "the grammar has ended".to_string() };
/// assert!(error.to_string().ends_with("no further token: the grammar has ended"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The schema, expression or grammar is invalid or uses an unsupported feature.
    #[error("unsupported or invalid {kind}: {reason}")]
    Grammar {
        /// `JSON schema`, `regular expression`, `grammar` or `GBNF grammar`.
        kind: &'static str,
        /// Cause reported by the grammar compiler.
        reason: String,
    },
    /// The tokenizer cannot map its tokens to bytes.
    #[error("constraints are not supported for this tokenizer: it cannot map tokens to bytes")]
    Tokenizer,
    /// The model has no end token.
    #[error("constraints are not supported for this model: it has no end token")]
    NoEnd,
    /// No token satisfies the constraint.
    #[error("the constraint allows no further token: {reason}")]
    Stuck {
        /// Cause reported by the grammar matcher.
        reason: String,
    },
}

/// The reason of a grammar error, without its prefix.
#[cfg(feature = "grammar")]
fn reason_of(error: ConstraintError) -> String {
    match error {
        ConstraintError::Grammar { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// Restriction of the next token. The sampler calls `mask` before each token, and `take` with the
/// sampled token.
///
/// ```
/// use tercet_text::constraint::{Constraint, ConstraintError};
/// struct Below(usize); // a bound of the allowed tokens
/// impl Constraint for Below {
///     fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
///         logits[self.0..].fill(f32::NEG_INFINITY);
///         Ok(())
///     }
///     fn take(&mut self, _token: u32) -> Result<(), ConstraintError> { Ok(()) }
/// }
/// let mut logits = [0.5, 0.1, 0.9];
/// Below(2).mask(&mut logits)?;
/// assert_eq!(logits, [0.5, 0.1, f32::NEG_INFINITY]);
/// # Ok::<(), ConstraintError>(())
/// ```
pub trait Constraint: Send {
    /// Sets the logits of disallowed tokens to minus infinity.
    ///
    /// # Errors
    /// [`ConstraintError::Stuck`] if no token is allowed.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// Advances the constraint by the sampled token.
    ///
    /// # Errors
    /// [`ConstraintError::Stuck`] for a token that is not allowed.
    fn take(&mut self, token: u32) -> Result<(), ConstraintError>;
}
