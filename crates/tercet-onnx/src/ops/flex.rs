//! Flexible attention: attributes hold graphs that modify scores and probabilities.

use tercet_ir::{DType, Value};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::elem;
use crate::emulated_dtypes::cast_to;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[op("FlexAttention", 1, flex)
    .in_domain("ai.onnx.preview")
    .without_folding()];

/// `softmax(mod(scale Q K^T)) V`, decomposed so that the graphs can be inserted.
fn flex(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (q, key, value) = (k.x(0)?, k.x(1)?, k.x(2)?);
    if [q, key, value].into_iter().any(|v| k.rank(v) != 4) {
        return Err(NodeErrorKind::unsupported("operands must have four axes"));
    }
    let (heads, kv_heads) = (k.size(q, 1)?, k.size(key, 1)?);
    if kv_heads == 0 || heads % kv_heads != 0 {
        let reason = format!("{heads} query heads are not a multiple of {kv_heads}");
        return Err(NodeErrorKind::operand(0, reason));
    }
    let (own, out) = (k.dtype(q), k.dtype(value));
    let width = k.size(q, 3)? as f64;
    let scale = k.attrs.float("scale", width.sqrt().recip())?;
    if scale < 0.0 || !scale.is_finite() {
        return Err(NodeErrorKind::attribute(
            "scale",
            "must be a nonnegative number",
        ));
    }
    let inner = match k.attrs.int_opt("softmax_precision")? {
        Some(number) => {
            elem::dtype(number).map_err(|e| NodeErrorKind::attribute("softmax_precision", e))?
        }
        None if own == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let key = super::attention::repeated(k, key, heads / kv_heads)?;
    let value = super::attention::repeated(k, value, heads / kv_heads)?;
    // Apply the square root of the scale to both operands, so that F16 does not overflow.
    let half = k.like(q, f64::from((scale as f32).sqrt()))?;
    let (q, key) = (k.g().mul(q, half)?, k.g().mul(key, half)?);
    let turned = k.g().transpose(key, &[0, 1, 3, 2])?;
    let scores = k.g().matmul(q, turned)?;
    let scores = cast_to(k.g(), scores, inner)?;
    let scores = changed(k, "score_mod", scores)?;
    let weights = k.g().softmax(scores, 3)?;
    let weights = changed(k, "prob_mod", weights)?;
    let value = cast_to(k.g(), value, inner)?;
    let y = k.g().matmul(weights, value)?;
    one(cast_to(k.g(), y, out)?)
}

/// Applies the graph of an attribute to a value; the identity if the attribute is absent.
fn changed(k: &mut ImportNode<'_, '_>, name: &str, x: Value) -> Result<Value, NodeErrorKind> {
    if !k.attrs.has(name) {
        return Ok(x);
    }
    let graph = k.attrs.graph(name)?;
    if graph.input.len() != 1 || graph.output.len() != 1 {
        return Err(NodeErrorKind::attribute(
            name,
            "must have one operand and one result",
        ));
    }
    let results = k.c.inline(graph, vec![ImportedValue::Graph(x)], name)?;
    let y = match results.first() {
        Some(val) => k.c.place(val, 0)?,
        None => return Err(NodeErrorKind::attribute(name, "has no result")),
    };
    if k.ty(y) != k.ty(x) {
        let reason = format!("changes the type: {} from {}", k.ty(y), k.ty(x));
        return Err(NodeErrorKind::attribute(name, reason));
    }
    Ok(y)
}
