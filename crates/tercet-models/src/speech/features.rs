//! Streaming log-mel features.
//!
//! Frames are centered on their samples: the signal is reflected by half a frame at both ends. The
//! logarithms are clamped only when the audio ends, because the lower bound depends on the global
//! maximum.

use tercet::{Executable, Tensor};

use super::recognizer::check_samples;
use tercet_networks::config::speech::{FRAME, HOP};
use tercet_networks::{ModelError, SpeechModel};

/// Number of samples reflected at each end.
const REFLECTED: usize = FRAME / 2;
/// Samples per run.
const RUN: usize = HOP * (SpeechModel::FRAMES_PER_RUN - 1) + FRAME;
/// Dynamic range in log10 units: values more than this below the maximum are clamped.
const RANGE: f32 = 8.0;

/// Log-mel features of the audio pushed so far.
pub(super) struct FeatureStream {
    mels: usize,
    /// Number of samples pushed.
    samples: usize,
    /// Samples, including reflected ones, that later frames still need.
    pending: Vec<f32>,
    /// Base-10 logarithms, `[frames, mels]`.
    logs: Vec<f32>,
}

impl FeatureStream {
    pub(super) fn new(mels: usize) -> FeatureStream {
        FeatureStream {
            mels,
            samples: 0,
            pending: Vec::new(),
            logs: Vec::new(),
        }
    }

    /// Number of finished frames.
    pub(super) fn frames(&self) -> usize {
        self.logs.len() / self.mels
    }

    /// Number of samples pushed.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// Appends samples and computes all complete runs.
    pub(super) fn push(
        &mut self,
        exe: &mut dyn Executable,
        samples: &[f32],
    ) -> Result<(), crate::Error> {
        check_samples(self.samples, samples)?;
        // Process in chunks, so that the pending buffer stays small.
        for part in samples.chunks(RUN) {
            self.take(exe, part)?;
        }
        Ok(())
    }

    fn take(&mut self, exe: &mut dyn Executable, part: &[f32]) -> Result<(), crate::Error> {
        let before = self.samples;
        self.samples += part.len();
        self.pending.extend_from_slice(part);
        // The first frames need the reflection of the following samples, so they are computed after
        // enough samples have arrived.
        if before <= REFLECTED && self.samples > REFLECTED {
            let start = self.pending[1..=REFLECTED].iter().rev().copied();
            let start: Vec<f32> = start.collect();
            self.pending.splice(0..0, start);
        }
        while self.samples > REFLECTED && self.pending.len() >= RUN {
            self.run(exe, SpeechModel::FRAMES_PER_RUN)?;
        }
        Ok(())
    }

    /// Ends the audio; pads it with silence to at least `least` samples.
    pub(super) fn finish(
        &mut self,
        exe: &mut dyn Executable,
        least: usize,
    ) -> Result<(), crate::Error> {
        let silence = [0.0; 4096];
        while self.samples < least {
            let more = (least - self.samples).min(silence.len());
            self.take(exe, &silence[..more])?;
        }
        let wanted = self.samples / HOP;
        // Every run leaves at least 240 pending samples, which is more than the reflection needs.
        let len = self.pending.len();
        let end: Vec<f32> = (0..REFLECTED).map(|i| self.pending[len - 2 - i]).collect();
        self.pending.extend(end);
        while self.frames() < wanted {
            let frames = (wanted - self.frames()).min(SpeechModel::FRAMES_PER_RUN);
            self.pending.resize(self.pending.len().max(RUN), 0.0);
            self.run(exe, frames)?;
        }
        self.pending = Vec::new();
        Ok(())
    }

    /// Computes features of the first pending samples and keeps `frames` of them.
    fn run(&mut self, exe: &mut dyn Executable, frames: usize) -> Result<(), ModelError> {
        let failed = |e: tercet::TensorError| ModelError::Unsupported(format!("samples: {e}"));
        let samples = Tensor::from_slice(&[RUN], &self.pending[..RUN]).map_err(failed)?;
        let out = exe.run(&[("samples", &samples)])?.remove(0);
        let logs = out.as_slice::<f32>().map_err(failed)?;
        self.logs.extend_from_slice(&logs[..frames * self.mels]);
        self.pending.drain(..frames * HOP);
        Ok(())
    }

    /// Normalized features of a window, `[1, mels, all]`: at most `frames` frames from frame `from`
    /// on, then zeros.
    pub(super) fn window(
        &self,
        (from, frames): (usize, usize),
        top: f32,
        all: usize,
    ) -> Result<Tensor, ModelError> {
        let ty = tercet::TensorType::new(tercet::DType::F32, &[1, self.mels, all]);
        let failed = |e: tercet::TensorError| ModelError::Unsupported(format!("features: {e}"));
        let mut window = Tensor::zeros(ty).map_err(failed)?;
        let features = window.as_slice_mut::<f32>().map_err(failed)?;
        let logs = self.logs[from * self.mels..].chunks_exact(self.mels);
        for (at, frame) in logs.take(frames).enumerate() {
            for (band, log) in frame.iter().enumerate() {
                features[band * all + at] = (log.max(top - RANGE) + 4.0) / 4.0;
            }
        }
        Ok(window)
    }

    /// Greatest logarithm of the audio.
    pub(super) fn top(&self) -> f32 {
        self.logs.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}
