//! Selects the program steps that a run executes: the steps of the selected shape branches that
//! have workgroups, with the barriers between them.

use tercet_ir::BarrierOverride;

use crate::flow::StageId;
use crate::kernel::ArgAccess;
use crate::program::{BufferSlot, GpuProgram, ProgramStep, StepOp};

/// Maximum number of links per run in the chain of dependent launches; a link is a group of
/// concurrent steps.
pub const MAX_LAUNCH_DEPENDENCIES: u32 = 1024;

/// Distance in bytes between the counters of consecutive links in a chain of dependent launches;
/// equals `CHAIN_STEP` of the shader.
pub const LINK_BYTES: u64 = 128;

/// A program step that a run executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveStep {
    /// Index of the step in the program.
    pub step: usize,
    /// True if this step requires a full barrier: all earlier active steps must have finished, and
    /// their writes must be visible.
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

/// Position of a step in a chain of dependent launches: the counter that the step waits on, and the
/// counter that its workgroups increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchDependency {
    /// Index of the chain link whose counter this step waits on; `None` if it waits on no counter.
    pub waits_on: Option<u32>,
    /// Index of the chain link whose counter the finished workgroups of this step increment.
    pub signals: u32,
}

impl GpuProgram {
    /// The steps of one stage that a run executes: those for which
    /// [`crate::LaunchSizes::has_workgroups`] is true. See [`GpuProgram::active_steps`] for their
    /// barriers.
    pub fn active_steps_of_stage(
        &self,
        stage: StageId,
        has_workgroups: &[bool],
    ) -> Vec<ActiveStep> {
        let range = self.stage(stage);
        let runs = |at: usize| has_workgroups[range.start + at];
        let mut played = self.with_barriers(&self.steps[range.clone()], runs);
        played.iter_mut().for_each(|p| p.step += range.start);
        if self.flow.is_empty() && self.debug.barriers.is_none() {
            self.link(&mut played);
        }
        played
    }

    /// Links groups of concurrent steps by dependent launches, if a group can wait on the counter
    /// of the previous group instead of a barrier.
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

    /// Returns those of `steps` ([`GpuProgram::steps`] or [`GpuProgram::prepare`]) that a run
    /// executes if it selects these branches of the shape switches
    /// ([`crate::LaunchSizes::selected_branches`]). A barrier takes effect before the first active
    /// step, from its own step on, that depends on an active step before it. A barrier is dropped
    /// if no later active step depends on an earlier one.
    pub fn active_steps(&self, steps: &[ProgramStep], chosen: &[u32]) -> Vec<ActiveStep> {
        self.with_barriers(steps, |at| steps[at].runs(chosen))
    }

    /// The steps that `runs`, with their barriers.
    fn with_barriers(
        &self,
        steps: &[ProgramStep],
        runs: impl Fn(usize) -> bool,
    ) -> Vec<ActiveStep> {
        let mut played = Vec::with_capacity(steps.len());
        let mut touched: Vec<(BufferSlot, ArgAccess)> = Vec::new();
        let mut barrier_due = false;
        for (at, step) in steps.iter().enumerate() {
            barrier_due |= step.barrier;
            if !runs(at) {
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
        if let Some(barriers) = self.debug.barriers {
            for (at, step) in played.iter_mut().enumerate() {
                step.barrier = at > 0 && barriers == BarrierOverride::All;
            }
        }
        played
    }
}
