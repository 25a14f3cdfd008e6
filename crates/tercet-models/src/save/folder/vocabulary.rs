//! The tokenizer and the chat template of a folder, as keys of GGUF metadata.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{SaveError, chain, unsupported};
use crate::config::DecoderSpec;
use crate::gguf::write::Header;
use crate::gguf::{Gguf, Value};
use crate::hf::{HfFolder, read_optional_json};
use crate::mmap::read_small;
use crate::tokenizer::{MAX_FILE_BYTES, TokenType, Tokenizer, pieces_of, pre_tokenizer_of};

/// The score that tokens have which were added to pieces.
const ADDED_SCORE: f32 = -1000.0;

/// One entry of a vocabulary.
#[derive(Clone)]
struct Token {
    text: String,
    score: f32,
    ty: TokenType,
}

/// Adds the vocabulary, what is put around a text, and the chat template.
pub(super) fn push(
    header: &mut Header,
    folder: &HfFolder,
    tokenizer: &Tokenizer,
    spec: &DecoderSpec,
) -> Result<(), SaveError> {
    let read = |e: &dyn std::error::Error| unsupported(format!("the tokenizer: {}", chain(e)));
    let json = read_optional_json(&folder.dir().join("tokenizer.json")).map_err(|e| read(&e))?;
    let pieces = folder.dir().join("tokenizer.model");
    let added = added(json.as_ref())?;
    let mut tokens = match pieces.exists() {
        true => {
            let bytes = read_small(&pieces, MAX_FILE_BYTES).map_err(|e| read(&e))?;
            of_pieces(header, &bytes)?
        }
        false => {
            let json = json.as_ref();
            let json = json.ok_or_else(|| unsupported("a folder without a tokenizer".into()))?;
            of_json(header, json)?
        }
    };
    for (id, (text, is_special)) in added {
        let ty = match is_special {
            true => TokenType::Control,
            false => TokenType::UserDefined,
        };
        let score = ADDED_SCORE;
        tokens.insert(id, Token { text, score, ty });
    }
    let tokens = whole(tokens, spec.vocab)?;
    header.push_strings(
        "tokenizer.ggml.tokens",
        tokens.iter().map(|t| t.text.as_str()),
    );
    if pieces.exists() {
        header.push_floats("tokenizer.ggml.scores", tokens.iter().map(|t| t.score));
    }
    header.push_integers(
        "tokenizer.ggml.token_type",
        tokens.iter().map(|t| t.ty as i32),
    );
    around(header, tokenizer, spec)?;
    let template = crate::dataset::chat_templates(folder);
    let [plain, with_tools] = template.map_err(|e| unsupported(chain(&e)))?;
    if let Some(plain) = plain {
        header.push("tokenizer.chat_template", Value::String(&plain));
    }
    if let Some(tools) = with_tools {
        header.push("tokenizer.chat_template.tool_use", Value::String(&tools));
    }
    Ok(())
}

/// Tokens by id for each row of the embedding: those that are not there are unused.
fn whole(mut tokens: BTreeMap<u32, Token>, rows: usize) -> Result<Vec<Token>, SaveError> {
    if let Some((id, token)) = tokens.iter().find(|(id, _)| **id as usize >= rows) {
        let text = crate::gguf::clip(&token.text);
        return Err(unsupported(format!(
            "the token {id} (`{text}`) has no row in the embedding of {rows}"
        )));
    }
    let token = |id: usize| {
        let own = tokens.remove(&(id as u32));
        own.unwrap_or_else(|| Token {
            text: format!("[PAD{id}]"),
            score: ADDED_SCORE,
            ty: TokenType::Unused,
        })
    };
    Ok((0..rows).map(token).collect())
}

/// Added tokens by id: their spelling, and whether they are special.
fn added(json: Option<&Map<String, Json>>) -> Result<BTreeMap<u32, (String, bool)>, SaveError> {
    let all = json.and_then(|json| json.get("added_tokens"));
    let all = all.and_then(Json::as_array).into_iter().flatten();
    let of = |token: &Json| {
        let id = u32::try_from(token.get("id")?.as_u64()?).ok()?;
        let text = token.get("content")?.as_str()?.to_string();
        Some((id, (text, token.get("special")?.as_bool()?)))
    };
    let of = |token| of(token).ok_or_else(|| unsupported("tokenizer.json: an added token".into()));
    all.map(of).collect()
}

/// A byte-level BPE of `tokenizer.json`.
fn of_json(
    header: &mut Header,
    json: &Map<String, Json>,
) -> Result<BTreeMap<u32, Token>, SaveError> {
    let pre = pre_tokenizer_of(json).map_err(unsupported)?;
    header.push("tokenizer.ggml.model", Value::String("gpt2"));
    header.push("tokenizer.ggml.pre", Value::String(pre));
    let bad = |what: &str| unsupported(format!("tokenizer.json: `model.{what}` cannot be read"));
    let model = json.get("model");
    let vocab = model.and_then(|model| model.get("vocab")?.as_object());
    let mut tokens = BTreeMap::new();
    for (text, id) in vocab.ok_or_else(|| bad("vocab"))? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let token = Token {
            text: text.clone(),
            score: 0.0,
            ty: TokenType::Normal,
        };
        tokens.insert(id.ok_or_else(|| bad("vocab"))?, token);
    }
    let merges = model.and_then(|model| model.get("merges")?.as_array());
    let merge = |merge: &Json| match merge {
        Json::String(both) => Some(both.clone()),
        _ => match merge.as_array()?.as_slice() {
            [left, right] => Some(format!("{} {}", left.as_str()?, right.as_str()?)),
            _ => None,
        },
    };
    let merges = merges.and_then(|all| all.iter().map(merge).collect::<Option<Vec<String>>>());
    let merges = merges.ok_or_else(|| bad("merges"))?;
    header.push_strings("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    Ok(tokens)
}

/// A SentencePiece BPE.
fn of_pieces(header: &mut Header, bytes: &[u8]) -> Result<BTreeMap<u32, Token>, SaveError> {
    let pieces = pieces_of(bytes);
    let pieces = pieces.map_err(|e| unsupported(format!("tokenizer.model: {}", chain(&e))))?;
    header.push("tokenizer.ggml.model", Value::String("llama"));
    header.push("tokenizer.ggml.pre", Value::String("default"));
    let prefix = Value::Bool(pieces.add_space_prefix);
    header.push("tokenizer.ggml.add_space_prefix", prefix);
    if pieces.remove_extra_whitespaces {
        let remove = Value::Bool(true);
        header.push("tokenizer.ggml.remove_extra_whitespaces", remove);
    }
    if let Some(unknown) = pieces.unknown {
        header.push("tokenizer.ggml.unknown_token_id", Value::U32(unknown));
    }
    let tokens = pieces.tokens.into_iter().zip(0..);
    let tokens = tokens.map(|((text, score, ty), id)| (id, Token { text, score, ty }));
    Ok(tokens.collect())
}

/// The tokens that begin and end a text, and whether they are put around one.
fn around(header: &mut Header, tokenizer: &Tokenizer, spec: &DecoderSpec) -> Result<(), SaveError> {
    let put = tokenizer.encode("", true);
    let put = put.map_err(|e| unsupported(format!("the tokenizer: {}", chain(&e))))?;
    let (begin, end) = match put.as_slice() {
        [] => (None, None),
        [one] if Some(*one) != spec.bos && spec.eos.contains(one) => (None, Some(*one)),
        [one] => (Some(*one), None),
        [first, last] => (Some(*first), Some(*last)),
        more => {
            return Err(unsupported(format!(
                "the tokenizer puts {} tokens around a text; GGUF files say one before and one after",
                more.len()
            )));
        }
    };
    if begin.is_some() && spec.bos.is_some() && begin != spec.bos {
        return Err(unsupported(format!(
            "the tokenizer begins texts with the token {}, and the configuration says {}",
            begin.unwrap_or_default(),
            spec.bos.unwrap_or_default()
        )));
    }
    if let Some(bos) = spec.bos {
        header.push("tokenizer.ggml.bos_token_id", Value::U32(bos));
    }
    let first = spec.eos.first().copied();
    if end.is_some() && end != first {
        return Err(unsupported(
            "the tokenizer ends texts with another token than the first that ends an answer".into(),
        ));
    }
    const ENDS: [&str; 3] = ["eos", "eot", "eom"];
    if spec.eos.len() > ENDS.len() {
        return Err(unsupported(format!(
            "{} tokens end a text; GGUF files name {}",
            spec.eos.len(),
            ENDS.len()
        )));
    }
    for (name, id) in ENDS.into_iter().zip(&spec.eos) {
        let key = format!("tokenizer.ggml.{name}_token_id");
        header.push(&key, Value::U32(*id));
    }
    if let Some(pad) = tokenizer.pad() {
        header.push("tokenizer.ggml.padding_token_id", Value::U32(pad));
    }
    let begins = begin.is_some() && spec.bos.is_some();
    if begin.is_some() && !begins {
        return Err(unsupported(
            "the tokenizer begins texts with a token that the configuration does not name".into(),
        ));
    }
    header.push("tokenizer.ggml.add_bos_token", Value::Bool(begins));
    header.push("tokenizer.ggml.add_eos_token", Value::Bool(end.is_some()));
    Ok(())
}

/// Texts of many kinds, of which both tokenizers have to give the same ids.
const TEXTS: [&str; 12] = [
    "",
    " ",
    "Hello, world! It's 2024, and they'd paid 1234567.89 for it.",
    "  two  spaces,\ttabs\t\tand\n\nlines \r\n end   ",
    "Größe, naïve, ça va; Ελληνικά, русский текст, עברית, العربية",
    "日本語のテキスト、中文字符，한국어 문장",
    "हिन्दी, ไทย, தமிழ்",
    "🙂👨‍👩‍👧‍👦 \u{1F1E9}\u{1F1EA} e\u{301} \u{FEFF}\u{200B}",
    "fn main() { let x = [0u8; 16]; println!(\"{:?}\", x); } // ===> --- ___",
    "https://example.org/a?b=c&d=%20 user@example.org #tag",
    "\u{0}\u{1}\u{7F} control",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa WWWWwwww I'M they'll 3rd",
];

/// Refuses a vocabulary that cuts texts otherwise than the folder's.
pub(super) fn check(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<(), SaveError> {
    let failed = |e: &dyn std::error::Error| unsupported(format!("the vocabulary: {}", chain(e)));
    let own = Tokenizer::from_gguf(gguf).map_err(|e| failed(&e))?;
    for text in TEXTS {
        for special in [false, true] {
            let want = tokenizer.encode(text, special).map_err(|e| failed(&e))?;
            let found = own.encode(text, special).map_err(|e| failed(&e))?;
            if want != found {
                return Err(unsupported(format!(
                    "GGUF files cannot say how the folder's tokenizer cuts {text:?}"
                )));
            }
        }
    }
    Ok(())
}
