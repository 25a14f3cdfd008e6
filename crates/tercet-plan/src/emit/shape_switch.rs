//! Shape switches: alternative lists of steps (branches), of which each run executes one, selected
//! by a symbolic value.

use tercet_ir::{CompileError, Dim};

use super::LoweringCtx;
use tercet_program::SymInt;
use tercet_program::{ShapeBranch, ShapeSwitch, ShapeSwitchId};

impl<'a> LoweringCtx<'a> {
    /// Emits a shape switch with one branch per range of a size. Branch `i` runs if the size is
    /// above `bounds[i - 1]` and at most `bounds[i]`; the last branch has no upper limit. `bounds`
    /// must ascend. Unreachable ranges are omitted. If only one range is reachable, its branch is
    /// emitted without a shape switch.
    ///
    /// Branches write into slots that were allocated before the switch, such as the result. A slot
    /// that a branch allocates with [`LoweringCtx::temp`] or [`LoweringCtx::dense`] is valid only
    /// in this branch, and slots of different branches may share memory. A branch may emit several
    /// steps and further shape switches.
    ///
    /// # Errors
    /// The errors of `arm`; [`CompileError::Bounds`] if the upper bound of the size is invalid.
    pub fn switch_on_size(
        &mut self,
        value: &Dim,
        bounds: &[u32],
        arm: impl FnMut(&mut LoweringCtx<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        self.switch_on_size_with(value, (bounds, &[]), arm)
    }

    /// Like [`LoweringCtx::switch_on_size`]. `same_bits` is that of [`ShapeSwitch`].
    pub(crate) fn switch_on_size_with(
        &mut self,
        value: &Dim,
        (bounds, same_bits): (&[u32], &[u32]),
        mut arm: impl FnMut(&mut LoweringCtx<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        debug_assert!(
            bounds.is_sorted(),
            "invariant: the bounds of a shape switch ascend"
        );
        let most = self.bound(value)?;
        let reached = bounds.iter().filter(|b| most > **b as usize).count();
        if value.known().is_some() || reached == 0 {
            return arm(self, reached);
        }
        let value = self.num(value);
        let same_bits = same_bits.get(..=reached).unwrap_or_default();
        self.switch(value, (&bounds[..reached], same_bits), arm)
    }

    /// Like [`LoweringCtx::switch_on_size`], for any symbolic value; branches are emitted for all
    /// ranges.
    ///
    /// # Errors
    /// The errors of `arm`, which lowers each branch.
    pub(crate) fn switch_on(
        &mut self,
        value: SymInt,
        bounds: &[u32],
        arm: impl FnMut(&mut LoweringCtx<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        self.switch(value, (bounds, &[]), arm)
    }

    fn switch(
        &mut self,
        value: SymInt,
        (bounds, same_bits): (&[u32], &[u32]),
        mut arm: impl FnMut(&mut LoweringCtx<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        if let Some(known) = value.known() {
            let at = bounds.iter().filter(|b| known > i64::from(**b)).count();
            return arm(self, at);
        }
        let choice = ShapeSwitch {
            value,
            bounds: bounds.into(),
            same_bits: same_bits.into(),
        };
        let choice = self.choice(choice);
        for index in 0..=bounds.len() {
            let copies = self.values.copies.len();
            self.cursor.branches.push(ShapeBranch {
                choice,
                index: index as u32,
            });
            let done = arm(self, index);
            self.cursor.branches.pop();
            done?;
            self.discard_copies(copies);
        }
        Ok(())
    }

    /// Returns the id of a shape switch; switches on the same value with the same bounds share one
    /// id.
    fn choice(&mut self, choice: ShapeSwitch) -> ShapeSwitchId {
        let choices = &mut self.draft.shape_switches;
        let at = choices.iter().position(|c| *c == choice);
        let at = at.unwrap_or_else(|| {
            choices.push(choice);
            choices.len() - 1
        });
        ShapeSwitchId(at as u32)
    }
}
