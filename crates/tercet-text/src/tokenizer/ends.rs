//! Tokens that end a generated text, by their names.
//!
//! A model file names one or a few end tokens, and models also generate other end tokens of the
//! vocabulary: a chat model that continues a plain text ends with the token of its base model. The
//! names are those that llama.cpp knows, and a few of other families.

use tokenizers::{AddedToken, Tokenizer as Inner};

use super::sentencepiece::SentencePieceKind;
use super::{Tokenizer, TokenizerEngine};

/// Names of end tokens that are never tokens of ordinary text. A token with such a name ends a text
/// even if the vocabulary marks them as user-defined instead of special.
const UNMISTAKABLE: [&str; 24] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|eos|>",
    "<|eos_token|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[e~[",
];

/// Names that end a text only if the vocabulary marks them as special: other vocabularies have them
/// for HTML and for code.
const IF_SPECIAL: [&str; 12] = [
    "</s>",
    "<eos>",
    "[EOS]",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<fim-pad>",
    "<fim_pad>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<EOS_TOKEN>",
];

/// Whether a token with this name is an end token in every vocabulary.
pub(super) fn is_unmistakable(name: &str) -> bool {
    UNMISTAKABLE.contains(&name)
}

/// Marks added tokens with the name of an end token as special, because some tokenizers do not.
pub(super) fn make_special(inner: &mut Inner) {
    let added = inner.get_added_tokens_decoder().into_values();
    let ordinary = added.filter(|token| !token.special && is_unmistakable(&token.content));
    let special: Vec<AddedToken> = ordinary.map(|token| token.special(true)).collect();
    if !special.is_empty() {
        inner.add_special_tokens(&special);
    }
}

impl Tokenizer {
    /// The special tokens of the vocabulary that end a generated text, by their names: end of text,
    /// of a turn, of a message, of a file.
    #[must_use]
    pub fn end_ids(&self) -> Vec<u32> {
        let special = |name: &&'static str| {
            let id = self.token_to_id(name)?;
            let is_special = match &self.engine {
                TokenizerEngine::Crate { .. } => self.is_special(id),
                TokenizerEngine::Pieces(model) => matches!(
                    model.kind(id),
                    Some(SentencePieceKind::Control | SentencePieceKind::Unknown)
                ),
            };
            is_special.then_some((*name, id))
        };
        let names = UNMISTAKABLE.iter().chain(&IF_SPECIAL);
        let mut found: Vec<(&'static str, u32)> = names.filter_map(special).collect();
        let has = |name: &str| found.iter().any(|(other, _)| *other == name);
        // In these formats `<|end|>` ends a part of the answer, and other parts follow.
        let has_parts =
            has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>");
        // Vocabularies with this token have `</s>` for HTML.
        let has_html = has("<|tool_response>");
        found.retain(|(name, _)| !(*name == "<|end|>" && has_parts || *name == "</s>" && has_html));
        found.into_iter().map(|(_, id)| id).collect()
    }
}
