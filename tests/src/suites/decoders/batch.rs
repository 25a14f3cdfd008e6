//! Tests of batched sequences: results are bitwise independent of the batch, and greedy tokens
//! match transformers. With an adapter per sequence, each sequence matches a model with only that
//! adapter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use tercet::{DType, Device, Tensor, TensorType, one_line};
use tercet_models::{
    Adapter, BatchEventKind, BatchGenerator, BatchOptions, DecoderSpec, LowRank, ModelFiles,
    PrefixStore, ScaledAdapter, Sequence, SequenceId,
};

use super::{BoxError, CONTEXT, reference};
use crate::{SuiteTest, TestExecutor};

/// Prefill chunk length in tokens; small, so that prompts are split into chunks and slots are
/// reused.
const CHUNK: usize = 5;
const SLOTS: usize = 3;

/// The tokens of a sequence, each with the bits of the logits that it was chosen from.
type LogitTrace = Vec<(u32, Vec<u32>)>;

fn generator(path: &Path, device: &Device) -> Result<BatchGenerator, BoxError> {
    adapted(path, device, Vec::new(), Vec::new())
}

/// A generator with adapters, from which each sequence selects one.
fn adapted(
    path: &Path,
    device: &Device,
    adapters: Vec<ScaledAdapter>,
    choices: Vec<ScaledAdapter>,
) -> Result<BatchGenerator, BoxError> {
    let decoder = ModelFiles::open(path)?.batch_decoder(|spec| BatchOptions {
        context: CONTEXT,
        chunk: CHUNK,
        adapters,
        selectable_adapters: choices,
        ..BatchOptions::new(spec, SLOTS)
    })?;
    Ok(decoder.generator(device)?)
}

/// Runs steps until all sequences have ended.
fn finish(
    batch: &mut BatchGenerator,
    logs: &mut BTreeMap<SequenceId, LogitTrace>,
    steps: usize,
) -> Result<(), BoxError> {
    for _ in 0..steps {
        let events = batch.step()?;
        if events.is_empty() {
            return Ok(());
        }
        for event in events {
            match event.kind {
                BatchEventKind::Token(token) => {
                    let logits = batch.logits(event.sequence)?;
                    let logits = logits.ok_or("a token without logits")?;
                    let bits = logits.iter().map(|x| x.to_bits()).collect();
                    logs.entry(event.sequence).or_default().push((token, bits));
                }
                BatchEventKind::Failed(e) => return Err(e.into()),
                BatchEventKind::Prompt(_) | BatchEventKind::Ended(_) => {}
            }
        }
    }
    Ok(())
}

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let want = reference(dir)?;
    let few = want.greedy.len().min(16);
    let mut batch = generator(dir, device)?;
    let whole = || Sequence::new(want.prompt.clone(), few);
    let mut logs = BTreeMap::new();
    let alone = batch.start(whole())?;
    finish(&mut batch, &mut logs, usize::MAX)?;
    // Run the same sequence in a batch: other sequences start before and after it, and one of them
    // is cancelled.
    batch.reset();
    let part = |n: usize| Sequence::new(want.prompt[..n.min(want.prompt.len())].to_vec(), few / 2);
    batch.start(part(2))?;
    let leaves = batch.start(part(7))?;
    finish(&mut batch, &mut logs, 4)?;
    let beside = batch.start(whole())?;
    finish(&mut batch, &mut logs, 3)?;
    batch.cancel(leaves);
    batch.start(part(4))?;
    finish(&mut batch, &mut logs, usize::MAX)?;
    let (alone, beside) = (&logs[&alone], &logs[&beside]);
    let tokens: Vec<u32> = alone.iter().map(|(token, _)| *token).collect();
    if tokens != want.greedy[..few] {
        return Err("greedy tokens differ from those of transformers".into());
    }
    match alone.iter().zip(beside).position(|(a, b)| a != b) {
        Some(at) => Err(format!("token {at} differs bitwise in a batch").into()),
        None if alone.len() != beside.len() => Err("a sequence is shorter in a batch".into()),
        None => Ok(()),
    }
}

/// An adapter of two projections of the first layer with pseudo-random numbers.
fn adapter(spec: &DecoderSpec, rank: usize) -> Result<ScaledAdapter, BoxError> {
    let drawn = |shape: [usize; 2], seed: usize| {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f64 / 2003.0 - 0.5;
        let numbers: Vec<f64> = (0..shape[0] * shape[1]).map(number).collect();
        Tensor::from_f64s(TensorType::new(DType::F32, &shape), &numbers)
    };
    let mut modules = BTreeMap::new();
    for (module, rows) in [
        (
            "model.layers.0.self_attn.q_proj",
            spec.heads * spec.head_dim,
        ),
        ("model.layers.0.mlp.up_proj", spec.ffn),
    ] {
        let (a, b) = (
            drawn([rank, spec.hidden], rank)?,
            drawn([rows, rank], rows)?,
        );
        let low = LowRank::new(module, a, b, rank as f64)?;
        modules.insert(module.to_string(), low);
    }
    Ok(ScaledAdapter::new(Adapter::new(modules)))
}

fn check_adapters(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let spec = ModelFiles::open(dir)?.decoder_spec()?;
    let all = vec![adapter(&spec, 2)?, adapter(&spec, 3)?];
    let prompt = reference(dir)?.prompt;
    let start = |batch: &mut BatchGenerator, adapter| {
        batch.start(Sequence {
            adapter,
            ..Sequence::new(prompt.clone(), 6)
        })
    };
    let mut batch = adapted(dir, device, Vec::new(), all.clone())?;
    let mut alone = Vec::new();
    for which in [None, Some(0), Some(1)] {
        let mut logs = BTreeMap::new();
        let id = start(&mut batch, which)?;
        finish(&mut batch, &mut logs, usize::MAX)?;
        let own = logs.remove(&id).ok_or("a sequence without tokens")?;
        let adapters = which.map(|at| all[at].clone()).into_iter().collect();
        let mut plain = adapted(dir, device, adapters, Vec::new())?;
        let id = start(&mut plain, None)?;
        finish(&mut plain, &mut logs, usize::MAX)?;
        let want = &logs[&id];
        let floats = |log: &LogitTrace| -> Vec<f32> {
            log[0].1.iter().map(|x| f32::from_bits(*x)).collect()
        };
        let (got, want) = (floats(&own), floats(want));
        let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let apart = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0f32, f32::max);
        if apart > 1e-4 * most {
            return Err(format!(
                "adapter {which:?}: logits differ by {apart}; the maximum logit is {most}"
            )
            .into());
        }
        alone.push(own);
    }
    if alone[0] == alone[1] || alone[0] == alone[2] || alone[1] == alone[2] {
        return Err("adapters change nothing".into());
    }
    let mut logs = BTreeMap::new();
    let mut ids = Vec::new();
    for (steps, which) in [Some(1), None, Some(0)].into_iter().enumerate() {
        ids.push((start(&mut batch, which)?, which));
        finish(&mut batch, &mut logs, steps)?;
    }
    finish(&mut batch, &mut logs, usize::MAX)?;
    match ids
        .iter()
        .find(|(id, which)| logs[id] != alone[which.map_or(0, |at| at + 1)])
    {
        Some((_, which)) => Err(format!("adapter {which:?} differs bitwise in a batch").into()),
        None => Ok(()),
    }
}

/// Conversations by turns in fewer slots: with a prefix store they have the bits of empty slots, and
/// only the last part of a prompt is read again.
fn check_stored(dir: &Path, device: &Device) -> Result<(), BoxError> {
    const CONVERSATIONS: usize = SLOTS + 2;
    let store = PrefixStore::in_memory(1 << 30);
    let stored = |prefix_store| {
        let decoder = ModelFiles::open(dir)?.batch_decoder(|spec| BatchOptions {
            context: CONTEXT,
            chunk: CHUNK,
            prefix_store,
            ..BatchOptions::new(spec, SLOTS)
        })?;
        Ok::<BatchGenerator, BoxError>(decoder.generator(device)?)
    };
    let (mut batch, mut fresh) = (stored(Some(store.clone()))?, stored(None)?);
    let mut written = BTreeMap::new();
    let mut restored = 0;
    for len in [13, 21] {
        for text in 0..CONVERSATIONS {
            let tokens = (0..len).map(|at| ((at * 13 + text * 5) % 29 + 3) as u32);
            let prompt: Vec<u32> = tokens.collect();
            fresh.reset();
            let want = fresh.start(Sequence::new(prompt.clone(), 3))?;
            finish(&mut fresh, &mut written, usize::MAX)?;
            let want = written.remove(&want);
            let got = batch.start(Sequence::new(prompt, 3))?;
            finish(&mut batch, &mut written, usize::MAX)?;
            if want.is_none() || written.remove(&got) != want {
                return Err(format!("text {text} of {len} tokens differs bitwise").into());
            }
        }
        restored += if len == 13 { 0 } else { CONVERSATIONS * 10 };
        if store.stats().restored_tokens != restored as u64 {
            return Err(format!("{:?}; expected {restored} tokens", store.stats()).into());
        }
    }
    Ok(())
}

/// One test per folder.
pub(super) fn tests(executor: &'static TestExecutor, dirs: &[PathBuf]) -> Vec<SuiteTest> {
    let dirs = dirs.iter().filter(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with("-a")
    });
    let test = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        // A software driver takes a while to compile the kernels of each model.
        let variant = match executor.name != "cpu" && name != "llama-a" {
            true => "/more",
            false => "",
        };
        let dir = dir.clone();
        let run =
            move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
        let name = format!("decoders/batch/{name}");
        SuiteTest::variant_on(executor, name, variant, run)
    };
    let tests = dirs.clone().map(test);
    let of_store = dirs.clone().filter(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        ["llama-a", "gemma3-a", "qwen3_next-a"].contains(&&*name)
    });
    let of_store = of_store.map(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let variant = match executor.name != "cpu" && name != "llama-a" {
            true => "/more",
            false => "",
        };
        let name = format!("decoders/stored_prefixes/{name}");
        let dir = dir.clone();
        SuiteTest::variant_on(executor, name, variant, move |device| {
            check_stored(&dir, device).map_err(|e| Failed::from(one_line(&*e)))
        })
    });
    let of_store: Vec<SuiteTest> = of_store.collect();
    let llama = dirs.filter(|dir| dir.ends_with("llama-a"));
    let of_adapters = llama.map(|dir| {
        let variant = if executor.name == "cpu" { "" } else { "/more" };
        let dir = dir.clone();
        let run = move |device: &Device| {
            check_adapters(&dir, device).map_err(|e| Failed::from(one_line(&*e)))
        };
        SuiteTest::variant_on(
            executor,
            "decoders/adapters/llama-a".to_string(),
            variant,
            run,
        )
    });
    tests.chain(of_store).chain(of_adapters).collect()
}
