//! Conversion of a folder's tokenizer and chat template to GGUF metadata keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{SaveError, chain, unsupported};
use tercet_files::gguf::{Gguf, GgufValue};
use tercet_files::json::read_optional_json;
use tercet_files::mmap::read_small;
use tercet_files::writing::GgufHeader;
use tercet_networks::config::DecoderSpec;
use tercet_networks::hf::HfFolder;
use tercet_text::tokenizer::{MAX_FILE_BYTES, TokenType, Tokenizer, pieces_of, pre_tokenizer_of};

/// The score of tokens that were added to a SentencePiece vocabulary.
const ADDED_SCORE: f32 = -1000.0;

/// One entry of a vocabulary.
#[derive(Clone)]
struct VocabEntry {
    text: String,
    score: f32,
    ty: TokenType,
}

/// Writes the vocabulary, the special tokens around a text, and the chat template.
pub(super) fn push(
    header: &mut GgufHeader,
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
            read_pieces(header, &bytes)?
        }
        false => {
            let json = json.as_ref();
            let json = json.ok_or_else(|| unsupported("a folder without a tokenizer".into()))?;
            read_json(header, json)?
        }
    };
    for (id, (text, is_special)) in added {
        let ty = match is_special {
            true => TokenType::Control,
            false => TokenType::UserDefined,
        };
        let score = ADDED_SCORE;
        tokens.insert(id, VocabEntry { text, score, ty });
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
    let template = tercet_text::dataset::chat_templates(folder.dir());
    let [plain, with_tools] = template.map_err(|e| unsupported(chain(&e)))?;
    if let Some(plain) = plain {
        header.push("tokenizer.chat_template", GgufValue::String(&plain));
    }
    if let Some(tools) = with_tools {
        header.push(
            "tokenizer.chat_template.tool_use",
            GgufValue::String(&tools),
        );
    }
    Ok(())
}

/// Tokens by id, one for each row of the embedding; missing ids become unused tokens.
fn whole(mut tokens: BTreeMap<u32, VocabEntry>, rows: usize) -> Result<Vec<VocabEntry>, SaveError> {
    if let Some((id, token)) = tokens.iter().find(|(id, _)| **id as usize >= rows) {
        let text = tercet_files::clip(&token.text);
        return Err(unsupported(format!(
            "the token {id} (`{text}`) has no row in the embedding of {rows}"
        )));
    }
    let token = |id: usize| {
        let own = tokens.remove(&(id as u32));
        own.unwrap_or_else(|| VocabEntry {
            text: format!("[PAD{id}]"),
            score: ADDED_SCORE,
            ty: TokenType::Unused,
        })
    };
    Ok((0..rows).map(token).collect())
}

/// Added tokens by id, each with its spelling and whether it is special.
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

/// Reads a byte-level BPE vocabulary from `tokenizer.json`.
fn read_json(
    header: &mut GgufHeader,
    json: &Map<String, Json>,
) -> Result<BTreeMap<u32, VocabEntry>, SaveError> {
    let pre = pre_tokenizer_of(json).map_err(unsupported)?;
    header.push("tokenizer.ggml.model", GgufValue::String("gpt2"));
    header.push("tokenizer.ggml.pre", GgufValue::String(pre));
    let bad = |what: &str| unsupported(format!("tokenizer.json: `model.{what}` cannot be read"));
    let model = json.get("model");
    let vocab = model.and_then(|model| model.get("vocab")?.as_object());
    let mut tokens = BTreeMap::new();
    for (text, id) in vocab.ok_or_else(|| bad("vocab"))? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let token = VocabEntry {
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

/// Reads a SentencePiece BPE vocabulary.
fn read_pieces(
    header: &mut GgufHeader,
    bytes: &[u8],
) -> Result<BTreeMap<u32, VocabEntry>, SaveError> {
    let pieces = pieces_of(bytes);
    let pieces = pieces.map_err(|e| unsupported(format!("tokenizer.model: {}", chain(&e))))?;
    header.push("tokenizer.ggml.model", GgufValue::String("llama"));
    header.push("tokenizer.ggml.pre", GgufValue::String("default"));
    let prefix = GgufValue::Bool(pieces.add_space_prefix);
    header.push("tokenizer.ggml.add_space_prefix", prefix);
    if pieces.remove_extra_whitespaces {
        let remove = GgufValue::Bool(true);
        header.push("tokenizer.ggml.remove_extra_whitespaces", remove);
    }
    if let Some(unknown) = pieces.unknown {
        header.push("tokenizer.ggml.unknown_token_id", GgufValue::U32(unknown));
    }
    let tokens = pieces.tokens.into_iter().zip(0..);
    let tokens = tokens.map(|((text, score, ty), id)| (id, VocabEntry { text, score, ty }));
    Ok(tokens.collect())
}

/// Writes the BOS and EOS tokens, and whether they are added to a text.
fn around(
    header: &mut GgufHeader,
    tokenizer: &Tokenizer,
    spec: &DecoderSpec,
) -> Result<(), SaveError> {
    let put = tokenizer.encode("", true);
    let put = put.map_err(|e| unsupported(format!("the tokenizer: {}", chain(&e))))?;
    let (begin, end) = match put.as_slice() {
        [] => (None, None),
        [one] if Some(*one) != spec.bos && spec.eos.contains(one) => (None, Some(*one)),
        [one] => (Some(*one), None),
        [first, last] => (Some(*first), Some(*last)),
        more => {
            return Err(unsupported(format!(
                "the tokenizer adds {} tokens around a text; GGUF files support one before and \
                 one after",
                more.len()
            )));
        }
    };
    if begin.is_some() && spec.bos.is_some() && begin != spec.bos {
        return Err(unsupported(format!(
            "the tokenizer prepends the token {}, but the configuration has {}",
            begin.unwrap_or_default(),
            spec.bos.unwrap_or_default()
        )));
    }
    if let Some(bos) = spec.bos {
        header.push("tokenizer.ggml.bos_token_id", GgufValue::U32(bos));
    }
    let first = spec.eos.first().copied();
    if end.is_some() && end != first {
        return Err(unsupported(
            "the tokenizer appends a token other than the first end-of-sequence token".into(),
        ));
    }
    const ENDS: [&str; 3] = ["eos", "eot", "eom"];
    // If there are more end tokens than keys, drop those that readers recognize by their names.
    let mut ends = spec.eos.clone();
    if ends.len() > ENDS.len() {
        let named = tokenizer.end_ids();
        ends.retain(|id| Some(*id) == first || !named.contains(id));
    }
    if ends.len() > ENDS.len() {
        return Err(unsupported(format!(
            "{} end-of-sequence tokens; GGUF files support {}",
            ends.len(),
            ENDS.len()
        )));
    }
    for (name, id) in ENDS.into_iter().zip(&ends) {
        let key = format!("tokenizer.ggml.{name}_token_id");
        header.push(&key, GgufValue::U32(*id));
    }
    if let Some(pad) = tokenizer.pad() {
        header.push("tokenizer.ggml.padding_token_id", GgufValue::U32(pad));
    }
    let begins = begin.is_some() && spec.bos.is_some();
    if begin.is_some() && !begins {
        return Err(unsupported(
            "the tokenizer prepends a token, but the configuration has no BOS token".into(),
        ));
    }
    header.push("tokenizer.ggml.add_bos_token", GgufValue::Bool(begins));
    header.push(
        "tokenizer.ggml.add_eos_token",
        GgufValue::Bool(end.is_some()),
    );
    Ok(())
}

/// Sample texts of different scripts, for which both tokenizers must produce the same ids.
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

/// Checks that the written vocabulary tokenizes the sample texts as the folder's tokenizer does.
pub(super) fn check(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<(), SaveError> {
    let failed = |e: &dyn std::error::Error| unsupported(format!("the vocabulary: {}", chain(e)));
    let own = Tokenizer::from_gguf(gguf).map_err(|e| failed(&e))?;
    for text in TEXTS {
        for special in [false, true] {
            let want = tokenizer.encode(text, special).map_err(|e| failed(&e))?;
            let found = own.encode(text, special).map_err(|e| failed(&e))?;
            if want != found {
                return Err(unsupported(format!(
                    "GGUF files cannot represent the folder's tokenization of {text:?}"
                )));
            }
        }
    }
    Ok(())
}
