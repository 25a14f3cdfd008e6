//! Scatter operators: updates are written to, or combined with, indexed elements of a tensor.
//!
//! If several updates have the same element, they are applied in row-major order, so the result is
//! deterministic. Either the last update is stored, or all updates are combined in order with the
//! old element, in a wide dtype, and rounded once. Elements without updates keep their bits.

mod add;
mod elements;
mod nd;

pub use add::ScatterAdd;
pub use elements::ScatterElements;
pub use nd::ScatterNd;

use tercet_tensor::{DType, Tensor, Type};

use crate::error::{EvalError, TypeError};
use crate::ops::reduce::ReduceFn;
use crate::ops::util::{expect_same_dtype, from_scalars, scalars};
use crate::spelled;

spelled! {
    /// How updates are combined with an element.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{ReduceFn, ScatterReduce}};
    /// let mut g = Graph::new();
    /// let data = g.input("data", Type::new(DType::F32, [10]))?;
    /// let idx = g.input("idx", Type::new(DType::I32, [3]))?;
    /// let updates = g.input("updates", Type::new(DType::F32, [3]))?;
    /// let y = g.scatter_elements(data, idx, updates, 0, ScatterReduce::Add)?;
    /// assert_eq!(g.ty(y), g.ty(data));
    /// assert_eq!(ScatterReduce::Add.reduction(), Some(ReduceFn::Sum));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum ScatterReduce {
        /// The last update replaces the element.
        Replace "none",
        /// The sum of the element and its updates.
        Add "add",
        /// The product of the element and its updates.
        Mul "mul",
        /// The maximum of the element and its updates; NaN if any is NaN.
        Max "max",
        /// The minimum of the element and its updates; NaN if any is NaN.
        Min "min",
    }
}

impl ScatterReduce {
    /// The equivalent reduction; `None` for replacement.
    pub const fn reduction(self) -> Option<ReduceFn> {
        match self {
            ScatterReduce::Replace => None,
            ScatterReduce::Add => Some(ReduceFn::Sum),
            ScatterReduce::Mul => Some(ReduceFn::Prod),
            ScatterReduce::Max => Some(ReduceFn::Max),
            ScatterReduce::Min => Some(ReduceFn::Min),
        }
    }
}

/// The dtypes that a combination supports.
const fn accepted(reduce: ScatterReduce) -> &'static [DType] {
    match reduce {
        ScatterReduce::Replace => DType::ALL,
        ScatterReduce::Add | ScatterReduce::Mul | ScatterReduce::Max | ScatterReduce::Min => {
            DType::NUMBERS
        }
    }
}

/// Checks that updates have the dtype of `data`, and that booleans are not combined.
fn expect_updates(reduce: ScatterReduce, data: &Type, updates: &Type) -> Result<(), TypeError> {
    crate::ops::util::expect_dtype("data", data, accepted(reduce))?;
    expect_same_dtype("updates", updates, data)
}

/// Applies the slices of `updates` in order to the slices of `data` at the indices `slices`; a
/// slice has `inner` elements.
fn scatter(
    data: &Tensor,
    updates: &Tensor,
    inner: usize,
    slices: &[usize],
    reduce: ScatterReduce,
) -> Result<Tensor, EvalError> {
    let dtype = data.dtype();
    let bytes = inner * dtype.size_bytes();
    let mut y = data.clone();
    if bytes == 0 {
        return Ok(y);
    }
    let Some(f) = reduce.reduction() else {
        for (from, &to) in updates.bytes().chunks_exact(bytes).zip(slices) {
            y.bytes_mut()[to * bytes..][..bytes].copy_from_slice(from);
        }
        return Ok(y);
    };
    let (mut wide, updates) = (scalars(data), scalars(updates));
    for (from, &to) in updates.chunks_exact(inner).zip(slices) {
        for (so_far, update) in wide[to * inner..][..inner].iter_mut().zip(from) {
            *so_far = f.combine(dtype, *so_far, *update);
        }
    }
    let rounded = from_scalars(data.ty().clone(), &wide)?;
    for &at in slices {
        let from = &rounded.bytes()[at * bytes..][..bytes];
        y.bytes_mut()[at * bytes..][..bytes].copy_from_slice(from);
    }
    Ok(y)
}
