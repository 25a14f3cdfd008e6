//! Prompts for the text between a prefix and a suffix, for models that were trained to fill it in.

use tercet_models::Tokenizer;

use crate::error::ApiError;
use crate::fields::unsupported;

/// Spellings of the tokens before the prefix, the suffix and the middle, by model family.
const SPELLINGS: [[&str; 3]; 8] = [
    // Qwen2.5-Coder, CodeGemma.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder, Granite.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    // DeepSeek-Coder.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // Code Llama.
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    // GLM.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    // Seed-Coder.
    ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
];

/// Tokens of the same families that end the middle.
const ENDS: [&str; 8] = [
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<file_sep>",
    "▁<EOT>",
    "<EOT>",
];

/// Tokens before the name of a file of the same project.
const FILE_SEPARATORS: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>"];

/// The tokens of a vocabulary for filling in the middle.
#[derive(Clone, Debug)]
pub(crate) struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    middle: u32,
    file_separator: Option<u32>,
    /// Tokens that end the middle, in addition to the model's end tokens.
    pub(crate) ends: Vec<u32>,
}

impl FillInMiddle {
    /// The tokens of a vocabulary, if it has them.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Option<FillInMiddle> {
        let id = |text: &str| tokenizer.token_to_id(text);
        let all =
            |[prefix, suffix, middle]: [&str; 3]| Some([id(prefix)?, id(suffix)?, id(middle)?]);
        let [prefix, suffix, middle] = SPELLINGS.into_iter().find_map(all)?;
        let mut ends = vec![prefix, suffix, middle];
        ends.extend(ENDS.into_iter().filter_map(id));
        Some(FillInMiddle {
            prefix,
            suffix,
            middle,
            file_separator: FILE_SEPARATORS.into_iter().find_map(id),
            ends,
        })
    }

    /// Like [`FillInMiddle::new`], for a request with this field.
    ///
    /// # Errors
    /// 400 if the vocabulary lacks the tokens.
    pub(crate) fn for_field(field: &str, tokenizer: &Tokenizer) -> Result<FillInMiddle, ApiError> {
        FillInMiddle::new(tokenizer).ok_or_else(|| {
            let remedy = "the model's vocabulary has no tokens for filling in the middle, such as `<|fim_prefix|>`; serve a model for code that has them";
            unsupported(field, remedy)
        })
    }

    /// The tokens up to the start of the middle. `files` are names and texts of files of the same
    /// project. Texts spell no special tokens.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        (before, after): (&str, &str),
        files: &[(String, String)],
    ) -> Result<Vec<u32>, ApiError> {
        let encode = |text: &str| {
            let tokens = tokenizer.encode_literally(text, false);
            tokens.map_err(|e| ApiError::failed(&e))
        };
        let around = tokenizer.surrounding();
        let (mut tokens, _) = around.map_err(|e| ApiError::failed(&e))?;
        for (name, text) in files {
            match self.file_separator {
                Some(separator) => {
                    tokens.push(separator);
                    tokens.extend(encode(&format!("{name}\n{text}"))?);
                }
                None => tokens.extend(encode(&format!("{text}\n"))?),
            }
        }
        tokens.push(self.prefix);
        tokens.extend(encode(before)?);
        tokens.push(self.suffix);
        tokens.extend(encode(after)?);
        tokens.push(self.middle);
        Ok(tokens)
    }
}
