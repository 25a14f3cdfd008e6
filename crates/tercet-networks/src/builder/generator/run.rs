//! Runs with overflow fallback: if a result overflows its dtype, the model is recompiled in a wider
//! dtype.

use tercet::{DType, OutputSelection, Tensor};

use super::super::ModelError;
use super::super::compiled_decoder::elements;
use super::super::decoder::SEEN;
use super::windows::WindowStates;
use super::{Generator, INPUTS, LogitRowSelection, fill};
use crate::maybe_async::WaitMode;

impl Generator {
    /// Runs a chunk of tokens. If rounded matmuls overflow, the generator recompiles in a wider
    /// dtype and repeats the run.
    pub(super) async fn append(
        &mut self,
        part: &[u32],
        rows: LogitRowSelection,
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let random = self.compiled.exe()?.random();
        self.run(part, rows, waits).await?;
        // Runs of a single token do not round matmul inputs.
        while self.compiled.may_overflow() && part.len() > 1 && !self.is_finite(waits).await? {
            let before = self.position - part.len();
            self.widen(before, waits).await?;
            self.compiled.exe()?.set_random(random);
            self.run(part, rows, waits).await?;
        }
        Ok(())
    }

    /// True if all logits of the last run are finite.
    async fn is_finite(&mut self, waits: WaitMode) -> Result<bool, ModelError> {
        let finite = |logits: &[f32]| logits.iter().all(|x| x.is_finite());
        match self.compiled.outputs.first() {
            Some(logits) if logits.dtype() == DType::F32 => Ok(finite(elements(logits, "logits")?)),
            Some(_) | None => Ok(finite(&self.read_logits(waits).await?)),
        }
    }

    /// Recompiles the model in a wider dtype and recomputes the first `tokens` cached tokens.
    async fn widen(&mut self, tokens: usize, waits: WaitMode) -> Result<(), ModelError> {
        if !self.compiled.widen()? {
            return Ok(());
        }
        self.is_blank = true;
        let done = std::mem::take(&mut self.tokens);
        self.position = 0;
        for part in done[..tokens].chunks(self.chunk) {
            self.run(part, LogitRowSelection::Last, waits).await?;
        }
        Ok(())
    }

    /// Runs a chunk of tokens and, if run-ahead applies, enqueues the run of the next token.
    async fn run(
        &mut self,
        part: &[u32],
        rows_of: LogitRowSelection,
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        // Async mode never blocks in `exe.wait`, so it does not use run-ahead.
        let may_go_ahead =
            matches!(rows_of, LogitRowSelection::Last) && waits == WaitMode::Blocking;
        if !(may_go_ahead && self.is_in_flight(part)) {
            self.drop_ahead();
            self.start(part, rows_of, waits).await?;
        }
        let is_one = may_go_ahead && part.len() == 1;
        let has_next = is_one && self.start_next(self.position + 1)?;
        let done = self.compiled.wait();
        if has_next {
            let next = self.compiled.outputs.first().filter(|_| done.is_ok());
            let next = next.and_then(|next| next.as_slice::<i32>().ok()?.first());
            // `u32::MAX` is never a token id, so the pending run will be discarded.
            self.run_ahead.token = Some(next.map_or(u32::MAX, |&token| token as u32));
        }
        if done.is_err() {
            self.drop_ahead();
        }
        done?;
        self.position += part.len();
        self.tokens.extend_from_slice(part);
        Ok(())
    }

    /// Enqueues the run of a chunk of tokens.
    async fn start(
        &mut self,
        part: &[u32],
        rows_of: LogitRowSelection,
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let (wanted_rows, logits_only) = match rows_of {
            LogitRowSelection::Last => (1, false),
            LogitRowSelection::All => (part.len(), true),
        };
        let (n, start) = (part.len(), self.position);
        let [tokens, positions, at, kv_len, rows] = &mut self.inputs;
        fill(tokens, &[n], |i| part[i] as usize);
        fill(positions, &[n], |i| start + i);
        fill(at, &[4], |i| if i == 1 { start } else { 0 });
        fill(kv_len, &[], |_| start + n);
        fill(rows, &[wanted_rows], |i| n - wanted_rows + i);
        if let Some(filled) = &mut self.filled {
            fill(filled, &[start + n], |_| 0);
        }
        let on_host = self.on_host() || logits_only;
        let wanted = match (self.next_only, on_host) {
            (_, true) => OutputSelection::Only(&["logits"]),
            (true, false) => OutputSelection::Only(&["next"]),
            (false, false) => OutputSelection::All,
        };
        let exe = self.compiled.exe()?;
        if start == 0 && self.has_states && !self.is_blank {
            // A new sequence starts, so recurrent states must be zero.
            let random = exe.random();
            exe.reset();
            exe.set_random(random);
        }
        self.is_blank = false;
        for own in &mut self.windows {
            if let Err(e) = own.reserve(&mut **exe, [start, n], waits).await {
                self.position = 0;
                self.tokens.clear();
                return Err(e);
            }
        }
        let own = INPUTS.into_iter().zip(&self.inputs);
        let of_windows = self.windows.iter().flat_map(WindowStates::inputs);
        let inputs = own.chain(self.filled.iter().map(|filled| (SEEN, filled)));
        let inputs: Vec<(&str, &Tensor)> = inputs.chain(of_windows).collect();
        Ok(waits.submit(&mut **exe, &inputs, wanted).await?)
    }
}
