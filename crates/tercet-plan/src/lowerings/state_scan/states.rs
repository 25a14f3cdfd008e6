//! Initial and final states of a scan.

use tercet_ir::CompileError;

use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::copy;
use tercet_program::SlotId;

/// Initial and final states of a scan, both with dense layouts.
pub(super) struct ScanStates {
    pub(super) initial: Option<SlotId>,
    pub(super) last: Option<FinalStates>,
}

/// Destination of the final states.
pub(super) struct FinalStates {
    pub(super) view: SlotView,
    /// The destination is a state of the graph, which must not be written if the run fails.
    pub(super) is_state: bool,
}

/// The slot of the final states, before they are copied to their destination.
pub(super) struct PendingStates {
    /// The slot that kernels write; a dummy if final states are not requested.
    pub(super) slot: SlotId,
    scratch: Option<SlotView>,
}

impl ScanStates {
    /// The states of a scan, in F32.
    pub(super) fn wide(
        e: &mut LoweringCtx<'_>,
        given: Option<&SlotView>,
        carry: bool,
    ) -> Result<ScanStates, CompileError> {
        let initial = match given {
            Some(view) => Some(e.dense(view)?.slot),
            None => None,
        };
        let last = match carry {
            true => Some(FinalStates {
                is_state: e.updated(1).is_some(),
                view: e.result(1)?,
            }),
            false => None,
        };
        Ok(ScanStates { initial, last })
    }

    /// A slot for final states that kernels may write unconditionally.
    pub(super) fn allocate(&self, e: &mut LoweringCtx<'_>) -> Result<PendingStates, CompileError> {
        let Some(FinalStates { view, is_state }) = &self.last else {
            let slot = e.placeholder_slot()?;
            return Ok(PendingStates {
                slot,
                scratch: None,
            });
        };
        if !is_state {
            let slot = view.slot;
            return Ok(PendingStates {
                slot,
                scratch: None,
            });
        }
        let apart = e.temp(view.dtype, view.layout.shape())?;
        Ok(PendingStates {
            slot: apart.slot,
            scratch: Some(apart),
        })
    }

    /// Emits the copy of the final states to their destination, if kernels wrote them to another
    /// slot.
    pub(super) fn finish(&self, e: &mut LoweringCtx<'_>, made: PendingStates) {
        if let (Some(last), Some(apart)) = (&self.last, made.scratch) {
            copy::commit(e, &apart, &last.view);
        }
    }

    /// Whether final states overwrite the initial ones. Kernels then read the initial states
    /// through the binding that they write.
    pub(super) fn is_in_place(&self) -> bool {
        let last = self.last.as_ref().filter(|last| last.is_state);
        last.is_some_and(|last| Some(last.view.slot) == self.initial)
    }

    /// Kernel constants: whether there are initial states, and final states.
    pub(super) fn consts(&self) -> [u32; 2] {
        [self.initial.is_some().into(), self.last.is_some().into()]
    }
}
