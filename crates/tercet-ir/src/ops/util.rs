//! Helpers of operators: validation of operands and iteration over tensors.

use std::cmp::Ordering;

use tercet_tensor::{
    DType, Dim, Shape, Tensor, TensorType, Type, broadcast_shapes, next_index, row_major_strides,
};

use crate::error::{EvalError, TypeError};
use crate::scalar::{Scalar, ScalarOp};

/// The operands as an array of exactly `N`.
pub(crate) fn exactly<'a, const N: usize>(
    operands: &[&'a Type],
) -> Result<[&'a Type; N], TypeError> {
    operands.try_into().map_err(|_| TypeError::Arity {
        expected: N.to_string(),
        given: operands.len(),
    })
}

/// `N` operands, followed by up to `M` optional ones.
pub(crate) fn with_optional<'a, const N: usize, const M: usize>(
    operands: &[&'a Type],
) -> Result<([&'a Type; N], [Option<&'a Type>; M]), TypeError> {
    let arity = || TypeError::Arity {
        expected: format!("{N} to {}", N + M),
        given: operands.len(),
    };
    if operands.len() > N + M {
        return Err(arity());
    }
    let required = operands
        .get(..N)
        .and_then(|r| r.try_into().ok())
        .ok_or_else(arity)?;
    let mut optional = [None; M];
    for (slot, ty) in optional.iter_mut().zip(&operands[N..]) {
        *slot = Some(*ty);
    }
    Ok((required, optional))
}

/// Checks that a dtype is in `accepted`.
pub(crate) fn expect_dtype(
    operand: &'static str,
    ty: &Type,
    accepted: &[DType],
) -> Result<(), TypeError> {
    if accepted.contains(&ty.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = accepted.iter().map(|d| d.name()).collect();
    Err(TypeError::DType {
        operand,
        found: ty.dtype,
        accepted: names.join(", "),
    })
}

/// Checks that an operand's dtype equals the first operand's.
pub(crate) fn expect_same_dtype(
    operand: &'static str,
    ty: &Type,
    first: &Type,
) -> Result<(), TypeError> {
    if ty.dtype == first.dtype {
        return Ok(());
    }
    let accepted = format!(
        "{}, the dtype of the first operand; cast one of them",
        first.dtype
    );
    Err(TypeError::DType {
        operand,
        found: ty.dtype,
        accepted,
    })
}

/// Checks that an operand has at least `least` axes.
pub(crate) fn expect_rank_at_least(
    operand: &'static str,
    ty: &Type,
    least: usize,
) -> Result<(), TypeError> {
    if ty.rank() >= least {
        return Ok(());
    }
    let expected = format!("rank {least} or more");
    Err(TypeError::Rank {
        operand,
        found: ty.clone(),
        expected,
    })
}

/// Checks that an operand has this rank.
pub(crate) fn expect_rank(operand: &'static str, ty: &Type, rank: usize) -> Result<(), TypeError> {
    if ty.rank() == rank {
        return Ok(());
    }
    Err(TypeError::Rank {
        operand,
        found: ty.clone(),
        expected: format!("rank {rank}"),
    })
}

/// Checks that an axis is within the rank.
pub(crate) fn expect_axis(axis: usize, rank: usize) -> Result<(), TypeError> {
    if axis < rank {
        Ok(())
    } else {
        Err(TypeError::Axis { axis, rank })
    }
}

/// Checks that dimensions are provably equal.
pub(crate) fn expect_equal(what: &str, left: &Dim, right: &Dim) -> Result<(), TypeError> {
    if left == right {
        return Ok(());
    }
    Err(TypeError::Mismatch {
        what: what.to_string(),
        left: left.clone(),
        right: right.clone(),
    })
}

/// The error for a dimension that overflows.
pub(crate) fn overflow(ty: &Type) -> TypeError {
    TypeError::TooLarge { ty: ty.clone() }
}

/// The elements of a tensor as scalars.
pub(crate) fn scalars(t: &Tensor) -> Vec<Scalar> {
    match t.dtype().is_float() {
        true => t.to_f64s().into_iter().map(Scalar::F).collect(),
        false => t.to_i64s().into_iter().map(Scalar::I).collect(),
    }
}

/// A tensor of scalars that are already rounded or wrapped.
pub(crate) fn from_scalars(ty: TensorType, values: &[Scalar]) -> Result<Tensor, EvalError> {
    Ok(match ty.dtype.is_float() {
        true => Tensor::from_f64s(ty, &values.iter().map(|s| s.as_f64()).collect::<Vec<_>>())?,
        false => Tensor::from_i64s(ty, &values.iter().map(|s| s.as_i64()).collect::<Vec<_>>())?,
    })
}

/// A tensor viewed as `[outer, len, inner]` around one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AxisView {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl AxisView {
    pub(crate) fn new(shape: &[usize], axis: usize) -> AxisView {
        AxisView {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    /// Calls `f` with the flat index of the first element of each line along the axis. The elements
    /// of a line are `inner` apart.
    pub(crate) fn for_each_line(self, mut f: impl FnMut(usize)) {
        for o in 0..self.outer {
            for i in 0..self.inner {
                f(o * self.len * self.inner + i);
            }
        }
    }

    /// The flat indices of the line that begins at `start`.
    pub(crate) fn line(self, start: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.len).map(move |i| start + i * self.inner)
    }
}

/// Calls `f` with every index of `shape` in row-major order.
pub(crate) fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        if !next_index(&mut index, shape) {
            return;
        }
    }
}

/// For each element of `to`, the flat index of the element of `from` that broadcasts to it.
pub(crate) fn broadcast_indices(from: &[usize], to: &[usize]) -> Vec<usize> {
    let strides = row_major_strides(from);
    let missing = to.len() - from.len();
    let mut flat = Vec::with_capacity(to.iter().product());
    for_each_index(to, |index| {
        let own = index[missing..].iter().zip(from).zip(&strides);
        flat.push(
            own.map(|((&i, &n), &s)| if n == 1 { 0 } else { i * s })
                .sum(),
        );
    });
    flat
}

/// The position of a possibly negative index along an axis.
pub(crate) fn resolve_index(index: i64, len: usize) -> Result<usize, EvalError> {
    let signed = len as i64;
    let at = if index < 0 {
        index.checked_add(signed)
    } else {
        Some(index)
    };
    at.filter(|i| (0..signed).contains(i))
        .map(|i| i as usize)
        .ok_or(EvalError::Index { index, len })
}

/// The NumPy broadcast of all operands.
pub(crate) fn broadcast_all(operands: &[&Type]) -> Result<Shape, TypeError> {
    let Some((first, rest)) = operands.split_first() else {
        return Ok(Shape::default());
    };
    let mut shape = first.shape.clone();
    for ty in rest {
        let both = broadcast_shapes(&shape, &ty.shape);
        shape = both.ok_or_else(|| TypeError::Broadcast {
            left: first.with_shape(shape.clone()),
            right: (*ty).clone(),
        })?;
    }
    Ok(shape)
}

/// The result type of one scalar function over broadcast operands.
pub(crate) fn elementwise_infer(op: &ScalarOp, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
    let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
    let dtype = op.infer(&dtypes)?;
    Ok(vec![Type::new(dtype, broadcast_all(operands)?)])
}

/// Evaluates one scalar function over broadcast operands.
pub(crate) fn elementwise_eval(
    op: &ScalarOp,
    operands: &[&Tensor],
    result: &TensorType,
) -> Result<Vec<Tensor>, EvalError> {
    let from = operands.last().map_or(result.dtype, |t| t.dtype());
    let data: Vec<Vec<Scalar>> = (operands.iter())
        .map(|t| {
            let own = scalars(t);
            if t.shape() == result.shape {
                return own;
            }
            let at = broadcast_indices(t.shape(), &result.shape);
            at.into_iter().map(|i| own[i]).collect()
        })
        .collect();
    let mut args = vec![Scalar::I(0); data.len()];
    let y: Vec<Scalar> = (0..result.numel())
        .map(|i| {
            for (slot, column) in args.iter_mut().zip(&data) {
                *slot = column[i];
            }
            op.eval(from, result.dtype, &args)
        })
        .collect();
    Ok(vec![from_scalars(result.clone(), &y)?])
}

/// A tensor of type `ty` whose element at an index is the element of `x` at the flat index from
/// `at`. The function only moves elements, so every bit is preserved.
pub(crate) fn pick(
    x: &Tensor,
    ty: &TensorType,
    mut at: impl FnMut(&[usize]) -> usize,
) -> Result<Tensor, EvalError> {
    let size = ty.dtype.size_bytes();
    let mut y = Tensor::zeros(ty.clone())?;
    let (from, mut to) = (x.bytes(), y.bytes_mut().chunks_exact_mut(size));
    for_each_index(&ty.shape, |index| {
        let i = at(index) * size;
        if let Some(slot) = to.next() {
            slot.copy_from_slice(&from[i..i + size]);
        }
    });
    Ok(y)
}

/// The dtypes of index operands.
pub(crate) const INDEX_DTYPES: &[DType] = &[DType::I32, DType::I64];

/// The order of selecting extremes: NaN first, then the largest (or the smallest) first. Equal
/// numbers compare equal, so a stable search keeps the lower index.
pub(crate) fn extreme_order(a: Scalar, b: Scalar, largest: bool) -> Ordering {
    let order = match (a, b) {
        (Scalar::I(a), Scalar::I(b)) => a.cmp(&b),
        (a, b) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            match (a.is_nan(), b.is_nan()) {
                (true, true) => return Ordering::Equal,
                (true, false) => return Ordering::Less,
                (false, true) => return Ordering::Greater,
                (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            }
        }
    };
    if largest { order.reverse() } else { order }
}
