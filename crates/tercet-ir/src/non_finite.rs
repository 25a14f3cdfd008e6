//! Finds the source of infinities and NaNs: the first node that computes one from finite operands.

use std::fmt;

use tercet_tensor::{DType, Tensor, TensorType};

use crate::attr::FloatAttr;
use crate::graph::Value;

/// Summary statistics of a float tensor.
///
/// ```
/// use tercet_ir::{NodeId, Tensor, TensorSummary, Value};
/// let tensor = Tensor::from_slice(&[2], &[f32::INFINITY, f32::NAN])?;
/// let value = Value { node: NodeId(1), port: 0 };
/// let summary = TensorSummary::new(value, "unary", None, &tensor);
/// assert_eq!(summary.finite, None);
/// # Ok::<(), tercet_ir::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSummary {
    /// The graph value that the tensor belongs to.
    pub value: Value,
    /// Operator of the node that computes the value.
    pub op: &'static str,
    /// Name of the input, parameter or state, if the value is one.
    pub name: Option<String>,
    /// The tensor's type.
    pub ty: TensorType,
    /// The minimum and maximum of the finite elements; `None` if no element is finite.
    pub finite: Option<(FloatAttr, FloatAttr)>,
}

/// The non-finite elements of a tensor.
///
/// ```
/// use tercet_ir::{NonFiniteKind, Tensor};
/// let tensor = Tensor::from_slice(&[3], &[1f32, f32::NAN, f32::INFINITY])?;
/// let found = NonFiniteKind::detect(&tensor, Vec::new()).unwrap();
/// assert_eq!((found.element, found.count), (1, 2));
/// # Ok::<(), tercet_ir::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFiniteKind {
    /// Row-major index of the first non-finite element.
    pub element: usize,
    /// The value of that element.
    pub number: FloatAttr,
    /// The number of non-finite elements.
    pub count: usize,
    /// The float operands of the node.
    pub operands: Vec<TensorSummary>,
}

/// The first node in graph order whose result is not finite although its operands are. The node may
/// also be an input, parameter or state that holds NaN.
///
/// ```
/// use tercet_ir::{NodeId, NonFinite, NonFiniteKind, Tensor, TensorSummary, Value};
/// let tensor = Tensor::from_slice(&[2], &[1f32, f32::INFINITY])?;
/// let value = Value { node: NodeId(1), port: 0 };
/// let result = TensorSummary::new(value, "unary", None, &tensor);
/// let found = NonFinite { result, kind: NonFiniteKind::detect(&tensor, Vec::new()) };
/// assert!(found.to_string().starts_with("%1 (unary) is inf at element 1"));
/// # Ok::<(), tercet_ir::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The node's result.
    pub result: TensorSummary,
    /// The non-finite elements. `None` if the run could not be repeated to inspect the result.
    pub kind: Option<NonFiniteKind>,
}

impl TensorSummary {
    /// The summary of a tensor, in one pass and without a copy.
    pub fn new(
        value: Value,
        op: &'static str,
        name: Option<String>,
        tensor: &Tensor,
    ) -> TensorSummary {
        let mut finite: Option<(f64, f64)> = None;
        for_each(tensor, |_, x| {
            if x.is_finite() {
                let (least, greatest) = finite.unwrap_or((x, x));
                finite = Some((least.min(x), greatest.max(x)));
            }
        });
        TensorSummary {
            value,
            op,
            name,
            ty: tensor.ty().clone(),
            finite: finite.map(|(least, greatest)| (FloatAttr(least), FloatAttr(greatest))),
        }
    }
}

impl NonFiniteKind {
    /// The non-finite elements of a tensor; `None` if all are finite.
    pub fn detect(tensor: &Tensor, operands: Vec<TensorSummary>) -> Option<NonFiniteKind> {
        let (mut first, mut count) = (None, 0);
        for_each(tensor, |at, x| {
            if !x.is_finite() {
                first = first.or(Some((at, x)));
                count += 1;
            }
        });
        let (element, number) = first?;
        Some(NonFiniteKind {
            element,
            number: FloatAttr(number),
            count,
            operands,
        })
    }
}

/// Calls `f` with the index and value of each element of a float tensor; does nothing for other
/// dtypes.
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
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
        }
    }
}

/// The index of an element along each axis.
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

impl fmt::Display for TensorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} ({} `{name}`)", self.value, self.op)?,
            None => write!(f, "{} ({})", self.value, self.op)?,
        }
        write!(f, " {}", self.ty)?;
        match &self.finite {
            Some((FloatAttr(least), FloatAttr(greatest))) => {
                write!(f, " in [{least:e}, {greatest:e}]")
            }
            None if self.ty.numel() == 0 => write!(f, " without elements"),
            None => write!(f, " without a finite element"),
        }
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorSummary {
            value,
            op,
            name,
            ty,
            ..
        } = &self.result;
        let Some(found) = &self.kind else {
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
        write!(f, " of {ty}; {count} of {all} elements are not finite")?;
        for (i, operand) in found.operands.iter().enumerate() {
            let lead = if i == 0 { "; operands: " } else { "; " };
            write!(f, "{lead}{operand}")?;
        }
        Ok(())
    }
}
