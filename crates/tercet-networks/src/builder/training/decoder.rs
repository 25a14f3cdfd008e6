//! Training graphs of decoder-only language models.
//!
//! Inputs, all I32 `[batch, len]`:
//!
//! | input | contents |
//! |---|---|
//! | `tokens` | token ids |
//! | `positions` | position of each token within its document |
//! | `segments` | document index of each token: tokens attend only to earlier tokens with the same index |
//! | `labels` | next token of each position, already shifted; [`IGNORED`](super::IGNORED) excludes a position |
//!
//! Padding is a document whose labels are all ignored. Without packing there is no input
//! `segments`: each row is one document with padding at its end.

use tercet::ops::{AttentionMask, PadMode};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::check_causal;
use super::super::decoder::layer::{
    AttentionMode, ForwardContext, MAX_CONTEXT, embed, head, layer, norm, query_scales,
    rope_tables, soft_cap,
};
use super::super::trainable::WeightUse;
use super::super::{ModelBuilder, ModelError, Weights};
use super::loss::{LossTerms, cross_entropy, not_negative};
use super::states::with_states;
use super::{FineTuneMode, TrainingGraph};
use crate::config::decoder::{DecoderPart, DecoderSpec, LayerSpec};

/// Alignment of the number of logit columns when rows would not be 16-byte aligned. The alignment
/// is a multiple of the matmul tile sizes.
const LOGIT_COLUMN_ALIGNMENT: usize = 64;

/// Options of a decoder training graph.
///
/// ```
/// use tercet_networks::training::{DecoderTrainingOptions, FineTuneMode};
/// let options = DecoderTrainingOptions::new(4, 256, FineTuneMode::Full);
/// let options = DecoderTrainingOptions { loss_parts: 8, checkpoints: true, ..options };
/// assert!(options.packed);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderTrainingOptions {
    /// Rows per batch.
    pub batch: Dim,
    /// Tokens per row.
    pub len: Dim,
    /// Full fine-tuning or LoRA.
    pub tuning: FineTuneMode,
    /// Float dtype of the arithmetic: F32, F16 or BF16. The loss is computed in F32.
    pub dtype: DType,
    /// Sequence packing: rows contain several documents, separated by `segments`.
    pub packed: bool,
    /// Activation checkpointing: only the input of each layer is saved for backward; the rest is
    /// recomputed.
    pub checkpoints: bool,
    /// Number of parts for computing logits and losses, so that the logits of only one part are in
    /// memory. Backward recomputes them. The number must be 1 unless batch and length are static.
    pub loss_parts: usize,
    /// Dropout probability for the embeddings, the attention outputs and the feed-forward outputs.
    /// Use 0 for an evaluation graph.
    pub dropout: f64,
    /// Label smoothing: the part of a label's weight that is spread over all tokens (Szegedy et al.
    /// 2016).
    pub label_smoothing: f64,
    /// Factor of the z-loss, the squared log-sum-exp of the logits (Chowdhery et al., "PaLM",
    /// 2022).
    pub z_loss: f64,
}

impl DecoderTrainingOptions {
    /// Default options: packed rows in F32, no checkpointing, no dropout, plain cross-entropy.
    pub fn new(
        batch: impl Into<Dim>,
        len: impl Into<Dim>,
        tuning: FineTuneMode,
    ) -> DecoderTrainingOptions {
        DecoderTrainingOptions {
            batch: batch.into(),
            len: len.into(),
            tuning,
            dtype: DType::F32,
            packed: true,
            checkpoints: false,
            loss_parts: 1,
            dropout: 0.0,
            label_smoothing: 0.0,
            z_loss: 0.0,
        }
    }

    /// Number of logits rows; checks the options.
    fn rows(&self, config: &DecoderSpec) -> Result<Dim, ModelError> {
        let unsupported = |reason: String| Err(ModelError::Unsupported(reason));
        if let Some(tokens) = self.len.known()
            && tokens > config.context
        {
            let context = config.context;
            return Err(ModelError::Context { tokens, context });
        }
        if config.context > MAX_CONTEXT {
            let context = config.context;
            return unsupported(format!(
                "context length {context} is out of range; expected at most {MAX_CONTEXT} tokens"
            ));
        }
        if self.packed && config.has_states() {
            return unsupported(
                "packed rows are not supported for a model with recurrent states, which would leak from one text \
                 into the next; set `packed` to false"
                    .to_string(),
            );
        }
        let Some(rows) = self.batch.checked_mul(&self.len) else {
            let (batch, len) = (&self.batch, &self.len);
            return unsupported(format!(
                "batch of {batch} rows with {len} tokens is too large"
            ));
        };
        let most = rows.known().unwrap_or(1);
        if self.loss_parts == 0 || self.loss_parts > most {
            let parts = self.loss_parts;
            return unsupported(format!(
                "number of loss parts {parts} is out of range; expected 1 to {most}"
            ));
        }
        Ok(rows)
    }
}

impl TrainingGraph {
    /// Builds the training graph of a decoder from the weights of a file.
    ///
    /// A run fails if a token, position or label is outside its range.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if an option
    /// is out of range. [`ModelError::Adapter`] for a rank or target that the model does not have.
    pub fn decoder(
        config: &DecoderSpec,
        weights: &Weights,
        options: &DecoderTrainingOptions,
    ) -> Result<TrainingGraph, ModelError> {
        check_causal(config)?;
        let rows = options.rows(config)?;
        let terms = LossTerms {
            smoothing: options.label_smoothing,
            z_loss: options.z_loss,
        };
        let terms = terms.check()?;
        let mode = match &options.tuning {
            FineTuneMode::Full => WeightUse::Full,
            FineTuneMode::Lora(lora) => WeightUse::Lora(lora),
        };
        let b = ModelBuilder::new(weights, options.dtype).with_decoder_spec(config);
        let b = b.in_mode(mode);
        let mut b = b.with_dropout(options.dropout, 0)?;
        let x = hidden(&mut b, config, options)?;
        let x = b.graph.reshape(x, [rows.clone(), config.hidden.into()])?;
        let logits = parts_of_logits(&mut b, config, options, x)?;

        let ty = Type::new(DType::I32, [options.batch.clone(), options.len.clone()]);
        let mut labels = None;
        let mut sums: Option<[Value; 2]> = None;
        let mut at = 0;
        let forward = with_states(b, &logits, &mut |g, logits| {
            let all = match labels {
                Some(all) => all,
                None => {
                    let all = g.input("labels", ty.clone())?;
                    *labels.insert(g.reshape(all, [rows.clone()])?)
                }
            };
            let own = match g.ty(logits).shape[0].known() {
                Some(len) if options.loss_parts > 1 => {
                    at += len;
                    g.narrow(all, 0, at - len, len)?
                }
                _ => all,
            };
            let [sum, count] = cross_entropy(g, logits, own, Some(config.vocab), terms)?;
            sums = Some(match sums {
                None => [sum, count],
                Some([s, c]) => [g.plus(s, sum)?, g.plus(c, count)?],
            });
            Ok(())
        })?;
        TrainingGraph::new(forward, sums.ok_or(ModelError::NoTokens)?)
    }
}

/// Hidden states of all layers, `[batch, len, hidden]`.
fn hidden(
    b: &mut ModelBuilder<'_>,
    config: &DecoderSpec,
    options: &DecoderTrainingOptions,
) -> Result<Value, ModelError> {
    let (batch, len) = (options.batch.clone(), options.len.clone());
    let ty = Type::new(DType::I32, [batch.clone(), len.clone()]);
    let tokens = b.graph.input("tokens", ty.clone())?;
    let positions = b.graph.input("positions", ty.clone())?;
    let segments = match options.packed {
        true => Some(b.graph.input("segments", ty)?),
        false => None,
    };
    let mut masks: Vec<(Option<usize>, AttentionMask)> = Vec::new();
    for LayerSpec { window, .. } in &config.layers {
        if !masks.iter().any(|(known, _)| known == window) {
            masks.push((*window, mask(b, segments, *window)?));
        }
    }
    let positions = not_negative(&mut b.graph, positions)?;
    let ropes = rope_tables(b, config, config.context, positions)?;
    let query_scales = query_scales(b, config, config.context, positions)?;
    let shared = ForwardContext {
        attend: AttentionMode::FullSequences {
            masks,
            kv_len: None,
        },
        ropes,
        query_scales,
        batch,
        len,
    };
    let tokens = not_negative(&mut b.graph, tokens)?;
    let x = embed(b, config, tokens, positions)?;
    let mut x = b.drop(x)?;
    for at in 0..config.layers.len() {
        if options.checkpoints {
            x = b.graph.checkpoint(x)?;
        }
        x = layer(b, config, &shared, at, x)?;
    }
    Ok(x)
}

/// Attention mask: causal within a document, limited to the last `window` keys if the layer has a
/// window.
fn mask(
    b: &mut ModelBuilder<'_>,
    segments: Option<Value>,
    window: Option<usize>,
) -> Result<AttentionMask, ModelError> {
    let Some(segments) = segments else {
        return Ok(window.map_or(AttentionMask::Causal, AttentionMask::Window));
    };
    let g = &mut b.graph;
    let queries = g.unsqueeze(segments, 2)?;
    let keys = g.unsqueeze(segments, 1)?;
    let own = g.equal(queries, keys)?;
    let before = g.trilu(own, false, 0)?;
    Ok(AttentionMask::Keep(match window {
        None => before,
        Some(window) => g.trilu(before, true, 1 - window as i64)?,
    }))
}

/// Logits of `x [rows, hidden]`, which is not normalized yet, split into the requested parts. With
/// checkpointing and a single part the logits are saved, because recomputing them is a full matmul
/// without benefit.
fn parts_of_logits(
    b: &mut ModelBuilder<'_>,
    config: &DecoderSpec,
    options: &DecoderTrainingOptions,
    x: Value,
) -> Result<Vec<Value>, ModelError> {
    let rows = b.graph.ty(x).shape[0].known();
    let (Some(rows), 2..) = (rows, options.loss_parts) else {
        let x = norm(b, config, DecoderPart::FinalNorm, 0, x)?;
        let logits = whole_rows(b, config, x)?;
        return Ok(vec![match options.checkpoints {
            true => b.graph.checkpoint(logits)?,
            false => logits,
        }]);
    };
    let part = rows.div_ceil(options.loss_parts);
    let mut parts = Vec::new();
    for start in (0..rows).step_by(part) {
        let own = b.graph.narrow(x, 0, start, part.min(rows - start))?;
        // Save the input of the norm, so that backward recomputes the norm and the matmul. With the
        // norm saved, CSE would merge the recomputed matmul with the original one and keep the
        // logits in memory.
        let own = b.graph.checkpoint(own)?;
        let own = norm(b, config, DecoderPart::FinalNorm, 0, own)?;
        parts.push(whole_rows(b, config, own)?);
    }
    Ok(parts)
}

/// Logits of normalized rows, `[rows, vocab or more]`. If all weights are trained, zero columns
/// align each row to 16 bytes. Without this alignment matmuls, loss and gradients access memory
/// element by element.
fn whole_rows(
    b: &mut ModelBuilder<'_>,
    config: &DecoderSpec,
    x: Value,
) -> Result<Value, ModelError> {
    let vocab = config.vocab;
    let beyond = vocab.next_multiple_of(LOGIT_COLUMN_ALIGNMENT) - vocab;
    let is_trained = matches!(b.mode, WeightUse::Full);
    if !is_trained || vocab.is_multiple_of(8) || DecoderPart::Output.has_bias(config) {
        return head(b, config, x);
    }
    let part = match config.tied_embeddings {
        true => DecoderPart::Embedding,
        false => DecoderPart::Output,
    };
    let name = part.name(config, b.weights, 0, "weight");
    if b.is_turned(&name) {
        return head(b, config, x);
    }
    let w = b.dense(&name, &DecoderPart::Output.shape(config))?;
    let w = b
        .graph
        .pad(w, &[0, 0], &[beyond, 0], PadMode::Constant, 0.0)?;
    let w = b.graph.transpose(w, &[1, 0])?;
    let logits = b.graph.matmul(x, w)?;
    let logits = b.times(logits, config.scales.logits)?;
    soft_cap(b, logits, config.scales.logit_softcap)
}
