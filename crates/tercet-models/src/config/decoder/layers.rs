//! What layers of decoders consist of.

/// Which elements of a head rotary embedding turns together.
///
/// The two orders give the same model with the rows of the Q and K weights permuted; GGUF files
/// of the llama architecture store them permuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// Element `i` with `i + n_rot / 2` (GPT-NeoX, Hugging Face).
    Halves,
    /// Element `2 i` with `2 i + 1` (GPT-J, GGUF's llama).
    Pairs,
}

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// The root of the mean square (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
    Rms,
    /// The standard deviation, after the mean is taken away (Ba and others, "Layer Normalization", 2016).
    Layer,
}

/// The norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What they divide by.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// Whether they have biases.
    pub bias: bool,
    /// Whether stored gains are what is added to 1.
    pub one_plus: bool,
}

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormPlacement {
    /// Before attention and before the feed-forward network.
    Before,
    /// After each of them, before their result is added.
    After,
    /// Before and after.
    Around,
}

/// How a layer's two halves follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residual {
    /// The feed-forward network reads the sum of `x` and attention.
    Serial,
    /// Both read the normed `x`, by one norm, and both results are added to `x`.
    Parallel,
    /// Both read `x`, each by a norm of its own, and both results are added to `x`.
    ParallelNorms,
}

/// Norms of queries and keys before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// Of each head, with one gain of `head_dim` elements for all.
    Heads,
    /// Of all heads together, with a gain for each element.
    Whole,
}

/// The nonlinearity of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x sigmoid(x)`.
    Silu,
    /// `x Phi(x)`, by the error function.
    Gelu,
    /// Its approximation by a hyperbolic tangent.
    GeluTanh,
    /// `x sigmoid(1.702 x)` (Hendrycks and Gimpel, "Gaussian error linear units", 2016).
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(x, 0)^2` (So and others, "Primer", 2021).
    ReluSquared,
}

/// A layer's feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForward {
    /// `down(f(gate(x)) up(x))` (Shazeer, "GLU Variants Improve Transformer", 2020).
    Gated(Activation),
    /// `down(f(up(x)))`.
    Plain(Activation),
}

/// What carries something from one position to the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// Attention to the positions before.
    Attention,
    /// A scan over states, of the model's [`DecoderSpec::states`](crate::DecoderSpec::states).
    StateSpace,
    /// Both, side by side over the same rows: their results are added.
    Both,
    /// Nothing: the layer is a feed-forward network.
    None,
}

impl Mixer {
    /// Whether positions attend to those before.
    pub(crate) fn attends(self) -> bool {
        match self {
            Mixer::Attention | Mixer::Both => true,
            Mixer::StateSpace | Mixer::None => false,
        }
    }

    /// Whether there is a scan over states.
    pub(crate) fn scans(self) -> bool {
        match self {
            Mixer::StateSpace | Mixer::Both => true,
            Mixer::Attention | Mixer::None => false,
        }
    }
}

/// What tells one layer from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// How positions know of each other.
    pub mixer: Mixer,
    /// Whether there is a feed-forward network.
    pub feed_forward: bool,
    /// Of how many keys, its own included, a query sees the last; all before it where there is none. In a model that sees both
    /// ways ([`DecoderSpec::bidirectional`](crate::DecoderSpec::bidirectional)) how many positions either way.
    pub window: Option<usize>,
    /// Which of the model's [`DecoderSpec::ropes`](crate::DecoderSpec::ropes) turns queries and keys; none leaves them as they are.
    pub rope: Option<usize>,
    /// Whether its feed-forward network is one of experts.
    pub experts: bool,
}

impl LayerSpec {
    /// A scan over states, and no feed-forward network.
    pub const STATES: LayerSpec = LayerSpec {
        mixer: Mixer::StateSpace,
        feed_forward: false,
        rope: None,
        ..LayerSpec::FULL
    };

    /// Full causal attention with the first rotary embedding.
    pub const FULL: LayerSpec = LayerSpec {
        mixer: Mixer::Attention,
        feed_forward: true,
        window: None,
        rope: Some(0),
        experts: false,
    };
}

/// Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): keys and values of all heads are projections of one narrow row, beside
/// which all heads share the rotated part of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Width of the row that queries are projected from; none where they are projected from the layer's own.
    pub query_rank: Option<usize>,
    /// Width of the row that keys and values are projected from.
    pub rank: usize,
    /// Elements of a head of the values; those of queries and keys are the model's.
    pub value_dim: usize,
    /// Added to the mean square by the norms of these rows.
    pub eps: f32,
    /// Whether a file has the projection of keys and that of values apart, by head, the former `[head, inputs, outputs]`.
    pub split: bool,
}
