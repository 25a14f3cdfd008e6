//! Lowering of `DynamicSlice` and `DynamicUpdateSlice`: slices whose start indices are data, for
//! any dtype and strides. An in-place update of a state writes only the elements of the updated
//! slice.

use tercet_ir::{CompileError, Dim, Node, OpKind};

use super::words::{WORD_OF_BITS, are_whole, eight, in_units, lanes, product};
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `dynamic_slice.wgsl`.
    pub struct DynamicSliceParams {
        sizes: U32x8,
        window: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// Parameter block of `dynamic_update_copy.wgsl`.
    pub struct DynamicUpdateCopyParams {
        sizes: U32x8,
        window: U32x8,
        strides: U32x8,
        update_strides: U32x8,
        numel: U32,
        offset: U32,
        update_offset: U32,
    }
    /// Parameter block of `dynamic_update.wgsl`.
    pub struct DynamicUpdateParams {
        sizes: U32x8,
        window: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        row_words: U32,
        items: U32,
        checks: U32,
    }
}

const WINDOW: &str = portable!("window.wgsl");

static SLICE: TypedKernel<DynamicSliceParams> = TypedKernel::wgsl(
    "dynamic_slice",
    &[
        PRELUDE,
        WORD_OF_BITS,
        WINDOW,
        portable!("dynamic_slice.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK"],
);

static UPDATE_COPY: TypedKernel<DynamicUpdateCopyParams> = TypedKernel::wgsl(
    "dynamic_update_copy",
    &[
        PRELUDE,
        WORD_OF_BITS,
        WINDOW,
        portable!("dynamic_update_copy.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["ELEM_BYTES", "RANK"],
);

static UPDATE: TypedKernel<DynamicUpdateParams> = TypedKernel::wgsl(
    "dynamic_update",
    &[PRELUDE, WINDOW, portable!("dynamic_update.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    &["ELEM_BYTES", "RANK"],
);

/// Lowering of `DynamicSlice` and `DynamicUpdateSlice`.
pub(crate) static WINDOWS: Lowering = Lowering {
    name: "dynamic_slice",
    ops: &[OpKind::DynamicSlice, OpKind::DynamicUpdateSlice],
    kernels: &[&SLICE.def, &UPDATE_COPY.def, &UPDATE.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let x = e.view(node.inputs[0]);
    if let [_, starts] = node.inputs[..] {
        let starts = e.view(starts);
        let starts = e.dense(&starts)?;
        return slice(e, &x, &starts);
    }
    let update = e.view(node.inputs[1]);
    let starts = starts_of_update(e, node)?;
    match e.updated(0).is_some() {
        true => update_in_place(e, &x, &update, &starts),
        false => update_copy(e, &x, &update, &starts),
    }
}

/// Dense view of the start indices of a `DynamicUpdateSlice`. Adds a data check, so that a run
/// fails if the updated slice does not fit into the tensor.
///
/// # Errors
/// Those of [`LoweringCtx::dense`].
pub(super) fn starts_of_update(
    e: &mut LoweringCtx<'_>,
    node: &Node,
) -> Result<SlotView, CompileError> {
    let starts = e.view(node.inputs[2]);
    let starts = e.dense(&starts)?;
    let graph = e.graph;
    let [sizes, window] = [0, 1].map(|i| &graph.ty(node.inputs[i]).shape);
    check_sizes(e, window, sizes);
    Ok(starts)
}

/// Adds size checks that the slice is not larger than the tensor along any axis.
fn check_sizes(e: &mut LoweringCtx<'_>, window: &[Dim], sizes: &[Dim]) {
    for (axis, (w, n)) in window.iter().zip(sizes).enumerate() {
        let (w, n) = (e.num(w), e.num(n));
        let reason = format!("a window of {{less}} does not fit axis {axis} of size {{more}}");
        e.check_less_equal(w, n, reason);
    }
}

fn slice(e: &mut LoweringCtx<'_>, x: &SlotView, starts: &SlotView) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let (sizes, window) = (x.layout.shape(), y.layout.shape());
    check_sizes(e, window, sizes);
    let params = DynamicSliceParams {
        sizes: eight(&e.sizes(sizes)),
        window: eight(&e.sizes(window)),
        strides: eight(&e.strides(x)),
        numel: e.numel(window),
        offset: e.offset(x),
    };
    let words = e.words(y.dtype, window);
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, sizes.len() as u32];
    e.dispatch(
        &SLICE,
        &consts,
        &[x.slot, starts.slot, y.slot],
        &params,
        grid,
    );
    Ok(())
}

fn update_copy(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    update: &SlotView,
    starts: &SlotView,
) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let sizes = x.layout.shape();
    let params = DynamicUpdateCopyParams {
        sizes: eight(&e.sizes(sizes)),
        window: eight(&e.sizes(update.layout.shape())),
        strides: eight(&e.strides(x)),
        update_strides: eight(&e.strides(update)),
        numel: e.numel(sizes),
        offset: e.offset(x),
        update_offset: e.offset(update),
    };
    let words = e.words(y.dtype, sizes);
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, sizes.len() as u32];
    let args = [x.slot, update.slot, starts.slot, y.slot];
    e.dispatch(&UPDATE_COPY, &consts, &args, &params, grid);
    Ok(())
}

/// Sizes, strides and offset of a tensor, and the sizes of its slice, in units of `bytes` bytes;
/// there is at least one axis.
struct SliceWindow {
    bytes: u32,
    sizes: Vec<SymInt>,
    window: Vec<SymInt>,
    strides: Vec<SymInt>,
    offset: SymInt,
}

fn update_in_place(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    update: &SlotView,
    starts: &SlotView,
) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let w = window(e, x, update);
    let rank = w.sizes.len();
    let rows = product(e, &w.window[..rank - 1]);
    // Number of 32-bit words that a row of the slice overlaps at most, whatever its start index.
    let tape = e.tape();
    let others = tape.sub(w.window[rank - 1], SymInt::ONE);
    let row_words = tape.ceil_div(others, 4 / w.bytes);
    let row_words = tape.add(row_words, SymInt::ONE);
    let items = tape.mul(rows, row_words);
    let params = DynamicUpdateParams {
        sizes: eight(&w.sizes),
        window: eight(&w.window),
        strides: eight(&w.strides),
        numel: product(e, &w.sizes),
        offset: w.offset,
        row_words,
        items,
        checks: SymInt::ZERO,
    };
    let grid = e.grid_of(items, 256);
    let consts = [w.bytes, rank as u32];
    let args = [update.slot, starts.slot, y.slot];
    e.dispatch_guarded(&UPDATE, &consts, &args, &params, grid);
    Ok(())
}

/// Describes the slice in units of 32-bit words if it covers whole rows and these consist of whole
/// words in tensor and slice, otherwise in units of elements.
fn window(e: &mut LoweringCtx<'_>, x: &SlotView, update: &SlotView) -> SliceWindow {
    let dtype = x.dtype;
    let mut w = SliceWindow {
        bytes: dtype.size_bytes() as u32,
        sizes: e.sizes(x.layout.shape()).to_vec(),
        window: e.sizes(update.layout.shape()).to_vec(),
        strides: e.strides(update).to_vec(),
        offset: e.offset(update),
    };
    if w.sizes.is_empty() {
        // A scalar tensor is treated as one axis with one element, whose start index is clamped to
        // 0.
        (w.sizes, w.window, w.strides) = (vec![SymInt::ONE], vec![SymInt::ONE], vec![SymInt::ZERO]);
    }
    let last = w.sizes.len() - 1;
    let per = lanes(dtype);
    let are_words = per > 1
        && w.sizes[last] == w.window[last]
        && w.strides[last] == SymInt::ONE
        && are_whole(per, &[w.sizes[last], w.offset])
        && are_whole(per, &w.strides[..last]);
    if are_words {
        w.bytes = 4;
        w.sizes[last] = in_units(per, w.sizes[last]);
        w.window[last] = in_units(per, w.window[last]);
        w.offset = in_units(per, w.offset);
        for s in &mut w.strides[..last] {
            *s = in_units(per, *s);
        }
    }
    w
}
