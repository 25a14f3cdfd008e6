//! Tests of single-sequence generation with a draft: the same results as a slot without a draft, in
//! fewer runs.

use tercet::Device;
use tercet_models::constraint::{Constraint, ConstraintError};
use tercet_models::{
    BatchEvent, BatchEventKind, BatchGenerator, BatchOptions, DecoderOptions, Draft, FinishReason,
    MAX_DRAFT_TOKENS, ModelError, ModelFiles, SamplingOptions, Sequence, SpeculativeGenerator,
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

fn drafted() -> SpeculativeGenerator {
    let decoder = files().decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk: CHUNK,
        logit_rows: MAX_DRAFT_TOKENS + 1,
        ..DecoderOptions::new(spec)
    });
    let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
    let set = generator.set_draft(Some(Draft::ngrams()), MAX_DRAFT_TOKENS);
    set.unwrap();
    SpeculativeGenerator::new(generator)
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
fn of_drafted(drafted: &mut SpeculativeGenerator, sequence: Sequence) -> (Vec<String>, usize) {
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
