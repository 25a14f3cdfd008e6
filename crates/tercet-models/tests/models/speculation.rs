//! Tests that speculative decoding generates the same tokens as the model without a draft.

use tercet::Device;
use tercet_models::{
    DecoderOptions, Draft, DraftCounts, DraftError, FinishReason, GenerateOptions, Generation,
    Generator, MAX_DRAFT_TOKENS, ModelError, ModelFiles, Sampling, SamplingOptions, Tokenizer,
    generate,
};

const CONTEXT: usize = 160;
const Q8: &str = "tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
const F16: &str = "tiny-rust-llama/tiny-rust-llama-f16.gguf";

/// Prompts, one of which is repetitive.
const PROMPTS: [&str; 12] = [
    "Ownership is",
    "fn main() {\n    let mut",
    "The borrow checker",
    "let x = 5; let y = 6; let x = 5; let y = 6; let",
    "A trait defines",
    "use std::collections::HashMap;\n",
    "Note that",
    "impl Iterator for",
    "```rust\n",
    "Strings are",
    "In this chapter we",
    "error[E0382]: ",
];

fn generator(path: &str, options: impl FnOnce(DecoderOptions) -> DecoderOptions) -> Generator {
    let files = ModelFiles::open(crate::common::data(path)).unwrap();
    let decoder = files.decoder(|spec| {
        options(DecoderOptions {
            context: CONTEXT,
            logit_rows: MAX_DRAFT_TOKENS + 1,
            ..DecoderOptions::new(spec)
        })
    });
    decoder.unwrap().generator(&Device::cpu()).unwrap()
}

fn tokenizer(path: &str) -> Tokenizer {
    ModelFiles::open(crate::common::data(path))
        .unwrap()
        .tokenizer()
        .unwrap()
}

/// The same weights in another storage type.
fn model() -> Draft {
    Draft::model(generator(F16, |o| o), &tokenizer(F16), &tokenizer(Q8)).unwrap()
}

fn written(
    generator: &mut Generator,
    prompt: &str,
    options: &GenerateOptions<'_>,
) -> (Generation, String) {
    let tokenizer = tokenizer(Q8);
    let ids = tokenizer.encode(prompt, true).unwrap();
    generator.reset();
    generator.set_seed(7);
    let mut text = String::new();
    let written = generate(generator, &tokenizer, &ids, options, &mut |event| {
        if let tercet_models::GenerateEvent::Text(piece, _) = event {
            text += piece;
        }
        true
    });
    (written.unwrap(), text)
}

fn options(max_tokens: usize) -> GenerateOptions<'static> {
    GenerateOptions {
        max_tokens,
        stop: &[],
        eos: &[],
        spelled: &[],
    }
}

/// Generates every prompt with and without a draft of `most` tokens, and compares. Returns the
/// draft counts.
fn check(draft: Draft, most: usize, sampling: &SamplingOptions) -> DraftCounts {
    let mut alone = generator(Q8, |o| DecoderOptions { logit_rows: 1, ..o });
    let mut drafted = generator(Q8, |o| o);
    drafted.set_draft(Some(draft), most).unwrap();
    for generator in [&mut alone, &mut drafted] {
        generator.set_sampling(sampling).unwrap();
    }
    for prompt in PROMPTS {
        let want = written(&mut alone, prompt, &options(40));
        let got = written(&mut drafted, prompt, &options(40));
        assert_eq!(got, want, "{prompt:?}, {most} at a time, {sampling:?}");
    }
    drafted.draft_counts().unwrap()
}

#[test]
fn greedy_texts_are_those_of_the_model_alone() {
    let greedy = SamplingOptions::default();
    let counts = check(Draft::ngrams(), MAX_DRAFT_TOKENS, &greedy);
    assert!(
        counts.accepted > 0 && counts.accepted < counts.proposed,
        "{counts:?}"
    );
    let counts = check(model(), 4, &greedy);
    assert!(counts.accepted * 10 > counts.proposed * 7, "{counts:?}");
    assert!(counts.near_ties > 0, "no two logits were near: {counts:?}");
    check(model(), 1, &greedy);
}

#[test]
fn drawn_texts_are_those_of_the_same_seed() {
    let drawn = SamplingOptions {
        temperature: 0.8,
        top_p: 0.9,
        ..SamplingOptions::default()
    };
    let counts = check(model(), 5, &drawn);
    // A draft model samples with the same random numbers as the target model.
    assert!(counts.accepted * 2 > counts.proposed, "{counts:?}");
    let changed = SamplingOptions {
        temperature: 1.1,
        top_k: 30,
        repetition_penalty: 1.2,
        frequency_penalty: 0.4,
        logit_bias: vec![(40, 1.5), (41, f32::NEG_INFINITY)],
        ..SamplingOptions::default()
    };
    check(Draft::ngrams(), MAX_DRAFT_TOKENS, &changed);
    check(model(), 3, &changed);
    // Greedy sampling with modified logits.
    let changed = SamplingOptions {
        temperature: 0.0,
        ..changed
    };
    check(model(), MAX_DRAFT_TOKENS, &changed);
}

#[test]
fn texts_end_where_they_would_have() {
    let prompt = PROMPTS[3];
    let mut alone = generator(Q8, |o| o);
    let mut drafted = generator(Q8, |o| o);
    drafted.set_draft(Some(model()), MAX_DRAFT_TOKENS).unwrap();
    let (whole, _) = written(&mut alone, prompt, &options(40));
    for max_tokens in 0..12 {
        let want = written(&mut alone, prompt, &options(max_tokens));
        assert_eq!(written(&mut drafted, prompt, &options(max_tokens)), want);
        assert_eq!(drafted.cached(), alone.cached(), "{max_tokens} tokens");
    }
    for token in &whole.tokens[..12] {
        let ends = GenerateOptions {
            eos: &[*token],
            spelled: &[],
            ..options(40)
        };
        let want = written(&mut alone, prompt, &ends);
        assert_eq!(want.0.finish, FinishReason::End);
        assert_eq!(written(&mut drafted, prompt, &ends), want);
    }
    let stop = ["x =".to_string(), "5".to_string()];
    let stops = GenerateOptions {
        stop: &stop,
        ..options(40)
    };
    let want = written(&mut alone, prompt, &stops);
    assert_eq!(written(&mut drafted, prompt, &stops), want);
    // Generate to the last position of the context.
    let want = written(&mut alone, prompt, &options(usize::MAX));
    assert_eq!(want.0.finish, FinishReason::Context);
    assert_eq!(written(&mut drafted, prompt, &options(usize::MAX)), want);
    // The draft model's context may end earlier.
    let short = generator(F16, |o| DecoderOptions {
        context: 40,
        chunk: 40,
        ..o
    });
    let short = Draft::model(short, &tokenizer(F16), &tokenizer(Q8)).unwrap();
    drafted.set_draft(Some(short), 4).unwrap();
    assert_eq!(written(&mut drafted, prompt, &options(usize::MAX)), want);
}

/// Tests that logits of several rows in one run are close to those of one-row runs, on which the
/// verification of drafts relies.
#[test]
fn rows_together_are_near_rows_alone() {
    let ids = tokenizer(Q8).encode(PROMPTS[3], true).unwrap();
    let of = |rows: usize, dtype| {
        let mut generator = generator(Q8, |o| DecoderOptions {
            chunk: rows,
            dtype,
            ..o
        });
        let mut logits: Vec<Vec<f32>> = Vec::new();
        let mut each = |row: &[f32]| {
            logits.push(row.to_vec());
            true
        };
        generator.forward_rows(&ids, &mut each).unwrap();
        logits
    };
    for (dtype, most) in [
        (tercet::DType::F32, 1e-4),
        (tercet::DType::F16, 2e-2),
        (tercet::DType::BF16, 1e-1),
    ] {
        let alone = of(1, dtype);
        for rows in 2..=MAX_DRAFT_TOKENS + 1 {
            for (a, b) in alone.iter().zip(&of(rows, dtype)) {
                let spread = a.iter().copied().fold(f32::MIN, f32::max)
                    - a.iter().copied().fold(f32::MAX, f32::min);
                let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
                let off = off.fold(0.0, f32::max) / spread;
                assert!(off < most, "{rows} rows of {dtype}: {off:e}");
            }
        }
    }
}

#[test]
fn what_cannot_be_drafted_is_refused() {
    let refused = |path: &str, most| {
        let set = generator(path, |o| o).set_draft(Some(Draft::ngrams()), most);
        match set.unwrap_err() {
            ModelError::Draft(e) => e,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(
        refused("decoders/mamba-a", 3),
        DraftError::States { .. }
    ));
    assert!(matches!(refused(Q8, 0), DraftError::Tokens { tokens: 0 }));
    assert!(matches!(refused(Q8, 8), DraftError::Tokens { tokens: 8 }));
    let mut one = generator(Q8, |o| DecoderOptions { logit_rows: 1, ..o });
    let e = one.set_draft(Some(Draft::ngrams()), 1).unwrap_err();
    assert!(e.to_string().contains("2 rows of logits"), "{e}");
    let mut silent = generator(Q8, |o| DecoderOptions {
        sampling: None,
        ..o
    });
    let e = silent.set_draft(Some(Draft::ngrams()), 1).unwrap_err();
    assert!(matches!(e, ModelError::Draft(DraftError::Kind)), "{e}");
    let other = Tokenizer::from_file(crate::common::data("tokenizers/byte_level.json")).unwrap();
    let draft = Draft::model(generator(Q8, |o| o), &other, &tokenizer(Q8));
    assert!(matches!(
        draft.err(),
        Some(DraftError::VocabularySize { .. })
    ));
    let states = generator("decoders/mamba-a", |o| o);
    let draft = Draft::model(states, &tokenizer(Q8), &tokenizer(Q8));
    assert!(matches!(draft.err(), Some(DraftError::States { .. })));
}

#[test]
fn one_token_in_another_place_is_another_vocabulary() {
    let text =
        std::fs::read_to_string(crate::common::data("tiny-rust-llama/tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let own = Tokenizer::from_json(text.as_bytes()).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let names: Vec<String> = [60, 61]
        .iter()
        .map(|id| {
            let mut names = vocab.iter();
            names
                .find(|(_, at)| at.as_u64() == Some(*id))
                .unwrap()
                .0
                .clone()
        })
        .collect();
    let [a, b] = names.as_slice() else {
        panic!("two names");
    };
    let (at, to) = (vocab[a].clone(), vocab[b].clone());
    vocab.insert(a.clone(), to);
    vocab.insert(b.clone(), at);
    let other = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    let draft = Draft::model(generator(Q8, |o| o), &other, &own);
    match draft.err() {
        Some(DraftError::Vocabulary {
            token: 60,
            draft,
            target,
        }) => {
            assert_eq!([draft, target], [b.clone(), a.clone()]);
        }
        other => panic!("{other:?}"),
    }
    // Without a draft, each run returns one token.
    let mut generator = generator(Q8, |o| DecoderOptions {
        sampling: Some(Sampling::GREEDY),
        ..o
    });
    let next = generator.forward(&[5, 6, 7]).unwrap().next.unwrap();
    assert_eq!(generator.advance(next, 9, &[]).unwrap().len(), 1);
}
