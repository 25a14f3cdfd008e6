//! `GaussianSplatRasterizeGrad` in F32. Rows of tiles are shared out in bands, each with sums of its own for every
//! splat, which are added up in the order of bands: how many there are does not depend on threads, so that two runs
//! give the same bits.

use bytemuck::cast_slice_mut;
use tercet_ir::ops::splat::{FOOTPRINT_LEN, SPLAT_LEN, TILE};
use tercet_ir::{Graph, Node, Op};

use super::splat::{LIMITS, in_order, of_row, range};
use crate::args::Args;
use crate::kernels::SimdLevel;
use crate::kernels::parallel::{Chunks, Threads, for_each_part};
use crate::kernels::splat::Splat;
use crate::kernels::splat_grad::{Sums, TileGrad, cotangents, walk};
use crate::lower::{Lowered, floats_mut};

/// The most bands.
const MOST_BANDS: usize = 16;
/// Words of a band for each splat: its sums and a place in the list of a row of tiles.
const BAND_WORDS: usize = 10;
/// Words of all bands: of more splats there are fewer bands.
const MOST_WORDS: usize = 1 << 26;
/// Splats of a task that adds up sums.
const BLOCK: usize = 256;

/// How many bands the rows of tiles of an image make.
fn bands(splats: usize, height: usize) -> usize {
    let most = MOST_WORDS / (BAND_WORDS * splats.max(1));
    height.div_ceil(TILE).clamp(1, most.clamp(1, MOST_BANDS))
}

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let Op::GaussianSplatRasterizeGrad(op) = &node.op else {
        unreachable!("invariant: the table gives this row `GaussianSplatRasterizeGrad` only")
    };
    let image = [op.width, op.height];
    let level = SimdLevel::detect();
    Lowered {
        // A word of order for each splat, and the bands.
        scratch: Some(Box::new(move |layouts, _| {
            let splats = layouts[0].shape()[0];
            let words = bands(splats, image[1]) * splats * BAND_WORDS;
            splats * size_of::<u64>() + words * size_of::<f32>()
        })),
        work: |layouts| layouts[0].numel() * 32 + layouts[3].numel() * 128,
        ..Lowered::new(node.inputs.len(), move |args: &mut Args<'_>| {
            gradient(level, image, args);
            Ok(())
        })
    }
}

/// The operands.
#[derive(Clone, Copy)]
struct Seen<'a> {
    splats: &'a [f32],
    footprints: &'a [i32],
    image: &'a [f32],
    left: &'a [f32],
    d_image: &'a [f32],
    d_left: &'a [f32],
    size: [usize; 2],
}

fn splat_at(splats: &[f32], i: usize) -> Splat {
    let own = &splats[i * SPLAT_LEN..];
    std::array::from_fn(|k| own[k])
}

fn gradient(level: SimdLevel, size: [usize; 2], args: &mut Args<'_>) {
    let seen = Seen {
        splats: args.ins[0].dense(),
        footprints: args.ins[1].dense(),
        image: args.ins[2].dense(),
        left: args.ins[3].dense(),
        d_image: args.ins[4].dense(),
        d_left: args.ins[5].dense(),
        size,
    };
    let count = seen.footprints.len() / FOOTPRINT_LEN;
    let bands = bands(count, size[1]);
    let (keys, words) = args.scratch.split_at_mut(count * size_of::<u64>());
    let words = &mut floats_mut(words)[..bands * count * BAND_WORDS];
    let keys = cast_slice_mut(keys);
    let order: &[u64] = in_order(seen.splats, seen.footprints, keys, args.parallel);
    let threads = Threads::parallel(args.parallel);
    let rows = size[1].div_ceil(TILE);
    let parts = Chunks::new(words, count * BAND_WORDS);
    for_each_part(threads, parts, |band, own| {
        let (sums, list) = own.split_at_mut(9 * count);
        sums.fill(0.0);
        let sums: &mut [Sums] = cast_slice_mut(sums);
        for row in band * rows / bands..(band + 1) * rows / bands {
            let list = of_row(order, row, cast_slice_mut(list));
            for column in 0..size[0].div_ceil(TILE) {
                walk_tile(level, &seen, [column, row], list, sums);
            }
        }
    });
    let words = &*words;
    let [out] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has one result")
    };
    let parts = Chunks::new(out.as_mut::<f32>(), BLOCK * SPLAT_LEN);
    for_each_part(threads, parts, |block, out| {
        for (at, to) in out.chunks_exact_mut(SPLAT_LEN).enumerate() {
            let i = block * BLOCK + at;
            let mut sums: Sums = [0.0; 9];
            for band in 0..bands {
                let own = &words[band * count * BAND_WORDS + 9 * i..][..9];
                sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
            }
            let splat = splat_at(seen.splats, i);
            let is_finite = splat[..6].iter().all(|x| x.is_finite());
            to.fill(0.0);
            if is_finite {
                to[..9].copy_from_slice(&cotangents(&splat, &sums));
            }
        }
    });
}

/// Adds what a tile does to the sums of the splats of its row that reach it.
fn walk_tile(
    level: SimdLevel,
    seen: &Seen<'_>,
    [column, row]: [usize; 2],
    list: &[u32],
    sums: &mut [Sums],
) {
    let [width, height] = seen.size;
    let mut tile = TileGrad::at(column * TILE, row * TILE);
    for y in 0..TILE.min(height - row * TILE) {
        for x in 0..TILE.min(width - column * TILE) {
            let at = (row * TILE + y) * width + column * TILE + x;
            let three = |list: &[f32]| [list[3 * at], list[3 * at + 1], list[3 * at + 2]];
            let (color, d_color) = (three(seen.image), three(seen.d_image));
            let shown: f32 = color.iter().zip(d_color).map(|(c, d)| c * d).sum();
            tile.set(x, y, d_color, shown + seen.left[at] * seen.d_left[at]);
        }
    }
    let mut walked = 0u32;
    for &i in list {
        let i = i as usize;
        let [from, to] = range(&seen.footprints[i * FOOTPRINT_LEN..], 0).map(usize::from);
        if column < from || column >= to {
            continue;
        }
        walk(
            level,
            &mut tile,
            &splat_at(seen.splats, i),
            LIMITS,
            &mut sums[i],
        );
        walked += 1;
        if walked.is_multiple_of(16) && tile.is_done() {
            break;
        }
    }
}
