//! Backward pass of rasterization: all tiles process the splats in drawing order, in chunks.
//!
//! Each tile has memory for the gradient sums of every splat of a chunk. A tile writes sums only
//! for splats whose footprint covers it, and only these are read. After each chunk, a kernel adds
//! the sums of all tiles for each splat. The chunk length is limited so that the sums fit into
//! [`MAX_SUM_BYTES`]. From one chunk to the next, each pixel passes on two numbers in memory. No
//! atomics are used.

use tercet_ir::ops::splat::{RasterLimits, TILE};
use tercet_ir::{CompileError, DType, Dim};

use super::{
    BEGIN, SUM, SortedSplats, SplatGradBeginParams, SplatGradSumParams, SplatRasterBackwardParams,
    WALK, WORD, most, num, reach,
};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::words::words;

/// Maximum size of the sums in bytes, which every device can bind.
const MAX_SUM_BYTES: u64 = 128 << 20;
/// Maximum words of the bit mask per chunk: the 8,192 splats that a workgroup processes at once.
const MAX_CHUNK_WORDS: usize = 256;
/// Number of gradient sums for each pair of a splat and a tile.
const SUMS: usize = 9;

/// Number of splats per chunk: as many whole mask words as their gradient sums allow, at least one
/// word.
fn chunk_len(e: &LoweringCtx<'_>, tiles: usize, bound: usize) -> usize {
    let room = MAX_SUM_BYTES.min(e.caps.max_binding_bytes) as usize / (4 * SUMS * tiles.max(1));
    WORD * (room / WORD).clamp(1, bound.div_ceil(WORD).clamp(1, MAX_CHUNK_WORDS))
}

pub(super) fn rasterize(
    e: &mut LoweringCtx<'_>,
    operands: &[SlotView],
    [width, height]: [usize; 2],
    limits: &RasterLimits,
) -> Result<(), CompileError> {
    let [splats, footprints, image, left, d_image, d_left] = operands else {
        unreachable!("invariant: the gradient of rasterization has six operands")
    };
    let out = e.result(0)?;
    let of = splats.layout.shape()[0].clone();
    let (count, bound) = (e.num(&of), e.bound(&of)?);
    if bound == 0 {
        return Ok(());
    }
    let [tile_columns, tile_rows] = [width, height].map(|n| n.div_ceil(TILE));
    let tiles = tile_columns * tile_rows;
    let SortedSplats {
        sorted,
        columns,
        reached,
        words: per_row,
    } = reach(e, splats, footprints, tile_rows, limits)?;
    let chunk = chunk_len(e, tiles, bound);
    let pixels = width * height;
    // Numbers per pixel: with limits, two counts follow the transmittance and the product.
    let per_pixel = if limits.is_special() { 4 } else { 2 };
    let state = e.temp(DType::F32, &[Dim::Known(per_pixel * pixels.max(1))])?;
    let sums = e.temp(DType::F32, &[Dim::Known((SUMS * chunk * tiles).max(1))])?;
    let walked = words(e, tiles)?;
    let begin = SplatGradBeginParams {
        pixels: num(pixels),
        state: num(per_pixel),
    };
    let args = [image, left, d_image, d_left, &state].map(|v| v.slot);
    let grid = e.grid_of(num(pixels), 256);
    e.dispatch(&BEGIN, &[], &args, &begin, grid);
    for first in (0..bound).step_by(chunk) {
        let walk = SplatRasterBackwardParams {
            count,
            words: per_row,
            first_word: num(first / WORD),
            end_word: num((first + chunk) / WORD),
            chunk: num(chunk),
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
            splats, &sorted, &columns, &reached, d_image, &state, &sums, &walked,
        ];
        let grid = e.flat_grid(num(tiles));
        let consts = [u32::from(limits.is_special())];
        e.dispatch(&WALK, &consts, &args.map(|v| v.slot), &walk, grid);
        let sum = SplatGradSumParams {
            count,
            first: num(first),
            chunk: num(chunk),
            tile_columns: num(tile_columns),
            tile_rows: num(tile_rows),
            tile: num(limits.tile_size),
        };
        let args = [splats, footprints, &sorted, &sums, &walked, &out];
        let grid = e.grid_of(num(chunk), 64);
        e.dispatch(&SUM, &[], &args.map(|v| v.slot), &sum, grid);
    }
    Ok(())
}
