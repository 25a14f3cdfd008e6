//! Completions that begin with given tokens: the model reads a prompt token by token, so that each
//! token of the prompt has logits.

use tercet_models::constraint::{Constraint, ConstraintError};

/// Makes a token the only possible one, even if the model considers it impossible.
pub(crate) fn mask_all_but(token: u32, logits: &mut [f32]) {
    logits.fill(f32::NEG_INFINITY);
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = 0.0;
    }
}

/// A constraint that only allows given tokens, and then those of another constraint.
#[doc(hidden)]
pub struct ForcedTokens {
    /// The remaining tokens, last one first.
    tokens: Vec<u32>,
    then: Option<Box<dyn Constraint>>,
}

impl ForcedTokens {
    /// Allows these tokens in their order, and then those of `then`.
    pub fn new(mut tokens: Vec<u32>, then: Option<Box<dyn Constraint>>) -> ForcedTokens {
        tokens.reverse();
        ForcedTokens { tokens, then }
    }
}

impl Constraint for ForcedTokens {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        match (self.tokens.last(), &mut self.then) {
            (Some(&token), _) => {
                mask_all_but(token, logits);
                Ok(())
            }
            (None, Some(then)) => then.mask(logits),
            (None, None) => Ok(()),
        }
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        match (self.tokens.pop(), &mut self.then) {
            (Some(_), _) | (None, None) => Ok(()),
            (None, Some(then)) => then.take(token),
        }
    }
}
