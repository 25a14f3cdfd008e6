//! Feature preprocessing.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, Value};

use super::{features, features_f32};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

/// The numbers of an attribute: one per feature, or one for all.
fn each(k: &mut ImportNode<'_, '_>, name: &str, x: Value) -> Result<Option<Value>, NodeErrorKind> {
    let Some(list) = k.attrs.floats_opt(name)?.filter(|l| !l.is_empty()) else {
        return Ok(None);
    };
    let features = k.size(x, 1)?;
    if list.len() != 1 && list.len() != features {
        let reason = format!("has {} values for {features} features", list.len());
        return Err(NodeErrorKind::attribute(name, reason));
    }
    let list = Tensor::from_slice(&[list.len()], list)?;
    let list = k.g().constant(list)?;
    let dtype = k.dtype(x);
    Ok(Some(crate::emulated_dtypes::cast_to(k.g(), list, dtype)?))
}

/// `(x - offset) scale`
pub(super) fn scaler(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut x = features(k)?;
    if let Some(offset) = each(k, "offset", x)? {
        x = k.g().sub(x, offset)?;
    }
    if let Some(scale) = each(k, "scale", x)? {
        x = k.g().mul(x, scale)?;
    }
    one(crate::emulated_dtypes::cast_to(k.g(), x, DType::F32)?)
}

/// `x / norm(x)` per sample; samples with norm 0 stay unchanged.
pub(super) fn normalizer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let norm = k.attrs.string("norm", "MAX")?;
    let x = features_f32(k)?;
    let (one_, zero) = (k.like(x, 1.0)?, k.like(x, 0.0)?);
    let g = k.g();
    let size = match norm.as_str() {
        "MAX" => g.reduce(ReduceFn::Max, x, &[1], true)?,
        "L1" => {
            let sizes = g.abs(x)?;
            g.reduce(ReduceFn::Sum, sizes, &[1], true)?
        }
        "L2" => {
            let squares = g.mul(x, x)?;
            let sum = g.reduce(ReduceFn::Sum, squares, &[1], true)?;
            g.sqrt(sum)?
        }
        other => {
            let reason = format!("expected MAX, L1 or L2, found `{other}`");
            return Err(NodeErrorKind::attribute("norm", reason));
        }
    };
    let nothing = g.compare(CompareFn::Eq, size, zero)?;
    let size = g.where_(nothing, one_, size)?;
    one(g.div(x, size)?)
}

/// Replaces the values that mark missing features.
pub(super) fn imputer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    if !k.dtype(x).is_float() {
        return imputer_of_integers(k, x);
    }
    // Some exporters write the integer attributes in addition to the float ones.
    k.attrs.ignore(&["replaced_value_int64"]);
    let replaced = k.attrs.float("replaced_value_float", f64::NAN)?;
    let missing = match replaced.is_nan() {
        true => k.g().unary(UnaryFn::IsNan, x)?,
        false => {
            let replaced = k.like(x, replaced)?;
            k.g().compare(CompareFn::Eq, x, replaced)?
        }
    };
    let name = "imputed_value_floats";
    let imputed = each(k, name, x)?.ok_or_else(|| NodeErrorKind::attribute(name, "is required"))?;
    one(k.g().where_(missing, imputed, x)?)
}

fn imputer_of_integers(k: &mut ImportNode<'_, '_>, x: Value) -> NodeOutputs {
    k.attrs.ignore(&["replaced_value_float"]);
    let name = "imputed_value_int64s";
    let replaced = k.attrs.int("replaced_value_int64", 0)?;
    let list = k.attrs.ints_opt(name)?.unwrap_or_default();
    let features = k.size(x, k.rank(x).saturating_sub(1))?;
    if list.len() != 1 && list.len() != features {
        let reason = format!("has {} values for {features} features", list.len());
        return Err(NodeErrorKind::attribute(name, reason));
    }
    let dtype = k.dtype(x);
    let (list, replaced) = (
        Tensor::from_slice(&[list.len()], list)?,
        Tensor::scalar(replaced),
    );
    let (imputed, replaced) = (k.g().constant(list)?, k.g().constant(replaced)?);
    let imputed = crate::emulated_dtypes::cast_to(k.g(), imputed, dtype)?;
    let replaced = crate::emulated_dtypes::cast_to(k.g(), replaced, dtype)?;
    let missing = k.g().compare(CompareFn::Eq, x, replaced)?;
    one(k.g().where_(missing, imputed, x)?)
}

/// Concatenates features.
pub(super) fn vectorizer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let sizes = k.attrs.ints_opt("inputdimensions")?.unwrap_or_default();
    let mut parts = Vec::with_capacity(k.ins.len());
    for (index, x) in k.xs()?.into_iter().enumerate() {
        let rank = k.rank(x);
        let x = match rank {
            1 => k.g().unsqueeze(x, 0)?,
            2 => x,
            _ => {
                let reason = format!("has {rank} axes, expected samples by features");
                return Err(NodeErrorKind::operand(index, reason));
            }
        };
        let found = k.size(x, 1)?;
        let said = sizes.get(index).copied().unwrap_or(found as i64);
        if said != found as i64 {
            let reason = format!("has {found} features, but `inputdimensions` specifies {said}");
            return Err(NodeErrorKind::operand(index, reason));
        }
        parts.push(crate::emulated_dtypes::cast_to(k.g(), x, DType::F32)?);
    }
    one(k.g().concat(&parts, 1)?)
}
