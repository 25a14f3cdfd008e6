//! Constraints by grammars, over the crate `llguidance`: which tokens of a vocabulary continue a text of a language.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::{Constraint, ConstraintError};
use crate::tokenizer::Tokenizer;

/// Longer tokens are never chosen.
const MOST_TOKEN_BYTES: usize = 1024;

/// What a text has to be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON document of this schema (JSON Schema, drafts 4 to 2020-12; what is not supported is refused by name).
    JsonSchema(serde_json::Value),
    /// A text that this regular expression matches as a whole (the syntax of the crate `regex`, without assertions).
    Regex(String),
    /// A text of this context-free grammar, in Lark's notation; its rule `start` is the whole text.
    Lark(String),
}

impl Grammar {
    /// Of the text of a JSON schema.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] where it is not JSON.
    pub fn json_schema(text: &str) -> Result<Grammar, ConstraintError> {
        let schema = serde_json::from_str(text);
        let schema = schema.map_err(|e| ConstraintError::Grammar {
            kind: "JSON schema",
            reason: format!("not JSON: {e}"),
        })?;
        Ok(Grammar::JsonSchema(schema))
    }

    /// Any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::JsonSchema(serde_json::json!({"type": "object"}))
    }

    fn kind(&self) -> &'static str {
        match self {
            Grammar::JsonSchema(_) => "JSON schema",
            Grammar::Regex(_) => "regular expression",
            Grammar::Lark(_) => "grammar",
        }
    }
}

/// Makes constraints for the vocabulary of a model.
///
/// # Examples
/// ```no_run
/// use tercet_models::constraint::{Grammar, Grammars};
/// # fn f(tokenizer: &tercet_models::Tokenizer, mut generator: tercet_models::Generator) -> Result<(), Box<dyn std::error::Error>> {
/// let (eos, vocab) = ([2], 32_000);
/// let grammars = Grammars::new(tokenizer, &eos, vocab)?;
/// let date = Grammar::Regex(r"\d{4}-\d\d-\d\d".into());
/// generator.set_constraint(Some(Box::new(grammars.constraint(&date)?)))?;
/// # Ok(())
/// # }
/// ```
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// For a model with logits for `vocab` tokens, of which `eos` end a text.
    ///
    /// # Errors
    /// [`ConstraintError::Tokenizer`], [`ConstraintError::NoEnd`].
    pub fn new(
        tokenizer: &Tokenizer,
        eos: &[u32],
        vocab: usize,
    ) -> Result<Grammars, ConstraintError> {
        let eos: Vec<u32> = eos
            .iter()
            .copied()
            .filter(|&t| (t as usize) < vocab)
            .collect();
        let (Some(&end), Ok(count)) = (eos.first(), u32::try_from(vocab)) else {
            return Err(ConstraintError::NoEnd);
        };
        let words = (0..count).map(|id| word(tokenizer, id));
        let words: Option<Vec<Vec<u8>>> = words.collect();
        let words = words.ok_or(ConstraintError::Tokenizer)?;
        let made = caught(|| {
            let trie = TokTrie::from(&TokRxInfo::new(count, end), &words).with_eos_tokens(&eos);
            ParserFactory::new_simple(&(Arc::new(ApproximateTokEnv::new(trie)) as _))
        });
        let mut factory = made.map_err(|reason| ConstraintError::Grammar {
            kind: "vocabulary",
            reason,
        })?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Grammars { factory })
    }

    /// A constraint for one text.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`].
    pub fn constraint(
        &self,
        grammar: &Grammar,
    ) -> Result<impl Constraint + use<>, ConstraintError> {
        let top = match grammar {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(compact(schema)),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let parser = caught(|| self.factory.create_parser(top));
        let parser = parser.map_err(|reason| ConstraintError::Grammar {
            kind: grammar.kind(),
            reason,
        })?;
        Ok(Matching(Matcher::new(Ok(parser))))
    }
}

/// The schema of documents without blanks between their parts but one after commas and colons: a model that writes blanks
/// between them may never end. A schema that says otherwise (`x-guidance`) is left as it is.
fn compact(schema: &serde_json::Value) -> serde_json::Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        let blanks = || serde_json::json!({"whitespace_pattern": " ?"});
        object.entry("x-guidance").or_insert_with(blanks);
    }
    schema
}

/// The bytes of a token; nothing for one that no text has, and special tokens marked as such. `None` where the tokenizer
/// does not say.
fn word(tokenizer: &Tokenizer, id: u32) -> Option<Vec<u8>> {
    if tokenizer.id_to_token(id).is_none() {
        return Some(Vec::new());
    }
    let (mut bytes, special) = tokenizer.bytes(id)?;
    if special {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    } else if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) && bytes.len() > 1
        || bytes.len() > MOST_TOKEN_BYTES
    {
        bytes.clear();
    }
    Some(bytes)
}

/// What `f` gives; its error, or what it panicked with, in one line.
fn caught<T, E: std::fmt::Display>(f: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let line = |text: &dyn std::fmt::Display| {
        let text = text.to_string();
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        lines.take(4).collect::<Vec<_>>().join("; ")
    };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(e)) => Err(line(&e)),
        Err(_) => Err("its compilation panicked".to_string()),
    }
}

/// A text on its way.
struct Matching(Matcher);

impl Constraint for Matching {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = caught(|| self.0.compute_mask_or_eos());
        let allowed = allowed.map_err(|reason| ConstraintError::Stuck { reason })?;
        let mut any = false;
        for (token, logit) in logits.iter_mut().enumerate() {
            match token < allowed.len() && allowed.get(token) {
                true => any |= *logit > f32::NEG_INFINITY,
                false => *logit = f32::NEG_INFINITY,
            }
        }
        match any {
            true => Ok(()),
            false => Err(ConstraintError::Stuck {
                reason: "all that would go on has no probability".to_string(),
            }),
        }
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.0.is_stopped() {
            return Ok(()); // the token that ends the text
        }
        let taken = caught(|| self.0.consume_token(token));
        taken.map_err(|reason| ConstraintError::Stuck { reason })
    }
}
