//! The table of pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A name stands for the regular expressions that cut a text into words before BPE merges them,
//! and for two habits of the model's tokenizer: whether a word that is itself a token is taken
//! whole (`ignore_merges`), and whether texts begin with BOS when the file does not say.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

/// How a family of byte-level BPE tokenizers cuts texts.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// Applied one after the other; matches and what lies between them are both kept.
    splits: &'static [&'static str],
    /// Whether the tokenizer composes characters (Unicode NFC) before it cuts.
    nfc: bool,
    pub(super) ignore_merges: bool,
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2"],
        splits: &[GPT2],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["qwen2"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: true,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["starcoder", "refact", "command-r", "smollm", "codeshell"],
        splits: &[r"\p{N}", GPT2],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    // What files get that do not say: punctuation apart, numbers in threes.
    PreTokenizer {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
];

/// The entry for `name`.
pub(super) fn find(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
    TABLE
        .iter()
        .find(|entry| entry.names.contains(&name))
        .ok_or_else(|| TokenizerError::UnsupportedPreTokenizer {
            found: crate::gguf::clip(name),
            supported: TABLE
                .iter()
                .flat_map(|entry| entry.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })
}

impl PreTokenizer {
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then_some(NormalizerWrapper::NFC(NFC))
    }

    /// The splits, then the spelling of bytes as characters.
    pub(super) fn build(&self) -> Result<Sequence, TokenizerError> {
        let mut steps = Vec::with_capacity(self.splits.len() + 1);
        for pattern in self.splits {
            let split = Split::new(
                SplitPattern::Regex((*pattern).to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(TokenizerError::failed("compiling the pre-tokenizer"))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, true, false,
        )));
        Ok(Sequence::new(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_patterns_compile() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|entry| entry.names).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in TABLE {
            entry.build().unwrap();
        }
    }
}
