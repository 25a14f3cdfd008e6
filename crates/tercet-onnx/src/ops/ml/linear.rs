//! Linear models.

use tercet_ir::{Tensor, Value};

use super::classes::BinaryScoreRule;
use super::{ClassLabels, PostTransform, features_f32, table};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

/// `x C^T + b`, `[samples, targets]`, with coefficients stored target by target.
fn scores(k: &mut ImportNode<'_, '_>, targets: usize) -> Result<Value, NodeErrorKind> {
    let x = features_f32(k)?;
    let features = k.size(x, 1)?;
    let count = features.checked_mul(targets);
    let count = count.ok_or_else(|| NodeErrorKind::unsupported("coefficients overflow"))?;
    let coefficients = super::floats(k, "coefficients", count)?;
    let coefficients = Tensor::from_slice(&[targets, features], coefficients)?;
    let coefficients = table(k, "coefficients", coefficients)?;
    let turned = k.g().transpose(coefficients, &[1, 0])?;
    let y = k.g().matmul(x, turned)?;
    match k.attrs.floats_opt("intercepts")? {
        None | Some([]) => Ok(y),
        Some(_) => {
            let intercepts = super::floats(k, "intercepts", targets)?;
            let intercepts = Tensor::from_slice(&[targets], intercepts)?;
            let intercepts = table(k, "intercepts", intercepts)?;
            Ok(k.g().plus(y, intercepts)?)
        }
    }
}

pub(super) fn regressor(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let targets = k.attrs.int("targets", 1)?;
    let targets = usize::try_from(targets).ok().filter(|n| *n > 0);
    let targets = targets.ok_or_else(|| NodeErrorKind::attribute("targets", "must be above 0"))?;
    let transform = PostTransform::read(k)?;
    let y = scores(k, targets)?;
    one(transform.apply(k, y)?)
}

/// A model of two classes may have one row of coefficients, for the second class.
pub(super) fn classifier(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let classes = ClassLabels::read(k, "classlabels_ints")?;
    let transform = PostTransform::read(k)?;
    // `multi_class` describes the training and does not change the scores.
    k.attrs.ignore(&["multi_class"]);
    let rows = k.attrs.floats_opt("intercepts")?.map_or(0, <[f32]>::len);
    match rows {
        1 if classes.len() == 2 => {
            let y = scores(k, 1)?;
            classes.binary(k, y, (0.0, BinaryScoreRule::Complement), transform)
        }
        n if n == classes.len() || n == 0 => {
            let y = scores(k, classes.len())?;
            classes.greatest(k, y, transform)
        }
        n => Err(NodeErrorKind::attribute(
            "intercepts",
            format!("{n} for {} classes", classes.len()),
        )),
    }
}
