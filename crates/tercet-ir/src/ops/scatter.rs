//! Updates written to, or combined with, the elements of a tensor that indices name.
//!
//! Several updates may go to one element. They are taken in row-major order, so that the result is the
//! same in every run: the last one stays, or they are combined one after the other with what the element
//! held, wide, and rounded once. What no update names keeps its bits.

mod add;
mod elements;
mod nd;

pub use add::ScatterAdd;
pub use elements::ScatterElements;
pub use nd::ScatterNd;

use crate::dtype::DType;
use crate::error::{EvalError, TypeError};
use crate::ops::reduce::ReduceFn;
use crate::ops::util::{expect_same_dtype, from_scalars, scalars};
use crate::spelled;
use crate::tensor::Tensor;
use crate::types::Type;

spelled! {
    /// What becomes of an element and the updates that go to it.
    pub enum ScatterReduce {
        /// The last update.
        Replace "none",
        /// Their sum.
        Add "add",
        /// Their product.
        Mul "mul",
        /// The greatest of them; NaN if any is NaN.
        Max "max",
        /// The least of them; NaN if any is NaN.
        Min "min",
    }
}

impl ScatterReduce {
    /// The combination of two elements as a reduction; none where the last update stays.
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

/// The dtypes that a combination takes.
const fn accepted(reduce: ScatterReduce) -> &'static [DType] {
    match reduce {
        ScatterReduce::Replace => DType::ALL,
        ScatterReduce::Add | ScatterReduce::Mul | ScatterReduce::Max | ScatterReduce::Min => {
            DType::NUMBERS
        }
    }
}

/// Refuses updates of another dtype than `data`, and truth values that would be combined.
fn expect_updates(reduce: ScatterReduce, data: &Type, updates: &Type) -> Result<(), TypeError> {
    crate::ops::util::expect_dtype("data", data, accepted(reduce))?;
    expect_same_dtype("updates", updates, data)
}

/// `data` in slices of `inner` elements, with the slices of `updates` taken in order to those that
/// `slices` names.
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
