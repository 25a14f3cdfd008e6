//! A run behind another: what the queue is told to write happens between the two.

use std::sync::Arc;

use tercet_ir::RunError;
use tercet_plan::{Driver, Launch, Put, Read, StageId};

use super::{WgpuDriver, during};

impl WgpuDriver {
    pub(super) fn start_behind(
        &mut self,
        launch: &Launch,
        changed: bool,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<bool, RunError> {
        if self.flight.is_none() || self.older.is_some() || self.timer.is_some() {
            return Ok(false);
        }
        if changed {
            self.send_numbers(launch).map_err(during("numbers"))?;
        }
        for put in puts {
            if let Put::Bytes {
                buffer,
                offset_bytes,
                bytes,
            } = *put
            {
                self.write(buffer, offset_bytes, bytes)?;
            }
        }
        self.older = self.flight.take();
        self.reading = 1 - self.reading;
        let played = self.play_behind(launch, puts, reads);
        if played.is_err() {
            self.flight = self.older.take();
            self.reading = 1 - self.reading;
        }
        played.map(|()| true)
    }

    /// Runs a program behind the run under way, after the copies of `puts`.
    fn play_behind(
        &mut self,
        launch: &Launch,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<(), RunError> {
        let gpu = Arc::clone(&self.gpu);
        let first = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            for put in puts {
                if let Put::Copy {
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
        self.play(launch, &[StageId(0)], Some(first), reads)
    }
}
