//! Chains of dispatches (ADR 0072): the counters by which links wait for each other, and where their numbers are.
//!
//! Which steps of a run are links is decided when it is played (`played.rs`), and what they wait for by the launch.

use std::collections::BTreeMap;

use tercet_ir::DType;

use super::{Emit, Home, RECORD_BYTES, SlotDraft};
use crate::kernel::Params;
use crate::num::Num;
use crate::played::{LINK_BYTES, MOST_LINKS};
use crate::program::{Arms, Buffer, Chain, CheckKind, DataCheck, SlotId, Step, Work};

impl Emit<'_> {
    /// The counters of chains of dispatches, for kernels that can be links of one; none where the device has no chains.
    pub(crate) fn chain(&mut self) -> Option<SlotId> {
        if !self.facts.has_chains {
            return None;
        }
        if let Some(chain) = &self.draft.chain {
            return Some(chain.counters);
        }
        // `Emit::close_chain` has its place.
        let counters = self.slot(SlotDraft {
            bytes: RECORD_BYTES,
            dtype: DType::U32,
            numel: None,
            home: Home::At(Buffer::Faults, 0),
        });
        self.draft.chain = Some(Chain {
            counters,
            numbers: BTreeMap::new(),
        });
        self.draft.chain_site = Some(self.site());
        Some(counters)
    }

    /// Puts the counters of chains behind the records of all checks, with a record of their own, and clears them first of all.
    pub(crate) fn close_chain(&mut self) {
        let (Some(chain), Some(site)) = (&self.draft.chain, self.draft.chain_site.take()) else {
            return;
        };
        let counters = chain.counters;
        let at = self.draft.data_checks.len() as u64 * RECORD_BYTES;
        let all = self.faults();
        self.draft.slots[all.0 as usize].bytes = at + RECORD_BYTES;
        let record = self.slot(SlotDraft {
            bytes: 8,
            dtype: DType::U32,
            numel: None,
            home: Home::At(Buffer::Faults, at),
        });
        let place = &mut self.draft.slots[counters.0 as usize];
        place.home = Home::At(Buffer::Faults, at);
        place.bytes = RECORD_BYTES + u64::from(MOST_LINKS) * LINK_BYTES;
        self.draft.joined_records.insert(counters, vec![record]);
        let clear = Step {
            work: Work::Fill {
                dst: counters,
                word: 0,
            },
            barrier: false,
            arms: Arms::new(),
            node: site.node,
            op: "chain",
        };
        self.draft.steps.insert(0, clear);
        self.draft.data_checks.push(DataCheck {
            kind: CheckKind::Order,
            record,
            len: Num::ZERO,
            site,
        });
    }

    /// Notes where the numbers of a link are that was dispatched last.
    pub(super) fn note_link<P: Params>(&mut self) {
        let field = P::FIELDS.iter().find(|field| field.name == "chain_waits");
        let block = self.last_block();
        if let (Some(field), Some(chain)) = (field, &mut self.draft.chain) {
            chain.numbers.insert(block, block + field.offset_bytes / 4);
        }
    }

    /// Whether a kernel with these arguments can be a link of a chain.
    pub(super) fn is_link(&self, args: &[SlotId]) -> bool {
        let chain = self.draft.chain.as_ref();
        chain.is_some_and(|chain| args.contains(&chain.counters))
    }
}
