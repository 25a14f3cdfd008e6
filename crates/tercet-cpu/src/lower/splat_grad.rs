//! `GaussianSplatRasterizeGrad` in F32.
//!
//! Rows of tiles are split into bands. Each band has separate gradient sums for every splat, which
//! are added in the order of the bands. The number of bands does not depend on threads, so two runs
//! give the same bits.

use bytemuck::cast_slice_mut;
use tercet_ir::ops::splat::{FOOTPRINT_LEN, RasterLimits, SPLAT_LEN, TILE};
use tercet_ir::{Graph, Node, Op};

use super::splat::{SplatLimits, in_order, row_splats};
use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::parallel::{DisjointChunks, KernelThreads, for_each_part};
use crate::kernels::splat::RasterSplat;
use crate::kernels::splat_grad::{
    SplatGradSums, SplatGradTile, accumulate, accumulate_within, cotangents,
};
use crate::lower::{LoweredNode, floats_mut};

/// Maximum number of bands.
const MAX_BANDS: usize = 16;
/// 32-bit words of scratch memory per splat and band: nine gradient sums, and an entry in the list
/// of splats of a row of tiles.
const BAND_WORDS: usize = 10;
/// Maximum scratch words of all bands. If there are many splats, fewer bands are used to stay below
/// this number.
const MAX_WORDS: usize = 1 << 26;
/// Number of splats in a task that adds the sums of all bands.
const BLOCK: usize = 256;

/// Number of bands for an image of this height.
fn bands(splats: usize, height: usize) -> usize {
    let most = MAX_WORDS / (BAND_WORDS * splats.max(1));
    height.div_ceil(TILE).clamp(1, most.clamp(1, MAX_BANDS))
}

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::GaussianSplatRasterizeGrad(op) = &node.op else {
        unreachable!(
            "invariant: the kernel table maps only `GaussianSplatRasterizeGrad` to this row"
        )
    };
    let (image, limits) = ([op.width, op.height], op.limits());
    let level = SimdLevel::detect();
    LoweredNode {
        // Scratch memory: a sort key for each splat, and the words of all bands.
        scratch: Some(Box::new(move |layouts, _| {
            let splats = layouts[0].shape()[0];
            let words = bands(splats, image[1]) * splats * BAND_WORDS;
            splats * size_of::<u64>() + words * size_of::<f32>()
        })),
        work: |layouts| layouts[0].numel() * 32 + layouts[3].numel() * 128,
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            gradient(level, image, &limits, args);
            Ok(())
        })
    }
}

/// Operands of the kernel.
#[derive(Clone, Copy)]
struct RasterGradInputs<'a> {
    splats: &'a [f32],
    footprints: &'a [i32],
    image: &'a [f32],
    transmittance: &'a [f32],
    d_image: &'a [f32],
    d_transmittance: &'a [f32],
    size: [usize; 2],
    limits: SplatLimits,
}

fn splat_at(splats: &[f32], i: usize) -> RasterSplat {
    let own = &splats[i * SPLAT_LEN..];
    std::array::from_fn(|k| own[k])
}

fn gradient(level: SimdLevel, size: [usize; 2], limits: &RasterLimits, args: &mut KernelArgs<'_>) {
    let seen = RasterGradInputs {
        splats: args.ins[0].dense(),
        footprints: args.ins[1].dense(),
        image: args.ins[2].dense(),
        transmittance: args.ins[3].dense(),
        d_image: args.ins[4].dense(),
        d_transmittance: args.ins[5].dense(),
        size,
        limits: SplatLimits::new(limits),
    };
    let count = seen.footprints.len() / FOOTPRINT_LEN;
    let bands = bands(count, size[1]);
    let (keys, words) = args.scratch.split_at_mut(count * size_of::<u64>());
    let words = &mut floats_mut(words)[..bands * count * BAND_WORDS];
    let keys = cast_slice_mut(keys);
    let order: &[u64] = in_order(
        seen.splats,
        seen.footprints,
        &seen.limits,
        keys,
        args.parallel,
    );
    let threads = KernelThreads::parallel(args.parallel);
    let rows = size[1].div_ceil(TILE);
    let parts = DisjointChunks::new(words, count * BAND_WORDS);
    for_each_part(threads, parts, |band, own| {
        let (sums, list) = own.split_at_mut(9 * count);
        sums.fill(0.0);
        let sums: &mut [SplatGradSums] = cast_slice_mut(sums);
        for row in band * rows / bands..(band + 1) * rows / bands {
            let list = row_splats(order, row, cast_slice_mut(list));
            for column in 0..size[0].div_ceil(TILE) {
                walk_tile(level, &seen, [column, row], list, sums);
            }
        }
    });
    let words = &*words;
    let [out] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has one result")
    };
    let parts = DisjointChunks::new(out.as_mut::<f32>(), BLOCK * SPLAT_LEN);
    for_each_part(threads, parts, |block, out| {
        for (at, to) in out.chunks_exact_mut(SPLAT_LEN).enumerate() {
            let i = block * BLOCK + at;
            let mut sums: SplatGradSums = [0.0; 9];
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

/// Adds the gradients of a tile to the sums of the splats that overlap it.
fn walk_tile(
    level: SimdLevel,
    seen: &RasterGradInputs<'_>,
    [column, row]: [usize; 2],
    list: &[u32],
    sums: &mut [SplatGradSums],
) {
    let [width, height] = seen.size;
    let mut tile = SplatGradTile::at(column * TILE, row * TILE);
    for y in 0..TILE.min(height - row * TILE) {
        for x in 0..TILE.min(width - column * TILE) {
            let at = (row * TILE + y) * width + column * TILE + x;
            let three = |list: &[f32]| [list[3 * at], list[3 * at + 1], list[3 * at + 2]];
            let (color, d_color) = (three(seen.image), three(seen.d_image));
            let shown: f32 = color.iter().zip(d_color).map(|(c, d)| c * d).sum();
            tile.set(
                x,
                y,
                d_color,
                shown + seen.transmittance[at] * seen.d_transmittance[at],
            );
        }
    }
    let mut walked = 0u32;
    for &i in list {
        let i = i as usize;
        let footprint = &seen.footprints[i * FOOTPRINT_LEN..];
        let [from, to] = seen.limits.range(footprint, 0).map(usize::from);
        if column < from || column >= to {
            continue;
        }
        let (splat, limits) = (splat_at(seen.splats, i), seen.limits.blend);
        match seen.limits.is_special {
            false => accumulate(level, &mut tile, &splat, limits, &mut sums[i]),
            true => {
                let area = seen.limits.area(footprint);
                accumulate_within(level, &mut tile, &splat, area, limits, &mut sums[i]);
            }
        }
        walked += 1;
        if walked.is_multiple_of(16) && tile.is_done() {
            break;
        }
    }
}
