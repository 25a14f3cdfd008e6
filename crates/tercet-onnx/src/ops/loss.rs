//! Loss functions.

use tercet_ir::ops::ReduceFn;
use tercet_ir::{DType, Dim, Value};

use super::reduce::equals;
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("NegativeLogLikelihoodLoss", 12, negative_log_likelihood),
    op("SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy),
];

/// The negative log-likelihood `-w[t] x[t]` of the target class `t` at each position, reduced as
/// the attribute specifies.
fn likelihood(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    let (target, weight) = (k.x(1)?, k.opt(2)?);
    let ignored = match k.attrs.int_opt("ignore_index")? {
        Some(class) => Some(equals(k, target, class as f64)?),
        None => None,
    };
    let (zero_class, zero) = (k.like(target, 0.0)?, k.like(x, 0.0)?);
    let class = match ignored {
        Some(ignored) => k.g().where_(ignored, zero_class, target)?,
        None => target,
    };
    let dims = k.dims(class);
    let mut column = dims.clone();
    column.insert(1, Dim::Known(1));
    let idx = reshaped(k.g(), class, &column)?;
    let picked = k.g().gather_elements(x, idx, 1)?;
    let picked = reshaped(k.g(), picked, &dims)?;
    let mut loss = k.g().neg(picked)?;
    let mut share = match weight {
        Some(weight) => Some(k.g().gather(weight, class, 0)?),
        None => None,
    };
    if let Some(ignored) = ignored {
        let whole = match share {
            Some(share) => share,
            None => k.like(x, 1.0)?,
        };
        share = Some(k.g().where_(ignored, zero, whole)?);
        loss = k.g().where_(ignored, zero, loss)?;
    }
    if let Some(share) = share {
        loss = k.g().mul(loss, share)?;
    }
    let list: Vec<usize> = (0..dims.len()).collect();
    match (k.attrs.string("reduction", "mean")?.as_str(), share) {
        ("none", _) => Ok(loss),
        ("sum", _) => Ok(k.g().reduce(ReduceFn::Sum, loss, &list, false)?),
        ("mean", None) => Ok(k.g().reduce(ReduceFn::Mean, loss, &list, false)?),
        ("mean", Some(share)) => {
            let sum = k.g().reduce(ReduceFn::Sum, loss, &list, false)?;
            let total = k.g().reduce(ReduceFn::Sum, share, &list, false)?;
            Ok(k.g().div(sum, total)?)
        }
        (other, _) => Err(NodeErrorKind::attribute(
            "reduction",
            format!("`{other}` is not supported"),
        )),
    }
}

fn negative_log_likelihood(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    one(likelihood(k, x)?)
}

fn softmax_cross_entropy(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let scores = k.x(0)?;
    if k.dtype(scores) == DType::Bool {
        return Err(NodeErrorKind::operand(0, "must be numbers"));
    }
    let logs = k.g().log_softmax(scores, 1)?;
    let loss = likelihood(k, logs)?;
    Ok(vec![ImportedValue::Graph(loss), ImportedValue::Graph(logs)])
}
