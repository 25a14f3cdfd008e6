//! Tests of batches whose sequences each select an adapter. Each result equals that of a model with
//! only this adapter, independently of the batch.

use std::collections::BTreeMap;

use tercet::Device;
use tercet_models::{
    Adapter, BatchEventKind, BatchGenerator, BatchOptions, DecoderOptions, LowRank, ModelError,
    ModelFiles, ScaledAdapter, Sequence, SequenceId,
};

use crate::adapters::{adapter, drawn};

const CONTEXT: usize = 48;
const CHUNK: usize = 8;
/// More than two prefill chunks, the same for all sequences.
const PROMPT: usize = 2 * CHUNK + 3;

fn files() -> ModelFiles {
    let path = "tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
    ModelFiles::open(crate::common::data(path)).unwrap()
}

/// One adapter of all projections. Another has a different rank, only a few projections including
/// the output, and half the scale.
fn choices(files: &ModelFiles) -> Vec<ScaledAdapter> {
    let config = files.decoder_spec().unwrap();
    let all = adapter(&config, "all", 4, 0.3);
    let mut few = BTreeMap::new();
    for (module, rows, cols) in [
        ("model.layers.1.mlp.up_proj", config.ffn, config.hidden),
        ("lm_head", config.vocab, config.hidden),
    ] {
        let a = drawn(&format!("{module}a"), &[6, cols], 0.1);
        let b = drawn(&format!("{module}b"), &[rows, 6], 0.5);
        few.insert(module.into(), LowRank::new(module, a, b, 6.0).unwrap());
    }
    let few = ScaledAdapter::new(Adapter::new(few)).scaled(0.5);
    vec![ScaledAdapter::new(all), few]
}

fn batch(slots: usize, options: impl FnOnce(&mut BatchOptions)) -> Result<BatchGenerator, String> {
    let files = files();
    let choices = choices(&files);
    let decoder = files.batch_decoder(|spec| {
        let mut all = BatchOptions {
            context: CONTEXT,
            chunk: CHUNK,
            selectable_adapters: choices,
            ..BatchOptions::new(spec, slots)
        };
        options(&mut all);
        all
    });
    let decoder = decoder.map_err(|e| tercet::one_line(&e))?;
    Ok(decoder.generator(&Device::cpu()).unwrap())
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|at| (at * 37 % 250 + 3) as u32).collect()
}

fn sequence(adapter: Option<usize>) -> Sequence {
    Sequence {
        adapter,
        ..Sequence::new(prompt(), 12)
    }
}

/// Tokens and the bits of their logits.
type Log = (Vec<u32>, Vec<Vec<u32>>);

fn finish(batch: &mut BatchGenerator, logs: &mut BTreeMap<SequenceId, Log>) {
    while step(batch, logs) {}
}

fn step(batch: &mut BatchGenerator, logs: &mut BTreeMap<SequenceId, Log>) -> bool {
    let events = batch.step().unwrap();
    for event in &events {
        if let BatchEventKind::Token(token) = event.kind {
            let logits = batch.logits(event.sequence).unwrap().unwrap();
            let (tokens, bits) = logs.entry(event.sequence).or_default();
            tokens.push(token);
            bits.push(logits.iter().map(|x| x.to_bits()).collect());
        }
    }
    !events.is_empty()
}

/// The tokens that a model with these adapters generates.
fn of_generator(adapters: Vec<ScaledAdapter>) -> Vec<u32> {
    let decoder = files().decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk: CHUNK,
        adapters,
        ..DecoderOptions::new(spec)
    });
    let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
    let mut tokens = vec![generator.forward(&prompt()).unwrap().next.unwrap()];
    while tokens.len() < 12 {
        tokens.push(
            generator
                .forward(&tokens[tokens.len() - 1..])
                .unwrap()
                .next
                .unwrap(),
        );
    }
    tokens
}

#[test]
fn every_sequence_has_its_own_adapter_in_any_company() {
    let own = [None, Some(0), Some(1)];
    let mut alone = Vec::new();
    for adapter in own {
        let mut batch = batch(3, |_| {}).unwrap();
        let mut logs = BTreeMap::new();
        let id = batch.start(sequence(adapter)).unwrap();
        finish(&mut batch, &mut logs);
        alone.push(logs.remove(&id).unwrap());
    }
    let choices = choices(&files());
    for (got, adapters) in alone.iter().zip([
        Vec::new(),
        vec![choices[0].clone()],
        vec![choices[1].clone()],
    ]) {
        assert_eq!(got.0, of_generator(adapters));
    }
    assert!(alone[0].0 != alone[1].0 && alone[0].0 != alone[2].0 && alone[1].0 != alone[2].0);

    // The slots cache the prompt for different adapters; a new sequence must not reuse the cache of
    // another adapter.
    let mut batch = batch(3, |_| {}).unwrap();
    for turn in 0..4 {
        let mut logs = BTreeMap::new();
        let mut ids = Vec::new();
        for i in 0..3 {
            let which = (i + turn) % 3;
            ids.push((batch.start(sequence(own[which])).unwrap(), which));
            for _ in 0..i + turn {
                step(&mut batch, &mut logs);
            }
        }
        finish(&mut batch, &mut logs);
        for (id, which) in ids {
            assert!(
                logs[&id] == alone[which],
                "adapter {:?}, turn {turn}",
                own[which]
            );
        }
    }
}

#[test]
fn adapters_that_cannot_be_chosen_are_refused() {
    let mut with_two = batch(2, |_| {}).unwrap();
    let refused = with_two.start(sequence(Some(2))).unwrap_err();
    assert!(
        matches!(&refused, ModelError::Unsupported(why) if why.contains("compiled with 2")),
        "{refused}"
    );
    let many = batch(2, |options| {
        options.selectable_adapters = vec![options.selectable_adapters[0].clone(); 65];
    });
    assert!(many.err().unwrap().contains("at most 64"));
    let both = batch(2, |options| {
        options.adapters = options.selectable_adapters.clone()
    });
    assert!(
        both.err()
            .unwrap()
            .contains("cannot be combined with selectable adapters")
    );
    let huge = batch(2, |options| {
        options.selectable_adapters[1].scale = f64::MAX * 2.0
    });
    assert!(huge.err().unwrap().contains("the scale of an adapter"));
    let unknown = batch(2, |options| {
        let module = "model.layers.99.mlp.up_proj";
        let [a, b] = [[2, 4], [4, 2]].map(|shape| drawn(module, &shape, 0.1));
        let low = LowRank::new(module, a, b, 1.0).unwrap();
        let other = Adapter::new(BTreeMap::from([(module.to_string(), low)]));
        options.selectable_adapters.push(ScaledAdapter::new(other));
    });
    assert!(
        unknown
            .err()
            .unwrap()
            .contains("model.layers.99.mlp.up_proj")
    );
}
