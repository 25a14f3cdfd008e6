//! Size checks and data checks: if one fails, the run ends with an error that names the node.

use tercet_ir::{CompileError, DType, Dim};

use super::{LoweringCtx, PendingSlot, SlotPlacement, SlotView};
use crate::lowerings::check;
use tercet_program::ArgAccess;
use tercet_program::RECORD_BYTES;
use tercet_program::SymInt;
use tercet_program::{
    CheckKind, DataCheck, LaunchSizeCheck, ProgramBuffer, ProgramStep, SizeRule, SlotId,
};

impl LoweringCtx<'_> {
    /// Adds a size check that `less <= more` holds in each run; otherwise the run fails with an
    /// error that names the node. The error message is `reason`, in which the sizes of the run
    /// replace `{less}` and `{more}`.
    pub fn check_less_equal(&mut self, less: SymInt, more: SymInt, reason: String) {
        if let (Some(less), Some(more)) = (less.known(), more.known())
            && less <= more
        {
            return;
        }
        self.check_sizes(SizeRule::AtMost { less, more, reason });
    }

    /// Adds a size check that applies to each run that reaches the current node.
    pub(crate) fn check_sizes(&mut self, rule: SizeRule) {
        let site = self.site();
        self.subgraph_size_checks
            .checks
            .push(self.draft.size_checks.len());
        self.draft.size_checks.push(LaunchSizeCheck { site, rule });
    }

    /// Adds a check of I32 data, which the device performs before any state is written. The run
    /// fails with an error that names the node and the first element outside `[-len, len)`
    /// (indices) or `[0, len]` (counts). Kernels that use the checked data as indices must clamp
    /// them, so that a run whose check fails stays within its buffers.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::dense`].
    pub fn check_data(
        &mut self,
        data: &SlotView,
        kind: CheckKind,
        len: &Dim,
    ) -> Result<(), CompileError> {
        let len = self.num(len);
        self.check_elements(data, kind, len)
    }

    /// Declares that all values of a slot are indices in `[0, len)` by construction, so that later
    /// data checks of this slot are omitted.
    pub fn are_within(&mut self, slot: SlotId, len: &Dim) {
        let len = self.num(len);
        self.draft.within.push((slot, len));
    }

    /// Whether a lowering declared that all values in the slot of `data` are indices in `[0, len)`.
    pub fn is_within(&mut self, data: &SlotView, len: &Dim) -> bool {
        let made = (data.slot, self.num(len));
        self.draft.within.contains(&made)
    }

    /// Keys that an earlier scatter computed from the same indices for axes of the same sizes.
    pub(crate) fn shared_keys(&self, of: &(SlotView, Vec<SymInt>)) -> Option<SlotView> {
        let mut known = self.draft.keys.iter();
        known
            .find(|(own, _)| own == of)
            .map(|(_, keys)| keys.clone())
    }

    /// Offers the keys of a scatter to later ones. Only inputs of the program have the same contents
    /// throughout a run, and only steps outside of branches and nested graphs always execute.
    pub(crate) fn share_keys(&mut self, of: (SlotView, Vec<SymInt>), keys: &SlotView) {
        let is_input = self.draft.home(of.0.slot) == SlotPlacement::Input;
        let always_runs = self.cursor.branches.is_empty() && self.facts.enclosing_nodes.is_empty();
        if is_input && always_runs {
            self.draft.keys.push((of, keys.clone()));
        }
    }

    /// Like [`LoweringCtx::check_data`], for index tuples along the last axis: index `i` of each
    /// tuple must be valid for size `lens[i]`. Does nothing if `lens` is empty.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::dense`].
    pub fn check_coordinates(&mut self, data: &SlotView, lens: &[Dim]) -> Result<(), CompileError> {
        let lens = self.sizes(lens);
        match lens[..] {
            [] => Ok(()),
            [len] => self.check_elements(data, CheckKind::Index, len),
            _ => self.check_elements(data, CheckKind::Coordinates(lens.to_vec()), SymInt::ZERO),
        }
    }

    fn check_elements(
        &mut self,
        data: &SlotView,
        kind: CheckKind,
        len: SymInt,
    ) -> Result<(), CompileError> {
        debug_assert!(
            self.cursor.branches.is_empty(),
            "invariant: data checks are not part of a shape branch"
        );
        if kind == CheckKind::Index && self.draft.within.contains(&(data.slot, len)) {
            return Ok(());
        }
        let known =
            |(v, k, n): &(SlotView, CheckKind, SymInt)| v == data && *k == kind && *n == len;
        if self.draft.checked.iter().any(known) {
            return Ok(());
        }
        self.draft.checked.push((data.clone(), kind.clone(), len));
        let at = self.draft.data_checks.len() as u64;
        let faults = self.faults();
        self.draft.slots[faults.0 as usize].bytes = (at + 1) * RECORD_BYTES;
        let record = self.slot(PendingSlot {
            bytes: 8,
            dtype: DType::U32,
            numel: None,
            home: SlotPlacement::At(ProgramBuffer::Faults, at * RECORD_BYTES),
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

    /// Moves the check steps from index `first` on directly after the step that writes the checked
    /// slot. The checks then precede all writes of states.
    fn hoist(&mut self, first: usize, operand: SlotId) {
        let kernels = &self.draft.kernels;
        let writes = |s: &ProgramStep| {
            let mut accesses = s.accesses(kernels).into_iter();
            accesses.any(|(slot, a)| slot == operand && a == ArgAccess::Write)
        };
        let after = self.draft.steps[..first].iter().rposition(writes);
        let to = after.map_or(0, |at| at + 1);
        let moved: Vec<ProgramStep> = self.draft.steps.drain(first..).collect();
        self.draft.steps.splice(to..to, moved);
    }
}
