//! Scans over states: what stands in place of attention in state-space models.

use super::super::{ConfigError, ensure};

/// How the states of a scan lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateKind {
    /// Each channel has a step size and decays of its own (Gu and Dao, "Mamba", 2023).
    Channels {
        /// Width of the row that step sizes are projected from.
        rank: usize,
        /// Added to the mean square of that row and of what enters and leaves states, where these are normed, without a gain.
        normed: Option<f32>,
    },
    /// Heads of channels share step size and decay (Dao and Gu, "Transformers are SSMs", 2024).
    Heads {
        /// Heads.
        heads: usize,
        /// Groups of heads that follow each other, which share what enters and leaves states, and a norm.
        groups: usize,
        /// Added to the mean square by the norm of what the gate lets through.
        eps: f32,
    },
}

/// A short causal convolution, then a scan over states with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// How states lie.
    pub kind: StateKind,
    /// Channels.
    pub inner: usize,
    /// States of a channel.
    pub states: usize,
    /// Positions that the convolution reads.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections into and out of the mixer have biases.
    pub bias: bool,
    /// The range that step sizes are held in.
    pub steps: [f32; 2],
}

impl StateSpace {
    /// Width of the row that step sizes are projected from; 0 where there is none.
    pub(crate) fn rank(&self) -> usize {
        match self.kind {
            StateKind::Channels { rank, .. } => rank,
            StateKind::Heads { .. } => 0,
        }
    }

    /// Heads, or channels where each has a step size of its own.
    pub(crate) fn heads(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { heads, .. } => heads,
        }
    }

    /// Channels of the convolution.
    pub(crate) fn convolved(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { groups, .. } => self.inner + 2 * groups * self.states,
        }
    }

    /// Outputs of the projection into the mixer.
    pub(crate) fn projected(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => 2 * self.inner,
            StateKind::Heads { heads, .. } => self.inner + self.convolved() + heads,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let StateKind::Heads { heads, groups, .. } = self.kind {
            ensure(self.inner.is_multiple_of(heads), || {
                format!(
                    "{} channels are no whole number for each of {heads} heads",
                    self.inner
                )
            })?;
            ensure(heads.is_multiple_of(groups), || {
                format!("{heads} heads are no whole number for each of {groups} groups")
            })?;
        }
        let [least, most] = self.steps;
        ensure(least >= 0.0 && least <= most, || {
            format!("step sizes are held between {least} and {most}")
        })
    }
}
