//! The tensors of a decoder: their set, their names in files, and their shapes.

use super::{DecoderSpec, QkNorm, SsmSpec, StateKind};
use crate::config::decoder::rows::ProjectionRowOrder;
use crate::weights::Weights;

/// The parts of a model, each with a tensor name in each file format.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::DecoderSpec;
/// use tercet_networks::config::decoder::DecoderPart;
/// let spec = DecoderSpec::llama(dims);
/// assert_eq!(DecoderPart::Key.module(&spec, 1), "model.layers.1.self_attn.k_proj");
/// assert_eq!(DecoderPart::Key.gguf(&spec, 1), "blk.1.attn_k");
/// assert_eq!(DecoderPart::Key.shape(&spec), [32, 64]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the other variants are named as the field names the projections and norms"
)]
pub enum DecoderPart {
    Embedding,
    /// The table of learned position embeddings.
    Positions,
    AttentionNorm,
    Query,
    Key,
    Value,
    /// The fused query, key and value projection.
    Qkv,
    QueryNorm,
    KeyNorm,
    /// The attention sinks: one score per head.
    Sinks,
    /// Latent attention: the projection to the query latent row, and its norm.
    QueryRow,
    QueryRowNorm,
    /// Latent attention: the projection to the key/value latent row and the rotated part of keys.
    /// The next two parts are the norm of the latent row and the projection from it.
    KvRow,
    KvRowNorm,
    Kv,
    /// The key and the value part of the projection from the latent row, stored separately.
    KvKeys,
    KvValues,
    AttentionOutput,
    AttentionPostNorm,
    FfnNorm,
    Gate,
    Up,
    /// The fused gate and up projection.
    GateUp,
    Down,
    /// The projections into and out of the experts' latent width.
    ExpertsIn,
    ExpertsOut,
    /// The router's projection.
    Router,
    /// The bias that is added to router scores for selection only.
    RouterBias,
    ExpertGate,
    ExpertUp,
    /// The fused gate and up projection of the experts.
    ExpertGateUp,
    ExpertDown,
    /// The gate of the shared expert.
    SharedGate,
    SharedUp,
    /// The fused gate and up projection of the shared expert.
    SharedGateUp,
    SharedDown,
    SharedScore,
    FfnPostNorm,
    /// The input projection of a state-space scan: gate, convolution input, and step sizes of
    /// heads. For a delta rule: the convolution input, and the gate if it is fused.
    StatesIn,
    /// Delta rule: the gate projection.
    StatesGate,
    /// Delta rule: write strengths and decays, as one projection or as two.
    StatesRates,
    StatesStrength,
    StatesForget,
    /// The short causal convolution.
    StatesConv,
    /// Per-channel scan (Mamba): the projection to the step-size row and to the input and output
    /// matrices `B` and `C`.
    StatesRow,
    /// Per-channel scan (Mamba): the projection from the step-size row to step sizes.
    StatesStep,
    /// Multi-head scan (Mamba-2): the bias of step sizes.
    StatesStepBias,
    /// The logarithms of the negated decay rates.
    StatesDecay,
    /// The skip connection around the states (`D`).
    StatesSkip,
    StatesNorm,
    StatesOut,
    FinalNorm,
    Output,
}

/// Placeholder for the expert's number in tensor names of folders.
pub const EXPERT: &str = "[]";

/// The suffix that marks a complete tensor name: only `_bias` may be appended to it.
pub(crate) const WHOLE: char = '=';

/// The tensor name of a part's `weight` or `bias`.
#[must_use]
pub fn tensor(base: &str, suffix: &str) -> String {
    match (base.strip_suffix(WHOLE), suffix) {
        (Some(name), "weight") => name.to_string(),
        (Some(name), _) => format!("{name}_{suffix}"),
        (None, _) => format!("{base}.{suffix}"),
    }
}

/// The folder name of the output projection.
pub const OUTPUT_MODULE: &str = "lm_head";

/// The tensor names of a family's folders that differ from llama's.
pub(crate) type DecoderPartNames = &'static [(DecoderPart, &'static str)];

impl DecoderPart {
    /// The module names without `.weight`: in a Hugging Face folder of llama, and in a GGUF file.
    /// `{}` stands for the layer and `[]` for the expert.
    // Long: a table with one row per part.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            DecoderPart::Embedding => ("model.embed_tokens", "token_embd"),
            DecoderPart::Positions => ("model.embed_positions", "position_embd"),
            DecoderPart::AttentionNorm => ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
            DecoderPart::Query => ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
            DecoderPart::Key => ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
            DecoderPart::Value => ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
            DecoderPart::Qkv => ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
            DecoderPart::QueryNorm => ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
            DecoderPart::KeyNorm => ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
            DecoderPart::Sinks => ("model.layers.{}.self_attn.sinks=", "blk.{}.attn_sinks"),
            DecoderPart::QueryRow => ("model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"),
            DecoderPart::QueryRowNorm => (
                "model.layers.{}.self_attn.q_a_layernorm",
                "blk.{}.attn_q_a_norm",
            ),
            DecoderPart::KvRow => (
                "model.layers.{}.self_attn.kv_a_proj_with_mqa",
                "blk.{}.attn_kv_a_mqa",
            ),
            DecoderPart::KvRowNorm => (
                "model.layers.{}.self_attn.kv_a_layernorm",
                "blk.{}.attn_kv_a_norm",
            ),
            DecoderPart::Kv => ("model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"),
            DecoderPart::KvKeys => ("model.layers.{}.self_attn.k_b_proj", "blk.{}.attn_k_b"),
            DecoderPart::KvValues => ("model.layers.{}.self_attn.v_b_proj", "blk.{}.attn_v_b"),
            DecoderPart::AttentionOutput => {
                ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output")
            }
            DecoderPart::AttentionPostNorm => (
                "model.layers.{}.post_attention_layernorm",
                "blk.{}.post_attention_norm",
            ),
            DecoderPart::FfnNorm => (
                "model.layers.{}.post_attention_layernorm",
                "blk.{}.ffn_norm",
            ),
            DecoderPart::Gate => ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
            DecoderPart::Up => ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
            DecoderPart::GateUp => ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
            DecoderPart::Down => ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
            DecoderPart::ExpertsIn => (
                "model.layers.{}.mlp.fc1_latent_proj",
                "blk.{}.ffn_latent_down",
            ),
            DecoderPart::ExpertsOut => (
                "model.layers.{}.mlp.fc2_latent_proj",
                "blk.{}.ffn_latent_up",
            ),
            DecoderPart::Router => ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
            DecoderPart::RouterBias => (
                "model.layers.{}.mlp.gate.e_score_correction_bias=",
                "blk.{}.exp_probs_b.bias=",
            ),
            DecoderPart::ExpertGateUp => (
                "model.layers.{}.mlp.experts.gate_up_proj=",
                "blk.{}.ffn_gate_up_exps",
            ),
            DecoderPart::SharedGateUp => (
                "model.layers.{}.shared_mlp.input_linear",
                "blk.{}.ffn_gate_up_shexp",
            ),
            DecoderPart::ExpertGate => (
                "model.layers.{}.mlp.experts.[].gate_proj",
                "blk.{}.ffn_gate_exps",
            ),
            DecoderPart::ExpertUp => (
                "model.layers.{}.mlp.experts.[].up_proj",
                "blk.{}.ffn_up_exps",
            ),
            DecoderPart::ExpertDown => (
                "model.layers.{}.mlp.experts.[].down_proj",
                "blk.{}.ffn_down_exps",
            ),
            DecoderPart::SharedGate => (
                "model.layers.{}.mlp.shared_expert.gate_proj",
                "blk.{}.ffn_gate_shexp",
            ),
            DecoderPart::SharedUp => (
                "model.layers.{}.mlp.shared_expert.up_proj",
                "blk.{}.ffn_up_shexp",
            ),
            DecoderPart::SharedDown => (
                "model.layers.{}.mlp.shared_expert.down_proj",
                "blk.{}.ffn_down_shexp",
            ),
            DecoderPart::SharedScore => (
                "model.layers.{}.mlp.shared_expert_gate",
                "blk.{}.ffn_gate_inp_shexp",
            ),
            DecoderPart::FfnPostNorm => (
                "model.layers.{}.post_feedforward_layernorm",
                "blk.{}.post_ffw_norm",
            ),
            DecoderPart::StatesIn => ("backbone.layers.{}.mixer.in_proj", "blk.{}.ssm_in"),
            DecoderPart::StatesGate => {
                ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate")
            }
            DecoderPart::StatesRates => ("model.layers.{}.linear_attn.in_proj_ba", "blk.{}.ssm_ba"),
            DecoderPart::StatesStrength => {
                ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta")
            }
            DecoderPart::StatesForget => {
                ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha")
            }
            DecoderPart::StatesConv => ("backbone.layers.{}.mixer.conv1d", "blk.{}.ssm_conv1d"),
            DecoderPart::StatesRow => ("backbone.layers.{}.mixer.x_proj", "blk.{}.ssm_x"),
            DecoderPart::StatesStep => ("backbone.layers.{}.mixer.dt_proj", "blk.{}.ssm_dt"),
            DecoderPart::StatesStepBias => {
                ("backbone.layers.{}.mixer.dt_bias=", "blk.{}.ssm_dt.bias=")
            }
            DecoderPart::StatesDecay => ("backbone.layers.{}.mixer.A_log=", "blk.{}.ssm_a="),
            DecoderPart::StatesSkip => ("backbone.layers.{}.mixer.D=", "blk.{}.ssm_d="),
            DecoderPart::StatesNorm => ("backbone.layers.{}.mixer.norm", "blk.{}.ssm_norm"),
            DecoderPart::StatesOut => ("backbone.layers.{}.mixer.out_proj", "blk.{}.ssm_out"),
            DecoderPart::FinalNorm => ("model.norm", "output_norm"),
            DecoderPart::Output => (OUTPUT_MODULE, "output"),
        }
    }

    /// The module name in a folder or a GGUF file.
    #[must_use]
    pub fn name(self, spec: &DecoderSpec, weights: &Weights, layer: usize, suffix: &str) -> String {
        let base = match weights {
            Weights::Hf(_) | Weights::Dummy(_) => self.module(spec, layer),
            Weights::Gguf(_) => self.gguf(spec, layer),
        };
        tensor(&base, suffix)
    }

    /// The module name in a Hugging Face folder, without `.weight`.
    #[must_use]
    pub fn module(self, spec: &DecoderSpec, layer: usize) -> String {
        if self == DecoderPart::Output && spec.storage.output_is_lm_head {
            return OUTPUT_MODULE.to_string();
        }
        let row = spec.family.get();
        let names = (row.names_of)(spec).iter().chain(row.names);
        let name = self.own(names).unwrap_or(self.names().0);
        let name = match spec.storage.bare_names {
            true => name.strip_prefix(row.prefix).unwrap_or(name),
            false => name,
        };
        let name = name.replace("{}", &layer.to_string());
        spec.storage.nested_prefix.named(name)
    }

    /// The module name in a GGUF file, without `.weight`.
    #[must_use]
    pub fn gguf(self, spec: &DecoderSpec, layer: usize) -> String {
        let names = (spec.family.get().names_of_gguf)(spec).iter();
        let name = self.own(names).unwrap_or(self.names().1);
        name.replace("{}", &layer.to_string())
    }

    /// Whether the part is a projection of routed experts.
    pub(crate) fn is_of_experts(self) -> bool {
        matches!(
            self,
            DecoderPart::ExpertGate
                | DecoderPart::ExpertUp
                | DecoderPart::ExpertGateUp
                | DecoderPart::ExpertDown
        )
    }

    /// The first name that the family's lists have for this part.
    fn own(
        self,
        mut names: impl Iterator<Item = &'static (DecoderPart, &'static str)>,
    ) -> Option<&'static str> {
        let found = names.find(|(part, _)| *part == self);
        found.map(|(_, name)| *name)
    }

    /// Outputs and inputs of a projection; 1 and the number of elements for a norm.
    // Long: a table with one row per part.
    #[must_use]
    pub fn shape(self, spec: &DecoderSpec) -> [usize; 2] {
        let DecoderSpec {
            hidden, ffn, vocab, ..
        } = *spec;
        let (q, kv) = (spec.q_width(), spec.kv_width());
        let experts = spec.experts.unwrap_or_default();
        let shared = experts.shared.map_or(0, |shared| shared.ffn);
        let of_experts = experts.latent.unwrap_or(hidden);
        let (query_rank, rank) = match spec.attention.latent {
            Some(latent) => (latent.query_rank.unwrap_or(0), latent.rank),
            None => (0, 0),
        };
        let of_heads = |whole: usize| match spec.attention.qk_norm {
            Some(QkNorm::AllHeads) => whole,
            Some(QkNorm::Heads) | None => spec.head_dim,
        };
        let of_states =
            |size: fn(&SsmSpec) -> [usize; 2]| spec.states.as_ref().map_or([0; 2], size);
        match self {
            DecoderPart::StatesIn => [of_states(|s| [s.projected(), 0])[0], hidden],
            DecoderPart::StatesOut => [hidden, of_states(|s| [s.inner, 0])[0]],
            DecoderPart::StatesGate => [of_states(|s| [s.inner, 0])[0], hidden],
            DecoderPart::StatesRates => [of_states(|s| [2 * s.heads(), 0])[0], hidden],
            DecoderPart::StatesStrength | DecoderPart::StatesForget => {
                [of_states(|s| [s.heads(), 0])[0], hidden]
            }
            DecoderPart::StatesConv => of_states(|s| [s.convolved(), s.kernel]),
            DecoderPart::StatesRow => of_states(|s| [s.rank() + 2 * s.states, s.inner]),
            DecoderPart::StatesStep => of_states(|s| [s.inner, s.rank()]),
            DecoderPart::StatesStepBias => of_states(|s| [1, s.heads()]),
            DecoderPart::StatesDecay => of_states(|s| match s.kind {
                StateKind::Channels { .. } => [s.inner, s.states],
                StateKind::Heads { heads, .. } | StateKind::Delta { heads, .. } => [1, heads],
            }),
            DecoderPart::StatesSkip => of_states(|s| [1, s.heads()]),
            DecoderPart::StatesNorm => of_states(|s| match s.kind {
                StateKind::Channels { .. } | StateKind::Heads { .. } => [1, s.inner],
                StateKind::Delta { heads, .. } => [1, s.inner / heads],
            }),
            DecoderPart::Query => match query_rank {
                0 if spec.attention.gated => [2 * q, hidden],
                0 => [q, hidden],
                rank => [q, rank],
            },
            DecoderPart::QueryRow => [query_rank, hidden],
            DecoderPart::QueryRowNorm => [1, query_rank],
            DecoderPart::KvRow => [rank + spec.rope_dims, hidden],
            DecoderPart::KvRowNorm => [1, rank],
            DecoderPart::Kv => [
                spec.heads * (spec.head_dim - spec.rope_dims + spec.value_dim()),
                rank,
            ],
            DecoderPart::KvKeys => [spec.heads * (spec.head_dim - spec.rope_dims), rank],
            DecoderPart::KvValues => [spec.heads * spec.value_dim(), rank],
            DecoderPart::Sinks => [1, spec.heads],
            DecoderPart::Key | DecoderPart::Value => [kv, hidden],
            DecoderPart::Qkv => [q + 2 * kv, hidden],
            DecoderPart::AttentionOutput => [hidden, spec.heads * spec.value_dim()],
            DecoderPart::Gate | DecoderPart::Up => [ffn, hidden],
            DecoderPart::GateUp => [2 * ffn, hidden],
            DecoderPart::Down => [hidden, ffn],
            DecoderPart::Router => [experts.count, hidden],
            DecoderPart::RouterBias => [1, experts.count],
            DecoderPart::ExpertsIn => [of_experts, hidden],
            DecoderPart::ExpertsOut => [hidden, of_experts],
            DecoderPart::ExpertGateUp => [2 * experts.ffn, of_experts],
            DecoderPart::SharedGateUp => [2 * shared, hidden],
            DecoderPart::ExpertGate | DecoderPart::ExpertUp => [experts.ffn, of_experts],
            DecoderPart::ExpertDown => [of_experts, experts.ffn],
            DecoderPart::SharedGate | DecoderPart::SharedUp => [shared, hidden],
            DecoderPart::SharedDown => [hidden, shared],
            DecoderPart::SharedScore => [1, hidden],
            DecoderPart::Embedding | DecoderPart::Output => [vocab, hidden],
            DecoderPart::Positions => [spec.context, hidden],
            DecoderPart::QueryNorm => [1, of_heads(q)],
            DecoderPart::KeyNorm => [1, of_heads(kv)],
            DecoderPart::AttentionNorm
            | DecoderPart::AttentionPostNorm
            | DecoderPart::FfnNorm
            | DecoderPart::FfnPostNorm
            | DecoderPart::FinalNorm => [1, hidden],
        }
    }

    /// The row order of a projection.
    #[must_use]
    pub fn rows(self, spec: &DecoderSpec) -> ProjectionRowOrder {
        match self {
            DecoderPart::Query | DecoderPart::Key => ProjectionRowOrder::for_heads(spec),
            DecoderPart::Qkv => ProjectionRowOrder::for_fused(spec),
            _ => ProjectionRowOrder::Plain,
        }
    }

    /// Whether the part has a bias.
    #[must_use]
    pub fn has_bias(self, spec: &DecoderSpec) -> bool {
        match self {
            DecoderPart::Query | DecoderPart::Key | DecoderPart::Value | DecoderPart::Qkv => {
                spec.biases.qkv && spec.attention.latent.is_none()
            }
            DecoderPart::AttentionOutput => spec.biases.output,
            DecoderPart::Gate | DecoderPart::Up | DecoderPart::GateUp | DecoderPart::Down => {
                spec.biases.mlp
            }
            DecoderPart::Output => spec.biases.head,
            DecoderPart::AttentionNorm
            | DecoderPart::AttentionPostNorm
            | DecoderPart::FfnNorm
            | DecoderPart::FfnPostNorm
            | DecoderPart::FinalNorm => spec.norm.bias,
            DecoderPart::Router
            | DecoderPart::ExpertGate
            | DecoderPart::ExpertUp
            | DecoderPart::ExpertGateUp
            | DecoderPart::ExpertDown => spec.experts.is_some_and(|experts| experts.bias),
            DecoderPart::SharedGate
            | DecoderPart::SharedUp
            | DecoderPart::SharedGateUp
            | DecoderPart::SharedDown
            | DecoderPart::ExpertsIn
            | DecoderPart::ExpertsOut => {
                let shared = spec.experts.and_then(|experts| experts.shared);
                shared.is_some_and(|shared| shared.bias)
            }
            DecoderPart::QueryRow | DecoderPart::KvRow => spec.biases.qkv,
            DecoderPart::StatesIn => spec.states.is_some_and(|s| s.bias[0]),
            DecoderPart::StatesOut => spec.states.is_some_and(|s| s.bias[1]),
            DecoderPart::StatesConv => spec.states.is_some_and(|s| s.conv_bias),
            DecoderPart::StatesStep => true,
            DecoderPart::Embedding
            | DecoderPart::Positions
            | DecoderPart::QueryNorm
            | DecoderPart::KeyNorm
            | DecoderPart::Sinks
            | DecoderPart::QueryRowNorm
            | DecoderPart::KvRowNorm
            | DecoderPart::Kv
            | DecoderPart::KvKeys
            | DecoderPart::KvValues
            | DecoderPart::RouterBias
            | DecoderPart::SharedScore
            | DecoderPart::StatesGate
            | DecoderPart::StatesRates
            | DecoderPart::StatesStrength
            | DecoderPart::StatesForget
            | DecoderPart::StatesRow
            | DecoderPart::StatesStepBias
            | DecoderPart::StatesDecay
            | DecoderPart::StatesSkip
            | DecoderPart::StatesNorm => false,
        }
    }
}
