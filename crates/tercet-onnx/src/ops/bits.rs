//! `BitCast`: the bits of a value as another dtype.

use std::rc::Rc;

use tercet_ir::DType;

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::elem::{self, OnnxDType};
use crate::emulated_dtypes::{self, cast_to};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[op("BitCast", 26, bit_cast)];

/// Imports casts between integers of the same width, which preserve the bits. Floats are
/// unsupported, because no Tercet operator accesses their bits.
fn bit_cast(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let to = elem::elem(k.attrs.int("to", 0)?).map_err(|e| NodeErrorKind::attribute("to", e))?;
    let (x, own) = k.carried(0)?;
    let from = own.map_or(OnnxDType::Plain(k.dtype(x)), OnnxDType::EmulatedDType);
    let bits = |e: OnnxDType| match e {
        OnnxDType::Plain(dtype) => 8 * dtype.size_bytes(),
        OnnxDType::EmulatedDType(narrow) => narrow.bits(),
    };
    let is_float = |e: OnnxDType| match e {
        OnnxDType::Plain(dtype) => dtype.is_float(),
        OnnxDType::EmulatedDType(narrow) => narrow.float().is_some(),
    };
    if bits(from) != bits(to) {
        return Err(NodeErrorKind::attribute(
            "to",
            format!("{to} and {from} have different bit widths"),
        ));
    }
    if from == to {
        return Ok(vec![k.val(0).clone()]);
    }
    // A byte other than 0 and 1 is not a valid boolean.
    if is_float(from) || is_float(to) || to == OnnxDType::Plain(DType::Bool) {
        return Err(NodeErrorKind::attribute(
            "to",
            format!("reinterpreting {from} as {to} is not supported"),
        ));
    }
    match to {
        // U64 is stored as the I64 with the same bits.
        OnnxDType::Plain(to) => Ok(vec![cast_to(k.g(), x, to)?.into()]),
        OnnxDType::EmulatedDType(to) => {
            let y = cast_to(k.g(), x, to.carrier())?;
            let y = emulated_dtypes::wrap_or_saturate(k.g(), to, y)?;
            Ok(vec![ImportedValue::Narrow(to, Rc::new(y.into()))])
        }
    }
}
