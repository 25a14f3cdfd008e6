//! Tokenizers of older folders: byte-level BPE in `vocab.json` and `merges.txt`.
//!
//! The files have no word splitting and no special tokens around a text: these belong to the
//! tokenizer's class, which `tokenizer_config.json` names. This module writes the equivalent
//! `tokenizer.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{HfError, MAX_JSON_BYTES, read_json, read_optional_json};
use tercet_files::clip;
use tercet_files::mmap::read_small;
use tercet_text::tokenizer::{MAX_FILE_BYTES, QWEN2_SPLIT, Tokenizer, TokenizerError};

pub(super) const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const CONFIG: &str = "tokenizer_config.json";

/// What the class of a tokenizer adds to its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BpeClass {
    /// GPT-2's word splitting, no special tokens around a text.
    Gpt2,
    /// GPT-2's word splitting, `<s>` and `</s>` around a text.
    Roberta,
    /// GPT-4's word splitting with single digits, Unicode NFC.
    Qwen2,
}

impl BpeClass {
    /// The tokenizer class for a class name of transformers, or for a `model_type` if a folder
    /// names no class.
    const TABLE: &[(BpeClass, &[&str], &[&str])] = &[
        (
            BpeClass::Gpt2,
            &["GPT2Tokenizer", "CodeGenTokenizer", "WhisperTokenizer"],
            &[
                "codegen",
                "gpt2",
                "gpt_bigcode",
                "gpt_neo",
                "gptj",
                "opt",
                "phi",
                "starcoder2",
                "whisper",
            ],
        ),
        (
            BpeClass::Roberta,
            &[
                "RobertaTokenizer",
                "BartTokenizer",
                "LEDTokenizer",
                "LongformerTokenizer",
            ],
            &["roberta", "bart", "led", "longformer"],
        ),
        (
            BpeClass::Qwen2,
            &["Qwen2Tokenizer"],
            &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
        ),
    ];

    fn of_name(name: &str) -> Option<BpeClass> {
        let name = name.strip_suffix("Fast").unwrap_or(name);
        let row = Self::TABLE
            .iter()
            .find(|(_, names, _)| names.contains(&name));
        row.map(|(class, ..)| *class)
    }

    fn of_model(model_type: &str) -> Option<BpeClass> {
        let row = Self::TABLE
            .iter()
            .find(|(.., types)| types.contains(&model_type));
        row.map(|(class, ..)| *class)
    }

    /// The special tokens that the class assumes, by the key that overrides each.
    fn specials(self) -> &'static [(&'static str, &'static str)] {
        match self {
            BpeClass::Gpt2 => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
            ],
            BpeClass::Roberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            BpeClass::Qwen2 => &[
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
        }
    }
}

/// Whether a folder has both the vocabulary and the merges.
pub(super) fn is_in(dir: &Path) -> bool {
    dir.join(VOCAB).exists() && dir.join(MERGES).exists()
}

/// The tokenizer of a folder; `model_type` is that of its `config.json`.
///
/// # Errors
/// [`HfError::Tokenizer`], or [`HfError::Json`] for the JSON files.
pub(super) fn tokenizer(dir: &Path, model_type: Option<&str>) -> Result<Tokenizer, HfError> {
    let refused = |name: &str| {
        let path = dir.join(name);
        move |source| HfError::Tokenizer { path, source }
    };
    let bad = |name: &str, reason: String| refused(name)(TokenizerError::BadVocabulary { reason });
    let config = read_optional_json(&dir.join(CONFIG))?.unwrap_or_default();
    let named = config.get("tokenizer_class").and_then(Value::as_str);
    let class = match named {
        Some(name) => BpeClass::of_name(name),
        None => model_type.and_then(BpeClass::of_model),
    };
    let class = class.ok_or_else(|| {
        let what = match (named, model_type) {
            (Some(name), _) => format!("`tokenizer_class` is `{}`", clip(name)),
            (None, found) => format!(
                "tokenizer_config.json has no `tokenizer_class`, and `model_type` is `{}`",
                clip(found.unwrap_or_default())
            ),
        };
        let names = BpeClass::TABLE.iter().flat_map(|(_, names, _)| *names);
        let names: Vec<&str> = names.copied().collect();
        bad(
            VOCAB,
            format!(
                "{what}; supported without tokenizer.json: {}; save the tokenizer with \
                 transformers, which writes a tokenizer.json",
                names.join(", ")
            ),
        )
    })?;

    let vocab = read_json(&dir.join(VOCAB))?;
    let mut ids = BTreeMap::new();
    for (token, id) in &vocab {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let number = number.ok_or_else(|| {
            let reason = format!(
                "the id of token `{}` is {id}, not a whole number",
                clip(token)
            );
            bad(VOCAB, reason)
        })?;
        ids.insert(token.clone(), number);
    }
    let merges = merges(dir.join(MERGES), &ids)?;
    let added = AddedTokens::read(dir, &config, class, &ids)?;
    let tokenizer_json = added.json(class, &config, vocab, merges);
    let bytes = serde_json::to_vec(&tokenizer_json).map_err(|source| HfError::Json {
        path: dir.join(VOCAB),
        source,
    })?;
    let tokenizer = Tokenizer::from_json(&bytes).map_err(refused(VOCAB))?;
    for (id, token) in &added.tokens {
        let content = token
            .get("content")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if tokenizer.token_to_id(content) != Some(*id) {
            let reason = format!(
                "the added token `{}` has id {id}, which does not follow the vocabulary",
                clip(content)
            );
            return Err(bad(VOCAB, reason));
        }
    }
    Ok(tokenizer)
}

/// Reads pairs of tokens, one pair a line, in the order of their ranks.
fn merges(path: PathBuf, ids: &BTreeMap<String, u32>) -> Result<Vec<Value>, HfError> {
    let bytes = read_small(&path, MAX_FILE_BYTES.max(MAX_JSON_BYTES))?;
    let bad = |reason: String| HfError::Tokenizer {
        path: path.clone(),
        source: TokenizerError::BadVocabulary { reason },
    };
    let text = std::str::from_utf8(&bytes);
    let text =
        text.map_err(|e| bad(format!("the file is not UTF-8 at byte {}", e.valid_up_to())))?;
    let mut merges = Vec::new();
    for (at, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || (at == 0 && line.starts_with("#version")) {
            continue;
        }
        let number = at + 1;
        let Some((left, right)) = line.split_once(' ') else {
            let reason = format!("line {number} is `{}`, not two tokens", clip(line));
            return Err(bad(reason));
        };
        for token in [left, right, &format!("{left}{right}")] {
            if !ids.contains_key(token) {
                return Err(bad(format!(
                    "line {number} (`{}`) needs the token `{}`, which vocab.json does not have",
                    clip(line),
                    clip(token)
                )));
            }
        }
        merges.push(json!([left, right]));
    }
    Ok(merges)
}

/// The tokens that are recognized in a text before it is split, by id.
struct AddedTokens {
    tokens: BTreeMap<u32, Map<String, Value>>,
    /// The spellings and ids of `sep_token` and `cls_token`.
    around: Option<[(String, u32); 2]>,
}

impl AddedTokens {
    fn read(
        dir: &Path,
        config: &Map<String, Value>,
        class: BpeClass,
        ids: &BTreeMap<String, u32>,
    ) -> Result<AddedTokens, HfError> {
        let bad = |name: &str, reason: String| HfError::Tokenizer {
            path: dir.join(name),
            source: TokenizerError::BadVocabulary { reason },
        };
        let mut tokens: BTreeMap<u32, Map<String, Value>> = BTreeMap::new();
        let listed = config
            .get("added_tokens_decoder")
            .and_then(Value::as_object);
        for (id, token) in listed.into_iter().flatten() {
            let parsed = id.parse().ok().zip(spelled(token));
            let Some((id, (content, token))) = parsed else {
                let reason = format!("`added_tokens_decoder` has an invalid entry `{}`", clip(id));
                return Err(bad(CONFIG, reason));
            };
            tokens.insert(id, entry(id, &content, token, None));
        }
        let name = "added_tokens.json";
        for (content, id) in read_optional_json(&dir.join(name))?.unwrap_or_default() {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                let reason = format!("the id of token `{}` is {id}", clip(&content));
                return Err(bad(name, reason));
            };
            let new = entry(id, &content, None, Some(false));
            tokens.entry(id).or_insert(new);
        }

        let map = read_optional_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        // Files written before `added_tokens_decoder` existed are overridden by the map.
        let of = |key: &str| match listed {
            Some(_) => config.get(key).or_else(|| map.get(key)),
            None => map.get(key).or_else(|| config.get(key)),
        };
        let mut specials: Vec<NamedSpecial<'_>> = Vec::new();
        for key in [
            "bos_token",
            "eos_token",
            "unk_token",
            "sep_token",
            "pad_token",
            "cls_token",
            "mask_token",
        ] {
            let usual = class.specials().iter().find(|(of, _)| *of == key);
            match of(key) {
                Some(token) if spelled(token).is_some() => {
                    specials.extend(spelled(token).map(|(content, flags)| (key, content, flags)));
                }
                Some(Value::Null) => {}
                _ => specials.extend(usual.map(|(key, token)| (*key, (*token).to_string(), None))),
            }
        }
        let more = of("additional_special_tokens").and_then(Value::as_array);
        for token in more.into_iter().flatten() {
            specials.extend(spelled(token).map(|(content, flags)| ("", content, flags)));
        }
        let mut around = [None, None];
        for (key, content, flags) in specials {
            let known = tokens.iter().find(|(_, token)| is_spelled(token, &content));
            let known = known
                .map(|(id, _)| *id)
                .or_else(|| ids.get(&content).copied());
            // A special token that is not in the vocabulary gets the next free id.
            let id = known.unwrap_or_else(|| {
                let last = ids.values().chain(tokens.keys()).max();
                last.map_or(0, |last| last.saturating_add(1))
            });
            let own = tokens
                .entry(id)
                .or_insert_with(|| entry(id, &content, flags, Some(true)));
            own.insert("special".to_string(), json!(true));
            match key {
                "sep_token" => around[0] = Some((content, id)),
                "cls_token" => around[1] = Some((content, id)),
                _ => {}
            }
        }
        let around = match around {
            [Some(sep), Some(cls)] if class == BpeClass::Roberta => Some([sep, cls]),
            _ => None,
        };
        Ok(AddedTokens { tokens, around })
    }

    /// The content of the equivalent `tokenizer.json`.
    fn json(
        &self,
        class: BpeClass,
        config: &Map<String, Value>,
        vocab: Map<String, Value>,
        merges: Vec<Value>,
    ) -> Value {
        let add_prefix_space = config.get("add_prefix_space").and_then(Value::as_bool);
        let add_prefix_space = add_prefix_space.unwrap_or(false);
        let byte_level = |use_regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": add_prefix_space,
                "trim_offsets": true, "use_regex": use_regex
            })
        };
        let (normalizer, pre_tokenizer) = match class {
            BpeClass::Gpt2 | BpeClass::Roberta => (Value::Null, byte_level(true)),
            BpeClass::Qwen2 => {
                let split = json!({
                    "type": "Split", "pattern": {"Regex": QWEN2_SPLIT},
                    "behavior": "Isolated", "invert": false
                });
                let steps =
                    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]});
                (json!({"type": "NFC"}), steps)
            }
        };
        let post_processor = self.around.as_ref().map(|[sep, cls]| {
            json!({
                "type": "RobertaProcessing", "sep": sep, "cls": cls,
                "trim_offsets": true, "add_prefix_space": add_prefix_space
            })
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.tokens.values().collect::<Vec<_>>(),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": byte_level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": "", "end_of_word_suffix": "",
                "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges
            }
        })
    }
}

/// A special token: the key that names it, its content, and its flags if the file states them.
type NamedSpecial<'a> = (&'a str, String, Option<&'a Map<String, Value>>);

/// The spelling of a token, which is a text or an object with flags.
fn spelled(token: &Value) -> Option<(String, Option<&Map<String, Value>>)> {
    match token {
        Value::String(text) => Some((text.clone(), None)),
        Value::Object(flags) => Some((flags.get("content")?.as_str()?.to_string(), Some(flags))),
        _ => None,
    }
}

fn is_spelled(token: &Map<String, Value>, content: &str) -> bool {
    token.get("content").and_then(Value::as_str) == Some(content)
}

/// An entry of `added_tokens`. `special` is the value for a token without that flag.
fn entry(
    id: u32,
    content: &str,
    flags: Option<&Map<String, Value>>,
    special: Option<bool>,
) -> Map<String, Value> {
    let flag = |name: &str| flags.and_then(|flags| flags.get(name)?.as_bool());
    let special = flag("special").or(special).unwrap_or(false);
    let mut token = Map::new();
    token.insert("id".to_string(), json!(id));
    token.insert("content".to_string(), json!(content));
    for name in ["single_word", "lstrip", "rstrip"] {
        token.insert(name.to_string(), json!(flag(name).unwrap_or(false)));
    }
    let normalized = flag("normalized").unwrap_or(!special);
    token.insert("normalized".to_string(), json!(normalized));
    token.insert("special".to_string(), json!(special));
    token
}
