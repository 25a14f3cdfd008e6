//! State-space scans, which replace attention in state-space models.

use super::super::{ConfigError, ensure};

/// The variant of a state-space scan.
///
/// ```
/// use tercet_networks::config::{StateKind, StateNorm};
/// let kind = StateKind::Heads { heads: 8, groups: 1, eps: 1e-5, norm: StateNorm::AfterGate };
/// assert!(matches!(kind, StateKind::Heads { heads: 8, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateKind {
    /// Each channel has a separate step size and decays (Gu and Dao, "Mamba", 2023).
    Channels {
        /// Width of the row from which step sizes are projected.
        rank: usize,
        /// If set, the step-size row, `B` and `C` are RMS-normalized without a gain, with this
        /// epsilon.
        normed: Option<f32>,
    },
    /// The channels of a head share step size and decay (Mamba-2; Dao and Gu, "Transformers are
    /// SSMs", 2024).
    Heads {
        /// Number of heads.
        heads: usize,
        /// Number of groups of consecutive heads. The heads of a group share `B`, `C` and a norm.
        groups: usize,
        /// The epsilon of the norm.
        eps: f32,
        /// The placement of the norm.
        norm: StateNorm,
    },
    /// Gated delta rule (Yang and others, "Gated Delta Networks", 2024). Several value heads may
    /// share a key and a query head. Each head is normalized before its gate.
    Delta {
        /// Number of value heads.
        heads: usize,
        /// Number of query and key heads; divides `heads`.
        key_heads: usize,
        /// The epsilon of the per-head norm.
        eps: f32,
        /// The row layout of the projections.
        rows: DeltaRows,
    },
}

/// The placement of the norm in a multi-head scan.
///
/// ```
/// use tercet_networks::config::{StateKind, StateNorm};
/// let kind = StateKind::Heads { heads: 8, groups: 1, eps: 1e-5, norm: StateNorm::BeforeGate };
/// assert!(matches!(kind, StateKind::Heads { norm: StateNorm::BeforeGate, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateNorm {
    /// No norm.
    None,
    /// The norm follows the gate.
    AfterGate,
    /// The norm precedes the gate.
    BeforeGate,
}

/// The row layout of the projections of a gated delta rule.
///
/// ```
/// use tercet_networks::config::{DeltaRows, StateKind};
/// let rows = DeltaRows { fused: true, rates_fused: true, tiled: false };
/// let kind = StateKind::Delta { heads: 4, key_heads: 2, eps: 1e-6, rows };
/// assert!(matches!(kind, StateKind::Delta { rows: DeltaRows { fused: true, .. }, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaRows {
    /// Whether query, key, value and gate rows form one projection, grouped by key head. Otherwise
    /// all queries come first, then all keys, then all values, and the gates have a separate
    /// projection.
    pub fused: bool,
    /// Whether strengths and decays form one projection. For each key head, this projection has the
    /// strengths of its value heads, then their decays.
    pub rates_fused: bool,
    /// Whether the value heads of a key head are strided by the number of key heads; otherwise they
    /// are consecutive.
    pub tiled: bool,
}

/// A mixer with a short causal convolution and a gated state-space scan.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::config::{LayerSpec, SsmSpec, StateKind};
/// use tercet_networks::DecoderSpec;
/// let kind = StateKind::Channels { rank: 4, normed: None };
/// let (conv_bias, bias, steps) = (true, [false; 2], [0.0, f32::INFINITY]);
/// let states = SsmSpec { kind, inner: 128, states: 16, kernel: 4, conv_bias, bias, steps };
/// let (layers, states) = (vec![LayerSpec::STATES; 2], Some(states));
/// assert!(DecoderSpec { layers, states, ..DecoderSpec::llama(dims) }.has_states());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmSpec {
    /// The variant of the scan.
    pub kind: StateKind,
    /// Number of channels.
    pub inner: usize,
    /// Number of states per channel; the size of a key head for a delta rule.
    pub states: usize,
    /// Kernel size of the convolution, in positions.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the input and the output projection of the mixer have biases.
    pub bias: [bool; 2],
    /// The range to which step sizes are clamped.
    pub steps: [f32; 2],
}

impl SsmSpec {
    /// Width of the row from which step sizes are projected; 0 for variants without one.
    pub(crate) fn rank(&self) -> usize {
        match self.kind {
            StateKind::Channels { rank, .. } => rank,
            StateKind::Heads { .. } | StateKind::Delta { .. } => 0,
        }
    }

    /// Number of heads; for per-channel step sizes, the number of channels.
    pub(crate) fn heads(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { heads, .. } | StateKind::Delta { heads, .. } => heads,
        }
    }

    /// Number of channels of the convolution.
    pub(crate) fn convolved(&self) -> usize {
        match self.kind {
            StateKind::Channels { .. } => self.inner,
            StateKind::Heads { groups, .. } => self.inner + 2 * groups * self.states,
            StateKind::Delta { key_heads, .. } => self.inner + 2 * key_heads * self.states,
        }
    }

    /// Output width of the mixer's first projection.
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
                    "{} channels are not a multiple of {heads} heads",
                    self.inner
                )
            })?;
            ensure(heads.is_multiple_of(groups), || {
                format!("{heads} heads are not a multiple of {groups} groups")
            })?;
        }
        let [least, most] = self.steps;
        ensure(least >= 0.0 && least <= most, || {
            format!("invalid range of step sizes: {least} to {most}")
        })
    }
}
