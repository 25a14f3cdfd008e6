//! Classes of a classifier: their labels, and scores as they are given.

use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, Value};

use crate::call::{Call, Done};
use crate::elem::Narrow;
use crate::error::Reason;
use crate::val::{Maps, Val};

/// The labels of classes: numbers, or places of strings.
pub(super) struct Classes {
    labels: Vec<i64>,
    strings: bool,
}

impl Classes {
    /// The labels of the attribute `ints`, or of `classlabels_strings`.
    pub(super) fn read(k: &Call<'_, '_>, ints: &str) -> Result<Classes, Reason> {
        let numbers = k.attrs.ints_opt(ints)?.unwrap_or_default();
        let texts = k.attrs.strings_opt("classlabels_strings")?;
        let texts = texts.unwrap_or_default();
        let strings = match (numbers.is_empty(), texts.is_empty()) {
            (false, true) => false,
            (true, false) => true,
            (true, true) => return Err(Reason::attribute(ints, "there are no labels of classes")),
            (false, false) => {
                return Err(Reason::attribute(ints, "labels are numbers and strings"));
            }
        };
        let labels = match strings {
            true => k.c.strings.places(&texts),
            false => numbers.to_vec(),
        };
        Ok(Classes { labels, strings })
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The labels of classes that are given by number, `[samples]`.
    pub(super) fn labels(&self, k: &mut Call<'_, '_>, class: Value) -> Result<Val, Reason> {
        let labels = Tensor::from_slice(&[self.labels.len()], &self.labels)?;
        let labels = k.g().constant(labels)?;
        let chosen = Val::Graph(k.g().gather(labels, class, 0)?);
        Ok(match self.strings {
            true => Val::Narrow(Narrow::Text, chosen.into()),
            false => chosen,
        })
    }

    /// The label of the greatest score of each sample, and the scores after a transform: `[samples, classes]` both times.
    pub(super) fn greatest(
        &self,
        k: &mut Call<'_, '_>,
        scores: Value,
        transform: Transform,
    ) -> Done {
        let class = k.g().arg_max(scores, 1, false)?;
        let labels = self.labels(k, class)?;
        Ok(vec![labels, transform.apply(k, scores)?.into()])
    }

    /// The same for two classes of which only the second has a score, `[samples, 1]`; it is chosen above `threshold`, and
    /// `other` is the score of the first class.
    pub(super) fn of_two(
        &self,
        k: &mut Call<'_, '_>,
        score: Value,
        (threshold, other): (f64, Other),
        transform: Transform,
    ) -> Done {
        let bound = k.like(score, threshold)?;
        let above = k.g().compare(CompareFn::Gt, score, bound)?;
        let class = k.g().cast(above, DType::I64)?;
        let class = k.g().squeeze(class, 1)?;
        let labels = self.labels(k, class)?;
        let scores = Classes::scores_of_two(k, score, other, transform)?;
        Ok(vec![labels, scores.into()])
    }

    /// The scores of two classes by that of the second.
    pub(super) fn scores_of_two(
        k: &mut Call<'_, '_>,
        score: Value,
        other: Other,
        transform: Transform,
    ) -> Result<Value, Reason> {
        let negative = k.g().neg(score)?;
        let (first, second) = match (transform, other) {
            (Transform::Logistic, _) => (k.g().sigmoid(negative)?, k.g().sigmoid(score)?),
            // A normal quantile of one score is not said to make two.
            (Transform::Probit, _) => {
                let reason = "PROBIT of one score for two classes is not supported";
                return Err(Reason::attribute("post_transform", reason));
            }
            (_, Other::Negative) => (negative, score),
            (_, Other::Complement) => {
                let one = k.like(score, 1.0)?;
                (k.g().sub(one, score)?, score)
            }
        };
        Ok(k.g().concat(&[first, second], 1)?)
    }
}

/// The score of the first of two classes by that of the second.
#[derive(Clone, Copy)]
pub(super) enum Other {
    /// `-s`: scores are sums.
    Negative,
    /// `1 - s`: scores are probabilities.
    Complement,
}

/// What becomes of scores, the attribute `post_transform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn read(k: &Call<'_, '_>) -> Result<Transform, Reason> {
        let name = k.attrs.string("post_transform", "NONE")?;
        Ok(match name.as_str() {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => {
                let reason = format!("`{other}` is not known");
                return Err(Reason::attribute("post_transform", reason));
            }
        })
    }

    /// By its number in `TreeEnsemble`.
    pub(super) fn of_number(number: i64) -> Result<Transform, Reason> {
        Ok(match number {
            0 => Transform::None,
            1 => Transform::Softmax,
            2 => Transform::Logistic,
            3 => Transform::SoftmaxZero,
            4 => Transform::Probit,
            other => {
                let reason = format!("{other} is not known");
                return Err(Reason::attribute("post_transform", reason));
            }
        })
    }

    /// Scores `[samples, classes]` after it.
    pub(super) fn apply(self, k: &mut Call<'_, '_>, scores: Value) -> Result<Value, Reason> {
        match self {
            Transform::None => Ok(scores),
            Transform::Softmax => Ok(k.g().softmax(scores, 1)?),
            Transform::Logistic => Ok(k.g().sigmoid(scores)?),
            Transform::SoftmaxZero => softmax_of_scored(k, scores),
            Transform::Probit => probit(k, scores),
        }
    }
}

/// Softmax of the scores that are not 0; those that are stay 0.
fn softmax_of_scored(k: &mut Call<'_, '_>, scores: Value) -> Result<Value, Reason> {
    /// What counts as 0.
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

/// `sqrt(2) erfinv(2 s - 1)`, with the inverse of the error function by Winitzki's formula (2008), as ONNX defines it.
fn probit(k: &mut Call<'_, '_>, scores: Value) -> Result<Value, Reason> {
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

/// Scores as maps from labels: the same matrix, whose columns have keys.
pub(super) fn zip_map(k: &mut Call<'_, '_>) -> Done {
    let x = k.x(0)?;
    let numbers = k.attrs.ints_opt("classlabels_int64s")?;
    let texts = k.attrs.strings_opt("classlabels_strings")?;
    let keys: Vec<String> = match (numbers, texts) {
        (Some(numbers), None) => numbers.iter().map(i64::to_string).collect(),
        (None, Some(texts)) => texts,
        (None, None) | (Some(_), Some(_)) => {
            let reason = "keys are either numbers or strings";
            return Err(Reason::attribute("classlabels_int64s", reason));
        }
    };
    let last = k.rank(x).checked_sub(1);
    let last = last.ok_or_else(|| Reason::operand(0, "is a scalar"))?;
    let columns = k.size(x, last)?;
    if columns != keys.len() {
        let reason = format!("has {columns} columns, there are {} keys", keys.len());
        return Err(Reason::operand(0, reason));
    }
    Ok(vec![Val::Maps(Maps { keys, value: x }.into())])
}
