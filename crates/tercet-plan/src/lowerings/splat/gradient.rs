//! The gradient of rasterising: the splats are walked in the order in which they are drawn, in chunks, by all tiles.
//!
//! Each tile has a place for its sums of each splat of a chunk, of which only those are written and read that the
//! splat's footprint has; after a chunk they are added up by splat. Chunks are as long as places fit a buffer of
//! [`MOST_BYTES`]; what pixels keep between chunks are two numbers. Nothing is added by atomics.

use tercet_ir::ops::splat::TILE;
use tercet_ir::{CompileError, DType, Dim};

use super::{BEGIN, BeginParams, Reach, SUM, SumParams, WALK, WORD, WalkParams, num, reach};
use crate::emit::{Emit, View};
use crate::families::words::words;

/// The most bytes of sums: what every device binds at once.
const MOST_BYTES: u64 = 128 << 20;
/// The most words of bits of a chunk: what a workgroup takes at once, 8,192 splats.
const MOST_WORDS: usize = 256;
/// Sums of a splat and a tile.
const SUMS: usize = 9;

/// The splats of a chunk, in whole words of bits: as many as there is room for, at least a word.
fn chunk_len(e: &Emit<'_>, tiles: usize, bound: usize) -> usize {
    let room = MOST_BYTES.min(e.caps.max_binding_bytes) as usize / (4 * SUMS * tiles.max(1));
    WORD * (room / WORD).clamp(1, bound.div_ceil(WORD).clamp(1, MOST_WORDS))
}

pub(super) fn rasterize(
    e: &mut Emit<'_>,
    operands: &[View],
    [width, height]: [usize; 2],
) -> Result<(), CompileError> {
    let [splats, footprints, image, left, d_image, d_left] = operands else {
        unreachable!("invariant: the gradient of rasterising takes six operands")
    };
    let out = e.result(0)?;
    let of = splats.layout.shape()[0].clone();
    let (count, bound) = (e.num(&of), e.bound(&of)?);
    if bound == 0 {
        return Ok(());
    }
    let [tile_columns, tile_rows] = [width, height].map(|n| n.div_ceil(TILE));
    let tiles = tile_columns * tile_rows;
    let Reach {
        sorted,
        columns,
        reached,
        words: per_row,
    } = reach(e, splats, footprints, tile_rows)?;
    let chunk = chunk_len(e, tiles, bound);
    let pixels = width * height;
    let state = e.temp(DType::F32, &[Dim::Known(2 * pixels.max(1))])?;
    let sums = e.temp(DType::F32, &[Dim::Known((SUMS * chunk * tiles).max(1))])?;
    let walked = words(e, tiles)?;
    let begin = BeginParams {
        pixels: num(pixels),
    };
    let args = [image, left, d_image, d_left, &state].map(|v| v.slot);
    let grid = e.grid_of(num(pixels), 256);
    e.dispatch(&BEGIN, &[], &args, &begin, grid);
    for first in (0..bound).step_by(chunk) {
        let walk = WalkParams {
            count,
            words: per_row,
            first_word: num(first / WORD),
            end_word: num((first + chunk) / WORD),
            chunk: num(chunk),
            width: num(width),
            height: num(height),
            tile_columns: num(tile_columns),
            tiles: num(tiles),
        };
        let args = [
            splats, &sorted, &columns, &reached, d_image, &state, &sums, &walked,
        ];
        let grid = e.flat_grid(num(tiles));
        e.dispatch(&WALK, &[], &args.map(|v| v.slot), &walk, grid);
        let sum = SumParams {
            count,
            first: num(first),
            chunk: num(chunk),
            tile_columns: num(tile_columns),
            tile_rows: num(tile_rows),
        };
        let args = [splats, footprints, &sorted, &sums, &walked, &out];
        let grid = e.grid_of(num(chunk), 64);
        e.dispatch(&SUM, &[], &args.map(|v| v.slot), &sum, grid);
    }
    Ok(())
}
