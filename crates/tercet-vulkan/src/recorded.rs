//! The command buffers of an executable: which there are, and which may be used again.

use ash::vk;
use tercet_plan::{ActiveStep, LaunchSizes, StageId};

use crate::bind::DescriptorSets;
use crate::error::VulkanError;
use crate::record::{CommandPool, TimestampQueries};

/// The most combinations of arms whose commands are kept, for each stage.
const MAX_RECORDED_RUNS: usize = 16;

/// After so many runs of the same sizes, commands for these sizes alone are recorded: the device then
/// reads no grids from memory. A decoder has one size for every token.
const STEADY_RUNS: u32 = 4;

/// Command buffers with what they bind.
pub(crate) struct CommandBufferCache {
    /// One for each stage and combination of arms, and for each sizes that stayed; the one used last at
    /// the end.
    pub(crate) runs: Vec<RecordedStage>,
    /// How many runs in a row had the grids of the last one.
    pub(crate) unchanged_grid_runs: u32,
    pub(crate) last_grids: Vec<[u32; 3]>,
    pub(crate) prepare: vk::CommandBuffer,
    pub(crate) queries: Option<TimestampQueries>,
    /// A run wrote the queries.
    pub(crate) has_timestamps: bool,
    pub(crate) sets: DescriptorSets,
    pub(crate) pool: CommandPool,
}

/// The commands of a stage in runs that choose the same arms.
pub(crate) struct RecordedStage {
    pub(crate) stage: StageId,
    pub(crate) selected_branches: Vec<u32>,
    /// The grids of all steps, where the commands are for these alone.
    pub(crate) grids: Option<Vec<[u32; 3]>>,
    pub(crate) active_steps: Vec<ActiveStep>,
    pub(crate) commands: vk::CommandBuffer,
}

impl CommandBufferCache {
    /// Counts a run; the grids that its commands may be for alone.
    pub(crate) fn count<'l>(&mut self, launch: &'l LaunchSizes) -> Option<&'l [[u32; 3]]> {
        match self.last_grids == launch.grids {
            true => self.unchanged_grid_runs = self.unchanged_grid_runs.saturating_add(1),
            false => {
                self.unchanged_grid_runs = 1;
                self.last_grids.clone_from(&launch.grids);
            }
        }
        (self.unchanged_grid_runs >= STEADY_RUNS).then_some(&launch.grids)
    }

    /// The times of the last submission of these commands, which is done, as [`TimestampQueries::nanoseconds`] counts
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
        let stamps = queries.nanoseconds(run.active_steps.len(), origin);
        let pairs = run.active_steps.iter().zip(stamps.windows(2));
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
        let is_it = |r: &RecordedStage| {
            r.stage == stage && r.selected_branches == chosen && r.grids.as_deref() == grids
        };
        let Some(at) = runs.rposition(is_it) else {
            return false;
        };
        self.runs[at..].rotate_left(1);
        true
    }

    /// A command buffer that holds nothing of use: where there are enough, the one not used for
    /// longest. None of them may be pending.
    pub(crate) fn commands(&mut self, stages: usize) -> Result<vk::CommandBuffer, VulkanError> {
        match self.runs.len() < MAX_RECORDED_RUNS * stages.max(1) {
            true => self.pool.buffer(),
            false => Ok(self.runs.remove(0).commands),
        }
    }
}
