//! Training graphs of text encoders: embeddings of all families, classifiers of BERT's.
//!
//! | input | type | holds |
//! |---|---|---|
//! | `ids` | I32 `[rows, len]` | the tokens |
//! | `type_ids` | I32 `[rows, len]` | their types |
//! | `mask` | Bool `[rows, len]` | true for tokens, false for padding |
//! | `labels` | I32 `[batch]` | for classes: the class of each text, or [`IGNORED`](super::IGNORED) |
//!
//! Beside the loss there is the output `correct`, F32 `[]`: of how many texts the greatest logit is that of the label, or of how
//! many anchors the nearest text is their own.
//!
//! For classes `rows` is the batch. For pairs it is `2 + negatives` times that: all anchors, then the text that belongs
//! to each of them, then the texts that do not, those of all anchors in each part (Gao and others, "SimCSE", 2021;
//! Henderson and others, "Efficient natural language response suggestion", 2017).

use tercet::{DType, Dim, Graph, Tensor, TensorType, Type, Value};

use super::super::encoder::{Texts, encode, mean, mean_normalized};
use super::super::tuned::{Mode, uniform};
use super::super::weights::bytes_error;
use super::super::{Builder, ModelError, Weights};
use super::loss::{LossTerms, correct, cross_entropy, not_negative};
use super::states::with_states;
use super::{Training, Tuning};
use crate::config::EncoderSpec;
use crate::config::encoder::{EncoderFamily, EncoderNames, EncoderPart};

/// What classes are told from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassPooling {
    /// The first token's state through the model's own pooler, a dense layer and a hyperbolic tangent.
    Pooler,
    /// The first token's state.
    First,
    /// The mean over the tokens.
    Mean,
}

/// What an encoder is trained for.
#[derive(Clone, Debug, PartialEq)]
pub enum BertTask {
    /// The class of a text, by a linear layer `classifier`, which is trained whole in any case and starts as the model
    /// has it, or near zero.
    Classes {
        /// The number of classes.
        classes: usize,
        /// What they are told from.
        pooling: ClassPooling,
    },
    /// That texts which belong together have embeddings (means over tokens, normalized) nearer than others of the batch.
    Pairs {
        /// What cosines are divided by; 0.05 is usual.
        temperature: f64,
        /// Texts per anchor that are known not to belong to it.
        negatives: usize,
    },
}

/// Choices of a BERT training graph.
#[derive(Clone, Debug, PartialEq)]
pub struct BertTrainingOptions {
    /// Texts, or pairs, of a batch.
    pub batch: Dim,
    /// Tokens of a text, padding included.
    pub len: Dim,
    /// What is trained.
    pub tuning: Tuning,
    /// What for.
    pub task: BertTask,
    /// The float dtype of the encoder's arithmetic: F32, F16 or BF16. What follows it is computed in F32.
    pub dtype: DType,
    /// Whether only what enters a layer is kept for its gradients, and the rest computed again.
    pub checkpoints: bool,
    /// The part of a label's weight that is spread over all classes.
    pub label_smoothing: f64,
    /// The probability with which elements are dropped of the embeddings, of the results of attention and of feed-forward
    /// networks, and of what a classifier reads. Those of attention's probabilities, which are never in memory, are not
    /// dropped. A graph to evaluate with is made with 0.
    pub dropout: f64,
    /// Seed of a classifier's first values, and of what is dropped.
    pub seed: u64,
}

impl BertTrainingOptions {
    /// In F32, nothing computed twice, no smoothing, nothing dropped, seed 0.
    pub fn new(
        batch: impl Into<Dim>,
        len: impl Into<Dim>,
        tuning: Tuning,
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

    /// How many texts of a batch go with each of its labels or pairs.
    fn texts_each(&self) -> Result<usize, ModelError> {
        let unsupported = |reason: String| Err(ModelError::Unsupported(reason));
        match self.task {
            BertTask::Classes { classes: 0, .. } => {
                unsupported("a classifier of no classes".into())
            }
            BertTask::Classes { .. } => Ok(1),
            BertTask::Pairs { temperature, .. }
                if !(temperature.is_finite() && temperature > 0.0) =>
            {
                unsupported(format!(
                    "a temperature of {temperature}; expected a finite number above 0"
                ))
            }
            BertTask::Pairs { negatives, .. } => Ok(negatives.saturating_add(2)),
        }
    }
}

impl Training {
    /// The training graph of a text encoder over the weights of a file.
    ///
    /// A token or a label outside its range ends the run.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or an option is not possible;
    /// [`ModelError::Adapter`] for a rank or a target that the model does not have.
    pub fn bert(
        config: &EncoderSpec,
        weights: &Weights,
        options: &BertTrainingOptions,
    ) -> Result<Training, ModelError> {
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
                "training a classifier of the family {family}; that of bert is, and embeddings of all"
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
            Tuning::Full => Mode::Full,
            Tuning::Lora(lora) => Mode::Lora(lora),
        };
        let b = Builder::new(weights, options.dtype).in_mode(mode);
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
        let mut training = Training::of(forward, sums)?;
        training.graph.output("correct", correct)?;
        Ok(training)
    }
}

fn inputs(b: &mut Builder<'_>, rows: Dim, len: &Dim) -> Result<(Texts, Value), ModelError> {
    let g = &mut b.graph;
    let of = |dtype| Type::new(dtype, [rows.clone(), len.clone()]);
    let ids = g.input("ids", of(DType::I32))?;
    let type_ids = g.input("type_ids", of(DType::I32))?;
    let mask = g.input("mask", of(DType::Bool))?;
    let texts = Texts {
        ids: not_negative(g, ids)?,
        type_ids: Some(not_negative(g, type_ids)?),
        mask: Some(mask),
    };
    Ok((texts, mask))
}

/// `[batch, classes]`.
fn class_logits(
    b: &mut Builder<'_>,
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
            let names = EncoderNames::of(config, b.weights);
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

/// What the file has; else uniform numbers of a standard deviation of 0.02, and zeros for a bias.
fn first_values(
    b: &Builder<'_>,
    name: &str,
    shape: &[usize],
    seed: u64,
) -> Result<Tensor, ModelError> {
    if !matches!(b.weights, Weights::MadeUp(_)) && b.weights.has(name) {
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

/// The losses of `vectors [each * batch, hidden]`: of each anchor, that its own text is the nearest of all; and of how many it is.
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
    // The own text of anchor `i` is column `i`: the sum of so many ones, less one.
    let one = g.scalar(DType::I32, 1.0)?;
    let ones = g.expand(one, [batch.clone()])?;
    let counted = g.cum_sum(ones, 0)?;
    let own = g.sub(counted, one)?;
    let sums = cross_entropy(g, scores, own, None, terms)?;
    Ok((sums, correct(g, scores, own)?))
}
