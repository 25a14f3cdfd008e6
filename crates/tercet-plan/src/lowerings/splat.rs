//! `GaussianSplatPrepare` and `GaussianSplatRasterize`.
//!
//! Which splats a tile has depends on data; no list of them has a place of its own. All splats are sorted by
//! depth once, by the kernels of `Sort`. A bit for each row of tiles and splat says, in that order, which
//! splats reach the row; a tile walks the bits of its row, tests columns, and draws in batches. All sizes
//! follow from the image and the number of splats.
//!
//! The gradient walks the same order in chunks (`gradient.rs`).

mod gradient;

use tercet_ir::layout::Cut;
use tercet_ir::ops::splat::{DEPTH_AT, TILE};
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::top_k::{Extreme, NanPlace, Needed, ordered};
use super::words::words;
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::{PRELUDE, Piece};

crate::params! {
    /// The block of `splat/prepare.wgsl`.
    pub struct PrepareParams {
        count: U32,
        width: U32,
        height: U32,
    }
    /// The block of `splat/reach.wgsl`.
    pub struct ReachParams {
        count: U32,
        words: U32,
        tile_rows: U32,
    }
    /// The block of `splat/tiles.wgsl`.
    pub struct TilesParams {
        count: U32,
        words: U32,
        width: U32,
        height: U32,
        tile_columns: U32,
        tiles: U32,
    }
    /// The block of `splat/grad_begin.wgsl`.
    pub struct BeginParams {
        pixels: U32,
    }
    /// The block of `splat/grad_walk.wgsl`.
    pub struct WalkParams {
        count: U32,
        words: U32,
        first_word: U32,
        end_word: U32,
        chunk: U32,
        width: U32,
        height: U32,
        tile_columns: U32,
        tiles: U32,
    }
    /// The block of `splat/grad_sum.wgsl`.
    pub struct SumParams {
        count: U32,
        first: U32,
        chunk: U32,
        tile_columns: U32,
        tile_rows: U32,
    }
}

const COMMON: &str = portable!("splat/common.wgsl");
const HITS: &str = portable!("splat/hits.wgsl");

static PREPARE: Kernel<PrepareParams> = Kernel::wgsl(
    "splat_prepare",
    &[
        PRELUDE,
        Piece::Base.text(),
        Piece::Exp.text(),
        Piece::Tail.text(),
        Piece::Gate.text(),
        COMMON,
        portable!("splat/prepare.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &["HARMONICS"],
);

static REACH: Kernel<ReachParams> = Kernel::wgsl(
    "splat_reach",
    &[PRELUDE, COMMON, portable!("splat/reach.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &[],
);

static TILES: Kernel<TilesParams> = Kernel::wgsl(
    "splat_tiles",
    &[PRELUDE, COMMON, HITS, portable!("splat/tiles.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &[],
);

static BEGIN: Kernel<BeginParams> = Kernel::wgsl(
    "splat_grad_begin",
    &[PRELUDE, portable!("splat/grad_begin.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &[],
);

static WALK: Kernel<WalkParams> = Kernel::wgsl(
    "splat_grad_walk",
    &[PRELUDE, COMMON, HITS, portable!("splat/grad_walk.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
    ],
    &[],
);

static SUM: Kernel<SumParams> = Kernel::wgsl(
    "splat_grad_sum",
    &[PRELUDE, COMMON, portable!("splat/grad_sum.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &[],
);

/// Projection and rasterising of 3-D Gaussians.
pub(crate) static SPLATS: Family = Family {
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

/// Splats of a word of bits.
const WORD: usize = 32;

fn num(n: usize) -> Num {
    Num::Const(n as i64)
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let view = e.view(*v);
        operands.push(e.dense(&view)?);
    }
    match &node.op {
        Op::GaussianSplatPrepare(op) => prepare(e, &operands, [op.width, op.height]),
        Op::GaussianSplatRasterize(op) => rasterize(e, &operands, [op.width, op.height]),
        Op::GaussianSplatRasterizeGrad(op) => {
            gradient::rasterize(e, &operands, [op.width, op.height])
        }
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
}

fn prepare(
    e: &mut Emit<'_>,
    operands: &[View],
    [width, height]: [usize; 2],
) -> Result<(), CompileError> {
    let harmonics = match operands[4].layout.shape() {
        [_, count, _] => count.known().unwrap_or_else(|| {
            unreachable!("invariant: inference refuses counts that are not known")
        }),
        _ => 0,
    };
    let (splats, footprints) = (e.result(0)?, e.result(1)?);
    let count = e.num(&operands[0].layout.shape()[0]);
    let params = PrepareParams {
        count,
        width: num(width),
        height: num(height),
    };
    let mut args: Vec<_> = operands.iter().map(|v| v.slot).collect();
    args.extend([splats.slot, footprints.slot]);
    let grid = e.grid_of(count, 256);
    e.dispatch(&PREPARE, &[harmonics as u32], &args, &params, grid);
    Ok(())
}

/// Splats in the order in which they are drawn, and what they reach.
struct Reach {
    sorted: View,
    columns: View,
    reached: View,
    /// Words of a row of tiles.
    words: Num,
}

fn rasterize(
    e: &mut Emit<'_>,
    operands: &[View],
    [width, height]: [usize; 2],
) -> Result<(), CompileError> {
    let [splats, footprints, background] = operands else {
        unreachable!("invariant: rasterising takes three operands")
    };
    let (image, left) = (e.result(0)?, e.result(1)?);
    let of = &splats.layout.shape()[0];
    let count = e.num(of);
    let [tile_columns, tile_rows] = [width, height].map(|n| n.div_ceil(TILE));
    let tiles = tile_columns * tile_rows;
    if tiles == 0 {
        return Ok(());
    }
    let reach = reach(e, splats, footprints, tile_rows)?;
    let params = TilesParams {
        count,
        words: reach.words,
        width: num(width),
        height: num(height),
        tile_columns: num(tile_columns),
        tiles: num(tiles),
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
    e.dispatch(&TILES, &[], &args, &params, grid);
    Ok(())
}

fn reach(
    e: &mut Emit<'_>,
    splats: &View,
    footprints: &View,
    tile_rows: usize,
) -> Result<Reach, CompileError> {
    let of = splats.layout.shape()[0].clone();
    let (count, bound) = (e.num(&of), e.bound(&of)?);
    let words_bound = bound.div_ceil(WORD);
    let per_row = e.tape().ceil_div(count, WORD as u32);
    let columns = words(e, bound)?;
    let reached = words(e, words_bound.saturating_mul(tile_rows))?;
    if bound == 0 {
        let sorted = columns.clone();
        return Ok(Reach {
            sorted,
            columns,
            reached,
            words: Num::ZERO,
        });
    }
    let depth = depths(splats, &of)?;
    let needed = Needed { count, bound };
    let near_first = Extreme {
        is_largest: false,
        nan: NanPlace::Last,
    };
    let sorted = ordered(e, &depth, 0, needed, near_first)?.indices;
    let params = ReachParams {
        count,
        words: per_row,
        tile_rows: num(tile_rows),
    };
    let args = [
        splats.slot,
        footprints.slot,
        sorted,
        columns.slot,
        reached.slot,
    ];
    let grid = e.grid_of(count, 256);
    e.dispatch(&REACH, &[], &args, &params, grid);
    Ok(Reach {
        sorted: View {
            slot: sorted,
            ..columns.clone()
        },
        columns,
        reached,
        words: per_row,
    })
}

/// The depths of splats where they lie.
fn depths(splats: &View, count: &Dim) -> Result<View, CompileError> {
    let cut = |start: usize| Cut {
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
    Ok(View {
        layout,
        ..splats.clone()
    })
}
