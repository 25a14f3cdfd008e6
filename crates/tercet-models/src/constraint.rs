//! What a text may be, token by token: a [`Constraint`] on a [`Generator`](crate::Generator).
//!
//! [`Grammars`] makes constraints of JSON schemas, regular expressions and context-free grammars (feature `grammar`).

#[cfg(feature = "grammar")]
mod grammar;
#[cfg(feature = "grammar")]
pub use grammar::{Grammar, Grammars};

/// Why a text cannot be constrained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A schema, expression or grammar that is not one, or has what is not supported.
    #[error("the {kind} is refused: {reason}")]
    Grammar {
        /// `JSON schema`, `regular expression`, `grammar`.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokens of the model have no bytes of their own.
    #[error("texts of this tokenizer cannot be constrained: its tokens do not stand for bytes")]
    Tokenizer,
    /// No token ends a text.
    #[error("texts of this model cannot be constrained: it has no token that ends a text")]
    NoEnd,
    /// The constraint does not go on.
    #[error("the constraint does not allow any token here: {reason}")]
    Stuck {
        /// Why.
        reason: String,
    },
}

/// Which tokens may come next. It is asked before each token that is chosen, and told which one was.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not come next to minus infinity.
    ///
    /// # Errors
    /// [`ConstraintError::Stuck`] where no token may.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// [`ConstraintError::Stuck`] for a token that was not allowed.
    fn take(&mut self, token: u32) -> Result<(), ConstraintError>;
}
