//! Checks of sizes and of data, which end a run with an error that names the node.

use tercet_ir::{CompileError, DType, Dim};

use super::{Emit, Home, RECORD_BYTES, SlotDraft, View};
use crate::families::check;
use crate::kernel::Access;
use crate::num::Num;
use crate::program::{Buffer, CheckKind, DataCheck, SizeCheck, SizeRule, SlotId, Step};

impl Emit<'_> {
    /// Checks that `less <= more` for the sizes of each run, else the run fails with an error that
    /// names the node; `{less}` and `{more}` in `reason` stand for the sizes.
    pub fn check_at_most(&mut self, less: Num, more: Num, reason: String) {
        if let (Some(less), Some(more)) = (less.known(), more.known())
            && less <= more
        {
            return;
        }
        self.check_sizes(SizeRule::AtMost { less, more, reason });
    }

    /// Checks sizes of each run that comes to the node at hand.
    pub(crate) fn check_sizes(&mut self, rule: SizeRule) {
        let site = self.site();
        self.own_sizes.checks.push(self.draft.size_checks.len());
        self.draft.size_checks.push(SizeCheck { site, rule });
    }

    /// Checks I32 data on the device before any state is written: the run fails with an error that
    /// names the node and the first element outside `[-len, len)` (indices) or `[0, len]` (counts).
    /// Kernels that use the data must clamp it, so that they stay inside in a run that fails.
    ///
    /// # Errors
    /// As [`Emit::dense`].
    pub fn check_data(
        &mut self,
        data: &View,
        kind: CheckKind,
        len: &Dim,
    ) -> Result<(), CompileError> {
        let len = self.num(len);
        self.check_elements(data, kind, len)
    }

    /// Says that what is written to a slot are indices of an axis of this size, from 0 on, which nobody needs to check.
    pub fn are_within(&mut self, slot: SlotId, len: &Dim) {
        let len = self.num(len);
        self.draft.within.push((slot, len));
    }

    /// Whether these are such indices, none of them negative.
    pub fn is_within(&mut self, data: &View, len: &Dim) -> bool {
        let made = (data.slot, self.num(len));
        self.draft.within.contains(&made)
    }

    /// As [`Emit::check_data`], for indices whose last axis has a number for each of `lens`. Without any
    /// there is nothing to check.
    ///
    /// # Errors
    /// As [`Emit::dense`].
    pub fn check_coordinates(&mut self, data: &View, lens: &[Dim]) -> Result<(), CompileError> {
        let lens = self.sizes(lens);
        match lens[..] {
            [] => Ok(()),
            [len] => self.check_elements(data, CheckKind::Index, len),
            _ => self.check_elements(data, CheckKind::Coordinates(lens.to_vec()), Num::ZERO),
        }
    }

    fn check_elements(
        &mut self,
        data: &View,
        kind: CheckKind,
        len: Num,
    ) -> Result<(), CompileError> {
        debug_assert!(
            self.cursor.arms.is_empty(),
            "invariant: every run checks its data"
        );
        if kind == CheckKind::Index && self.draft.within.contains(&(data.slot, len)) {
            return Ok(());
        }
        let known = |(v, k, n): &(View, CheckKind, Num)| v == data && *k == kind && *n == len;
        if self.draft.checked.iter().any(known) {
            return Ok(());
        }
        self.draft.checked.push((data.clone(), kind.clone(), len));
        let at = self.draft.data_checks.len() as u64;
        let faults = self.faults();
        self.draft.slots[faults.0 as usize].bytes = (at + 1) * RECORD_BYTES;
        let record = self.slot(SlotDraft {
            bytes: 8,
            dtype: DType::U32,
            numel: None,
            home: Home::At(Buffer::Faults, at * RECORD_BYTES),
        });
        let dense = self.dense(data)?;
        let first = self.draft.steps.len();
        self.as_constant(false, |e| check::emit(e, &dense, &kind, len, record))?;
        self.hoist(first, dense.slot);
        let site = self.site();
        self.draft.data_checks.push(DataCheck {
            kind,
            record,
            len,
            site,
        });
        Ok(())
    }

    /// Moves the steps from `first` on to just after the step that writes their operand, so that
    /// states are written after every check.
    fn hoist(&mut self, first: usize, operand: SlotId) {
        let kernels = &self.draft.kernels;
        let writes = |s: &Step| {
            let mut accesses = s.accesses(kernels).into_iter();
            accesses.any(|(slot, a)| slot == operand && a == Access::Write)
        };
        let after = self.draft.steps[..first].iter().rposition(writes);
        let to = after.map_or(0, |at| at + 1);
        let moved: Vec<Step> = self.draft.steps.drain(first..).collect();
        self.draft.steps.splice(to..to, moved);
    }
}
