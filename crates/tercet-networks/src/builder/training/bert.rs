//! Training graphs of text encoders: embeddings for all families, classification for the BERT
//! family.
//!
//! | input | type | contents |
//! |---|---|---|
//! | `ids` | I32 `[rows, len]` | token ids |
//! | `type_ids` | I32 `[rows, len]` | segment ids |
//! | `mask` | Bool `[rows, len]` | true for tokens, false for padding |
//! | `labels` | I32 `[batch]` | classification only: the class of each text, or [`IGNORED`](super::IGNORED) |
//!
//! Besides the loss there is the output `correct`, F32 `[]`. The output counts the texts whose
//! greatest logit is the label, or the anchors whose nearest text is their positive.
//!
//! For classification `rows` is the batch. For pairs it is `2 + negatives` times the batch: all
//! anchors, then the positive text of each anchor, then the negatives. Each of these parts contains
//! one text per anchor (Gao et al., "SimCSE", 2021; Henderson et al., "Efficient natural language
//! response suggestion", 2017).

use tercet::{DType, Dim, Graph, Tensor, TensorType, Type, Value};

use super::super::encoder::{EncoderTexts, encode, mean, mean_normalized};
use super::super::trainable::{WeightUse, uniform};
use super::super::weights::bytes_error;
use super::super::{ModelBuilder, ModelError, Weights};
use super::loss::{LossTerms, correct, cross_entropy, not_negative};
use super::states::with_states;
use super::{FineTuneMode, TrainingGraph};
use crate::config::EncoderSpec;
use crate::config::encoder::{EncoderFamily, EncoderNames, EncoderPart};

/// Pooling that provides the input of the classifier.
///
/// ```
/// use tercet_networks::training::{BertTask, ClassPooling};
/// let task = BertTask::Classes { classes: 3, pooling: ClassPooling::Mean };
/// assert!(matches!(task, BertTask::Classes { pooling: ClassPooling::Mean, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassPooling {
    /// First token's state after the model's own pooler, a dense layer with tanh.
    Pooler,
    /// First token's state.
    First,
    /// Mean over the tokens.
    Mean,
}

/// Training task of an encoder.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// # let spec = tercet_networks::EncoderSpec::bert(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::training::{BertTask, BertTrainingOptions, FineTuneMode, TrainingGraph};
/// let task = BertTask::Pairs { temperature: 0.05, negatives: 0 };
/// let options = BertTrainingOptions::new(4, 16, FineTuneMode::Full, task);
/// let training = TrainingGraph::bert(&spec, &weights, &options)?;
/// assert!(training.trained_numbers() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum BertTask {
    /// Text classification with a linear layer `classifier`. The layer is always fully trained. The
    /// layer starts from the file's values, or near zero if the file has none.
    Classes {
        /// Number of classes.
        classes: usize,
        /// Pooling of the classifier's input.
        pooling: ClassPooling,
    },
    /// Contrastive embedding training: embeddings (mean over tokens, normalized) of matching texts
    /// become more similar than those of the other texts in the batch.
    Pairs {
        /// Divisor of the cosine similarities; 0.05 is usual.
        temperature: f64,
        /// Explicit negative texts per anchor.
        negatives: usize,
    },
}

/// Options of an encoder training graph.
///
/// ```
/// use tercet_networks::training::{BertTask, BertTrainingOptions, ClassPooling, FineTuneMode};
/// let task = BertTask::Classes { classes: 2, pooling: ClassPooling::Pooler };
/// let options = BertTrainingOptions::new("b", "s", FineTuneMode::Full, task);
/// let options = BertTrainingOptions { dropout: 0.1, ..options };
/// assert_eq!(options.batch, tercet::Dim::sym("b"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BertTrainingOptions {
    /// Texts or pairs per batch.
    pub batch: Dim,
    /// Tokens per text, padding included.
    pub len: Dim,
    /// Full fine-tuning or LoRA.
    pub tuning: FineTuneMode,
    /// Training task.
    pub task: BertTask,
    /// Float dtype of the encoder's arithmetic: F32, F16 or BF16. The head and the loss are
    /// computed in F32.
    pub dtype: DType,
    /// Activation checkpointing: only the input of each layer is saved for backward; the rest is
    /// recomputed.
    pub checkpoints: bool,
    /// Label smoothing: the part of a label's weight that is spread over all classes.
    pub label_smoothing: f64,
    /// Dropout probability for the embeddings, the attention outputs, the feed-forward outputs and
    /// the classifier's input. Attention probabilities are never in memory, so dropout does not
    /// apply to them. Use 0 for an evaluation graph.
    pub dropout: f64,
    /// Seed of the classifier's initial values and of dropout.
    pub seed: u64,
}

impl BertTrainingOptions {
    /// Default options: F32, no checkpointing, no smoothing, no dropout, seed 0.
    pub fn new(
        batch: impl Into<Dim>,
        len: impl Into<Dim>,
        tuning: FineTuneMode,
        task: BertTask,
    ) -> BertTrainingOptions {
        BertTrainingOptions {
            batch: batch.into(),
            len: len.into(),
            tuning,
            task,
            dtype: DType::F32,
            checkpoints: false,
            label_smoothing: 0.0,
            dropout: 0.0,
            seed: 0,
        }
    }

    /// Number of texts per label or pair.
    fn texts_each(&self) -> Result<usize, ModelError> {
        let unsupported = |reason: String| Err(ModelError::Unsupported(reason));
        match self.task {
            BertTask::Classes { classes: 0, .. } => {
                unsupported("the classifier has no classes; expected at least 1".into())
            }
            BertTask::Classes { .. } => Ok(1),
            BertTask::Pairs { temperature, .. }
                if !(temperature.is_finite() && temperature > 0.0) =>
            {
                unsupported(format!(
                    "temperature {temperature} is out of range; expected a finite number above 0"
                ))
            }
            BertTask::Pairs { negatives, .. } => Ok(negatives.saturating_add(2)),
        }
    }
}

impl TrainingGraph {
    /// Builds the training graph of a text encoder from the weights of a file.
    ///
    /// A run fails if a token or label is outside its range.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if an option
    /// is out of range. [`ModelError::Adapter`] for a rank or target that the model does not have.
    pub fn bert(
        config: &EncoderSpec,
        weights: &Weights,
        options: &BertTrainingOptions,
    ) -> Result<TrainingGraph, ModelError> {
        let terms = LossTerms {
            smoothing: options.label_smoothing,
            z_loss: 0.0,
        };
        let terms = terms.check()?;
        if let Some(tokens) = options.len.known()
            && tokens > config.context
        {
            let context = config.context;
            return Err(ModelError::Context { tokens, context });
        }
        if let BertTask::Classes { .. } = options.task
            && config.family != EncoderFamily::BERT
        {
            let family = config.family.model_type();
            return Err(ModelError::Unsupported(format!(
                "training a classifier is not supported for the family {family}; use bert, or train embeddings"
            )));
        }
        let each = Dim::Known(options.texts_each()?);
        let Some(rows) = options.batch.checked_mul(&each) else {
            let batch = &options.batch;
            return Err(ModelError::Unsupported(format!(
                "a batch of {batch} is too large"
            )));
        };
        let mode = match &options.tuning {
            FineTuneMode::Full => WeightUse::Full,
            FineTuneMode::Lora(lora) => WeightUse::Lora(lora),
        };
        let b = ModelBuilder::new(weights, options.dtype).in_mode(mode);
        let mut b = b.with_dropout(options.dropout, options.seed)?;
        let (texts, mask) = inputs(&mut b, rows, &options.len)?;
        let x = encode(&mut b, config, &texts, options.checkpoints)?;
        let head = match options.task {
            BertTask::Classes { classes, pooling } => {
                class_logits(&mut b, config, options.seed, classes, pooling, x, mask)?
            }
            BertTask::Pairs { .. } => x,
        };
        let mut found = None;
        let forward = with_states(b, &[head], &mut |g, head| {
            found = Some(match options.task {
                BertTask::Classes { .. } => {
                    let ty = Type::new(DType::I32, [options.batch.clone()]);
                    let labels = g.input("labels", ty)?;
                    let sums = cross_entropy(g, head, labels, None, terms)?;
                    (sums, correct(g, head, labels)?)
                }
                BertTask::Pairs { temperature, .. } => {
                    let mask = g.leaf("mask").map(|node| Value { node, port: 0 });
                    let mask = mask.ok_or(ModelError::NoTokens)?;
                    let vectors = mean_normalized(g, head, mask)?;
                    pair_losses(g, vectors, &options.batch, each.clone(), temperature, terms)?
                }
            });
            Ok(())
        })?;
        let (sums, correct) = found.ok_or(ModelError::NoTokens)?;
        let mut training = TrainingGraph::new(forward, sums)?;
        training.graph.output("correct", correct)?;
        Ok(training)
    }
}

fn inputs(
    b: &mut ModelBuilder<'_>,
    rows: Dim,
    len: &Dim,
) -> Result<(EncoderTexts, Value), ModelError> {
    let g = &mut b.graph;
    let of = |dtype| Type::new(dtype, [rows.clone(), len.clone()]);
    let ids = g.input("ids", of(DType::I32))?;
    let type_ids = g.input("type_ids", of(DType::I32))?;
    let mask = g.input("mask", of(DType::Bool))?;
    let texts = EncoderTexts {
        ids: not_negative(g, ids)?,
        type_ids: Some(not_negative(g, type_ids)?),
        mask: Some(mask),
    };
    Ok((texts, mask))
}

/// Logits of each text, `[batch, classes]`.
fn class_logits(
    b: &mut ModelBuilder<'_>,
    config: &EncoderSpec,
    seed: u64,
    classes: usize,
    pooling: ClassPooling,
    x: Value,
    mask: Value,
) -> Result<Value, ModelError> {
    let hidden = config.hidden;
    let pooled = match pooling {
        ClassPooling::Mean => mean(&mut b.graph, x, mask)?,
        ClassPooling::First | ClassPooling::Pooler => {
            let first = b.graph.narrow(x, 1, 0, 1)?;
            b.graph.squeeze(first, 1)?
        }
    };
    let pooled = match pooling {
        ClassPooling::Pooler => {
            let names = EncoderNames::new(config, b.weights);
            let name = |what: &str| names.tensor(EncoderPart::HeadDense, 0, what);
            let (weight, bias) = (name("weight"), name("bias"));
            let y = b.linear(pooled, &weight, Some(&bias), [hidden, hidden])?;
            b.graph.tanh(y)?
        }
        ClassPooling::First | ClassPooling::Mean => pooled,
    };
    let pooled = b.drop(pooled)?;
    let weight = first_values(b, "classifier.weight", &[classes, hidden], seed)?;
    let bias = first_values(b, "classifier.bias", &[classes], seed)?;
    let weight = b.trained_param("classifier.weight", weight)?;
    let bias = b.trained_param("classifier.bias", bias)?;
    let weight = b.graph.transpose(weight, &[1, 0])?;
    let y = b.graph.matmul(pooled, weight)?;
    Ok(b.graph.plus(y, bias)?)
}

/// Initial values of a classifier tensor: the file's values if present. Otherwise weights are
/// uniform with standard deviation 0.02 and biases are zero.
fn first_values(
    b: &ModelBuilder<'_>,
    name: &str,
    shape: &[usize],
    seed: u64,
) -> Result<Tensor, ModelError> {
    if !matches!(b.weights, Weights::Dummy(_)) && b.weights.has(name) {
        return b.weights.dense_f32(name, shape);
    }
    let failed = |e| bytes_error(name, e);
    let mut tensor = Tensor::zeros(TensorType::new(DType::F32, shape)).map_err(failed)?;
    if shape.len() == 2 {
        let bound = 0.02 * 3f64.sqrt();
        uniform(name, seed, bound, tensor.as_slice_mut().map_err(failed)?);
    }
    Ok(tensor)
}

/// Contrastive losses of `vectors [each * batch, hidden]`: each anchor should be nearest to its
/// positive. Also returns the number of anchors whose nearest text is their positive.
fn pair_losses(
    g: &mut Graph,
    vectors: Value,
    batch: &Dim,
    each: Dim,
    temperature: f64,
    terms: LossTerms,
) -> Result<([Value; 2], Value), ModelError> {
    let hidden = g.ty(vectors).shape[1].clone();
    let texts = each.known().unwrap_or(2);
    let parts = g.reshape(vectors, [each, batch.clone(), hidden.clone()])?;
    let anchors = g.narrow(parts, 0, 0, 1)?;
    let anchors = g.reshape(anchors, [batch.clone(), hidden.clone()])?;
    let others = g.narrow(parts, 0, 1, texts - 1)?;
    let too_many = || ModelError::Unsupported(format!("a batch of {batch} is too large"));
    let rows = batch
        .checked_mul(&Dim::Known(texts - 1))
        .ok_or_else(too_many)?;
    let others = g.reshape(others, [rows, hidden])?;
    let others = g.transpose(others, &[1, 0])?;
    let scores = g.matmul(anchors, others)?;
    let divisor = g.scalar(DType::F32, temperature)?;
    let scores = g.div(scores, divisor)?;
    // The positive of anchor `i` is column `i`, so the labels are `0..batch`.
    let one = g.scalar(DType::I32, 1.0)?;
    let ones = g.expand(one, [batch.clone()])?;
    let counted = g.cum_sum(ones, 0)?;
    let own = g.sub(counted, one)?;
    let sums = cross_entropy(g, scores, own, None, terms)?;
    Ok((sums, correct(g, scores, own)?))
}
