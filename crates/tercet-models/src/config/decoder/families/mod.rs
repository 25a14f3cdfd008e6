//! The families of decoders: a row for each, a file for those that belong together.

mod cohere;
mod gemma;
mod granite;
mod llama;
mod neox;
mod olmo;
mod phi;
mod qwen;
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
    /// What its folders call parts otherwise than those of llama.
    pub(super) names: Names,
    /// The order of rotated elements in Q and K weights of folders.
    pub(crate) rope_in_folders: RopeLayout,
    /// That of GGUF files.
    pub(crate) rope_in_gguf: RopeLayout,
    /// Whether rows of a fused Q, K and V projection are by head in folders; GGUF files never have them so.
    pub(crate) qkv_by_head_in_folders: bool,
    /// The field with the epsilon of norms.
    pub(super) eps: &'static str,
    /// The fields with the activation, of which the first that is there counts.
    pub(super) activations: &'static [&'static str],
    /// Whether probabilities of the experts that are used are divided by their sum in GGUF files, which do not say so; none
    /// where there are no experts.
    pub(super) normalizes_experts: Option<bool>,
    /// What all its models have, whatever file they are in.
    pub(super) defaults: fn(&mut DecoderSpec),
    /// Its own fields of `config.json`.
    pub(super) json: fn(&Fields<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
    /// Its own keys of GGUF metadata.
    pub(super) keys: fn(&Keys<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
}

/// A family of decoders: its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderFamily(usize);

/// All of them; llama is the first.
const FAMILIES: [&FamilyRow; 20] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &llama::SMOLLM3,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN2_MOE,
    &qwen::QWEN3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi::PHI,
    &phi::PHI3,
    &granite::GRANITE,
    &olmo::OLMO2,
    &cohere::COHERE,
    &cohere::COHERE2,
    &stablelm::STABLELM,
    &starcoder::STARCODER2,
    &neox::GPT_NEOX,
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
pub(crate) fn model_types() -> String {
    FAMILIES.map(|f| f.model_type).join(", ")
}

/// What GGUF files may name.
pub(super) fn gguf_names() -> String {
    let mut names = FAMILIES.map(|f| f.architecture).to_vec();
    names.dedup();
    names.join(", ")
}

/// Nothing beyond what all families have.
fn plain(_: &mut DecoderSpec) {}

/// No keys of its own.
fn no_keys(_: &Keys<'_>, _: &mut DecoderSpec) -> Result<(), ConfigError> {
    Ok(())
}
