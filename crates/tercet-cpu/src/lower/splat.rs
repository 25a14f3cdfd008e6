//! `GaussianSplatPrepare` and `GaussianSplatRasterize` in F32: projects splats, then rasterizes
//! rows of tiles in parallel.
//!
//! Rasterization sorts all visible splats once by depth. From the sorted list, it selects the
//! splats of each row of blocks of 16 x 16 pixels, and from those the splats of each block. Blocks
//! are tiles if `tile_size` is 16; for other sizes, each splat is drawn at the pixels of its tiles
//! only. The scratch memory has a fixed size.
#![allow(unsafe_code, reason = "rows of tiles write disjoint rows of the image")]

use bytemuck::cast_slice_mut;
use tercet_ir::ops::splat::{
    CAMERA_LEN, DEPTH_AT, FOOTPRINT_LEN, GREATEST_ALPHA, Gaussian, MAX_SIDE, PinholeCamera,
    ProjectedGaussian, ProjectionImage, RasterLimits, SPLAT_LEN, TILE,
};
use tercet_ir::{DType, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{
    DisjointChunks, KernelThreads, SharedMut, for_each_part, for_each_with_scratch,
};
use crate::kernels::sort_unstable;
use crate::kernels::splat::{BlendLimits, PixelArea, RasterSplat, SplatTile, blend, blend_within};
use crate::kernels::{SimdLevel, splat as kernel};
use crate::lower::elem::native_for;
use crate::lower::rank::SortKey;
use crate::lower::{CpuKernel, LoweredNode, floats_mut, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel(
        "splat_prepare",
        OpKind::GaussianSplatPrepare,
        supports,
        lower_prepare,
    ),
    kernel(
        "splat_rasterize",
        OpKind::GaussianSplatRasterize,
        supports,
        lower_rasterize,
    ),
    kernel(
        "splat_rasterize_grad",
        OpKind::GaussianSplatRasterizeGrad,
        supports,
        super::splat_grad::lower,
    ),
];

const _: () = assert!(kernel::TILE == TILE && MAX_SIDE / TILE <= u16::MAX as usize);

/// Splats per projection task.
const BLOCK: usize = 256;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(&[DType::F32], graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower_prepare(_: &Graph, node: &Node) -> LoweredNode {
    let Op::GaussianSplatPrepare(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `GaussianSplatPrepare` to this row")
    };
    let image = op.image();
    LoweredNode {
        work: |layouts| layouts[3].numel() * 512,
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            prepare(&image, args);
            Ok(())
        })
    }
}

fn prepare(image: &ProjectionImage, args: &mut KernelArgs<'_>) {
    let [positions, scales, rotations, opacities, colors, camera]: [&[f32]; 6] =
        std::array::from_fn(|i| args.ins[i].dense());
    let camera = PinholeCamera::from_block(&camera[..CAMERA_LEN]);
    let shape = args.ins[4].shape();
    let (per_color, harmonics) = (shape[1..].iter().product::<usize>(), shape.len() == 3);
    let project = |i: usize| {
        let three = |x: &[f32]| [x[3 * i], x[3 * i + 1], x[3 * i + 2]];
        let own = Gaussian {
            position: three(positions),
            log_scales: three(scales),
            rotation: [0, 1, 2, 3].map(|k| rotations[4 * i + k]),
            opacity: opacities[i],
            colors: &colors[i * per_color..][..per_color],
            harmonics,
        };
        let own = own.project(&camera, image);
        own.unwrap_or_else(ProjectedGaussian::culled)
    };
    let block = |first: usize, splats: &mut [f32], footprints: &mut [i32]| {
        let rows = splats.chunks_exact_mut(SPLAT_LEN);
        let rows = rows.zip(footprints.chunks_exact_mut(FOOTPRINT_LEN));
        for (i, (splat, footprint)) in rows.enumerate() {
            let own = project(first + i);
            splat.copy_from_slice(&own.splat);
            footprint.copy_from_slice(&own.footprint);
        }
    };
    let [splats, footprints] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    let (splats, footprints) = (splats.as_mut::<f32>(), footprints.as_mut::<i32>());
    if !args.parallel {
        return block(0, splats, footprints);
    }
    let blocks = (
        DisjointChunks::new(splats, BLOCK * SPLAT_LEN),
        DisjointChunks::new(footprints, BLOCK * FOOTPRINT_LEN),
    );
    for_each_part(KernelThreads::Pool, blocks, |at, (splats, footprints)| {
        block(at * BLOCK, splats, footprints);
    });
}

pub(crate) fn lower_rasterize(_: &Graph, node: &Node) -> LoweredNode {
    let Op::GaussianSplatRasterize(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `GaussianSplatRasterize` to this row")
    };
    let (image, limits) = ([op.width, op.height], op.limits());
    let level = SimdLevel::detect();
    LoweredNode {
        // Scratch memory: a sort key for each splat, and for each thread a list of the splats of
        // one row of tiles.
        scratch: Some(Box::new(|layouts, threads| {
            let splats = layouts[0].shape()[0];
            splats * size_of::<u64>() + splats * threads.max(1) * size_of::<u32>()
        })),
        work: |layouts| layouts[0].numel() * 16 + layouts[3].numel() * 64,
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            rasterize(level, image, &limits, args);
            Ok(())
        })
    }
}

/// Limits of the kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplatLimits {
    pub(super) blend: BlendLimits,
    /// Width and height of a tile in pixels.
    tile: usize,
    /// Whether splats are drawn within areas and counted.
    pub(super) is_special: bool,
}

impl SplatLimits {
    pub(super) fn new(limits: &RasterLimits) -> SplatLimits {
        let most =
            |count: Option<usize>| count.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX));
        SplatLimits {
            blend: BlendLimits {
                min_alpha: limits.alpha_cutoff as f32,
                greatest_alpha: GREATEST_ALPHA as f32,
                min_transmittance: limits.transmittance_threshold as f32,
                max_steps: most(limits.max_splat_steps),
                max_entries: most(limits.max_list_entries),
            },
            tile: limits.tile_size,
            is_special: limits.is_special(),
        }
    }

    /// First pixel of the tiles that a splat overlaps along an axis, and the pixel after the last.
    fn pixels(&self, footprint: &[i32], axis: usize) -> [usize; 2] {
        let most = i32::from(u16::MAX);
        let [first, end] =
            [footprint[axis], footprint[2 + axis]].map(|x| x.clamp(0, most) as usize);
        [first * self.tile, end.max(first) * self.tile]
    }

    /// First block that a splat overlaps along an axis, and the block after the last one, clamped
    /// to 16 bits.
    pub(super) fn range(&self, footprint: &[i32], axis: usize) -> [u16; 2] {
        let [first, end] = self.pixels(footprint, axis);
        if first == end {
            return [0, 0];
        }
        [first / TILE, end.div_ceil(TILE)].map(|x| x.min(usize::from(u16::MAX)) as u16)
    }

    /// The pixels of the tiles that a splat overlaps.
    pub(super) fn area(&self, footprint: &[i32]) -> PixelArea {
        PixelArea {
            columns: self.pixels(footprint, 0),
            rows: self.pixels(footprint, 1),
        }
    }
}

/// Returns the visible splats front to back, each encoded as its range of tile rows and its index.
/// The encoded splats are written to `keys`, which has one word per splat.
pub(super) fn in_order<'a>(
    splats: &[f32],
    footprints: &[i32],
    limits: &SplatLimits,
    keys: &'a mut [u64],
    parallel: bool,
) -> &'a mut [u64] {
    let mut count = 0;
    let all = splats.chunks_exact(SPLAT_LEN);
    let all = all.zip(footprints.chunks_exact(FOOTPRINT_LEN));
    for (i, (splat, footprint)) in all.enumerate() {
        let [[left, right], [top, bottom]] = [0, 1].map(|axis| limits.range(footprint, axis));
        let is_finite = splat[..6].iter().all(|x| x.is_finite());
        if is_finite && left < right && top < bottom {
            // NaN is last.
            let rank = !(splat[DEPTH_AT].rank(true) as u32);
            keys[count] = u64::from(rank) << 32 | i as u64;
            count += 1;
        }
    }
    let keys = &mut keys[..count];
    sort_unstable(KernelThreads::parallel(parallel), keys);
    for key in keys.iter_mut() {
        let i = *key as u32;
        let [top, bottom] = limits.range(&footprints[i as usize * FOOTPRINT_LEN..], 1);
        *key = u64::from(top) << 48 | u64::from(bottom) << 32 | u64::from(i);
    }
    keys
}

/// Sorted splats that overlap a row of tiles.
pub(super) fn row_splats<'a>(order: &[u64], row: usize, list: &'a mut [u32]) -> &'a [u32] {
    let mut reached = 0;
    for key in order {
        let [top, bottom] = [key >> 48, key >> 32 & 0xffff];
        if top <= row as u64 && (row as u64) < bottom {
            list[reached] = *key as u32;
            reached += 1;
        }
    }
    &list[..reached]
}

/// Operands of the rasterization.
#[derive(Clone, Copy)]
struct RasterInputs<'a> {
    splats: &'a [f32],
    footprints: &'a [i32],
    background: &'a [f32],
    image: [usize; 2],
    limits: SplatLimits,
}

fn rasterize(
    level: SimdLevel,
    image: [usize; 2],
    limits: &RasterLimits,
    args: &mut KernelArgs<'_>,
) {
    let [width, height] = image;
    if width == 0 || height == 0 {
        return;
    }
    let seen = RasterInputs {
        splats: args.ins[0].dense(),
        footprints: args.ins[1].dense(),
        background: args.ins[2].dense(),
        image,
        limits: SplatLimits::new(limits),
    };
    let count = seen.footprints.len() / FOOTPRINT_LEN;
    let [colors, left] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    let colors = SharedMut::new(colors.as_mut::<f32>());
    let left = SharedMut::new(left.as_mut::<f32>());
    let (keys, lists) = args.scratch.split_at_mut(count * size_of::<u64>());
    let order = in_order(
        seen.splats,
        seen.footprints,
        &seen.limits,
        cast_slice_mut(keys),
        args.parallel,
    );
    let threads = KernelThreads::parallel(args.parallel);
    let rows = height.div_ceil(TILE);
    for_each_with_scratch(threads, rows, floats_mut(lists), count, |row, list| {
        let list = row_splats(order, row, cast_slice_mut(list));
        let lines = TILE.min(height - row * TILE);
        let first = row * TILE * width;
        // SAFETY: rows of tiles contain disjoint rows of pixels, which are inside the results.
        let (colors, left) = unsafe {
            (
                colors.slice(3 * first, 3 * lines * width),
                left.slice(first, lines * width),
            )
        };
        for column in 0..width.div_ceil(TILE) {
            let tile = draw(level, &seen, [column, row], list);
            store(&tile, &seen, column, colors, left);
        }
    });
}

/// Draws a tile with the splats of its row that overlap it.
fn draw(
    level: SimdLevel,
    seen: &RasterInputs<'_>,
    [column, row]: [usize; 2],
    list: &[u32],
) -> SplatTile {
    let mut tile = SplatTile::at(column * TILE, row * TILE);
    let mut drawn = 0u32;
    for &i in list {
        let i = i as usize;
        let footprint = &seen.footprints[i * FOOTPRINT_LEN..];
        let [from, to] = seen.limits.range(footprint, 0).map(usize::from);
        if column < from || column >= to {
            continue;
        }
        let numbers = &seen.splats[i * SPLAT_LEN..];
        let splat: RasterSplat = std::array::from_fn(|k| numbers[k]);
        let limits = seen.limits.blend;
        match seen.limits.is_special {
            false => blend(level, &mut tile, &splat, limits),
            true => {
                let area = seen.limits.area(footprint);
                blend_within(level, &mut tile, &splat, area, limits);
            }
        }
        drawn += 1;
        if drawn.is_multiple_of(16) && tile.is_done() {
            break;
        }
    }
    tile
}

/// Blends the pixels of a tile over the background and stores those inside the image.
fn store(
    tile: &SplatTile,
    seen: &RasterInputs<'_>,
    column: usize,
    colors: &mut [f32],
    left: &mut [f32],
) {
    let width = seen.image[0];
    for (y, left) in left.chunks_exact_mut(width).enumerate() {
        for x in 0..TILE.min(width - column * TILE) {
            let at = column * TILE + x;
            let (color, light) = tile.pixel(x, y);
            left[at] = light;
            let to = &mut colors[3 * (y * width + at)..][..3];
            for ((to, own), behind) in to.iter_mut().zip(color).zip(seen.background) {
                *to = own + light * behind;
            }
        }
    }
}
