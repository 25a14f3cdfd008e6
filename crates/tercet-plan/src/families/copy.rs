//! Copies of any dtype by bits: strided views to dense slots, and commits to states.

use tercet_ir::CompileError;

use super::portable;
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `copy.wgsl`.
    pub struct CopyParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// The block of `commit.wgsl`.
    pub struct CommitParams {
        words: U32,
        checks: U32,
    }
}

/// A strided view to a dense slot.
pub(crate) static COPY: Kernel<CopyParams> = Kernel::wgsl(
    "copy",
    &[portable!("copy.wgsl")],
    &[Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

/// A dense slot to a state, unless a check of data failed.
pub(crate) static COMMIT: Kernel<CommitParams> = Kernel::wgsl(
    "commit",
    &[portable!("commit.wgsl")],
    &[Access::Read, Access::Write, Access::Read],
    &[],
);

/// Copies a view into a dense slot of the same shape.
pub(crate) fn emit(e: &mut Emit<'_>, from: &View, to: &View) -> Result<(), CompileError> {
    let shape = from.layout.shape();
    let (mut sizes, mut strides) = ([Num::ONE; 8], [Num::ZERO; 8]);
    let rank = shape.len();
    for (axis, n) in e.sizes(shape).into_iter().enumerate() {
        sizes[axis] = n;
    }
    for (axis, s) in e.strides(from).into_iter().enumerate() {
        strides[axis] = s;
    }
    let params = CopyParams {
        shape: sizes,
        strides,
        numel: e.numel(shape),
        offset: e.offset(from),
    };
    let words = e.words(from.dtype, shape);
    let grid = e.grid_of(words, 256);
    let consts = [from.dtype.size_bytes() as u32, rank as u32];
    e.dispatch(&COPY, &consts, &[from.slot, to.slot], &params, grid);
    Ok(())
}

/// Writes a dense value into a state at the end of a run that did not fail.
pub(crate) fn commit(e: &mut Emit<'_>, from: &View, state: &View) {
    let words = e.words(from.dtype, from.layout.shape());
    let params = CommitParams {
        words,
        checks: Num::ZERO,
    };
    let grid = e.grid_of(words, 256);
    e.dispatch_guarded(&COMMIT, &[], &[from.slot, state.slot], &params, grid);
}
