//! The default context of language models on devices with little memory.

use std::fs::File;
use std::io::Write;
#[cfg(feature = "serve")]
use std::io::{BufRead, BufReader};
#[cfg(feature = "serve")]
use std::process::Stdio;

use crate::common::{Scratch, demo, tercet};

/// The tiny model with a trained context of 1 Mi tokens in its metadata.
fn long_context(files: &Scratch) -> String {
    let mut bytes = std::fs::read(demo("tiny-rust-llama-q8_0.gguf")).unwrap();
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    // Four bytes of the value's type, then the value.
    bytes[at + 4..at + 8].copy_from_slice(&(1u32 << 20).to_le_bytes());
    files.file("long.gguf", bytes)
}

/// Runs a command on a CPU with this memory and returns its exit code and standard error.
fn limited(memory: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = tercet(args);
    command
        .env("TERCET_DEVICE_MEMORY", memory)
        .args(["--device", "cpu"]);
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), err)
}

/// The context that a note reports.
fn reported(err: &str) -> usize {
    let after = err
        .split_once("context of ")
        .unwrap_or_else(|| panic!("no context in: {err}"))
        .1;
    after.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn a_model_opens_with_the_context_that_fits_the_memory() {
    let files = Scratch::new("context-fits");
    let model = long_context(&files);
    let generate = ["generate", "-m", &model, "-p", "Ownership is", "-n", "2"];
    let (code, err) = limited("150MiB", &generate);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains("what fits the memory (trained: 1048576"),
        "{err}"
    );
    let one = reported(&err);
    assert!((512..8192).contains(&one), "{err}");
    let (code, err) = limited("150MiB", &["explain", "-m", &model]);
    assert_eq!((code, reported(&err)), (Some(0), one), "{err}");
    let (code, err) = limited("130MiB", &generate);
    assert_ne!(code, Some(0));
    for part in ["`-c`", "`--cache-dtype f16`", "GiB are missing"] {
        assert!(err.contains(part), "{part} is not in: {err}");
    }
    let (code, err) = limited("150MiB", &[&generate[..], &["-c", "0"]].concat());
    assert_ne!(code, Some(0));
    assert!(err.contains("1 sequence of 1048576 tokens"), "{err}");
    let (code, err) = limited("soon", &generate);
    assert_eq!(code, Some(2));
    assert!(err.contains("TERCET_DEVICE_MEMORY is `soon`"), "{err}");
}

/// The note about the context that a server with this memory prints.
#[cfg(feature = "serve")]
fn note_of_server(model: &str, memory: &str, slots: &str) -> String {
    let args = ["serve", "-m", model, "--port", "0", "--device", "cpu"];
    let mut command = tercet(&[&args[..], &["--parallel", slots]].concat());
    command
        .env("TERCET_DEVICE_MEMORY", memory)
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("context of "));
    let _ = child.kill();
    let _ = child.wait();
    note.expect("a note about the context")
}

#[test]
#[cfg(feature = "serve")]
fn a_server_divides_the_memory_between_its_slots() {
    let files = Scratch::new("context-slots");
    let model = long_context(&files);
    let context = |slots: &str| reported(&note_of_server(&model, "192MiB", slots));
    let (one, four) = (context("1"), context("4"));
    assert!(four < one && four >= 512, "{one} and {four}");
}

/// Metadata and tensors of a GGUF file, without the tensors' bytes.
#[derive(Default)]
struct SparseGguf {
    pairs: (u64, Vec<u8>),
    tensors: (u64, Vec<u8>),
    bytes: u64,
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl SparseGguf {
    fn pair(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.pairs.0 += 1;
        put_text(&mut self.pairs.1, key);
        self.pairs.1.extend(kind.to_le_bytes());
        self.pairs.1.extend(value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.pair(key, 4, &value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.pair(key, 6, &value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value);
        self.pair(key, 8, &bytes);
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put_text(&mut bytes, value));
        self.pair(key, 9, &bytes);
    }

    /// A tensor in F32 (one axis) or Q4_K.
    fn tensor(&mut self, name: &str, shape: &[u64]) {
        let values: u64 = shape.iter().product();
        let (kind, bytes) = match shape.len() {
            1 => (0u32, 4 * values),
            _ => (12, values / 256 * 144),
        };
        self.tensors.0 += 1;
        let out = &mut self.tensors.1;
        put_text(out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|len| out.extend(len.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        self.bytes += bytes.next_multiple_of(32);
    }

    /// Writes the header; the tensors are a hole.
    fn write(&self, path: &str) {
        let mut head = b"GGUF\x03\0\0\0".to_vec();
        head.extend(self.tensors.0.to_le_bytes());
        head.extend(self.pairs.0.to_le_bytes());
        head.extend(&self.pairs.1);
        head.extend(&self.tensors.1);
        head.resize(head.len().next_multiple_of(32), 0);
        let mut file = File::create(path).unwrap();
        file.write_all(&head).unwrap();
        file.set_len(head.len() as u64 + self.bytes).unwrap();
    }
}

/// A file of the shape of an 8B llama, whose weights are a hole of 4.3 GiB.
fn eight_billion(path: &str) {
    const VOCAB: u64 = 128_256;
    let mut file = SparseGguf::default();
    file.text("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 131_072),
        ("embedding_length", 4096),
        ("block_count", 32),
        ("feed_forward_length", 14_336),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
        ("rope.dimension_count", 128),
    ] {
        file.number(&format!("llama.{key}"), value);
    }
    file.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    file.float("llama.rope.freq_base", 5e5);
    file.text("tokenizer.ggml.model", "gpt2");
    file.text("tokenizer.ggml.pre", "llama-bpe");
    // Byte-level BPE spells the bytes of visible characters as themselves, and the other 68 bytes
    // as the characters from U+0100 on.
    let visible = ('!'..='~')
        .chain('\u{a1}'..='\u{ac}')
        .chain('\u{ae}'..='\u{ff}');
    let letters = visible.chain('\u{100}'..='\u{143}');
    let mut tokens: Vec<String> = letters.map(String::from).collect();
    tokens.extend((tokens.len() as u64..VOCAB).map(|i| format!("token {i}")));
    file.texts("tokenizer.ggml.tokens", &tokens);
    file.texts("tokenizer.ggml.merges", &[]);
    file.number("tokenizer.ggml.bos_token_id", VOCAB as u32 - 2);
    file.number("tokenizer.ggml.eos_token_id", VOCAB as u32 - 1);
    file.tensor("token_embd.weight", &[4096, VOCAB]);
    file.tensor("output_norm.weight", &[4096]);
    file.tensor("output.weight", &[4096, VOCAB]);
    for layer in 0..32 {
        for (name, shape) in [
            ("attn_norm", &[4096][..]),
            ("ffn_norm", &[4096]),
            ("attn_q", &[4096, 4096]),
            ("attn_k", &[4096, 1024]),
            ("attn_v", &[4096, 1024]),
            ("attn_output", &[4096, 4096]),
            ("ffn_gate", &[4096, 14_336]),
            ("ffn_up", &[4096, 14_336]),
            ("ffn_down", &[14_336, 4096]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), shape);
        }
    }
    file.write(path);
}

#[test]
fn an_8b_opens_with_the_context_that_fits() {
    let files = Scratch::new("context-8b");
    let model = files.path("8b.gguf");
    eight_billion(&model);
    let generate = ["generate", "-m", &model, "-p", "a", "-n", "1"];
    let (code, err) = limited("6GiB", &generate);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains("what fits the memory (trained: 131072"),
        "{err}"
    );
    let one = reported(&err);
    // A token takes 256 KiB of caches in F32, and the weights leave some 1.5 GiB free.
    assert!((512..=6144).contains(&one), "{err}");
    // 8 GiB hold as many tokens as a CPU gets by default.
    let (code, err) = limited("8GiB", &["explain", "-m", &model]);
    assert_eq!(code, Some(0), "{err}");
    assert!(reported(&err) > one, "{err}");
    let (code, err) = limited("4608MiB", &generate);
    assert_ne!(code, Some(0));
    for part in ["`-c`", "`--cache-dtype f16`", "GiB are missing"] {
        assert!(err.contains(part), "{part} is not in: {err}");
    }
    #[cfg(feature = "serve")]
    {
        let note = note_of_server(&model, "8GiB", "4");
        let four = reported(&note);
        assert!(four >= 512 && four < one, "{one} and {four}: {note}");
    }
}
