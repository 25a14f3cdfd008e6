//! Parts of the library: some tests use items of `tercet_text::internals`.

mod answer_parser;
mod batch_sampler;
mod corpus;
#[cfg(feature = "grammar")]
mod exact_numbers;
#[cfg(feature = "grammar")]
mod limits;
mod pre_tokenizers;
mod stream;
mod template_text;
mod trie;
