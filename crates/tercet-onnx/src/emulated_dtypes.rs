//! Emulated arithmetic of dtypes that the graph does not have, on values in their carriers.
//!
//! [`plan`] has a rule per operator: results wrap, are unaffected, or are only moved. Operators
//! that inspect dtypes (casts, quantization) handle narrow values themselves. Operators without a
//! rule reject narrow values.

pub mod float;
pub mod unsigned;

use std::rc::Rc;

use tercet_ir::scalar::{BinaryFn, UnaryFn};
use tercet_ir::{DType, Graph, Tensor, Value};

use crate::attrs::OnnxAttrs;
use crate::call::NodeOutputs;
use crate::elem::{Narrow, OnnxDType};
use crate::error::NodeErrorKind;
use crate::ops::OpsetEntry;
use crate::strings::LEARNED;
use crate::val::ImportedValue;

/// The effect of an operator on narrow values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmulationRule {
    /// Integers are computed in the carrier and wrapped.
    Wraps,
    /// Results have another dtype.
    Plain,
    /// Elements are moved; results have the operands' dtype.
    Moves,
}

/// The rule of an operator.
fn rule(name: &str) -> Option<EmulationRule> {
    match name {
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Max" | "Min" | "Sum" | "BitwiseAnd"
        | "BitwiseOr" | "BitwiseXor" | "BitwiseNot" | "BitShift" | "Clip" | "Abs" | "Sign" => {
            Some(EmulationRule::Wraps)
        }
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Shape" | "Size" => {
            Some(EmulationRule::Plain)
        }
        "Identity" | "Reshape" | "Transpose" | "Squeeze" | "Unsqueeze" | "Flatten" | "Concat"
        | "Slice" | "Split" | "Gather" | "GatherElements" | "GatherND" | "Expand" | "Tile"
        | "Where" | "DepthToSpace" | "SpaceToDepth" | "Compress" | "ReverseSequence" => {
            Some(EmulationRule::Moves)
        }
        _ => None,
    }
}

/// The plan for a node with narrow operands.
pub(crate) struct EmulationPlan {
    /// The operands in their carriers.
    pub(crate) ins: Vec<ImportedValue>,
    /// A replacement of the operator's table entry.
    pub(crate) entry: Option<&'static OpsetEntry>,
    rule: EmulationRule,
    emulated: Narrow,
}

/// The plan for a node. `None` if no operand is narrow, or if the operator handles narrow dtypes
/// itself.
pub(crate) fn plan(
    entry: &OpsetEntry,
    ins: &[ImportedValue],
    attrs: &OnnxAttrs<'_>,
) -> Result<Option<EmulationPlan>, NodeErrorKind> {
    const OWN: [&str; 7] = [
        "Cast",
        "CastLike",
        "QuantizeLinear",
        "DequantizeLinear",
        "BitCast",
        "Pow",
        "TfIdfVectorizer",
    ];
    let narrow = |v: &ImportedValue| match v {
        ImportedValue::Narrow(narrow, _) => Some(*narrow),
        _ => None,
    };
    let mut found = ins
        .iter()
        .enumerate()
        .filter_map(|(i, v)| Some((i, narrow(v)?)));
    let Some((first, narrow)) = found.next() else {
        return Ok(None);
    };
    // `com.microsoft` has quantization under the same names.
    if OWN.contains(&entry.name) {
        return Ok(None);
    }
    let refused = |index: usize, narrow: Narrow| {
        let reason = format!(
            "has dtype {}, which this operator does not support",
            narrow.name()
        );
        NodeErrorKind::operand(index, reason)
    };
    if let Some((index, other)) = found.find(|(_, n)| *n != narrow) {
        return Err(refused(index, other));
    }
    let rule = match entry.domain {
        "" => rule(entry.name),
        LEARNED if entry.name == "ArrayFeatureExtractor" => Some(EmulationRule::Moves),
        // Encoders handle strings themselves; other operators do not accept them.
        LEARNED if narrow == Narrow::Text => return Ok(None),
        _ => None,
    };
    // Full arithmetic is emulated for 16 and 64 bits; ONNX does not define arithmetic for narrower
    // integers.
    let computed = matches!(narrow, Narrow::U16 | Narrow::U64);
    let rule = rule.filter(|r| computed || *r == EmulationRule::Moves);
    let rule = rule.ok_or_else(|| refused(first, narrow))?;
    let carried = |v: &ImportedValue| match v {
        ImportedValue::Narrow(_, inner) => (**inner).clone(),
        other => other.clone(),
    };
    let mut plan = EmulationPlan {
        ins: ins.iter().map(carried).collect(),
        entry: None,
        rule,
        emulated: narrow,
    };
    if narrow == Narrow::U64 {
        plan.entry = unsigned::entry(entry.name, attrs)?;
    }
    Ok(Some(plan))
}

impl EmulationPlan {
    /// Converts the carrier results of the node back to the narrow dtype.
    pub(crate) fn results(&self, g: &mut Graph, results: Vec<ImportedValue>) -> NodeOutputs {
        match self.rule {
            EmulationRule::Plain => Ok(results),
            EmulationRule::Wraps | EmulationRule::Moves => {
                results.into_iter().map(|v| self.result(g, v)).collect()
            }
        }
    }

    fn result(&self, g: &mut Graph, val: ImportedValue) -> Result<ImportedValue, NodeErrorKind> {
        let val = match (self.rule, val) {
            (EmulationRule::Wraps, ImportedValue::Graph(v)) => {
                ImportedValue::Graph(wrap(g, self.emulated, v)?)
            }
            (EmulationRule::Wraps, ImportedValue::ConstTensor(known)) => {
                ImportedValue::known(wrapped(self.emulated, &known.tensor)?)
            }
            (_, other) => other,
        };
        Ok(ImportedValue::Narrow(self.emulated, Rc::new(val)))
    }
}

/// Wraps integers in the carrier modulo two to the bit width.
pub fn wrap(g: &mut Graph, narrow: Narrow, x: Value) -> Result<Value, NodeErrorKind> {
    let carrier = narrow.carrier();
    let (Some((least, greatest)), bits) = (narrow.int_range(), narrow.bits()) else {
        return Ok(x);
    };
    if least == 0 {
        let mask = g.scalar(carrier, greatest as f64)?;
        return Ok(g.binary(BinaryFn::And, x, mask)?);
    }
    let unused = g.scalar(carrier, (8 * carrier.size_bytes() - bits) as f64)?;
    let high = g.binary(BinaryFn::Shl, x, unused)?;
    Ok(g.binary(BinaryFn::Shr, high, unused)?)
}

/// As [`wrap`], for a constant tensor.
pub fn wrapped(narrow: Narrow, x: &Tensor) -> Result<Tensor, NodeErrorKind> {
    let Some((least, greatest)) = narrow.int_range() else {
        return Ok(x.clone());
    };
    let values = x.to_i64s().into_iter();
    let values = values.map(|v| (v - least).rem_euclid(greatest - least + 1) + least);
    let values: Vec<i64> = values.collect();
    Ok(Tensor::from_i64s(x.ty().clone(), &values)?)
}

/// Converts carrier values to the range of the dtype: integers wrap, floats round and saturate.
pub(crate) fn wrap_or_saturate(
    g: &mut Graph,
    narrow: Narrow,
    x: Value,
) -> Result<Value, NodeErrorKind> {
    match narrow.float() {
        Some(format) => float::round(g, format, x, true),
        None => wrap(g, narrow, x),
    }
}

/// Converts as ONNX's `Cast`; `saturate` is its attribute for 8-bit floats.
pub(crate) fn cast(
    g: &mut Graph,
    x: Value,
    from: Option<Narrow>,
    to: OnnxDType,
    saturate: bool,
) -> Result<ImportedValue, NodeErrorKind> {
    if from == Some(Narrow::Text) || to == OnnxDType::EmulatedDType(Narrow::Text) {
        return Err(NodeErrorKind::attribute("to", "strings cannot be cast"));
    }
    let narrow = match to {
        OnnxDType::EmulatedDType(narrow) => narrow,
        OnnxDType::Plain(to) if from == Some(Narrow::U64) && to.is_float() => {
            return Ok(unsigned::to_float(g, x, to)?.into());
        }
        OnnxDType::Plain(to) => return Ok(cast_to(g, x, to)?.into()),
    };
    let is_float = g.ty(x).dtype.is_float();
    let y = match narrow.float() {
        Some(format) => {
            let x = match (from, g.ty(x).dtype) {
                (Some(Narrow::U64), _) => unsigned::to_float(g, x, DType::F32)?,
                (_, DType::F64 | DType::F32) => x,
                // Integers that F32 cannot represent exceed the range of every format.
                (_, _) => g.cast(x, DType::F32)?,
            };
            float::round(g, format, x, saturate || narrow == Narrow::E2M1)?
        }
        None if narrow == Narrow::U64 && is_float => unsigned::from_float(g, x)?,
        None => {
            // Out-of-range integers are undefined in ONNX; they saturate here.
            let x = match is_float {
                true => g.cast(x, DType::I32)?,
                false => x,
            };
            let x = cast_to(g, x, narrow.carrier())?;
            wrap(g, narrow, x)?
        }
    };
    Ok(ImportedValue::Narrow(narrow, Rc::new(y.into())))
}

pub(crate) fn cast_to(g: &mut Graph, x: Value, to: DType) -> Result<Value, NodeErrorKind> {
    match g.ty(x).dtype == to {
        true => Ok(x),
        false => Ok(g.cast(x, to)?),
    }
}

/// Rounds floats to integers and clamps them to a narrow dtype.
pub(crate) fn saturated(g: &mut Graph, narrow: Narrow, x: Value) -> Result<Value, NodeErrorKind> {
    let (least, greatest) = narrow.int_range().ok_or_else(|| {
        let name = narrow.name();
        NodeErrorKind::unsupported(format!(
            "quantized values of dtype {name} are not supported"
        ))
    })?;
    let x = g.clamp(x, least as f64, greatest as f64)?;
    Ok(g.cast(x, narrow.carrier())?)
}

/// Rounds floats to the nearest value of a format; see [`float::round`].
pub(crate) fn rounded(
    g: &mut Graph,
    narrow: Narrow,
    x: Value,
    saturate: bool,
) -> Result<Option<Value>, NodeErrorKind> {
    match narrow.float() {
        Some(format) => Ok(Some(float::round(g, format, x, saturate)?)),
        None => Ok(None),
    }
}

/// `-1`, `0` or `1`, with the sign of zeros.
fn sign(g: &mut Graph, x: Value) -> Result<Value, NodeErrorKind> {
    Ok(g.unary(UnaryFn::Sign, x)?)
}
