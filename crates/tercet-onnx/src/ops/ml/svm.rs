//! Support vector machines with the conventions of libsvm (Chang and Lin, 2011).

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, Value};

use super::classes::BinaryScoreRule;
use super::{ClassLabels, PostTransform, features_f32, floats, table};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

/// Applies the kernel of the attributes `kernel_type` and `kernel_params` to samples and support
/// vectors: `[samples, vectors]`.
fn kernel(k: &mut ImportNode<'_, '_>, x: Value, vectors: Value) -> Result<Value, NodeErrorKind> {
    let name = k.attrs.string("kernel_type", "LINEAR")?;
    let [gamma, coef0, degree] = match k.attrs.floats_opt("kernel_params")?.unwrap_or_default() {
        [] => [0.0, 0.0, 3.0],
        [gamma, coef0, degree] => [*gamma, *coef0, *degree].map(f64::from),
        other => {
            let reason = format!("has {} values, expected three", other.len());
            return Err(NodeErrorKind::attribute("kernel_params", reason));
        }
    };
    if name == "RBF" {
        // Use differences, because an expansion into squared norms suffers from cancellation.
        let gamma = k.like(x, -gamma)?;
        let g = k.g();
        let (x, v) = (g.unsqueeze(x, 1)?, g.unsqueeze(vectors, 0)?);
        let difference = g.sub(x, v)?;
        let squares = g.mul(difference, difference)?;
        let distance = g.reduce(ReduceFn::Sum, squares, &[2], false)?;
        let exponent = g.mul(distance, gamma)?;
        return Ok(g.unary(UnaryFn::Exp, exponent)?);
    }
    let turned = k.g().transpose(vectors, &[1, 0])?;
    let product = k.g().matmul(x, turned)?;
    if name == "LINEAR" {
        return Ok(product);
    }
    let (gamma, coef0, degree) = (k.like(x, gamma)?, k.like(x, coef0)?, k.like(x, degree)?);
    let scaled = k.g().mul(product, gamma)?;
    let moved = k.g().plus(scaled, coef0)?;
    match name.as_str() {
        "POLY" => Ok(k.g().pow(moved, degree)?),
        "SIGMOID" => Ok(k.g().tanh(moved)?),
        other => {
            let reason = format!("expected LINEAR, POLY, RBF or SIGMOID, found `{other}`");
            Err(NodeErrorKind::attribute("kernel_type", reason))
        }
    }
}

/// The support vectors, `[vectors, features]`.
fn support(k: &mut ImportNode<'_, '_>, x: Value, count: usize) -> Result<Value, NodeErrorKind> {
    let features = k.size(x, 1)?;
    let size = count.checked_mul(features);
    let size = size.ok_or_else(|| NodeErrorKind::unsupported("support vectors overflow"))?;
    let vectors = floats(k, "support_vectors", size)?;
    let vectors = Tensor::from_slice(&[count, features], vectors)?;
    table(k, "support_vectors", vectors)
}

/// `sum of c K(x, v) + rho`, `[samples, 1]`; a linear model if there are no support vectors.
pub(super) fn regressor(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = features_f32(k)?;
    let transform = PostTransform::read(k)?;
    let count = usize::try_from(k.attrs.int("n_supports", 0)?);
    let count = count.map_err(|_| NodeErrorKind::attribute("n_supports", "is negative"))?;
    let kernels = match count {
        0 => {
            k.attrs
                .ignore(&["kernel_type", "kernel_params", "support_vectors"]);
            x
        }
        _ => {
            let vectors = support(k, x, count)?;
            kernel(k, x, vectors)?
        }
    };
    let width = k.size(kernels, 1)?;
    let coefficients = Tensor::from_slice(&[width, 1], floats(k, "coefficients", width)?)?;
    let coefficients = table(k, "coefficients", coefficients)?;
    let rho = f64::from(floats(k, "rho", 1)?[0]);
    let rho = k.like(x, rho)?;
    let y = k.g().matmul(kernels, coefficients)?;
    let y = k.g().plus(y, rho)?;
    if !k.attrs.flag("one_class", false)? {
        return one(transform.apply(k, y)?);
    }
    let (zero, inside, outside) = (k.like(y, 0.0)?, k.like(y, 1.0)?, k.like(y, -1.0)?);
    let above = k.g().compare(CompareFn::Gt, y, zero)?;
    one(k.g().where_(above, inside, outside)?)
}

/// One-versus-one classification: each pair of classes votes for one of the two. The result has one
/// score per pair of classes.
pub(super) fn classifier(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let classes = ClassLabels::read(k, "classlabels_ints")?;
    let transform = PostTransform::read(k)?;
    let n = classes.len();
    let counts = k.attrs.ints_opt("vectors_per_class")?.unwrap_or_default();
    let of_class: Option<Vec<usize>> = counts.iter().map(|c| usize::try_from(*c).ok()).collect();
    let of_class = of_class.filter(|c| c.len() == n && n > 1).ok_or_else(|| {
        let reason = format!("{} values for {n} classes are not supported", counts.len());
        NodeErrorKind::attribute("vectors_per_class", reason)
    })?;
    let x = features_f32(k)?;
    let total = of_class
        .iter()
        .try_fold(0usize, |sum, c| sum.checked_add(*c));
    let total = total.ok_or_else(|| NodeErrorKind::unsupported("support vectors overflow"))?;
    let vectors = support(k, x, total)?;
    let kernels = kernel(k, x, vectors)?;
    let pairs = SvmPairs::new(k, &of_class, total)?;
    let weights = table(k, "coefficients", pairs.weights)?;
    let rho = floats(k, "rho", pairs.count)?;
    let rho = k.g().constant(Tensor::from_slice(&[pairs.count], rho)?)?;
    let y = k.g().matmul(kernels, weights)?;
    let y = k.g().plus(y, rho)?;
    let class = pairs.votes.count(k, y)?;
    let labels = classes.labels(k, class)?;
    let given = |k: &ImportNode<'_, '_>, name: &str| -> Result<bool, NodeErrorKind> {
        Ok(k.attrs.floats_opt(name)?.is_some_and(|p| !p.is_empty()))
    };
    if given(k, "prob_a")? || given(k, "prob_b")? {
        let scores = super::coupling::probabilities(k, y, n)?;
        let scores = transform.apply(k, scores)?;
        return Ok(vec![labels, scores.into()]);
    }
    let scores = match n {
        2 => {
            let other = match transform {
                PostTransform::None => BinaryScoreRule::Negative,
                _ => BinaryScoreRule::Complement,
            };
            ClassLabels::scores_of_two(k, y, other, transform)?
        }
        _ => transform.apply(k, y)?,
    };
    Ok(vec![labels, scores.into()])
}

/// The coefficients of each pair of classes, and the votes.
struct SvmPairs {
    count: usize,
    /// The coefficients, `[vectors, pairs]`.
    weights: Tensor,
    votes: SvmVotes,
}

/// The votes `[pairs, classes]` that a positive score changes, relative to the votes if all scores
/// are negative.
struct SvmVotes {
    of_positive: Tensor,
    without: Tensor,
}

impl SvmPairs {
    /// Converts coefficients `[classes - 1, vectors]`: a vector has one for each class except its
    /// own.
    fn new(
        k: &mut ImportNode<'_, '_>,
        of_class: &[usize],
        total: usize,
    ) -> Result<SvmPairs, NodeErrorKind> {
        let n = of_class.len();
        let count = n * (n - 1) / 2;
        let size = total.checked_mul(count).filter(|size| k.c.spend(*size));
        let size =
            size.ok_or_else(|| NodeErrorKind::unsupported("too many classes and vectors"))?;
        let given = (n - 1) * total;
        let coefficients = floats(k, "coefficients", given)?;
        let starts: Vec<usize> = of_class
            .iter()
            .scan(0, |next, c| Some(std::mem::replace(next, *next + c)))
            .collect();
        let mut weights = vec![0f32; size];
        let mut of_positive = vec![0f32; count * n];
        let mut without = vec![0f32; n];
        let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        for (pair, (i, j)) in pairs.enumerate() {
            for (own, row) in [(i, j - 1), (j, i)] {
                for v in starts[own]..starts[own] + of_class[own] {
                    weights[v * count + pair] = coefficients[row * total + v];
                }
            }
            of_positive[pair * n + i] = 1.0;
            of_positive[pair * n + j] = -1.0;
            without[j] += 1.0;
        }
        Ok(SvmPairs {
            count,
            weights: Tensor::from_slice(&[total, count], &weights)?,
            votes: SvmVotes {
                of_positive: Tensor::from_slice(&[count, n], &of_positive)?,
                without: Tensor::from_slice(&[n], &without)?,
            },
        })
    }
}

impl SvmVotes {
    /// The class with the most votes; the first one on a tie.
    fn count(self, k: &mut ImportNode<'_, '_>, scores: Value) -> Result<Value, NodeErrorKind> {
        let zero = k.like(scores, 0.0)?;
        let g = k.g();
        let positive = g.compare(CompareFn::Gt, scores, zero)?;
        let positive = g.cast(positive, DType::F32)?;
        let (table, without) = (g.constant(self.of_positive)?, g.constant(self.without)?);
        let votes = g.matmul(positive, table)?;
        let votes = g.plus(votes, without)?;
        Ok(g.arg_max(votes, 1, false)?)
    }
}
