//! Grammar constraints with the crate `llguidance`: they allow only tokens that continue a text of
//! the grammar's language.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::{Constraint, ConstraintError, GenerationSchema, SchemaNote, gbnf, limits, reason_of};
use crate::tokenizer::Tokenizer;

/// Maximum bytes of a token; longer tokens are never allowed.
const MAX_TOKEN_BYTES: usize = 1024;

/// Maximum states of a grammar's lexer, of one to two kilobytes each.
const MAX_LEXER_STATES: usize = 50_000;

/// Stack of the thread that compiles grammars, in bytes. The system provides only the pages that
/// are used.
#[cfg(not(target_family = "wasm"))]
const STACK_BYTES: usize = 256 << 20;

/// Grammar of the generated text.
///
/// ```
/// use tercet_text::constraint::Grammar;
/// assert_eq!(Grammar::json_schema(r#"{"type": "object"}"#)?, Grammar::json_object());
/// assert!(Grammar::json_schema("{").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// JSON document that matches this schema (JSON Schema drafts 4 to 2020-12). An unsupported
    /// keyword is an error that names it. Objects have only the properties that their schema states,
    /// unless it asks for more ([`GenerationSchema`]).
    JsonSchema(serde_json::Value),
    /// The same, but unsupported keywords have no effect; [`Grammar::notes`] names them.
    LenientJsonSchema(serde_json::Value),
    /// Text that matches this regular expression as a whole (syntax of the crate `regex`, without
    /// assertions).
    Regex(String),
    /// Text of this context-free grammar in Lark notation; the rule `start` matches the whole text.
    Lark(String),
    /// Text of this context-free grammar in GBNF, the notation of llama.cpp; the rule `root` matches
    /// the whole text.
    Gbnf(String),
}

impl Grammar {
    /// Parses a JSON schema.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] if the text is not valid JSON.
    pub fn json_schema(text: &str) -> Result<Grammar, ConstraintError> {
        let schema = serde_json::from_str(text);
        let schema = schema.map_err(|e| ConstraintError::Grammar {
            kind: "JSON schema",
            reason: format!("not JSON: {e}"),
        })?;
        Ok(Grammar::JsonSchema(schema))
    }

    /// Reads a context-free grammar in GBNF or Lark notation. The text is GBNF, the notation of
    /// llama.cpp, if a line starts with `NAME ::=`; then the rule `root` matches the whole text.
    ///
    /// ```
    /// use tercet_text::constraint::Grammar;
    /// let gbnf = Grammar::from_text("root ::= [0-9]+ (\".\" [0-9]+)?")?;
    /// assert!(matches!(gbnf, Grammar::Gbnf(_)));
    /// let error = Grammar::from_text("root ::= digit").unwrap_err();
    /// assert!(error.to_string().contains("line 1, column 10: the rule `digit` is not defined"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] with line and column if GBNF is invalid.
    pub fn from_text(text: &str) -> Result<Grammar, ConstraintError> {
        match gbnf::is_gbnf(text) {
            true => {
                gbnf::to_lark(text, &[])?;
                Ok(Grammar::Gbnf(text.to_string()))
            }
            false => Ok(Grammar::Lark(text.to_string())),
        }
    }

    /// Grammar of any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::JsonSchema(serde_json::json!({"type": "object"}))
    }

    /// The parts of the schema of [`Grammar::LenientJsonSchema`] that have no effect.
    ///
    /// ```
    /// use tercet_text::constraint::Grammar;
    /// let schema = serde_json::json!({"type": "array", "uniqueItems": true});
    /// assert_eq!(Grammar::LenientJsonSchema(schema).notes()[0].path, "/uniqueItems");
    /// ```
    #[must_use]
    pub fn notes(&self) -> Vec<SchemaNote> {
        match self {
            Grammar::LenientJsonSchema(schema) => {
                let made = GenerationSchema::new(schema, false);
                made.map(|made| made.notes).unwrap_or_default()
            }
            Grammar::JsonSchema(_) | Grammar::Regex(_) | Grammar::Lark(_) | Grammar::Gbnf(_) => {
                Vec::new()
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Grammar::JsonSchema(_) | Grammar::LenientJsonSchema(_) => "JSON schema",
            Grammar::Regex(_) => "regular expression",
            Grammar::Lark(_) | Grammar::Gbnf(_) => "grammar",
        }
    }
}

/// Compiles grammars to constraints for the vocabulary of a model.
///
/// # Examples
/// ```no_run
/// use tercet_text::constraint::{Grammar, GrammarCompiler};
/// # use tercet_text::tokenizer::Tokenizer;
/// # fn f(tokenizer: &Tokenizer) -> Result<(), Box<dyn std::error::Error>> {
/// let (eos, vocab) = ([2], 32_000);
/// let grammars = GrammarCompiler::new(tokenizer, &eos, vocab)?;
/// let date = Grammar::Regex(r"\d{4}-\d\d-\d\d".into());
/// let constraint = grammars.constraint(&date)?;
/// # Ok(())
/// # }
/// ```
pub struct GrammarCompiler {
    factory: ParserFactory,
    /// The end tokens.
    ends: Vec<u32>,
}

impl GrammarCompiler {
    /// Creates a compiler for a model with `vocab` logits whose end tokens are `eos`.
    ///
    /// # Errors
    /// [`ConstraintError::Tokenizer`], [`ConstraintError::NoEnd`].
    pub fn new(
        tokenizer: &Tokenizer,
        eos: &[u32],
        vocab: usize,
    ) -> Result<GrammarCompiler, ConstraintError> {
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
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(GrammarCompiler { factory, ends: eos })
    }

    /// Compiles a grammar to a constraint for one sequence.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`].
    pub fn constraint(
        &self,
        grammar: &Grammar,
    ) -> Result<impl Constraint + use<>, ConstraintError> {
        let kind = grammar.kind();
        let refused = |reason| ConstraintError::Grammar { kind, reason };
        let made = deep(|| {
            let top = match grammar {
                Grammar::JsonSchema(schema) => json_grammar(schema, true)?,
                Grammar::LenientJsonSchema(schema) => json_grammar(schema, false)?,
                Grammar::Regex(regex) => {
                    limits::check_regex(regex)?;
                    TopLevelGrammar::from_regex(regex)
                }
                Grammar::Lark(lark) => {
                    limits::check_lark(lark)?;
                    TopLevelGrammar::from_lark(lark.clone())
                }
                Grammar::Gbnf(gbnf) => {
                    let lark = gbnf::to_lark(gbnf, &self.ends).map_err(reason_of)?;
                    limits::check_lark(&lark)?;
                    TopLevelGrammar::from_lark(lark)
                }
            };
            let parser = caught(|| self.factory.create_parser(top))?;
            let mut matcher = Matcher::new(Ok(parser));
            // Compute the first mask at once: a grammar that allows no first token, or exceeds a
            // limit, is then an error here rather than during generation.
            let allowed = caught(|| matcher.compute_mask_or_eos())?;
            match allowed.is_zero() {
                false => Ok(matcher),
                true => Err("no text matches it".to_string()),
            }
        });
        made.map(GrammarMatcher).map_err(refused)
    }
}

/// The grammar of a JSON schema.
fn json_grammar(schema: &serde_json::Value, is_strict: bool) -> Result<TopLevelGrammar, String> {
    let made = GenerationSchema::new(schema, is_strict).map_err(|e| e.to_string())?;
    Ok(TopLevelGrammar::from_json_schema(compact(made.schema)))
}

/// Runs `compile` on a thread with a stack that is large enough for the recursion over the largest
/// accepted grammar.
#[cfg(not(target_family = "wasm"))]
fn deep<T: Send>(compile: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("tercet-grammar".to_string())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, compile);
        match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| Err("its compilation panicked".to_string())),
            Err(e) => Err(format!("cannot start a thread to compile it: {e}")),
        }
    })
}

#[cfg(target_family = "wasm")]
fn deep<T>(compile: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    compile()
}

/// Limits whitespace between JSON tokens to one space. Otherwise a model may generate whitespace
/// without end. A schema that sets its own whitespace rule (`x-guidance`) stays unchanged.
fn compact(mut schema: serde_json::Value) -> serde_json::Value {
    if let Some(object) = schema.as_object_mut() {
        let blanks = || serde_json::json!({"whitespace_pattern": " ?"});
        object.entry("x-guidance").or_insert_with(blanks);
    }
    schema
}

/// Bytes of a token, with a marker for special tokens. The bytes are empty for ids without a token;
/// `None` if the tokenizer cannot map tokens to bytes.
fn word(tokenizer: &Tokenizer, id: u32) -> Option<Vec<u8>> {
    if tokenizer.id_to_token(id).is_none() {
        return Some(Vec::new());
    }
    let (mut bytes, special) = tokenizer.bytes(id)?;
    if special {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    } else if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) && bytes.len() > 1
        || bytes.len() > MAX_TOKEN_BYTES
    {
        bytes.clear();
    }
    Some(bytes)
}

/// Calls `f` and converts an error or a panic to a one-line message.
fn caught<T, E: std::fmt::Display>(f: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(e)) => Err(compiler_message(&e.to_string())),
        Err(_) => Err("its compilation panicked".to_string()),
    }
}

/// A message of the compiler in one line, without its settings, its options and the grammar.
fn compiler_message(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let is_own = |line: &&str| {
        let internal = ["<non-verbose/>", "%json", "NoExtensionBias", "x-guidance"];
        !line.is_empty() && !internal.iter().any(|part| line.contains(part))
    };
    let lines = lines.filter(is_own).map(|line| {
        // `at LINE(COLUMN): ` counts in the grammar that was made from schemas.
        let rest = line
            .strip_prefix("at ")
            .and_then(|rest| rest.split_once("): "));
        match rest {
            Some((place, rest)) if place.chars().all(|c| c.is_ascii_digit() || c == '(') => rest,
            _ => line,
        }
    });
    let lines: Vec<&str> = lines.take(4).collect();
    let line = match lines.is_empty() {
        true => "its size or its form is not supported".to_string(),
        false => lines.join("; "),
    };
    match line.contains("coerce_one_of") {
        true => {
            "alternatives of `oneOf` may overlap, which is not supported; use `anyOf`".to_string()
        }
        false => line,
    }
}

/// State of a grammar constraint for one sequence.
struct GrammarMatcher(Matcher);

impl Constraint for GrammarMatcher {
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
                reason: "all allowed tokens have probability 0".to_string(),
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
