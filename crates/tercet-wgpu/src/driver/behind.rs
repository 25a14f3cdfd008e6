//! Pipelined runs: a run starts before the previous one is finished. The queue executes writes
//! between the two runs.

use std::sync::Arc;

use tercet_ir::RunError;
use tercet_plan::{InputUpdate, LaunchSizes, LoadedProgram, ReadbackRange, StageId};

use super::{WgpuDriver, during};

impl WgpuDriver {
    pub(super) fn start_pipelined(
        &mut self,
        launch: &LaunchSizes,
        changed: bool,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<bool, RunError> {
        if self.flight.is_none() || self.previous.is_some() || self.timer.is_some() {
            return Ok(false);
        }
        if changed {
            self.send_numbers(launch).map_err(during("numbers"))?;
        }
        for put in puts {
            if let InputUpdate::Bytes {
                buffer,
                offset_bytes,
                bytes,
            } = *put
            {
                self.write(buffer, offset_bytes, bytes)?;
            }
        }
        self.previous = self.flight.take();
        self.active_readback = 1 - self.active_readback;
        let played = self.execute_pipelined(launch, puts, reads);
        if played.is_err() {
            self.flight = self.previous.take();
            self.active_readback = 1 - self.active_readback;
        }
        played.map(|()| true)
    }

    /// Starts a run after the run in flight; `puts` are copies that the device makes between both
    /// runs.
    fn execute_pipelined(
        &mut self,
        launch: &LaunchSizes,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<(), RunError> {
        let gpu = Arc::clone(&self.gpu);
        let first = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            for put in puts {
                if let InputUpdate::Copy {
                    from,
                    buffer,
                    offset_bytes,
                } = put
                    && let Some(source) = self.buffers.get(from.buffer)
                    && let Some(to) = self.buffers.get(*buffer)
                {
                    let (at, bytes) = (from.offset_bytes, from.bytes);
                    encoder.copy_buffer_to_buffer(source, at, to, *offset_bytes, bytes);
                }
            }
            encoder.finish()
        });
        let first = first.map_err(during("carried inputs"))?;
        self.execute(launch, &[StageId(0)], Some(first), reads)
    }
}
