//! The decoder specification: what a layer of a decoder-only language model consists of, as data.
//!
//! One builder makes the graph of every family from a [`DecoderSpec`]; what tells families apart is here. A family is a
//! row of [`families::FAMILIES`]: the names that files have for it, what its layers consist of, and which fields of
//! `config.json` and keys of GGUF metadata it honours beyond the common ones. A field or a tensor that nobody honours is
//! refused.

mod families;
mod json;
mod keys;
mod part;
mod rope;
mod tensors;

use crate::gguf::Gguf;
use serde_json::{Map, Value};

use super::{ConfigError, Fields, ensure};
pub use families::DecoderFamily;
pub(crate) use families::{model_types, of_gguf, of_model_type};
pub(super) use json::stretched;
pub(crate) use part::{EXPERT, OUTPUT_MODULE, Part, projections};
pub use rope::{Rope, RopeScaling};
pub(super) use tensors::refuse;
pub(crate) use tensors::refuse_unknown_modules;

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
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
}

/// A layer's feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForward {
    /// `down(f(gate(x)) up(x))` (Shazeer, "GLU Variants Improve Transformer", 2020).
    Gated(Activation),
    /// `down(f(up(x)))`.
    Plain(Activation),
}

/// What tells one layer from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// Of how many keys, its own included, a query sees the last; all before it where there is none.
    pub window: Option<usize>,
    /// Which of the model's [`DecoderSpec::ropes`] turns queries and keys; none leaves them as they are.
    pub rope: Option<usize>,
    /// Whether its feed-forward network is one of experts.
    pub experts: bool,
}

/// Experts in place of a feed-forward network (Shazeer and others, "Outrageously Large Neural Networks", 2017): each token
/// goes through those whose probability, by a softmax over all, is greatest, and results are added by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// Through how many a token goes.
    pub used: usize,
    /// Width of one.
    pub ffn: usize,
    /// Whether the probabilities of those that are used are divided by their sum.
    pub normalized: bool,
    /// Width of the one that all tokens go through, if there is one; its result is times the sigmoid of a projection.
    pub shared: Option<usize>,
}

impl LayerSpec {
    /// Full causal attention with the first rotary embedding.
    pub const FULL: LayerSpec = LayerSpec {
        window: None,
        rope: Some(0),
        experts: false,
    };
}

/// The sizes of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
}

/// Everything that the weights of a decoder do not say themselves.
///
/// ```
/// use tercet_models::{DecoderSpec, RopeLayout};
///
/// let json = r#"{
///     "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
///     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
///     "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
///     "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": [2, 3]
/// }"#;
/// let json = serde_json::from_str(json)?;
/// let spec = DecoderSpec::from_json(&json)?;
/// assert_eq!((spec.head_dim, spec.rope_layout), (16, RopeLayout::Halves));
///
/// let mut odd = json.clone();
/// odd.insert("residual_multiplier".into(), 0.22.into());
/// let refused = DecoderSpec::from_json(&odd).unwrap_err().to_string();
/// assert!(refused.contains("`residual_multiplier`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// The rotary embeddings that layers choose from.
    pub ropes: Vec<Rope>,
    /// Leading elements of a head that are rotated (even); the rest passes through.
    pub rope_dims: usize,
    /// The order of the rotated elements in the Q and K weights.
    pub rope_layout: RopeLayout,
    /// The norms of layers and of the end.
    pub norm: Norm,
    /// Where they stand in a layer.
    pub placement: NormPlacement,
    /// How attention and feed-forward network follow each other.
    pub residual: Residual,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// The experts of the layers that have some.
    pub experts: Option<Experts>,
    /// Whether Q, K and V are rows of one projection.
    pub fused_qkv: bool,
    /// Whether the rows of that projection are Q, K and V of the first head, then of the second, and so on; else those
    /// of all heads' Q, then K, then V. Such a model has as many key and value heads as query heads.
    pub qkv_by_head: bool,
    /// Whether gate and up are rows of one projection, the gate first.
    pub fused_gate_up: bool,
    /// The factor of the scores; `head_dim^-0.5` where there is none.
    pub attention_scale: Option<f64>,
    /// Scores become `c tanh(score / c)`.
    pub attention_softcap: Option<f64>,
    /// Logits become `c tanh(logit / c)`.
    pub logit_softcap: Option<f64>,
    /// The factor of embeddings.
    pub embedding_scale: f32,
    /// The factor of what a half of a layer adds to the residual stream.
    pub residual_scale: f32,
    /// The factor of logits.
    pub logit_scale: f32,
    /// Whether the output projection is the embedding.
    pub tied_embeddings: bool,
    /// Whether the Q, K and V projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Whether the output projection has a bias.
    pub head_bias: bool,
    /// Whether a folder calls the output `lm_head` where the family of old had a name of its own.
    pub output_is_lm_head: bool,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end one; may be empty.
    pub eos: Vec<u32>,
    /// The family, which says what files call the tensors.
    pub family: DecoderFamily,
}

impl DecoderSpec {
    /// The llama family (Touvron and others, "LLaMA: Open and efficient foundation language models", 2023): RMS norms
    /// with an epsilon of 1e-5 before each half, rotary embedding of whole heads with a base of 10,000, SwiGLU, no
    /// biases, an output projection of its own.
    pub fn llama(dims: DecoderDims) -> DecoderSpec {
        let DecoderDims {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            context,
        } = dims;
        DecoderSpec {
            hidden,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            context,
            layers: vec![LayerSpec::FULL; layers],
            ropes: vec![Rope::new(10_000.0)],
            rope_dims: head_dim,
            rope_layout: RopeLayout::Halves,
            norm: Norm {
                kind: NormKind::Rms,
                eps: 1e-5,
                bias: false,
                one_plus: false,
            },
            placement: NormPlacement::Before,
            residual: Residual::Serial,
            qk_norm: None,
            feed_forward: FeedForward::Gated(Activation::Silu),
            experts: None,
            fused_qkv: false,
            qkv_by_head: false,
            fused_gate_up: false,
            attention_scale: None,
            attention_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            tied_embeddings: false,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            head_bias: false,
            output_is_lm_head: false,
            bos: None,
            eos: Vec::new(),
            family: DecoderFamily::LLAMA,
        }
    }

    /// Reads a Hugging Face `config.json` of any of the families.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(json, "");
        let spec = json::read(&fields)?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads the metadata of a GGUF file of any of the families; biases, fused projections and tied embeddings are seen
    /// from its tensors.
    ///
    /// # Errors
    /// [`ConfigError`]: a key is missing, wrong, unsupported, or unknown, or a tensor is.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let spec = keys::read(gguf)?;
        spec.check()?;
        tensors::refuse_unknown(&spec, gguf)?;
        Ok(spec)
    }

    /// The width of all queries.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The width of all keys, and of all values.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Every layer sees the last `window` keys where `windowed` says so for its number.
    fn set_windows(&mut self, window: usize, windowed: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.window = windowed(i).then_some(window);
        }
    }

    /// Layers have experts where `sparse` says so for their number.
    fn set_experts(&mut self, experts: Experts, sparse: impl Fn(usize) -> bool) {
        self.experts = Some(experts);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.experts = sparse(i);
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        ensure(self.heads.is_multiple_of(self.kv_heads), || {
            format!(
                "{} query heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            )
        })?;
        ensure(!self.qkv_by_head || self.heads == self.kv_heads, || {
            format!(
                "a fused projection by heads needs as many key/value heads as query heads, not {} for {}",
                self.kv_heads, self.heads
            )
        })?;
        ensure(
            self.rope_dims.is_multiple_of(2) && self.rope_dims <= self.head_dim,
            || {
                format!(
                    "rotary embedding of {} elements needs an even number, at most the head's {}",
                    self.rope_dims, self.head_dim
                )
            },
        )?;
        for rope in &self.ropes {
            rope.check(self.rope_dims)?;
        }
        let positive = |what: &str, value: f64| {
            ensure(value.is_finite() && value > 0.0, || {
                format!("{what} is {value}, it must be positive")
            })
        };
        positive("the epsilon of norms", self.norm.eps.into())?;
        for (what, value) in [
            ("the scale of attention", self.attention_scale),
            ("the soft cap of attention", self.attention_softcap),
            ("the soft cap of logits", self.logit_softcap),
            ("the scale of logits", Some(self.logit_scale.into())),
            ("the scale of embeddings", Some(self.embedding_scale.into())),
            ("the scale of residuals", Some(self.residual_scale.into())),
        ] {
            value.map_or(Ok(()), |value| positive(what, value))?;
        }
        if let Some(Experts { count, used, .. }) = self.experts {
            ensure(used <= count, || {
                format!("{used} of {count} experts cannot be used")
            })?;
        }
        let beyond = self
            .bos
            .iter()
            .chain(&self.eos)
            .find(|id| **id as usize >= self.vocab);
        ensure(beyond.is_none(), || {
            format!(
                "the special token {} is beyond the vocabulary of {}",
                beyond.copied().unwrap_or_default(),
                self.vocab
            )
        })
    }
}

/// The size of a head that is given, or that heads of the whole width have.
fn derived_head_dim(
    given: Option<usize>,
    hidden: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = given {
        return Ok(head_dim);
    }
    ensure(hidden.is_multiple_of(heads), || {
        format!("a width of {hidden} is not a multiple of {heads} heads, and no head size is given")
    })?;
    Ok(hidden / heads)
}
