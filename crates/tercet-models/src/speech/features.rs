//! Log-mel features of a recording that comes in pieces.
//!
//! Frames are centred on their samples: the signal is reflected at both ends by half a frame. Logarithms are kept as they are until
//! the recording ends, because its greatest decides how small they may be.

use tercet::{Executable, Tensor};

use super::recognizer::check_samples;
use crate::builder::{ModelError, speech::PART};
use crate::config::speech::{FRAME, HOP};

/// What the signal is reflected by.
const REFLECTED: usize = FRAME / 2;
/// Samples of a run.
const RUN: usize = HOP * (PART - 1) + FRAME;
/// How far below the greatest logarithm others may be.
const RANGE: f32 = 8.0;

/// The features of a recording so far.
pub(super) struct Recorded {
    mels: usize,
    /// Samples that came.
    samples: usize,
    /// Those that frames are still to be made of, reflected ones included.
    pending: Vec<f32>,
    /// `[frames, mels]`, logarithms to base 10.
    logs: Vec<f32>,
}

impl Recorded {
    pub(super) fn new(mels: usize) -> Recorded {
        Recorded {
            mels,
            samples: 0,
            pending: Vec::new(),
            logs: Vec::new(),
        }
    }

    /// Frames whose features are there.
    pub(super) fn frames(&self) -> usize {
        self.logs.len() / self.mels
    }

    /// Samples that came.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// Takes samples.
    pub(super) fn push(
        &mut self,
        exe: &mut dyn Executable,
        samples: &[f32],
    ) -> Result<(), crate::Error> {
        check_samples(self.samples, samples)?;
        // In parts, so that what is pending stays small.
        for part in samples.chunks(RUN) {
            self.take(exe, part)?;
        }
        Ok(())
    }

    fn take(&mut self, exe: &mut dyn Executable, part: &[f32]) -> Result<(), crate::Error> {
        let before = self.samples;
        self.samples += part.len();
        self.pending.extend_from_slice(part);
        // The first frames wait for what they are reflected from.
        if before <= REFLECTED && self.samples > REFLECTED {
            let start = self.pending[1..=REFLECTED].iter().rev().copied();
            let start: Vec<f32> = start.collect();
            self.pending.splice(0..0, start);
        }
        while self.samples > REFLECTED && self.pending.len() >= RUN {
            self.run(exe, PART)?;
        }
        Ok(())
    }

    /// Ends the recording, with silence up to `least` samples.
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
        // At least 240 samples are pending after any run: more than are reflected.
        let len = self.pending.len();
        let end: Vec<f32> = (0..REFLECTED).map(|i| self.pending[len - 2 - i]).collect();
        self.pending.extend(end);
        while self.frames() < wanted {
            let frames = (wanted - self.frames()).min(PART);
            self.pending.resize(self.pending.len().max(RUN), 0.0);
            self.run(exe, frames)?;
        }
        self.pending = Vec::new();
        Ok(())
    }

    /// Features of the first pending samples, of which so many frames are kept.
    fn run(&mut self, exe: &mut dyn Executable, frames: usize) -> Result<(), ModelError> {
        let failed = |e: tercet::TensorError| ModelError::Unsupported(format!("samples: {e}"));
        let samples = Tensor::from_slice(&[RUN], &self.pending[..RUN]).map_err(failed)?;
        let out = exe.run(&[("samples", &samples)])?.remove(0);
        let logs = out.as_slice::<f32>().map_err(failed)?;
        self.logs.extend_from_slice(&logs[..frames * self.mels]);
        self.pending.drain(..frames * HOP);
        Ok(())
    }

    /// The features of a window from frame `from` on, of at most `frames`, `[1, mels, all]`; behind them zeros.
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

    /// The greatest logarithm.
    pub(super) fn top(&self) -> f32 {
        self.logs.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}
