//! Tests of the prefix store: more conversations than slots, restarts, damaged files and limits. Results
//! must have the same bits as without a store, and nothing but the last part of a prompt may be read again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tercet::{DType, Device};
use tercet_models::{
    BatchDecoder, BatchEventKind, BatchGenerator, BatchOptions, CacheFormat, Image, ImageEncoder,
    ModelFiles, PrefixStore, PrefixStoreOptions, Sequence, SequenceId,
};

use crate::batches::{adapter, tokens};

const CONTEXT: usize = 96;
const CHUNK: usize = 5;
const LARGE: u64 = 1 << 30;

/// Models whose caches have all positions.
const DENSE: [&str; 3] = ["llama-a", "deepseek_v3-a", "qwen3_moe-a"];
/// Models with window caches, recurrent states, and both with caches of all positions.
const CHECKPOINTED: [&str; 6] = [
    "gemma3-a",
    "gpt_oss-a",
    "mistral-a",
    "mamba2-a",
    "falcon_h1-a",
    "qwen3_next-a",
];

fn generator(
    name: &str,
    store: Option<&PrefixStore>,
    options: impl FnOnce(BatchOptions) -> BatchOptions,
) -> BatchGenerator {
    let decoder = decoder(name, store, options);
    decoder.generator(&Device::cpu()).unwrap()
}

fn decoder(
    name: &str,
    store: Option<&PrefixStore>,
    options: impl FnOnce(BatchOptions) -> BatchOptions,
) -> BatchDecoder {
    let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
    let decoder = files.batch_decoder(|spec| {
        options(BatchOptions {
            context: CONTEXT,
            chunk: CHUNK,
            prefix_store: store.cloned(),
            ..BatchOptions::new(spec, 2)
        })
    });
    decoder.unwrap()
}

/// The result of a sequence: its tokens, the bits of their logits, and the prompt tokens that were read.
#[derive(Debug, Default, PartialEq)]
struct StoredAnswer {
    tokens: Vec<u32>,
    bits: Vec<Vec<u32>>,
    read: usize,
}

fn finish(batch: &mut BatchGenerator, of: SequenceId) -> StoredAnswer {
    let (mut answer, mut before) = (StoredAnswer::default(), None);
    loop {
        let events = batch.step().unwrap();
        for event in events.into_iter().filter(|e| e.sequence == of) {
            match event.kind {
                BatchEventKind::Prompt(done) => {
                    let from = before.unwrap_or((done - 1) / CHUNK * CHUNK);
                    answer.read += done - from;
                    before = Some(done);
                }
                BatchEventKind::Token(token) => {
                    let logits = batch.logits(of).unwrap().unwrap();
                    answer.tokens.push(token);
                    answer
                        .bits
                        .push(logits.iter().map(|x| x.to_bits()).collect());
                }
                BatchEventKind::Ended(_) => return answer,
                BatchEventKind::Failed(e) => panic!("{e}"),
            }
        }
    }
}

fn ask(batch: &mut BatchGenerator, prompt: &[u32]) -> StoredAnswer {
    ask_in(batch, prompt, "")
}

fn ask_in(batch: &mut BatchGenerator, prompt: &[u32], scope: &str) -> StoredAnswer {
    let sequence = Sequence {
        cache_scope: scope.to_string(),
        ..Sequence::new(prompt.to_vec(), 4)
    };
    let id = batch.start(sequence).unwrap();
    finish(batch, id)
}

/// The answer of a generator without any cached prefix, with the tokens that a cache leaves to read.
fn expected(fresh: &mut BatchGenerator, prompt: &[u32], cached: usize) -> StoredAnswer {
    fresh.reset();
    let answer = ask(fresh, prompt);
    assert_eq!(answer.read, prompt.len());
    StoredAnswer {
        read: prompt.len() - cached,
        ..answer
    }
}

/// Number of tokens that are not read again after a prompt of this length, by a longer one.
fn kept(name: &str, len: usize) -> usize {
    match CHECKPOINTED.contains(&name) {
        true => (len - 1) / CHUNK * CHUNK,
        false => len / CHUNK * CHUNK,
    }
}

/// A folder of this test, which is empty.
fn folder(test: &str) -> PathBuf {
    let name = format!("tercet-{test}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// A store with a folder, and its warnings.
fn open(
    folder: &Path,
    memory_bytes: u64,
    disk_bytes: u64,
) -> (PrefixStore, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let of_store = Arc::clone(&warnings);
    let options = PrefixStoreOptions {
        memory_bytes,
        folder: Some(folder.to_path_buf()),
        disk_bytes,
    };
    let store = PrefixStore::open(options, move |line| {
        of_store.lock().unwrap().push(line.to_string());
    });
    (store, warnings)
}

/// Removes the folder after the store's thread has written its files, which would fail the removal.
fn remove(folder: &Path, store: &PrefixStore) {
    store.flush();
    std::fs::remove_dir_all(folder).unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let mut own: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "prefix"))
        .collect();
    own.sort();
    own
}

#[test]
fn conversations_by_turns_are_read_once() {
    for name in DENSE.iter().chain(&CHECKPOINTED) {
        for cache in [None, Some(CacheFormat::Q8_0)] {
            let options = |o| BatchOptions { cache, ..o };
            let store = PrefixStore::in_memory(LARGE);
            let mut batch = generator(name, Some(&store), options);
            let mut fresh = generator(name, None, options);
            let texts: Vec<Vec<u32>> = (0..5).map(|seed| tokens(70, seed)).collect();
            let mut restored = 0;
            for (round, len) in [23, 40, 58].into_iter().enumerate() {
                for (at, text) in texts.iter().enumerate() {
                    let len = len + at;
                    let before = [0, 23 + at, 40 + at][round];
                    let cached = if before == 0 { 0 } else { kept(name, before) };
                    let want = expected(&mut fresh, &text[..len], cached);
                    let got = ask(&mut batch, &text[..len]);
                    assert_eq!(got, want, "{name} {cache:?}, round {round}, text {at}");
                    restored += cached;
                }
            }
            let stats = store.stats();
            assert_eq!(stats.restored_tokens, restored as u64, "{name} {cache:?}");
            // Shorter entries of a conversation are replaced.
            assert!(stats.entries <= texts.len(), "{name} {cache:?}: {stats:?}");
        }
    }
}

#[test]
fn a_common_beginning_is_kept_for_others() {
    for name in DENSE.iter().chain(&CHECKPOINTED) {
        let store = PrefixStore::in_memory(LARGE);
        let mut batch = generator(name, Some(&store), |o| o);
        let mut fresh = generator(name, None, |o| o);
        let begun = tokens(12, 9);
        let text = |seed: u32| [&begun[..], &tokens(40, seed)].concat();
        for (at, seed) in (1..6).enumerate() {
            // A model that goes back shares with the first text; others save a checkpoint at the second.
            let cached = match (CHECKPOINTED.contains(name), at) {
                (_, 0) | (true, 1) => 0,
                _ => 10,
            };
            let prompt = &text(seed)[..30];
            let want = expected(&mut fresh, prompt, cached);
            assert_eq!(ask(&mut batch, prompt), want, "{name}, text {at}");
        }
        for seed in 1..6 {
            let prompt = &text(seed)[..47];
            let want = expected(&mut fresh, prompt, kept(name, 30));
            assert_eq!(ask(&mut batch, prompt), want, "{name}, again {seed}");
        }
        // The beginning is still there.
        let prompt = &text(7)[..30];
        let want = expected(&mut fresh, prompt, 10);
        assert_eq!(ask(&mut batch, prompt), want, "{name}, later");
    }
}

#[test]
fn prefixes_move_while_other_sequences_run() {
    for name in ["llama-a", "gemma3-a", "qwen3_next-a"] {
        let store = PrefixStore::in_memory(LARGE);
        let mut batch = generator(name, Some(&store), |o| o);
        let mut fresh = generator(name, None, |o| o);
        let long = tokens(30, 9);
        let want_long = {
            let id = fresh.start(Sequence::new(long.clone(), 60)).unwrap();
            finish(&mut fresh, id)
        };
        let of_long = batch.start(Sequence::new(long, 60)).unwrap();
        let mut written = Vec::new();
        for round in 0..2 {
            for seed in 0..3 {
                let prompt = &tokens(70, seed)[..21 + 12 * round];
                let cached = if round == 0 { 0 } else { kept(name, 21) };
                let want = expected(&mut fresh, prompt, cached);
                let id = batch.start(Sequence::new(prompt.to_vec(), 4)).unwrap();
                let mut got = StoredAnswer::default();
                while got.tokens.len() < 4 {
                    for event in batch.step().unwrap() {
                        let BatchEventKind::Token(token) = event.kind else {
                            continue;
                        };
                        let logits = batch.logits(event.sequence).unwrap().unwrap();
                        let bits: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
                        match event.sequence == id {
                            true => {
                                got.tokens.push(token);
                                got.bits.push(bits);
                            }
                            false => written.push((token, bits)),
                        }
                    }
                }
                assert_eq!(got.bits, want.bits, "{name}, {round} {seed}");
            }
        }
        assert!(store.stats().restored_tokens > 0, "{name}");
        assert!(written.len() > 8, "{name}: {}", written.len());
        for (at, (token, bits)) in written.into_iter().enumerate() {
            assert_eq!(token, want_long.tokens[at], "{name}, token {at}");
            assert!(bits == want_long.bits[at], "{name}, token {at}");
        }
        assert!(batch.cancel(of_long));
    }
}

#[test]
fn generators_of_one_model_share_a_store() {
    let prompt = tokens(33, 1);
    let mut fresh = generator("llama-a", None, |o| o);
    let want = expected(&mut fresh, &prompt, 30);
    // In memory, these are the generators of one decoder.
    let store = PrefixStore::in_memory(LARGE);
    let decoder = decoder("llama-a", Some(&store), |o| o);
    let compiled = || decoder.generator(&Device::cpu()).unwrap();
    let (mut first, mut second) = (compiled(), compiled());
    ask(&mut first, &prompt);
    first.save_prefixes();
    assert_eq!(ask(&mut second, &prompt), want);
    // With a folder, these are all generators of the same weights and options.
    let folder = folder("shared");
    let (of_folder, _) = open(&folder, LARGE, LARGE);
    let mut first = generator("llama-a", Some(&of_folder), |o| o);
    ask(&mut first, &prompt);
    first.save_prefixes();
    let mut second = generator("llama-a", Some(&of_folder), |o| o);
    assert_eq!(ask(&mut second, &prompt), want);
    // Other weights, another dtype, and another chunk have other bits.
    let others: [(&str, usize, DType); 3] = [
        ("llama-b", CHUNK, DType::F32),
        ("llama-a", CHUNK, DType::F16),
        ("llama-a", 3, DType::F32),
    ];
    for store in [store, of_folder] {
        for (name, chunk, dtype) in others {
            let mut other = generator(name, Some(&store), |o| BatchOptions { chunk, dtype, ..o });
            assert_eq!(other.stored_prefixes(), [0, 1], "{name} {chunk} {dtype}");
            let restored = store.stats().restored_tokens;
            ask(&mut other, &prompt);
            assert_eq!(store.stats().restored_tokens, restored);
        }
        store.flush();
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Without a folder, nothing finds the entries of a model that is gone.
#[test]
fn entries_of_models_that_are_gone_leave_the_memory() {
    let store = PrefixStore::in_memory(LARGE);
    let mut first = generator("llama-a", Some(&store), |o| o);
    ask(&mut first, &tokens(33, 1));
    first.save_prefixes();
    assert_eq!(store.stats().entries, 1);
    drop(first);
    let second = generator("llama-a", Some(&store), |o| o);
    assert_eq!(second.stored_prefixes(), [0, 0]);
    assert_eq!(store.stats(), Default::default());
}

#[test]
fn scopes_and_adapters_share_nothing() {
    let store = PrefixStore::in_memory(LARGE);
    let files = ModelFiles::open(crate::common::data("decoders").join("llama-a")).unwrap();
    let spec = files.decoder_spec().unwrap();
    let adapters = vec![adapter(&spec, 2), adapter(&spec, 3)];
    let mut batch = generator("llama-a", Some(&store), |o| BatchOptions {
        slots: 1,
        selectable_adapters: adapters,
        ..o
    });
    let prompt = tokens(23, 1);
    let mut read = |scope: &str, adapter| {
        let sequence = Sequence {
            cache_scope: scope.to_string(),
            adapter,
            ..Sequence::new(prompt.clone(), 2)
        };
        let id = batch.start(sequence).unwrap();
        finish(&mut batch, id).read
    };
    let kinds = [
        ("", None),
        ("a", None),
        ("b", None),
        ("", Some(0)),
        ("", Some(1)),
    ];
    assert_eq!(kinds.map(|(scope, adapter)| read(scope, adapter)), [23; 5]);
    assert_eq!(kinds.map(|(scope, adapter)| read(scope, adapter)), [3; 5]);
    assert_eq!(store.stats().entries, 5);
}

#[test]
fn the_memory_limit_holds_and_old_entries_leave() {
    let measured = PrefixStore::in_memory(LARGE);
    let mut batch = generator("llama-a", Some(&measured), |o| BatchOptions {
        slots: 1,
        ..o
    });
    ask(&mut batch, &tokens(30, 0));
    ask(&mut batch, &tokens(30, 1));
    let one = measured.stats().memory_bytes;
    assert!(one > 0);
    let limit = 2 * one + one / 2;
    let store = PrefixStore::in_memory(limit);
    let mut batch = generator("llama-a", Some(&store), |o| BatchOptions { slots: 1, ..o });
    let mut fresh = generator("llama-a", None, |o| BatchOptions { slots: 1, ..o });
    let mut turn = |seed: u32, cached: usize| {
        let want = expected(&mut fresh, &tokens(30, seed), cached);
        assert_eq!(ask(&mut batch, &tokens(30, seed)), want, "{seed}");
        let stats = store.stats();
        assert!(stats.memory_bytes <= limit, "{stats:?}");
        assert!(stats.entries <= 2, "{stats:?}");
    };
    // The slot and two entries hold three of five texts: each leaves before its turn.
    for seed in (0..5).chain(0..5) {
        turn(seed, 0);
    }
    // The slot has text 4, and the entries are 2 and 3. Saving 4 drives 3 out, which was used before 2.
    turn(2, 25);
    turn(4, 25);
    turn(2, 25);
    turn(3, 0);
    // A prefix that exceeds the limit alone is not stored.
    let store = PrefixStore::in_memory(one - 1);
    let mut batch = generator("llama-a", Some(&store), |o| BatchOptions { slots: 1, ..o });
    for seed in [0, 1, 0, 1] {
        assert_eq!(ask(&mut batch, &tokens(30, seed)).read, 30);
    }
    assert_eq!(store.stats(), Default::default());
}

#[test]
fn files_outlive_the_store() {
    for (at, name) in ["llama-a", "gemma3-a", "qwen3_next-a"].iter().enumerate() {
        for memory in [LARGE, 0] {
            let folder = folder(&format!("outlive-{at}-{memory}"));
            let (store, warnings) = open(&folder, memory, LARGE);
            let mut batch = generator(name, Some(&store), |o| o);
            let mut fresh = generator(name, None, |o| o);
            let text = |seed| tokens(70, seed);
            for seed in 0..4 {
                ask_in(&mut batch, &text(seed)[..33], "secret scope");
            }
            batch.save_prefixes();
            let stats = store.stats();
            assert_eq!(stats.entries, 4, "{name}: {stats:?}");
            assert!(stats.memory_bytes <= memory);
            assert!(stats.disk_bytes > 0);
            drop((batch, store));
            let on_disk: u64 = files(&folder)
                .iter()
                .map(|p| p.metadata().unwrap().len())
                .sum();
            assert_eq!(on_disk, stats.disk_bytes, "{name}");
            // Scopes contain digests of keys and salts of clients: files have neither.
            for path in files(&folder) {
                let bytes = std::fs::read(path).unwrap();
                assert!(!bytes.windows(12).any(|part| part == b"secret scope"));
            }
            let (store, new_warnings) = open(&folder, memory, LARGE);
            let mut batch = generator(name, Some(&store), |o| o);
            assert_eq!(batch.stored_prefixes(), [4, 0], "{name}");
            for seed in 0..4 {
                let prompt = &text(seed)[..50];
                let want = expected(&mut fresh, prompt, kept(name, 33));
                assert_eq!(
                    ask_in(&mut batch, prompt, "secret scope"),
                    want,
                    "{name}, {seed}"
                );
                // Another scope gets nothing.
                assert_eq!(ask_in(&mut batch, prompt, "other").read, 50, "{name}");
            }
            for warnings in [warnings, new_warnings] {
                assert_eq!(*warnings.lock().unwrap(), Vec::<String>::new(), "{name}");
            }
            remove(&folder, &store);
        }
    }
}

#[test]
fn damaged_files_are_ignored() {
    let folder = folder("damaged");
    let (store, _) = open(&folder, LARGE, LARGE);
    let mut batch = generator("llama-a", Some(&store), |o| o);
    let mut fresh = generator("llama-a", None, |o| o);
    let prompt = tokens(33, 1);
    ask(&mut batch, &prompt);
    batch.save_prefixes();
    let path = files(&folder).remove(0);
    let whole = std::fs::read(&path).unwrap();
    drop((batch, store));
    let header = 16 + u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut later = whole.clone();
    later[8] = 2;
    let mut long = whole.clone();
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let renamed = path.with_file_name("00000000000000000000000000000000.prefix");
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("magic number", flipped(0)),
        ("format version 2", later),
        ("longer than the file", long),
        ("checksum of the header", flipped(40)),
        ("checksum of the header", flipped(header + 3)),
        ("checksum of its rows", flipped(header + 32)),
        ("checksum of its rows", flipped(whole.len() - 1)),
        ("length", whole[..whole.len() - 7].to_vec()),
        ("length", [&whole[..], &[0; 3]].concat()),
        ("shorter", whole[..9].to_vec()),
        ("shorter", Vec::new()),
    ];
    for (said, bytes) in cases {
        std::fs::write(&path, &bytes).unwrap();
        let (store, warnings) = open(&folder, LARGE, LARGE);
        let mut batch = generator("llama-a", Some(&store), |o| o);
        let want = expected(&mut fresh, &prompt, 0);
        assert_eq!(ask(&mut batch, &prompt), want, "{said}");
        let warnings = warnings.lock().unwrap();
        assert_eq!(warnings.len(), 1, "{said}: {warnings:?}");
        assert!(warnings[0].contains(said), "{said}: {warnings:?}");
    }
    // A file under the name of another prefix is none of its.
    std::fs::write(&path, &whole).unwrap();
    std::fs::rename(&path, &renamed).unwrap();
    let (store, warnings) = open(&folder, LARGE, LARGE);
    assert_eq!(store.stats().entries, 0);
    assert!(warnings.lock().unwrap()[0].contains("another prefix"));
    std::fs::rename(&renamed, &path).unwrap();
    let (store, _) = open(&folder, LARGE, LARGE);
    let mut batch = generator("llama-a", Some(&store), |o| o);
    assert_eq!(ask(&mut batch, &prompt), expected(&mut fresh, &prompt, 30));
    remove(&folder, &store);
}

#[test]
fn a_folder_that_cannot_be_written_costs_one_warning() {
    // A file in place of the folder fails for every user, also for root.
    let folder = folder("no-folder");
    std::fs::write(&folder, b"").unwrap();
    let (store, warnings) = open(&folder, LARGE, LARGE);
    let mut batch = generator("llama-a", Some(&store), |o| o);
    let mut fresh = generator("llama-a", None, |o| o);
    for round in 0..2 {
        for seed in 0..4 {
            let cached = if round == 0 { 0 } else { 30 };
            let want = expected(&mut fresh, &tokens(33, seed), cached);
            assert_eq!(ask(&mut batch, &tokens(33, seed)), want);
        }
    }
    store.flush();
    assert_eq!(store.stats().disk_bytes, 0);
    // One about the folder, one about the first file.
    assert_eq!(warnings.lock().unwrap().len(), 2, "{warnings:?}");
    drop((batch, store));
    std::fs::remove_file(&folder).unwrap();
    // The folder is lost while the store is open.
    let (store, warnings) = open(&folder, LARGE, LARGE);
    let mut batch = generator("llama-a", Some(&store), |o| o);
    std::fs::remove_dir_all(&folder).unwrap();
    for seed in [0, 1, 2, 3, 0, 1, 2, 3] {
        ask(&mut batch, &tokens(33, seed));
    }
    store.flush();
    assert!(store.stats().restored_tokens >= 4 * 30);
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
}

#[test]
fn the_disk_limit_holds() {
    let folder = folder("disk-limit");
    let (store, _) = open(&folder, LARGE, LARGE);
    let mut batch = generator("llama-a", Some(&store), |o| BatchOptions { slots: 1, ..o });
    ask(&mut batch, &tokens(30, 0));
    batch.save_prefixes();
    let one = store.stats().disk_bytes;
    drop((batch, store));
    let limit = 2 * one + one / 2;
    let (store, _) = open(&folder, 0, limit);
    let mut batch = generator("llama-a", Some(&store), |o| BatchOptions { slots: 1, ..o });
    let used = || {
        files(&folder)
            .iter()
            .map(|p| p.metadata().unwrap().len())
            .sum::<u64>()
    };
    for seed in 0..6 {
        ask(&mut batch, &tokens(30, seed));
        store.flush();
        assert!(used() <= limit, "{} of {limit}", used());
        assert_eq!(store.stats().disk_bytes, used());
    }
    assert_eq!(store.stats().entries, 2);
    drop((batch, store));
    // A smaller limit holds from the start on.
    let (store, _) = open(&folder, 0, one + one / 2);
    assert_eq!(store.stats().entries, 1);
    assert!(used() <= one + one / 2);
    drop(store);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Tokens of images are the same numbers for all images, so no stored prefix contains one.
#[test]
fn images_are_not_taken_for_one_another() {
    let data = |path: &str| crate::common::data(path);
    let files = ModelFiles::open(data("vision-language/smolvlm-b")).unwrap();
    let tokenizer = files.tokenizer().unwrap();
    let model = |prefix_store: Option<PrefixStore>| {
        let model = files.vision_language_batch(|spec| BatchOptions {
            chunk: CHUNK,
            prefix_store,
            ..BatchOptions::new(&spec.decoder, 1)
        });
        model.unwrap().compile_batch(&Device::cpu()).unwrap()
    };
    let store = PrefixStore::in_memory(LARGE);
    let (mut stored, mut plain) = (model(Some(store.clone())), model(None));
    // An image stays set while the next text has the same one, so slots with its tokens are saved.
    let asked = "one two three four five six seven eight nine ten <image> Why?";
    let other = "ten nine eight seven six five four three two one <image> Why not?";
    let mut results = Vec::new();
    for (name, text) in [
        ("wide.png", asked),
        ("wide.png", other),
        ("tall.png", asked),
        ("tall.png", other),
        ("wide.png", asked),
    ] {
        let images = [Image::open(data("vision/pictures").join(name)).unwrap()];
        let ask = |(encoder, batch): &mut (ImageEncoder, BatchGenerator)| {
            let reader = encoder.prompt_reader();
            let prompt = (text, &[][..], &images[..]);
            let prompt = reader.read(prompt, (&tokenizer, true), batch.context());
            let go_on = &mut |_, _| true;
            assert!(encoder.set_images(&images, batch, go_on).unwrap());
            let id = batch.start(Sequence::new(prompt.unwrap(), 4)).unwrap();
            finish(batch, id)
        };
        let got = ask(&mut stored);
        plain.1.reset();
        let want = ask(&mut plain);
        assert_eq!(
            (&got.tokens, &got.bits),
            (&want.tokens, &want.bits),
            "{name}"
        );
        results.push(got.bits);
    }
    assert!(results[0] != results[2] && results[0] == results[4]);
    assert!(store.stats().restored_tokens > 0);
}
