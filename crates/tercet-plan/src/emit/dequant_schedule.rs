//! When weights are decoded that a product reads from memory which the arena lends for it.
//!
//! Decoding waits for memory, products wait for their matrices. So the weights of a product are decoded beside one before it: they
//! wait for what that waits for, which puts both between the same barriers (`schedule/groups.rs`), decoding behind, where it
//! fills what the last workgroups of the product leave. The heaviest of few is taken, which has most to hide it with.
//!
//! Weights then lie decoded for longer, so that those of several products do at once. That takes a bounded part of what
//! parameters take; products whose weights would exceed it are decoded right before they run.

use std::collections::HashSet;

use super::Emit;
use crate::program::SlotId;

/// How many sets of products back one is looked for: the others of a layer of a decoder, which has queries with keys and values,
/// what follows on attention, gate with up, and down. A layer farther back would keep the largest weights twice.
const BACK: usize = 3;

/// Weights that lie decoded at once take at most this part of the bytes of parameters: a layer of sixteen at 16 bits takes
/// less, of weights of 4 bits.
const MOST_PART: u64 = 4;

/// So many bytes may lie decoded at once whatever parameters take: little to any device with matrices.
const LITTLE_BYTES: u64 = 64 << 20;

/// Products of the same rows, which stand side by side.
#[derive(Clone, Copy, Debug)]
struct Set {
    /// The rows as they are given.
    rows: SlotId,
    /// What is there last of what they wait for: the rows as they are read, or weights that are decoded right before.
    last: SlotId,
    /// Of all their decoded weights.
    bytes: u64,
    /// What decoding them waits for.
    after: SlotId,
}

/// The products whose weights are decoded by steps of their own.
#[derive(Debug, Default)]
pub(crate) struct Decoding {
    /// Those of the stage that is open, in order.
    sets: Vec<Set>,
    /// The decoded weights.
    slots: HashSet<SlotId>,
}

impl Decoding {
    /// True for decoded weights.
    pub(crate) fn has(&self, slot: SlotId) -> bool {
        self.slots.contains(&slot)
    }

    /// Nothing stands side by side with steps of another stage.
    pub(super) fn close(&mut self) {
        self.sets.clear();
    }

    /// What decoding waits for so that it stands beside a set, given the first bytes of its weights; none where it finds no set.
    fn beside(&self, bytes: u64, most: u64) -> Option<SlotId> {
        let mut at_once = bytes;
        let mut heaviest: Option<&Set> = None;
        for set in self.sets.iter().rev().take(BACK) {
            at_once = at_once.saturating_add(set.bytes);
            if at_once > most {
                break;
            }
            if heaviest.is_none_or(|known| set.bytes > known.bytes) {
                heaviest = Some(set);
            }
        }
        heaviest.map(|set| set.last)
    }
}

impl Emit<'_> {
    /// What decoding the weights of a product waits for. The product is given `rows`, and reads them as `taken`.
    pub(crate) fn order_of_decoding(
        &mut self,
        rows: SlotId,
        taken: SlotId,
        weights: SlotId,
    ) -> SlotId {
        let params = self.facts.signature.params.iter();
        let params = params.map(|port| self.bytes_at_bounds(port.ty.dtype, &port.ty.shape));
        let all = params.flatten().fold(0, u64::saturating_add);
        let most = LITTLE_BYTES.max(all / MOST_PART);
        let bytes = self.draft.slots[weights.0 as usize].bytes;
        let decoding = &mut self.draft.decoding;
        decoding.slots.insert(weights);
        if let Some(set) = decoding.sets.last_mut().filter(|set| set.rows == rows) {
            set.bytes = set.bytes.saturating_add(bytes);
            return set.after;
        }
        let beside = decoding.beside(bytes, most);
        let after = beside.unwrap_or(taken);
        decoding.sets.push(Set {
            rows,
            last: beside.map_or(weights, |_| taken),
            bytes,
            after,
        });
        after
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoding, Set};
    use crate::program::SlotId;

    /// The set of these bytes that the next one is decoded beside.
    fn beside(bytes: &[u64], own: u64, most: u64) -> Option<u32> {
        let sets = bytes.iter().enumerate().map(|(at, &bytes)| Set {
            rows: SlotId(at as u32),
            last: SlotId(at as u32),
            bytes,
            after: SlotId(0),
        });
        let decoding = Decoding {
            sets: sets.collect(),
            ..Decoding::default()
        };
        decoding.beside(own, most).map(|slot| slot.0)
    }

    #[test]
    fn weights_are_decoded_beside_the_heaviest_of_three_sets_that_memory_allows() {
        let layer = [50, 34, 235, 117];
        // Queries of the next layer, what follows on attention, gate with up.
        assert_eq!(beside(&layer, 50, 1000), Some(2));
        assert_eq!(beside(&[50, 34, 235, 117, 50], 34, 1000), Some(2));
        assert_eq!(beside(&[50, 34, 235, 117, 50, 34], 235, 1000), Some(3));
        assert_eq!(beside(&layer[..3], 117, 1000), Some(2));
        // Two of one size: the nearer.
        assert_eq!(beside(&[10, 10], 10, 1000), Some(1));
        // Gate with up does not fit beside down, nor beside itself.
        assert_eq!(beside(&layer, 50, 401), Some(3));
        assert_eq!(beside(&layer, 50, 166), None);
        assert_eq!(beside(&[], 50, 1000), None);
    }
}
