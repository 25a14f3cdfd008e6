//! Mixture-of-experts layers in place of a feed-forward network.

use super::super::{ConfigError, ensure};

/// A mixture-of-experts layer in place of a feed-forward network (Shazeer and others, "Outrageously
/// Large Neural Networks", 2017). Each token is routed to the experts with the highest router
/// scores; the layer returns the sum of their outputs, weighted by score.
///
/// ```
/// use tercet_networks::config::Experts;
/// let experts = Experts::new([8, 2, 512], true);
/// assert_eq!((experts.count, experts.used, experts.shared), (8, 2, None));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that each token is routed to.
    pub used: usize,
    /// Intermediate width of one expert.
    pub ffn: usize,
    /// The function that turns router logits into scores.
    pub scores: RouterScoring,
    /// Whether a stored bias per expert is added to the scores for the selection of experts. The
    /// weights of the sum do not include it.
    pub router_bias: bool,
    /// Groups that limit the experts a token may be routed to.
    pub groups: Option<ExpertGroups>,
    /// Whether the scores of the selected experts are divided by their sum.
    pub normalized: bool,
    /// A factor on the scores of the selected experts.
    pub scale: Option<f32>,
    /// Whether the router and the experts' projections have biases.
    pub bias: bool,
    /// The limit of the gate and up activations for experts of gpt-oss. The experts of gpt-oss
    /// compute `(up + 1) gate sigmoid(1.702 gate)` instead of a plain gated product.
    pub clamp: Option<f32>,
    /// The layout of the gate and up projections in a folder.
    pub stored: ExpertTensors,
    /// Width of the experts' inputs and outputs if they are projected from and to the model's
    /// width; `None` if the experts use the model's width directly. The shared expert always reads
    /// the model's width.
    pub latent: Option<usize>,
    /// The shared expert, which processes every token, if there is one.
    pub shared: Option<SharedExpert>,
}

impl Experts {
    /// The experts of Mixtral and Qwen: softmax over all `count` router logits, of which the best
    /// `used` are selected.
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
            format!("cannot route tokens to {used} of {count} experts")
        })?;
        for (what, value) in [
            ("the scale of expert scores", self.scale),
            ("the clamp of expert gates", self.clamp),
        ] {
            ensure(value.is_none_or(|x| x.is_finite() && x > 0.0), || {
                format!("{what} is {value:?}; expected a positive number")
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
            format!("{count} experts with {used} per token cannot be split into {groups:?}")
        })
    }
}

impl SharedExpert {
    /// A shared expert of width `ffn`, without a score, with separate projections and without
    /// biases.
    pub fn new(ffn: usize) -> SharedExpert {
        SharedExpert {
            ffn,
            scored: false,
            fused: false,
            bias: false,
        }
    }
}

/// The shared expert, which processes every token.
///
/// ```
/// use tercet_networks::config::{Experts, SharedExpert};
/// let shared = Some(SharedExpert::new(256));
/// let experts = Experts { shared, ..Experts::new([8, 2, 512], true) };
/// assert_eq!(experts.shared.map(|shared| shared.ffn), Some(256));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedExpert {
    /// Intermediate width of the shared expert.
    pub ffn: usize,
    /// Whether the shared expert's output is multiplied by the sigmoid of a projection of its
    /// input.
    pub scored: bool,
    /// Whether a folder fuses gate and up projections into one tensor, gate rows first.
    pub fused: bool,
    /// Whether the shared expert's projections have biases. The flag also applies to the
    /// projections into and out of the routed experts' latent width.
    pub bias: bool,
}

/// The layout of expert matrices in a folder. GGUF files have three tensors, each with the matrices
/// of all experts.
///
/// ```
/// use tercet_networks::config::{ExpertTensors, Experts};
/// let stored = ExpertTensors::GateThenUp;
/// let experts = Experts { stored, ..Experts::new([8, 2, 512], true) };
/// assert_ne!(experts.stored, ExpertTensors::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpertTensors {
    /// Three tensors per expert: gate, up and down.
    #[default]
    Separate,
    /// Two tensors for all experts: gate rows followed by up rows, and the down projections.
    GateThenUp,
    /// Two tensors for all experts, `[expert, inputs, outputs]`, with gate and up columns
    /// interleaved. In MXFP4, each of these tensors is stored as a tensor of quantized values and
    /// one of scales, `[expert, outputs, blocks]`.
    TransposedPairs,
}

impl ExpertTensors {
    /// Whether gate and up projections share one tensor.
    pub(crate) fn joins_gates(self) -> bool {
        match self {
            ExpertTensors::Separate => false,
            ExpertTensors::GateThenUp | ExpertTensors::TransposedPairs => true,
        }
    }
}

/// The function from router logits to expert scores.
///
/// ```
/// use tercet_networks::config::{Experts, RouterScoring};
/// assert_eq!(Experts::new([8, 2, 512], true).scores, RouterScoring::Softmax);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouterScoring {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
}

/// Group-limited routing: experts are split into groups of equal size, and a token selects experts
/// only from its best groups (DeepSeek-AI, "DeepSeek-V2", 2024).
///
/// ```
/// use tercet_networks::config::{ExpertGroups, Experts};
/// let groups = Some(ExpertGroups { count: 4, used: 2, best: 2 });
/// let experts = Experts { groups, ..Experts::new([64, 6, 512], false) };
/// assert_eq!(experts.groups, groups);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token may select experts from.
    pub used: usize,
    /// A group's score is the sum of its `best` highest expert scores.
    pub best: usize,
}
