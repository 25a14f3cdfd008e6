//! Scheduling of weight dequantization, for matmuls that read dequantized weights from arena
//! memory.
//!
//! Dequantization is memory-bound and matmuls are compute-bound. The weights of a matmul are
//! therefore dequantized concurrently with an earlier matmul. The dequantization and the earlier
//! matmul wait for the same steps, so they run between the same barriers (`schedule/groups.rs`).
//! The dequantization starts after the earlier matmul and fills the compute units that the last
//! workgroups of this matmul leave idle. Among the last few matmuls, the one with the largest
//! weights is selected, because it hides the most dequantization time.
//!
//! Weights that are dequantized early stay in memory longer, and those of several matmuls exist at
//! once. The total size of dequantized weights is limited to a fraction of the parameter size. If
//! the dequantized weights of a matmul would exceed this limit, they are dequantized directly
//! before the matmul.

use std::collections::HashSet;

use super::LoweringCtx;
use tercet_program::SlotId;

/// Number of previous matmul groups among which a group to overlap with is selected. A decoder
/// layer has four matmul groups: QKV, attention output, gate and up, and down. If four previous
/// groups were considered, the largest weights of two layers would be in memory at once.
const BACK: usize = 3;

/// The maximum size of dequantized weights in memory is the size of all parameters divided by this
/// number. In a model of sixteen layers, the 4-bit weights of one layer stay below this limit when
/// expanded to 16 bits.
const DECODED_BYTES_DIVISOR: u64 = 4;

/// Size in bytes of dequantized weights that is allowed for every model; small compared to the
/// memory of any device with cooperative matrices.
const LITTLE_BYTES: u64 = 64 << 20;

/// A group of concurrent matmuls that read the same activation rows.
#[derive(Clone, Copy, Debug)]
pub struct SharedLhsGroup {
    /// Slot of the activation rows in their original layout, before a kernel copies them into the
    /// layout that the matmuls read.
    pub rows: SlotId,
    /// The slot that the matmuls wait for last: the activation rows in the layout that they read,
    /// or weights that are dequantized directly before.
    pub last: SlotId,
    /// Total size in bytes of the dequantized weights of the group's matmuls.
    pub bytes: u64,
    /// The slot that the dequantization of the group's weights waits for.
    pub after: SlotId,
}

/// The matmuls lowered so far whose weights are dequantized in separate steps, from which overlaps
/// are selected.
#[derive(Debug, Default)]
pub struct DequantSchedule {
    /// Matmul groups of the stage under construction, in order.
    pub sets: Vec<SharedLhsGroup>,
    /// Slots with dequantized weights.
    pub slots: HashSet<SlotId>,
}

impl DequantSchedule {
    /// True if the slot holds dequantized weights.
    pub(crate) fn has(&self, slot: SlotId) -> bool {
        self.slots.contains(&slot)
    }

    /// Clears the matmul groups at the end of a stage, because steps of different stages never run
    /// concurrently.
    pub(super) fn close(&mut self) {
        self.sets.clear();
    }

    /// The slot that a dequantization must wait for to run concurrently with an earlier matmul
    /// group. `bytes` is the size of its dequantized weights, `most` the memory limit. `None` if no
    /// group stays within the limit.
    pub fn overlap_slot(&self, bytes: u64, most: u64) -> Option<SlotId> {
        let mut at_once = bytes;
        let mut heaviest: Option<&SharedLhsGroup> = None;
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

impl LoweringCtx<'_> {
    /// The slot that the dequantization of a matmul's weights must wait for. `rows` is the slot of
    /// the activation rows, and `taken` the slot of the same rows in the layout that the matmul
    /// reads.
    pub(crate) fn order_of_decoding(
        &mut self,
        rows: SlotId,
        taken: SlotId,
        weights: SlotId,
    ) -> SlotId {
        let params = self.facts.signature.params.iter();
        let params = params.map(|port| self.bytes_at_bounds(port.ty.dtype, &port.ty.shape));
        let all = params.flatten().fold(0, u64::saturating_add);
        let most = LITTLE_BYTES.max(all / DECODED_BYTES_DIVISOR);
        let bytes = self.draft.slots[weights.0 as usize].bytes;
        let decoding = &mut self.draft.decoding;
        decoding.slots.insert(weights);
        if let Some(set) = decoding.sets.last_mut().filter(|set| set.rows == rows) {
            set.bytes = set.bytes.saturating_add(bytes);
            return set.after;
        }
        let beside = decoding.overlap_slot(bytes, most);
        let after = beside.unwrap_or(taken);
        decoding.sets.push(SharedLhsGroup {
            rows,
            last: beside.map_or(weights, |_| taken),
            bytes,
            after,
        });
        after
    }
}
