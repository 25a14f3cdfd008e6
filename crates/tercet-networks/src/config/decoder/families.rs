//! The model families of decoders. Each family is a table row; related families share a file.

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

use std::sync::LazyLock;

use super::super::{ConfigError, ConfigFields};
use super::keys::GgufKeys;
use super::part::DecoderPartNames;
use super::{DecoderSpec, RopeLayout};

/// The properties of a model family.
pub(crate) struct DecoderFamilyRow {
    /// The `model_type` of the family's folders.
    pub(super) model_type: &'static str,
    /// The `model_type` of the configuration class in `transformers`, if it differs from that of the
    /// folders.
    pub(super) config_class: Option<&'static str>,
    /// The architecture of the family's GGUF files.
    pub(crate) architecture: &'static str,
    /// Whether GGUF files may have a list of sizes per layer; 0 key heads mark a layer without
    /// attention.
    pub(super) varies_in_gguf: bool,
    /// Whether GGUF files of this family are bidirectional models.
    pub(super) bidirectional_in_gguf: bool,
    /// The `config.json` fields of sizes.
    pub(super) sizes: DecoderSizeKeys,
    /// Folder names of parts that differ from llama's.
    pub(super) names: DecoderPartNames,
    /// Model-dependent folder names of parts, which take precedence over `names`.
    pub(super) names_of: fn(&DecoderSpec) -> DecoderPartNames,
    /// GGUF names of parts that differ from llama's.
    pub(super) names_of_gguf: fn(&DecoderSpec) -> DecoderPartNames,
    /// The prefix of tensor names in folders, unless they were saved without the LM head.
    pub(crate) prefix: &'static str,
    /// Suffixes of folder tensors whose content the configuration already determines.
    pub(super) derived: &'static [&'static str],
    /// Prefixes of tensors of an additional multi-token prediction (MTP) model in the folder.
    pub(super) beside: &'static [&'static str],
    /// Last name components of the projections that folders store transposed, as `[inputs,
    /// outputs]`.
    pub(crate) transposed: &'static [&'static str],
    /// The supported `quant_method` of the family's quantized folders.
    pub(super) quantized: Option<&'static str>,
    /// The rotary element pairing of Q and K weights in folders.
    pub(crate) rope_in_folders: RopeLayout,
    /// The rotary element pairing of Q and K weights in GGUF files.
    pub(crate) rope_in_gguf: RopeLayout,
    /// Whether folders group the rows of the fused QKV projection by key head. GGUF files never do.
    pub(crate) qkv_by_group_in_folders: bool,
    /// The field with the epsilon of norms.
    pub(super) eps: &'static str,
    /// The fields that may have the activation; the first one present is used.
    pub(super) activations: &'static [&'static str],
    /// Whether the scores of the selected experts are divided by their sum, for GGUF files, which
    /// do not store this flag. `None` for families without experts.
    pub(super) normalizes_experts: Option<bool>,
    /// Whether the rotary embedding may have head sections for image axes (M-RoPE). Such sections
    /// do not change text-only inputs.
    pub(super) has_sections: bool,
    /// Whether `rope_parameters` may define a position-dependent query scale.
    pub(super) grows_queries: bool,
    /// Whether a rotary scaling of type `yarn` is LongRoPE, by the name of older files.
    pub(super) yarn_is_longrope: bool,
    /// Whether value heads may differ in size from key heads, as specified by the family's keys.
    pub(super) has_value_length: bool,
    /// Sets the properties that all models of the family share, in any file format.
    pub(super) defaults: fn(&mut DecoderSpec),
    /// Reads the family-specific fields of `config.json`.
    pub(super) json: fn(&ConfigFields<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
    /// Reads the family-specific keys of GGUF metadata.
    pub(super) keys: fn(&GgufKeys<'_>, &mut DecoderSpec) -> Result<(), ConfigError>,
}

/// The `config.json` fields of a model's sizes; of each list, the first field present is used.
#[derive(Clone, Copy)]
pub(super) struct DecoderSizeKeys {
    pub(super) hidden: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    /// The list is empty if no layer has attention.
    pub(super) heads: &'static [&'static str],
    /// The list is empty if no layer has a feed-forward network. If the field is absent and
    /// `ffn_is_derived` is set, the width is four times `hidden`.
    pub(super) ffn: &'static [&'static str],
    pub(super) ffn_is_derived: bool,
    pub(super) context: &'static [&'static str],
    /// The default context length of models that do not store one.
    pub(super) typical_context: Option<usize>,
}

/// A model family of decoders, as an index into the table of families.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::DecoderSpec;
/// assert_eq!(DecoderSpec::llama(dims).family.model_type(), "llama");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderFamily(usize);

/// The families of each file, llama first. If several families have the same `model_type` or GGUF
/// architecture, a search by that name finds the first one.
const FILES: &[&[&DecoderFamilyRow]] = &[
    llama::ROWS,
    qwen::ROWS,
    qwen_next::ROWS,
    gemma::ROWS,
    phi::ROWS,
    granite::ROWS,
    olmo::ROWS,
    cohere::ROWS,
    stablelm::ROWS,
    starcoder::ROWS,
    neox::ROWS,
    gpt2::ROWS,
    falcon::ROWS,
    falcon_h1::ROWS,
    gpt_oss::ROWS,
    deepseek::ROWS,
    mamba::ROWS,
    nemotron::ROWS,
];

/// All decoder families.
static FAMILIES: LazyLock<Vec<&DecoderFamilyRow>> = LazyLock::new(|| FILES.concat());

impl DecoderFamily {
    pub(super) const LLAMA: DecoderFamily = DecoderFamily(0);

    /// The `model_type` of the family's folders.
    pub fn model_type(self) -> &'static str {
        self.get().model_type
    }

    /// The family with this architecture of GGUF files.
    #[must_use]
    pub fn from_gguf_architecture(name: &str) -> Option<DecoderFamily> {
        let at = FAMILIES.iter().position(|f| f.architecture == name)?;
        Some(DecoderFamily(at))
    }

    /// The architecture of the family's GGUF files.
    #[must_use]
    pub fn gguf_architecture(self) -> &'static str {
        self.get().architecture
    }

    /// The rotary element pairing of Q and K weights in GGUF files.
    #[must_use]
    pub fn rope_in_gguf(self) -> RopeLayout {
        self.get().rope_in_gguf
    }

    /// Whether folders store some projections transposed, as `[inputs, outputs]`.
    #[must_use]
    pub fn has_transposed_matrices(self) -> bool {
        !self.get().transposed.is_empty()
    }

    /// The family's row in the table.
    pub(crate) fn get(self) -> &'static DecoderFamilyRow {
        FAMILIES[self.0]
    }
}

/// The family with this `model_type`.
pub(crate) fn for_model_type(name: &str) -> Option<DecoderFamily> {
    let at = FAMILIES.iter().position(|f| f.model_type == name)?;
    Some(DecoderFamily(at))
}

/// The supported values of `model_type`.
pub(super) fn model_types() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().map(|f| f.model_type).collect();
    // Families with the same `model_type` are adjacent in the table.
    names.dedup();
    names
}

/// The supported GGUF architectures.
pub(crate) fn gguf_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().map(|f| f.architecture).collect();
    names.dedup();
    names
}

/// Defaults of a family without special properties.
fn plain(_: &mut DecoderSpec) {}

/// Key reader of a family without special keys.
fn no_keys(_: &GgufKeys<'_>, _: &mut DecoderSpec) -> Result<(), ConfigError> {
    Ok(())
}
