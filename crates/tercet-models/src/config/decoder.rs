//! The decoder specification: what a layer of a decoder-only language model consists of, as data.
//!
//! One builder makes the graph of every family from a [`DecoderSpec`]; what tells families apart is here. A family is a
//! row of [`families::FAMILIES`]: the names that files have for it, what its layers consist of, and which fields of
//! `config.json` and keys of GGUF metadata it honours beyond the common ones. A field or a tensor that nobody honours is
//! refused.

mod experts;
mod factors;
mod families;
mod json;
pub(in crate::config) mod keys;
mod layers;
mod part;
mod parts;
mod rope;
mod states;
mod tensors;
mod wrapped;

use crate::gguf::Gguf;
use serde_json::{Map, Value};

use super::{ConfigError, Fields, ensure};
pub use experts::{ExpertTensors, Experts, Groups, Scores, Shared};
pub use factors::{Factors, QueryGrowth};
pub use families::DecoderFamily;
pub(crate) use families::of_gguf;
pub(super) use json::stretched;
pub use layers::{
    Activation, FeedForward, Latent, LayerSpec, Mixer, Norm, NormKind, NormPlacement, QkNorm,
    Residual, RopeLayout,
};
pub(crate) use part::{EXPERT, OUTPUT_MODULE, Part, tensor as tensor_name};
pub(crate) use parts::projections;
pub use rope::{Rope, RopeScaling};
pub use states::{DeltaRows, StateKind, StateNorm, StateSpace};
pub(super) use tensors::refuse;
pub(crate) use tensors::{DENSE_OF_GGUF, known_modules, refuse_unknown_modules};
pub use wrapped::Inside;
pub(crate) use wrapped::{is_decoder, is_wrapper, model_types};

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
    /// Latent attention in place of projections of queries, keys and values; its heads have parts that are not rotated,
    /// then `rope_dims` that are.
    pub latent: Option<Latent>,
    /// The scans of the layers that have some.
    pub states: Option<StateSpace>,
    /// Factors of projections.
    pub factors: Factors,
    /// What queries are times by their positions.
    pub query_growth: Option<QueryGrowth>,
    /// Whether what attention gives is times the sigmoid of a gate, which is projected with queries: of each head the query,
    /// then the gate.
    pub gated_attention: bool,
    /// Whether each head has a score that stands for no key: it takes a part of the weights and gives nothing.
    pub sinks: bool,
    /// Whether rows of a table, one for each position of the context, are added to embeddings.
    pub learned_positions: bool,
    /// Whether tokens see those after them, too: the model embeds texts and writes none. A layer's window then is how many
    /// positions either way a query sees.
    pub bidirectional: bool,
    /// Whether Q, K and V are rows of one projection.
    pub fused_qkv: bool,
    /// Whether the rows of that projection are, for the first key and value head, its queries, its key and its value, then
    /// those of the second, and so on; else those of all heads' Q, then K, then V.
    pub qkv_by_group: bool,
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
    /// Whether a folder's names lack what those of the family begin with: it was written without the head.
    pub bare_names: bool,
    /// What its names in a folder begin with, where it is a part of the folder's model.
    pub inside: Inside,
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
            latent: None,
            states: None,
            factors: Factors::ONES,
            query_growth: None,
            gated_attention: false,
            sinks: false,
            learned_positions: false,
            bidirectional: false,
            qkv_by_group: false,
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
            bare_names: false,
            inside: Inside::Nothing,
            output_is_lm_head: false,
            bos: None,
            eos: Vec::new(),
            family: DecoderFamily::LLAMA,
        }
    }

    /// Reads a Hugging Face `config.json` of any of the families, or of a model around one of them (`mistral3`), of which the
    /// texts' side is read.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        match json.get("model_type").and_then(Value::as_str) {
            Some(name) if is_wrapper(name) => wrapped::read(json),
            Some(_) | None => DecoderSpec::from_part(json, ""),
        }
    }

    /// Reads the same where it is a part of a larger configuration; `prefix` goes before names of fields in errors.
    pub(crate) fn from_part(
        json: &Map<String, Value>,
        prefix: &'static str,
    ) -> Result<Self, ConfigError> {
        let spec = json::read(&Fields::new(json, prefix))?;
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

    /// Takes from a folder's tensors what its names are: those of the output, and whether they lack what those of the family
    /// begin with.
    pub(crate) fn settle_names(&mut self, has: &dyn Fn(&str) -> bool) {
        wrapped::settle(self, has);
        self.output_is_lm_head = has("lm_head.weight");
        let embedding = Part::Embedding.module(self, 0);
        let bare = embedding.strip_prefix(self.family.get().prefix);
        self.bare_names =
            bare.is_some_and(|bare| bare != embedding && has(&part::tensor(bare, "weight")));
    }

    /// Whether layers remember what they read in a state, of which nothing can be taken back.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(|l| l.mixer.scans())
    }

    /// How many layers attend, each to a cache of its own.
    pub fn attending_layers(&self) -> usize {
        self.layers.iter().filter(|l| l.mixer.attends()).count()
    }

    /// The width of all queries.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The width of all keys, and of all values.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of a head of the values.
    pub(crate) fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
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
        if let Some(experts) = &self.experts {
            experts.check()?;
        }
        ensure(self.states.is_some() || !self.has_states(), || {
            "layers have states of which the sizes are not said".to_string()
        })?;
        if let Some(states) = &self.states {
            states.check()?;
        }
        if let Some(growth) = self.query_growth {
            positive("the growth of queries", growth.beta.into())?;
        }
        ensure(!self.learned_positions || self.ropes.is_empty(), || {
            "learned positions and a rotary embedding".to_string()
        })?;
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
