//! The decoder specification: the structure of a decoder-only language model, as data.
//!
//! One builder creates the graph of every model family from a [`DecoderSpec`]. A family is a row of
//! `families`. The row has the family's names in files, the structure of its layers,
//! and the `config.json` fields and GGUF keys that it reads in addition to the common ones. A field
//! or a tensor that is not read is an error.

mod experts;
mod families;
mod json;
pub(in crate::config) mod keys;
mod layers;
mod multipliers;
mod nested;
mod part;
mod parts;
mod rope;
mod rope_overrides;
pub mod rows;
mod spec_parts;
mod states;
mod tensors;

use serde_json::{Map, Value};
use tercet_files::gguf::Gguf;

use super::bounds::TensorBounds;
use super::{ConfigError, ConfigFields, ensure};
pub use experts::{ExpertGroups, ExpertTensors, Experts, RouterScoring, SharedExpert};
pub use families::DecoderFamily;
pub(crate) use families::gguf_names;
pub(super) use json::stretched;
pub use layers::{
    FeedForward, FfnActivation, LatentAttention, LayerSpec, Mixer, NormKind, NormPlacement,
    NormSpec, QkNorm, ResidualOrder, RopeLayout,
};
pub use multipliers::{AttentionTemperature, Multipliers};
pub use nested::NestedPrefix;
pub use nested::is_decoder;
pub(crate) use nested::{is_wrapper, model_types};
pub use part::{DecoderPart, EXPERT, OUTPUT_MODULE, tensor as tensor_name};
pub use parts::projections;
pub use rope::{RopeScaling, RopeSpec};
pub use rope_overrides::{RopeOverrides, RopeScalingKind};
pub use spec_parts::{
    AttentionDirection, AttentionSpec, DecoderBiases, DecoderScales, DecoderStorage, QkvRows,
    TokenPositions,
};
pub use states::{DeltaRows, SsmSpec, StateKind, StateNorm};
pub use tensors::DENSE_OF_GGUF;
pub(super) use tensors::reject_names;
pub(crate) use tensors::{known_modules, reject_unknown_modules};

/// The sizes of a decoder.
///
/// ```
/// use tercet_networks::{DecoderDims, DecoderSpec};
/// let dims = DecoderDims {
///     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
///     context: 128,
/// };
/// assert_eq!(DecoderSpec::llama(dims).layers.len(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Size of one attention head.
    pub head_dim: usize,
    /// Intermediate width of the feed-forward network.
    pub ffn: usize,
    /// Vocabulary size: rows of the embedding table.
    pub vocab: usize,
    /// Maximum context length of the training, in tokens.
    pub context: usize,
}

/// The specification of a decoder: everything that its weights do not determine.
///
/// ```
/// use tercet_networks::{DecoderSpec, RopeLayout};
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
/// odd.insert("hidden_act".into(), "mish".into());
/// let refused = DecoderSpec::from_json(&odd).unwrap_err().to_string();
/// assert!(refused.contains("`hidden_act`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Size of one attention head; `heads * head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Intermediate width of the feed-forward network.
    pub ffn: usize,
    /// Vocabulary size: rows of the embedding table.
    pub vocab: usize,
    /// Maximum context length of the training, in tokens.
    pub context: usize,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// The rotary embeddings, which layers refer to by index.
    pub ropes: Vec<RopeSpec>,
    /// Leading elements of a head that are rotated (even); the other elements pass through
    /// unchanged.
    pub rope_dims: usize,
    /// The element pairing of rotary embedding in the Q and K weights.
    pub rope_layout: RopeLayout,
    /// The norms of the layers and the final norm.
    pub norm: NormSpec,
    /// The placement of the norms in a layer.
    pub placement: NormPlacement,
    /// Whether attention and the feed-forward network run serially or in parallel.
    pub residual: ResidualOrder,
    /// Attention, for the layers that have it.
    pub attention: AttentionSpec,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// The mixture of experts, for the layers that have one.
    pub experts: Option<Experts>,
    /// The state-space scan, for the layers that have one.
    pub states: Option<SsmSpec>,
    /// Scale factors of the residual stream, of projections and of logits.
    pub scales: DecoderScales,
    /// How a token's position enters its embedding.
    pub positions: TokenPositions,
    /// Whether the output projection shares the embedding matrix.
    pub tied_embeddings: bool,
    /// The projections that have biases.
    pub biases: DecoderBiases,
    /// How files store the tensors.
    pub storage: DecoderStorage,
    /// The beginning-of-sequence (BOS) token.
    pub bos: Option<u32>,
    /// The end-of-sequence (EOS) tokens; may be empty.
    pub eos: Vec<u32>,
    /// The model family, which determines tensor names in files.
    pub family: DecoderFamily,
}

impl DecoderSpec {
    /// The llama family (Touvron and others, "LLaMA: Open and efficient foundation language
    /// models", 2023). Layers are pre-norm with RMS norms (epsilon 1e-5), SwiGLU and no biases.
    /// Rotary embedding covers whole heads with a base of 10,000. The output projection is not tied
    /// to the embedding.
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
            ropes: vec![RopeSpec::new(10_000.0)],
            rope_dims: head_dim,
            rope_layout: RopeLayout::Halves,
            norm: NormSpec {
                kind: NormKind::Rms,
                eps: 1e-5,
                bias: false,
                one_plus: false,
            },
            placement: NormPlacement::Before,
            residual: ResidualOrder::Serial,
            attention: AttentionSpec::default(),
            feed_forward: FeedForward::Gated(FfnActivation::Silu),
            experts: None,
            states: None,
            scales: DecoderScales::default(),
            positions: TokenPositions::Rotary,
            tied_embeddings: false,
            biases: DecoderBiases::default(),
            storage: DecoderStorage::default(),
            bos: None,
            eos: Vec::new(),
            family: DecoderFamily::LLAMA,
        }
    }

    /// Reads a Hugging Face `config.json` of a decoder family. If the model wraps a decoder
    /// (`mistral3`), reads this text decoder.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        match json.get("model_type").and_then(Value::as_str) {
            Some(name) if is_wrapper(name) => nested::read(json),
            Some(_) | None => DecoderSpec::from_part(json, ""),
        }
    }

    /// Reads a decoder's configuration inside a larger one; error messages put `prefix` before
    /// field names.
    pub(crate) fn from_part(
        json: &Map<String, Value>,
        prefix: &'static str,
    ) -> Result<Self, ConfigError> {
        let spec = json::read(ConfigFields::new(json, prefix))?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads the metadata of a GGUF file of a decoder family. Biases, fused projections and tied
    /// embeddings are detected from the file's tensors.
    ///
    /// # Errors
    /// [`ConfigError`]: a key is missing, wrong, unsupported, or unknown, or a tensor is.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let spec = keys::read(gguf)?;
        spec.check()?;
        spec.check_bounds(&TensorBounds::from_gguf(gguf))?;
        tensors::reject_unknown_tensors(&spec, gguf)?;
        Ok(spec)
    }

    /// Detects the naming scheme from the folder's tensors: the name of the output projection, and
    /// whether the family's prefix is missing.
    pub(crate) fn settle_names(&mut self, has: &dyn Fn(&str) -> bool) {
        nested::settle(self, has);
        self.storage.output_is_lm_head = has("lm_head.weight");
        let embedding = DecoderPart::Embedding.module(self, 0);
        let bare = embedding.strip_prefix(self.family.get().prefix);
        self.storage.bare_names =
            bare.is_some_and(|bare| bare != embedding && has(&part::tensor(bare, "weight")));
        self.settle_experts(has);
    }

    /// Detects whether the folder has separate tensors for each expert. Newer versions of
    /// transformers write such tensors for families whose first folders have one tensor for all
    /// experts.
    fn settle_experts(&mut self, has: &dyn Fn(&str) -> bool) {
        let Some(first) = self.layers.iter().position(|layer| layer.experts) else {
            return;
        };
        if self
            .experts
            .is_none_or(|experts| experts.stored != ExpertTensors::GateThenUp)
        {
            return;
        }
        let mut apart = self.clone();
        if let Some(experts) = &mut apart.experts {
            experts.stored = ExpertTensors::Separate;
        }
        let gate = DecoderPart::ExpertGate
            .module(&apart, first)
            .replace(part::EXPERT, "0");
        if has(&part::tensor(&gate, "weight")) {
            *self = apart;
        }
    }

    /// For rotary embeddings with LongRoPE, the longest text for which the short divisors are used,
    /// in tokens.
    pub fn longrope_limit(&self) -> Option<usize> {
        self.ropes.iter().find_map(|rope| match rope.scaling {
            RopeScaling::LongRope { original, .. } => Some(original),
            _ => None,
        })
    }

    /// The specification with the divisors of LongRoPE that a text of this length selects, for any
    /// context length.
    pub(crate) fn for_text_length(mut self, tokens: usize) -> DecoderSpec {
        for rope in &mut self.ropes {
            if let RopeScaling::LongRope {
                short,
                long,
                original,
                ..
            } = &mut rope.scaling
            {
                match tokens > *original {
                    true => short.clone_from(long),
                    false => long.clone_from(short),
                }
            }
        }
        self
    }

    /// Whether layers have a recurrent state, which cannot be rolled back to an earlier position.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(|l| l.mixer.scans())
    }

    /// Whether attention is bidirectional: the model computes text embeddings and does not generate.
    pub fn is_bidirectional(&self) -> bool {
        self.attention.direction == AttentionDirection::Bidirectional
    }

    /// Whether a table of learned embeddings is added to token embeddings, one row per position of the
    /// context.
    pub fn has_learned_positions(&self) -> bool {
        self.positions == TokenPositions::Learned
    }

    /// Number of layers with attention, each of which has a KV cache.
    pub fn attending_layers(&self) -> usize {
        self.layers.iter().filter(|l| l.mixer.attends()).count()
    }

    /// Width of the queries of all heads.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys of all heads, and of the values.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Size of a value head.
    pub(crate) fn value_dim(&self) -> usize {
        self.attention
            .latent
            .map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// Sets an attention window of `window` keys on the layers for which `windowed(layer)` is true.
    fn set_windows(&mut self, window: usize, windowed: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.window = windowed(i).then_some(window);
        }
    }

    /// Sets the mixture of experts on the layers for which `sparse(layer)` is true.
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
                    "rotary embedding covers {} elements; expected an even number, at most the \
                     head size {}",
                    self.rope_dims, self.head_dim
                )
            },
        )?;
        for rope in &self.ropes {
            rope.check(self.rope_dims)?;
        }
        let positive = |what: &str, value: f64| {
            ensure(value.is_finite() && value > 0.0, || {
                format!("{what} is {value}; expected a positive number")
            })
        };
        positive("the epsilon of norms", self.norm.eps.into())?;
        for (what, value) in [
            ("the scale of attention", self.attention.scale),
            ("the soft cap of attention", self.attention.softcap),
            ("the soft cap of logits", self.scales.logit_softcap),
            ("the scale of logits", Some(self.scales.logits.into())),
            (
                "the scale of embeddings",
                Some(self.scales.embedding.into()),
            ),
            ("the scale of residuals", Some(self.scales.residual.into())),
        ] {
            value.map_or(Ok(()), |value| positive(what, value))?;
        }
        if let Some(experts) = &self.experts {
            experts.check()?;
        }
        ensure(self.states.is_some() || !self.has_states(), || {
            "layers have state-space scans, but the sizes of the scans are missing".to_string()
        })?;
        if let Some(states) = &self.states {
            states.check()?;
        }
        if let Some(growth) = self.attention.temperature {
            positive("the query scale", growth.beta.into())?;
        }
        ensure(
            !self.has_learned_positions() || self.ropes.is_empty(),
            || "the model has both learned positions and a rotary embedding".to_string(),
        )?;
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

/// The head size: as specified, or `hidden / heads`.
fn derived_head_dim(
    given: Option<usize>,
    hidden: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = given {
        return Ok(head_dim);
    }
    ensure(hidden.is_multiple_of(heads), || {
        format!(
            "a width of {hidden} is not a multiple of {heads} heads, and the head size is \
             missing"
        )
    })?;
    Ok(hidden / heads)
}
