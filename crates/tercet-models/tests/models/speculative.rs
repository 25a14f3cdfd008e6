//! Tests of slots with a draft: the same results as without a draft, in fewer runs, for any number of
//! slots, for models with windows, and with adapters.

use std::collections::BTreeMap;

use tercet::Device;
use tercet_models::constraint::{Constraint, ConstraintError};
use tercet_models::{
    BatchEvent, BatchEventKind, BatchGenerator, BatchOptions, Draft, DraftError, DraftOptions,
    FinishReason, MAX_DRAFT_TOKENS, MatmulPrecision, ModelError, ModelFiles, Sampling,
    SamplingOptions, Sequence, SequenceId,
};

const CONTEXT: usize = 96;
const CHUNK: usize = 16;

fn files() -> ModelFiles {
    ModelFiles::open(crate::common::data(
        "tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
    ))
    .unwrap()
}

fn slot() -> BatchGenerator {
    let decoder = files().batch_decoder(|spec| BatchOptions {
        context: CONTEXT,
        chunk: CHUNK,
        ..BatchOptions::new(spec, 1)
    });
    decoder.unwrap().generator(&Device::cpu()).unwrap()
}

fn drafted() -> BatchGenerator {
    in_slots(1, Some(Draft::ngrams()))
}

/// Slots with a draft, if there is one.
fn in_slots(slots: usize, draft: Option<Draft>) -> BatchGenerator {
    let decoder = files().batch_decoder(|spec| BatchOptions {
        context: CONTEXT,
        chunk: CHUNK,
        draft_tokens: MAX_DRAFT_TOKENS,
        ..BatchOptions::new(spec, slots)
    });
    let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
    generator.set_draft(draft, MAX_DRAFT_TOKENS).unwrap();
    generator
}

/// A repetitive prompt, so that the draft proposes tokens.
fn prompt(len: usize) -> Vec<u32> {
    let text = "let x = 5; let y = 6; let x = 5; let y = 6; ".repeat(4);
    let ids = files().tokenizer().unwrap().encode(&text, true).unwrap();
    ids[..len].to_vec()
}

/// Sequences with prompts around the chunk length and with different sampling options.
fn sequences() -> Vec<Sequence> {
    let drawn = SamplingOptions {
        temperature: 0.9,
        top_p: 0.95,
        ..SamplingOptions::default()
    };
    let of = |(i, len): (usize, usize)| Sequence {
        sampling: match i % 3 {
            2 => drawn.clone(),
            _ => SamplingOptions::default(),
        },
        seed: i as u64,
        ..Sequence::new(prompt(len), 24)
    };
    let lengths = [1, CHUNK - 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 50, 48, 33];
    lengths.into_iter().enumerate().map(of).collect()
}

/// The events in printable form, without the sequence id.
fn told(events: &[BatchEvent]) -> Vec<String> {
    let told = events.iter().map(|event| format!("{:?}", event.kind));
    told.collect()
}

fn of_slot(sequence: Sequence) -> Vec<String> {
    let mut slot = slot();
    slot.start(sequence).unwrap();
    let mut all = Vec::new();
    loop {
        let events = slot.step().unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(told(&events));
    }
}

/// All events of a sequence, and the number of runs.
fn of_drafted(drafted: &mut BatchGenerator, sequence: Sequence) -> (Vec<String>, usize) {
    drafted.start(sequence).unwrap();
    let (mut all, mut runs) = (Vec::new(), 0);
    loop {
        let events = drafted.step().unwrap();
        if events.is_empty() {
            return (all, runs);
        }
        runs += 1;
        all.extend(told(&events));
    }
}

/// The events without prompt progress, which depends on cached prefixes.
fn written(told: &[String]) -> Vec<&String> {
    let is_written = |one: &&String| !one.starts_with("Prompt");
    told.iter().filter(is_written).collect()
}

#[test]
fn a_sequence_is_what_a_slot_gives_it() {
    let mut after_others = drafted();
    let (mut events, mut runs) = (0, 0);
    for (one, again) in sequences().into_iter().zip(sequences()) {
        let want = of_slot(one);
        let (got, _) = of_drafted(&mut after_others, again);
        assert_eq!(written(&got), written(&want));
    }
    for (one, again) in sequences().into_iter().zip(sequences()).rev() {
        let want = of_slot(one);
        let (got, own) = of_drafted(&mut drafted(), again);
        assert_eq!(got, want);
        (events, runs) = (events + want.len(), runs + own);
    }
    let counts = after_others.draft_counts().unwrap();
    assert!(counts.accepted > 0, "{counts:?}");
    assert!(runs < events, "{runs} runs, {events} events");
}

#[test]
fn parts_that_are_there_are_not_computed_again() {
    let mut drafted = drafted();
    let first = of_drafted(&mut drafted, Sequence::new(prompt(50), 4)).0;
    assert_eq!(first[0], format!("{:?}", BatchEventKind::Prompt(CHUNK)));
    let again = of_drafted(&mut drafted, Sequence::new(prompt(50), 4)).0;
    assert_eq!(again[0], format!("{:?}", BatchEventKind::Prompt(50)));
    assert_eq!(written(&again), written(&first));
    // The prompts differ in the second chunk, so the first chunk stays cached.
    let mut other = prompt(50);
    other[CHUNK + 3] = 7;
    let want = of_slot(Sequence::new(other.clone(), 4));
    let got = of_drafted(&mut drafted, Sequence::new(other, 4)).0;
    assert_eq!(got[0], format!("{:?}", BatchEventKind::Prompt(2 * CHUNK)));
    assert_eq!(written(&got), written(&want));
}

#[test]
fn who_wants_logits_gets_a_token_in_each_run() {
    let mut drafted = drafted();
    let wants = Sequence {
        needs_logits: true,
        ..Sequence::new(prompt(40), 12)
    };
    let id = drafted.start(wants).unwrap();
    let mut tokens = 0;
    loop {
        let events = drafted.step().unwrap();
        if events.is_empty() {
            break;
        }
        let token = events.iter().find_map(|event| match event.kind {
            BatchEventKind::Token(token) => Some(token),
            BatchEventKind::Prompt(_) | BatchEventKind::Ended(_) | BatchEventKind::Failed(_) => {
                None
            }
        });
        if let Some(token) = token {
            let logits = drafted.logits(id).unwrap().unwrap();
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert!(logits[token as usize] == most, "{token}");
            tokens += 1;
        }
    }
    assert_eq!(tokens, 12);
    assert_eq!(drafted.draft_counts().unwrap().proposed, 0);
}

#[test]
fn sequences_end_as_they_do_in_slots() {
    let mut drafted = drafted();
    let full = of_drafted(&mut drafted, Sequence::new(prompt(80), 500)).0;
    assert_eq!(full, of_slot(Sequence::new(prompt(80), 500)));
    assert_eq!(
        full.last().unwrap(),
        &format!("{:?}", BatchEventKind::Ended(FinishReason::Context))
    );
    let id = drafted.start(Sequence::new(prompt(40), 9)).unwrap();
    let another = drafted.start(Sequence::new(prompt(4), 1));
    assert!(matches!(another, Err(ModelError::NoSlot { slots: 1 })));
    drafted.step().unwrap();
    assert!(drafted.cancel(id) && !drafted.cancel(id));
    assert!(drafted.step().unwrap().is_empty());
    let nothing = drafted.start(Sequence::new(Vec::new(), 1));
    assert!(matches!(nothing, Err(ModelError::NoTokens)));
    let chosen = Sequence {
        adapter: Some(0),
        ..Sequence::new(prompt(4), 1)
    };
    assert!(matches!(
        drafted.start(chosen),
        Err(ModelError::Unsupported(_))
    ));
    // Use the third generated token as the EOS token.
    let third = of_slot(Sequence::new(prompt(40), 3));
    let mut third = third.iter().filter_map(|one| one.strip_prefix("Token("));
    let third = third
        .next_back()
        .unwrap()
        .trim_end_matches(')')
        .parse()
        .unwrap();
    let ends = || Sequence {
        eos: vec![third],
        ..Sequence::new(prompt(40), 30)
    };
    assert_eq!(
        written(&of_drafted(&mut drafted, ends()).0),
        written(&of_slot(ends()))
    );
}

/// A constraint that allows these tokens, last element first, and fails after them.
struct These(Vec<u32>);

impl Constraint for These {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let Some(&only) = self.0.last() else {
            let reason = "there are no more".to_string();
            return Err(ConstraintError::Stuck { reason });
        };
        let others = logits.iter_mut().enumerate();
        let others = others.filter(|(i, _)| *i != only as usize);
        others.for_each(|(_, x)| *x = f32::NEG_INFINITY);
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(self.0.pop(), Some(token));
        Ok(())
    }
}

#[test]
fn a_constraint_holds_and_fails_its_own_sequence_alone() {
    let mut drafted = drafted();
    let bound = |tokens: Vec<u32>, most| Sequence {
        constraint: Some(Box::new(These(tokens))),
        ..Sequence::new(prompt(40), most)
    };
    let all = || vec![50, 40, 30, 50, 40, 30, 50, 40, 30];
    let got = of_drafted(&mut drafted, bound(all(), 9)).0;
    assert_eq!(got, of_slot(bound(all(), 9)));
    let failed = of_drafted(&mut drafted, bound(vec![40, 30], 9)).0;
    let failed = failed.last().unwrap();
    assert!(failed.contains("there are no more"), "{failed}");
    let free = of_drafted(&mut drafted, Sequence::new(prompt(40), 9)).0;
    assert_eq!(
        written(&free),
        written(&of_slot(Sequence::new(prompt(40), 9)))
    );
}

/// The tokens of sequences that run together: each starts when a slot is free.
fn together(generator: &mut BatchGenerator, sequences: Vec<Sequence>) -> (Vec<Vec<u32>>, usize) {
    let mut waiting = sequences.into_iter();
    let mut order: Vec<SequenceId> = Vec::new();
    let mut tokens: BTreeMap<SequenceId, Vec<u32>> = BTreeMap::new();
    let mut runs = 0;
    loop {
        while generator.free() > 0 {
            let Some(next) = waiting.next() else {
                break;
            };
            order.push(generator.start(next).unwrap());
        }
        let events = generator.step().unwrap();
        if events.is_empty() {
            let all = order.iter().map(|id| tokens.remove(id).unwrap_or_default());
            return (all.collect(), runs);
        }
        runs += 1;
        for event in events {
            match event.kind {
                BatchEventKind::Token(token) => {
                    tokens.entry(event.sequence).or_default().push(token);
                }
                BatchEventKind::Failed(e) => panic!("{e}"),
                BatchEventKind::Prompt(_) | BatchEventKind::Ended(_) => {}
            }
        }
    }
}

#[test]
fn any_number_of_slots_with_a_draft_gives_the_tokens_of_each_alone() {
    let alone = sequences().into_iter().map(|sequence| {
        let (tokens, _) = together(&mut slot(), vec![sequence]);
        tokens.into_iter().next().unwrap()
    });
    let want: Vec<Vec<u32>> = alone.collect();
    for slots in [1, 2, 3, 8] {
        let mut drafted = in_slots(slots, Some(Draft::ngrams()));
        let mut runs = 0;
        for _ in 0..2 {
            let (got, own) = together(&mut drafted, sequences());
            assert_eq!(got, want, "{slots} slots");
            runs = own;
        }
        if slots < 4 {
            let counts = drafted.draft_counts().unwrap();
            assert!(counts.accepted > 0, "{slots} slots: {counts:?}");
        }
        let mut plain = in_slots(slots, None);
        for _ in 0..2 {
            let (got, own) = together(&mut plain, sequences());
            assert_eq!(got, want, "{slots} slots without a draft");
            if slots == 1 {
                assert!(runs < own, "{runs} runs, {own} without a draft");
            }
        }
    }
}

/// A draft: the same model in another storage format, which often predicts the same token.
fn model() -> Draft {
    let path = crate::common::data("tiny-rust-llama/tiny-rust-llama-f16.gguf");
    let options = DraftOptions {
        device: &Device::cpu(),
        context: CONTEXT,
        dtype: tercet::DType::F32,
        matmul_precision: MatmulPrecision::Full,
        sampling: Sampling::GREEDY,
    };
    let tokenizer = files().tokenizer().unwrap();
    let draft = ModelFiles::open(path).unwrap().draft(&options, &tokenizer);
    draft.unwrap()
}

#[test]
fn a_draft_model_serves_the_texts_of_several_slots_by_turns() {
    let (want, _) = together(&mut in_slots(3, None), sequences());
    let mut drafted = in_slots(3, Some(model()));
    let (got, _) = together(&mut drafted, sequences());
    assert_eq!(got, want);
    let counts = drafted.draft_counts().unwrap();
    assert!(counts.accepted > 0, "{counts:?}");
}

/// Texts of a model of `tests/data/decoders`, with and without a draft.
fn with_and_without(
    name: &str,
    slots: usize,
    change: impl Fn(&ModelFiles, BatchOptions) -> BatchOptions,
    sequences: impl Fn() -> Vec<Sequence>,
) -> u64 {
    let files = ModelFiles::open(crate::common::data("decoders").join(name)).unwrap();
    let generator = || {
        let decoder = files.batch_decoder(|spec| {
            let options = BatchOptions {
                context: CONTEXT,
                chunk: 8,
                draft_tokens: MAX_DRAFT_TOKENS,
                ..BatchOptions::new(spec, slots)
            };
            change(&files, options)
        });
        decoder.unwrap().generator(&Device::cpu()).unwrap()
    };
    let (want, _) = together(&mut generator(), sequences());
    let mut drafted = generator();
    let set = drafted.set_draft(Some(Draft::ngrams()), MAX_DRAFT_TOKENS);
    set.unwrap();
    for _ in 0..2 {
        let (got, _) = together(&mut drafted, sequences());
        assert_eq!(got, want, "{name}");
    }
    let counts = drafted.draft_counts().unwrap();
    assert!(counts.proposed > 0, "{name}: {counts:?}");
    counts.accepted
}

/// Prompts that repeat themselves, so that n-grams propose tokens.
fn repeats(adapters: [Option<usize>; 3]) -> Vec<Sequence> {
    let of = |(i, adapter): (usize, Option<usize>)| Sequence {
        adapter,
        ..Sequence::new((0..20).map(|t| t % (4 + i as u32) + 3).collect(), 60)
    };
    adapters.into_iter().enumerate().map(of).collect()
}

#[test]
fn windows_with_a_draft_are_those_without() {
    let names = [
        "gemma2-a",
        "gemma3-a",
        "gpt_oss-a",
        "mistral-a",
        "phi3-a",
        "mixtral-c",
    ];
    let mut accepted = 0;
    for name in names {
        for slots in [1, 2] {
            accepted += with_and_without(name, slots, |_, o| o, || repeats([None; 3]));
        }
    }
    assert!(accepted > 0);
}

#[test]
fn adapters_of_sequences_and_drafts_go_together() {
    let mut accepted = 0;
    for name in ["llama-a", "mixtral-c"] {
        for slots in [1, 3] {
            let change = |files: &ModelFiles, options: BatchOptions| {
                let spec = files.decoder_spec().unwrap();
                let ranks = [2, 3].into_iter();
                let all = ranks.map(|rank| crate::batches::adapter(&spec, rank));
                BatchOptions {
                    selectable_adapters: all.collect(),
                    ..options
                }
            };
            let texts = || repeats([Some(0), None, Some(1)]);
            accepted += with_and_without(name, slots, change, texts);
        }
    }
    assert!(accepted > 0);
}

#[test]
fn drafts_that_the_graph_does_not_support_are_refused() {
    let refused = slot().set_draft(Some(Draft::ngrams()), 1);
    assert!(
        matches!(
            refused,
            Err(ModelError::Draft(DraftError::Rows { tokens: 1, rows: 1 }))
        ),
        "{refused:?}"
    );
    let mut drafted = in_slots(2, None);
    for tokens in [0, MAX_DRAFT_TOKENS + 1] {
        let refused = drafted.set_draft(Some(Draft::ngrams()), tokens);
        let is_out = matches!(refused, Err(ModelError::Draft(DraftError::Tokens { .. })));
        assert!(is_out, "{tokens}: {refused:?}");
    }
    // Rows beyond a chunk are never computed, however many are asked for.
    let many = files().batch_decoder(|spec| BatchOptions {
        chunk: 4,
        draft_tokens: usize::MAX,
        ..BatchOptions::new(spec, 1)
    });
    let mut many = many.unwrap().generator(&Device::cpu()).unwrap();
    many.set_draft(Some(Draft::ngrams()), 3).unwrap();
    let refused = many.set_draft(Some(Draft::ngrams()), 4);
    assert!(
        matches!(
            refused,
            Err(ModelError::Draft(DraftError::Rows { tokens: 4, rows: 4 }))
        ),
        "{refused:?}"
    );
    let scanning = ModelFiles::open(crate::common::data("decoders").join("mamba-a")).unwrap();
    let scanning = scanning.batch_decoder(|spec| BatchOptions {
        draft_tokens: 2,
        ..BatchOptions::new(spec, 1)
    });
    let mut scanning = scanning.unwrap().generator(&Device::cpu()).unwrap();
    let refused = scanning.set_draft(Some(Draft::ngrams()), 2);
    assert!(
        matches!(refused, Err(ModelError::Draft(DraftError::States { .. }))),
        "{refused:?}"
    );
}
