//! Bits as another dtype.

use std::rc::Rc;

use tercet_ir::DType;

use super::{Entry, op};
use crate::call::{Call, Done};
use crate::elem::{self, Elem};
use crate::error::Reason;
use crate::narrow::{self, cast_to};
use crate::val::Val;

pub(crate) const TABLE: &[Entry] = &[op("BitCast", 26, bit_cast)];

/// Of integers of one width, which a conversion keeps the bits of. Floats are refused: no operator reads their bits.
fn bit_cast(k: &mut Call<'_, '_>) -> Done {
    let to = elem::elem(k.attrs.int("to", 0)?).map_err(|e| Reason::attribute("to", e))?;
    let (x, own) = k.carried(0)?;
    let from = own.map_or(Elem::Plain(k.dtype(x)), Elem::Narrow);
    let bits = |e: Elem| match e {
        Elem::Plain(dtype) => 8 * dtype.size_bytes(),
        Elem::Narrow(narrow) => narrow.bits(),
    };
    let is_float = |e: Elem| match e {
        Elem::Plain(dtype) => dtype.is_float(),
        Elem::Narrow(narrow) => narrow.float().is_some(),
    };
    if bits(from) != bits(to) {
        return Err(Reason::attribute(
            "to",
            format!("{to} has not the width of {from}"),
        ));
    }
    if from == to {
        return Ok(vec![k.val(0).clone()]);
    }
    // A byte that is neither 0 nor 1 is no truth value.
    if is_float(from) || is_float(to) || to == Elem::Plain(DType::Bool) {
        return Err(Reason::attribute(
            "to",
            format!("bits of {from} as {to} are not supported"),
        ));
    }
    match to {
        // U64 is held by its bits.
        Elem::Plain(to) => Ok(vec![cast_to(k.g(), x, to)?.into()]),
        Elem::Narrow(to) => {
            let y = cast_to(k.g(), x, to.carrier())?;
            let y = narrow::fit(k.g(), to, y)?;
            Ok(vec![Val::Narrow(to, Rc::new(y.into()))])
        }
    }
}
