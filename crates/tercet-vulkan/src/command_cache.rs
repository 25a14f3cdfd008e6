//! The recorded command buffers of an executable, and their replacement policy.

use std::hash::{DefaultHasher, Hash, Hasher};

use ash::vk;
use tercet_plan::{ActiveStep, LaunchSizes, StageId};

use crate::command_list::DescriptorSets;
use crate::error::VulkanError;
use crate::record::{CommandPool, TimestampQueries};

/// Maximum number of command buffers that are retained per stage, for different selections of steps
/// and repeated sizes. A server has a size for each number of sequences.
const MAX_RECORDED_RUNS: usize = 80;

/// After this many runs with equal sizes, commands are recorded for these sizes only, so the device
/// does not read grids from memory. The decode steps of a model all have the same size; in a server,
/// runs of prompts lie between them.
const STEADY_RUNS: u32 = 4;

/// Number of sizes whose runs are counted; the size that is not used for longest is forgotten.
const COUNTED_SIZES: usize = 128;

/// Command buffers with the resources that they bind.
pub(crate) struct CommandBufferCache {
    /// One entry for each stage, selection of steps and repeated size; the most recently used
    /// entry is last.
    pub(crate) runs: Vec<RecordedStage>,
    /// Hashes of grids with the number of their runs; the most recently used entry is last.
    pub(crate) counted: Vec<(u64, u32)>,
    pub(crate) prepare: vk::CommandBuffer,
    pub(crate) queries: Option<TimestampQueries>,
    /// True if a run has written the timestamp queries.
    pub(crate) has_timestamps: bool,
    pub(crate) sets: DescriptorSets,
    pub(crate) pool: CommandPool,
}

/// The commands of a stage for runs in which the same steps have workgroups.
pub(crate) struct RecordedStage {
    pub(crate) stage: StageId,
    /// Whether each step of the program has workgroups.
    pub(crate) has_workgroups: Vec<bool>,
    /// The grids of all steps, if the commands are specialized for one size.
    pub(crate) grids: Option<Vec<[u32; 3]>>,
    pub(crate) active_steps: Vec<ActiveStep>,
    pub(crate) commands: vk::CommandBuffer,
}

impl CommandBufferCache {
    /// Counts a run. Returns the grids if enough runs had them; commands are then recorded for these
    /// grids only. Two grids with one hash are counted together, which is harmless.
    pub(crate) fn count<'l>(&mut self, launch: &'l LaunchSizes) -> Option<&'l [[u32; 3]]> {
        let mut hasher = DefaultHasher::new();
        launch.grids.hash(&mut hasher);
        let hash = hasher.finish();
        let runs = match self.counted.iter().rposition(|(of, _)| *of == hash) {
            Some(at) => self.counted.remove(at).1.saturating_add(1),
            None => 1,
        };
        if self.counted.len() == COUNTED_SIZES {
            self.counted.remove(0);
        }
        self.counted.push((hash, runs));
        (runs >= STEADY_RUNS).then_some(&launch.grids)
    }

    /// The times of the last finished submission of these commands as (step, start, duration). The
    /// clock is that of [`TimestampQueries::nanoseconds`].
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

    /// Looks up the commands for these steps and grids and marks them as most recently used;
    /// false if there are none.
    pub(crate) fn find(
        &mut self,
        stage: StageId,
        has_workgroups: &[bool],
        grids: Option<&[[u32; 3]]>,
    ) -> bool {
        let mut runs = self.runs.iter();
        let is_it = |r: &RecordedStage| {
            r.stage == stage && r.has_workgroups == has_workgroups && r.grids.as_deref() == grids
        };
        let Some(at) = runs.rposition(is_it) else {
            return false;
        };
        self.runs[at..].rotate_left(1);
        true
    }

    /// A command buffer for new commands: the least recently used one if the limit is reached. None
    /// of the stage's command buffers may be pending.
    pub(crate) fn commands(&mut self, stages: usize) -> Result<vk::CommandBuffer, VulkanError> {
        match self.runs.len() < MAX_RECORDED_RUNS * stages.max(1) {
            true => self.pool.buffer(),
            false => Ok(self.runs.remove(0).commands),
        }
    }
}
