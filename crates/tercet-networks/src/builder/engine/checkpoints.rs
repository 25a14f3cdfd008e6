//! Prefix checkpoints: recurrent states and window caches at one position of a prompt, reused by
//! sequences with the same prefix.
//!
//! Window caches stay in the slot's second buffer without a copy. Recurrent states are copied to
//! the host and back.
//!
//! With a prefix store, the checkpoint of a slot outlives its slot (`prefixes.rs`).

use super::super::ModelError;
use super::Engine;
use super::sequence::{PlannedCheckpoint, PrefixCheckpoint, Sequence};

/// Name prefix of recurrent states.
pub(super) const STATES: &str = "state.";

impl Engine {
    /// Positions in the prompt before which to save a checkpoint, in ascending order. `same` is the number
    /// of prompt tokens that are already cached.
    ///
    /// If the prompt extends a cached sequence, it will probably be extended again: the checkpoint
    /// goes before its last chunk. If the prompt diverges from a cached sequence, others probably
    /// share their common prefix: the checkpoint goes at the end of that prefix. A prompt without a
    /// common prefix gets no checkpoint of recurrent states, because copying them takes time.
    ///
    /// With a prefix store, a sequence can be extended after it has left its slot. Each prompt then gets a
    /// checkpoint before its last chunk, and one at the end of a common prefix goes to the store.
    pub(crate) fn planned_checkpoints(
        &self,
        sequence: &Sequence,
        same: usize,
    ) -> Vec<PlannedCheckpoint> {
        // Draft runs need the second buffer of the window caches.
        if self.goes_back() || self.speculation.is_some() {
            return Vec::new();
        }
        let last = sequence.prompt.len().saturating_sub(1);
        let last = last - last % self.chunk;
        let held = self.slots.iter().map(|slot| {
            let common = slot.same(sequence, self.chunk);
            (common, common == slot.chunk_aligned)
        });
        let is_stored = self.prefixes.is_some();
        let at = |at, is_branch| PlannedCheckpoint { at, is_branch };
        let mut all = match held.chain(self.longest_stored(sequence)).max() {
            None | Some((0, _)) if self.has_states && !is_stored => Vec::new(),
            None | Some((0, _)) | Some((_, true)) => vec![at(last, false)],
            Some((common, false)) if is_stored => vec![at(common, true), at(last, false)],
            Some((common, false)) => vec![at(common, true)],
        };
        all.retain(|planned| planned.at > same);
        all.dedup_by_key(|planned| planned.at);
        all
    }

    /// Restores the recurrent states of a slot from its checkpoint.
    pub(crate) fn restore_checkpoint(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &mut self.slots[at];
        if !slot.needs_restore {
            return Ok(());
        }
        let exe = self.compiled.exe()?;
        let kept = slot.checkpoint.iter().flat_map(|kept| &kept.states);
        for (name, tensor) in kept {
            exe.write_state_elements(name, 0, tensor)?;
        }
        slot.needs_restore = false;
        Ok(())
    }

    /// Saves a checkpoint of a slot if its next chunk starts at a planned position. An earlier checkpoint
    /// that other sequences may share goes to the prefix store.
    pub(crate) fn save_checkpoint(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &self.slots[at];
        let tokens = slot.cached_tokens.len();
        let planned = slot.active.iter().flat_map(|text| &text.checkpoints);
        let Some(&planned) = planned.filter(|_| tokens > 0).find(|own| own.at == tokens) else {
            return Ok(());
        };
        if slot.checkpoint.as_ref().is_some_and(|kept| kept.is_branch) {
            self.save_prefix(at, 0);
        }
        let exe = self.compiled.exe()?;
        let own = format!(".{at}");
        let names = exe.signature().states.iter().map(|port| &port.name);
        let names = names.filter(|name| name.starts_with(STATES) && name.ends_with(&own));
        let mut states = Vec::new();
        for name in names {
            states.push((name.clone(), exe.read_state(name)?));
        }
        let slot = &mut self.slots[at];
        slot.checkpoint = Some(PrefixCheckpoint {
            at: tokens,
            bank: slot.buffer_index,
            states,
            is_branch: planned.is_branch,
        });
        Ok(())
    }
}
