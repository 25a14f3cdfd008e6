//! Comparison of ids and texts with `sentencepiece` and `tokenizers`
//! (`tests/data/tokenizers/make.py`).
//!
//! `TERCET_TOKENIZER_REFERENCES` selects another reference file, such as the large one that the
//! script can write.

use std::collections::BTreeMap;

use crate::common::{GgufWriter, data};
use serde::Deserialize;
use serde_json::Value;
use tercet_files::{Gguf, MappedFile};
use tercet_text::Tokenizer;

#[derive(Deserialize)]
struct References {
    texts: Vec<String>,
    ids: BTreeMap<String, Vec<Vec<u32>>>,
    decoded: BTreeMap<String, Vec<(Vec<u32>, String)>>,
}

fn references() -> References {
    let path = std::env::var_os("TERCET_TOKENIZER_REFERENCES");
    let path = path.map_or_else(|| data("tokenizers/ids.json"), Into::into);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn read(name: &str) -> Tokenizer {
    let file = if name.ends_with(".json") {
        name.to_owned()
    } else {
        format!("{name}.model")
    };
    Tokenizer::from_file(data("tokenizers").join(file)).unwrap()
}

/// Compares the ids of all texts; reports the number of differences and the first ones.
fn compare(name: &str, texts: &[String], expected: &[Vec<u32>], encode: impl Fn(&str) -> Vec<u32>) {
    let mut differ = 0;
    for (text, expected) in texts.iter().zip(expected) {
        let found = encode(text);
        if found != *expected {
            differ += 1;
            if differ <= 3 {
                println!("{name}: {text:?}\n  expected {expected:?}\n  found    {found:?}");
            }
        }
    }
    println!("{name}: {} texts, {differ} differ", texts.len());
    assert_eq!(differ, 0, "{name}");
    assert_eq!(texts.len(), expected.len());
}

#[test]
fn ids_of_files() {
    let References { texts, ids, .. } = references();
    assert_eq!(ids.len(), 9);
    for (name, expected) in &ids {
        let tokenizer = read(name);
        compare(name, &texts, expected, |text| {
            if name.ends_with(".json") {
                tokenizer.encode(text, false).unwrap()
            } else {
                tokenizer.encode_literally(text, false).unwrap()
            }
        });
    }
}

#[test]
fn special_tokens_in_literal_text_are_text() {
    for name in [
        "byte_level.json",
        "unigram.json",
        "word_piece.json",
        "bpe",
        "unigram",
    ] {
        let tokenizer = read(name);
        let mut special: Vec<u32> = tokenizer.special_ids().into_iter().collect();
        special.sort_unstable();
        assert!(!special.is_empty(), "{name}");
        for id in special {
            let spelled = tokenizer.id_to_token(id).unwrap();
            let text = format!("a {spelled} b{spelled}c");
            let recognized = tokenizer.encode(&text, false).unwrap();
            let count = |ids: &[u32]| ids.iter().filter(|i| **i == id).count();
            assert!(count(&recognized) >= 2, "{name} {text}");
            let unknown = tokenizer.encode_literally("\u{10FFFD}", false).unwrap();
            let has = |ids: &[u32]| ids.contains(&id) && !unknown.contains(&id);
            let literal = tokenizer.encode_literally(&text, false).unwrap();
            assert!(!has(&literal), "{name} {text} {literal:?}");
            // In rows for encoders, special tokens spelled in a text are ordinary text, so only
            // those that the tokenizer adds around the text occur.
            let around = tokenizer.encode_row("", None, None).unwrap().ids;
            let row = tokenizer.encode_row(&text, None, None).unwrap().ids;
            if !unknown.contains(&id) {
                assert_eq!(count(&row), count(&around), "{name} {text} {row:?}");
            }
            // The first spelling of the special token is in a literal range (user input), the
            // second is not.
            let people = 2..2 + spelled.len();
            let mixed = tokenizer.encode_mixed_with_spans(&text, std::slice::from_ref(&people));
            let mixed = mixed.unwrap();
            let at = text.rfind(&*spelled).unwrap();
            let found: Vec<_> = mixed.iter().filter(|(i, _)| *i == id).collect();
            if !unknown.contains(&id) {
                assert_eq!(found.len(), 1, "{name} {text} {mixed:?}");
                assert!(found[0].1.start <= at && found[0].1.end >= at + spelled.len());
            }
            assert!(
                mixed.iter().all(|(_, span)| span.end <= text.len()),
                "{mixed:?}"
            );
        }
    }
}

#[test]
fn a_model_that_knows_special_tokens_does_not_find_them_in_literal_text() {
    // The pieces of a Unigram model have scores, and special tokens have the best.
    let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
        {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true}],
        "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0],
            ["</s>", 0.0], ["\u2581a", -1.0], ["<", -5.0], ["/", -5.0], ["s", -5.0], [">", -5.0]]}}"#;
    let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("a</s>", false).unwrap(), [2, 1]);
    assert_eq!(
        tokenizer.encode_literally("a</s>", false).unwrap(),
        [2, 3, 4, 5, 6]
    );
    assert_eq!(
        tokenizer.encode_row("a</s>", None, None).unwrap().ids,
        [2, 3, 4, 5, 6]
    );
    let people = 1..5;
    let mixed = tokenizer.encode_mixed("a</s></s>", std::slice::from_ref(&people));
    assert_eq!(mixed.unwrap(), [2, 3, 4, 5, 6, 1]);
}

#[test]
fn texts_of_ids_at_once_and_streamed() {
    for (name, cases) in references().decoded {
        let tokenizer = read(&name);
        for (ids, text) in cases {
            assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{name}: {ids:?}");
            let mut stream = tokenizer.stream();
            let mut pieces: Vec<_> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
            pieces.push(stream.finish().unwrap());
            assert_eq!(pieces.concat(), text, "{name}: {ids:?}");
        }
    }
}

/// The fields of a protocol buffer message: field number, integer value, and bytes of other values.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let len = bytes.iter().position(|b| *b < 0x80).unwrap() + 1;
        let (taken, rest) = bytes.split_at(len);
        *bytes = rest;
        let seven = taken.iter().rev().map(|b| u64::from(b & 0x7F));
        seven.fold(0, |all, b| all << 7 | b)
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = number(&mut bytes);
        let len = match key & 7 {
            0 => {
                fields.push((key >> 3, number(&mut bytes), &[][..]));
                continue;
            }
            2 => number(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, 0, &bytes[..len]));
        bytes = &bytes[len..];
    }
    fields
}

/// The vocabulary of a `tokenizer.model` in GGUF form.
fn gguf_of_pieces(file: &str, kind: &str) -> GgufWriter {
    let bytes = std::fs::read(data("tokenizers").join(file)).unwrap();
    let (mut tokens, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    let mut charsmap = Vec::new();
    for (number, _, message) in fields(&bytes) {
        let inner = fields(message);
        let find = |number| inner.iter().find(|field| field.0 == number);
        if number == 1 {
            tokens.push(String::from_utf8(find(1).unwrap().2.to_vec()).unwrap());
            scores.extend(find(2).map_or([0; 4], |field| field.2.try_into().unwrap()));
            types.push(find(3).map_or(1, |field| field.1 as i32));
        } else if number == 3 {
            charsmap = find(2).map_or(Vec::new(), |field| field.2.to_vec());
        }
    }
    let array = |ty: u32, len: usize, bytes: &[u8]| {
        let len = (len as u64).to_le_bytes();
        [&ty.to_le_bytes()[..], &len, bytes].concat()
    };
    let scores = array(6, tokens.len(), &scores);
    let charsmap = array(0, charsmap.len(), &charsmap);
    GgufWriter::default()
        .str("tokenizer.ggml.model", kind)
        .strs("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .raw("tokenizer.ggml.scores", 9, &scores)
        .raw("tokenizer.ggml.precompiled_charsmap", 9, &charsmap)
}

/// A vocabulary of the `tokenizers` crate in GGUF form, with spellings by `spell`.
fn gguf_of_json(file: &str, kind: &str, spell: impl Fn(&str) -> String) -> GgufWriter {
    let json = std::fs::read(data("tokenizers").join(file)).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<_> = vocab.iter().map(|(t, id)| (id.as_u64(), t)).collect();
    tokens.sort();
    let added = json["added_tokens"].as_array().unwrap();
    let types = tokens.iter().map(|(_, token)| {
        let special = added.iter().any(|a| a["content"].as_str() == Some(token));
        if special { 3 } else { 1 }
    });
    let types: Vec<i32> = types.collect();
    let tokens: Vec<String> = tokens.iter().map(|(_, token)| spell(token)).collect();
    let merges = json["model"]["merges"].as_array();
    let merges = merges.into_iter().flatten().map(|merge| {
        let pair = [&merge[0], &merge[1]].map(|t| t.as_str().unwrap());
        pair.join(" ")
    });
    GgufWriter::default()
        .str("tokenizer.ggml.model", kind)
        .strs("tokenizer.ggml.tokens", &tokens)
        .strs("tokenizer.ggml.merges", &merges.collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &types)
}

fn build(writer: GgufWriter) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::parse(MappedFile::from_vec(writer.bytes())).unwrap()).unwrap()
}

#[test]
fn ids_of_gguf_vocabularies() {
    const PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    const REMOVE: &str = "tokenizer.ggml.remove_extra_whitespaces";
    let References { texts, ids, .. } = references();
    let bare = |name: &str, writer: GgufWriter, literally: bool| {
        let tokenizer = build(writer);
        compare(name, &texts, &ids[name], |text| {
            if literally {
                tokenizer.encode_literally(text, false).unwrap()
            } else {
                tokenizer.encode(text, false).unwrap()
            }
        });
        tokenizer
    };
    let llama = bare("bpe", gguf_of_pieces("bpe.model", "llama"), true);
    assert_eq!(llama.encode("", true).unwrap(), [1]);
    assert_eq!(llama.end_ids(), [llama.token_to_id("</s>").unwrap()]);
    let unigram = gguf_of_pieces("unigram.model", "t5");
    let unigram = unigram.bool(PREFIX, true).bool(REMOVE, true);
    let t5 = bare(
        "unigram",
        unigram.u32("tokenizer.ggml.eos_token_id", 2),
        true,
    );
    assert_eq!(t5.encode("", true).unwrap(), [2]);
    let bytes = gguf_of_pieces("unigram_bytes.model", "t5");
    bare("unigram_bytes", bytes, true);
    let byte_level = gguf_of_json("byte_level.json", "gpt2", str::to_owned);
    let byte_level = byte_level.str("tokenizer.ggml.pre", "gpt-2");
    bare("byte_level.json", byte_level, false);
    let word_piece = gguf_of_json("word_piece.json", "bert", |token| {
        match token.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None if token.starts_with('[') && token.ends_with(']') => token.to_owned(),
            None => format!("\u{2581}{token}"),
        }
    });
    let word_piece = word_piece
        .u32("tokenizer.ggml.unknown_token_id", 1)
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.seperator_token_id", 3);
    let bert = bare("word_piece.json", word_piece, false);
    let ids = bert.encode("the of", true).unwrap();
    assert_eq!((ids[0], ids[ids.len() - 1], ids.len()), (2, 3, 4));
    assert_eq!(bert.decode(&ids).unwrap(), "the of");
}

#[test]
fn control_tokens_are_special_or_text_as_asked() {
    let tokenizer = build(gguf_of_pieces("bpe.model", "llama"));
    let special = tokenizer.encode("a</s> b", false).unwrap();
    let part = |text| tokenizer.encode_literally(text, false).unwrap();
    assert_eq!(special, [part("a"), vec![2], part(" b")].concat());
    assert!(!part("a</s> b").contains(&2));
    assert_eq!(tokenizer.decode(&part("a</s> b")).unwrap(), "a</s> b");
    let spans = tokenizer.encode_with_spans("a</s> b").unwrap();
    assert_eq!(spans.iter().find(|(id, _)| *id == 2).unwrap().1, 1..5);
    assert_eq!(spans.last().unwrap().1.end, 7);
}

/// A megabyte of one character takes at most a few seconds with every tokenizer.
#[test]
fn long_runs_take_linear_time() {
    let start = std::time::Instant::now();
    for name in ["bpe", "unigram", "unigram_bytes", "suffix", "char"] {
        let tokenizer = read(name);
        for run in ["a", " ", "e", "\u{6F22}", "1", "\u{301}"] {
            let text = run.repeat(1 << 20);
            tokenizer.encode(&text, false).unwrap();
        }
    }
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}

#[test]
fn damaged_models_are_errors() {
    for name in ["bpe.model", "unigram_bytes.model", "suffix.model"] {
        let whole = std::fs::read(data("tokenizers").join(name)).unwrap();
        assert!(Tokenizer::from_sentencepiece(&whole).is_ok());
        for end in (0..whole.len()).step_by(37) {
            if let Ok(tokenizer) = Tokenizer::from_sentencepiece(&whole[..end]) {
                // A file truncated between two pieces is valid.
                tokenizer.encode("a b", false).unwrap();
            }
        }
        let mut damaged = whole.clone();
        for at in (0..whole.len()).step_by(11) {
            for flip in [0x01, 0x08, 0x80, 0xFF] {
                damaged[at] ^= flip;
                if let Ok(tokenizer) = Tokenizer::from_sentencepiece(&damaged) {
                    let ids = tokenizer.encode("a the<user> \u{e9}", false).unwrap();
                    tokenizer.decode(&ids).unwrap();
                }
                damaged[at] = whole[at];
            }
        }
    }
    for bytes in [&b""[..], b"\n", b"\n\xFF\xFF\xFF\xFF\x0F", b"\x0B", b"{}"] {
        assert!(Tokenizer::from_sentencepiece(bytes).is_err(), "{bytes:?}");
    }
}
