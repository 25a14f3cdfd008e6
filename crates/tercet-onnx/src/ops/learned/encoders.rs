//! Categories as numbers and the other way round: tables of keys, each with a value.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Tensor, TensorType, Value};

use crate::call::{Call, Done, one};
use crate::elem::Narrow;
use crate::error::Reason;
use crate::strings::UNUSED;
use crate::tensor;
use crate::val::Val;

/// Values of one dtype, in their carrier where the graph does not have it.
struct List {
    tensor: Tensor,
    narrow: Option<Narrow>,
}

impl List {
    fn of_strings(k: &Call<'_, '_>, texts: &[String]) -> Result<List, Reason> {
        let tensor = Tensor::from_slice(&[texts.len()], &k.c.strings.places(texts))?;
        let narrow = Some(Narrow::Text);
        Ok(List { tensor, narrow })
    }

    fn of_numbers(tensor: Tensor) -> List {
        let narrow = None;
        List { tensor, narrow }
    }

    /// One of the attributes `NAME_int64s`, `NAME_floats`, `NAME_strings`, `NAME_tensor`.
    fn read(k: &Call<'_, '_>, name: &str) -> Result<Option<List>, Reason> {
        let own = |kind: &str| format!("{name}_{kind}");
        let mut found = Vec::new();
        if let Some(list) = k.attrs.ints_opt(&own("int64s"))? {
            found.push(List::of_numbers(Tensor::from_slice(&[list.len()], list)?));
        }
        if let Some(list) = k.attrs.floats_opt(&own("floats"))? {
            found.push(List::of_numbers(Tensor::from_slice(&[list.len()], list)?));
        }
        if let Some(list) = k.attrs.strings_opt(&own("strings"))? {
            found.push(List::of_strings(k, &list)?);
        }
        if let Some(proto) = k.attrs.tensor_opt(&own("tensor"))? {
            found.push(decoded(k, &own("tensor"), proto)?);
        }
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(Reason::attribute(name, "is given in several dtypes")),
        }
    }

    fn len(&self) -> usize {
        self.tensor.numel()
    }
}

fn decoded(
    k: &Call<'_, '_>,
    name: &str,
    proto: &crate::proto::TensorProto,
) -> Result<List, Reason> {
    let made = tensor::decode(proto, &k.c.folder, &k.c.strings);
    let (tensor, narrow) = made.map_err(|e| Reason::attribute(name, e))?;
    let n = tensor.numel();
    let tensor = tensor.reshaped(&[n])?;
    Ok(List { tensor, narrow })
}

/// Keys must be of the dtype of what is looked up, but for its width.
fn check_kind(of: Option<Narrow>, keys: &List) -> Result<(), Reason> {
    match of == keys.narrow {
        true => Ok(()),
        false => Err(Reason::operand(0, "is of another kind than the keys")),
    }
}

/// Whether each element is each key: one axis more, along the keys. From version 4 on NaN is NaN.
fn hits(k: &mut Call<'_, '_>, x: Value, keys: &List) -> Result<Value, Reason> {
    let (n, nan_is_nan) = (keys.len(), k.opset >= 4);
    if !k.c.spend(n) {
        return Err(Reason::unsupported(format!("{n} keys are too many")));
    }
    let keys = k.g().constant(keys.tensor.clone())?;
    let dtype = k.dtype(keys);
    let x = crate::narrow::cast_to(k.g(), x, dtype)?;
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

/// The value of the first key that an element is, else the default.
fn looked_up(
    k: &mut Call<'_, '_>,
    x: Value,
    (keys, values): (&List, &List),
    default: &List,
) -> Done {
    if keys.len() != values.len() || keys.len() == 0 {
        let reason = format!("{} keys have {} values", keys.len(), values.len());
        return Err(Reason::unsupported(reason));
    }
    let kind = |list: &List| (list.tensor.dtype(), list.narrow);
    if default.len() != 1 || kind(default) != kind(values) {
        return Err(Reason::unsupported(
            "the default is not one value like others",
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
    let y = Val::Graph(g.where_(found, chosen, default)?);
    Ok(vec![match values.narrow {
        Some(narrow) => Val::Narrow(narrow, y.into()),
        None => y,
    }])
}

/// The default of values of a kind.
fn default_of(k: &Call<'_, '_>, values: &List) -> Result<List, Reason> {
    let text = k.attrs.string("default_string", UNUSED)?;
    let (int, float) = (
        k.attrs.int("default_int64", -1)?,
        k.attrs.float("default_float", -0.0)?,
    );
    if let Some(proto) = k.attrs.tensor_opt("default_tensor")? {
        return decoded(k, "default_tensor", proto);
    }
    if values.narrow == Some(Narrow::Text) {
        return List::of_strings(k, &[text]);
    }
    let ty = TensorType::new(values.tensor.dtype(), &[1]);
    let tensor = match ty.dtype.is_float() {
        true => Tensor::from_f64s(ty, &[float])?,
        false => Tensor::from_i64s(ty, &[int])?,
    };
    Ok(List {
        tensor,
        narrow: values.narrow,
    })
}

/// Keys and values of any kind; in the first version strings and their places in a list, whichever way.
pub(super) fn label(k: &mut Call<'_, '_>) -> Done {
    let (x, narrow) = k.carried(0)?;
    let (keys, values) = match k.attrs.strings_opt("classes_strings")? {
        Some(classes) => {
            let texts = List::of_strings(k, &classes)?;
            let places: Vec<i64> = (0..classes.len() as i64).collect();
            let places = List::of_numbers(Tensor::from_slice(&[places.len()], &places)?);
            match narrow {
                Some(_) => (texts, places),
                None => (places, texts),
            }
        }
        None => {
            let required = |name: &str| Reason::attribute(name, "is required");
            (
                List::read(k, "keys")?.ok_or_else(|| required("keys_*"))?,
                List::read(k, "values")?.ok_or_else(|| required("values_*"))?,
            )
        }
    };
    check_kind(narrow, &keys)?;
    let default = default_of(k, &values)?;
    looked_up(k, x, (&keys, &values), &default)
}

/// Strings as their numbers, or numbers as their strings.
pub(super) fn category(k: &mut Call<'_, '_>) -> Done {
    let (x, narrow) = k.carried(0)?;
    let required = |name: &str| Reason::attribute(name, "is required");
    let numbers = k.attrs.ints_opt("cats_int64s")?;
    let numbers = numbers.ok_or_else(|| required("cats_int64s"))?;
    let texts = k.attrs.strings_opt("cats_strings")?;
    let texts = List::of_strings(k, &texts.ok_or_else(|| required("cats_strings"))?)?;
    let numbers = List::of_numbers(Tensor::from_slice(&[numbers.len()], numbers)?);
    let (keys, values) = match narrow {
        Some(_) => (texts, numbers),
        None => (numbers, texts),
    };
    check_kind(narrow, &keys)?;
    let default = default_of(k, &values)?;
    looked_up(k, x, (&keys, &values), &default)
}

/// For each category a number, 1 where it is the element; F32. Without `zeros` an element that is none fails the run.
pub(super) fn one_hot(k: &mut Call<'_, '_>) -> Done {
    let zeros = k.attrs.flag("zeros", true)?;
    let (x, narrow) = k.carried(0)?;
    let keys = List::read(k, "cats")?;
    let keys = keys.ok_or_else(|| Reason::attribute("cats_*", "is required"))?;
    check_kind(narrow, &keys)?;
    let hit = hits(k, x, &keys)?;
    let hot = k.g().cast(hit, DType::F32)?;
    if zeros {
        return one(hot);
    }
    // A place behind the end of a list of ones is an error of the run.
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
