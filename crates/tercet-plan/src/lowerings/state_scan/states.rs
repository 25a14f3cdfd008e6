//! Where the states of a scan come from and go to.

use tercet_ir::CompileError;

use crate::emit::{Emit, View};
use crate::families::copy;
use crate::program::SlotId;

/// Where the states of a scan come from and go to, dense.
pub(super) struct States {
    pub(super) initial: Option<SlotId>,
    pub(super) last: Option<Last>,
}

/// Where last states go.
pub(super) struct Last {
    pub(super) view: View,
    /// Whether a state of the graph lies there: nothing is written if the run failed.
    pub(super) is_state: bool,
}

/// Last states while a kernel makes them.
pub(super) struct Made {
    /// Any slot where nothing is kept.
    pub(super) slot: SlotId,
    apart: Option<View>,
}

impl States {
    /// Those of a scan whose states are F32.
    pub(super) fn wide(
        e: &mut Emit<'_>,
        given: Option<&View>,
        carry: bool,
    ) -> Result<States, CompileError> {
        let initial = match given {
            Some(view) => Some(e.dense(view)?.slot),
            None => None,
        };
        let last = match carry {
            true => Some(Last {
                is_state: e.updated(1).is_some(),
                view: e.result(1)?,
            }),
            false => None,
        };
        Ok(States { initial, last })
    }

    /// A place for last states that any kernel may write.
    pub(super) fn make(&self, e: &mut Emit<'_>) -> Result<Made, CompileError> {
        let Some(Last { view, is_state }) = &self.last else {
            let slot = e.absent()?;
            return Ok(Made { slot, apart: None });
        };
        if !is_state {
            let slot = view.slot;
            return Ok(Made { slot, apart: None });
        }
        let apart = e.temp(view.dtype, view.layout.shape())?;
        Ok(Made {
            slot: apart.slot,
            apart: Some(apart),
        })
    }

    /// Brings last states where they belong.
    pub(super) fn finish(&self, e: &mut Emit<'_>, made: Made) {
        if let (Some(last), Some(apart)) = (&self.last, made.apart) {
            copy::commit(e, &apart, &last.view);
        }
    }

    /// Whether the last states take the place of the first, which kernels then read where they write: not by another binding.
    pub(super) fn is_in_place(&self) -> bool {
        let last = self.last.as_ref().filter(|last| last.is_state);
        last.is_some_and(|last| Some(last.view.slot) == self.initial)
    }

    /// The constants of kernels.
    pub(super) fn consts(&self) -> [u32; 2] {
        [self.initial.is_some().into(), self.last.is_some().into()]
    }
}
