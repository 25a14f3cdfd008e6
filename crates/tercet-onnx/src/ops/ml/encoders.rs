//! Encoders between categories and numbers: tables from keys to values.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, TensorType, Value};

use crate::call::{ImportNode, NodeOutputs, one};
use crate::elem::Narrow;
use crate::error::NodeErrorKind;
use crate::strings::UNUSED;
use crate::tensor;
use crate::val::ImportedValue;

/// Values of one dtype, in the carrier if the graph does not have the dtype.
struct EncoderValueList {
    tensor: Tensor,
    narrow: Option<Narrow>,
}

impl EncoderValueList {
    fn from_strings(
        k: &ImportNode<'_, '_>,
        texts: &[String],
    ) -> Result<EncoderValueList, NodeErrorKind> {
        let tensor = Tensor::from_slice(&[texts.len()], &k.c.strings.places(texts))?;
        let narrow = Some(Narrow::Text);
        Ok(EncoderValueList { tensor, narrow })
    }

    fn from_numbers(tensor: Tensor) -> EncoderValueList {
        let narrow = None;
        EncoderValueList { tensor, narrow }
    }

    /// Reads one of the attributes `NAME_int64s`, `NAME_floats`, `NAME_strings`, `NAME_tensor`.
    fn read(k: &ImportNode<'_, '_>, name: &str) -> Result<Option<EncoderValueList>, NodeErrorKind> {
        let own = |kind: &str| format!("{name}_{kind}");
        let mut found = Vec::new();
        if let Some(list) = k.attrs.ints_opt(&own("int64s"))? {
            found.push(EncoderValueList::from_numbers(Tensor::from_slice(
                &[list.len()],
                list,
            )?));
        }
        if let Some(list) = k.attrs.floats_opt(&own("floats"))? {
            found.push(EncoderValueList::from_numbers(Tensor::from_slice(
                &[list.len()],
                list,
            )?));
        }
        if let Some(list) = k.attrs.strings_opt(&own("strings"))? {
            found.push(EncoderValueList::from_strings(k, &list)?);
        }
        if let Some(proto) = k.attrs.tensor_opt(&own("tensor"))? {
            found.push(decoded(k, &own("tensor"), proto)?);
        }
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(NodeErrorKind::attribute(
                name,
                "is present in several dtypes",
            )),
        }
    }

    fn len(&self) -> usize {
        self.tensor.numel()
    }
}

fn decoded(
    k: &ImportNode<'_, '_>,
    name: &str,
    proto: &crate::proto::TensorProto,
) -> Result<EncoderValueList, NodeErrorKind> {
    let made = tensor::decode(proto, &k.c.folder, &k.c.strings);
    let (tensor, narrow) = made.map_err(|e| NodeErrorKind::attribute(name, e))?;
    let n = tensor.numel();
    let tensor = tensor.reshaped(&[n])?;
    Ok(EncoderValueList { tensor, narrow })
}

/// Checks that the keys match the operand's dtype, ignoring the bit width.
fn check_kind(of: Option<Narrow>, keys: &EncoderValueList) -> Result<(), NodeErrorKind> {
    match of == keys.narrow {
        true => Ok(()),
        false => Err(NodeErrorKind::operand(
            0,
            "does not match the type of the keys",
        )),
    }
}

/// Compares each element with each key, along a new last axis. From version 4 on, NaN equals NaN.
fn hits(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    keys: &EncoderValueList,
) -> Result<Value, NodeErrorKind> {
    let (n, nan_is_nan) = (keys.len(), k.opset >= 4);
    if !k.c.spend(n) {
        return Err(NodeErrorKind::unsupported(format!("{n} keys are too many")));
    }
    let keys = k.g().constant(keys.tensor.clone())?;
    let dtype = k.dtype(keys);
    let x = crate::emulated_dtypes::cast_to(k.g(), x, dtype)?;
    let g = k.g();
    let x = g.unsqueeze(x, g.ty(x).rank())?;
    let hit = g.compare(CompareFn::Eq, x, keys)?;
    match dtype.is_float() && nan_is_nan {
        false => Ok(hit),
        true => {
            let (x, keys) = (g.unary(UnaryFn::IsNan, x)?, g.unary(UnaryFn::IsNan, keys)?);
            let both = g.binary(tercet_ir::scalar::BinaryFn::And, x, keys)?;
            Ok(g.binary(tercet_ir::scalar::BinaryFn::Or, hit, both)?)
        }
    }
}

/// The value of the first matching key, otherwise the default.
fn looked_up(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    (keys, values): (&EncoderValueList, &EncoderValueList),
    default: &EncoderValueList,
) -> NodeOutputs {
    if keys.len() != values.len() || keys.len() == 0 {
        let reason = format!("{} keys have {} values", keys.len(), values.len());
        return Err(NodeErrorKind::unsupported(reason));
    }
    let kind = |list: &EncoderValueList| (list.tensor.dtype(), list.narrow);
    if default.len() != 1 || kind(default) != kind(values) {
        return Err(NodeErrorKind::unsupported(
            "the default must be one value of the same type",
        ));
    }
    let hit = hits(k, x, keys)?;
    let g = k.g();
    let at = g.ty(hit).rank() - 1;
    let numbers = g.cast(hit, DType::I32)?;
    let first = g.arg_max(numbers, at, false)?;
    let found = g.reduce(ReduceFn::Max, numbers, &[at], false)?;
    let found = g.cast(found, DType::Bool)?;
    let values_ = g.constant(values.tensor.clone())?;
    let default = g.constant(default.tensor.reshaped(&[])?)?;
    let chosen = g.gather(values_, first, 0)?;
    let y = ImportedValue::Graph(g.where_(found, chosen, default)?);
    Ok(vec![match values.narrow {
        Some(narrow) => ImportedValue::Narrow(narrow, y.into()),
        None => y,
    }])
}

/// The default value for this type of values.
fn default_of(
    k: &ImportNode<'_, '_>,
    values: &EncoderValueList,
) -> Result<EncoderValueList, NodeErrorKind> {
    let text = k.attrs.string("default_string", UNUSED)?;
    let (int, float) = (
        k.attrs.int("default_int64", -1)?,
        k.attrs.float("default_float", -0.0)?,
    );
    if let Some(proto) = k.attrs.tensor_opt("default_tensor")? {
        return decoded(k, "default_tensor", proto);
    }
    if values.narrow == Some(Narrow::Text) {
        return EncoderValueList::from_strings(k, &[text]);
    }
    let ty = TensorType::new(values.tensor.dtype(), &[1]);
    let tensor = match ty.dtype.is_float() {
        true => Tensor::from_f64s(ty, &[float])?,
        false => Tensor::from_i64s(ty, &[int])?,
    };
    Ok(EncoderValueList {
        tensor,
        narrow: values.narrow,
    })
}

/// Maps keys to values of any type. Version 1 of the operator maps strings to their list indices,
/// or the reverse.
pub(super) fn label(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, narrow) = k.carried(0)?;
    let (keys, values) = match k.attrs.strings_opt("classes_strings")? {
        Some(classes) => {
            let texts = EncoderValueList::from_strings(k, &classes)?;
            let places: Vec<i64> = (0..classes.len() as i64).collect();
            let places =
                EncoderValueList::from_numbers(Tensor::from_slice(&[places.len()], &places)?);
            match narrow {
                Some(_) => (texts, places),
                None => (places, texts),
            }
        }
        None => {
            let required = |name: &str| NodeErrorKind::attribute(name, "is required");
            (
                EncoderValueList::read(k, "keys")?.ok_or_else(|| required("keys_*"))?,
                EncoderValueList::read(k, "values")?.ok_or_else(|| required("values_*"))?,
            )
        }
    };
    check_kind(narrow, &keys)?;
    let default = default_of(k, &values)?;
    looked_up(k, x, (&keys, &values), &default)
}

/// Maps strings to numbers, or numbers to strings.
pub(super) fn category(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, narrow) = k.carried(0)?;
    let required = |name: &str| NodeErrorKind::attribute(name, "is required");
    let numbers = k.attrs.ints_opt("cats_int64s")?;
    let numbers = numbers.ok_or_else(|| required("cats_int64s"))?;
    let texts = k.attrs.strings_opt("cats_strings")?;
    let texts = EncoderValueList::from_strings(k, &texts.ok_or_else(|| required("cats_strings"))?)?;
    let numbers = EncoderValueList::from_numbers(Tensor::from_slice(&[numbers.len()], numbers)?);
    let (keys, values) = match narrow {
        Some(_) => (texts, numbers),
        None => (numbers, texts),
    };
    check_kind(narrow, &keys)?;
    let default = default_of(k, &values)?;
    looked_up(k, x, (&keys, &values), &default)
}

/// One-hot encoding in F32. Without `zeros`, an unknown category fails the run.
pub(super) fn one_hot(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let zeros = k.attrs.flag("zeros", true)?;
    let (x, narrow) = k.carried(0)?;
    let keys = EncoderValueList::read(k, "cats")?;
    let keys = keys.ok_or_else(|| NodeErrorKind::attribute("cats_*", "is required"))?;
    check_kind(narrow, &keys)?;
    let hit = hits(k, x, &keys)?;
    let hot = k.g().cast(hit, DType::F32)?;
    if zeros {
        return one(hot);
    }
    // An index after the end of a list of ones makes the run fail.
    let n = keys.len();
    let ones = k.g().constant(Tensor::from_slice(&[n], &vec![1f32; n])?)?;
    let g = k.g();
    let at = g.ty(hot).rank() - 1;
    let numbers = g.cast(hit, DType::I32)?;
    let first = g.arg_max(numbers, at, true)?;
    let found = g.reduce(ReduceFn::Max, numbers, &[at], true)?;
    let found = g.cast(found, DType::Bool)?;
    let first = g.cast(first, DType::I32)?;
    let outside = g.scalar(DType::I32, n as f64)?;
    let place = g.where_(found, first, outside)?;
    let checked = g.gather(ones, place, 0)?;
    one(g.mul(hot, checked)?)
}
