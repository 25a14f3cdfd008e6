//! Several sequences at once: the same bits in any company, and the greedy tokens of transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use tercet::{Device, one_line};
use tercet_models::{BatchGenerator, BatchOptions, Happened, ModelFiles, Sequence, SequenceId};

use super::{CONTEXT, Failure, reference};
use crate::{Executor, Test};

/// So few that prompts are fed in parts, and that slots are filled again.
const CHUNK: usize = 5;
const SLOTS: usize = 3;

/// The tokens of a sequence, and the bits of the logits that each was chosen from.
type Log = Vec<(u32, Vec<u32>)>;

fn generator(path: &Path, device: &Device) -> Result<BatchGenerator, Failure> {
    let decoder = ModelFiles::open(path)?.batch_decoder(|spec| BatchOptions {
        context: CONTEXT,
        chunk: CHUNK,
        ..BatchOptions::new(spec, SLOTS)
    })?;
    Ok(decoder.generator(device)?)
}

/// Steps until all have ended.
fn finish(
    batch: &mut BatchGenerator,
    logs: &mut BTreeMap<SequenceId, Log>,
    steps: usize,
) -> Result<(), Failure> {
    for _ in 0..steps {
        let events = batch.step()?;
        if events.is_empty() {
            return Ok(());
        }
        for event in events {
            match event.happened {
                Happened::Token(token) => {
                    let logits = batch.logits(event.sequence)?;
                    let logits = logits.ok_or("a token without logits")?;
                    let bits = logits.iter().map(|x| x.to_bits()).collect();
                    logs.entry(event.sequence).or_default().push((token, bits));
                }
                Happened::Failed(e) => return Err(e.into()),
                Happened::Prompt(_) | Happened::Ended(_) => {}
            }
        }
    }
    Ok(())
}

fn check(dir: &Path, device: &Device) -> Result<(), Failure> {
    let want = reference(dir)?;
    let few = want.greedy.len().min(16);
    let mut batch = generator(dir, device)?;
    let whole = || Sequence::new(want.prompt.clone(), few);
    let mut logs = BTreeMap::new();
    let alone = batch.start(whole())?;
    finish(&mut batch, &mut logs, usize::MAX)?;
    // Others begin before it and after it, and one leaves.
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
        Some(at) => Err(format!("token {at} has other bits beside others").into()),
        None if alone.len() != beside.len() => Err("a text is shorter beside others".into()),
        None => Ok(()),
    }
}

/// One test for each folder.
pub(super) fn tests(executor: &'static Executor, dirs: &[PathBuf]) -> Vec<Test> {
    let dirs = dirs.iter().filter(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with("-a")
    });
    let test = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        // A software driver takes a while to compile the kernels of each.
        let variant = match executor.name != "cpu" && name != "llama-a" {
            true => "/more",
            false => "",
        };
        let dir = dir.clone();
        let run =
            move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
        let name = format!("decoders/batch/{name}");
        Test::variant_on(executor, name, variant, run)
    };
    dirs.map(test).collect()
}
