//! Bounds of the time that evaluations take during training.

/// Evaluations of one batch that take the time of a training step on one batch, at least: a step computes the same
/// forward pass, and gradients that take as long.
pub const FORWARD_PASSES: f64 = 2.0;

/// The batches of held-out data that each evaluation of a training run computes, evenly spread over the data.
///
/// All evaluations of a run compute the same batches, so their losses are comparable. Their number follows from the
/// number of steps, not from a clock, so a run is repeatable.
///
/// ```
/// use tercet::train::EvaluationSample;
/// // 100 steps of one batch, 6 evaluations in a fifth of the time, of 1,000 batches.
/// let sample = EvaluationSample::new(100, 6, 0.2, 1000);
/// assert_eq!(sample.count(), 8);
/// assert_eq!((0..1000).filter(|batch| sample.contains(*batch)).count(), 8);
/// // All of a small part.
/// assert_eq!(EvaluationSample::new(100, 6, 0.2, 3).count(), 3);
/// assert_eq!(EvaluationSample::new(100, 6, 1.0, 1000).count(), 1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationSample {
    count: usize,
    of: usize,
}

impl EvaluationSample {
    /// The batches of each of `evaluations` evaluations, out of `of`, in a training run over `trained` batches. The
    /// evaluations take at most `share` of the run's time, but compute at least one batch. A share of 1 or more
    /// selects all batches.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bound of time is approximate"
    )]
    pub fn new(trained: usize, evaluations: usize, share: f64, of: usize) -> EvaluationSample {
        let count = match share < 1.0 {
            true => {
                let all = trained as f64 * FORWARD_PASSES * share / (1.0 - share);
                (all / evaluations.max(1) as f64) as usize
            }
            false => of,
        };
        EvaluationSample {
            count: count.max(1).min(of),
            of,
        }
    }

    /// Number of batches of an evaluation.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether an evaluation computes this batch.
    #[must_use]
    pub fn contains(&self, batch: usize) -> bool {
        let before = |batch: usize| batch as u128 * self.count as u128 / self.of.max(1) as u128;
        batch < self.of && before(batch + 1) > before(batch)
    }
}
