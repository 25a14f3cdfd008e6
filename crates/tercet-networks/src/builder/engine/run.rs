//! Runs with overflow fallback: if a result overflows its dtype, the model is recompiled in a wider
//! dtype.

use tercet::Tensor;

use super::super::ModelError;
use super::super::decoder::run_rows::{LogitRows, RunRows, SlotChunk};
use super::super::decoder::windows::WindowInputs;
use super::inputs::ProgramInputs;
use super::{Engine, LOGITS};
use crate::maybe_async::WaitMode;

/// If the kernels of one row serve at least this many rows, more sequences take turns. Otherwise runs
/// are padded, also that of a lone sequence.
const MIN_TURN: usize = 8;

impl Engine {
    /// Appends tokens to a slot, a chunk a run, and samples the next one with the random numbers of
    /// the executable; `None` if the graph does not sample. `each` gets the logits of the last token,
    /// if they were copied, and the number of tokens after each run; if it returns false, no further
    /// run follows.
    ///
    /// # Errors
    /// The errors of [`Engine::check`], [`Engine::run`] and of the constraint.
    pub(crate) async fn forward(
        &mut self,
        at: usize,
        tokens: &[u32],
        each: &mut dyn FnMut(&[f32], usize) -> bool,
        waits: WaitMode,
    ) -> Result<Option<u32>, ModelError> {
        self.check(self.slots[at].cached_tokens.len(), tokens)?;
        let outputs = self.outputs(&[at]);
        let mut random = self.compiled.exe()?.random();
        let mut done = 0;
        for part in tokens.chunks(self.chunk) {
            random = self.compiled.exe()?.random();
            let part = self.part(at, part.to_vec());
            let rows = RunRows::Chunk(&part, LogitRows::Last);
            self.run(&rows, outputs, waits).await?;
            done += part.tokens.len();
            if !each(self.compiled.output("logits")?.unwrap_or_default(), done) {
                break;
            }
        }
        let mut chosen = self.choose(&[(at, 0)], |_| random)?;
        chosen.pop().unwrap_or(Ok(None))
    }

    /// Appends tokens to a slot with the logits of all of them. `each` gets the logits of a run,
    /// `[rows, vocab]`, and the number of tokens after it; if it returns false, no further run follows,
    /// and this function returns false.
    ///
    /// # Errors
    /// The errors of [`Engine::run`].
    pub(crate) async fn append_rows(
        &mut self,
        at: usize,
        tokens: &[u32],
        each: &mut dyn FnMut(&[f32], usize) -> bool,
        waits: WaitMode,
    ) -> Result<bool, ModelError> {
        let mut done = 0;
        for part in tokens.chunks(self.chunk.min(self.logit_rows)) {
            let part = self.part(at, part.to_vec());
            let rows = RunRows::Chunk(&part, LogitRows::All);
            self.run(&rows, LOGITS, waits).await?;
            done += part.tokens.len();
            if !each(self.compiled.output("logits")?.unwrap_or_default(), done) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs the model on these rows and appends their tokens to the slots. If rounded matmuls
    /// overflow, the engine recompiles in a wider dtype and repeats the run.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device; the slots are then in their state before the run.
    pub(crate) async fn run(
        &mut self,
        rows: &RunRows<'_>,
        outputs: &'static [&'static str],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let random = self.compiled.exe()?.random();
        self.run_once(rows, outputs, waits).await?;
        let may_round = self.inputs.may_round(rows);
        while self.compiled.may_overflow()
            && may_round
            && !self.is_finite(rows.parts().len(), waits).await?
        {
            self.widen(waits).await?;
            self.compiled.exe()?.set_random(random);
            self.run_once(rows, outputs, waits).await?;
        }
        for part in rows.parts() {
            let slot = &mut self.slots[part.slot];
            slot.cached_tokens.extend_from_slice(&part.tokens);
            slot.buffer_index = part.banks[1];
        }
        if let RunRows::Chunk(part, LogitRows::Last) = rows {
            let slot = &mut self.slots[part.slot];
            if part.tokens.len() == self.chunk && slot.chunk_aligned == part.start {
                slot.chunk_aligned += self.chunk;
            }
        }
        Ok(())
    }

    /// Runs the model and, if run-ahead applies, enqueues the run of the next token.
    async fn run_once(
        &mut self,
        rows: &RunRows<'_>,
        outputs: &'static [&'static str],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        // Async mode never blocks in `wait`, so it does not use run-ahead.
        let may_go_ahead = waits == WaitMode::Blocking && self.runs_ahead(outputs);
        let token = match rows {
            RunRows::Chunk(part, LogitRows::Last) if may_go_ahead => match part.tokens.as_slice() {
                [token] => Some((*token, part.start + 1)),
                _ => None,
            },
            _ => None,
        };
        if !self.is_in_flight(token.map(|(token, _)| token)) {
            self.submit(rows, outputs, waits).await?;
        }
        let has_next = match token {
            Some((_, next)) => self.start_next(next)?,
            None => false,
        };
        let done = self.compiled.wait();
        if has_next {
            let next = self.compiled.output::<i32>("next").ok().flatten();
            let next = next.filter(|_| done.is_ok()).and_then(|next| next.first());
            // `u32::MAX` is never a token id, so the pending run will be discarded.
            self.run_ahead.token = Some(next.map_or(u32::MAX, |&token| token as u32));
        }
        if done.is_err() {
            self.drop_ahead();
        }
        done
    }

    /// Starts a run on these rows.
    async fn submit(
        &mut self,
        rows: &RunRows<'_>,
        outputs: &'static [&'static str],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        self.inputs.fill(rows);
        let exe = self.compiled.exe()?;
        // The programs of one text do not zero its recurrent states at the start of a sequence.
        let starts = rows.parts().iter().any(|part| part.start == 0);
        if starts && self.has_states && self.inputs.is_text() && !self.is_blank {
            let random = exe.random();
            exe.reset();
            exe.set_random(random);
        }
        self.is_blank = false;
        for own in &mut self.windows {
            if let Err(e) = own.make_room(&mut **exe, rows, waits).await {
                let parts = rows.parts().iter();
                parts.for_each(|part| self.slots[part.slot].cut(0));
                return Err(e);
            }
            own.fill(rows);
        }
        let inputs = named(&self.inputs, &self.windows);
        self.compiled.submit(&inputs, outputs, waits).await
    }

    /// True if the logits of the last run are finite, or their sums in its first `rows` rows.
    async fn is_finite(&mut self, rows: usize, waits: WaitMode) -> Result<bool, ModelError> {
        let is_finite = |numbers: &[f32]| numbers.iter().all(|x| x.is_finite());
        if !self.inputs.is_text() {
            let sums = self.compiled.read_rows("sums", 0..rows, waits);
            return Ok(is_finite(&sums.await?));
        }
        if let Some(logits) = self.compiled.output("logits")? {
            return Ok(is_finite(logits));
        }
        let logits = self.compiled.read_rows("logits", 0..rows, waits);
        Ok(is_finite(&logits.await?))
    }

    /// Recompiles the model in a wider dtype and recomputes the caches of all texts in use.
    async fn widen(&mut self, waits: WaitMode) -> Result<(), ModelError> {
        if !self.compiled.widen()? {
            return Ok(());
        }
        self.is_blank = true;
        self.separate_widened_prefixes();
        self.set_row_counts()?;
        let outputs = self.outputs(&[]);
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let cached = std::mem::take(&mut slot.cached_tokens);
            slot.go_back(0);
            if !self.inputs.is_text() && slot.active.is_none() {
                continue;
            }
            for tokens in cached.chunks(self.chunk) {
                let part = self.part(at, tokens.to_vec());
                let rows = RunRows::Chunk(&part, LogitRows::Last);
                if let Err(e) = self.run_once(&rows, outputs, waits).await {
                    // The caches no longer match the token lists, so the executable is unusable.
                    self.compiled.discard();
                    return Err(e);
                }
                self.slots[at].cached_tokens.extend_from_slice(tokens);
            }
        }
        Ok(())
    }

    /// Sets the allowed numbers of rows of a decode run. The executor chooses the same kernels for all
    /// of them, so a row has the same bits in each.
    ///
    /// If the kernels of one row serve many rows, a run has at most as many, and further sequences take
    /// turns. Otherwise a run has at most `max_together` rows.
    pub(super) fn set_row_counts(&mut self) -> Result<(), ModelError> {
        let together = self.max_together;
        (self.min_rows, self.together) = (1, 1);
        if together == 1 {
            return Ok(());
        }
        let one = self.row_variants(1)?;
        while one.is_some()
            && self.together < together
            && self.row_variants(self.together + 1)? == one
        {
            self.together += 1;
        }
        if self.together >= MIN_TURN.min(together) {
            return Ok(());
        }
        (self.min_rows, self.together) = (together, together);
        let all = self.row_variants(together)?;
        while all.is_some() && self.min_rows > 1 && self.row_variants(self.min_rows - 1)? == all {
            self.min_rows -= 1;
        }
        Ok(())
    }

    /// Kernels of a decode run of this number of rows; `None` if they depend on the number of
    /// padding rows among them.
    fn row_variants(&mut self, rows: usize) -> Result<Option<Vec<u32>>, ModelError> {
        let part = |slot| SlotChunk {
            slot,
            adapter: None,
            start: 0,
            banks: [0; 2],
            tokens: vec![0],
        };
        let parts: Vec<SlotChunk> = (0..rows).map(part).collect();
        let mut variants = |rows: &RunRows<'_>| {
            self.inputs.fill(rows);
            self.windows.iter_mut().for_each(|own| own.fill(rows));
            let exe = self.compiled.exe()?;
            Ok::<_, ModelError>(exe.kernel_variants(&named(&self.inputs, &self.windows))?)
        };
        let full = variants(&RunRows::Tokens(&parts, 0))?;
        let padded = variants(&RunRows::Tokens(&parts[..1], rows - 1))?;
        Ok((full == padded).then_some(full))
    }
}

/// All inputs of a run.
fn named<'a>(inputs: &'a ProgramInputs, windows: &'a [WindowInputs]) -> Vec<(&'a str, &'a Tensor)> {
    let mut all = inputs.named();
    all.extend(windows.iter().flat_map(WindowInputs::named));
    all
}
