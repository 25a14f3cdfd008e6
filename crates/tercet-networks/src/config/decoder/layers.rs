//! The components of decoder layers.

/// The pairs of head elements that rotary embedding rotates together.
///
/// Both rotary layouts describe the same model if the rows of the Q and K weights are permuted
/// accordingly. GGUF files of the llama architecture store these rows permuted.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, RopeLayout};
/// assert_eq!(DecoderSpec::llama(dims).rope_layout, RopeLayout::Halves);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// Element `i` is paired with element `i + n_rot / 2` (GPT-NeoX, Hugging Face).
    Halves,
    /// Element `2 i` is paired with element `2 i + 1` (GPT-J, GGUF's llama).
    Pairs,
}

/// The type of a norm.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::NormKind};
/// assert_eq!(DecoderSpec::llama(dims).norm.kind, NormKind::Rms);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Divides by the root mean square (Zhang and Sennrich, "Root Mean Square Layer Normalization",
    /// 2019).
    Rms,
    /// Subtracts the mean and divides by the standard deviation (Ba and others, "Layer
    /// Normalization", 2016).
    Layer,
}

/// The norms of a model.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::{NormKind, NormSpec}};
/// let norm = NormSpec { kind: NormKind::Rms, eps: 1e-5, bias: false, one_plus: false };
/// assert_eq!(DecoderSpec::llama(dims).norm, norm);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// RMS norm or layer norm.
    pub kind: NormKind,
    /// The epsilon added to the mean square or the variance.
    pub eps: f32,
    /// Whether the norms have biases.
    pub bias: bool,
    /// Whether the gain is 1 plus the stored value (Gemma).
    pub one_plus: bool,
}

/// The placement of norms in a layer.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::NormPlacement};
/// assert_eq!(DecoderSpec::llama(dims).placement, NormPlacement::Before);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormPlacement {
    /// Pre-norm: before attention and before the feed-forward network.
    Before,
    /// Post-norm: on the output of attention and of the feed-forward network, before the residual
    /// addition.
    After,
    /// Before and after attention and the feed-forward network.
    Around,
}

/// The order of attention and the feed-forward network in a layer.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::ResidualOrder};
/// assert_eq!(DecoderSpec::llama(dims).residual, ResidualOrder::Serial);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResidualOrder {
    /// The feed-forward network reads the sum of `x` and the attention output.
    Serial,
    /// Attention and the feed-forward network read the same norm of `x`; both outputs are added to
    /// `x`.
    Parallel,
    /// Attention and the feed-forward network each read their own norm of `x`; both outputs are
    /// added to `x`.
    ParallelNorms,
}

/// Norms of queries and keys before the rotary embedding.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::QkNorm};
/// let mut spec = DecoderSpec::llama(dims);
/// spec.attention.qk_norm = Some(QkNorm::Heads);
/// assert_ne!(spec, DecoderSpec::llama(dims));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// A norm over each head, with one shared gain of `head_dim` elements.
    Heads,
    /// A norm over all heads together, with one gain per element.
    AllHeads,
}

/// The activation function of a feed-forward network.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, FeedForward, FfnActivation};
/// assert_eq!(EncoderSpec::bert(dims).feed_forward, FeedForward::Plain(FfnActivation::Gelu));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FfnActivation {
    /// SiLU: `x sigmoid(x)`.
    Silu,
    /// GELU with the error function: `x Phi(x)`.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// QuickGELU: `x sigmoid(1.702 x)` (Hendrycks and Gimpel, "Gaussian error linear units", 2016).
    GeluQuick,
    /// ReLU: `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// Squared ReLU: `max(x, 0)^2` (So and others, "Primer", 2021).
    ReluSquared,
    /// ReLU with an upper bound: `min(max(x, 0), 6)`.
    Relu6,
    /// The logistic function.
    Sigmoid,
    /// The identity.
    Identity,
}

/// The feed-forward network of a layer.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, FeedForward, FfnActivation};
/// assert_eq!(DecoderSpec::llama(dims).feed_forward, FeedForward::Gated(FfnActivation::Silu));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForward {
    /// Gated: `down(f(gate(x)) * up(x))` (Shazeer, "GLU Variants Improve Transformer", 2020).
    Gated(FfnActivation),
    /// Ungated: `down(f(up(x)))`.
    Plain(FfnActivation),
}

/// The sequence mixer of a layer: the operation that combines positions.
///
/// ```
/// use tercet_networks::config::{LayerSpec, Mixer};
/// assert_eq!(LayerSpec::FULL.mixer, Mixer::Attention);
/// assert_eq!(LayerSpec::STATES.mixer, Mixer::StateSpace);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// Causal self-attention.
    Attention,
    /// A state-space scan, described by the model's
    /// [`DecoderSpec::states`](crate::DecoderSpec::states).
    StateSpace,
    /// Attention and a scan in parallel on the same input; their outputs are added.
    Both,
    /// No mixer: the layer is only a feed-forward network.
    None,
}

impl Mixer {
    /// Whether the layer has attention.
    pub(crate) fn attends(self) -> bool {
        match self {
            Mixer::Attention | Mixer::Both => true,
            Mixer::StateSpace | Mixer::None => false,
        }
    }

    /// Whether the layer has a state-space scan.
    pub(crate) fn scans(self) -> bool {
        match self {
            Mixer::StateSpace | Mixer::Both => true,
            Mixer::Attention | Mixer::None => false,
        }
    }
}

/// The properties that may differ between layers.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::LayerSpec};
/// let windowed = LayerSpec { window: Some(64), ..LayerSpec::FULL };
/// let layers = vec![windowed, LayerSpec::FULL];
/// let spec = DecoderSpec { layers, ..DecoderSpec::llama(dims) };
/// assert_eq!((spec.attending_layers(), spec.has_states()), (2, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// The sequence mixer.
    pub mixer: Mixer,
    /// Whether the layer has a feed-forward network.
    pub feed_forward: bool,
    /// Sliding attention window: the number of keys a query attends to, including its own position;
    /// `None` for all previous positions. In a bidirectional model
    /// ([`DecoderSpec::is_bidirectional`](crate::DecoderSpec::is_bidirectional)) the window counts
    /// positions in each direction.
    pub window: Option<usize>,
    /// Index into the model's [`DecoderSpec::ropes`](crate::DecoderSpec::ropes) for queries and
    /// keys; `None` applies no rotary embedding.
    pub rope: Option<usize>,
    /// Whether the layer's feed-forward network is a mixture of experts.
    pub experts: bool,
}

impl LayerSpec {
    /// A layer with a state-space scan and without a feed-forward network.
    pub const STATES: LayerSpec = LayerSpec {
        mixer: Mixer::StateSpace,
        feed_forward: false,
        rope: None,
        ..LayerSpec::FULL
    };

    /// A layer with full causal attention and the first rotary embedding.
    pub const FULL: LayerSpec = LayerSpec {
        mixer: Mixer::Attention,
        feed_forward: true,
        window: None,
        rope: Some(0),
        experts: false,
    };
}

/// Multi-head latent attention (MLA; DeepSeek-AI, "DeepSeek-V2", 2024). Keys and values of all
/// heads are projected from one narrow latent row. All heads also share the rotated part of the
/// key.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::LatentAttention};
/// let (query_rank, rank, value_dim) = (None, 8, 16);
/// let latent = LatentAttention { query_rank, rank, value_dim, eps: 1e-6, split: false };
/// let mut spec = DecoderSpec::llama(dims);
/// spec.attention.latent = Some(latent);
/// assert_eq!(spec.attention.latent.map(|latent| latent.rank), Some(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Width of the latent row from which queries are projected; `None` if they are projected from
    /// the layer's input.
    pub query_rank: Option<usize>,
    /// Width of the latent row from which keys and values are projected.
    pub rank: usize,
    /// Size of a value head; query and key heads have the model's `head_dim`.
    pub value_dim: usize,
    /// The epsilon of the norms of the latent rows.
    pub eps: f32,
    /// Whether a file stores the key and the value projections separately, by head. The key
    /// projection then is `[head, inputs, outputs]`.
    pub split: bool,
}
