//! Tests of speculative decoding over caches limited to the attention windows: the generated tokens
//! match transformers.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use tercet::{Device, one_line};
use tercet_models::{DecoderOptions, Draft, DraftError, MAX_DRAFT_TOKENS, ModelError, ModelFiles};

use super::{BoxError, CONTEXT, reference};
use crate::{SuiteTest, TestExecutor};

/// Maximum difference between logits of a run of several rows and of a run of one row, relative to
/// the range of the logits. The limit is a tenth of the lead that permits a run of several rows to
/// choose the token.
const TOGETHER: f32 = 1e-4;

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let want = reference(dir)?;
    let decoder = ModelFiles::open(dir)?.decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk: MAX_DRAFT_TOKENS + 1,
        logit_rows: MAX_DRAFT_TOKENS + 1,
        ..DecoderOptions::new(spec)
    })?;
    let mut generator = decoder.generator(device)?;
    let set = generator.set_draft(Some(Draft::ngrams()), MAX_DRAFT_TOKENS);
    match (decoder.config.has_states(), set) {
        (true, Err(ModelError::Draft(DraftError::States { .. }))) => return Ok(()),
        (true, _) => return Err("a model with recurrent states accepted a draft".into()),
        (false, set) => set?,
    }
    let first = generator.forward(&want.prompt)?.next;
    let mut next = first.ok_or("the graph does not sample")?;
    let mut written = vec![next];
    while written.len() < want.greedy.len() {
        let follow = generator.advance(next, want.greedy.len() - written.len(), &[])?;
        written.extend(&follow);
        next = *follow.last().ok_or("nothing follows")?;
    }
    if written != want.greedy {
        let at = written.iter().zip(&want.greedy).position(|(a, b)| a != b);
        return Err(format!("speculative tokens differ from {at:?} on").into());
    }
    let rows = &want.prompt[..want.prompt.len().min(MAX_DRAFT_TOKENS + 1)];
    generator.reset();
    let mut together = Vec::new();
    generator.forward_rows(rows, &mut |row| {
        together.push(row.to_vec());
        true
    })?;
    generator.reset();
    for (token, row) in rows.iter().zip(&together) {
        let alone = generator.forward(&[*token])?.logits;
        let bound = |f: fn(f32, f32) -> f32| alone.iter().copied().reduce(f).unwrap_or(0.0);
        let spread = bound(f32::max) - bound(f32::min);
        let off = alone.iter().zip(row).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0, f32::max) / spread;
        // A NaN difference counts as a failure.
        if off.is_nan() || off > TOGETHER {
            return Err(format!("{} rows together differ by {off:.1e}", rows.len()).into());
        }
    }
    Ok(())
}

/// One test per folder, for folders whose name has this ending.
pub(super) fn tests(executor: &'static TestExecutor, dirs: &[PathBuf]) -> Vec<SuiteTest> {
    let test = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        // A software driver takes a while to compile the kernels of each model.
        let own = ["llama-a", "gemma2-a"].contains(&&*name);
        let variant = match executor.name != "cpu" && !own {
            true => "/more",
            false => "",
        };
        let dir = dir.clone();
        let run =
            move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
        SuiteTest::variant_on(executor, format!("decoders/drafts/{name}"), variant, run)
    };
    dirs.iter().map(test).collect()
}
