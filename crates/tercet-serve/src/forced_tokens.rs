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
pub(crate) struct ForcedTokens {
    /// The remaining tokens, last one first.
    tokens: Vec<u32>,
    then: Option<Box<dyn Constraint>>,
}

impl ForcedTokens {
    pub(crate) fn new(mut tokens: Vec<u32>, then: Option<Box<dyn Constraint>>) -> ForcedTokens {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn tokens_are_allowed_in_their_order() {
        let mut forced = ForcedTokens::new(vec![2, 0], None);
        let mut masked = |token: u32| {
            let mut logits = [0.5, f32::NAN, f32::NEG_INFINITY];
            forced.mask(&mut logits).unwrap();
            forced.take(token).unwrap();
            logits
        };
        let none = f32::NEG_INFINITY;
        assert_eq!(masked(2), [none, none, 0.0]);
        assert_eq!(masked(0), [0.0, none, none]);
        assert_eq!(masked(0)[0], 0.5);
    }
}
