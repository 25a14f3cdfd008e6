//! Dependent launches (ADR 0072): allocates the counters, and records the parameter words through
//! which kernels find their counters.
//!
//! `active_steps.rs` decides for each run which dispatches are linked. `launch.rs` then writes the
//! counters to wait on into the parameter blocks.

use std::collections::BTreeMap;

use tercet_ir::DType;

use super::{LoweringCtx, PendingSlot, SlotPlacement};
use tercet_program::ParamBlock;
use tercet_program::RECORD_BYTES;
use tercet_program::SymInt;
use tercet_program::{
    CheckKind, DataCheck, DependentLaunches, ProgramBuffer, ProgramStep, ShapeBranches, SlotId,
    StepOp,
};
use tercet_program::{LINK_BYTES, MAX_LAUNCH_DEPENDENCIES};

impl LoweringCtx<'_> {
    /// Slot of the counters of dependent launches, which a lowering binds to each kernel that can
    /// wait on counters. `None` if dependent launches are disabled.
    pub(crate) fn chain(&mut self) -> Option<SlotId> {
        if !self.facts.has_chains {
            return None;
        }
        if let Some(chain) = &self.draft.chain {
            return Some(chain.counters);
        }
        // `LoweringCtx::close_chain` later assigns the final offset of the counters.
        let counters = self.slot(PendingSlot {
            bytes: RECORD_BYTES,
            dtype: DType::U32,
            numel: None,
            home: SlotPlacement::At(ProgramBuffer::Faults, 0),
        });
        self.draft.chain = Some(DependentLaunches {
            counters,
            numbers: BTreeMap::new(),
        });
        self.draft.chain_site = Some(self.site());
        Some(counters)
    }

    /// Places the counters after all fault records and adds a fault record for wait timeouts. A new
    /// first step of the run clears both.
    pub(crate) fn close_chain(&mut self) {
        let (Some(chain), Some(site)) = (&self.draft.chain, self.draft.chain_site.take()) else {
            return;
        };
        let counters = chain.counters;
        let at = self.draft.data_checks.len() as u64 * RECORD_BYTES;
        let all = self.faults();
        self.draft.slots[all.0 as usize].bytes = at + RECORD_BYTES;
        let record = self.slot(PendingSlot {
            bytes: 8,
            dtype: DType::U32,
            numel: None,
            home: SlotPlacement::At(ProgramBuffer::Faults, at),
        });
        let place = &mut self.draft.slots[counters.0 as usize];
        place.home = SlotPlacement::At(ProgramBuffer::Faults, at);
        place.bytes = RECORD_BYTES + u64::from(MAX_LAUNCH_DEPENDENCIES) * LINK_BYTES;
        self.draft.joined_records.insert(counters, vec![record]);
        let clear = ProgramStep {
            work: StepOp::Fill {
                dst: counters,
                word: 0,
            },
            barrier: false,
            branches: ShapeBranches::new(),
            node: site.node,
            op: "chain",
        };
        self.draft.steps.insert(0, clear);
        self.draft.data_checks.push(DataCheck {
            kind: CheckKind::Order,
            record,
            len: SymInt::ZERO,
            site,
        });
    }

    /// Records the position of the counter fields in the parameter block of the last dispatch; each
    /// launch writes counters there.
    pub(super) fn record_dependency<P: ParamBlock>(&mut self) {
        let field = P::FIELDS.iter().find(|field| field.name == "chain_waits");
        let block = self.last_block();
        if let (Some(field), Some(chain)) = (field, &mut self.draft.chain) {
            chain.numbers.insert(block, block + field.offset_bytes / 4);
        }
    }

    /// Whether a dispatch with these arguments can be linked: its kernel binds the counters of
    /// dependent launches.
    pub(super) fn is_link(&self, args: &[SlotId]) -> bool {
        let chain = self.draft.chain.as_ref();
        chain.is_some_and(|chain| args.contains(&chain.counters))
    }
}
