//! Tests of KV caches: size, dtype and results with attention windows.

use tercet::quant::quantize_q8_0;
use tercet::{DType, Device, Tensor};
use tercet_models::{BatchOptions, CacheFormat, Decoder, DecoderOptions, Generator, ModelFiles};

const CONTEXT: usize = 96;
/// Models with windows in some or all layers; some have soft caps, attention sinks or query scale.
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

fn decoder(name: &str, options: impl FnOnce(DecoderOptions) -> DecoderOptions) -> Decoder {
    let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
    let decoder = files.decoder(|spec| {
        options(DecoderOptions {
            context: CONTEXT,
            chunk: 5,
            ..DecoderOptions::new(spec)
        })
    });
    decoder.unwrap()
}

fn generator(name: &str, options: impl FnOnce(DecoderOptions) -> DecoderOptions) -> Generator {
    decoder(name, options).generator(&Device::cpu()).unwrap()
}

/// Options for a prefill of the whole context in one chunk, so that caches cover all positions.
fn whole(options: DecoderOptions) -> DecoderOptions {
    DecoderOptions {
        chunk: CONTEXT,
        ..options
    }
}

fn tokens() -> Vec<u32> {
    (0..CONTEXT as u32).map(|i| i * 13 % 29 + 3).collect()
}

/// The logits after each token, `[vocab]` each.
fn rows(generator: &mut Generator, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = Vec::new();
    let mut each = |row: &[f32]| {
        all.push(row.to_vec());
        true
    };
    generator.forward_rows(tokens, &mut each).unwrap();
    all
}

/// The largest difference relative to the range of `a`.
fn off(a: &[f32], b: &[f32]) -> f32 {
    let bounds = |of: &[f32]| {
        let most = of.iter().copied().fold(f32::MIN, f32::max);
        most - of.iter().copied().fold(f32::MAX, f32::min)
    };
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    worst.fold(0.0, f32::max) / bounds(a)
}

fn state_bytes(decoder: &Decoder) -> u64 {
    let model = &decoder.model;
    let exe = model.compile(&Device::cpu(), &decoder.compile_options());
    let exe = exe.unwrap();
    let states = exe.signature().states.iter();
    let bytes = states.map(|s| exe.read_state(&s.name).unwrap().bytes().len() as u64);
    bytes.sum()
}

#[test]
fn texts_beyond_a_window_are_those_of_a_cache_of_all_positions() {
    for name in WINDOWED {
        let tokens = tokens();
        let with_rows = |o: DecoderOptions| DecoderOptions {
            logit_rows: CONTEXT,
            ..o
        };
        let want = rows(&mut generator(name, |o| with_rows(whole(o))), &tokens);
        for chunk in [1, 5, 8] {
            let mut windowed = generator(name, |o| DecoderOptions {
                chunk,
                ..with_rows(o)
            });
            for (at, (got, want)) in rows(&mut windowed, &tokens).iter().zip(&want).enumerate() {
                let off = off(want, got);
                assert!(off < 1e-4, "{name}, parts of {chunk}, token {at}: {off:e}");
            }
        }
    }
}

#[test]
fn what_a_window_does_not_reach_back_to_is_read_again() {
    let tokens = tokens();
    let mut one = generator("mistral-a", |o| o);
    let want = one.forward(&tokens[..70]).unwrap().logits.to_vec();
    // After these two tokens, the cache still has every position in the window of token 71.
    one.forward(&tokens[70..72]).unwrap();
    assert_eq!(one.truncate(71), 71);
    assert_eq!(
        one.truncate(20),
        0,
        "the first positions are not there any more"
    );
    assert!(one.cached().is_empty());
    let again = one.forward(&tokens[..70]).unwrap().logits.to_vec();
    assert_eq!(want, again);
    one.reset();
    assert_eq!(one.forward(&tokens[..70]).unwrap().logits, want);
    let mut whole = generator("mistral-a", whole);
    whole.forward(&tokens[..70]).unwrap();
    assert_eq!(whole.truncate(20), 20);
}

#[test]
fn caches_take_the_memory_that_is_said() {
    for name in WINDOWED
        .iter()
        .chain(&["llama-a", "deepseek_v2-a", "qwen3-b"])
    {
        for (dtype, cache) in [
            (DType::F32, None),
            (DType::F32, Some(DType::F16.into())),
            (DType::F32, Some(DType::BF16.into())),
            (DType::F32, Some(CacheFormat::Q8_0)),
            (DType::F16, None),
        ] {
            let of = |chunk| {
                decoder(name, |o| DecoderOptions {
                    dtype,
                    cache,
                    chunk,
                    ..o
                })
            };
            let [windowed, all] = [of(5), of(CONTEXT)];
            let said = |d: &Decoder| d.options.cache_bytes(&d.config);
            assert_eq!(said(&windowed), state_bytes(&windowed), "{name} {cache:?}");
            assert_eq!(said(&all), state_bytes(&all), "{name} {cache:?}");
            if WINDOWED.contains(name) {
                assert!(said(&windowed) < said(&all), "{name}");
            }
        }
    }
}

#[test]
fn narrow_caches_are_near_wide_ones() {
    let tokens = tokens();
    for name in [
        "llama-a",
        "gemma2-a",
        "gpt_oss-a",
        "qwen3-a",
        "deepseek_v3-a",
    ] {
        let logits = |cache| {
            let mut generator = generator(name, |o| DecoderOptions { cache, ..o });
            generator.forward(&tokens).unwrap().logits.to_vec()
        };
        let want = logits(None);
        for (cache, most) in [
            (DType::F16.into(), 5e-3),
            (DType::BF16.into(), 4e-2),
            (CacheFormat::Q8_0, 4e-2),
        ] {
            let got = logits(Some(cache));
            let off = off(&want, &got);
            assert!(off > 0.0 && off < most, "{name} {cache}: {off:e}");
        }
    }
}

#[test]
fn several_texts_have_narrow_caches_too() {
    use tercet_models::{BatchEventKind, Sequence};
    let written = |cache| {
        let files = ModelFiles::open(crate::common::data("decoders/llama-a")).unwrap();
        let decoder = files.batch_decoder(|spec| BatchOptions {
            context: CONTEXT,
            cache,
            ..BatchOptions::new(spec, 2)
        });
        let mut batch = decoder.unwrap().generator(&Device::cpu()).unwrap();
        for first in [5, 9] {
            batch
                .start(Sequence::new(tokens()[first..40].to_vec(), 6))
                .unwrap();
        }
        let mut logits = Vec::new();
        loop {
            let events = batch.step().unwrap();
            if events.is_empty() {
                return logits;
            }
            for event in events {
                if let BatchEventKind::Token(_) = event.kind {
                    logits.push(batch.logits(event.sequence).unwrap().unwrap());
                }
            }
        }
    };
    let want = written(None);
    assert_eq!(want.len(), 12);
    for (cache, most) in [(DType::F16.into(), 5e-3), (CacheFormat::Q8_0, 4e-2)] {
        let got = written(Some(cache));
        // Compare the first token of each sequence; later ones may follow a different token.
        for (want, got) in want.iter().zip(&got).take(2) {
            let off = off(want, got);
            assert!(off > 0.0 && off < most, "{cache}: {off:e}");
        }
    }
}

#[test]
fn caches_of_other_types_are_refused() {
    let files = ModelFiles::open(crate::common::data("decoders/llama-a")).unwrap();
    let refused = |dtype, cache| {
        let decoder = files.decoder(|spec| DecoderOptions {
            context: CONTEXT,
            dtype,
            cache: Some(cache),
            ..DecoderOptions::new(spec)
        });
        decoder.unwrap_err().to_string()
    };
    for (dtype, cache) in [
        (DType::F32, DType::I32.into()),
        (DType::F16, DType::F32.into()),
        (DType::BF16, DType::F16.into()),
        (DType::F16, CacheFormat::Q8_0),
    ] {
        let e = refused(dtype, cache);
        assert!(e.contains(&format!("caches of {cache}")), "{e}");
    }
}

#[test]
fn caches_of_8_bits_hold_what_the_format_rounds_to() {
    let tokens = &tokens()[..40];
    for name in ["llama-a", "llama-b", "gemma3-a"] {
        let states = |cache| {
            let decoder = decoder(name, |o| whole(DecoderOptions { cache, ..o }));
            let exe = decoder
                .model
                .compile(&Device::cpu(), &decoder.compile_options());
            let mut exe = exe.unwrap();
            let n = tokens.len();
            let ints = |shape: &[usize], f: &dyn Fn(usize) -> usize| {
                let all: Vec<i32> = (0..shape.iter().product()).map(|i| f(i) as i32).collect();
                Tensor::from_slice(shape, &all).unwrap()
            };
            let inputs = [
                ("tokens", ints(&[n], &|i| tokens[i] as usize)),
                ("positions", ints(&[n], &|i| i)),
                ("start", ints(&[4], &|_| 0)),
                ("kv_len", ints(&[], &|_| n)),
                ("rows", ints(&[1], &|_| n - 1)),
                ("seen", ints(&[n], &|_| 0)),
            ];
            let given = exe.signature().inputs.len();
            let named: Vec<(&str, &Tensor)> =
                inputs[..given].iter().map(|(n, t)| (*n, t)).collect();
            exe.run(&named).unwrap();
            // Read the first layer, whose inputs do not depend on rounded caches.
            let read = |name: &str| exe.read_state(name).unwrap();
            match cache {
                None => vec![read("cache.0.k")],
                Some(_) => vec![read("cache.0.k"), read("cache.0.k.scale")],
            }
        };
        let [wide] = &states(None)[..] else {
            panic!("one state");
        };
        let [codes, scales] = &states(Some(CacheFormat::Q8_0))[..] else {
            panic!("two states");
        };
        let (wide, scales) = (wide.to_f64s(), scales.to_f64s());
        let codes = codes.as_slice::<i8>().unwrap();
        let row = wide.len() / CONTEXT;
        let padded = row.next_multiple_of(32);
        for at in 0..tokens.len() {
            let mut want: Vec<f32> = wide[at * row..][..row].iter().map(|x| *x as f32).collect();
            want.resize(padded, 0.0);
            let want = quantize_q8_0(&want).unwrap();
            for (block, want) in want.chunks_exact(34).enumerate() {
                let block = at * padded / 32 + block;
                let scale = f16_of(&want[..2]);
                // The unquantized key may be rounded differently before quantization.
                assert!((scales[block] - scale).abs() <= 1e-3 * scale, "{name} {at}");
                let own = &codes[block * 32..][..32];
                let most = own
                    .iter()
                    .zip(&want[2..])
                    .map(|(a, b)| i32::from(*a) - i32::from(*b as i8));
                assert!(most.map(i32::abs).max() <= Some(1), "{name} {at}");
            }
        }
    }
}

fn f16_of(bytes: &[u8]) -> f64 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    half::f16::from_bits(bits).to_f64()
}
