//! Tests of tokenizers in `vocab.json` and `merges.txt`, and in `vocab.txt`, against transformers.

use std::path::{Path, PathBuf};

use crate::common::{data, safetensors, temp_dir};
use serde_json::{Value, json};
use tercet_networks::{HfError, HfFolder};
use tercet_text::Tokenizer;

/// A model folder with the vocabulary of the reference folder `name`.
fn folder(test: &str, name: &str, model_type: &str) -> PathBuf {
    let dir = temp_dir(&format!("vocabularies-{test}-{name}"));
    let from = data("tokenizers/vocab-merges").join(name);
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let config = json!({"model_type": model_type}).to_string();
    std::fs::write(dir.join("config.json"), config).unwrap();
    let header = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    std::fs::write(dir.join("model.safetensors"), safetensors(header, &[7])).unwrap();
    dir
}

fn open(dir: &Path) -> Result<Tokenizer, HfError> {
    HfFolder::open(dir).unwrap().tokenizer()
}

fn ids(case: &Value, key: &str) -> Vec<u32> {
    let ids = case[key].as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check(dir: &Path) {
    let reference = std::fs::read(dir.join("reference.json")).unwrap();
    let reference: Value = serde_json::from_slice(&reference).unwrap();
    let tokenizer = open(dir).unwrap();
    assert_eq!(
        Some(tokenizer.vocab_len() as u64),
        reference["vocab"].as_u64()
    );
    let cases = reference["cases"].as_array().unwrap();
    assert!(cases.len() > 5);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let found = tokenizer.encode(text, true).unwrap();
        assert_eq!(found, ids(case, "ids"), "{}: {text:?}", dir.display());
        let found = tokenizer.encode(text, false).unwrap();
        assert_eq!(found, ids(case, "plain"), "{}: {text:?}", dir.display());
    }
}

#[test]
fn vocabularies_are_those_of_transformers() {
    for (name, model_type) in [
        ("gpt2", "gpt2"),
        ("roberta", "roberta"),
        ("qwen2", "qwen2"),
        ("added", "gpt2"),
        ("bert", "bert"),
        ("bert-cased", "distilbert"),
        ("bert-kept", "bert"),
        ("mpnet", "mpnet"),
    ] {
        check(&folder("same", name, model_type));
    }
}

#[test]
fn the_model_type_replaces_a_missing_class() {
    for name in ["roberta", "added"] {
        let dir = folder("class", name, if name == "added" { "gpt2" } else { name });
        std::fs::remove_file(dir.join("tokenizer_config.json")).unwrap();
        check(&dir);
    }
    let dir = folder("class", "mpnet", "mpnet");
    std::fs::remove_file(dir.join("tokenizer_config.json")).unwrap();
    check(&dir);
    // A class whose vocabulary is in another file.
    let dir = folder("other", "bert-cased", "gpt2");
    let said = reason(&dir);
    assert!(
        said.contains("`model_type` is `gpt2`") && said.contains("BertTokenizer"),
        "{said}"
    );
    let error = open(&folder("unknown", "gpt2", "llama")).map(drop);
    assert!(error.is_ok(), "{error:?}");
    let dir = folder("none", "gpt2", "deberta");
    for (config, said) in [
        ("{}", "`model_type` is `deberta`"),
        (
            r#"{"tokenizer_class": "CLIPTokenizer"}"#,
            "`tokenizer_class` is `CLIPTokenizer`",
        ),
    ] {
        std::fs::write(dir.join("tokenizer_config.json"), config).unwrap();
        assert!(reason(&dir).contains(said), "{}", reason(&dir));
    }
}

/// A folder with the tokenizer of the embedded model and these files.
fn json_folder(test: &str, added: &Value, config: &Value) -> PathBuf {
    let dir = folder(test, "gpt2", "llama");
    for file in ["vocab.json", "merges.txt"] {
        std::fs::remove_file(dir.join(file)).unwrap();
    }
    let own = std::fs::read(data("tiny-rust-llama/tokenizer.json")).unwrap();
    let mut own: Value = serde_json::from_slice(&own).unwrap();
    let tokens = own["added_tokens"].as_array_mut().unwrap();
    tokens.extend(added.as_array().unwrap().iter().cloned());
    std::fs::write(dir.join("tokenizer.json"), own.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    dir
}

/// The ids and texts are those of `AutoTokenizer` of transformers 5.24.
#[test]
fn added_tokens_follow_tokenizer_config() {
    let token = |flags: Value| {
        let mut token = json!({"content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false});
        let flags = flags.as_object().unwrap().clone();
        token.as_object_mut().unwrap().extend(flags);
        token
    };
    let own = json!([token(json!({"id": 2048}))]);
    let shown = ([432, 260, 221, 2048, 283].as_slice(), "fn a <x> b");
    for (at, (added, id, flags, (ids, text))) in [
        (&own, "2048", json!({}), shown),
        (
            &own,
            "2048",
            json!({"lstrip": true, "rstrip": true}),
            (&[432, 260, 2048, 66], "fn a<x>b"),
        ),
        (
            &own,
            "2048",
            json!({"special": true}),
            (&[432, 260, 221, 2048, 283], "fn a  b"),
        ),
        // The token has its own id.
        (
            &own,
            "5",
            json!({"lstrip": true}),
            (&[432, 260, 2048, 283], "fn a<x> b"),
        ),
        (&json!([]), "2048", json!({}), shown),
    ]
    .into_iter()
    .enumerate()
    {
        let config = json!({"added_tokens_decoder": {id: token(flags)}});
        let tokenizer = open(&json_folder(&format!("added{at}"), added, &config)).unwrap();
        let found = tokenizer.encode("fn a <x> b", true).unwrap();
        assert_eq!(found, ids, "{config}");
        assert_eq!(tokenizer.decode(&found).unwrap(), text, "{config}");
    }
    // A token that the model cannot have is none.
    let config =
        json!({"added_tokens_decoder": {"2060": token(json!({})), "y": 3, "7": {"content": ""}}});
    let tokenizer = open(&json_folder("added-far", &json!([]), &config)).unwrap();
    assert_eq!(tokenizer.vocab_len(), 2048);
    let long = json!({"added_tokens_decoder": {"2048": {"content": "x".repeat(100_000)}}});
    let error = open(&json_folder("added-long", &json!([]), &long)).unwrap_err();
    assert!(format!("{error:?}").contains("too long"), "{error:?}");
}

/// The innermost error of opening the tokenizer.
fn reason(dir: &Path) -> String {
    let error = open(dir).unwrap_err();
    let mut last: &dyn std::error::Error = &error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[test]
fn bad_vocabularies_are_refused() {
    let dir = folder("bad", "bert", "bert");
    std::fs::write(dir.join("vocab.txt"), b"[UNK]\n\xff").unwrap();
    assert!(
        reason(&dir).contains("not UTF-8 at byte 6"),
        "{}",
        reason(&dir)
    );
    let cases = [
        ("merges.txt", "#version: 0.2\nab", "line 2 is `ab`"),
        (
            "merges.txt",
            "\u{e6}\u{e6} b",
            "needs the token `\u{e6}\u{e6}`",
        ),
        ("vocab.json", r#"{"a": -1}"#, "the id of token `a` is -1"),
        ("vocab.json", "[1]", "expected a map"),
        ("added_tokens.json", r#"{"<x>": 900}"#, "`<x>` has id 900"),
        (
            "added_tokens.json",
            r#"{"<x>": "y"}"#,
            "the id of token `<x>`",
        ),
        (
            "tokenizer_config.json",
            r#"{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"x": "y"}}"#,
            "invalid entry `x`",
        ),
    ];
    for (at, (file, content, said)) in cases.into_iter().enumerate() {
        let dir = folder(&format!("bad{at}"), "gpt2", "gpt2");
        std::fs::write(dir.join(file), content).unwrap();
        assert!(reason(&dir).contains(said), "{file}: {}", reason(&dir));
    }
}

/// Shards, tokenizer and GGUF parts that are links, as in the hub's cache and in plain folders.
#[cfg(unix)]
#[test]
fn files_may_be_links() {
    use std::os::unix::fs::symlink;
    let from = folder("links", "roberta", "roberta");
    let hub = temp_dir("vocabularies-hub").join("models--o--m");
    let snapshot = hub.join("snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(hub.join("blobs")).unwrap();
    for (at, entry) in std::fs::read_dir(&from).unwrap().enumerate() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), hub.join(format!("blobs/{at}"))).unwrap();
        symlink(
            format!("../../blobs/{at}"),
            snapshot.join(entry.file_name()),
        )
        .unwrap();
    }
    check(&snapshot);
    // The single file as a shard with an index.
    let weights = snapshot.join("model.safetensors");
    let shard = "model-00001-of-00001.safetensors";
    symlink("model.safetensors.real", snapshot.join(shard)).unwrap();
    std::fs::rename(&weights, snapshot.join("model.safetensors.real")).unwrap();
    let index = json!({"weight_map": {"x": shard}}).to_string();
    std::fs::write(hub.join("blobs/index"), index).unwrap();
    symlink(
        "../../blobs/index",
        snapshot.join("model.safetensors.index.json"),
    )
    .unwrap();
    let folder = HfFolder::open(&snapshot).unwrap();
    assert_eq!(folder.weights().tensors().count(), 1);
    check(&snapshot);
}
