//! Where infinities and NaNs come from: the first node that makes one of finite operands.

use std::fmt;

use crate::attr::Real;
use crate::dtype::DType;
use crate::graph::Value;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// A tensor of floats in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which value it is.
    pub value: Value,
    /// Its operator.
    pub op: &'static str,
    /// Its name, if it is an input, a parameter or a state.
    pub name: Option<String>,
    /// Its type.
    pub ty: TensorType,
    /// The least and the greatest of its finite numbers; none if it has none.
    pub finite: Option<(Real, Real)>,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The first element that is not finite, by its place in row-major order.
    pub element: usize,
    /// What it is.
    pub number: Real,
    /// How many elements are not finite.
    pub count: usize,
    /// The operands that are floats.
    pub operands: Vec<Span>,
}

/// The first node, in the order of the graph, whose result is not finite although its operands are; or an input,
/// parameter or state that holds NaN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The result.
    pub result: Span,
    /// Where it is not finite. Not there if the run could not be done again to look at it.
    pub found: Option<Found>,
}

impl Span {
    /// What there is to say of a tensor. One pass, no copy.
    pub fn of(value: Value, op: &'static str, name: Option<String>, tensor: &Tensor) -> Span {
        let mut finite: Option<(f64, f64)> = None;
        for_each(tensor, |_, x| {
            if x.is_finite() {
                let (least, greatest) = finite.unwrap_or((x, x));
                finite = Some((least.min(x), greatest.max(x)));
            }
        });
        Span {
            value,
            op,
            name,
            ty: tensor.ty().clone(),
            finite: finite.map(|(least, greatest)| (Real(least), Real(greatest))),
        }
    }
}

impl Found {
    /// The elements of a tensor that are not finite; `None` if all are.
    pub fn of(tensor: &Tensor, operands: Vec<Span>) -> Option<Found> {
        let (mut first, mut count) = (None, 0);
        for_each(tensor, |at, x| {
            if !x.is_finite() {
                first = first.or(Some((at, x)));
                count += 1;
            }
        });
        let (element, number) = first?;
        Some(Found {
            element,
            number: Real(number),
            count,
            operands,
        })
    }
}

/// Calls `f` with each number of a tensor of floats and its place; not at all for other dtypes.
fn for_each(tensor: &Tensor, mut f: impl FnMut(usize, f64)) {
    fn all<T: crate::Element>(tensor: &Tensor, wide: fn(T) -> f64, f: &mut impl FnMut(usize, f64)) {
        let numbers = tensor.as_slice::<T>().unwrap_or_default();
        numbers.iter().enumerate().for_each(|(i, x)| f(i, wide(*x)));
    }
    match tensor.dtype() {
        DType::F32 => all::<f32>(tensor, f64::from, &mut f),
        DType::F16 => all::<half::f16>(tensor, half::f16::to_f64, &mut f),
        DType::BF16 => all::<half::bf16>(tensor, half::bf16::to_f64, &mut f),
        DType::F64 => all::<f64>(tensor, |x| x, &mut f),
        DType::I32 | DType::U32 | DType::I64 | DType::I8 | DType::U8 | DType::Bool => {}
    }
}

/// The place along each axis of an element.
fn place(shape: &[usize], element: usize) -> Vec<usize> {
    let mut rest = element;
    let mut place: Vec<usize> = (shape.iter().rev())
        .map(|&n| {
            let at = rest % n.max(1);
            rest /= n.max(1);
            at
        })
        .collect();
    place.reverse();
    place
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} ({} `{name}`)", self.value, self.op)?,
            None => write!(f, "{} ({})", self.value, self.op)?,
        }
        write!(f, " {}", self.ty)?;
        match &self.finite {
            Some((Real(least), Real(greatest))) => write!(f, " from {least:e} to {greatest:e}"),
            None if self.ty.numel() == 0 => write!(f, " without elements"),
            None => write!(f, " without a finite element"),
        }
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span {
            value,
            op,
            name,
            ty,
            ..
        } = &self.result;
        let Some(found) = &self.found else {
            return write!(f, "{value} ({op}) is not finite although its operands are");
        };
        let (number, at) = (found.number.0, found.element);
        match name {
            Some(name) => write!(f, "{value} ({op} `{name}`)")?,
            None => write!(f, "{value} ({op})")?,
        }
        write!(f, " is {number} at element {at}")?;
        if ty.shape.len() > 1 {
            write!(f, " {:?}", place(&ty.shape, at))?;
        }
        let (count, all) = (found.count, ty.numel());
        write!(f, " of {ty}; {count} of its {all} elements are not finite")?;
        for (i, operand) in found.operands.iter().enumerate() {
            let lead = if i == 0 { ", its operands are: " } else { "; " };
            write!(f, "{lead}{operand}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    #[test]
    fn tensors_are_said_in_a_few_words() {
        let at = |node| Value {
            node: NodeId(node),
            port: 0,
        };
        let x = Tensor::from_slice(&[2, 3], &[1f32, -2.0, 88.0, 0.0, 89.0, 90.0]).unwrap();
        let inf = f32::INFINITY;
        let y = Tensor::from_slice(&[2, 3], &[3f32, 0.0, 1e38, 1.0, inf, inf]).unwrap();
        let operand = Span::of(at(0), "input", Some("x".to_string()), &x);
        let report = NonFinite {
            result: Span::of(at(1), "unary", None, &y),
            found: Found::of(&y, vec![operand]),
        };
        assert_eq!(
            report.to_string(),
            "%1 (unary) is inf at element 4 [1, 1] of f32[2, 3]; 2 of its 6 elements are not finite, its operands \
             are: %0 (input `x`) f32[2, 3] from -2e0 to 9e1"
        );
        assert_eq!(Found::of(&x, Vec::new()), None);
        let none = Tensor::from_slice(&[0], &[0f32; 0]).unwrap();
        let none = Span::of(at(0), "input", None, &none).to_string();
        assert_eq!(none, "%0 (input) f32[0] without elements");
    }
}
