//! Batch runs with overflow fallback: if a result overflows its dtype, the model is recompiled in a
//! wider dtype.

use tercet::OutputSelection;

use super::inputs::{BatchRunRows, SlotChunk};
use super::{BatchGenerator, ModelError, equal_row_counts};
use crate::maybe_async::{WaitMode, block_on_ready};

/// Maximum rows for which no executor rounds matmul inputs. The generator checks the logits of
/// longer runs for overflow.
const NOT_ROUNDED: usize = 8;

impl BatchGenerator {
    /// Runs the model on these rows. If rounded matmuls overflow, the generator recompiles in a
    /// wider dtype and repeats the run. The outputs are `next` and, if `logits` is set, `logits`.
    pub(super) fn run(&mut self, rows: &BatchRunRows<'_>, logits: bool) -> Result<(), ModelError> {
        self.logit_owners.clear();
        self.run_once(rows, logits)?;
        let may_round = match rows {
            BatchRunRows::Prompt(part) if part.tokens.len() > 1 => true,
            _ => rows.count() > NOT_ROUNDED,
        };
        while self.compiled.may_overflow() && may_round && !self.is_finite(rows.parts().len())? {
            self.widen()?;
            self.run_once(rows, logits)?;
        }
        for part in rows.parts() {
            let slot = &mut self.slots[part.slot];
            slot.cached_tokens.extend_from_slice(&part.tokens);
            slot.buffer_index = part.banks[1];
        }
        Ok(())
    }

    fn run_once(&mut self, rows: &BatchRunRows<'_>, logits: bool) -> Result<(), ModelError> {
        self.inputs.fill(rows);
        let wanted: &[&str] = match logits {
            true => &["next", "logits"],
            false => &["next"],
        };
        let exe = self.compiled.exe()?;
        exe.submit(&self.inputs.named(), OutputSelection::Only(wanted))?;
        self.compiled.wait()
    }

    /// True if the logits of the last run are finite in its first `rows` rows; checks their sums.
    fn is_finite(&mut self, rows: usize) -> Result<bool, ModelError> {
        let sums = self.compiled.read_rows("sums", 0..rows, WaitMode::Blocking);
        let sums = block_on_ready(sums)?;
        Ok(sums.iter().all(|x| x.is_finite()))
    }

    /// Recompiles the model in a wider dtype and recomputes the caches of all active sequences.
    fn widen(&mut self) -> Result<(), ModelError> {
        if !self.compiled.widen()? {
            return Ok(());
        }
        let exe = self.compiled.exe()?;
        let rows = equal_row_counts(exe.as_ref(), &mut self.inputs, self.max_together)?;
        (self.min_rows, self.together) = rows.into_inner();
        for slot in 0..self.slots.len() {
            self.slots[slot].chunk_aligned = 0;
            self.slots[slot].checkpoint = None;
            self.slots[slot].needs_restore = false;
            let cached = std::mem::take(&mut self.slots[slot].cached_tokens);
            if self.slots[slot].active.is_none() {
                continue;
            }
            for (i, tokens) in cached.chunks(self.chunk).enumerate() {
                let part = SlotChunk {
                    slot,
                    adapter: self.slots[slot].adapter,
                    start: i * self.chunk,
                    banks: [self.slots[slot].buffer_index; 2],
                    tokens: tokens.to_vec(),
                };
                if let Err(e) = self.run_once(&BatchRunRows::Prompt(&part), false) {
                    // The caches no longer match the token lists, so the executable is unusable.
                    self.compiled.discard();
                    return Err(e);
                }
            }
            self.slots[slot].cached_tokens = cached;
        }
        Ok(())
    }
}
