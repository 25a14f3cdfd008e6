//! Recording the commands of an executable: its preparation, the stages of its runs, and the copies
//! of results.

use std::sync::atomic::Ordering;

use ash::vk;
use tercet_plan::{ReadbackRange, StageId};

use super::{SharedResources, VulkanDriver};
use crate::command_cache::{CommandBufferCache, RecordedStage};
use crate::command_list::DescriptorSets;
use crate::error::VulkanError;
use crate::readback::VulkanReadback;
use crate::record::{CommandPool, CommandRecorder, TimestampQueries};

/// Maximum number of retained read lists in programs with data-dependent control flow.
const MAX_RECORDED_READS: usize = 32;

impl VulkanDriver {
    /// Creates the descriptor sets and records the preparation, unless that is already done. Also
    /// records the steps of runs if they are the same at all sizes.
    pub(super) fn record(&mut self) -> Result<(), VulkanError> {
        if self.recorded.is_some() {
            return Ok(());
        }
        let device = &self.shared.device;
        let SharedResources {
            program,
            calls,
            pipelines,
            ..
        } = &*self.buffers.loaded;
        let memory = |slot| self.buffers.memory(program.slot(slot).buffer);
        let sets = DescriptorSets::new(device, program, calls, pipelines, &self.words, memory)?;
        let pool = CommandPool::new(device)?;
        let timed = self.shared.timestamps && device.features.timestamp_bits > 0;
        let queries = match timed {
            true => Some(TimestampQueries::new(device, calls.steps.len())?),
            false => None,
        };
        let prepare = pool.buffer()?;
        let player = CommandRecorder {
            device,
            program,
            calls,
            pipelines,
            sets: &sets,
            grids: &self.grids,
            fixed_grids: None,
            again: false,
            memory,
        };
        let played = program.active_steps(&program.prepare, &[]);
        player.record(prepare, &calls.prepare, &played, None)?;
        let is_fixed = program.shape_switches.is_empty();
        let (stages, steps) = (program.stages().len() as u32, program.steps.len());
        self.recorded = Some(CommandBufferCache {
            runs: Vec::new(),
            counted: Vec::new(),
            prepare,
            queries,
            has_timestamps: false,
            sets,
            pool,
        });
        self.count_recorded(1);
        match is_fixed {
            true => {
                // Sizes are not known yet, and most programs have no empty step.
                let all = vec![true; steps];
                (0..stages).try_for_each(|at| self.record_run(StageId(at), &all, None).map(drop))
            }
            false => Ok(()),
        }
    }

    /// Records the commands of a stage for these steps, unless they exist. If `grids` is set, the
    /// commands are specialized for these grids. Marks the commands as most recently used.
    pub(super) fn record_run(
        &mut self,
        stage: StageId,
        has_workgroups: &[bool],
        grids: Option<&[[u32; 3]]>,
    ) -> Result<Option<vk::CommandBuffer>, VulkanError> {
        let Some(recorded) = &mut self.recorded else {
            return Ok(None);
        };
        if recorded.find(stage, has_workgroups, grids) {
            return Ok(recorded.runs.last().map(|r| r.commands));
        }
        let device = &self.shared.device;
        device.wait(self.last)?;
        let SharedResources {
            program,
            calls,
            pipelines,
            ..
        } = &*self.buffers.loaded;
        let commands = recorded.commands(program.stages.len())?;
        let player = CommandRecorder {
            device,
            program,
            calls,
            pipelines,
            sets: &recorded.sets,
            grids: &self.grids,
            fixed_grids: grids,
            again: self.pipelined.is_some(),
            memory: |slot| self.buffers.memory(program.slot(slot).buffer),
        };
        let played = program.active_steps_of_stage(stage, has_workgroups);
        player.record(commands, &calls.steps, &played, recorded.queries.as_ref())?;
        recorded.runs.push(RecordedStage {
            stage,
            has_workgroups: has_workgroups.to_vec(),
            grids: grids.map(<[_]>::to_vec),
            active_steps: played,
            commands,
        });
        self.count_recorded(1);
        Ok(Some(commands))
    }

    fn count_recorded(&mut self, n: u64) {
        self.counters.recorded += n;
        self.shared.recorded.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn count_read(&mut self) {
        self.counters.reads_recorded += 1;
        self.shared.reads_recorded.fetch_add(1, Ordering::Relaxed);
    }

    /// Selects or records a readback that copies these reads, and stores its index. The readback
    /// with the index `pending` is still in use and is not selected.
    pub(super) fn record_reads(
        &mut self,
        reads: &[ReadbackRange],
        pending: Option<usize>,
    ) -> Result<(), VulkanError> {
        let is_plain = self.buffers.loaded.program.flow.is_empty();
        let mut known = self.run_reads.iter().enumerate();
        let known = known.find(|(at, r)| Some(*at) != pending && r.copies(reads));
        let most = match (is_plain, pending) {
            (true, None) => 1,
            (true, Some(_)) => 2,
            (false, _) => MAX_RECORDED_READS,
        };
        self.active_readback = match known {
            Some((known, _)) => known,
            None if self.run_reads.len() < most => {
                self.run_reads.push(VulkanReadback::new());
                self.run_reads.len() - 1
            }
            // Of two readbacks, the one that is not pending is used.
            None => usize::from(pending == Some(0)),
        };
        let of = |b| self.buffers.memory(b);
        if self.run_reads[self.active_readback].record(&self.shared.device, reads, of)? {
            self.count_read();
        }
        Ok(())
    }
}
