//! Training graphs of the llama family.
//!
//! Inputs, all I32 `[batch, len]`:
//!
//! | input | holds |
//! |---|---|
//! | `tokens` | the tokens |
//! | `positions` | the position of each within its text |
//! | `segments` | the number of its text: a token sees the tokens before it that have its own number |
//! | `labels` | the token that should come next, so shifted already; [`IGNORED`](super::IGNORED) where none counts |
//!
//! Padding is a text of its own whose labels are ignored. Without packing there is no input `segments`: each row is one
//! text, whose padding is at its end.

use tercet::ops::{AttentionMask, PadMode};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::check_causal;
use super::super::decoder::layer::{
    Attend, MOST_CONTEXT, Shared, embed, head, layer, norm, query_scales, rope_tables, soft_cap,
};
use super::super::tuned::Mode;
use super::super::{Builder, ModelError, Weights};
use super::loss::{LossTerms, cross_entropy, not_negative};
use super::states::with_states;
use super::{Training, Tuning};
use crate::config::decoder::{DecoderSpec, LayerSpec, Part};

/// What the columns of logits are a multiple of where rows would begin inside of vectors: what tiles of products take.
const WHOLE_COLUMNS: usize = 64;

/// Choices of a llama training graph.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderTrainingOptions {
    /// Rows of a batch.
    pub batch: Dim,
    /// Tokens of a row.
    pub len: Dim,
    /// What is trained.
    pub tuning: Tuning,
    /// The float dtype of the arithmetic: F32, F16 or BF16. The loss is computed in F32.
    pub dtype: DType,
    /// Whether rows hold several texts, told apart by `segments`.
    pub packed: bool,
    /// Whether only what enters a layer is kept for its gradients, and the rest computed again.
    pub checkpoints: bool,
    /// In how many parts the rows' logits and losses are computed, so that those of one part only are in memory at once
    /// (gradients compute them again); 1 unless batch and length are known numbers.
    pub loss_parts: usize,
    /// The probability with which elements are dropped of the embeddings and of the results of attention and of feed-forward
    /// networks. A graph to evaluate with is made with 0.
    pub dropout: f64,
    /// The part of a label's weight that is spread over all tokens (Szegedy and others, 2016).
    pub label_smoothing: f64,
    /// The factor of the squared logarithm of the sum of exponentials (Chowdhery and others, "PaLM", 2022).
    pub z_loss: f64,
}

impl DecoderTrainingOptions {
    /// Packed rows in F32, nothing computed twice, nothing dropped, plain cross-entropy.
    pub fn new(
        batch: impl Into<Dim>,
        len: impl Into<Dim>,
        tuning: Tuning,
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

    /// The number of rows of logits, checked.
    fn rows(&self, config: &DecoderSpec) -> Result<Dim, ModelError> {
        let unsupported = |reason: String| Err(ModelError::Unsupported(reason));
        if let Some(tokens) = self.len.known()
            && tokens > config.context
        {
            let context = config.context;
            return Err(ModelError::Context { tokens, context });
        }
        if config.context > MOST_CONTEXT {
            let context = config.context;
            return unsupported(format!(
                "a context of {context} tokens; at most {MOST_CONTEXT} are possible"
            ));
        }
        if self.packed && config.has_states() {
            return unsupported(
                "several texts in a row of a model whose layers have states: these would go from one text into the next; \
                 build it with `packed` false, a text in each row"
                    .to_string(),
            );
        }
        let Some(rows) = self.batch.checked_mul(&self.len) else {
            let (batch, len) = (&self.batch, &self.len);
            return unsupported(format!(
                "a batch of {batch} rows of {len} tokens is too large"
            ));
        };
        let most = rows.known().unwrap_or(1);
        if self.loss_parts == 0 || self.loss_parts > most {
            let parts = self.loss_parts;
            return unsupported(format!("{parts} parts of the loss; expected 1 to {most}"));
        }
        Ok(rows)
    }
}

impl Training {
    /// The training graph of a decoder over the weights of a file.
    ///
    /// A token, a position or a label outside its range ends the run.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or an option is not possible;
    /// [`ModelError::Adapter`] for a rank or a target that the model does not have.
    pub fn decoder(
        config: &DecoderSpec,
        weights: &Weights,
        options: &DecoderTrainingOptions,
    ) -> Result<Training, ModelError> {
        check_causal(config)?;
        let rows = options.rows(config)?;
        let terms = LossTerms {
            smoothing: options.label_smoothing,
            z_loss: options.z_loss,
        };
        let terms = terms.check()?;
        let mode = match &options.tuning {
            Tuning::Full => Mode::Full,
            Tuning::Lora(lora) => Mode::Lora(lora),
        };
        let b = Builder::new(weights, options.dtype).of_decoder(config);
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
        Training::of(forward, sums.ok_or(ModelError::NoTokens)?)
    }
}

/// What the layers make of the inputs, `[batch, len, hidden]`.
fn hidden(
    b: &mut Builder<'_>,
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
    let shared = Shared {
        attend: Attend::Whole {
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

/// What a query sees: the keys of its own segment that are not after it, the last `window` of them where there is one.
fn mask(
    b: &mut Builder<'_>,
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

/// The logits of `x [rows, hidden]`, before its norm, in as many parts as asked for. Where gradients compute again what enters a layer,
/// logits of one part are kept, since they would be computed twice for nothing.
fn parts_of_logits(
    b: &mut Builder<'_>,
    config: &DecoderSpec,
    options: &DecoderTrainingOptions,
    x: Value,
) -> Result<Vec<Value>, ModelError> {
    let rows = b.graph.ty(x).shape[0].known();
    let (Some(rows), 2..) = (rows, options.loss_parts) else {
        let x = norm(b, config, Part::FinalNorm, 0, x)?;
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
        // The norm is computed again as well: two products of one value would be made one, and kept.
        let own = b.graph.checkpoint(own)?;
        let own = norm(b, config, Part::FinalNorm, 0, own)?;
        parts.push(whole_rows(b, config, own)?);
    }
    Ok(parts)
}

/// Logits of normed rows, `[rows, vocab or more]`: where all weights are trained, columns of zeros make a row a whole number of vectors of 16
/// bytes, without which products and the loss, and their gradients, go through memory element by element.
fn whole_rows(b: &mut Builder<'_>, config: &DecoderSpec, x: Value) -> Result<Value, ModelError> {
    let vocab = config.vocab;
    let beyond = vocab.next_multiple_of(WHOLE_COLUMNS) - vocab;
    let is_trained = matches!(b.mode, Mode::Full);
    if !is_trained || vocab.is_multiple_of(8) || Part::Output.has_bias(config) {
        return head(b, config, x);
    }
    let part = match config.tied_embeddings {
        true => Part::Embedding,
        false => Part::Output,
    };
    let name = part.name(config, b.weights, 0, "weight");
    if b.is_turned(&name) {
        return head(b, config, x);
    }
    let w = b.dense(&name, &Part::Output.shape(config))?;
    let w = b
        .graph
        .pad(w, &[0, 0], &[beyond, 0], PadMode::Constant, 0.0)?;
    let w = b.graph.transpose(w, &[1, 0])?;
    let logits = b.graph.matmul(x, w)?;
    let logits = b.times(logits, config.logit_scale)?;
    soft_cap(b, logits, config.logit_softcap)
}
