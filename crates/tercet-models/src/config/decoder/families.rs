//! The families of decoders: a row for each, a file for those that belong together.

mod cohere;
mod deepseek;
mod falcon;
mod falcon_h1;
mod gemma;
mod gpt2;
mod gpt_oss;
mod granite;
mod llama;
mod mamba;
mod nemotron;
mod neox;
mod olmo;
mod phi;
mod qwen;
mod qwen_next;
mod stablelm;
mod starcoder;

use super::super::{ConfigError, Fields};
use super::keys::Keys;
use super::part::Names;
use super::{DecoderSpec, RopeLayout};

/// What tells a family from the others.
pub(crate) struct FamilyRow {
    /// The `model_type` of its folders.
    pub(super) model_type: &'static str,
    /// The architecture of its GGUF files.
    pub(crate) architecture: &'static str,
    /// Whether its GGUF files may say the sizes of layers one by one: 0 key heads of those that do not attend.
    pub(super) varies_in_gguf: bool,
    /// Whether the tokens of its GGUF files see both ways.
    pub(super) bidirectional_in_gguf: bool,
    /// What its folders call sizes in `config.json`.
    pub(super) sizes: Sizes,
    /// What its folders call parts otherwise than those of llama.
    pub(super) names: Names,
    /// What goes before these where it depends on the model.
    pub(super) names_of: fn(&DecoderSpec) -> Names,
    /// What its GGUF files call parts otherwise than those of llama.
    pub(super) names_of_gguf: fn(&DecoderSpec) -> Names,
    /// What names in folders begin with unless they were written without the head.
    pub(crate) prefix: &'static str,
    /// Ends of tensors' names in folders that hold what the configuration says already.
    pub(super) derived: &'static [&'static str],
    /// Beginnings of tensors' names in folders that are of another model beside this one, which foretells further tokens.
    pub(super) beside: &'static [&'static str],
    /// Last components of the names of projections that folders have as `[inputs, outputs]`.
    pub(crate) turned: &'static [&'static str],
    /// The `quant_method` of folders that are read.
    pub(super) quantized: Option<&'static str>,
    /// The order of rotated elements in Q and K weights of folders.
    pub(crate) rope_in_folders: RopeLayout,
    /// That of GGUF files.
    pub(crate) rope_in_gguf: RopeLayout,
    /// Whether rows of a fused Q, K and V projection are by key head in folders; GGUF files never have them so.
    pub(crate) qkv_by_group_in_folders: bool,
    /// The field with the epsilon of norms.
    pub(super) eps: &'static str,
    /// The fields with the activation, of which the first that is there counts.
    pub(super) activations: &'static [&'static str],
    /// Whether probabilities of the experts that are used are divided by their sum in GGUF files, which do not say so; none
    /// where there are no experts.
    pub(super) normalizes_experts: Option<bool>,
    /// Whether rotary embeddings may name sections of a head for axes of pictures, which are the same for texts.
    pub(super) has_sections: bool,
    /// Whether queries grow with positions by what rotary embeddings say.
    pub(super) grows_queries: bool,
    /// Whether heads of values may have another size than those of keys, which its own keys say.
    pub(super) has_value_length: bool,
    /// What all its models have, whatever file they are in.
    pub(super) defaults: fn(&mut DecoderSpec),
    /// Its own fields of `config.json`.
    pub(super) json: fn(&Fields<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
    /// Its own keys of GGUF metadata.
    pub(super) keys: fn(&Keys<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
}

/// The fields of `config.json` with a model's sizes, of which the first that is there counts.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) hidden: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    /// None where no layer attends.
    pub(super) heads: &'static [&'static str],
    /// None where no layer has a feed-forward network. Where there may be none, four times the width is meant if `ffn_is_derived`.
    pub(super) ffn: &'static [&'static str],
    pub(super) ffn_is_derived: bool,
    pub(super) context: &'static [&'static str],
    /// Positions of models that do not say.
    pub(super) typical_context: Option<usize>,
}

/// A family of decoders: its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderFamily(usize);

/// All of them; llama is the first.
const FAMILIES: [&FamilyRow; 40] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &llama::SMOLLM3,
    &llama::MINISTRAL3,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN2_MOE,
    &qwen::QWEN3_MOE,
    &qwen_next::QWEN3_NEXT,
    &qwen_next::QWEN3_5,
    &qwen_next::QWEN3_5_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::GEMMA_EMBEDDING,
    &phi::PHI,
    &phi::PHI3,
    &granite::GRANITE,
    &granite::GRANITE_MOE,
    &granite::GRANITE_MOE_SHARED,
    &olmo::OLMO2,
    &cohere::COHERE,
    &cohere::COHERE2,
    &stablelm::STABLELM,
    &starcoder::STARCODER2,
    &neox::GPT_NEOX,
    &gpt2::GPT2,
    &falcon::FALCON,
    &falcon_h1::FALCON_H1,
    &gpt_oss::GPT_OSS,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &deepseek::KIMI_K2,
    &mamba::MAMBA,
    &mamba::FALCON_MAMBA,
    &mamba::MAMBA2,
    &granite::GRANITE_HYBRID,
    &nemotron::NEMOTRON_H,
    &nemotron::NEMOTRON_H_MOE,
];

impl DecoderFamily {
    pub(super) const LLAMA: DecoderFamily = DecoderFamily(0);

    /// The `model_type` of its folders.
    pub fn model_type(self) -> &'static str {
        self.get().model_type
    }

    /// The row of the table.
    pub(crate) fn get(self) -> &'static FamilyRow {
        FAMILIES[self.0]
    }
}

/// The family that a folder's configuration names.
pub(crate) fn of_model_type(name: &str) -> Option<DecoderFamily> {
    let at = FAMILIES.iter().position(|f| f.model_type == name)?;
    Some(DecoderFamily(at))
}

/// The family that a GGUF file's metadata name.
pub(crate) fn of_gguf(name: &str) -> Option<DecoderFamily> {
    let at = FAMILIES.iter().position(|f| f.architecture == name)?;
    Some(DecoderFamily(at))
}

/// What folders may name.
pub(super) fn model_types() -> String {
    let mut names = FAMILIES.map(|f| f.model_type).to_vec();
    // Those of one name stand side by side.
    names.dedup();
    names.join(", ")
}

/// What GGUF files may name.
pub(super) fn gguf_names() -> String {
    let mut names: Vec<&str> = FAMILIES.iter().map(|f| f.architecture).collect();
    names.dedup();
    names.join(", ")
}

/// Nothing beyond what all families have.
fn plain(_: &mut DecoderSpec) {}

/// No keys of its own.
fn no_keys(_: &Keys<'_>, _: &mut DecoderSpec) -> Result<(), ConfigError> {
    Ok(())
}
