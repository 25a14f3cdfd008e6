//! Lists of tensors, which never run: which tensors are in a list is known when importing.

use std::rc::Rc;

use tercet_ir::{Dim, Tensor, Value};

use super::shape::reshaped;
use super::{Entry, op};
use crate::call::{Call, Done, axis, one};
use crate::error::Reason;
use crate::val::{Num, Val};

pub(crate) const TABLE: &[Entry] = &[
    op("SequenceConstruct", 11, |k| {
        Ok(vec![Val::Seq(Rc::new(k.ins.to_vec()))])
    })
    .own(),
    op("SequenceEmpty", 11, empty).own(),
    op("SequenceLength", 11, length).own(),
    op("SequenceAt", 11, at).own(),
    op("SequenceInsert", 11, insert).own(),
    op("SequenceErase", 11, erase).own(),
    op("ConcatFromSequence", 11, concat).own(),
    op("SplitToSequence", 11, split).own(),
    op("OptionalHasElement", 15, has_element).own(),
    op("OptionalGetElement", 15, get_element).own(),
    op("Optional", 15, optional).own(),
];

fn optional(k: &mut Call<'_, '_>) -> Done {
    k.attrs.ignore(&["type"]);
    Ok(vec![k.val(0).clone()])
}

fn has_element(k: &mut Call<'_, '_>) -> Done {
    if let Val::Refused(why) = k.val(0) {
        return Err(Reason::operand(0, why.to_string()));
    }
    Ok(vec![Val::known(Tensor::from_bools(&[], &[k.has(0)])?)])
}

fn get_element(k: &mut Call<'_, '_>) -> Done {
    match k.has(0) {
        true => Ok(vec![k.val(0).clone()]),
        false => Err(Reason::operand(0, "is missing")),
    }
}

fn list(k: &Call<'_, '_>, index: usize) -> Result<Vec<Val>, Reason> {
    match k.val(index) {
        Val::Seq(list) => Ok((**list).clone()),
        Val::Refused(why) => Err(Reason::operand(index, why.to_string())),
        _ => Err(Reason::operand(index, "is no sequence")),
    }
}

fn seq(list: Vec<Val>) -> Done {
    Ok(vec![Val::Seq(Rc::new(list))])
}

fn empty(k: &mut Call<'_, '_>) -> Done {
    k.attrs.ignore(&["dtype"]);
    seq(Vec::new())
}

fn length(k: &mut Call<'_, '_>) -> Done {
    let n = list(k, 0)?.len();
    Ok(vec![Val::sizes(vec![Num::Int(n as i64)], true)])
}

fn at(k: &mut Call<'_, '_>) -> Done {
    let list = list(k, 0)?;
    let i = axis(k.int(1)?, list.len())?;
    Ok(vec![list[i].clone()])
}

fn insert(k: &mut Call<'_, '_>) -> Done {
    let mut list = list(k, 0)?;
    let place = match k.has(2) {
        true => k.int(2)?,
        false => list.len() as i64,
    };
    let place = match place == list.len() as i64 {
        true => list.len(),
        false => axis(place, list.len())?,
    };
    list.insert(place, k.val(1).clone());
    seq(list)
}

fn erase(k: &mut Call<'_, '_>) -> Done {
    let mut list = list(k, 0)?;
    let place = if k.has(1) { k.int(1)? } else { -1 };
    let place = axis(place, list.len())?;
    list.remove(place);
    seq(list)
}

fn concat(k: &mut Call<'_, '_>) -> Done {
    let list = list(k, 0)?;
    let new = k.attrs.flag("new_axis", false)?;
    let mut parts = Vec::with_capacity(list.len());
    for val in &list {
        parts.push(k.c.place(val, 0)?);
    }
    let first: Value = *parts
        .first()
        .ok_or_else(|| Reason::operand(0, "is an empty sequence"))?;
    let rank = k.rank(first) + usize::from(new);
    let place = k
        .attrs
        .int_opt("axis")?
        .ok_or_else(|| Reason::attribute("axis", "is required"))?;
    let place = axis(place, rank)?;
    if new {
        for part in &mut parts {
            *part = k.g().unsqueeze(*part, place)?;
        }
    }
    one(k.g().concat(&parts, place)?)
}

fn split(k: &mut Call<'_, '_>) -> Done {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let place = k.axis(0, rank)?;
    let keep = k.attrs.flag("keepdims", true)?;
    let n = k.size(x, place)?;
    if n > 1 << 16 {
        return Err(Reason::unsupported(format!(
            "a sequence of {n} parts is too long"
        )));
    }
    let (lens, drop) = match k.has(1) {
        false => (vec![1; n], !keep),
        true => {
            let given = k.known(1)?;
            let sizes = crate::call::unsigned("split", &given.to_i64s())?;
            match (given.shape().is_empty(), sizes.as_slice()) {
                (true, [0]) => return Err(Reason::operand(1, "is 0")),
                (true, [each]) => (
                    (0..n).step_by(*each).map(|i| (*each).min(n - i)).collect(),
                    false,
                ),
                _ => (sizes, false),
            }
        }
    };
    if lens.iter().try_fold(0usize, |n, len| n.checked_add(*len)) != Some(n) {
        return Err(Reason::operand(
            1,
            format!("{lens:?} are not all {n} elements"),
        ));
    }
    let mut parts = Vec::with_capacity(lens.len());
    let mut start = 0;
    for len in lens {
        let mut part = k.g().narrow(x, place, start, len)?;
        if drop {
            let mut dims: Vec<Dim> = k.dims(part);
            dims.remove(place);
            part = reshaped(k.g(), part, &dims)?;
        }
        parts.push(Val::Graph(part));
        start += len;
    }
    seq(parts)
}
