//! Operators of opset 6, which broadcast by attributes.

use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{Dim, Value};

use super::shape::reshaped;
use super::{OpsetEntry, linear, norm, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Add", 6, |k| binary(k, BinaryFn::Add)).until(6),
    op("Sub", 6, |k| binary(k, BinaryFn::Sub)).until(6),
    op("Mul", 6, |k| binary(k, BinaryFn::Mul)).until(6),
    op("Div", 6, |k| binary(k, BinaryFn::Div)).until(6),
    op("Pow", 6, |k| binary(k, BinaryFn::Pow)).until(6),
    op("PRelu", 6, prelu).until(6),
    op("Gemm", 6, linear::gemm).until(6),
    op("BatchNormalization", 6, batch_norm).until(6),
];

/// Aligns the second operand with the axes of the first one from `axis` on; with the last axes if
/// there is no attribute.
fn aligned(k: &mut ImportNode<'_, '_>, a: Value, b: Value) -> Result<Value, NodeErrorKind> {
    let given = k.attrs.int_opt("axis")?;
    if !k.attrs.flag("broadcast", false)? {
        return match k.dims(a) == k.dims(b) {
            true => Ok(b),
            false => Err(NodeErrorKind::attribute(
                "broadcast",
                "must be 1 if the operands differ in shape",
            )),
        };
    }
    let (rank, own) = (k.rank(a), k.rank(b));
    let Some(given) = given else { return Ok(b) };
    let at = axis(given, rank)?;
    let after = rank.checked_sub(at + own);
    let after =
        after.ok_or_else(|| NodeErrorKind::attribute("axis", format!("leaves no {own} axes")))?;
    let mut dims = k.dims(b);
    dims.resize(own + after, Dim::Known(1));
    reshaped(k.g(), b, &dims)
}

fn binary(k: &mut ImportNode<'_, '_>, f: BinaryFn) -> NodeOutputs {
    let (a, b) = (k.x(0)?, k.x(1)?);
    let b = aligned(k, a, b)?;
    one(k.g().binary(f, a, b)?)
}

/// PReLU with one slope, or one per channel.
fn prelu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, mut slope) = (k.x(0)?, k.x(1)?);
    let dims = k.dims(slope);
    if let ([n], true) = (dims.as_slice(), k.rank(x) > 2) {
        let mut wide = vec![n.clone()];
        wide.resize(k.rank(x) - 1, Dim::Known(1));
        slope = reshaped(k.g(), slope, &wide)?;
    }
    let zero = k.like(x, 0.0)?;
    let low = k.g().mul(x, slope)?;
    let below = k.g().compare(CompareFn::Lt, x, zero)?;
    one(k.g().where_(below, low, x)?)
}

fn batch_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    match k.attrs.flag("is_test", false)? {
        true => norm::batch_norm(k),
        false => Err(NodeErrorKind::attribute(
            "is_test",
            "must be 1; export the model for inference",
        )),
    }
}
