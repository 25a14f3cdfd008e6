//! Ways side by side, of which a run takes one by a number of it.

use tercet_ir::{CompileError, Dim};

use super::Emit;
use crate::num::Num;
use crate::program::{Arm, Choice, ChoiceId};

impl<'a> Emit<'a> {
    /// Emits a way for each range of a size: arm `i` runs where the size is above `bounds[i - 1]` and at
    /// most `bounds[i]`, the last arm above them all. `bounds` ascend. Ranges that no run is in are left
    /// out; where one is left, it is emitted as if there were no choice.
    ///
    /// Arms write into slots taken before (the result); what they take with [`Emit::temp`] or
    /// [`Emit::dense`] is theirs, and those of different arms may share memory. An arm may be several
    /// steps, and may choose again.
    ///
    /// # Errors
    /// Those of the arms; [`CompileError::Bounds`] when the bound of the size is not possible.
    pub fn choose(
        &mut self,
        value: &Dim,
        bounds: &[u32],
        mut arm: impl FnMut(&mut Emit<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        debug_assert!(
            bounds.is_sorted(),
            "invariant: the ranges of a choice ascend"
        );
        let most = self.bound(value)?;
        let reached = bounds.iter().filter(|b| most > **b as usize).count();
        if value.known().is_some() || reached == 0 {
            return arm(self, reached);
        }
        let value = self.num(value);
        self.choose_by(value, &bounds[..reached], arm)
    }

    /// As [`Emit::choose`], by a number that may lie in every range.
    ///
    /// # Errors
    /// Those of the arms.
    pub(crate) fn choose_by(
        &mut self,
        value: Num,
        bounds: &[u32],
        mut arm: impl FnMut(&mut Emit<'a>, usize) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        if let Some(known) = value.known() {
            let at = bounds.iter().filter(|b| known > i64::from(**b)).count();
            return arm(self, at);
        }
        let choice = Choice {
            value,
            bounds: bounds.into(),
        };
        let choice = self.choice(choice);
        for index in 0..=bounds.len() {
            let copies = self.values.copies.len();
            self.cursor.arms.push(Arm {
                choice,
                index: index as u32,
            });
            let done = arm(self, index);
            self.cursor.arms.pop();
            done?;
            self.forget_copies(copies);
        }
        Ok(())
    }

    /// The id of a choice, each once.
    fn choice(&mut self, choice: Choice) -> ChoiceId {
        let choices = &mut self.draft.choices;
        let at = choices.iter().position(|c| *c == choice);
        let at = at.unwrap_or_else(|| {
            choices.push(choice);
            choices.len() - 1
        });
        ChoiceId(at as u32)
    }
}
