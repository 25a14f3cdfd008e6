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
        /// Added to the mean square by the norm.
        eps: f32,
        /// Where the norm stands.
        norm: StateNorm,
    },
    /// Gated delta rules (Yang and others, "Gated Delta Networks", 2024): heads of values, several of which may share a key and a
    /// query. A head's norm stands before its gate.
    Delta {
        /// Heads of values.
        heads: usize,
        /// Heads of queries and of keys; divides `heads`.
        key_heads: usize,
        /// Added to the mean square of a head by its norm.
        eps: f32,
        /// How projections lie.
        rows: DeltaRows,
    },
}

/// Where the norm of a scan by heads stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateNorm {
    /// There is none.
    None,
    /// It norms what the gate lets through.
    AfterGate,
    /// The gate is applied to what is normed.
    BeforeGate,
}

/// How the projections of a gated delta rule lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaRows {
    /// Whether query, key, values and gates are one projection: those of the first key head, then those of the second, and so on.
    /// Else all queries, all keys, all values, and another projection for gates.
    pub fused: bool,
    /// Whether strengths and decays are one projection: for each key head the strengths of its value heads, then their decays.
    pub rates_fused: bool,
    /// Whether the value heads of a key head are as far apart as there are key heads; else they follow each other.
    pub tiled: bool,
}

/// A short causal convolution, then a scan over states with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// How states lie.
    pub kind: StateKind,
    /// Channels.
    pub inner: usize,
    /// States of a channel; elements of a key where there are some.
    pub states: usize,
    /// Positions that the convolution reads.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections into and out of the mixer have biases.
    pub bias: [bool; 2],
    /// The range that step sizes are held in.
    pub steps: [f32; 2],
}

impl StateSpace {
    /// Width of the row that step sizes are projected from; 0 where there is none.
    pub(crate) fn rank(&self) -> usize {
        match self.kind {
            StateKind::Channels { rank, .. } => rank,
            StateKind::Heads { .. } | StateKind::Delta { .. } => 0,
        }
    }

    /// Heads, or channels where each has a step size of its own.
    pub(crate) fn heads(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { heads, .. } | StateKind::Delta { heads, .. } => heads,
        }
    }

    /// Channels of the convolution.
    pub(crate) fn convolved(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { groups, .. } => self.inner + 2 * groups * self.states,
            StateKind::Delta { key_heads, .. } => self.inner + 2 * key_heads * self.states,
        }
    }

    /// Outputs of the first projection into the mixer.
    pub(crate) fn projected(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => 2 * self.inner,
            StateKind::Heads { heads, .. } => self.inner + self.convolved() + heads,
            StateKind::Delta { rows, .. } => match rows.fused {
                true => self.inner + self.convolved(),
                false => self.convolved(),
            },
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let apart = match self.kind {
            StateKind::Channels { .. } => None,
            StateKind::Heads { heads, groups, .. } => Some((heads, groups)),
            StateKind::Delta {
                heads, key_heads, ..
            } => Some((heads, key_heads)),
        };
        if let Some((heads, groups)) = apart {
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
