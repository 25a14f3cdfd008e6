//! Prefix checkpoints: recurrent states and window caches at one position of a prompt, reused by
//! sequences with the same prefix.
//!
//! Window caches stay in the slot's second buffer without a copy. Recurrent states are copied to
//! the host and back.

use super::sequence::{PrefixCheckpoint, Sequence};
use super::{BatchGenerator, ModelError};

/// Name prefix of recurrent states.
const STATES: &str = "state.";

impl BatchGenerator {
    /// Position in the prompt before which to save a checkpoint; 0 means none. `same` is the number
    /// of prompt tokens that are already cached.
    ///
    /// If the prompt extends a cached sequence, it will probably be extended again: the checkpoint
    /// goes before its last chunk. If the prompt diverges from a cached sequence, others probably
    /// share their common prefix: the checkpoint goes at the end of that prefix. A prompt without a
    /// common prefix gets no checkpoint of recurrent states, because copying them takes time.
    pub(super) fn checkpoint_position(&self, sequence: &Sequence, same: usize) -> usize {
        if !self.has_states && !self.has_windows {
            return 0;
        }
        // Draft runs need the second buffer of the window caches.
        if self.speculation.is_some() {
            return 0;
        }
        let last = sequence.prompt.len().saturating_sub(1);
        let last = last - last % self.chunk;
        let held = self.slots.iter().map(|slot| {
            let common = slot.same(sequence, self.chunk);
            (common, common == slot.chunk_aligned)
        });
        let at = match held.max() {
            None | Some((0, _)) if self.has_states => 0,
            None | Some((0, _)) | Some((_, true)) => last,
            Some((common, false)) => common,
        };
        if at > same { at } else { 0 }
    }

    /// Restores the recurrent states of a slot from its checkpoint.
    pub(super) fn restore_checkpoint(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &mut self.slots[at];
        if !slot.needs_restore {
            return Ok(());
        }
        let exe = self.compiled.exe()?;
        let kept = slot.checkpoint.iter().flat_map(|kept| &kept.states);
        for (name, tensor) in kept {
            exe.write_state(name, tensor)?;
        }
        slot.needs_restore = false;
        Ok(())
    }

    /// Saves a checkpoint of a slot if its next chunk starts at the requested position.
    pub(super) fn save_checkpoint(&mut self, at: usize) -> Result<(), ModelError> {
        let slot = &mut self.slots[at];
        let tokens = slot.cached_tokens.len();
        let wants = slot
            .active
            .as_ref()
            .is_some_and(|text| text.checkpoint_at == tokens);
        if !wants || tokens == 0 {
            return Ok(());
        }
        let exe = self.compiled.exe()?;
        let own = format!(".{at}");
        let names = exe.signature().states.iter().map(|port| &port.name);
        let names = names.filter(|name| name.starts_with(STATES) && name.ends_with(&own));
        let mut states = Vec::new();
        for name in names {
            states.push((name.clone(), exe.read_state(name)?));
        }
        slot.checkpoint = Some(PrefixCheckpoint {
            at: tokens,
            bank: slot.buffer_index,
            states,
        });
        Ok(())
    }
}
