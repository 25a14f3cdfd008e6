//! What layers that do not remember all positions held at some place of a prompt, for sequences that begin with the same tokens.
//!
//! Caches of windows stay in the slot's other bank, at no cost; states of layers that scan are copied to the host and back.

use super::sequence::{Kept, Sequence};
use super::{BatchGenerator, ModelError};

/// What names of states of scans begin with.
const STATES: &str = "state.";

impl BatchGenerator {
    /// Before which part of a prompt, of which `same` tokens need not be computed, to keep what layers remember; 0 for none.
    ///
    /// A text that goes on from one that a slot holds is likely to be gone on from: before its last part. One that parts from it
    /// has a beginning in common with others: there. Of the first of its kind nothing is known; states are not copied for it.
    pub(super) fn keep_at(&self, sequence: &Sequence, same: usize) -> usize {
        if !self.has_states && !self.has_windows {
            return 0;
        }
        let last = sequence.prompt.len().saturating_sub(1);
        let last = last - last % self.chunk;
        let held = self.slots.iter().map(|slot| {
            let common = slot.same(sequence, self.chunk);
            (common, common == slot.whole)
        });
        let at = match held.max() {
            None | Some((0, _)) if self.has_states => 0,
            None | Some((0, _)) | Some((_, true)) => last,
            Some((common, false)) => common,
        };
        if at > same { at } else { 0 }
    }

    /// Makes states of a slot what they were after the tokens that were kept.
    pub(super) fn put_back(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &mut self.slots[at];
        if !slot.is_behind {
            return Ok(());
        }
        let exe = self.exe.as_mut().ok_or_else(super::no_executable)?;
        let kept = slot.kept.iter().flat_map(|kept| &kept.states);
        for (name, tensor) in kept {
            exe.write_state(name, tensor)?;
        }
        slot.is_behind = false;
        Ok(())
    }

    /// Keeps what layers remember of a slot, if its next part is the one to do so before.
    pub(super) fn keep(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &mut self.slots[at];
        let tokens = slot.cached.len();
        let wants = slot
            .text
            .as_ref()
            .is_some_and(|text| text.keep_at == tokens);
        if !wants || tokens == 0 {
            return Ok(());
        }
        let exe = self.exe.as_mut().ok_or_else(super::no_executable)?;
        let own = format!(".{at}");
        let names = exe.signature().states.iter().map(|port| &port.name);
        let names = names.filter(|name| name.starts_with(STATES) && name.ends_with(&own));
        let mut states = Vec::new();
        for name in names {
            states.push((name.clone(), exe.read_state(name)?));
        }
        slot.kept = Some(Kept {
            at: tokens,
            bank: slot.bank,
            states,
        });
        Ok(())
    }
}
