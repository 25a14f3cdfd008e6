//! The tensors of a decoder: which there are, what files call them, and their shapes.

use super::{DecoderSpec, QkNorm, StateKind, StateSpace};
use crate::adapter::rows::Rows;
use crate::builder::Weights;

/// The parts of a model whose tensors have a name in each kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embedding,
    /// The table of learned positions.
    Positions,
    AttentionNorm,
    Query,
    Key,
    Value,
    /// Query, key and value in one.
    Qkv,
    QueryNorm,
    KeyNorm,
    /// The scores of what is no key.
    Sinks,
    /// The row that queries are projected from, and its norm.
    QueryRow,
    QueryRowNorm,
    /// The row that keys and values are projected from, with the rotated part of keys; its norm; its projection.
    KvRow,
    KvRowNorm,
    Kv,
    /// The parts of the latter, of keys and of values.
    KvKeys,
    KvValues,
    AttentionOutput,
    AttentionPostNorm,
    FfnNorm,
    Gate,
    Up,
    /// Gate and up in one.
    GateUp,
    Down,
    /// Into and out of the rows of experts.
    ExpertsIn,
    ExpertsOut,
    /// The scores of experts.
    Router,
    /// What is added to scores that choose.
    RouterChoice,
    ExpertGate,
    ExpertUp,
    /// Gate and up in one.
    ExpertGateUp,
    ExpertDown,
    /// Of the expert that all tokens go through.
    SharedGate,
    SharedUp,
    /// Gate and up in one.
    SharedGateUp,
    SharedDown,
    SharedScore,
    FfnPostNorm,
    /// Into a scan over states: the gate, what is convolved, and step sizes of heads. Of a delta rule what is convolved, and the
    /// gate where it is fused.
    StatesIn,
    /// Of a delta rule: the gate.
    StatesGate,
    /// Of a delta rule: strengths and decays in one, or each.
    StatesRates,
    StatesStrength,
    StatesForget,
    /// The convolution.
    StatesConv,
    /// Of channels: the row of step sizes, what enters states and what leaves them.
    StatesRow,
    /// Of channels: step sizes from their row.
    StatesStep,
    /// Of heads: what is added to step sizes.
    StatesStepBias,
    /// The logarithms of the negated rates of decay.
    StatesDecay,
    /// What goes past the states.
    StatesSkip,
    StatesNorm,
    StatesOut,
    FinalNorm,
    Output,
}

/// Where a folder's names have the number of an expert.
pub(crate) const EXPERT: &str = "[]";

/// What names end with that are those of tensors themselves, to which nothing is added but `_bias`.
pub(crate) const WHOLE: char = '=';

/// The name of a tensor of a part: `weight` or `bias`.
pub(crate) fn tensor(base: &str, suffix: &str) -> String {
    match (base.strip_suffix(WHOLE), suffix) {
        (Some(name), "weight") => name.to_string(),
        (Some(name), _) => format!("{name}_{suffix}"),
        (None, _) => format!("{base}.{suffix}"),
    }
}

/// What folders call the output projection.
pub(crate) const OUTPUT_MODULE: &str = "lm_head";

/// What a family's folders call parts otherwise than those of llama.
pub(crate) type Names = &'static [(Part, &'static str)];

impl Part {
    /// The names in a Hugging Face folder of llama and in a GGUF file, without `.weight`; `{}` is the layer, `[]` the
    /// expert.
    // Long: a table, one row a part.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Part::Embedding => ("model.embed_tokens", "token_embd"),
            Part::Positions => ("model.embed_positions", "position_embd"),
            Part::AttentionNorm => ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
            Part::Query => ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
            Part::Key => ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
            Part::Value => ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
            Part::Qkv => ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
            Part::QueryNorm => ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
            Part::KeyNorm => ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
            Part::Sinks => ("model.layers.{}.self_attn.sinks=", "blk.{}.attn_sinks"),
            Part::QueryRow => ("model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"),
            Part::QueryRowNorm => (
                "model.layers.{}.self_attn.q_a_layernorm",
                "blk.{}.attn_q_a_norm",
            ),
            Part::KvRow => (
                "model.layers.{}.self_attn.kv_a_proj_with_mqa",
                "blk.{}.attn_kv_a_mqa",
            ),
            Part::KvRowNorm => (
                "model.layers.{}.self_attn.kv_a_layernorm",
                "blk.{}.attn_kv_a_norm",
            ),
            Part::Kv => ("model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"),
            Part::KvKeys => ("model.layers.{}.self_attn.k_b_proj", "blk.{}.attn_k_b"),
            Part::KvValues => ("model.layers.{}.self_attn.v_b_proj", "blk.{}.attn_v_b"),
            Part::AttentionOutput => ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
            Part::AttentionPostNorm => (
                "model.layers.{}.post_attention_layernorm",
                "blk.{}.post_attention_norm",
            ),
            Part::FfnNorm => (
                "model.layers.{}.post_attention_layernorm",
                "blk.{}.ffn_norm",
            ),
            Part::Gate => ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
            Part::Up => ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
            Part::GateUp => ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
            Part::Down => ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
            Part::ExpertsIn => (
                "model.layers.{}.mlp.fc1_latent_proj",
                "blk.{}.ffn_latent_down",
            ),
            Part::ExpertsOut => (
                "model.layers.{}.mlp.fc2_latent_proj",
                "blk.{}.ffn_latent_up",
            ),
            Part::Router => ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
            Part::RouterChoice => (
                "model.layers.{}.mlp.gate.e_score_correction_bias=",
                "blk.{}.exp_probs_b.bias=",
            ),
            Part::ExpertGateUp => (
                "model.layers.{}.mlp.experts.gate_up_proj=",
                "blk.{}.ffn_gate_up_exps",
            ),
            Part::SharedGateUp => (
                "model.layers.{}.shared_mlp.input_linear",
                "blk.{}.ffn_gate_up_shexp",
            ),
            Part::ExpertGate => (
                "model.layers.{}.mlp.experts.[].gate_proj",
                "blk.{}.ffn_gate_exps",
            ),
            Part::ExpertUp => (
                "model.layers.{}.mlp.experts.[].up_proj",
                "blk.{}.ffn_up_exps",
            ),
            Part::ExpertDown => (
                "model.layers.{}.mlp.experts.[].down_proj",
                "blk.{}.ffn_down_exps",
            ),
            Part::SharedGate => (
                "model.layers.{}.mlp.shared_expert.gate_proj",
                "blk.{}.ffn_gate_shexp",
            ),
            Part::SharedUp => (
                "model.layers.{}.mlp.shared_expert.up_proj",
                "blk.{}.ffn_up_shexp",
            ),
            Part::SharedDown => (
                "model.layers.{}.mlp.shared_expert.down_proj",
                "blk.{}.ffn_down_shexp",
            ),
            Part::SharedScore => (
                "model.layers.{}.mlp.shared_expert_gate",
                "blk.{}.ffn_gate_inp_shexp",
            ),
            Part::FfnPostNorm => (
                "model.layers.{}.post_feedforward_layernorm",
                "blk.{}.post_ffw_norm",
            ),
            Part::StatesIn => ("backbone.layers.{}.mixer.in_proj", "blk.{}.ssm_in"),
            Part::StatesGate => ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
            Part::StatesRates => ("model.layers.{}.linear_attn.in_proj_ba", "blk.{}.ssm_ba"),
            Part::StatesStrength => ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
            Part::StatesForget => ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"),
            Part::StatesConv => ("backbone.layers.{}.mixer.conv1d", "blk.{}.ssm_conv1d"),
            Part::StatesRow => ("backbone.layers.{}.mixer.x_proj", "blk.{}.ssm_x"),
            Part::StatesStep => ("backbone.layers.{}.mixer.dt_proj", "blk.{}.ssm_dt"),
            Part::StatesStepBias => ("backbone.layers.{}.mixer.dt_bias=", "blk.{}.ssm_dt.bias="),
            Part::StatesDecay => ("backbone.layers.{}.mixer.A_log=", "blk.{}.ssm_a="),
            Part::StatesSkip => ("backbone.layers.{}.mixer.D=", "blk.{}.ssm_d="),
            Part::StatesNorm => ("backbone.layers.{}.mixer.norm", "blk.{}.ssm_norm"),
            Part::StatesOut => ("backbone.layers.{}.mixer.out_proj", "blk.{}.ssm_out"),
            Part::FinalNorm => ("model.norm", "output_norm"),
            Part::Output => (OUTPUT_MODULE, "output"),
        }
    }

    /// The name of a tensor in files of this kind.
    pub(crate) fn name(
        self,
        spec: &DecoderSpec,
        weights: &Weights,
        layer: usize,
        suffix: &str,
    ) -> String {
        let base = match weights {
            Weights::Hf(_) | Weights::MadeUp(_) => self.module(spec, layer),
            Weights::Gguf(_) => self.gguf(spec, layer),
        };
        tensor(&base, suffix)
    }

    /// The name in a Hugging Face folder, without `.weight`.
    pub(crate) fn module(self, spec: &DecoderSpec, layer: usize) -> String {
        if self == Part::Output && spec.output_is_lm_head {
            return OUTPUT_MODULE.to_string();
        }
        let row = spec.family.get();
        let names = (row.names_of)(spec).iter().chain(row.names);
        let name = self.own(names).unwrap_or(self.names().0);
        let name = match spec.bare_names {
            true => name.strip_prefix(row.prefix).unwrap_or(name),
            false => name,
        };
        let name = name.replace("{}", &layer.to_string());
        spec.inside.named(name)
    }

    /// The name in a GGUF file, without `.weight`.
    pub(crate) fn gguf(self, spec: &DecoderSpec, layer: usize) -> String {
        let names = (spec.family.get().names_of_gguf)(spec).iter();
        let name = self.own(names).unwrap_or(self.names().1);
        name.replace("{}", &layer.to_string())
    }

    /// Whether it is a projection of experts.
    pub(crate) fn is_of_experts(self) -> bool {
        matches!(
            self,
            Part::ExpertGate | Part::ExpertUp | Part::ExpertGateUp | Part::ExpertDown
        )
    }

    /// The first name that a family has for it.
    fn own(
        self,
        mut names: impl Iterator<Item = &'static (Part, &'static str)>,
    ) -> Option<&'static str> {
        let found = names.find(|(part, _)| *part == self);
        found.map(|(_, name)| *name)
    }

    /// Outputs and inputs of a projection; of a norm 1 and its elements.
    // Long: a table, one row a part.
    pub(crate) fn shape(self, spec: &DecoderSpec) -> [usize; 2] {
        let DecoderSpec {
            hidden, ffn, vocab, ..
        } = *spec;
        let (q, kv) = (spec.q_width(), spec.kv_width());
        let experts = spec.experts.unwrap_or_default();
        let shared = experts.shared.map_or(0, |shared| shared.ffn);
        let of_experts = experts.latent.unwrap_or(hidden);
        let (query_rank, rank) = match spec.latent {
            Some(latent) => (latent.query_rank.unwrap_or(0), latent.rank),
            None => (0, 0),
        };
        let of_heads = |whole: usize| match spec.qk_norm {
            Some(QkNorm::Whole) => whole,
            Some(QkNorm::Heads) | None => spec.head_dim,
        };
        let of_states =
            |size: fn(&StateSpace) -> [usize; 2]| spec.states.as_ref().map_or([0; 2], size);
        match self {
            Part::StatesIn => [of_states(|s| [s.projected(), 0])[0], hidden],
            Part::StatesOut => [hidden, of_states(|s| [s.inner, 0])[0]],
            Part::StatesGate => [of_states(|s| [s.inner, 0])[0], hidden],
            Part::StatesRates => [of_states(|s| [2 * s.heads(), 0])[0], hidden],
            Part::StatesStrength | Part::StatesForget => [of_states(|s| [s.heads(), 0])[0], hidden],
            Part::StatesConv => of_states(|s| [s.convolved(), s.kernel]),
            Part::StatesRow => of_states(|s| [s.rank() + 2 * s.states, s.inner]),
            Part::StatesStep => of_states(|s| [s.inner, s.rank()]),
            Part::StatesStepBias => of_states(|s| [1, s.heads()]),
            Part::StatesDecay => of_states(|s| match s.kind {
                StateKind::Channels { .. } => [s.inner, s.states],
                StateKind::Heads { heads, .. } | StateKind::Delta { heads, .. } => [1, heads],
            }),
            Part::StatesSkip => of_states(|s| [1, s.heads()]),
            Part::StatesNorm => of_states(|s| match s.kind {
                StateKind::Channels { .. } | StateKind::Heads { .. } => [1, s.inner],
                StateKind::Delta { heads, .. } => [1, s.inner / heads],
            }),
            Part::Query => match query_rank {
                0 if spec.gated_attention => [2 * q, hidden],
                0 => [q, hidden],
                rank => [q, rank],
            },
            Part::QueryRow => [query_rank, hidden],
            Part::QueryRowNorm => [1, query_rank],
            Part::KvRow => [rank + spec.rope_dims, hidden],
            Part::KvRowNorm => [1, rank],
            Part::Kv => [
                spec.heads * (spec.head_dim - spec.rope_dims + spec.value_dim()),
                rank,
            ],
            Part::KvKeys => [spec.heads * (spec.head_dim - spec.rope_dims), rank],
            Part::KvValues => [spec.heads * spec.value_dim(), rank],
            Part::Sinks => [1, spec.heads],
            Part::Key | Part::Value => [kv, hidden],
            Part::Qkv => [q + 2 * kv, hidden],
            Part::AttentionOutput => [hidden, spec.heads * spec.value_dim()],
            Part::Gate | Part::Up => [ffn, hidden],
            Part::GateUp => [2 * ffn, hidden],
            Part::Down => [hidden, ffn],
            Part::Router => [experts.count, hidden],
            Part::RouterChoice => [1, experts.count],
            Part::ExpertsIn => [of_experts, hidden],
            Part::ExpertsOut => [hidden, of_experts],
            Part::ExpertGateUp => [2 * experts.ffn, of_experts],
            Part::SharedGateUp => [2 * shared, hidden],
            Part::ExpertGate | Part::ExpertUp => [experts.ffn, of_experts],
            Part::ExpertDown => [of_experts, experts.ffn],
            Part::SharedGate | Part::SharedUp => [shared, hidden],
            Part::SharedDown => [hidden, shared],
            Part::SharedScore => [1, hidden],
            Part::Embedding | Part::Output => [vocab, hidden],
            Part::Positions => [spec.context, hidden],
            Part::QueryNorm => [1, of_heads(q)],
            Part::KeyNorm => [1, of_heads(kv)],
            Part::AttentionNorm
            | Part::AttentionPostNorm
            | Part::FfnNorm
            | Part::FfnPostNorm
            | Part::FinalNorm => [1, hidden],
        }
    }

    /// The order of a projection's rows.
    pub(crate) fn rows(self, spec: &DecoderSpec) -> Rows {
        match self {
            Part::Query | Part::Key => Rows::of_heads(spec),
            Part::Qkv => Rows::of_fused(spec),
            _ => Rows::Plain,
        }
    }

    pub(crate) fn has_bias(self, spec: &DecoderSpec) -> bool {
        match self {
            Part::Query | Part::Key | Part::Value | Part::Qkv => {
                spec.qkv_bias && spec.latent.is_none()
            }
            Part::AttentionOutput => spec.output_bias,
            Part::Gate | Part::Up | Part::GateUp | Part::Down => spec.mlp_bias,
            Part::Output => spec.head_bias,
            Part::AttentionNorm
            | Part::AttentionPostNorm
            | Part::FfnNorm
            | Part::FfnPostNorm
            | Part::FinalNorm => spec.norm.bias,
            Part::Router
            | Part::ExpertGate
            | Part::ExpertUp
            | Part::ExpertGateUp
            | Part::ExpertDown => spec.experts.is_some_and(|experts| experts.bias),
            Part::SharedGate
            | Part::SharedUp
            | Part::SharedGateUp
            | Part::SharedDown
            | Part::ExpertsIn
            | Part::ExpertsOut => {
                let shared = spec.experts.and_then(|experts| experts.shared);
                shared.is_some_and(|shared| shared.bias)
            }
            Part::QueryRow | Part::KvRow => spec.qkv_bias,
            Part::StatesIn => spec.states.is_some_and(|s| s.bias[0]),
            Part::StatesOut => spec.states.is_some_and(|s| s.bias[1]),
            Part::StatesConv => spec.states.is_some_and(|s| s.conv_bias),
            Part::StatesStep => true,
            Part::Embedding
            | Part::Positions
            | Part::QueryNorm
            | Part::KeyNorm
            | Part::Sinks
            | Part::QueryRowNorm
            | Part::KvRowNorm
            | Part::Kv
            | Part::KvKeys
            | Part::KvValues
            | Part::RouterChoice
            | Part::SharedScore
            | Part::StatesGate
            | Part::StatesRates
            | Part::StatesStrength
            | Part::StatesForget
            | Part::StatesRow
            | Part::StatesStepBias
            | Part::StatesDecay
            | Part::StatesSkip
            | Part::StatesNorm => false,
        }
    }
}
