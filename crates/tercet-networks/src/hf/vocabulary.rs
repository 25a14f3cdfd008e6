//! Tokenizers of older folders: byte-level BPE in `vocab.json` and `merges.txt`, WordPiece in `vocab.txt`.
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

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const PIECES: &str = "vocab.txt";
const CONFIG: &str = "tokenizer_config.json";

/// What the class of a tokenizer adds to its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VocabularyClass {
    /// GPT-2's word splitting, no special tokens around a text.
    Gpt2,
    /// GPT-2's word splitting, `<s>` and `</s>` around a text.
    Roberta,
    /// GPT-4's word splitting with single digits, Unicode NFC.
    Qwen2,
    /// Words of BERT in pieces, `[CLS]` and `[SEP]` around a text.
    Bert,
    /// Words of BERT in pieces, `<s>` and `</s>` around a text.
    MpNet,
}

impl VocabularyClass {
    /// The tokenizer class for a class name of transformers, or for a `model_type` if a folder
    /// names no class.
    const TABLE: &[(VocabularyClass, &[&str], &[&str])] = &[
        (
            VocabularyClass::Gpt2,
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
            VocabularyClass::Roberta,
            &[
                "RobertaTokenizer",
                "BartTokenizer",
                "LEDTokenizer",
                "LongformerTokenizer",
            ],
            &["roberta", "bart", "led", "longformer"],
        ),
        (
            VocabularyClass::Qwen2,
            &["Qwen2Tokenizer"],
            &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
        ),
        (
            VocabularyClass::Bert,
            &[
                "BertTokenizer",
                "DistilBertTokenizer",
                "ElectraTokenizer",
                "ConvBertTokenizer",
                "DPRContextEncoderTokenizer",
                "DPRQuestionEncoderTokenizer",
                "DPRReaderTokenizer",
                "LayoutLMTokenizer",
                "MobileBertTokenizer",
                "RetriBertTokenizer",
                "SqueezeBertTokenizer",
            ],
            &["bert", "distilbert", "electra", "nomic_bert"],
        ),
        (VocabularyClass::MpNet, &["MPNetTokenizer"], &["mpnet"]),
    ];

    /// The file of the vocabulary.
    fn file(self) -> &'static str {
        match self {
            VocabularyClass::Gpt2 | VocabularyClass::Roberta | VocabularyClass::Qwen2 => VOCAB,
            VocabularyClass::Bert | VocabularyClass::MpNet => PIECES,
        }
    }

    fn of_name(name: &str) -> Option<VocabularyClass> {
        let name = name.strip_suffix("Fast").unwrap_or(name);
        let row = Self::TABLE
            .iter()
            .find(|(_, names, _)| names.contains(&name));
        row.map(|(class, ..)| *class)
    }

    fn of_model(model_type: &str) -> Option<VocabularyClass> {
        let row = Self::TABLE
            .iter()
            .find(|(.., types)| types.contains(&model_type));
        row.map(|(class, ..)| *class)
    }

    /// The special tokens that the class assumes, by the key that overrides each.
    fn specials(self) -> &'static [(&'static str, &'static str)] {
        match self {
            VocabularyClass::Gpt2 => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
            ],
            VocabularyClass::Roberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            VocabularyClass::Qwen2 => &[
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            VocabularyClass::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            VocabularyClass::MpNet => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "[UNK]"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
        }
    }
}

/// The file of the vocabulary, if a folder has one with all that belongs to it.
pub(super) fn file_in(dir: &Path) -> Option<&'static str> {
    if dir.join(VOCAB).exists() && dir.join(MERGES).exists() {
        return Some(VOCAB);
    }
    dir.join(PIECES).exists().then_some(PIECES)
}

/// The tokenizer of a folder with the vocabulary in `file`; `model_type` is that of its `config.json`.
///
/// # Errors
/// [`HfError::Tokenizer`], or [`HfError::Json`] for the JSON files.
pub(super) fn tokenizer(
    dir: &Path,
    file: &'static str,
    model_type: Option<&str>,
) -> Result<Tokenizer, HfError> {
    let refused = |name: &str| {
        let path = dir.join(name);
        move |source| HfError::Tokenizer { path, source }
    };
    let bad = |name: &str, reason: String| refused(name)(TokenizerError::BadVocabulary { reason });
    let config = read_optional_json(&dir.join(CONFIG))?.unwrap_or_default();
    let named = config.get("tokenizer_class").and_then(Value::as_str);
    let class = match named {
        Some(name) => VocabularyClass::of_name(name),
        None => model_type.and_then(VocabularyClass::of_model),
    };
    let class = class.filter(|class| class.file() == file).ok_or_else(|| {
        let what = match (named, model_type) {
            (Some(name), _) => format!("`tokenizer_class` is `{}`", clip(name)),
            (None, found) => format!(
                "tokenizer_config.json has no `tokenizer_class`, and `model_type` is `{}`",
                clip(found.unwrap_or_default())
            ),
        };
        let rows = VocabularyClass::TABLE.iter();
        let rows = rows.filter(|(class, ..)| class.file() == file);
        let names: Vec<&str> = rows.flat_map(|(_, names, _)| *names).copied().collect();
        bad(
            file,
            format!(
                "{what}; supported without tokenizer.json: {}; save the tokenizer with \
                 transformers, which writes a tokenizer.json",
                names.join(", ")
            ),
        )
    })?;

    let vocab = match file {
        PIECES => pieces(dir.join(PIECES))?,
        _ => read_json(&dir.join(VOCAB))?,
    };
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
    let added = AddedTokens::read(dir, &config, class, &ids)?;
    let tokenizer_json = match file {
        PIECES => added.word_piece_json(class, &config, vocab),
        _ => {
            let merges = merges(dir.join(MERGES), &ids)?;
            added.byte_level_json(class, &config, vocab, merges)
        }
    };
    let bytes = serde_json::to_vec(&tokenizer_json).map_err(|source| HfError::Json {
        path: dir.join(file),
        source,
    })?;
    let tokenizer = Tokenizer::from_json(&bytes).map_err(refused(file))?;
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
            return Err(bad(file, reason));
        }
    }
    Ok(tokenizer)
}

/// Reads a vocabulary with one token a line. A token that occurs twice has the id of its last line.
fn pieces(path: PathBuf) -> Result<Map<String, Value>, HfError> {
    let text = read_text(&path)?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.last() == Some(&"") {
        lines.pop();
    }
    let lines = lines.into_iter().enumerate();
    Ok(lines
        .map(|(id, line)| {
            let token = line.strip_suffix('\r').unwrap_or(line);
            (token.to_string(), json!(id))
        })
        .collect())
}

fn read_text(path: &Path) -> Result<String, HfError> {
    let bytes = read_small(path, MAX_FILE_BYTES.max(MAX_JSON_BYTES))?;
    String::from_utf8(bytes).map_err(|e| HfError::Tokenizer {
        path: path.to_path_buf(),
        source: TokenizerError::BadVocabulary {
            reason: format!(
                "the file is not UTF-8 at byte {}",
                e.utf8_error().valid_up_to()
            ),
        },
    })
}

/// Reads pairs of tokens, one pair a line, in the order of their ranks.
fn merges(path: PathBuf, ids: &BTreeMap<String, u32>) -> Result<Vec<Value>, HfError> {
    let text = read_text(&path)?;
    let bad = |reason: String| HfError::Tokenizer {
        path: path.clone(),
        source: TokenizerError::BadVocabulary { reason },
    };
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

/// The named special tokens of a folder, then the additional ones, which have an empty name.
fn special_tokens<'a>(
    config: &'a Map<String, Value>,
    map: &'a Map<String, Value>,
    class: VocabularyClass,
) -> Vec<NamedSpecial<'a>> {
    // Files written before `added_tokens_decoder` existed are overridden by the map.
    let overridden = !config
        .get("added_tokens_decoder")
        .is_some_and(Value::is_object);
    let of = |key: &str| match overridden {
        true => map.get(key).or_else(|| config.get(key)),
        false => config.get(key).or_else(|| map.get(key)),
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
    specials
}

/// The tokens that are recognized in a text before it is split, by id.
struct AddedTokens {
    tokens: BTreeMap<u32, Map<String, Value>>,
    /// The spellings and ids of `sep_token` and `cls_token`.
    around: Option<[(String, u32); 2]>,
    /// The spelling of `unk_token`.
    unknown: Option<String>,
}

impl AddedTokens {
    fn read(
        dir: &Path,
        config: &Map<String, Value>,
        class: VocabularyClass,
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
        let specials = special_tokens(config, &map, class);
        let mut around = [None, None];
        let mut unknown = None;
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
            // MPNet's mask takes the space before it.
            if class == VocabularyClass::MpNet && key == "mask_token" && flags.is_none() {
                own.insert("lstrip".to_string(), json!(true));
            }
            match key {
                "sep_token" => around[0] = Some((content, id)),
                "cls_token" => around[1] = Some((content, id)),
                "unk_token" => unknown = Some(content),
                _ => {}
            }
        }
        let around = match around {
            [Some(sep), Some(cls)]
                if matches!(
                    class,
                    VocabularyClass::Roberta | VocabularyClass::Bert | VocabularyClass::MpNet
                ) =>
            {
                Some([sep, cls])
            }
            _ => None,
        };
        Ok(AddedTokens {
            tokens,
            around,
            unknown,
        })
    }

    /// The content of the equivalent `tokenizer.json` of WordPiece.
    fn word_piece_json(
        &self,
        class: VocabularyClass,
        config: &Map<String, Value>,
        vocab: Map<String, Value>,
    ) -> Value {
        let flag = |key: &str, default: bool| {
            let given = config.get(key).and_then(Value::as_bool);
            given.unwrap_or(default)
        };
        let strip_accents = config.get("strip_accents").and_then(Value::as_bool);
        let post_processor = self.around.as_ref().map(|[sep, cls]| match class {
            VocabularyClass::MpNet => json!({
                "type": "RobertaProcessing", "sep": sep, "cls": cls,
                "trim_offsets": true, "add_prefix_space": false
            }),
            _ => {
                let special = |token: &str, of: u8| json!({"SpecialToken": {"id": token, "type_id": of}});
                let text = |name: &str, of: u8| json!({"Sequence": {"id": name, "type_id": of}});
                let entry = |(token, id): &(String, u32)| json!({"id": token, "ids": [id], "tokens": [token]});
                json!({
                    "type": "TemplateProcessing",
                    "single": [special(&cls.0, 0), text("A", 0), special(&sep.0, 0)],
                    "pair": [
                        special(&cls.0, 0), text("A", 0), special(&sep.0, 0),
                        text("B", 1), special(&sep.0, 1)
                    ],
                    "special_tokens": {(cls.0.as_str()): entry(cls), (sep.0.as_str()): entry(sep)}
                })
            }
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.tokens.values().collect::<Vec<_>>(),
            "normalizer": {
                "type": "BertNormalizer", "clean_text": true,
                "handle_chinese_chars": flag("tokenize_chinese_chars", true),
                "strip_accents": strip_accents, "lowercase": flag("do_lower_case", true)
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": post_processor,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {
                "type": "WordPiece", "unk_token": self.unknown,
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab
            }
        })
    }

    /// The content of the equivalent `tokenizer.json` of byte-level BPE.
    fn byte_level_json(
        &self,
        class: VocabularyClass,
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
            VocabularyClass::Gpt2
            | VocabularyClass::Roberta
            | VocabularyClass::Bert
            | VocabularyClass::MpNet => (Value::Null, byte_level(true)),
            VocabularyClass::Qwen2 => {
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
