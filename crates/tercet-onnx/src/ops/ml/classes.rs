//! The labels and scores of classifiers.

use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, Value};

use crate::call::{ImportNode, NodeOutputs};
use crate::elem::Narrow;
use crate::error::NodeErrorKind;
use crate::val::{ImportedValue, SampleMaps};

/// The labels of classes: numbers, or indices of strings.
pub(super) struct ClassLabels {
    labels: Vec<i64>,
    strings: bool,
}

impl ClassLabels {
    /// Reads the labels from the attribute `ints` or from `classlabels_strings`.
    pub(super) fn read(k: &ImportNode<'_, '_>, ints: &str) -> Result<ClassLabels, NodeErrorKind> {
        let numbers = k.attrs.ints_opt(ints)?.unwrap_or_default();
        let texts = k.attrs.strings_opt("classlabels_strings")?;
        let texts = texts.unwrap_or_default();
        let strings = match (numbers.is_empty(), texts.is_empty()) {
            (false, true) => false,
            (true, false) => true,
            (true, true) => {
                return Err(NodeErrorKind::attribute(ints, "class labels are missing"));
            }
            (false, false) => {
                return Err(NodeErrorKind::attribute(
                    ints,
                    "labels must be either numbers or strings, found both",
                ));
            }
        };
        let labels = match strings {
            true => k.c.strings.places(&texts),
            false => numbers.to_vec(),
        };
        Ok(ClassLabels { labels, strings })
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The labels for class indices, `[samples]`.
    pub(super) fn labels(
        &self,
        k: &mut ImportNode<'_, '_>,
        class: Value,
    ) -> Result<ImportedValue, NodeErrorKind> {
        let labels = Tensor::from_slice(&[self.labels.len()], &self.labels)?;
        let labels = k.g().constant(labels)?;
        let chosen = ImportedValue::Graph(k.g().gather(labels, class, 0)?);
        Ok(match self.strings {
            true => ImportedValue::Narrow(Narrow::Text, chosen.into()),
            false => chosen,
        })
    }

    /// The label with the maximum score `[samples]`, and the scores after a transform `[samples,
    /// classes]`, for each sample.
    pub(super) fn greatest(
        &self,
        k: &mut ImportNode<'_, '_>,
        scores: Value,
        transform: PostTransform,
    ) -> NodeOutputs {
        let class = k.g().arg_max(scores, 1, false)?;
        let labels = self.labels(k, class)?;
        Ok(vec![labels, transform.apply(k, scores)?.into()])
    }

    /// As `greatest`, for two classes of which only the second has a score, `[samples, 1]`. The
    /// second class is chosen if the score exceeds `threshold`; `other` gives the score of the
    /// first class.
    pub(super) fn binary(
        &self,
        k: &mut ImportNode<'_, '_>,
        score: Value,
        (threshold, other): (f64, BinaryScoreRule),
        transform: PostTransform,
    ) -> NodeOutputs {
        let bound = k.like(score, threshold)?;
        let above = k.g().compare(CompareFn::Gt, score, bound)?;
        let class = k.g().cast(above, DType::I64)?;
        let class = k.g().squeeze(class, 1)?;
        let labels = self.labels(k, class)?;
        let scores = ClassLabels::scores_of_two(k, score, other, transform)?;
        Ok(vec![labels, scores.into()])
    }

    /// The scores of two classes from the score of the second.
    pub(super) fn scores_of_two(
        k: &mut ImportNode<'_, '_>,
        score: Value,
        other: BinaryScoreRule,
        transform: PostTransform,
    ) -> Result<Value, NodeErrorKind> {
        let negative = k.g().neg(score)?;
        let (first, second) = match (transform, other) {
            (PostTransform::Logistic, _) => (k.g().sigmoid(negative)?, k.g().sigmoid(score)?),
            // The specification does not define PROBIT for a single score of two classes.
            (PostTransform::Probit, _) => {
                let reason = "PROBIT is not supported for a single score of two classes";
                return Err(NodeErrorKind::attribute("post_transform", reason));
            }
            (_, BinaryScoreRule::Negative) => (negative, score),
            (_, BinaryScoreRule::Complement) => {
                let one = k.like(score, 1.0)?;
                (k.g().sub(one, score)?, score)
            }
        };
        Ok(k.g().concat(&[first, second], 1)?)
    }
}

/// The score of the first of two classes, derived from that of the second.
#[derive(Clone, Copy)]
pub(super) enum BinaryScoreRule {
    /// `-s`, if scores are sums.
    Negative,
    /// `1 - s`, if scores are probabilities.
    Complement,
}

/// The transform of scores, from the attribute `post_transform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostTransform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl PostTransform {
    pub(super) fn read(k: &ImportNode<'_, '_>) -> Result<PostTransform, NodeErrorKind> {
        let name = k.attrs.string("post_transform", "NONE")?;
        Ok(match name.as_str() {
            "NONE" => PostTransform::None,
            "SOFTMAX" => PostTransform::Softmax,
            "LOGISTIC" => PostTransform::Logistic,
            "SOFTMAX_ZERO" => PostTransform::SoftmaxZero,
            "PROBIT" => PostTransform::Probit,
            other => {
                let reason = format!("`{other}` is not known");
                return Err(NodeErrorKind::attribute("post_transform", reason));
            }
        })
    }

    /// The transform with this number in `TreeEnsemble`.
    pub(super) fn from_number(number: i64) -> Result<PostTransform, NodeErrorKind> {
        Ok(match number {
            0 => PostTransform::None,
            1 => PostTransform::Softmax,
            2 => PostTransform::Logistic,
            3 => PostTransform::SoftmaxZero,
            4 => PostTransform::Probit,
            other => {
                let reason = format!("{other} is not known");
                return Err(NodeErrorKind::attribute("post_transform", reason));
            }
        })
    }

    /// Applies the transform to scores `[samples, classes]`.
    pub(super) fn apply(
        self,
        k: &mut ImportNode<'_, '_>,
        scores: Value,
    ) -> Result<Value, NodeErrorKind> {
        match self {
            PostTransform::None => Ok(scores),
            PostTransform::Softmax => Ok(k.g().softmax(scores, 1)?),
            PostTransform::Logistic => Ok(k.g().sigmoid(scores)?),
            PostTransform::SoftmaxZero => softmax_of_scored(k, scores),
            PostTransform::Probit => probit(k, scores),
        }
    }
}

/// Softmax of the nonzero scores; scores of 0 stay 0.
fn softmax_of_scored(k: &mut ImportNode<'_, '_>, scores: Value) -> Result<Value, NodeErrorKind> {
    /// Maximum magnitude of a score that counts as 0.
    const NOTHING: f64 = 1e-7;
    let (nothing, zero) = (k.like(scores, NOTHING)?, k.like(scores, 0.0)?);
    let g = k.g();
    let size = g.abs(scores)?;
    let scored = g.compare(CompareFn::Gt, size, nothing)?;
    let greatest = g.reduce(tercet_ir::ops::ReduceFn::Max, scores, &[1], true)?;
    let centered = g.sub(scores, greatest)?;
    let weights = g.unary(UnaryFn::Exp, centered)?;
    let weights = g.where_(scored, weights, zero)?;
    let total = g.reduce(tercet_ir::ops::ReduceFn::Sum, weights, &[1], true)?;
    Ok(g.div(weights, total)?)
}

/// `sqrt(2) erfinv(2 s - 1)`, with Winitzki's approximation of the inverse error function (2008),
/// as ONNX defines it.
fn probit(k: &mut ImportNode<'_, '_>, scores: Value) -> Result<Value, NodeErrorKind> {
    const A: f64 = 0.147;
    let mut number = |n: f64| k.like(scores, n);
    let (one, two, half) = (number(1.0)?, number(2.0)?, number(0.5)?);
    let (of_pi, of_log) = (number(2.0 / (std::f64::consts::PI * A))?, number(1.0 / A)?);
    let root_two = number(std::f64::consts::SQRT_2)?;
    let g = k.g();
    let doubled = g.mul(scores, two)?;
    let x = g.sub(doubled, one)?;
    let (below, above) = (g.sub(one, x)?, g.plus(one, x)?);
    let product = g.mul(below, above)?;
    let log = g.unary(UnaryFn::Ln, product)?;
    let half_log = g.mul(log, half)?;
    let v = g.plus(half_log, of_pi)?;
    let square = g.mul(v, v)?;
    let rest = g.mul(log, of_log)?;
    let inner = g.sub(square, rest)?;
    let inner = g.sqrt(inner)?;
    let size = g.sub(inner, v)?;
    let size = g.sqrt(size)?;
    let sign = g.unary(UnaryFn::Sign, x)?;
    let y = g.binary(BinaryFn::Mul, size, sign)?;
    Ok(g.mul(y, root_two)?)
}

/// Represents maps from labels to scores as the score matrix, with keys for its columns.
pub(super) fn zip_map(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let numbers = k.attrs.ints_opt("classlabels_int64s")?;
    let texts = k.attrs.strings_opt("classlabels_strings")?;
    let keys: Vec<String> = match (numbers, texts) {
        (Some(numbers), None) => numbers.iter().map(i64::to_string).collect(),
        (None, Some(texts)) => texts,
        (None, None) | (Some(_), Some(_)) => {
            let reason = "keys must be either numbers or strings";
            return Err(NodeErrorKind::attribute("classlabels_int64s", reason));
        }
    };
    let last = k.rank(x).checked_sub(1);
    let last = last.ok_or_else(|| NodeErrorKind::operand(0, "is a scalar"))?;
    let columns = k.size(x, last)?;
    if columns != keys.len() {
        let reason = format!(
            "has {columns} columns, expected {} as the number of keys",
            keys.len()
        );
        return Err(NodeErrorKind::operand(0, reason));
    }
    Ok(vec![ImportedValue::Maps(
        SampleMaps { keys, value: x }.into(),
    )])
}
