//! Lowering of `GaussianSplatPrepare` and `GaussianSplatRasterize` (3D Gaussian splatting).
//!
//! The splats of a tile depend on data, so there are no per-tile lists. All splats are sorted by
//! depth once, with the kernels of `Sort`. For each row of blocks of 16 x 16 pixels, a bit mask in
//! depth order marks the splats that reach the row. Each block reads the mask of its row, tests
//! which of these splats reach its column, and draws them in batches. All buffer sizes follow from
//! the image size and the number of splats.
//!
//! Blocks are tiles if `tile_size` is 16. For other sizes, each pixel tests which splats of its
//! block cover its tile.
//!
//! The backward pass processes the splats in the same order, in chunks (`gradient.rs`).

mod gradient;

use tercet_ir::layout::AxisSlice;
use tercet_ir::ops::splat::{DEPTH_AT, ProjectionImage, RasterLimits, TILE};
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::top_k::{NanOrder, SortDirection, TopKCount, ordered};
use super::words::words;
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `splat/prepare.wgsl`.
    pub struct SplatPrepareParams {
        count: U32,
        width: U32,
        height: U32,
        tile: U32,
        per_tile: F32,
        radius_scale: F32,
    }
    /// Parameter block of `splat/reach.wgsl`.
    pub struct SplatScreenBoundsParams {
        count: U32,
        words: U32,
        tile_rows: U32,
        tile: U32,
    }
    /// Parameter block of `splat/tiles.wgsl`.
    pub struct SplatTilesParams {
        count: U32,
        words: U32,
        width: U32,
        height: U32,
        tile_columns: U32,
        tiles: U32,
        tile: U32,
        max_entries: U32,
        max_steps: U32,
        min_alpha: F32,
        min_light: F32,
    }
    /// Parameter block of `splat/grad_begin.wgsl`.
    pub struct SplatGradBeginParams {
        pixels: U32,
        state: U32,
    }
    /// Parameter block of `splat/grad_walk.wgsl`.
    pub struct SplatRasterBackwardParams {
        count: U32,
        words: U32,
        first_word: U32,
        end_word: U32,
        chunk: U32,
        width: U32,
        height: U32,
        tile_columns: U32,
        tiles: U32,
        tile: U32,
        max_entries: U32,
        max_steps: U32,
        min_alpha: F32,
        min_light: F32,
    }
    /// Parameter block of `splat/grad_sum.wgsl`.
    pub struct SplatGradSumParams {
        count: U32,
        first: U32,
        chunk: U32,
        tile_columns: U32,
        tile_rows: U32,
        tile: U32,
    }
}

const COMMON: &str = portable!("splat/common.wgsl");
const HITS: &str = portable!("splat/hits.wgsl");

static PREPARE: TypedKernel<SplatPrepareParams> = TypedKernel::wgsl(
    "splat_prepare",
    &[
        PRELUDE,
        WgslHelper::Base.text(),
        WgslHelper::Exp.text(),
        WgslHelper::Tail.text(),
        WgslHelper::Gate.text(),
        COMMON,
        portable!("splat/prepare.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["HARMONICS"],
);

static REACH: TypedKernel<SplatScreenBoundsParams> = TypedKernel::wgsl(
    "splat_reach",
    &[PRELUDE, COMMON, portable!("splat/reach.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["SPECIAL"],
);

static TILES: TypedKernel<SplatTilesParams> = TypedKernel::wgsl(
    "splat_tiles",
    &[PRELUDE, COMMON, HITS, portable!("splat/tiles.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["SPECIAL"],
);

static BEGIN: TypedKernel<SplatGradBeginParams> = TypedKernel::wgsl(
    "splat_grad_begin",
    &[PRELUDE, portable!("splat/grad_begin.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &[],
);

static WALK: TypedKernel<SplatRasterBackwardParams> = TypedKernel::wgsl(
    "splat_grad_walk",
    &[PRELUDE, COMMON, HITS, portable!("splat/grad_walk.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["SPECIAL"],
);

static SUM: TypedKernel<SplatGradSumParams> = TypedKernel::wgsl(
    "splat_grad_sum",
    &[PRELUDE, COMMON, portable!("splat/grad_sum.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &[],
);

/// Lowering of projection and rasterization of 3D Gaussians.
pub(crate) static SPLATS: Lowering = Lowering {
    name: "splat",
    ops: &[
        OpKind::GaussianSplatPrepare,
        OpKind::GaussianSplatRasterize,
        OpKind::GaussianSplatRasterizeGrad,
    ],
    kernels: &[
        &PREPARE.def,
        &REACH.def,
        &TILES.def,
        &BEGIN.def,
        &WALK.def,
        &SUM.def,
    ],
    supports: always,
    lower,
};

/// Number of splats that one word of a bit mask covers.
const WORD: usize = 32;

fn num(n: usize) -> SymInt {
    SymInt::Const(n as i64)
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let view = e.view(*v);
        operands.push(e.dense(&view)?);
    }
    match &node.op {
        Op::GaussianSplatPrepare(op) => prepare(e, &operands, &op.image()),
        Op::GaussianSplatRasterize(op) => {
            rasterize(e, &operands, [op.width, op.height], &op.limits())
        }
        Op::GaussianSplatRasterizeGrad(op) => {
            gradient::rasterize(e, &operands, [op.width, op.height], &op.limits())
        }
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

fn prepare(
    e: &mut LoweringCtx<'_>,
    operands: &[SlotView],
    image: &ProjectionImage,
) -> Result<(), CompileError> {
    let harmonics = match operands[4].layout.shape() {
        [_, count, _] => count
            .known()
            .unwrap_or_else(|| unreachable!("invariant: inference rejects unknown counts")),
        _ => 0,
    };
    let (splats, footprints) = (e.result(0)?, e.result(1)?);
    let count = e.num(&operands[0].layout.shape()[0]);
    let params = SplatPrepareParams {
        count,
        width: num(image.size[0]),
        height: num(image.size[1]),
        tile: num(image.tile_size),
        per_tile: 1.0 / image.tile_size as f32,
        radius_scale: image.radius_scale as f32,
    };
    let mut args: Vec<_> = operands.iter().map(|v| v.slot).collect();
    args.extend([splats.slot, footprints.slot]);
    let grid = e.grid_of(count, 256);
    e.dispatch(&PREPARE, &[harmonics as u32], &args, &params, grid);
    Ok(())
}

/// A limit of a count as kernels read it; none is beyond every count.
fn most(limit: Option<usize>) -> SymInt {
    num(limit.unwrap_or(i32::MAX as usize))
}

/// Splats in drawing order, with the bit masks of the tile rows that they reach.
struct SortedSplats {
    sorted: SlotView,
    columns: SlotView,
    reached: SlotView,
    /// Number of bit mask words per row of tiles.
    words: SymInt,
}

fn rasterize(
    e: &mut LoweringCtx<'_>,
    operands: &[SlotView],
    [width, height]: [usize; 2],
    limits: &RasterLimits,
) -> Result<(), CompileError> {
    let [splats, footprints, background] = operands else {
        unreachable!("invariant: rasterization has three operands")
    };
    let (image, left) = (e.result(0)?, e.result(1)?);
    let of = &splats.layout.shape()[0];
    let count = e.num(of);
    let [tile_columns, tile_rows] = [width, height].map(|n| n.div_ceil(TILE));
    let tiles = tile_columns * tile_rows;
    if tiles == 0 {
        return Ok(());
    }
    let reach = reach(e, splats, footprints, tile_rows, limits)?;
    let params = SplatTilesParams {
        count,
        words: reach.words,
        width: num(width),
        height: num(height),
        tile_columns: num(tile_columns),
        tiles: num(tiles),
        tile: num(limits.tile_size),
        max_entries: most(limits.max_list_entries),
        max_steps: most(limits.max_splat_steps),
        min_alpha: limits.alpha_cutoff as f32,
        min_light: limits.transmittance_threshold as f32,
    };
    let args = [
        splats.slot,
        reach.sorted.slot,
        reach.columns.slot,
        reach.reached.slot,
        background.slot,
        image.slot,
        left.slot,
    ];
    let grid = e.flat_grid(num(tiles));
    let consts = [u32::from(limits.is_special())];
    e.dispatch(&TILES, &consts, &args, &params, grid);
    Ok(())
}

fn reach(
    e: &mut LoweringCtx<'_>,
    splats: &SlotView,
    footprints: &SlotView,
    tile_rows: usize,
    limits: &RasterLimits,
) -> Result<SortedSplats, CompileError> {
    let of = splats.layout.shape()[0].clone();
    let (count, bound) = (e.num(&of), e.bound(&of)?);
    let words_bound = bound.div_ceil(WORD);
    let per_row = e.tape().ceil_div(count, WORD as u32);
    // Ranges of columns, or of columns and rows.
    let ranges = if limits.is_special() { 2 } else { 1 };
    let columns = words(e, bound.saturating_mul(ranges))?;
    let reached = words(e, words_bound.saturating_mul(tile_rows))?;
    if bound == 0 {
        let sorted = columns.clone();
        return Ok(SortedSplats {
            sorted,
            columns,
            reached,
            words: SymInt::ZERO,
        });
    }
    let depth = depths(splats, &of)?;
    let needed = TopKCount { count, bound };
    let near_first = SortDirection {
        is_largest: false,
        nan: NanOrder::Last,
    };
    let sorted = ordered(e, &depth, 0, needed, near_first)?.indices;
    let params = SplatScreenBoundsParams {
        count,
        words: per_row,
        tile_rows: num(tile_rows),
        tile: num(limits.tile_size),
    };
    let args = [
        splats.slot,
        footprints.slot,
        sorted,
        columns.slot,
        reached.slot,
    ];
    let grid = e.grid_of(count, 256);
    let consts = [u32::from(limits.is_special())];
    e.dispatch(&REACH, &consts, &args, &params, grid);
    Ok(SortedSplats {
        sorted: SlotView {
            slot: sorted,
            ..columns.clone()
        },
        columns,
        reached,
        words: per_row,
    })
}

/// View of the splat depths, which are one column of the splat tensor.
fn depths(splats: &SlotView, count: &Dim) -> Result<SlotView, CompileError> {
    let cut = |start: usize| AxisSlice {
        start: start.into(),
        step: 1,
    };
    let to = [count.clone(), 1.into()];
    let column = splats.layout.slice(&[cut(0), cut(DEPTH_AT)], &to);
    let Some(layout) = column else {
        return Err(CompileError::OutOfMemory {
            what: "a view at the symbols' bounds",
            bytes: u64::MAX,
        });
    };
    Ok(SlotView {
        layout,
        ..splats.clone()
    })
}
