//! Tests of tokenizers from both sources, batches, and streamed decoding.

// Long: all tests of the file share the small vocabularies at its top.

use crate::common::{GgufWriter, data};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use tercet_files::{Gguf, MappedFile};
use tercet_text::{Tokenizer, TokenizerError};

static FROM_JSON: LazyLock<Tokenizer> = LazyLock::new(|| {
    let tokenizer = Tokenizer::from_file(data("tiny-rust-llama/tokenizer.json")).unwrap();
    tokenizer.with_bos(0).unwrap()
});
static FROM_GGUF: LazyLock<Tokenizer> = LazyLock::new(|| {
    let path = data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap()
});

const HARD: &[&str] = &[
    "",
    " ",
    "   \n\n  \t x",
    "\ttabs\t\there",
    "line\r\nline\r\n",
    "\u{1F980} crab \u{1F469}\u{200D}\u{1F4BB}",
    "\u{65E5}\u{672C}\u{8A9E}\u{306E}\u{6587}",
    "fn main() {\n    println!(\"{}\", 1_000 + 0x2F);\n}\n",
    "don't I'LL we've 'tis 12345678 3.14",
    "e\u{301} \u{e9} \u{FFFD} \u{0} \u{7f}",
    "<|endoftext|> inside <|endoftext|>",
    "trailing   ",
];

#[test]
fn reference_ids_from_both_sources() {
    let text = std::fs::read_to_string(data("tiny-rust-llama/reference.json")).unwrap();
    let reference: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    let mut prompts = 0;
    for case in reference
        .values()
        .filter(|case| case.get("prompt").is_some())
    {
        prompts += 1;
        let prompt = case["prompt"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let greedy: Vec<u32> = serde_json::from_value(case["greedy"].clone()).unwrap();
        for tokenizer in [&*FROM_JSON, &*FROM_GGUF] {
            assert_eq!(tokenizer.encode(prompt, true).unwrap(), ids, "{prompt}");
            assert_eq!(
                tokenizer.encode(prompt, false).unwrap(),
                ids[1..],
                "{prompt}"
            );
            assert_eq!(
                tokenizer.decode(&greedy).unwrap(),
                case["text"].as_str().unwrap()
            );
        }
    }
    assert_eq!(prompts, 4);
}

#[test]
fn hard_texts_agree_and_come_back() {
    for text in HARD {
        let ids = FROM_JSON.encode(text, true).unwrap();
        assert_eq!(FROM_GGUF.encode(text, true).unwrap(), ids, "{text:?}");
        for tokenizer in [&*FROM_JSON, &*FROM_GGUF] {
            let spelled = tokenizer.decode_with_special(&ids[1..]).unwrap();
            assert_eq!(spelled, *text);
            assert_eq!(
                tokenizer.decode(&ids).unwrap(),
                text.replace("<|endoftext|>", "")
            );
        }
    }
    assert_eq!(FROM_JSON.encode("", true).unwrap(), [0]);
    assert_eq!(FROM_JSON.encode("", false).unwrap(), [] as [u32; 0]);
}

#[test]
fn unknown_tokens_are_an_error() {
    for tokenizer in [&*FROM_JSON, &*FROM_GGUF] {
        assert_eq!(tokenizer.vocab_len(), 2048);
        assert_eq!(tokenizer.token_to_id("<|endoftext|>"), Some(0));
        assert_eq!(tokenizer.id_to_token(0).as_deref(), Some("<|endoftext|>"));
        for id in [2048, u32::MAX] {
            let error = tokenizer.decode(&[5, id]).unwrap_err();
            assert!(matches!(
                error,
                TokenizerError::UnknownToken {
                    vocab_len: 2048,
                    ..
                }
            ));
            assert!(tokenizer.stream().push(id).is_err());
        }
    }
}

/// The text of a stream and its pieces.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> (String, Vec<String>) {
    let mut stream = tokenizer.stream();
    let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    (pieces.concat(), pieces)
}

#[test]
fn streams_hold_back_incomplete_characters() {
    let ids = FROM_JSON.encode("a\u{1F980}b", false).unwrap();
    let (text, pieces) = stream(&FROM_JSON, &ids);
    assert_eq!(text, "a\u{1F980}b");
    assert!(ids.len() > 3 && !text.contains('\u{FFFD}'));
    assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')));
    // The first bytes of the crab emoji only: they are returned at the end.
    let (text, pieces) = stream(&FROM_JSON, &ids[..2]);
    assert_eq!(
        (text.as_str(), pieces.last().unwrap().as_str()),
        ("a\u{FFFD}", "\u{FFFD}")
    );
}

fn word_pieces(extra: Value) -> Tokenizer {
    let vocab = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", "a", ".",
    ];
    let vocab: serde_json::Map<String, Value> = vocab
        .iter()
        .enumerate()
        .map(|(id, t)| ((*t).to_owned(), json!(id)))
        .collect();
    let special = |id: u32, token: &str| {
        json!({"id": id, "content": token, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let around = |id: &str, n: u32| json!({"id": id, "ids": [n], "tokens": [id]});
    let part = |kind: &str, id: &str, ty: u32| json!({kind: {"id": id, "type_id": ty}});
    let mut json = json!({
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"), special(3, "[SEP]")],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [part("SpecialToken", "[CLS]", 0), part("Sequence", "A", 0), part("SpecialToken", "[SEP]", 0)],
            "pair": [part("SpecialToken", "[CLS]", 0), part("Sequence", "A", 0), part("Sequence", "B", 1)],
            "special_tokens": {"[CLS]": around("[CLS]", 2), "[SEP]": around("[SEP]", 3)}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    for (key, value) in extra.as_object().unwrap() {
        json[key] = value.clone();
    }
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

#[test]
fn the_caller_controls_padding_and_truncation() {
    let tokenizer = word_pieces(json!({}));
    assert_eq!(tokenizer.pad(), Some(0));
    let long = "hello worlds hello worlds.";
    let ids = tokenizer.encode(long, true).unwrap();
    assert_eq!(ids, [2, 4, 5, 6, 4, 5, 6, 8, 3]);
    let batch = tokenizer.encode_batch(&[long, "A", ""], 5).unwrap();
    assert_eq!((batch.rows, batch.row_len), (3, 5));
    assert_eq!(batch.ids, [2, 4, 5, 6, 3, 2, 7, 3, 0, 0, 2, 3, 0, 0, 0]);
    let kept: Vec<usize> = batch
        .mask
        .chunks(5)
        .map(|row| row.iter().filter(|m| **m).count())
        .collect();
    assert_eq!(kept, [5, 3, 2]);
    assert_eq!(batch.type_ids, [0; 15]);
    assert_eq!(tokenizer.encode_batch(&[long], 512).unwrap().ids, ids);
    let none = tokenizer.encode_batch::<&str>(&[], 8).unwrap();
    assert_eq!((none.rows, none.row_len, none.ids.len()), (0, 0, 0));
    for max_len in 0..3 {
        assert!(matches!(
            tokenizer.encode_batch(&["a"], max_len),
            Err(TokenizerError::NoRoom { special: 2, .. })
        ));
    }
    let bare = word_pieces(json!({"post_processor": null}))
        .with_bos(2)
        .unwrap();
    assert_eq!(bare.encode_batch(&["hello a"], 2).unwrap().ids, [2, 4]);
    assert!(bare.with_eos(99).is_err());
}

#[test]
fn streams_of_other_decoders_join_to_the_text() {
    let tokenizer = word_pieces(json!({}));
    let ids = tokenizer.encode("hello worlds a world", true).unwrap();
    let (text, pieces) = stream(&tokenizer, &ids);
    assert_eq!(text, "hello worlds a world");
    assert_eq!(pieces[1], "hello");

    let vocab = json!({"<unk>": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "x": 4, "\u{2581}y": 5});
    let bytes = json!({"model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
            "vocab": vocab, "merges": []},
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]}});
    let tokenizer = word_pieces(bytes);
    let (text, pieces) = stream(&tokenizer, &[4, 1, 2, 3, 5]);
    assert_eq!(text, "x\u{20AC} y");
    assert_eq!(pieces, ["x", "", "", "\u{20AC}", " y", ""]);
    let (text, _) = stream(&tokenizer, &[4, 1, 2]);
    assert_eq!(text, tokenizer.decode(&[4, 1, 2]).unwrap());
}

#[test]
fn bad_tokenizer_json_is_an_error() {
    for json in ["1", "{}", "[1]", r#"{"model": {"type": "Nothing"}}"#] {
        assert!(matches!(
            Tokenizer::from_json(json.as_bytes()),
            Err(TokenizerError::BadJson { .. })
        ));
    }
    assert!(matches!(
        Tokenizer::from_file("no/tokenizer.json"),
        Err(TokenizerError::File(_))
    ));
}

/// A small `tokenizer.json` with a decoder and a normalizer with `charsmap`, in base64.
fn small_json(charsmap: &str) -> String {
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Lowercase"},
            {"type": "Precompiled", "precompiled_charsmap": charsmap}]},
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": true}]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "caf\u{e9}": 1, "##s": 2}},
    });
    json.to_string()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let all = three
            .iter()
            .fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = DIGITS[(all >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() {
                digit as char
            } else {
                '='
            });
        }
    }
    text
}

/// A replacement table that maps `1` to `2`: two blocks of 256 units, then the text.
fn charsmap() -> Vec<u8> {
    let mut units = vec![0u32; 512];
    units[0] = 256 << 10;
    // The child for `1`; its value is 128 units further.
    let child = 256 ^ 0x31;
    units[child] = 128 << 10 | 1 << 8 | 0x31;
    units[child ^ 128] = 3;
    let mut bytes = 2048u32.to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(b"ab\x002\0");
    bytes
}

#[test]
fn damaged_tokenizer_json_is_an_error_with_its_place() {
    let whole = small_json(&base64(&charsmap())).into_bytes();
    let tokenizer = Tokenizer::from_json(&whole).unwrap();
    assert_eq!(tokenizer.encode("CAF\u{e9}s", true).unwrap(), [1, 2]);
    for end in 0..whole.len() {
        let error = Tokenizer::from_json(&whole[..end]).unwrap_err();
        let TokenizerError::NotJson { line, column, .. } = error else {
            panic!("cut at {end}: {error}");
        };
        assert_eq!((line, column.min(1)), (1, end.min(1)), "cut at {end}");
        assert!(column <= end, "cut at {end}: column {column}");
    }
    // Any changed byte gives a result, and a table that is read can be used.
    let mut damaged = whole.clone();
    for at in 0..whole.len() {
        for flip in [0x01, 0x02, 0x20, 0x80] {
            damaged[at] ^= flip;
            if let Ok(tokenizer) = Tokenizer::from_json(&damaged) {
                let _ = tokenizer.encode("caf\u{e9}s 1", true);
                let _ = tokenizer.decode(&[1, 2]);
            }
            damaged[at] = whole[at];
        }
    }
}

#[test]
fn deep_and_damaged_decoders_are_errors() {
    let deep = format!(r#"{{"decoder": {}}}"#, "[".repeat(100_000));
    let text = "{\n \"decoder\": {\"type\": \"Fuse\", \"x\": \"\u{1}\"}}";
    for (json, at) in [(deep.as_str(), 1), (text, 2)] {
        let error = Tokenizer::from_json(json.as_bytes()).unwrap_err();
        assert!(
            matches!(error, TokenizerError::NotJson { line, .. } if line == at),
            "{error}"
        );
    }
}

#[test]
fn damaged_tables_of_replacements_are_errors() {
    let whole = charsmap();
    let tokenizer = Tokenizer::from_json(small_json(&base64(&whole)).as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("caf\u{e9}", true).unwrap(), [1]);
    let refused = |bytes: &[u8]| {
        let read = Tokenizer::from_json(small_json(&base64(bytes)).as_bytes());
        matches!(read, Err(TokenizerError::BadCharsMap { .. }))
    };
    for end in [0, 3, 4, 100, 1027, 2051] {
        assert!(refused(&whole[..end]), "cut at {end}");
    }
    for (unit, value) in [(0, 600 << 10), (256 ^ 0x31, 1 << 30 | 0x131), (177, 9)] {
        let mut bytes = whole.clone();
        bytes[4 + 4 * unit..][..4].copy_from_slice(&u32::to_le_bytes(value));
        assert_eq!(refused(&bytes), unit != 177, "unit {unit}");
    }
    let mut beyond = whole.clone();
    beyond[4 + 4 * (256 ^ 0x31 ^ 128)] = 200;
    assert!(refused(&beyond));
    for text in ["AAA", "A===", "!AAA", ""] {
        let read = Tokenizer::from_json(small_json(text).as_bytes());
        assert!(matches!(read, Err(TokenizerError::BadCharsMap { .. })));
    }
}

/// The spellings of all bytes, in the order of the demo model's vocabulary.
fn byte_tokens() -> Vec<String> {
    (1..257)
        .map(|id| FROM_JSON.id_to_token(id).unwrap())
        .collect()
}

fn gguf_vocab(tokens: &[String], merges: &[&str]) -> GgufWriter {
    GgufWriter::default()
        .str("tokenizer.ggml.model", "gpt2")
        .strs("tokenizer.ggml.tokens", tokens)
        .strs("tokenizer.ggml.merges", merges)
}

fn build(writer: GgufWriter) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::parse(MappedFile::from_vec(writer.bytes())).unwrap())
}

#[test]
fn gguf_vocabularies_of_each_pre_tokenizer() {
    let mut tokens = byte_tokens();
    for token in ["12", "123", "1234", "\u{120}a", "<user>", "<ctl>"] {
        tokens.push(token.to_owned());
    }
    let merges = ["1 2", "12 3", "123 4", "\u{120} a"];
    let mut types = vec![1; tokens.len()];
    types[260] = 4;
    types[261] = 3;
    let with_pre = |pre: &str| {
        build(
            gguf_vocab(&tokens, &merges)
                .i32s("tokenizer.ggml.token_type", &types)
                .u32("tokenizer.ggml.bos_token_id", 261)
                .str("tokenizer.ggml.pre", pre),
        )
        .unwrap()
    };
    // The digit grouping of each pre-tokenizer.
    for (pre, expected) in [
        ("gpt-2", &["1234"][..]),
        ("llama-bpe", &["123", "4"]),
        ("qwen2", &["1", "2", "3", "4"]),
        ("smollm", &["1", "2", "3", "4"]),
        ("default", &["123", "4"]),
    ] {
        let tokenizer = with_pre(pre);
        let spelled: Vec<_> = tokenizer
            .encode("1234", false)
            .unwrap()
            .into_iter()
            .map(|id| tokenizer.id_to_token(id).unwrap())
            .collect();
        assert_eq!(spelled, expected, "{pre}");
        assert_eq!(tokenizer.encode(" a<user>", false).unwrap(), [259, 260]);
        let ids = tokenizer.encode("<ctl>x", true).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "x");
        let begins = ids.iter().filter(|id| **id == 261).count();
        assert_eq!(begins, if pre == "llama-bpe" { 2 } else { 1 }, "{pre}");
        for text in HARD {
            let ids = tokenizer.encode(text, false).unwrap();
            let composed = if pre == "qwen2" {
                text.replace("e\u{301}", "\u{e9}")
            } else {
                (*text).to_owned()
            };
            assert_eq!(tokenizer.decode(&ids).unwrap(), composed, "{pre}");
        }
    }
}

#[test]
fn bad_gguf_vocabularies_are_refused() {
    let tokens = byte_tokens();
    let error = |writer: GgufWriter| build(writer).unwrap_err();
    let reason = |writer: GgufWriter| match error(writer) {
        TokenizerError::BadVocabulary { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert!(build(gguf_vocab(&tokens, &[])).is_ok());
    assert!(matches!(
        error(GgufWriter::default().str("tokenizer.ggml.model", "rwkv")),
        TokenizerError::UnsupportedModel { found, .. } if found == "rwkv"
    ));
    assert!(matches!(
        error(GgufWriter::default()),
        TokenizerError::Gguf(_)
    ));
    assert!(matches!(
        error(gguf_vocab(&tokens, &[]).str("tokenizer.ggml.pre", "new-one")),
        TokenizerError::UnsupportedPreTokenizer { .. }
    ));
    assert!(matches!(
        error(gguf_vocab(&tokens, &[]).bool("tokenizer.ggml.add_space_prefix", true)),
        TokenizerError::UnsupportedSetting { .. }
    ));
    assert!(matches!(
        error(gguf_vocab(&tokens, &[]).bool("tokenizer.ggml.add_bos_token", true)),
        TokenizerError::Gguf(_)
    ));
    assert!(matches!(
        error(
            gguf_vocab(&tokens, &[])
                .bool("tokenizer.ggml.add_eos_token", true)
                .u32("tokenizer.ggml.eos_token_id", 9999)
        ),
        TokenizerError::UnknownToken { id: 9999, .. }
    ));
    let mut twice = tokens.clone();
    twice.push("A".to_owned());
    assert!(reason(gguf_vocab(&twice, &[])).contains("are both `A`"));
    assert!(reason(gguf_vocab(&tokens[1..], &[])).contains("has no token"));
    assert!(reason(gguf_vocab(&tokens, &["ab"])).contains("merge 0 is `ab`"));
    assert!(reason(gguf_vocab(&tokens, &["a b"])).contains("needs the token `ab`"));
    let types = |types: &[i32]| gguf_vocab(&tokens, &[]).i32s("tokenizer.ggml.token_type", types);
    assert!(reason(types(&[1; 3])).contains("3 token types"));
    assert!(reason(types(&[7; 256])).contains("has type 7"));
}

fn spelled_pieces(kind: &str) -> GgufWriter {
    let tokens = ["<unk>", "<s>", "</s>", "a", "ab", "\u{2581}"].map(str::to_owned);
    GgufWriter::default()
        .str("tokenizer.ggml.model", kind)
        .strs("tokenizer.ggml.tokens", &tokens)
}

fn scores(writer: GgufWriter, scores: &[f32]) -> GgufWriter {
    let bytes = scores.iter().flat_map(|score| score.to_le_bytes());
    let mut array = 6_u32.to_le_bytes().to_vec();
    array.extend((scores.len() as u64).to_le_bytes());
    array.extend(bytes);
    writer.raw("tokenizer.ggml.scores", 9, &array)
}

#[test]
fn bad_pieces_in_gguf_are_refused() {
    let reason = |writer: GgufWriter| match build(writer).unwrap_err() {
        TokenizerError::BadVocabulary { reason } => reason,
        other => panic!("{other:?}"),
    };
    for kind in ["llama", "t5"] {
        let sound = scores(spelled_pieces(kind), &[-1.0; 6]);
        assert!(build(sound.clone()).is_ok());
        assert!(matches!(
            build(spelled_pieces(kind)),
            Err(TokenizerError::Gguf(_))
        ));
        let short = scores(spelled_pieces(kind), &[0.0; 5]);
        assert!(reason(short).contains("5 scores"));
        let nan = scores(spelled_pieces(kind), &[f32::NAN; 6]);
        assert!(reason(nan).contains("score NaN"));
        let types = |types: &[i32]| {
            let sound = sound.clone();
            reason(sound.i32s("tokenizer.ggml.token_type", types))
        };
        assert!(types(&[2, 2, 3, 1, 1, 1]).contains("both the unknown one"));
        assert!(types(&[2, 3, 3, 6, 1, 1]).contains("not spelled as one"));
        assert!(types(&[2, 3, 3, 1, 1, -1]).contains("has type -1"));
        let unknown = sound.clone().u32("tokenizer.ggml.unknown_token_id", 6);
        assert!(reason(unknown).contains("unknown token 6"));
        let map = [
            &0_u32.to_le_bytes()[..],
            &5_u64.to_le_bytes(),
            b"\xFF\xFF\xFF\xFFa",
        ]
        .concat();
        let map = sound
            .clone()
            .raw("tokenizer.ggml.precompiled_charsmap", 9, &map);
        assert!(matches!(
            build(map),
            Err(TokenizerError::BadCharsMap { .. })
        ));
        let bos = sound.bool("tokenizer.ggml.add_bos_token", true);
        assert!(matches!(
            build(bos.u32("tokenizer.ggml.bos_token_id", 6)),
            Err(TokenizerError::UnknownToken { id: 6, .. })
        ));
    }
    assert!(matches!(
        build(spelled_pieces("bert")),
        Err(TokenizerError::UnknownToken { id: 100, .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_agrees_and_comes_back(text in "\\PC{0,40}|[ a-z\\t\\r\\n'0-9]{0,40}") {
        let ids = FROM_JSON.encode(&text, false).unwrap();
        prop_assert_eq!(&FROM_GGUF.encode(&text, false).unwrap(), &ids);
        prop_assert_eq!(FROM_GGUF.decode_with_special(&ids).unwrap(), text);
    }

    /// Tokens in any order may split characters anywhere; a stream must not lose text.
    #[test]
    fn streams_join_to_the_text(ids in prop::collection::vec(0_u32..2048, 0..60)) {
        prop_assert_eq!(stream(&FROM_GGUF, &ids).0, FROM_GGUF.decode(&ids).unwrap());
    }

    #[test]
    fn streams_of_lone_bytes(ids in prop::collection::vec(1_u32..257, 0..60)) {
        prop_assert_eq!(stream(&FROM_JSON, &ids).0, FROM_JSON.decode(&ids).unwrap());
    }
}
