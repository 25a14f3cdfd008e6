//! Runs, again in a wider type where one leaves the range of its own.

use tercet::{DType, Tensor, Wanted};

use super::super::ModelError;
use super::super::decoder::SEEN;
use super::super::decoder::products::Wider;
use super::windows::WindowStates;
use super::{Generator, INPUTS, Rows, fill, no_executable, not_the_output};
use crate::waits::Waits;

impl Generator {
    /// Runs a part of a text; again in a wider type where rounded products leave the range of theirs.
    pub(super) async fn append(
        &mut self,
        part: &[u32],
        rows: Rows,
        waits: Waits,
    ) -> Result<(), ModelError> {
        let random = self.exe()?.random();
        self.run(part, rows, waits).await?;
        // Few rows are not rounded.
        while self.rounded.is_some() && part.len() > 1 && !self.is_finite(waits).await? {
            let before = self.position - part.len();
            self.widen(before, waits).await?;
            self.exe()?.set_random(random);
            self.run(part, rows, waits).await?;
        }
        Ok(())
    }

    /// Whether the logits of the last run are finite.
    async fn is_finite(&mut self, waits: Waits) -> Result<bool, ModelError> {
        let finite = |logits: &[f32]| logits.iter().all(|x| x.is_finite());
        match self.outputs.first() {
            Some(logits) if logits.dtype() == DType::F32 => {
                let logits = logits.as_slice::<f32>();
                Ok(finite(logits.map_err(|e| not_the_output("logits", &e))?))
            }
            Some(_) | None => Ok(finite(&self.read_logits(waits).await?)),
        }
    }

    /// Compiles the model in a wider type, and computes the first tokens of the cache again.
    async fn widen(&mut self, tokens: usize, waits: Waits) -> Result<(), ModelError> {
        let Some(rounded) = self.rounded.take() else {
            return Ok(());
        };
        // The old one's memory goes first.
        self.exe = None;
        let Wider {
            mut exe,
            moved,
            again,
        } = rounded.wider()?;
        if let Some(seen) = &self.seen {
            seen.bind(&mut *exe)?;
        }
        self.exe = Some(exe);
        self.is_blank = true;
        self.moved = Some(moved);
        self.rounded = again;
        let done = std::mem::take(&mut self.tokens);
        self.position = 0;
        for part in done[..tokens].chunks(self.chunk) {
            self.run(part, Rows::Last, waits).await?;
        }
        Ok(())
    }

    /// Runs a part of a text, and starts the run of the token that it chooses.
    async fn run(&mut self, part: &[u32], rows_of: Rows, waits: Waits) -> Result<(), ModelError> {
        // What is awaited is not waited for in here.
        let may_go_ahead = matches!(rows_of, Rows::Last) && waits == Waits::Blocking;
        if !(may_go_ahead && self.is_under_way(part)) {
            self.drop_ahead();
            self.start(part, rows_of, waits).await?;
        }
        let is_one = may_go_ahead && part.len() == 1;
        let has_next = is_one && self.start_next(self.position + 1)?;
        let exe = self.exe.as_mut().ok_or_else(no_executable)?;
        let done = exe.wait(&mut self.outputs);
        if has_next {
            let next = self.outputs.first().filter(|_| done.is_ok());
            let next = next.and_then(|next| next.as_slice::<i32>().ok()?.first());
            // No text goes on with what is no token.
            self.ahead.token = Some(next.map_or(u32::MAX, |&token| token as u32));
        }
        if done.is_err() {
            self.drop_ahead();
        }
        done?;
        self.position += part.len();
        self.tokens.extend_from_slice(part);
        Ok(())
    }

    /// Starts the run of a part of a text.
    async fn start(&mut self, part: &[u32], rows_of: Rows, waits: Waits) -> Result<(), ModelError> {
        let (wanted_rows, logits_only) = match rows_of {
            Rows::Last => (1, false),
            Rows::All => (part.len(), true),
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
            (_, true) => Wanted::Only(&["logits"]),
            (true, false) => Wanted::Only(&["next"]),
            (false, false) => Wanted::All,
        };
        let exe = self.exe.as_mut().ok_or_else(no_executable)?;
        if start == 0 && self.has_states && !self.is_blank {
            // A text begins, whose scans go on from zeros.
            let random = exe.random();
            exe.reset();
            exe.set_random(random);
        }
        self.is_blank = false;
        for own in &mut self.windows {
            if let Err(e) = own.make_room(&mut **exe, [start, n], waits).await {
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
