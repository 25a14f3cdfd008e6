//! Learning rates by step, computed on the host and fed to each run.

use std::f64::consts::PI;

/// How a learning rate goes on after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Constant,
    /// To the end by `steps`, warm-up included.
    Linear {
        steps: u64,
    },
    /// Half a cosine to the end by `steps`, warm-up included (Loshchilov and Hutter, "SGDR", 2017, without restarts).
    Cosine {
        steps: u64,
    },
    /// At the peak for `stable` steps, then linearly to the end in `decay` (Hu and others, "MiniCPM", 2024).
    StableDecay {
        stable: u64,
        decay: u64,
    },
}

/// The learning rate of each step.
///
/// ```
/// use tercet::train::Schedule;
/// let schedule = Schedule::cosine(1e-3, 10, 110).ending_at(1e-4);
/// assert_eq!(schedule.rate(0), 1e-4);
/// assert_eq!(schedule.rate(9), 1e-3);
/// assert!((schedule.rate(60) - 5.5e-4).abs() < 1e-12);
/// assert_eq!(schedule.rate(1000), 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    peak: f64,
    end: f64,
    warmup: u64,
    shape: Shape,
}

impl Schedule {
    fn new(peak: f64, warmup: u64, shape: Shape) -> Schedule {
        Schedule {
            peak,
            end: 0.0,
            warmup,
            shape,
        }
    }

    /// The same rate at every step.
    pub fn constant(rate: f64) -> Schedule {
        Schedule::new(rate, 0, Shape::Constant)
    }

    /// `warmup` steps up to the rate `peak`, which stays.
    pub fn warmup(peak: f64, warmup: u64) -> Schedule {
        Schedule::new(peak, warmup, Shape::Constant)
    }

    /// `warmup` steps up to `peak`, then linearly to 0 after `steps` steps in all.
    pub fn linear(peak: f64, warmup: u64, steps: u64) -> Schedule {
        Schedule::new(peak, warmup, Shape::Linear { steps })
    }

    /// `warmup` steps up to `peak`, then by half a cosine to 0 after `steps` steps in all.
    pub fn cosine(peak: f64, warmup: u64, steps: u64) -> Schedule {
        Schedule::new(peak, warmup, Shape::Cosine { steps })
    }

    /// `warmup` steps up to `peak`, `stable` steps there, then linearly to 0 in `decay` steps.
    pub fn warmup_stable_decay(peak: f64, warmup: u64, stable: u64, decay: u64) -> Schedule {
        Schedule::new(peak, warmup, Shape::StableDecay { stable, decay })
    }

    /// Ends at this rate instead of 0, and returns the schedule, for chaining. A schedule that does not fall has no end.
    pub fn ending_at(mut self, end: f64) -> Schedule {
        self.end = end;
        self
    }

    /// The rate of a step, counted from 0. In the warm-up it is `peak (step + 1) / warmup`, so that no step is lost.
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
            Shape::Constant => 0.0,
            Shape::Linear { steps } => part(after, steps.saturating_sub(self.warmup)),
            Shape::Cosine { steps } => {
                let part = part(after, steps.saturating_sub(self.warmup));
                0.5 * (1.0 - (PI * part).cos())
            }
            Shape::StableDecay { stable, decay } => match after.checked_sub(stable) {
                Some(after) => part(after, decay),
                None => 0.0,
            },
        };
        self.peak + (self.end - self.peak) * fallen
    }
}
