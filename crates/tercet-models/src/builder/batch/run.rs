//! Runs, again in a wider type where one leaves the range of its own.

use tercet::{Executable, Wanted};

use super::inputs::{Part, Rows};
use super::{BatchGenerator, ModelError, Wider, no_executable, not_the_output};

/// Rows up to which no plan rounds products: the logits of longer runs are looked at.
const NOT_ROUNDED: usize = 8;

impl BatchGenerator {
    pub(super) fn exe(&mut self) -> Result<&mut Box<dyn Executable>, ModelError> {
        self.exe.as_mut().ok_or_else(no_executable)
    }

    /// Runs the model on these rows; again in a wider type where rounded products leave the range of theirs. The outputs are
    /// `next` and, for who asks, `logits`.
    pub(super) fn run(&mut self, rows: &Rows<'_>, logits: bool) -> Result<(), ModelError> {
        self.given.clear();
        self.run_once(rows, logits)?;
        let may_round = match rows {
            Rows::Prompt(part) if part.tokens.len() > 1 => true,
            _ => rows.count() > NOT_ROUNDED,
        };
        while self.rounded.is_some() && may_round && !self.is_finite(rows.parts().len())? {
            self.widen()?;
            self.run_once(rows, logits)?;
        }
        for part in rows.parts() {
            let slot = &mut self.slots[part.slot];
            slot.cached.extend_from_slice(&part.tokens);
            slot.bank = part.banks[1];
        }
        Ok(())
    }

    fn run_once(&mut self, rows: &Rows<'_>, logits: bool) -> Result<(), ModelError> {
        self.inputs.fill(rows);
        let wanted: &[&str] = match logits {
            true => &["next", "logits"],
            false => &["next"],
        };
        let exe = self.exe.as_mut().ok_or_else(no_executable)?;
        exe.submit(&self.inputs.named(), Wanted::Only(wanted))?;
        exe.wait(&mut self.outputs)?;
        Ok(())
    }

    /// Whether the first rows of logits of the last run are finite, by their sums.
    fn is_finite(&mut self, rows: usize) -> Result<bool, ModelError> {
        let sums = self.exe()?.read_output_rows("sums", 0..rows)?;
        let sums = sums.as_slice::<f32>();
        let sums = sums.map_err(|e| not_the_output("sums", &e))?;
        Ok(sums.iter().all(|x| x.is_finite()))
    }

    /// Compiles the model in a wider type, and computes what sequences have so far again.
    fn widen(&mut self) -> Result<(), ModelError> {
        let Some(rounded) = self.rounded.take() else {
            return Ok(());
        };
        // The old one's memory goes first.
        self.exe = None;
        let Wider { exe, moved, again } = rounded.wider()?;
        self.exe = Some(exe);
        self.moved = Some(moved);
        self.rounded = again;
        for slot in 0..self.slots.len() {
            self.slots[slot].whole = 0;
            self.slots[slot].kept = None;
            self.slots[slot].is_behind = false;
            let cached = std::mem::take(&mut self.slots[slot].cached);
            if self.slots[slot].text.is_none() {
                continue;
            }
            for (i, tokens) in cached.chunks(self.chunk).enumerate() {
                let part = Part {
                    slot,
                    adapter: self.slots[slot].adapter,
                    start: i * self.chunk,
                    banks: [self.slots[slot].bank; 2],
                    tokens: tokens.to_vec(),
                };
                if let Err(e) = self.run_once(&Rows::Prompt(&part), false) {
                    // What slots hold is not what they are said to hold.
                    self.exe = None;
                    return Err(e);
                }
            }
            self.slots[slot].cached = cached;
        }
        Ok(())
    }
}
