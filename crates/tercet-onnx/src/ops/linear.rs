//! Matmuls and tensor contractions.

use tercet_ir::ops::{DotGeneral, ReduceFn};
use tercet_ir::{Dim, Value};

use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("MatMul", 1, matmul),
    op("Gemm", 7, gemm),
    op("Einsum", 12, einsum),
];

fn matmul(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b) = (k.x(0)?, k.x(1)?);
    one(vectors(k, a, b)?)
}

/// A matmul that treats vectors as rows or columns.
pub(crate) fn vectors(
    k: &mut ImportNode<'_, '_>,
    a: Value,
    b: Value,
) -> Result<Value, NodeErrorKind> {
    let (da, db) = (k.dims(a), k.dims(b));
    let (row, column) = (da.len() == 1, db.len() == 1);
    let a = if row {
        reshaped(k.g(), a, &[Dim::Known(1), da[0].clone()])?
    } else {
        a
    };
    let b = if column {
        reshaped(k.g(), b, &[db[0].clone(), Dim::Known(1)])?
    } else {
        b
    };
    let y = k.g().matmul(a, b)?;
    if !row && !column {
        return Ok(y);
    }
    let mut dims = k.dims(y);
    let rank = dims.len();
    if column {
        dims.remove(rank - 1);
    }
    if row {
        dims.remove(rank - 2);
    }
    reshaped(k.g(), y, &dims)
}

pub(super) fn gemm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (a, b, c) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    let a = if k.attrs.flag("transA", false)? {
        k.g().transpose(a, &[1, 0])?
    } else {
        a
    };
    let b = if k.attrs.flag("transB", false)? {
        k.g().transpose(b, &[1, 0])?
    } else {
        b
    };
    let (alpha, beta) = (k.attrs.float("alpha", 1.0)?, k.attrs.float("beta", 1.0)?);
    k.attrs.ignore(&["broadcast"]);
    let whole = |x: f64| x.fract() == 0.0;
    if k.dtype(a).is_int() && !(whole(alpha) && whole(beta)) {
        return Err(NodeErrorKind::unsupported(
            "alpha and beta must be integers for integer operands",
        ));
    }
    let mut y = k.g().matmul(a, b)?;
    if alpha != 1.0 {
        let alpha = k.like(y, alpha)?;
        y = k.g().mul(y, alpha)?;
    }
    let Some(mut c) = c.filter(|_| beta != 0.0) else {
        return one(y);
    };
    if beta != 1.0 {
        let beta = k.like(c, beta)?;
        c = k.g().mul(c, beta)?;
    }
    one(k.g().plus(y, c)?)
}

/// An operand of `Einsum` with the label of each axis.
struct EinsumTerm {
    value: Value,
    labels: Vec<char>,
}

/// The label of an ellipsis axis, counted from the last one.
fn ellipsis_label(from_end: usize) -> char {
    char::from_u32(0xE000 + from_end as u32).unwrap_or('\u{F8FF}')
}

/// The labels of a term in the equation; `rank` is the rank of an operand.
fn labels(
    text: &str,
    rank: Option<usize>,
    ellipsis: &mut usize,
) -> Result<Vec<char>, NodeErrorKind> {
    let bad = || NodeErrorKind::attribute("equation", format!("`{text}` is not understood"));
    let (before, after) = match text.split_once("...") {
        Some((a, b)) => (a, Some(b)),
        None => (text, None),
    };
    let mut list: Vec<char> = before.chars().collect();
    if let Some(after) = after {
        let named = before.chars().count() + after.chars().count();
        if let Some(rank) = rank {
            *ellipsis = (*ellipsis).max(rank.checked_sub(named).ok_or_else(bad)?);
        }
        let own = rank.map_or(*ellipsis, |r| r - named);
        list.extend((0..own).rev().map(ellipsis_label));
        list.extend(after.chars());
    }
    let letters = list
        .iter()
        .all(|c| c.is_ascii_alphabetic() || *c >= '\u{E000}');
    match letters && rank.is_none_or(|r| r == list.len()) {
        true => Ok(list),
        false => Err(bad()),
    }
}

fn einsum(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let equation: String = k
        .attrs
        .string("equation", "")?
        .chars()
        .filter(|c| !c.is_whitespace())
        .collect();
    let xs = k.xs()?;
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l.to_string(), Some(r.to_string())),
        None => (equation, None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != xs.len() {
        return Err(NodeErrorKind::attribute(
            "equation",
            format!(
                "has {} terms, but the node has {} operands",
                parts.len(),
                xs.len()
            ),
        ));
    }
    let mut ellipsis = 0;
    let mut terms = Vec::new();
    for (part, x) in parts.iter().zip(&xs) {
        let labels = labels(part, Some(k.rank(*x)), &mut ellipsis)?;
        terms.push(EinsumTerm { value: *x, labels });
    }
    let result = match right {
        Some(text) => labels(&text, None, &mut ellipsis)?,
        None => implicit(&terms, ellipsis),
    };
    let terms: Result<Vec<EinsumTerm>, NodeErrorKind> =
        terms.into_iter().map(|t| diagonal(k, t)).collect();
    let mut terms = terms?.into_iter();
    let mut total = terms
        .next()
        .ok_or_else(|| NodeErrorKind::operand(0, "is missing"))?;
    let mut rest: Vec<EinsumTerm> = terms.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let needed: Vec<char> = result
            .iter()
            .chain(rest.iter().flat_map(|t| &t.labels))
            .copied()
            .collect();
        total = contract(k, total, next, &needed)?;
    }
    total = summed(k, total, &result)?;
    let perm: Option<Vec<usize>> = result
        .iter()
        .map(|l| total.labels.iter().position(|o| o == l))
        .collect();
    let perm = perm.filter(|p| p.len() == total.labels.len());
    let perm = perm.ok_or_else(|| {
        NodeErrorKind::attribute(
            "equation",
            "the output has labels that the operands do not have",
        )
    })?;
    one(k.g().transpose(total.value, &perm)?)
}

/// The implicit output: the ellipsis axes, then the labels that occur once, in alphabetical order.
fn implicit(terms: &[EinsumTerm], ellipsis: usize) -> Vec<char> {
    let all: Vec<char> = terms
        .iter()
        .flat_map(|t| t.labels.iter().copied())
        .collect();
    let once = |c: &char| c.is_ascii_alphabetic() && all.iter().filter(|o| *o == c).count() == 1;
    let mut letters: Vec<char> = all.iter().copied().filter(once).collect();
    letters.sort_unstable();
    (0..ellipsis)
        .rev()
        .map(ellipsis_label)
        .chain(letters)
        .collect()
}

/// Takes the diagonal if a label occurs twice.
fn diagonal(k: &mut ImportNode<'_, '_>, term: EinsumTerm) -> Result<EinsumTerm, NodeErrorKind> {
    let EinsumTerm {
        mut value,
        mut labels,
    } = term;
    while let Some((i, j)) = (0..labels.len())
        .flat_map(|i| (i + 1..labels.len()).map(move |j| (i, j)))
        .find(|(i, j)| labels[*i] == labels[*j])
    {
        let n = k.size(value, i)?;
        if k.size(value, j)? != n {
            return Err(NodeErrorKind::attribute(
                "equation",
                "axes with the same label differ in size",
            ));
        }
        let mut perm: Vec<usize> = (0..labels.len()).filter(|a| *a != i && *a != j).collect();
        let mut kept: Vec<char> = perm.iter().map(|a| labels[*a]).collect();
        kept.push(labels[i]);
        perm.extend([i, j]);
        let y = k.g().transpose(value, &perm)?;
        let dims = k.dims(y);
        let mut flat = dims[..dims.len() - 2].to_vec();
        flat.push(product(&dims[dims.len() - 2..])?);
        let y = reshaped(k.g(), y, &flat)?;
        value = k
            .g()
            .slice_axis(y, flat.len() - 1, 0, i64::MAX, n as i64 + 1)?;
        labels = kept;
    }
    Ok(EinsumTerm { value, labels })
}

/// Sums over axes whose labels are not needed.
fn summed(
    k: &mut ImportNode<'_, '_>,
    term: EinsumTerm,
    needed: &[char],
) -> Result<EinsumTerm, NodeErrorKind> {
    let gone: Vec<usize> = (0..term.labels.len())
        .filter(|i| !needed.contains(&term.labels[*i]))
        .collect();
    if gone.is_empty() {
        return Ok(term);
    }
    let value = k.g().reduce(ReduceFn::Sum, term.value, &gone, false)?;
    let labels = term
        .labels
        .into_iter()
        .filter(|l| needed.contains(l))
        .collect();
    Ok(EinsumTerm { value, labels })
}

/// Contracts two operands, summed over the labels that are not needed later.
fn contract(
    k: &mut ImportNode<'_, '_>,
    a: EinsumTerm,
    b: EinsumTerm,
    needed: &[char],
) -> Result<EinsumTerm, NodeErrorKind> {
    let with =
        |other: &EinsumTerm| -> Vec<char> { needed.iter().chain(&other.labels).copied().collect() };
    let (for_a, for_b) = (with(&b), with(&a));
    let (a, b) = (summed(k, a, &for_a)?, summed(k, b, &for_b)?);
    let a = unstretched(k, a, &b)?;
    let b = unstretched(k, b, &a)?;
    let shared: Vec<char> = a
        .labels
        .iter()
        .copied()
        .filter(|l| b.labels.contains(l))
        .collect();
    let (batch, inner): (Vec<char>, Vec<char>) = shared.iter().partition(|l| needed.contains(l));
    let at = |t: &EinsumTerm, list: &[char]| -> Vec<usize> {
        list.iter()
            .filter_map(|l| t.labels.iter().position(|o| o == l))
            .collect()
    };
    let axes = DotGeneral {
        lhs_contract: at(&a, &inner),
        rhs_contract: at(&b, &inner),
        lhs_batch: at(&a, &batch),
        rhs_batch: at(&b, &batch),
    };
    let free = |t: &EinsumTerm| -> Vec<char> {
        t.labels
            .iter()
            .copied()
            .filter(|l| !shared.contains(l))
            .collect()
    };
    let labels = [batch, free(&a), free(&b)].concat();
    let value = k.g().dot_general(a.value, b.value, axes)?;
    Ok(EinsumTerm { value, labels })
}

/// Drops axes of size 1 for which the other operand has a larger size, because they broadcast.
fn unstretched(
    k: &mut ImportNode<'_, '_>,
    term: EinsumTerm,
    other: &EinsumTerm,
) -> Result<EinsumTerm, NodeErrorKind> {
    let (dims, others) = (k.dims(term.value), k.dims(other.value));
    let stretched = |i: &usize| {
        let twin = other.labels.iter().position(|l| *l == term.labels[*i]);
        dims[*i].is_one() && twin.is_some_and(|t| !others[t].is_one())
    };
    let gone: Vec<usize> = (0..dims.len()).filter(stretched).collect();
    if gone.is_empty() {
        return Ok(term);
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|i| !gone.contains(i)).collect();
    let sizes: Vec<Dim> = kept.iter().map(|i| dims[*i].clone()).collect();
    let value = reshaped(k.g(), term.value, &sizes)?;
    Ok(EinsumTerm {
        value,
        labels: kept.iter().map(|i| term.labels[*i]).collect(),
    })
}
