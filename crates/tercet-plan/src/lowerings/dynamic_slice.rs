//! `DynamicSlice` and `DynamicUpdateSlice`: windows at starts that are data, of any dtype and
//! strides. An update of a state writes its window only, where the state lies.

use tercet_ir::{CompileError, Dim, Node, OpKind};

use super::words::{WORD_OF_BITS, are_whole, eight, in_units, lanes, product};
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `dynamic_slice.wgsl`.
    pub struct SliceParams {
        sizes: U32x8,
        window: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// The block of `dynamic_update_copy.wgsl`.
    pub struct UpdateCopyParams {
        sizes: U32x8,
        window: U32x8,
        strides: U32x8,
        update_strides: U32x8,
        numel: U32,
        offset: U32,
        update_offset: U32,
    }
    /// The block of `dynamic_update.wgsl`.
    pub struct UpdateParams {
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

static SLICE: Kernel<SliceParams> = Kernel::wgsl(
    "dynamic_slice",
    &[
        PRELUDE,
        WORD_OF_BITS,
        WINDOW,
        portable!("dynamic_slice.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

static UPDATE_COPY: Kernel<UpdateCopyParams> = Kernel::wgsl(
    "dynamic_update_copy",
    &[
        PRELUDE,
        WORD_OF_BITS,
        WINDOW,
        portable!("dynamic_update_copy.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

static UPDATE: Kernel<UpdateParams> = Kernel::wgsl(
    "dynamic_update",
    &[PRELUDE, WINDOW, portable!("dynamic_update.wgsl")],
    &[Access::Read, Access::Read, Access::Write, Access::Read],
    &["ELEM_BYTES", "RANK"],
);

/// `DynamicSlice` and `DynamicUpdateSlice`.
pub(crate) static WINDOWS: Family = Family {
    name: "dynamic_slice",
    ops: &[OpKind::DynamicSlice, OpKind::DynamicUpdateSlice],
    kernels: &[&SLICE.def, &UPDATE_COPY.def, &UPDATE.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
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

/// The starts of an update, dense. Runs whose window does not fit fail.
///
/// # Errors
/// Those of [`Emit::dense`].
pub(super) fn starts_of_update(e: &mut Emit<'_>, node: &Node) -> Result<View, CompileError> {
    let starts = e.view(node.inputs[2]);
    let starts = e.dense(&starts)?;
    let graph = e.graph;
    let [sizes, window] = [0, 1].map(|i| &graph.ty(node.inputs[i]).shape);
    check_sizes(e, window, sizes);
    Ok(starts)
}

/// The window not larger than the tensor.
fn check_sizes(e: &mut Emit<'_>, window: &[Dim], sizes: &[Dim]) {
    for (axis, (w, n)) in window.iter().zip(sizes).enumerate() {
        let (w, n) = (e.num(w), e.num(n));
        let reason = format!("a window of {{less}} does not fit axis {axis} of size {{more}}");
        e.check_at_most(w, n, reason);
    }
}

fn slice(e: &mut Emit<'_>, x: &View, starts: &View) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let (sizes, window) = (x.layout.shape(), y.layout.shape());
    check_sizes(e, window, sizes);
    let params = SliceParams {
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
    e: &mut Emit<'_>,
    x: &View,
    update: &View,
    starts: &View,
) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let sizes = x.layout.shape();
    let params = UpdateCopyParams {
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

/// A window and what it takes, in units of `bytes`; at least one axis.
struct Window {
    bytes: u32,
    sizes: Vec<Num>,
    window: Vec<Num>,
    strides: Vec<Num>,
    offset: Num,
}

fn update_in_place(
    e: &mut Emit<'_>,
    x: &View,
    update: &View,
    starts: &View,
) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let w = window(e, x, update);
    let rank = w.sizes.len();
    let rows = product(e, &w.window[..rank - 1]);
    // A row of n elements touches at most this many words, wherever it begins.
    let tape = e.tape();
    let others = tape.sub(w.window[rank - 1], Num::ONE);
    let row_words = tape.ceil_div(others, 4 / w.bytes);
    let row_words = tape.add(row_words, Num::ONE);
    let items = tape.mul(rows, row_words);
    let params = UpdateParams {
        sizes: eight(&w.sizes),
        window: eight(&w.window),
        strides: eight(&w.strides),
        numel: product(e, &w.sizes),
        offset: w.offset,
        row_words,
        items,
        checks: Num::ZERO,
    };
    let grid = e.grid_of(items, 256);
    let consts = [w.bytes, rank as u32];
    let args = [update.slot, starts.slot, y.slot];
    e.dispatch_guarded(&UPDATE, &consts, &args, &params, grid);
    Ok(())
}

/// Rows that the window covers whole are taken as words where they are whole ones on both sides.
fn window(e: &mut Emit<'_>, x: &View, update: &View) -> Window {
    let dtype = x.dtype;
    let mut w = Window {
        bytes: dtype.size_bytes() as u32,
        sizes: e.sizes(x.layout.shape()).to_vec(),
        window: e.sizes(update.layout.shape()).to_vec(),
        strides: e.strides(update).to_vec(),
        offset: e.offset(update),
    };
    if w.sizes.is_empty() {
        // One element is a row of one; its start is clamped to 0 whatever is read for it.
        (w.sizes, w.window, w.strides) = (vec![Num::ONE], vec![Num::ONE], vec![Num::ZERO]);
    }
    let last = w.sizes.len() - 1;
    let per = lanes(dtype);
    let are_words = per > 1
        && w.sizes[last] == w.window[last]
        && w.strides[last] == Num::ONE
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
