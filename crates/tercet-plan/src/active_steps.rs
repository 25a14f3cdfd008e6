//! Selection of the steps that a run executes: those of the selected branches, with the barriers
//! that they require.

use crate::flow::StageId;
use crate::kernel::ArgAccess;
use crate::program::{BufferSlot, GpuProgram, ProgramStep, StepOp};

/// Maximum number of step groups per run that take part in dependent launches.
pub(crate) const MAX_LAUNCH_DEPENDENCIES: u32 = 1024;

/// Distance in bytes between the counters of two consecutive links of a chain; equals `CHAIN_STEP`
/// of the shader.
pub(crate) const LINK_BYTES: u64 = 128;

/// A step that a run executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveStep {
    /// Index of the step.
    pub step: usize,
    /// Requires a full barrier before this step: earlier active steps must finish, and their writes
    /// must be visible.
    pub barrier: bool,
    /// Position of the step in a dependent-launch chain, if it is part of one.
    pub link: Option<LaunchDependency>,
}

impl ActiveStep {
    /// Whether the runtime must insert a barrier before this step. No barrier is needed if the
    /// kernel itself waits on a counter.
    pub fn needs_barrier(&self) -> bool {
        self.barrier && self.link.is_none_or(|link| link.waits_on.is_none())
    }
}

/// Position in a dependent-launch chain: the counter that a step waits on, and the counter that its
/// workgroups increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchDependency {
    /// Index of the chain link whose steps this step waits for.
    pub waits_on: Option<u32>,
    /// Index of the link whose counter the workgroups of this step increment.
    pub signals: u32,
}

impl GpuProgram {
    /// Like [`GpuProgram::active_steps`], for the steps of one stage.
    pub fn active_steps_of_stage(&self, stage: StageId, chosen: &[u32]) -> Vec<ActiveStep> {
        let range = self.stage(stage);
        let mut played = self.active_steps(&self.steps[range.clone()], chosen);
        played.iter_mut().for_each(|p| p.step += range.start);
        if self.flow.is_empty() {
            self.link(&mut played);
        }
        played
    }

    /// Assigns dependent-launch links to groups of steps that can wait for the previous group
    /// without a barrier.
    fn link(&self, played: &mut [ActiveStep]) {
        let Some(chain) = &self.chain else {
            return;
        };
        let is_link = |p: &ActiveStep| match &self.steps[p.step].work {
            StepOp::Dispatch(d) => chain.numbers.contains_key(&d.block),
            StepOp::Copy { .. } | StepOp::Fill { .. } => false,
        };
        let mut next = 0;
        let mut before: Option<u32> = None;
        for group in played.chunk_by_mut(|_, next| !next.barrier) {
            if !group.iter().all(is_link) || next == MAX_LAUNCH_DEPENDENCIES {
                before = None;
                continue;
            }
            for p in group.iter_mut() {
                p.link = Some(LaunchDependency {
                    waits_on: before,
                    signals: next,
                });
            }
            before = Some(next);
            next += 1;
        }
    }

    /// The active steps of [`GpuProgram::steps`] or [`GpuProgram::prepare`] for the given branch of
    /// each shape switch ([`crate::LaunchSizes::selected_branches`]). Each barrier moves to the
    /// first later active step that depends on an earlier active step. A barrier without such a
    /// step is dropped.
    pub fn active_steps(&self, steps: &[ProgramStep], chosen: &[u32]) -> Vec<ActiveStep> {
        let mut played = Vec::with_capacity(steps.len());
        let mut touched: Vec<(BufferSlot, ArgAccess)> = Vec::new();
        let mut barrier_due = false;
        for (at, step) in steps.iter().enumerate() {
            barrier_due |= step.barrier;
            if !step.runs(chosen) {
                continue;
            }
            let accesses = step.accesses(&self.kernels);
            let own = accesses.iter().map(|(slot, how)| (*self.slot(*slot), *how));
            let waits = |(slot, how): (BufferSlot, ArgAccess)| {
                let mut before = touched.iter();
                before.any(|(other, other_how)| {
                    let writes = how == ArgAccess::Write || *other_how == ArgAccess::Write;
                    writes && slot.overlaps(other)
                })
            };
            let barrier = barrier_due && own.clone().any(waits);
            if barrier {
                touched.clear();
                barrier_due = false;
            }
            touched.extend(own);
            played.push(ActiveStep {
                step: at,
                barrier,
                link: None,
            });
        }
        played
    }
}
