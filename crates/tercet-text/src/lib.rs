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

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    #[cfg(feature = "grammar")]
    pub use crate::constraint::exact_numbers::MAX_I64_FLOAT;
    #[cfg(feature = "grammar")]
    pub use crate::constraint::limits::{MAX_BYTES, check_lark, check_regex, check_schema};
    pub use crate::dataset::corpus::piece_len;
    pub use crate::dataset::template::spoken::TemplateTextBuilder;
    pub use crate::tokenizer::pre_tokenizers::{PreTokenizer, TABLE as PRE_TOKENIZERS};
    pub use crate::tokenizer::stream::take_complete;
    pub use crate::tokenizer::trie::Trie;
}
