//! Learning rate schedules. The host computes the rate of each step and passes it to the run.

use std::f64::consts::PI;

/// Shape of a schedule after warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DecayShape {
    Constant,
    /// Linear decay to the end rate at step `steps`, warm-up included.
    Linear {
        steps: u64,
    },
    /// Half a cosine to the end rate at step `steps`, warm-up included (Loshchilov and Hutter,
    /// "SGDR", 2017, without restarts).
    Cosine {
        steps: u64,
    },
    /// Constant for `stable` steps, then linear decay to the end rate in `decay` steps (Hu and
    /// others, "MiniCPM", 2024).
    StableDecay {
        stable: u64,
        decay: u64,
    },
}

/// Learning rate as a function of the step.
///
/// ```
/// use tercet::train::LearningRateSchedule;
/// let schedule = LearningRateSchedule::cosine(1e-3, 10, 110).ending_at(1e-4);
/// assert_eq!(schedule.rate(0), 1e-4);
/// assert_eq!(schedule.rate(9), 1e-3);
/// assert!((schedule.rate(60) - 5.5e-4).abs() < 1e-12);
/// assert_eq!(schedule.rate(1000), 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    peak: f64,
    end: f64,
    warmup: u64,
    shape: DecayShape,
}

impl LearningRateSchedule {
    fn new(peak: f64, warmup: u64, shape: DecayShape) -> LearningRateSchedule {
        LearningRateSchedule {
            peak,
            end: 0.0,
            warmup,
            shape,
        }
    }

    /// The same rate at every step.
    pub fn constant(rate: f64) -> LearningRateSchedule {
        LearningRateSchedule::new(rate, 0, DecayShape::Constant)
    }

    /// Linear warm-up to `peak` in `warmup` steps, then constant.
    pub fn warmup(peak: f64, warmup: u64) -> LearningRateSchedule {
        LearningRateSchedule::new(peak, warmup, DecayShape::Constant)
    }

    /// Linear warm-up to `peak` in `warmup` steps, then linear decay to 0 at step `steps`.
    pub fn linear(peak: f64, warmup: u64, steps: u64) -> LearningRateSchedule {
        LearningRateSchedule::new(peak, warmup, DecayShape::Linear { steps })
    }

    /// Linear warm-up to `peak` in `warmup` steps, then half a cosine to 0 at step `steps`.
    pub fn cosine(peak: f64, warmup: u64, steps: u64) -> LearningRateSchedule {
        LearningRateSchedule::new(peak, warmup, DecayShape::Cosine { steps })
    }

    /// Linear warm-up to `peak` in `warmup` steps, constant for `stable` steps, then linear decay
    /// to 0 in `decay` steps.
    pub fn warmup_stable_decay(
        peak: f64,
        warmup: u64,
        stable: u64,
        decay: u64,
    ) -> LearningRateSchedule {
        LearningRateSchedule::new(peak, warmup, DecayShape::StableDecay { stable, decay })
    }

    /// Sets the end rate, which is 0 by default, and returns the schedule, for chaining. The end
    /// rate has no effect on schedules without decay.
    pub fn ending_at(mut self, end: f64) -> LearningRateSchedule {
        self.end = end;
        self
    }

    /// The rate of a step, counted from 0. During warm-up the rate is `peak (step + 1) / warmup`,
    /// so that the first step has a rate above 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * ((step + 1) as f64 / self.warmup as f64);
        }
        let after = step - self.warmup;
        let part = |after: u64, steps: u64| match after < steps {
            true => after as f64 / steps as f64,
            false => 1.0,
        };
        let fallen = match self.shape {
            DecayShape::Constant => 0.0,
            DecayShape::Linear { steps } => part(after, steps.saturating_sub(self.warmup)),
            DecayShape::Cosine { steps } => {
                let part = part(after, steps.saturating_sub(self.warmup));
                0.5 * (1.0 - (PI * part).cos())
            }
            DecayShape::StableDecay { stable, decay } => match after.checked_sub(stable) {
                Some(after) => part(after, decay),
                None => 0.0,
            },
        };
        // This form of the interpolation is exact at both ends.
        self.peak * (1.0 - fallen) + self.end * fallen
    }
}
