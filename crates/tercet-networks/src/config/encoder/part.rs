//! The tensors of an encoder: their set, their names in files, and their shapes.

use super::{EncoderNorms, EncoderSpec, PositionEncoding, TokenTypes};
use crate::config::decoder::FeedForward;
use crate::weights::Weights;

/// The parts of an encoder that have a tensor name.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::EncoderSpec;
/// use tercet_networks::config::encoder::EncoderPart;
/// let spec = EncoderSpec::bert(dims);
/// assert_eq!(EncoderPart::Up.shape(&spec), [64, 32]);
/// assert!(EncoderPart::projections(&spec).contains(&EncoderPart::Up));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the other variants are named as the field names the projections and norms"
)]
pub enum EncoderPart {
    Words,
    Types,
    PositionTable,
    EmbeddingNorm,
    /// The projection of a patch's pixels.
    PatchProjection,
    /// The class token, which precedes the patches.
    ClassToken,
    /// The position embeddings: one row for the class token, then one per patch.
    PatchPositions,
    /// The projection from the embedding width to the width of the residual stream.
    EmbeddingProjection,
    /// The relative position biases: one value per distance bucket and head.
    RelativeBias,
    Query,
    Key,
    Value,
    /// The fused query, key and value projection.
    Qkv,
    AttentionOutput,
    AttentionNorm,
    /// The LayerScale vector of the attention output.
    AttentionScale,
    Gate,
    Up,
    /// The fused gate and up projection.
    GateUp,
    Down,
    FfnNorm,
    FfnScale,
    FinalNorm,
    /// The dense layer before the classifier.
    HeadDense,
    HeadNorm,
    /// The classifier of whole texts.
    Classifier,
    TokenClassifier,
}

/// The tensor names of a family's folders that differ from BERT's.
pub(super) type EncoderPartNames = &'static [(EncoderPart, &'static str)];

impl EncoderPart {
    /// The module name in a folder of BERT, without prefix and `.weight`; `{}` stands for the
    /// layer.
    const fn name(self) -> &'static str {
        match self {
            EncoderPart::Words => "embeddings.word_embeddings",
            EncoderPart::Types => "embeddings.token_type_embeddings",
            EncoderPart::PositionTable => "embeddings.position_embeddings",
            EncoderPart::EmbeddingNorm => "embeddings.LayerNorm",
            EncoderPart::PatchProjection => "embeddings.patch_embeddings.projection",
            EncoderPart::ClassToken => "embeddings.cls_token",
            EncoderPart::PatchPositions => "embeddings.position_embeddings",
            EncoderPart::AttentionScale => "encoder.layer.{}.layer_scale1.lambda1",
            EncoderPart::FfnScale => "encoder.layer.{}.layer_scale2.lambda1",
            EncoderPart::EmbeddingProjection => "embeddings_project",
            EncoderPart::RelativeBias => "encoder.relative_attention_bias",
            EncoderPart::Query => "encoder.layer.{}.attention.self.query",
            EncoderPart::Key => "encoder.layer.{}.attention.self.key",
            EncoderPart::Value => "encoder.layer.{}.attention.self.value",
            EncoderPart::Qkv => "encoder.layer.{}.attention.self.qkv",
            EncoderPart::AttentionOutput => "encoder.layer.{}.attention.output.dense",
            EncoderPart::AttentionNorm => "encoder.layer.{}.attention.output.LayerNorm",
            EncoderPart::Gate => "encoder.layer.{}.gate.dense",
            EncoderPart::Up => "encoder.layer.{}.intermediate.dense",
            EncoderPart::GateUp => "encoder.layer.{}.gate_up.dense",
            EncoderPart::Down => "encoder.layer.{}.output.dense",
            EncoderPart::FfnNorm => "encoder.layer.{}.output.LayerNorm",
            EncoderPart::FinalNorm => "final_norm",
            EncoderPart::HeadDense => "pooler.dense",
            EncoderPart::HeadNorm => "head.norm",
            EncoderPart::Classifier | EncoderPart::TokenClassifier => "classifier",
        }
    }

    /// The module name in a GGUF file of BERT, without `.weight`; `{}` stands for the layer. Parts
    /// without a GGUF name keep their folder name.
    const fn gguf(self) -> &'static str {
        match self {
            EncoderPart::Words => "token_embd",
            EncoderPart::Types => "token_types",
            EncoderPart::PositionTable => "position_embd",
            EncoderPart::EmbeddingNorm => "token_embd_norm",
            EncoderPart::Query => "blk.{}.attn_q",
            EncoderPart::Key => "blk.{}.attn_k",
            EncoderPart::Value => "blk.{}.attn_v",
            EncoderPart::Qkv => "blk.{}.attn_qkv",
            EncoderPart::AttentionOutput => "blk.{}.attn_output",
            EncoderPart::AttentionNorm => "blk.{}.attn_output_norm",
            EncoderPart::Gate => "blk.{}.ffn_gate",
            EncoderPart::Up | EncoderPart::GateUp => "blk.{}.ffn_up",
            EncoderPart::Down => "blk.{}.ffn_down",
            EncoderPart::FfnNorm => "blk.{}.layer_output_norm",
            EncoderPart::FinalNorm => "output_norm",
            EncoderPart::PatchProjection
            | EncoderPart::ClassToken
            | EncoderPart::PatchPositions
            | EncoderPart::EmbeddingProjection
            | EncoderPart::RelativeBias
            | EncoderPart::AttentionScale
            | EncoderPart::FfnScale
            | EncoderPart::HeadDense
            | EncoderPart::HeadNorm
            | EncoderPart::Classifier
            | EncoderPart::TokenClassifier => self.name(),
        }
    }

    /// Outputs and inputs of a projection, rows and width of a table, or 1 and the number of
    /// elements for a norm. A classifier's outputs are not part of the specification.
    #[must_use]
    pub fn shape(self, spec: &EncoderSpec) -> [usize; 2] {
        let EncoderSpec {
            hidden,
            embedding,
            ffn,
            vocab,
            ..
        } = *spec;
        let q = spec.q_width();
        match self {
            EncoderPart::Words => [vocab, embedding],
            EncoderPart::Types => match spec.token_types {
                TokenTypes::None => [0, embedding],
                TokenTypes::First { rows } | TokenTypes::BySegment { rows } => [rows, embedding],
            },
            EncoderPart::PositionTable => match spec.positions {
                PositionEncoding::Learned { rows } | PositionEncoding::AfterPadding { rows } => {
                    [rows, embedding]
                }
                PositionEncoding::Rotary | PositionEncoding::Distances => [0, embedding],
            },
            EncoderPart::EmbeddingNorm => [1, embedding],
            EncoderPart::PatchProjection => {
                let pixels = spec
                    .patches
                    .map_or(0, |of| of.patch[0] * of.patch[1] * of.channels);
                [hidden, pixels]
            }
            EncoderPart::PatchPositions => [spec.context, hidden],
            EncoderPart::EmbeddingProjection => [hidden, embedding],
            EncoderPart::RelativeBias => [
                spec.relative_position_bias.map_or(0, |of| of.buckets),
                spec.heads,
            ],
            EncoderPart::Query | EncoderPart::Key | EncoderPart::Value => [q, hidden],
            EncoderPart::Qkv => [3 * q, hidden],
            EncoderPart::AttentionOutput => [hidden, q],
            EncoderPart::Gate | EncoderPart::Up => [ffn, hidden],
            EncoderPart::GateUp => [2 * ffn, hidden],
            EncoderPart::Down => [hidden, ffn],
            EncoderPart::HeadDense => [hidden, hidden],
            EncoderPart::AttentionNorm
            | EncoderPart::AttentionScale
            | EncoderPart::ClassToken
            | EncoderPart::FfnNorm
            | EncoderPart::FfnScale
            | EncoderPart::FinalNorm
            | EncoderPart::HeadNorm => [1, hidden],
            EncoderPart::Classifier | EncoderPart::TokenClassifier => [0, hidden],
        }
    }

    pub(crate) fn has_bias(self, spec: &EncoderSpec) -> bool {
        match self {
            EncoderPart::Query | EncoderPart::Key | EncoderPart::Value | EncoderPart::Qkv => {
                spec.qkv_bias
            }
            EncoderPart::AttentionOutput => spec.output_bias,
            EncoderPart::Gate | EncoderPart::Up | EncoderPart::GateUp | EncoderPart::Down => {
                spec.mlp_bias
            }
            EncoderPart::EmbeddingNorm
            | EncoderPart::AttentionNorm
            | EncoderPart::FfnNorm
            | EncoderPart::FinalNorm
            | EncoderPart::HeadNorm => spec.norm.bias,
            EncoderPart::HeadDense => spec.head.dense_bias,
            EncoderPart::EmbeddingProjection
            | EncoderPart::Classifier
            | EncoderPart::TokenClassifier => true,
            EncoderPart::PatchProjection => spec.patches.is_some_and(|of| of.bias),
            EncoderPart::Words
            | EncoderPart::Types
            | EncoderPart::PositionTable
            | EncoderPart::ClassToken
            | EncoderPart::PatchPositions
            | EncoderPart::AttentionScale
            | EncoderPart::FfnScale
            | EncoderPart::RelativeBias => false,
        }
    }

    /// The projections of a layer, which adapters can modify.
    #[must_use]
    pub fn projections(spec: &EncoderSpec) -> Vec<EncoderPart> {
        let mut parts = match spec.fused_qkv {
            true => vec![EncoderPart::Qkv],
            false => vec![EncoderPart::Query, EncoderPart::Key, EncoderPart::Value],
        };
        parts.push(EncoderPart::AttentionOutput);
        match (spec.feed_forward, spec.fused_gate_up) {
            (FeedForward::Gated(_), true) => parts.push(EncoderPart::GateUp),
            (FeedForward::Gated(_), false) => parts.extend([EncoderPart::Gate, EncoderPart::Up]),
            (FeedForward::Plain(_), _) => parts.push(EncoderPart::Up),
        }
        parts.push(EncoderPart::Down);
        parts
    }

    /// All parts of a layer that have tensors.
    pub(super) fn for_layer(spec: &EncoderSpec, layer: usize) -> Vec<EncoderPart> {
        let mut parts = EncoderPart::projections(spec);
        if spec.layers[layer].attention_norm {
            parts.push(EncoderPart::AttentionNorm);
        }
        parts.push(EncoderPart::FfnNorm);
        if spec.layer_scale {
            parts.extend([EncoderPart::AttentionScale, EncoderPart::FfnScale]);
        }
        parts
    }

    /// All parts outside of layers and heads that have tensors.
    pub(super) fn outside(spec: &EncoderSpec) -> Vec<EncoderPart> {
        let mut parts = match &spec.patches {
            None => vec![EncoderPart::Words],
            Some(_) => vec![EncoderPart::PatchProjection, EncoderPart::PatchPositions],
        };
        if spec.patches.is_some_and(|of| of.class_token) {
            parts.push(EncoderPart::ClassToken);
        }
        if spec.embedding_norm {
            parts.push(EncoderPart::EmbeddingNorm);
        }
        if spec.token_types != TokenTypes::None {
            parts.push(EncoderPart::Types);
        }
        let has_table = match spec.positions {
            PositionEncoding::Learned { .. } | PositionEncoding::AfterPadding { .. } => {
                spec.patches.is_none()
            }
            PositionEncoding::Rotary | PositionEncoding::Distances => false,
        };
        if has_table {
            parts.push(EncoderPart::PositionTable);
        }
        if spec.embedding != spec.hidden {
            parts.push(EncoderPart::EmbeddingProjection);
        }
        if spec.relative_position_bias.is_some() {
            parts.push(EncoderPart::RelativeBias);
        }
        if spec.placement == EncoderNorms::Before {
            parts.push(EncoderPart::FinalNorm);
        }
        parts
    }
}

/// The tensor names of one file.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::config::encoder::{EncoderNames, EncoderPart};
/// use tercet_networks::{DummyWeights, EncoderSpec, Weights};
/// let (spec, weights) = (EncoderSpec::bert(dims), Weights::Dummy(DummyWeights::dense()));
/// let names = EncoderNames::new(&spec, &weights);
/// let name = names.tensor(EncoderPart::Up, 0, "weight");
/// assert_eq!(name, "encoder.layer.0.intermediate.dense.weight");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EncoderNames<'a> {
    spec: &'a EncoderSpec,
    prefix: &'static str,
    /// Whether the file is a GGUF file.
    gguf: bool,
}

impl<'a> EncoderNames<'a> {
    /// Detects the naming scheme. Checkpoints of a bare encoder have no prefix; those with a head
    /// have one.
    #[must_use]
    pub fn new(spec: &'a EncoderSpec, weights: &Weights) -> EncoderNames<'a> {
        let gguf = matches!(weights, Weights::Gguf(_));
        let bare = EncoderNames {
            spec,
            prefix: "",
            gguf,
        };
        if gguf {
            return bare;
        }
        let prefix = spec.family.get().prefix;
        let first = match spec.patches {
            None => EncoderPart::Words,
            Some(_) => EncoderPart::PatchProjection,
        };
        let first = format!("{prefix}{}.weight", bare.module(first, 0));
        let prefixed = !matches!(weights, Weights::Dummy(_)) && weights.has(&first);
        match prefixed {
            true => EncoderNames { prefix, ..bare },
            false => bare,
        }
    }

    /// The prefix of the encoder's tensor names in this file.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// The module name without prefix and `.weight`, as in adapter files.
    #[must_use]
    pub fn module(&self, part: EncoderPart, layer: usize) -> String {
        let row = self.spec.family.get();
        if self.gguf {
            let own = row.gguf_names.iter().find(|(other, _)| *other == part);
            let name = own.map_or(part.gguf(), |(_, name)| name);
            return name.replace("{}", &layer.to_string());
        }
        let old: EncoderPartNames = match self.spec.old_names {
            true => row.old_names,
            false => &[],
        };
        let mut own = old.iter().chain(row.names);
        let own = own.find(|(other, _)| *other == part);
        let name = own.map_or(part.name(), |(_, name)| name);
        name.replace("{}", &layer.to_string())
    }

    /// The tensor name of a part's `weight` or `bias`.
    #[must_use]
    pub fn tensor(&self, part: EncoderPart, layer: usize, suffix: &str) -> String {
        let module = self.module(part, layer);
        let outside = match part {
            EncoderPart::Classifier | EncoderPart::TokenClassifier | EncoderPart::HeadNorm => true,
            // BERT's pooler is part of the encoder, so its name has the prefix.
            EncoderPart::HeadDense => !module.starts_with("pooler."),
            _ => false,
        };
        let whole = matches!(
            part,
            EncoderPart::ClassToken
                | EncoderPart::PatchPositions
                | EncoderPart::AttentionScale
                | EncoderPart::FfnScale
        );
        match outside {
            // Parts for which `whole` is true are bare parameters in the reference implementation,
            // so their names have no suffix.
            _ if whole => format!("{}{module}", self.prefix),
            true => format!("{module}.{suffix}"),
            false => format!("{}{module}.{suffix}", self.prefix),
        }
    }
}
