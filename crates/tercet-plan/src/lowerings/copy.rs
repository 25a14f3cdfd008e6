//! Bitwise copies of any dtype: of strided views to dense slots, and of new state values to states.
//!
//! Three kernels copy strided views to dense slots. One copies 16-byte vectors, if the innermost
//! axis consists of whole vectors. One transposes tiles, if another axis has unit stride. One
//! copies single elements, in all other cases.

use tercet_ir::CompileError;

use super::portable;
use super::rows::merged;
use super::words::eight;
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `copy.wgsl`.
    pub struct CopyParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// Parameter block of `transpose.wgsl`.
    pub struct TransposeParams {
        sizes: U32x8,
        strides: U32x8,
        targets: U32x8,
        axes: U32,
        batches: U32,
        offset: U32,
        rows: U32,
        columns: U32,
        column_step: U32,
        row_step: U32,
    }
    /// Parameter block of `commit.wgsl`.
    pub struct CommitParams {
        words: U32,
        checks: U32,
    }
}

/// Copies a strided view to a dense slot, element by element.
pub(crate) static COPY: TypedKernel<CopyParams> = TypedKernel::wgsl(
    "copy",
    &[portable!("copy.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK"],
);

/// Copies a strided view to a dense slot, in vectors of 16 bytes.
pub(crate) static VECTORS: TypedKernel<CopyParams> = TypedKernel::wgsl(
    "copy_vectors",
    &[PRELUDE, portable!("copy_vectors.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["RANK"],
);

/// Copies a strided view to a dense slot, in tiles of two axes that are transposed in shared
/// memory.
pub(crate) static TRANSPOSE: TypedKernel<TransposeParams> = TypedKernel::wgsl(
    "transpose",
    &[PRELUDE, portable!("transpose.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES"],
);

/// Rows and columns of a square tile of [`TRANSPOSE`], and the minimum size of both axes for which
/// the tiled kernel is used.
const TILE: u32 = 32;
const WORTH_TILES: usize = 8;

/// Copies a dense new state value to its state, unless a data check failed in this run.
pub(crate) static COMMIT: TypedKernel<CommitParams> = TypedKernel::wgsl(
    "commit",
    &[portable!("commit.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write, ArgAccess::Read],
    &[],
);

/// Emits a copy of a view into a dense slot of the same shape.
pub(crate) fn emit(
    e: &mut LoweringCtx<'_>,
    from: &SlotView,
    to: &SlotView,
) -> Result<(), CompileError> {
    let (layout, _) = merged(from.layout.clone(), 0);
    let view = SlotView {
        layout,
        ..from.clone()
    };
    let shape = view.layout.shape().to_vec();
    let walk = StridedView {
        sizes: e.sizes(&shape).to_vec(),
        strides: e.strides(&view).to_vec(),
        offset: e.offset(&view),
        numel: e.numel(&shape),
        bytes: from.dtype.size_bytes() as u32,
    };
    let mut bounds = Vec::with_capacity(shape.len());
    for dim in &shape {
        bounds.push(e.bound(dim)?);
    }
    let args = [from.slot, to.slot];
    if bounds.iter().all(|&n| n > 0)
        && (walk.in_vectors(e, &args) || walk.in_tiles(e, &bounds, &args))
    {
        return Ok(());
    }
    let params = CopyParams {
        shape: eight(&walk.sizes),
        strides: eight(&walk.strides),
        numel: walk.numel,
        offset: walk.offset,
    };
    let words = e.words(from.dtype, &shape);
    let grid = e.grid_of(words, 256);
    let consts = [walk.bytes, shape.len() as u32];
    e.dispatch(&COPY, &consts, &args, &params, grid);
    Ok(())
}

/// Sizes and strides of a view, in elements; adjacent axes are merged where the strides allow it.
struct StridedView {
    sizes: Vec<SymInt>,
    strides: Vec<SymInt>,
    offset: SymInt,
    numel: SymInt,
    bytes: u32,
}

impl StridedView {
    /// Emits the vector copy and returns true, if the view consists of whole vectors.
    fn in_vectors(&self, e: &mut LoweringCtx<'_>, args: &[SlotId; 2]) -> bool {
        let each = 16 / self.bytes;
        let (Some((&size, outer)), Some((&SymInt::ONE, strides))) =
            (self.sizes.split_last(), self.strides.split_last())
        else {
            return false;
        };
        let tape = e.tape();
        let whole = |n: &SymInt| tape.is_multiple(*n, each);
        if !whole(&size) || !whole(&self.offset) || !strides.iter().all(whole) {
            return false;
        }
        let tape = e.tape();
        let mut sizes = outer.to_vec();
        sizes.push(tape.div(size, each));
        let mut strides: Vec<SymInt> = strides.iter().map(|s| tape.div(*s, each)).collect();
        strides.push(SymInt::ONE);
        let params = CopyParams {
            shape: eight(&sizes),
            strides: eight(&strides),
            numel: tape.div(self.numel, each),
            offset: tape.div(self.offset, each),
        };
        let pairs = e.tape().ceil_div(params.numel, 2u32);
        let grid = e.grid_of(pairs, 256);
        e.dispatch(&VECTORS, &[sizes.len() as u32], args, &params, grid);
        true
    }

    /// Emits the tiled transpose and returns true, if an axis other than the last has unit stride,
    /// and this axis and the last one are long.
    fn in_tiles(&self, e: &mut LoweringCtx<'_>, bounds: &[usize], args: &[SlotId; 2]) -> bool {
        let Some(last) = self.sizes.len().checked_sub(1) else {
            return false;
        };
        let Some(unit) = self.strides.iter().position(|s| *s == SymInt::ONE) else {
            return false;
        };
        let long = bounds[unit].min(bounds[last]) >= WORTH_TILES;
        if unit == last || !long || !e.tape().is_multiple(self.sizes[last], 4 / self.bytes) {
            return false;
        }
        let tape = e.tape();
        let mut targets = vec![SymInt::ONE; last + 1];
        for axis in (0..last).rev() {
            targets[axis] = tape.mul(targets[axis + 1], self.sizes[axis + 1]);
        }
        let batch: Vec<usize> = (0..last).filter(|a| *a != unit).collect();
        let of = |list: &[SymInt]| -> Vec<SymInt> { batch.iter().map(|&a| list[a]).collect() };
        let sizes = of(&self.sizes);
        let batches = sizes.iter().fold(SymInt::ONE, |n, &m| tape.mul(n, m));
        let params = TransposeParams {
            sizes: eight(&sizes),
            strides: eight(&of(&self.strides)),
            targets: eight(&of(&targets)),
            axes: SymInt::Const(batch.len() as i64),
            batches,
            offset: self.offset,
            rows: self.sizes[unit],
            columns: self.sizes[last],
            column_step: self.strides[last],
            row_step: targets[unit],
        };
        let down = tape.ceil_div(params.rows, TILE);
        let across = tape.ceil_div(params.columns, TILE);
        let tiles = tape.mul(down, across);
        let groups = tape.mul(batches, tiles);
        let grid = e.flat_grid(groups);
        e.dispatch(&TRANSPOSE, &[self.bytes], args, &params, grid);
        true
    }
}

/// Emits a copy of a dense value into a state at the end of a run, which is skipped if a data check
/// failed.
pub(crate) fn commit(e: &mut LoweringCtx<'_>, from: &SlotView, state: &SlotView) {
    let words = e.words(from.dtype, from.layout.shape());
    let params = CommitParams {
        words,
        checks: SymInt::ZERO,
    };
    let grid = e.grid_of(words, 256);
    e.dispatch_guarded(&COMMIT, &[], &[from.slot, state.slot], &params, grid);
}
