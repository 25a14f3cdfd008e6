//! Tests of batched generation with windowed attention or recurrent states. Results must be bitwise
//! independent of other sequences and of cached prefixes, and caches must not exceed the size that
//! windows require.

use tercet::{DType, Device, Tensor, TensorType};
use tercet_models::{
    Adapter, BatchDecoder, BatchEventKind, BatchGenerator, BatchOptions, CacheFormat,
    DecoderOptions, DecoderSpec, LowRank, ModelFiles, ScaledAdapter, Sequence, SequenceId,
};

const CONTEXT: usize = 96;
const CHUNK: usize = 5;
const SLOTS: usize = 3;
/// Models with windows in some or all layers; some have soft caps, attention sinks, query scale or
/// experts.
const WINDOWED: [&str; 8] = [
    "gemma2-a",
    "gemma3-a",
    "gpt_oss-a",
    "mistral-a",
    "cohere2-a",
    "phi3-a",
    "mixtral-c",
    "ministral3-b",
];
/// Models with scans: both scan types, delta rules, and hybrids with and without experts.
const SCANNING: [&str; 6] = [
    "mamba-a",
    "mamba2-a",
    "falcon_h1-a",
    "granitehybrid-a",
    "nemotron_moe-a",
    "qwen3_next-a",
];

fn decoder(name: &str, options: impl FnOnce(BatchOptions) -> BatchOptions) -> BatchDecoder {
    let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
    let decoder = files.batch_decoder(|spec| {
        options(BatchOptions {
            context: CONTEXT,
            chunk: CHUNK,
            ..BatchOptions::new(spec, SLOTS)
        })
    });
    decoder.unwrap()
}

fn batch(name: &str) -> BatchGenerator {
    decoder(name, |o| o).generator(&Device::cpu()).unwrap()
}

pub(crate) fn tokens(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 13 + seed * 5) % 29 + 3)
        .collect()
}

/// The result of a sequence: its tokens and the bits of their logits.
#[derive(Debug, Default, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    bits: Vec<Vec<u32>>,
}

/// Steps until all sequences end. Returns the result of sequence `of` and its number of prefill
/// chunks.
fn finish(batch: &mut BatchGenerator, of: SequenceId) -> (Got, usize) {
    let (mut got, mut parts) = (Got::default(), 0);
    loop {
        let events = batch.step().unwrap();
        if events.is_empty() {
            return (got, parts);
        }
        for event in events.into_iter().filter(|e| e.sequence == of) {
            match event.kind {
                BatchEventKind::Prompt(_) => parts += 1,
                BatchEventKind::Token(token) => {
                    let logits = batch.logits(of).unwrap().unwrap();
                    got.tokens.push(token);
                    got.bits.push(logits.iter().map(|x| x.to_bits()).collect());
                }
                BatchEventKind::Ended(_) => {}
                BatchEventKind::Failed(e) => panic!("{e}"),
            }
        }
    }
}

fn write(batch: &mut BatchGenerator, prompt: &[u32]) -> (Got, usize) {
    let id = batch.start(Sequence::new(prompt.to_vec(), 8)).unwrap();
    finish(batch, id)
}

/// Generates after a reset, without any cached prefix.
fn fresh(batch: &mut BatchGenerator, prompt: &[u32]) -> (Got, usize) {
    batch.reset();
    let all = write(batch, prompt);
    assert_eq!(all.1, prompt.len().div_ceil(CHUNK));
    all
}

#[test]
fn long_texts_are_those_of_caches_of_all_positions_and_of_nobody_else() {
    for name in WINDOWED.iter().chain(&SCANNING) {
        let prompt = tokens(41, 1);
        let mut batch = batch(name);
        let long = |prompt: &[u32]| Sequence::new(prompt.to_vec(), 40);
        let id = batch.start(long(&prompt)).unwrap();
        let (alone, _) = finish(&mut batch, id);
        assert_eq!(alone.tokens.len(), 40, "{name}");
        // Reference: a generator that caches all positions, fed with the same greedy tokens.
        let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
        let one = files.decoder(|spec| DecoderOptions {
            context: CONTEXT,
            chunk: CONTEXT,
            ..DecoderOptions::new(spec)
        });
        let mut one = one.unwrap().generator(&Device::cpu()).unwrap();
        let mut read = prompt.clone();
        read.extend_from_slice(&alone.tokens[..39]);
        let want = one.forward(&read).unwrap().logits.to_vec();
        let got: Vec<f32> = alone.bits[39].iter().map(|x| f32::from_bits(*x)).collect();
        let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let off = want.iter().zip(&got).map(|(a, b)| (a - b).abs());
        let off = off.fold(0f32, f32::max) / most;
        assert!(off < 2e-4, "{name}: {off:e}");
        // Other sequences run in other slots, before and at the same time.
        batch.reset();
        for (len, seed) in [(7, 2), (33, 3)] {
            batch.start(Sequence::new(tokens(len, seed), 17)).unwrap();
        }
        for _ in 0..6 {
            batch.step().unwrap();
        }
        let id = batch.start(long(&prompt)).unwrap();
        let (beside, _) = finish(&mut batch, id);
        assert_eq!(alone, beside, "{name}");
    }
}

#[test]
fn beginnings_that_were_kept_give_the_same_bits() {
    for name in WINDOWED.iter().chain(&SCANNING) {
        let mut batch = batch(name);
        let begun = tokens(23, 4);
        let with = |seed| -> Vec<u32> {
            let rest = tokens(11, seed).into_iter().map(|t| (t + seed) % 29 + 3);
            begun.iter().copied().chain(rest).collect()
        };
        let prompts: Vec<Vec<u32>> = [5, 6, 7, 8].map(with).to_vec();
        let want: Vec<_> = prompts.iter().map(|p| fresh(&mut batch, p)).collect();
        batch.reset();
        for (at, (prompt, (want, all))) in prompts.iter().zip(&want).enumerate() {
            let (got, parts) = write(&mut batch, prompt);
            assert_eq!(&got, want, "{name}, text {at}");
            // After two texts, the generator has a checkpoint at their common prefix.
            let known = if at < 2 { 0 } else { 4 };
            assert_eq!(parts, all - known, "{name}, text {at}");
        }
    }
}

#[test]
fn conversations_go_on_where_they_were() {
    for name in WINDOWED.iter().chain(&SCANNING) {
        let mut batch = batch(name);
        let all = tokens(80, 9);
        let want: Vec<_> = [22, 43, 64]
            .map(|len| fresh(&mut batch, &all[..len]).0)
            .into();
        batch.reset();
        let mut parts = Vec::new();
        for (len, want) in [22, 43, 64].into_iter().zip(&want) {
            let (got, own) = write(&mut batch, &all[..len]);
            assert_eq!(&got, want, "{name}, {len}");
            parts.push(own);
        }
        let scans = SCANNING.contains(name);
        // For scans, no state checkpoint is saved for the first text.
        assert_eq!(parts, if scans { [5, 9, 5] } else { [5, 5, 5] }, "{name}");
    }
}

#[test]
fn what_is_kept_is_not_changed_by_those_who_leave() {
    for name in ["gemma3-a", "qwen3_next-a", "gpt_oss-a"] {
        let mut batch = batch(name);
        let prompt = tokens(38, 2);
        let (want, all) = fresh(&mut batch, &prompt);
        for text in 0..2 {
            assert_eq!(write(&mut batch, &prompt).0, want, "{name}, {text}");
        }
        // Cancel before the prefill, during it, and after some generated tokens.
        for steps in [0, 1, 4] {
            let id = batch.start(Sequence::new(prompt.clone(), 8)).unwrap();
            for _ in 0..steps {
                batch.step().unwrap();
            }
            assert!(batch.cancel(id));
            let (got, parts) = write(&mut batch, &prompt);
            assert_eq!(got, want, "{name}");
            assert!(parts < all, "{name}: {parts} of {all}");
        }
    }
}

#[test]
fn caches_of_several_texts_take_the_memory_that_is_said() {
    let bytes = |decoder: &BatchDecoder| -> u64 {
        let exe = decoder
            .model
            .compile(&Device::cpu(), &decoder.compile_options());
        let exe = exe.unwrap();
        let states = exe.signature().states.iter();
        let caches = states.filter(|s| s.name.starts_with("cache."));
        let bytes = caches.map(|s| exe.read_state(&s.name).unwrap().bytes().len() as u64);
        bytes.sum()
    };
    for name in WINDOWED.iter().chain(&["llama-a", "falcon_h1-a"]) {
        for cache in [None, Some(DType::F16.into()), Some(CacheFormat::Q8_0)] {
            let of = |context| {
                decoder(name, |o| BatchOptions {
                    cache,
                    context,
                    ..o
                })
            };
            let [short, long] = [of(40), of(80)];
            let said = [&short, &long].map(|d| d.options.cache_bytes(&d.config));
            assert_eq!(said, [bytes(&short), bytes(&long)], "{name} {cache:?}");
            let all = ["mistral-a", "phi3-a", "mixtral-c"];
            match all.contains(name) {
                // All layers have windows, and the smaller context already exceeds twice their
                // width.
                true => assert_eq!(said[0], said[1], "{name}"),
                false => assert!(said[0] < said[1], "{name}"),
            }
        }
    }
}

#[test]
fn caches_of_8_bits_give_the_same_bits_in_any_company() {
    for name in [
        "llama-a",
        "gemma3-a",
        "gpt_oss-a",
        "falcon_h1-a",
        "deepseek_v2-a",
    ] {
        let of = |o| BatchOptions {
            cache: Some(CacheFormat::Q8_0),
            ..o
        };
        let mut batch = decoder(name, of).generator(&Device::cpu()).unwrap();
        let prompt = tokens(38, 1);
        let (alone, _) = fresh(&mut batch, &prompt);
        batch.reset();
        for (len, seed) in [(7, 2), (33, 3)] {
            batch.start(Sequence::new(tokens(len, seed), 17)).unwrap();
        }
        for _ in 0..6 {
            batch.step().unwrap();
        }
        assert_eq!(write(&mut batch, &prompt).0, alone, "{name}");
    }
}

/// An adapter of the first layer's query projection with pseudo-random values.
pub(crate) fn adapter(spec: &DecoderSpec, rank: usize) -> ScaledAdapter {
    let drawn = |shape: [usize; 2], seed: usize| {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f64 / 2003.0 - 0.5;
        let numbers: Vec<f64> = (0..shape[0] * shape[1]).map(number).collect();
        Tensor::from_f64s(TensorType::new(DType::F32, &shape), &numbers).unwrap()
    };
    let module = "model.layers.0.self_attn.q_proj";
    let rows = spec.heads * spec.head_dim;
    let (a, b) = (drawn([rank, spec.hidden], rank), drawn([rows, rank], rows));
    let low = LowRank::new(module, a, b, rank as f64).unwrap();
    ScaledAdapter::new(Adapter::new([(module.to_string(), low)].into()))
}

#[test]
fn sequences_choose_adapters_of_models_with_experts_and_states() {
    for name in ["qwen3_moe-a", "falcon_h1-a", "mixtral-c"] {
        let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
        let spec = files.decoder_spec().unwrap();
        let all = vec![adapter(&spec, 2), adapter(&spec, 3)];
        let of = |adapters, choices| {
            let decoder = decoder(name, |o| BatchOptions {
                adapters,
                selectable_adapters: choices,
                ..o
            });
            decoder.generator(&Device::cpu()).unwrap()
        };
        let prompt = tokens(17, 3);
        let with = |adapter| Sequence {
            adapter,
            ..Sequence::new(prompt.clone(), 6)
        };
        let mut batch = of(Vec::new(), all.clone());
        let mut alone = Vec::new();
        for which in [None, Some(0), Some(1)] {
            let id = batch.start(with(which)).unwrap();
            let (own, _) = finish(&mut batch, id);
            // Reference: a model with only this adapter.
            let mut plain = of(
                which.map(|at| all[at].clone()).into_iter().collect(),
                Vec::new(),
            );
            let (want, _) = fresh(&mut plain, &prompt);
            let floats =
                |of: &Got| -> Vec<f32> { of.bits[0].iter().map(|x| f32::from_bits(*x)).collect() };
            let (got, want) = (floats(&own), floats(&want));
            let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
            let off = off.fold(0f32, f32::max);
            assert!(off <= 1e-4 * most, "{name} {which:?}: {off:e} of {most}");
            alone.push(own);
        }
        assert!(alone[0].bits != alone[1].bits && alone[1].bits != alone[2].bits);
        // All adapters run in one batch; one sequence is compared.
        for (at, which) in [None, Some(0), Some(1)].into_iter().enumerate() {
            for other in [Some(1), None] {
                batch.start(with(other)).unwrap();
            }
            batch.step().unwrap();
            let id = batch.start(with(which)).unwrap();
            assert_eq!(finish(&mut batch, id).0, alone[at], "{name} {which:?}");
        }
    }
}
