//! Tests of batched generation: each sequence equals its result without other sequences.

use std::collections::BTreeMap;

use tercet::Device;
use tercet_models::constraint::{Constraint, ConstraintError};
use tercet_models::{
    BatchEventKind, BatchGenerator, BatchOptions, DecoderOptions, FinishReason, ModelError,
    ModelFiles, SamplingOptions, Sequence, SequenceId,
};

const CONTEXT: usize = 64;
const CHUNK: usize = 8;

fn files() -> ModelFiles {
    ModelFiles::open(crate::common::data(
        "tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
    ))
    .unwrap()
}

fn batch(slots: usize) -> BatchGenerator {
    in_turns(slots, None)
}

/// A batch generator that decodes at most `together` sequences per run.
fn in_turns(slots: usize, together: Option<usize>) -> BatchGenerator {
    let decoder = files().batch_decoder(|spec| BatchOptions {
        context: CONTEXT,
        chunk: CHUNK,
        together,
        ..BatchOptions::new(spec, slots)
    });
    decoder.unwrap().generator(&Device::cpu()).unwrap()
}

/// Prompt `i`; its length is close to a multiple of the prefill chunk.
fn prompt(i: usize) -> Vec<u32> {
    let lengths = [1, CHUNK, CHUNK + 1, 3, 2 * CHUNK, 21, CHUNK - 1];
    (0..lengths[i % lengths.len()])
        .map(|at| ((at * 37 + i * 101) % 250 + 3) as u32)
        .collect()
}

/// Sequence `i`: every second one is greedy, and the lengths differ.
fn sequence(i: usize) -> Sequence {
    let sampling = match i % 4 {
        0 | 2 => SamplingOptions::default(),
        1 => SamplingOptions {
            temperature: 0.9,
            top_p: 0.95,
            ..SamplingOptions::default()
        },
        _ => SamplingOptions {
            temperature: 1.2,
            top_k: 20,
            frequency_penalty: 0.5,
            repetition_penalty: 1.1,
            ..SamplingOptions::default()
        },
    };
    Sequence {
        sampling,
        seed: i as u64,
        ..Sequence::new(prompt(i), 5 + i * 3 % 11)
    }
}

/// All results of one sequence.
#[derive(Debug, Default, PartialEq)]
struct Log {
    tokens: Vec<u32>,
    /// The bits of the logits from which each token was sampled.
    logits: Vec<Vec<u32>>,
    ended: Option<FinishReason>,
    failed: Option<String>,
    /// Number of processed prompt tokens after each prefill chunk.
    parts: Vec<usize>,
}

#[derive(Default)]
struct Logs(BTreeMap<SequenceId, Log>);

impl Logs {
    /// Runs one step; returns false if there is no work.
    fn step(&mut self, batch: &mut BatchGenerator) -> bool {
        let events = batch.step().unwrap();
        for event in &events {
            let log = self.0.entry(event.sequence).or_default();
            assert!(log.ended.is_none() && log.failed.is_none());
            match &event.kind {
                BatchEventKind::Prompt(done) => log.parts.push(*done),
                BatchEventKind::Token(token) => {
                    log.tokens.push(*token);
                    let logits = batch.logits(event.sequence).unwrap().unwrap();
                    log.logits
                        .push(logits.iter().map(|x| x.to_bits()).collect());
                }
                BatchEventKind::Ended(finish) => log.ended = Some(*finish),
                BatchEventKind::Failed(e) => log.failed = Some(tercet::one_line(e)),
            }
        }
        !events.is_empty()
    }

    fn finish(&mut self, batch: &mut BatchGenerator) {
        while self.step(batch) {}
        assert_eq!(batch.free(), batch.slots());
    }
}

fn alone(slots: usize, sequence: Sequence) -> Log {
    let mut batch = batch(slots);
    let id = batch.start(sequence).unwrap();
    let mut logs = Logs::default();
    logs.finish(&mut batch);
    logs.0.remove(&id).unwrap()
}

/// The result of each sequence alone, in one generator that is reset between sequences.
fn each_alone_in_turns([slots, together]: [usize; 2], count: usize) -> Vec<Log> {
    let mut batch = in_turns(slots, Some(together));
    let one = |i| {
        batch.reset();
        let id = batch.start(sequence(i)).unwrap();
        let mut logs = Logs::default();
        logs.finish(&mut batch);
        logs.0.remove(&id).unwrap()
    };
    (0..count).map(one).collect()
}

fn each_alone(slots: usize, count: usize) -> Vec<Log> {
    each_alone_in_turns([slots, slots], count)
}

#[test]
fn any_company_gives_the_same_bits() {
    const COUNT: usize = 12;
    for [slots, together] in [[1, 1], [3, 3], [5, 2], [11, 11], [11, 4]] {
        let want = each_alone_in_turns([slots, together], COUNT);
        let mut batch = in_turns(slots, Some(together));
        let (mut logs, mut of) = (Logs::default(), BTreeMap::new());
        let mut waiting = (0..COUNT).rev().chain(0..COUNT).peekable();
        // A new sequence starts every three steps, whatever the state of the others.
        for step in 0.. {
            if step % 3 == 0
                && batch.free() > 0
                && let Some(i) = waiting.next()
            {
                of.insert(batch.start(sequence(i)).unwrap(), i);
            }
            let worked = logs.step(&mut batch);
            if !worked && waiting.peek().is_none() {
                break;
            }
        }
        assert_eq!(of.len(), 2 * COUNT);
        for (id, i) in of {
            let got = &logs.0[&id];
            assert_eq!(got.tokens, want[i].tokens, "sequence {i} of {slots} slots");
            assert!(
                got.logits == want[i].logits,
                "sequence {i} of {slots} slots"
            );
            assert_eq!(got.ended, want[i].ended);
        }
    }
}

/// On the CPU, the kernels for one row of packed weights serve up to 16 rows. A lone sequence is therefore
/// not padded, and its bits do not depend on the number of slots.
#[test]
fn packed_weights_give_the_same_bits_for_any_number_of_slots() {
    const COUNT: usize = 6;
    let want = each_alone(1, COUNT);
    for (slots, most) in [(1, 1), (5, 5), (16, 16), (40, 16)] {
        assert_eq!(in_turns(slots, None).decode_rows(), 1..=most);
        let mut batch = in_turns(slots, None);
        let mut logs = Logs::default();
        let mut waiting = 0..COUNT;
        let mut ids = Vec::new();
        while ids.len() < COUNT || batch.free() < batch.slots() {
            while batch.free() > 0
                && let Some(i) = waiting.next()
            {
                ids.push(batch.start(sequence(i)).unwrap());
            }
            logs.step(&mut batch);
        }
        for (id, want) in ids.iter().zip(&want) {
            let got = &logs.0[id];
            assert_eq!(got.tokens, want.tokens, "{slots} slots");
            assert!(got.logits == want.logits, "{slots} slots");
        }
    }
}

#[test]
fn tokens_are_those_of_a_generator() {
    let decoder = files().decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk: CHUNK,
        ..DecoderOptions::new(spec)
    });
    let mut plain = decoder.unwrap().generator(&Device::cpu()).unwrap();
    let of_four = each_alone(4, 8);
    for (one, four) in each_alone(1, 8).iter().zip(&of_four) {
        assert_eq!(one.tokens, four.tokens, "of one slot and of four");
    }
    for (i, got) in of_four.iter().enumerate().step_by(2) {
        let Sequence {
            prompt, max_tokens, ..
        } = sequence(i);
        plain.reset();
        let mut next = plain.forward(&prompt).unwrap().next.unwrap();
        let mut want = vec![next];
        while want.len() < max_tokens {
            next = plain.forward(&[next]).unwrap().next.unwrap();
            want.push(next);
        }
        assert_eq!(got.tokens, want, "sequence {i}");
        assert_eq!(got.ended, Some(FinishReason::Length));
    }
}

#[test]
fn slots_are_cancelled_and_filled_again_while_others_go_on() {
    let want = alone(2, sequence(5));
    let mut batch = batch(2);
    let mut logs = Logs::default();
    let stays = batch.start(sequence(5)).unwrap();
    for i in 0..6 {
        let id = batch.start(sequence(i)).unwrap();
        let full = batch.start(sequence(0)).unwrap_err();
        assert!(matches!(full, ModelError::NoSlot { slots: 2 }), "{full}");
        // Cancel in the middle of the prompt or of the generated text.
        for _ in 0..=i {
            logs.step(&mut batch);
        }
        let had = batch.cancel(id);
        assert!(!batch.cancel(id), "it has no slot any more");
        let before = logs.0.get(&id).map_or(0, |log| log.tokens.len());
        logs.step(&mut batch);
        let after = logs.0.get(&id).map_or(0, |log| log.tokens.len());
        assert!(had && before == after);
        if batch.free() == 2 {
            break;
        }
    }
    logs.finish(&mut batch);
    assert_eq!(logs.0[&stays].tokens, want.tokens);
    assert!(logs.0[&stays].logits == want.logits);
    assert!(!batch.cancel(stays));
    assert!(batch.step().unwrap().is_empty());
}

#[test]
fn sequences_end_where_they_are_told_to() {
    let free = alone(3, Sequence::new(prompt(5), 10));
    assert_eq!(
        (free.tokens.len(), free.ended),
        (10, Some(FinishReason::Length))
    );
    // Use a generated token that does not occur earlier as the EOS token.
    let at = (1..10).find(|at| !free.tokens[..*at].contains(&free.tokens[*at]));
    let at = at.expect("the text has two different tokens");
    let ended = alone(
        3,
        Sequence {
            eos: vec![99_999, free.tokens[at]],
            ..Sequence::new(prompt(5), 10)
        },
    );
    assert_eq!(ended.tokens, free.tokens[..at]);
    assert_eq!(ended.ended, Some(FinishReason::End));
    let none = alone(3, Sequence::new(prompt(5), 0));
    assert_eq!(
        (none.tokens.len(), none.ended),
        (0, Some(FinishReason::Length))
    );
    // A prompt that fills the context is followed by one token.
    let long: Vec<u32> = (0..CONTEXT as u32).map(|t| t % 200 + 3).collect();
    let full = alone(3, Sequence::new(long.clone(), 10));
    assert_eq!(
        (full.tokens.len(), full.ended),
        (1, Some(FinishReason::Context))
    );
    let full = alone(3, Sequence::new(long[..CONTEXT - 3].to_vec(), 10));
    assert_eq!(
        (full.tokens.len(), full.ended),
        (4, Some(FinishReason::Context))
    );
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut batch = batch(2);
    let refused = |batch: &mut BatchGenerator, sequence: Sequence| {
        let e = batch.start(sequence).unwrap_err();
        assert_eq!(batch.free(), 2);
        e.to_string()
    };
    let e = refused(&mut batch, Sequence::new(Vec::new(), 1));
    assert!(e.contains("no tokens"), "{e}");
    let e = refused(&mut batch, Sequence::new(vec![5; CONTEXT + 1], 1));
    assert!(e.contains("context of 64"), "{e}");
    let e = refused(&mut batch, Sequence::new(vec![5, 4_000_000], 1));
    assert!(e.contains("token 4000000"), "{e}");
    let sampling = SamplingOptions {
        temperature: f64::NAN,
        ..SamplingOptions::default()
    };
    let e = refused(
        &mut batch,
        Sequence {
            sampling,
            ..Sequence::new(vec![5], 1)
        },
    );
    assert!(e.contains("temperature"), "{e}");
    for (slots, chunk, context) in [(0, 8, 64), (257, 8, 64), (2, 0, 64), (2, 8, 0)] {
        let built = files().batch_decoder(|spec| BatchOptions {
            context,
            chunk,
            ..BatchOptions::new(spec, slots)
        });
        assert!(built.is_err(), "{slots} slots, parts of {chunk}");
    }
}

#[test]
fn a_prefix_that_a_slot_holds_is_not_computed_again() {
    let shared = prompt(4);
    let with = |end: &[u32], tokens| Sequence::new([&shared[..], end].concat(), tokens);
    let ends: [&[u32]; 3] = [&[7, 8, 9], &[10], &[7, 8, 9, 11, 12, 13, 14, 15, 16, 17]];
    let want = ends.map(|end| alone(2, with(end, 9)));
    let mut batch = batch(2);
    let mut logs = Logs::default();
    let ids = ends.map(|end| {
        let id = batch.start(with(end, 9)).unwrap();
        logs.finish(&mut batch);
        id
    });
    for (i, (id, want)) in ids.iter().zip(&want).enumerate() {
        let got = &logs.0[id];
        assert!(
            got.tokens == want.tokens && got.logits == want.logits,
            "{i}"
        );
        let parts = [vec![8, 16, 19], vec![17], vec![24, 26]];
        assert_eq!(got.parts, parts[i]);
        assert_eq!(want.parts[..2], [8, 16]);
    }
    // The whole prompt is cached, but the logits of its last token must be computed.
    let again = batch.start(Sequence::new(shared.clone(), 3)).unwrap();
    logs.finish(&mut batch);
    assert_eq!(logs.0[&again].parts, [16]);
    assert!(logs.0[&again].logits == alone(2, Sequence::new(shared.clone(), 3)).logits);
}

/// A constraint that allows two given tokens in order, and fails after them.
struct Two(Vec<u32>);

impl Constraint for Two {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let Some(&only) = self.0.last() else {
            let reason = "it has two tokens".to_string();
            return Err(ConstraintError::Stuck { reason });
        };
        let others = logits
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| *i != only as usize);
        others.for_each(|(_, x)| *x = f32::NEG_INFINITY);
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(self.0.pop(), Some(token));
        Ok(())
    }
}

#[test]
fn a_constraint_that_does_not_go_on_ends_its_own_sequence() {
    let want = alone(2, sequence(2));
    let mut batch = batch(2);
    let bound = batch
        .start(Sequence {
            constraint: Some(Box::new(Two(vec![40, 30]))),
            ..sequence(0)
        })
        .unwrap();
    let other = batch.start(sequence(2)).unwrap();
    let mut logs = Logs::default();
    logs.finish(&mut batch);
    assert_eq!(logs.0[&bound].tokens, [30, 40]);
    let failed = logs.0[&bound].failed.as_deref().unwrap();
    assert!(failed.contains("it has two tokens"), "{failed}");
    assert_eq!(logs.0[&other].tokens, want.tokens);
    assert!(logs.0[&other].logits == want.logits);
}
