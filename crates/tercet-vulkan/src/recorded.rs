//! The command buffers of an executable: which there are, and which may be used again.

use ash::vk;
use tercet_plan::{Launch, Played, StageId};

use crate::bind::Sets;
use crate::error::GpuError;
use crate::record::{CommandPool, Queries};

/// The most combinations of arms whose commands are kept, for each stage.
const MOST_RUNS: usize = 16;

/// After so many runs of the same sizes, commands for these sizes alone are recorded: the device then
/// reads no grids from memory. A decoder has one size for every token.
const STEADY_RUNS: u32 = 4;

/// Command buffers with what they bind.
pub(crate) struct Recorded {
    /// One for each stage and combination of arms, and for each sizes that stayed; the one used last at
    /// the end.
    pub(crate) runs: Vec<Run>,
    /// How many runs in a row had the grids of the last one.
    pub(crate) steady: u32,
    pub(crate) last_grids: Vec<[u32; 3]>,
    pub(crate) prepare: vk::CommandBuffer,
    pub(crate) queries: Option<Queries>,
    /// A run wrote the queries.
    pub(crate) stamped: bool,
    pub(crate) sets: Sets,
    pub(crate) pool: CommandPool,
}

/// The commands of a stage in runs that choose the same arms.
pub(crate) struct Run {
    pub(crate) stage: StageId,
    pub(crate) chosen: Vec<u32>,
    /// The grids of all steps, where the commands are for these alone.
    pub(crate) grids: Option<Vec<[u32; 3]>>,
    pub(crate) played: Vec<Played>,
    pub(crate) commands: vk::CommandBuffer,
}

impl Recorded {
    /// Counts a run; the grids that its commands may be for alone.
    pub(crate) fn count<'l>(&mut self, launch: &'l Launch) -> Option<&'l [[u32; 3]]> {
        match self.last_grids == launch.grids {
            true => self.steady = self.steady.saturating_add(1),
            false => {
                self.steady = 1;
                self.last_grids.clone_from(&launch.grids);
            }
        }
        (self.steady >= STEADY_RUNS).then_some(&launch.grids)
    }

    /// The times of the last submission of these commands, which is done, as [`Queries::nanoseconds`] counts
    /// them: (step, start, duration).
    pub(crate) fn times(
        &self,
        commands: vk::CommandBuffer,
        origin: &mut Option<u64>,
    ) -> Vec<(usize, u64, u64)> {
        let run = self.runs.iter().find(|r| r.commands == commands);
        let (Some(run), Some(queries)) = (run, &self.queries) else {
            return Vec::new();
        };
        let stamps = queries.nanoseconds(run.played.len(), origin);
        let pairs = run.played.iter().zip(stamps.windows(2));
        pairs.map(|(p, w)| (p.step, w[0], w[1] - w[0])).collect()
    }

    /// Moves the commands for these arms and grids to the end; false where there are none.
    pub(crate) fn find(
        &mut self,
        stage: StageId,
        chosen: &[u32],
        grids: Option<&[[u32; 3]]>,
    ) -> bool {
        let mut runs = self.runs.iter();
        let is_it = |r: &Run| r.stage == stage && r.chosen == chosen && r.grids.as_deref() == grids;
        let Some(at) = runs.rposition(is_it) else {
            return false;
        };
        self.runs[at..].rotate_left(1);
        true
    }

    /// A command buffer that holds nothing of use: where there are enough, the one not used for
    /// longest. None of them may be pending.
    pub(crate) fn commands(&mut self, stages: usize) -> Result<vk::CommandBuffer, GpuError> {
        match self.runs.len() < MOST_RUNS * stages.max(1) {
            true => self.pool.buffer(),
            false => Ok(self.runs.remove(0).commands),
        }
    }
}
