//! Text for Tercet's models: tokenizers, chat templates, answers, grammars and training data.
//!
//! | module | content |
//! |---|---|
//! | [`tokenizer`] | tokenizers, from `tokenizer.json` or the vocabulary of a GGUF file |
//! | [`dataset`] | training data: texts, conversations, labelled texts, pairs, as batches |
//! | [`answer`] | thoughts and calls of tools in answers of language models |
//! | [`constraint`] | generation constrained to a JSON schema, a regular expression or a grammar (feature `grammar`) |
//!
//! All files are untrusted: an invalid one gives a typed error, and limits bound memory and time.

pub mod answer;
pub mod constraint;
pub mod dataset;
pub mod tokenizer;

pub use tokenizer::{StreamDecoder, TokenizedBatch, TokenizedRow, Tokenizer, TokenizerError};
