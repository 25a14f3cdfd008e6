//! Helpers of operators: validation of operands and iteration over tensors.

use std::cmp::Ordering;

use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::graph::{Graph, Value};
use crate::scalar::{Scalar, ScalarOp};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type, broadcast_shapes, next_index, row_major_strides};

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

/// The static list that contains exactly the dtypes for which `takes` is true.
pub(crate) fn dtypes_that(takes: impl Fn(DType) -> bool) -> &'static [DType] {
    const BITS: &[DType] = &[
        DType::I32,
        DType::U32,
        DType::I64,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];
    match (takes(DType::F32), takes(DType::I32), takes(DType::Bool)) {
        (true, true, true) => DType::ALL,
        (true, true, false) => DType::NUMBERS,
        (true, false, _) => DType::FLOATS,
        (false, true, true) => BITS,
        (false, true, false) => DType::INTS,
        (false, false, _) => &[DType::Bool],
    }
}

/// A case with explicit operands of rank 1 and an explicit result.
pub(crate) fn pinned(
    name: impl Into<String>,
    only: &'static [DType],
    operands: &[&[f64]],
    expected: &[f64],
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, OpError> + Send + Sync + 'static,
) -> OpCase {
    let operands: Vec<Vec<f64>> = operands.iter().map(|x| x.to_vec()).collect();
    let expected = expected.to_vec();
    OpCase::new(name, move |c| {
        let mut values = Vec::with_capacity(operands.len());
        for (i, x) in operands.iter().enumerate() {
            values.push(c.input(&format!("x{i}"), [x.len()], InputFill::Values(x.clone()))?);
        }
        let y = build(&mut c.graph, &values)?;
        c.output_expect(y, &expected)
    })
    .only(only)
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

/// The values 0, 1, 2, ... for an input of these sizes.
pub(crate) fn counted(shape: &[usize]) -> InputFill {
    let count = shape.iter().product::<usize>();
    InputFill::Values((0..count).map(|i| i as f64).collect())
}

/// A graph that the builder must reject.
pub(crate) fn reject(
    name: &'static str,
    message: &'static str,
    build: fn(&mut Graph) -> Result<Value, OpError>,
) -> RejectCase {
    RejectCase {
        name,
        message,
        build,
    }
}

/// A function of two inputs of these types.
pub(crate) fn binary_graph(
    g: &mut Graph,
    [a, b]: [Type; 2],
    apply: impl Fn(&mut Graph, Value, Value) -> Result<Value, OpError>,
) -> Result<Value, OpError> {
    let (a, b) = (g.input("a", a)?, g.input("b", b)?);
    apply(g, a, b)
}

/// Cases of an elementwise function of two operands.
pub(crate) struct BinaryCases<F> {
    /// Prefix of the case names.
    pub(crate) name: &'static str,
    /// Dtypes that the function supports.
    pub(crate) dtypes: &'static [DType],
    /// Adds the function to a graph.
    pub(crate) apply: F,
}

impl<F> BinaryCases<F>
where
    F: Fn(&mut Graph, Value, Value) -> Result<Value, OpError> + Copy + Send + Sync + 'static,
{
    /// A case with operands of these shapes.
    pub(crate) fn shaped(
        &self,
        what: &str,
        [a, b]: [&'static [usize]; 2],
        fill: InputFill,
    ) -> OpCase {
        let apply = self.apply;
        let case = OpCase::new(format!("{}_{what}", self.name), move |c| {
            let a = c.input("a", a, fill.clone())?;
            let b = c.input("b", b, fill.clone())?;
            let y = apply(&mut c.graph, a, b)?;
            c.output(y)
        });
        case.only(self.dtypes)
    }

    /// A case with a symbolic number of rows, and a column that broadcasts.
    pub(crate) fn symbolic(&self) -> OpCase {
        let apply = self.apply;
        let case = OpCase::new(format!("{}_symbolic", self.name), move |c| {
            let s = c.sym("s", 5, 9);
            let a = c.input("a", [s.clone(), 3.into()], InputFill::Normal)?;
            let b = c.input("b", [s, 1.into()], InputFill::Normal)?;
            let y = apply(&mut c.graph, a, b)?;
            c.output(y)
        });
        case.only(self.dtypes)
    }
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
