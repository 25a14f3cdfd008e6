//! The prefix cache beyond the slots: conversations by turns, restarts, damaged files, keys and metrics.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tercet_models::{PrefixStore, PrefixStoreOptions};
use tercet_serve::{DraftSource, ModelRegistry, ServeOptions, SpeculativeOptions};

use crate::server::{MODEL, Running, add_placed, run, start_placed};

/// Tokens of a whole prompt chunk.
const CHUNK: usize = 256;
const LARGE: u64 = 1 << 30;

fn server(slots: usize, store: Option<PrefixStore>) -> Running {
    let options = ServeOptions {
        slots,
        prefix_store: store,
        ..ServeOptions::default()
    };
    start_placed(options, |placement| placement.context = Some(2048))
}

/// A prompt of this many tokens.
fn prompt(len: usize, seed: usize) -> Vec<usize> {
    (0..len).map(|at| 5 + (at * 31 + seed * 7) % 90).collect()
}

fn ask(server: &Running, key: &str, prompt: &[usize]) -> Value {
    let body = json!({
        "model": MODEL, "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "logits": true,
    });
    let headers = [("content-type", "application/json"), ("x-api-key", key)];
    let answer = server.send("/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn cached(answer: &Value) -> usize {
    let details = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    details.as_u64().unwrap_or_else(|| panic!("{answer}")) as usize
}

/// The tokens and logits of an answer.
fn result(answer: &Value) -> [&Value; 2] {
    let choice = &answer["choices"][0];
    assert!(choice["logits"]["data"].is_string(), "{answer}");
    [&choice["token_ids"], &choice["logits"]["data"]]
}

fn folder(test: &str) -> PathBuf {
    let name = format!("tercet-serve-{test}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

type Warnings = Arc<Mutex<Vec<String>>>;

fn open(folder: &Path, memory_bytes: u64) -> (PrefixStore, Warnings) {
    let warnings = Warnings::default();
    let of_store = Arc::clone(&warnings);
    let options = PrefixStoreOptions {
        memory_bytes,
        folder: Some(folder.to_path_buf()),
        disk_bytes: LARGE,
    };
    let warn = move |line: &str| of_store.lock().unwrap().push(line.to_string());
    (PrefixStore::open(options, warn), warnings)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "prefix"))
        .collect()
}

/// Six conversations over two slots: each turn reads what is new, and at most a part of a chunk again.
#[test]
fn six_conversations_over_two_slots_are_read_once() {
    let server = server(2, Some(PrefixStore::in_memory(LARGE)));
    let alone = self::server(1, None);
    let (mut all_cached, mut again) = (0, 0);
    let mut read = vec![Vec::new(); 6];
    for (round, len) in [600, 900, 1300].into_iter().enumerate() {
        for (seed, read) in read.iter_mut().enumerate() {
            let before = [0, 600, 900][round];
            let whole = before / CHUNK * CHUNK;
            let answer = ask(&server, "", &prompt(len, seed));
            assert_eq!(cached(&answer), whole, "round {round}, text {seed}");
            all_cached += whole;
            let ids: Vec<u64> = prompt(len, seed).into_iter().map(|id| id as u64).collect();
            let known = read.iter().zip(&ids).take_while(|(a, b)| a == b);
            again += known.count() - whole;
            let written = answer["choices"][0]["token_ids"].as_array().unwrap();
            let written = written.iter().map(|id| id.as_u64().unwrap());
            // The last token is written and not read.
            *read = ids.into_iter().chain(written.take(2)).collect();
            if seed == 3 {
                let want = ask(&alone, "", &prompt(len, seed));
                assert_eq!(result(&answer), result(&want), "round {round}");
            }
        }
    }
    let metric = |name: &str| server.metric(name) as usize;
    assert_eq!(metric("tercet_cached_tokens_total"), all_cached);
    assert_eq!(metric("tercet_reread_tokens_total"), again);
    assert_eq!(metric("tercet_cache_restored_tokens_total"), all_cached);
    // The entries of the two conversations in the slots stay until longer ones replace them.
    assert_eq!(metric("tercet_cache_entries"), 6);
    assert!(metric("tercet_cache_memory_bytes") > 0);
    assert_eq!(metric("tercet_cache_disk_bytes"), 0);
    assert_eq!(alone.metric("tercet_cache_entries"), 0.0);
}

#[test]
fn a_restarted_server_reads_no_prefix_again() {
    for memory in [LARGE, 0] {
        let folder = folder(&format!("restart-{memory}"));
        let (store, warnings) = open(&folder, memory);
        let first = server(2, Some(store));
        let want: Vec<Value> = (0..4)
            .map(|seed| ask(&first, "", &prompt(700, seed)))
            .collect();
        drop(first);
        assert_eq!(files(&folder).len(), 4);
        let (store, _) = open(&folder, memory);
        let second = server(2, Some(store));
        for (seed, want) in want.iter().enumerate() {
            let answer = ask(&second, "", &prompt(700, seed));
            assert_eq!(cached(&answer), 2 * CHUNK, "{seed}");
            assert_eq!(result(&answer), result(want), "{seed}");
        }
        assert!(second.metric("tercet_cache_disk_bytes") > 0.0);
        let of_memory = second.metric("tercet_cache_memory_bytes");
        assert!(of_memory <= memory as f64, "{of_memory}");
        drop(second);
        assert_eq!(*warnings.lock().unwrap(), Vec::<String>::new());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn damaged_files_and_lost_folders_do_not_stop_the_server() {
    let folder = folder("damaged");
    let (store, _) = open(&folder, LARGE);
    let first = server(1, Some(store));
    let want = ask(&first, "", &prompt(700, 1));
    drop(first);
    let path = files(&folder).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (store, warnings) = open(&folder, LARGE);
    let second = server(1, Some(store));
    let answer = ask(&second, "", &prompt(700, 1));
    assert_eq!(cached(&answer), 0);
    assert_eq!(result(&answer), result(&want));
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
    // A folder that cannot be written, as on a full disk: one more warning, and the memory still serves.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, b"").unwrap();
    for seed in [2, 3, 2, 3] {
        ask(&second, "", &prompt(700, seed));
    }
    assert_eq!(cached(&ask(&second, "", &prompt(700, 2))), 2 * CHUNK);
    drop(second);
    assert_eq!(warnings.lock().unwrap().len(), 2, "{warnings:?}");
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn keys_are_isolated_in_memory_and_after_a_restart() {
    let folder = folder("isolated");
    let keys =
        |names: &[&str]| -> Vec<String> { names.iter().map(|key| key.to_string()).collect() };
    let start = |api_keys: Vec<String>, isolate| {
        let options = ServeOptions {
            slots: 1,
            isolate,
            api_keys,
            prefix_store: Some(open(&folder, LARGE).0),
            ..ServeOptions::default()
        };
        start_placed(options, |placement| placement.context = Some(1024))
    };
    let text = prompt(600, 1);
    let server = start(keys(&["key-number-one", "key-number-two"]), true);
    let of = |key: &str| cached(&ask(&server, key, &text));
    let (one, two) = ("key-number-one", "key-number-two");
    assert_eq!([of(one), of(two), of(one), of(two)], [0, 0, 512, 512]);
    drop(server);
    for path in std::fs::read_dir(&folder).unwrap() {
        let bytes = std::fs::read(path.unwrap().path()).unwrap();
        assert!(!bytes.windows(11).any(|part| part == b"key-number-"));
    }
    // Other keys at the places of the first ones, and one of them at another place.
    let server = start(keys(&["key-three", "key-four", "key-number-two"]), true);
    let of = |key: &str| cached(&ask(&server, key, &text));
    assert_eq!([of("key-three"), of("key-four"), of(two)], [0, 0, 512]);
    drop(server);
    // Without isolation, the prefixes of isolated keys stay theirs.
    let server = start(keys(&["key-number-two"]), false);
    assert_eq!(cached(&ask(&server, two, &text)), 0);
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn drafts_go_on_from_stored_prefixes() {
    let options = ServeOptions {
        slots: 1,
        prefix_store: Some(PrefixStore::in_memory(LARGE)),
        ..ServeOptions::default()
    };
    let server = start_placed(options, |placement| {
        placement.context = Some(1024);
        placement.draft = Some(SpeculativeOptions {
            by: DraftSource::Ngrams,
            tokens: 3,
        });
    });
    let ask = |seed| {
        let body = json!({"model": MODEL, "prompt": prompt(600, seed), "max_tokens": 24, "temperature": 0});
        let answer = server.post("/v1/completions", &body).json();
        (cached(&answer), answer["choices"][0]["text"].clone())
    };
    let want = [ask(0), ask(1)];
    for (seed, want) in want.into_iter().enumerate() {
        assert_eq!(want.0, 0);
        assert_eq!(ask(seed), (2 * CHUNK, want.1));
    }
}

#[test]
fn models_share_one_store_without_mixing() {
    let store = PrefixStore::in_memory(LARGE);
    let options = ServeOptions {
        slots: 1,
        prefix_store: Some(store.clone()),
        ..ServeOptions::default()
    };
    // The same model with caches in another format.
    let mut models = ModelRegistry::new();
    let context = Some(1024);
    add_placed(&mut models, &options, |placement| {
        placement.context = context
    })
    .unwrap();
    let mut other = ModelRegistry::new();
    add_placed(&mut other, &options, |placement| {
        placement.context = context;
        placement.cache = Some(tercet::DType::F16.into());
    })
    .unwrap();
    let (one, two) = (run(models, options.clone()), run(other, options));
    for server in [&one, &two] {
        for seed in [0, 1] {
            assert_eq!(cached(&ask(server, "", &prompt(600, seed))), 0);
        }
    }
    assert_eq!(cached(&ask(&one, "", &prompt(600, 0))), 2 * CHUNK);
    assert_eq!(cached(&ask(&two, "", &prompt(600, 0))), 2 * CHUNK);
    assert!(store.stats().entries >= 2);
}
