//! What a run plays: the steps of the arms that its sizes choose, with the barriers that those need.

use crate::flow::StageId;
use crate::kernel::Access;
use crate::program::{Program, Slot, Step};

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Its place among the steps.
    pub step: usize,
    /// Whether all steps played before it must be finished, and their writes seen, before it starts.
    pub barrier: bool,
}

impl Program {
    /// As [`Program::played`], for the steps of one stage of a run.
    pub fn played_stage(&self, stage: StageId, chosen: &[u32]) -> Vec<Played> {
        let range = self.stage(stage);
        let mut played = self.played(&self.steps[range.clone()], chosen);
        played.iter_mut().for_each(|p| p.step += range.start);
        played
    }

    /// The steps of [`Program::steps`] or [`Program::prepare`] that run where these arms, one for each
    /// choice, are chosen ([`crate::Launch::chosen`]). A barrier of the program stands before the
    /// first step after it that must wait for one that is played; where there is none, it is left
    /// out.
    pub fn played(&self, steps: &[Step], chosen: &[u32]) -> Vec<Played> {
        let mut played = Vec::with_capacity(steps.len());
        let mut touched: Vec<(Slot, Access)> = Vec::new();
        let mut barrier_due = false;
        for (at, step) in steps.iter().enumerate() {
            barrier_due |= step.barrier;
            if !step.runs(chosen) {
                continue;
            }
            let accesses = step.accesses(&self.kernels);
            let own = accesses.iter().map(|(slot, how)| (*self.slot(*slot), *how));
            let waits = |(slot, how): (Slot, Access)| {
                let mut before = touched.iter();
                before.any(|(other, other_how)| {
                    let writes = how == Access::Write || *other_how == Access::Write;
                    writes && slot.overlaps(other)
                })
            };
            let barrier = barrier_due && own.clone().any(waits);
            if barrier {
                touched.clear();
                barrier_due = false;
            }
            touched.extend(own);
            played.push(Played { step: at, barrier });
        }
        played
    }
}
