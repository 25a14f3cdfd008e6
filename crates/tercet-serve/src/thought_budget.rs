//! Thoughts of at most a number of tokens: the model is then made to write the marker that ends them.

use std::sync::Arc;

use tercet_models::Tokenizer;
use tercet_models::answer::AnswerParser;
use tercet_models::constraint::{Constraint, ConstraintError};

use crate::forced_tokens::mask_all_but;

/// A limit of the tokens of thoughts, and the parser that finds them.
#[derive(Clone, Debug)]
pub(crate) struct ThoughtLimit {
    pub(crate) tokens: usize,
    pub(crate) parser: AnswerParser,
    /// Whether the other constraint of the answer begins after the thought, in place of at the first token.
    pub(crate) is_before_constraint: bool,
}

/// A constraint that ends thoughts at a limit, and otherwise allows the tokens of another constraint.
pub(crate) struct ThoughtBudget {
    tokenizer: Arc<Tokenizer>,
    /// Special tokens that are part of the text.
    spelled: Arc<[u32]>,
    parser: AnswerParser,
    /// Number of tokens that thoughts may still have.
    left: usize,
    /// The remaining tokens of the marker, last one first.
    marker: Vec<u32>,
    then: Option<Box<dyn Constraint>>,
    /// Whether `then` waits for the end of the thought.
    waits: bool,
}

impl ThoughtBudget {
    pub(crate) fn new(
        limit: ThoughtLimit,
        (tokenizer, spelled): (&Arc<Tokenizer>, &Arc<[u32]>),
        then: Option<Box<dyn Constraint>>,
    ) -> ThoughtBudget {
        let mut budget = ThoughtBudget {
            tokenizer: Arc::clone(tokenizer),
            spelled: Arc::clone(spelled),
            parser: limit.parser,
            left: limit.tokens,
            marker: Vec::new(),
            then,
            waits: limit.is_before_constraint,
        };
        budget.waits &= budget.parser.open_thought().is_some();
        budget.end_thought();
        budget
    }

    /// Starts to write the marker if the answer is in a thought and nothing is left.
    fn end_thought(&mut self) {
        let Some(marker) = self.parser.open_thought() else {
            return;
        };
        if self.left == 0 && self.marker.is_empty() {
            // A marker that cannot be encoded does not end a thought.
            self.marker = self.tokenizer.encode(marker, false).unwrap_or_default();
            self.marker.reverse();
        }
    }

    /// The text of a token for the parser. Markers consist of characters of one byte, so other
    /// characters may be cut.
    fn text(&self, token: u32) -> String {
        match self.tokenizer.bytes(token) {
            Some((bytes, false)) => String::from_utf8_lossy(&bytes).into_owned(),
            _ if self.spelled.contains(&token) => {
                self.tokenizer.id_to_token(token).unwrap_or_default()
            }
            _ => String::new(),
        }
    }
}

impl Constraint for ThoughtBudget {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        match (self.marker.last(), &mut self.then) {
            (Some(&token), _) => {
                mask_all_but(token, logits);
                Ok(())
            }
            (None, Some(then)) if !self.waits => then.mask(logits),
            (None, _) => Ok(()),
        }
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        let is_marker = self.marker.pop().is_some();
        if !is_marker && self.parser.open_thought().is_some() {
            self.left = self.left.saturating_sub(1);
        }
        let text = self.text(token);
        self.parser.push(&text);
        // After its last token, a marker has ended the thought.
        if !is_marker {
            self.end_thought();
        }
        if self.waits {
            // The token that ends the thought is not part of the constrained answer.
            self.waits = self.parser.open_thought().is_some();
            return Ok(());
        }
        match &mut self.then {
            Some(then) => then.take(token),
            None => Ok(()),
        }
    }
}
