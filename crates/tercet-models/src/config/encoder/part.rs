//! The tensors of an encoder: which there are, what folders call them, and their shapes.

use super::{EncoderNorms, EncoderSpec, Positions, TokenTypes};
use crate::builder::Weights;
use crate::config::decoder::FeedForward;

/// The parts of an encoder whose tensors have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncoderPart {
    Words,
    Types,
    PositionTable,
    EmbeddingNorm,
    /// Of the pixels of a patch.
    PatchProjection,
    /// What stands before the patches.
    ClassToken,
    /// A row for each patch, and for the class token before them.
    PatchPositions,
    /// From the width of embeddings to that of the residual stream.
    EmbeddingProjection,
    /// A term of the scores for each distance and head.
    RelativeBias,
    Query,
    Key,
    Value,
    /// Query, key and value in one.
    Qkv,
    AttentionOutput,
    AttentionNorm,
    /// What the result of attention is multiplied with.
    AttentionScale,
    Gate,
    Up,
    /// Gate and up in one.
    GateUp,
    Down,
    FfnNorm,
    FfnScale,
    FinalNorm,
    /// Before the classifier.
    HeadDense,
    HeadNorm,
    /// Of texts.
    Classifier,
    TokenClassifier,
}

/// What a family's folders call parts otherwise than those of BERT.
pub(super) type Names = &'static [(EncoderPart, &'static str)];

impl EncoderPart {
    /// The name in a folder of BERT without prefix and `.weight`; `{}` is the layer.
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

    /// The name in a GGUF file of BERT without `.weight`; `{}` is the layer. Parts that no such file has keep that of folders.
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

    /// Outputs and inputs of a projection; rows and width of a table; of a norm 1 and its elements. The rows of
    /// classifiers are classes, which the specification does not know.
    pub(crate) fn shape(self, spec: &EncoderSpec) -> [usize; 2] {
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
                Positions::Learned { rows } | Positions::AfterPadding { rows } => [rows, embedding],
                Positions::Rotary | Positions::Distances => [0, embedding],
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
            EncoderPart::RelativeBias => [spec.relative.map_or(0, |of| of.buckets), spec.heads],
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

    /// The projections of a layer, which adapters may change.
    pub(crate) fn projections(spec: &EncoderSpec) -> Vec<EncoderPart> {
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

    /// Everything of a layer that has tensors.
    pub(super) fn of_layer(spec: &EncoderSpec, layer: usize) -> Vec<EncoderPart> {
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

    /// Everything outside of layers and heads that has tensors.
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
            Positions::Learned { .. } | Positions::AfterPadding { .. } => spec.patches.is_none(),
            Positions::Rotary | Positions::Distances => false,
        };
        if has_table {
            parts.push(EncoderPart::PositionTable);
        }
        if spec.embedding != spec.hidden {
            parts.push(EncoderPart::EmbeddingProjection);
        }
        if spec.relative.is_some() {
            parts.push(EncoderPart::RelativeBias);
        }
        if spec.placement == EncoderNorms::Before {
            parts.push(EncoderPart::FinalNorm);
        }
        parts
    }
}

/// What the tensors of one file are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncoderNames<'a> {
    spec: &'a EncoderSpec,
    prefix: &'static str,
    /// Whether the file is a GGUF file.
    gguf: bool,
}

impl<'a> EncoderNames<'a> {
    /// Checkpoints of the bare encoder have no prefix, those with a head have one.
    pub(crate) fn of(spec: &'a EncoderSpec, weights: &Weights) -> EncoderNames<'a> {
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
        let prefixed = !matches!(weights, Weights::MadeUp(_)) && weights.has(&first);
        match prefixed {
            true => EncoderNames { prefix, ..bare },
            false => bare,
        }
    }

    /// The prefix.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// The name of a part without prefix and `.weight`, as adapters have it.
    pub(crate) fn module(&self, part: EncoderPart, layer: usize) -> String {
        let row = self.spec.family.get();
        if self.gguf {
            let own = row.gguf_names.iter().find(|(other, _)| *other == part);
            let name = own.map_or(part.gguf(), |(_, name)| name);
            return name.replace("{}", &layer.to_string());
        }
        let old: Names = match self.spec.old_names {
            true => row.old_names,
            false => &[],
        };
        let mut own = old.iter().chain(row.names);
        let own = own.find(|(other, _)| *other == part);
        let name = own.map_or(part.name(), |(_, name)| name);
        name.replace("{}", &layer.to_string())
    }

    /// The name of a tensor.
    pub(crate) fn tensor(&self, part: EncoderPart, layer: usize, suffix: &str) -> String {
        let module = self.module(part, layer);
        let outside = match part {
            EncoderPart::Classifier | EncoderPart::TokenClassifier | EncoderPart::HeadNorm => true,
            // BERT's is a part of the encoder.
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
            // These are parameters of their own in the reference, not modules that have one.
            _ if whole => format!("{}{module}", self.prefix),
            true => format!("{module}.{suffix}"),
            false => format!("{}{module}.{suffix}", self.prefix),
        }
    }
}
