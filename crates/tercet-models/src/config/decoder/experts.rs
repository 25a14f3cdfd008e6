//! Experts in place of a feed-forward network.

use super::super::{ConfigError, ensure};

/// Experts in place of a feed-forward network (Shazeer and others, "Outrageously Large Neural Networks", 2017): each token
/// goes through those whose score is greatest, and results are added by it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// Through how many a token goes.
    pub used: usize,
    /// Width of one.
    pub ffn: usize,
    /// What is made of the projection that scores them.
    pub scores: Scores,
    /// Whether a stored number for each expert is added to the scores that choose, but not to those that weigh.
    pub choice_bias: bool,
    /// Which groups of experts a token may choose from.
    pub groups: Option<Groups>,
    /// Whether the scores of those that are used are divided by their sum.
    pub normalized: bool,
    /// The factor of these scores.
    pub scale: Option<f32>,
    /// Whether the projection that scores and those of experts have biases.
    pub bias: bool,
    /// Gates and projections up are bounded by this number, `(up + 1) gate sigmoid(1.702 gate)` in place of a product
    /// (the experts of gpt-oss).
    pub clamp: Option<f32>,
    /// How a folder has the projections of gates and up.
    pub stored: ExpertTensors,
    /// The width of the rows that experts read and write, which are projected from and to those of the model; its own where
    /// there is none. The shared one reads the model's.
    pub latent: Option<usize>,
    /// The one that all tokens go through, if there is one.
    pub shared: Option<Shared>,
}

impl Experts {
    /// What Mixtral and Qwen have: `used` of `count` by a softmax over all.
    pub fn new([count, used, ffn]: [usize; 3], normalized: bool) -> Experts {
        Experts {
            count,
            used,
            ffn,
            normalized,
            ..Experts::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Experts { count, used, .. } = *self;
        ensure(used <= count, || {
            format!("{used} of {count} experts cannot be used")
        })?;
        for (what, value) in [
            ("the factor of experts' scores", self.scale),
            ("the bound of experts' gates", self.clamp),
        ] {
            ensure(value.is_none_or(|x| x.is_finite() && x > 0.0), || {
                format!("{what} is {value:?}, it must be positive")
            })?;
        }
        let Some(groups) = self.groups else {
            return Ok(());
        };
        let size = count / groups.count.max(1);
        let sound = groups.count > 0
            && count.is_multiple_of(groups.count)
            && (1..=groups.count).contains(&groups.used)
            && (1..=size).contains(&groups.best)
            && used <= groups.used * size;
        ensure(sound, || {
            format!("{count} experts, of which {used} are used, cannot be in {groups:?}")
        })
    }
}

impl Shared {
    /// One of this width: no score, projections apart, no biases.
    pub fn new(ffn: usize) -> Shared {
        Shared {
            ffn,
            scored: false,
            fused: false,
            bias: false,
        }
    }
}

/// The expert that all tokens go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    /// Its width.
    pub ffn: usize,
    /// Whether its result is times the sigmoid of a projection.
    pub scored: bool,
    /// Whether a folder has gates and projections up as rows of one, the gates first.
    pub fused: bool,
    /// Whether its projections, and those into and out of the width that other experts read, have biases.
    pub bias: bool,
}

/// How a folder has the matrices of a layer's experts. GGUF files have three tensors, of all experts each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpertTensors {
    /// Three for each expert.
    #[default]
    Apart,
    /// Two of all experts: rows of gates and then of projections up, and those down.
    GateThenUp,
    /// Two of all experts, `[expert, inputs, outputs]`: columns of gates and of projections up take turns. In MXFP4 `[expert,
    /// outputs, blocks]`, a tensor of codes and one of scales each.
    TurnedPairs,
}

impl ExpertTensors {
    /// Whether gates and projections up are of one tensor.
    pub(crate) fn joins_gates(self) -> bool {
        match self {
            ExpertTensors::Apart => false,
            ExpertTensors::GateThenUp | ExpertTensors::TurnedPairs => true,
        }
    }
}

/// What scores of experts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scores {
    /// Probabilities by a softmax over all.
    #[default]
    Softmax,
    /// A sigmoid of each.
    Sigmoid,
}

/// Experts in groups of one size, of which a token takes the best (DeepSeek-AI, "DeepSeek-V2", 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// From how many a token may choose.
    pub used: usize,
    /// A group is as good as the sum of so many of its best scores.
    pub best: usize,
}
