//! F32 cross-entropy of logits over all targets that are not ignored.

use tercet::{DType, Graph, OpError, Tensor, Value};

use super::super::ModelError;

/// Label of a target that the loss excludes.
pub const IGNORED: i32 = -100;

/// Options that modify plain cross-entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LossTerms {
    /// Label smoothing: the part of a target's weight that is spread over all classes.
    pub(super) smoothing: f64,
    /// Factor of the z-loss, the squared log-sum-exp of the logits.
    pub(super) z_loss: f64,
}

impl LossTerms {
    pub(super) fn check(self) -> Result<LossTerms, ModelError> {
        let LossTerms { smoothing, z_loss } = self;
        if !(0.0..1.0).contains(&smoothing) {
            return Err(ModelError::Unsupported(format!(
                "label smoothing {smoothing} is out of range; expected 0 or more and less than 1"
            )));
        }
        if !(z_loss.is_finite() && z_loss >= 0.0) {
            return Err(ModelError::Unsupported(format!(
                "z-loss factor {z_loss} is out of range; expected a finite number of at least 0"
            )));
        }
        Ok(self)
    }
}

/// Replaces negative indices with an index out of range, which makes the run fail. Gather operators
/// would otherwise count a negative index from the end.
pub(super) fn not_negative(g: &mut Graph, idx: Value) -> Result<Value, OpError> {
    let zero = g.scalar(DType::I32, 0.0)?;
    let beyond = g.scalar(DType::I32, f64::from(i32::MAX))?;
    let negative = g.lt(idx, zero)?;
    g.where_(negative, beyond, idx)
}

/// Sum of losses and number of targets, both F32 `[]`, for `logits [n, classes or more]`, F32, and
/// `labels [n]`, I32. Without `classes` every column is a class.
///
/// The row maximum is subtracted first, so that no exponential overflows. A label that is neither
/// [`IGNORED`] nor a valid class makes the run fail. Columns beyond the classes are alignment
/// padding and do not affect the loss.
pub(super) fn cross_entropy(
    g: &mut Graph,
    logits: Value,
    labels: Value,
    classes: Option<usize>,
    terms: LossTerms,
) -> Result<[Value; 2], OpError> {
    let columns = g.ty(logits).shape[1].known();
    let classes = classes.or(columns).unwrap_or(0);
    let beyond = columns.map_or(0, |n| n.saturating_sub(classes));
    let ignored = g.scalar(DType::I32, f64::from(IGNORED))?;
    let counts = g.not_equal(labels, ignored)?;
    let zero = g.scalar(DType::I32, 0.0)?;
    let class = g.where_(counts, labels, zero)?;
    let mut class = not_negative(g, class)?;
    let mut scores = logits;
    if beyond > 0 {
        let last = g.scalar(DType::I32, classes as f64 - 1.0)?;
        let none = g.scalar(DType::I32, f64::from(i32::MAX))?;
        let is_none = g.lt(last, class)?;
        class = g.where_(is_none, none, class)?;
        scores = without(g, logits, beyond)?;
    }
    let class = g.unsqueeze(class, 1)?;

    let most = g.reduce_max(scores, &[1], true)?;
    let most = g.stop_gradient(most)?;
    let shifted = g.sub(scores, most)?;
    let sum = g.exp(shifted)?;
    let sum = g.reduce_sum(sum, &[1], true)?;
    let log_sum = g.ln(sum)?;
    let own = g.gather_elements(logits, class, 1)?;
    let own = g.sub(own, most)?;
    let mut losses = g.sub(log_sum, own)?;
    if terms.smoothing != 0.0 {
        let of_classes = match beyond {
            0 => shifted,
            _ => g.narrow(shifted, 1, 0, classes)?,
        };
        let mean = g.reduce_mean(of_classes, &[1], true)?;
        let spread = g.sub(log_sum, mean)?;
        let losses_part = times(g, losses, 1.0 - terms.smoothing)?;
        let spread = times(g, spread, terms.smoothing)?;
        losses = g.plus(losses_part, spread)?;
    }
    if terms.z_loss != 0.0 {
        let z = g.plus(log_sum, most)?;
        let square = g.mul(z, z)?;
        let square = times(g, square, terms.z_loss)?;
        losses = g.plus(losses, square)?;
    }
    let losses = g.squeeze(losses, 1)?;
    let none = g.scalar(DType::F32, 0.0)?;
    let losses = g.where_(counts, losses, none)?;
    let loss_sum = g.reduce_sum(losses, &[0], false)?;
    // Save the loss sum of this part for backward. Otherwise the gradient of the total of several
    // parts would need the logits of all parts at once.
    let loss_sum = g.checkpoint(loss_sum)?;
    let counts = g.cast(counts, DType::F32)?;
    let count = g.reduce_sum(counts, &[0], false)?;
    Ok([loss_sum, count])
}

/// `logits` with minus infinity in the last `beyond` columns.
fn without(g: &mut Graph, logits: Value, beyond: usize) -> Result<Value, OpError> {
    let columns = g.ty(logits).shape[1].known().unwrap_or(0);
    let mut mask = vec![0.0_f32; columns];
    mask[columns - beyond..].fill(f32::NEG_INFINITY);
    let mask = Tensor::from_slice(&[1, columns], &mask);
    let mask = mask.expect("invariant: the mask has one element per column");
    let mask = g.constant(mask)?;
    g.plus(logits, mask)
}

/// Number of rows of `logits [n, classes]` whose argmax is the label, F32 `[]`. Ignored rows never
/// count.
pub(super) fn correct(g: &mut Graph, logits: Value, labels: Value) -> Result<Value, OpError> {
    let greatest = g.arg_max(logits, 1, false)?;
    let right = g.equal(greatest, labels)?;
    let right = g.cast(right, DType::F32)?;
    g.reduce_sum(right, &[0], false)
}

fn times(g: &mut Graph, x: Value, factor: f64) -> Result<Value, OpError> {
    let factor = g.scalar(DType::F32, factor)?;
    g.mul(x, factor)
}

/// Adds the outputs `loss`, `loss_sum` and `tokens` and returns their values in this order.
pub(super) fn outputs(g: &mut Graph, [sum, count]: [Value; 2]) -> Result<[Value; 3], OpError> {
    let one = g.scalar(DType::F32, 1.0)?;
    let at_least = g.max(count, one)?;
    let loss = g.div(sum, at_least)?;
    g.output("loss", loss)?;
    g.output("loss_sum", sum)?;
    g.output("tokens", count)?;
    Ok([loss, sum, count])
}
