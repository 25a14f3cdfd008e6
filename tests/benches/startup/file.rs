//! Writes a GGUF file with the shape of a llama and random blocks.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use tercet::Scheme;
use tercet_ir::fill::random_blocks;

use crate::Result;

const ALIGNMENT: usize = 32;
/// Type numbers of the GGUF format.
const F32: u32 = 0;
const Q4_K: u32 = 12;
const Q6_K: u32 = 14;
/// Elements per block of Q4_K and of Q6_K.
const BLOCK: usize = 256;
/// The number of distinct random blocks; longer tensors repeat them.
const PATTERN_BLOCKS: usize = 4099;
/// The standard deviation of the random matrices, similar to that of trained ones.
const WIDTH: f64 = 0.05;

struct Shape {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    ffn: usize,
    vocab: usize,
    context: usize,
}

const LLAMA_1B: Shape = Shape {
    hidden: 2048,
    layers: 22,
    heads: 32,
    kv_heads: 4,
    ffn: 5632,
    vocab: 32000,
    context: 2048,
};

/// Small sizes, to try the bench.
const SMALL: Shape = Shape {
    hidden: 256,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    ffn: 512,
    vocab: 2048,
    context: 256,
};

struct Tensor {
    name: String,
    /// The sizes of the axes, innermost first, as in the GGUF format.
    dims: Vec<usize>,
    ty: u32,
}

impl Tensor {
    fn bytes(&self) -> usize {
        let elements: usize = self.dims.iter().product();
        match self.ty {
            Q4_K => elements / BLOCK * Scheme::Q4K.block_bytes(),
            Q6_K => elements / BLOCK * Scheme::Q6K.block_bytes(),
            _ => elements * 4,
        }
    }
}

/// Writes the GGUF file to `path`; with `quick`, of a small model.
pub(crate) fn write(path: &Path, quick: bool) -> Result<()> {
    let shape = match quick {
        true => SMALL,
        false => LLAMA_1B,
    };
    let tensors = tensors(&shape);
    let entries = metadata(&shape);
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((entries.len() as u64).to_le_bytes());
    head.extend(entries.concat());
    let mut offset = 0;
    for t in &tensors {
        head.extend(string(&t.name));
        head.extend((t.dims.len() as u32).to_le_bytes());
        head.extend(t.dims.iter().flat_map(|d| (*d as u64).to_le_bytes()));
        head.extend(t.ty.to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset += t.bytes().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&head)?;
    let pattern = |scheme: Scheme| {
        let bytes = PATTERN_BLOCKS * scheme.block_bytes();
        random_blocks("startup", scheme, bytes, WIDTH)
    };
    let (q4, q6) = (pattern(Scheme::Q4K), pattern(Scheme::Q6K));
    let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), 4096)
        .flatten()
        .collect();
    for t in &tensors {
        let pattern = match t.ty {
            Q4_K => &q4,
            Q6_K => &q6,
            _ => &ones,
        };
        let mut left = t.bytes();
        let padding = left.next_multiple_of(ALIGNMENT) - left;
        while left > 0 {
            let n = left.min(pattern.len());
            out.write_all(&pattern[..n])?;
            left -= n;
        }
        out.write_all(&[0; ALIGNMENT][..padding])?;
    }
    Ok(out.flush()?)
}

/// The tensors of a file; as quantizers do, some matrices have 6 bits.
fn tensors(shape: &Shape) -> Vec<Tensor> {
    let &Shape {
        hidden,
        layers,
        heads,
        kv_heads,
        ffn,
        vocab,
        ..
    } = shape;
    let kv = hidden / heads * kv_heads;
    let mut all = Vec::new();
    let mut add = |name: String, dims: &[usize], ty: u32| {
        let dims = dims.to_vec();
        all.push(Tensor { name, dims, ty });
    };
    add("token_embd.weight".into(), &[hidden, vocab], Q4_K);
    for i in 0..layers {
        let eighth = layers / 8;
        let more = i < eighth || i >= layers - eighth || (i - eighth) % 3 == 2;
        let wide = if more { Q6_K } else { Q4_K };
        let mut of =
            |part: &str, dims: &[usize], ty| add(format!("blk.{i}.{part}.weight"), dims, ty);
        of("attn_norm", &[hidden], F32);
        of("attn_q", &[hidden, hidden], Q4_K);
        of("attn_k", &[hidden, kv], Q4_K);
        of("attn_v", &[hidden, kv], wide);
        of("attn_output", &[hidden, hidden], Q4_K);
        of("ffn_norm", &[hidden], F32);
        of("ffn_gate", &[hidden, ffn], Q4_K);
        of("ffn_up", &[hidden, ffn], Q4_K);
        of("ffn_down", &[ffn, hidden], wide);
    }
    add("output_norm.weight".into(), &[hidden], F32);
    add("output.weight".into(), &[hidden, vocab], Q6_K);
    all
}

fn metadata(shape: &Shape) -> Vec<Vec<u8>> {
    let n = |key: &str, value: usize| entry(key, 4, &(value as u32).to_le_bytes());
    let x = |key: &str, value: f32| entry(key, 6, &value.to_le_bytes());
    let text = |key: &str, value: &str| entry(key, 8, &string(value));
    let (tokens, merges) = vocabulary(shape.vocab);
    let mut types = vec![1i32; shape.vocab - 2];
    types.extend([3, 3]);
    let types: Vec<u8> = types.iter().flat_map(|t| t.to_le_bytes()).collect();
    vec![
        text("general.architecture", "llama"),
        n("llama.embedding_length", shape.hidden),
        n("llama.block_count", shape.layers),
        n("llama.attention.head_count", shape.heads),
        n("llama.attention.head_count_kv", shape.kv_heads),
        n("llama.feed_forward_length", shape.ffn),
        n("llama.context_length", shape.context),
        n("llama.rope.dimension_count", shape.hidden / shape.heads),
        x("llama.rope.freq_base", 10000.0),
        x("llama.attention.layer_norm_rms_epsilon", 1e-5),
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "llama-bpe"),
        n("tokenizer.ggml.bos_token_id", shape.vocab - 2),
        n("tokenizer.ggml.eos_token_id", shape.vocab - 1),
        strings("tokenizer.ggml.tokens", &tokens),
        strings("tokenizer.ggml.merges", &merges),
        array("tokenizer.ggml.token_type", 5, shape.vocab, &types),
    ]
}

/// A vocabulary of all bytes, words of lower-case letters with increasing length, and start and end
/// tokens; also the merges that form the words.
fn vocabulary(size: usize) -> (Vec<String>, Vec<String>) {
    let mut next = 0x100u32;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte).to_string(),
            _ => {
                next += 1;
                char::from_u32(next - 1).map_or(String::new(), String::from)
            }
        })
        .collect();
    let mut words: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut merges = Vec::new();
    let mut at = 0;
    while tokens.len() < size - 2 {
        let word = words[at].clone();
        at += 1;
        for letter in ('a'..='z').take(size - 2 - tokens.len()) {
            let longer = format!("{word}{letter}");
            merges.push(format!("{word} {letter}"));
            words.push(longer.clone());
            tokens.push(longer);
        }
    }
    tokens.extend(["<s>".to_string(), "</s>".to_string()]);
    (tokens, merges)
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn entry(key: &str, ty: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &ty.to_le_bytes()[..], value].concat()
}

fn strings(key: &str, values: &[String]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| string(v)).collect();
    array(key, 8, values.len(), &bytes)
}

fn array(key: &str, ty: u32, len: usize, values: &[u8]) -> Vec<u8> {
    let head = [&ty.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
    entry(key, 9, &[&head, values].concat())
}
