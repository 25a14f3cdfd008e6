//! Windows of any kind as rows of a product: the address of each tap of each window is looked up, and its channels are
//! multiplied with a part of a packed panel of weights.
//!
//! A task is a block of windows for some panels. Sums of long chains are gathered in y, which holds them until they are whole;
//! then they are finished.

use super::super::super::gemm::{self, Activation};
use super::super::super::parallel::{self, Tasks, Threads};
use super::super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::super::{ConvShape, TASKS};
use super::Job;
use super::tile::{self, Tile};

/// Windows of a block at most and, where there are as many, at least.
const MOST_WINDOWS: usize = 256;
const FEW_WINDOWS: usize = 48;
/// Floats of weights that stay in the nearest cache, and in the second-level one.
const NEAR: usize = 6 << 10;
const FAR: usize = 64 << 10;
/// Sums of the panel of any level.
const MOST_SUMS: usize = 48;

/// Floats of an address.
const ADDRESS: usize = size_of::<*const f32>().div_ceil(size_of::<f32>());

/// Floats of zeros, and of all scratch of a thread; it grows with the sizes.
fn zeros_len(shape: &ConvShape) -> usize {
    shape.channels.next_multiple_of(16)
}

pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    let windows = (shape.batch * shape.windows.count()).min(MOST_WINDOWS);
    let addresses = windows * shape.windows.taps() * ADDRESS;
    zeros_len(shape) + addresses.next_multiple_of(16)
}

/// How the work is cut.
struct Grid {
    /// All windows, and those of a block.
    windows: usize,
    size: usize,
    /// All panels, and parts of them.
    panels: usize,
    parts: usize,
}

impl Grid {
    fn new(level: SimdLevel, threads: Threads, shape: &ConvShape) -> Grid {
        let (rows, columns) = gemm::tile_shape(level);
        let windows = shape.batch * shape.windows.count();
        let wanted = TASKS * threads.count();
        // Weights that are read anew for each block are read for as many windows as can be.
        let size = match shape.k() * shape.m > FAR {
            true => MOST_WINDOWS,
            false => windows.div_ceil(wanted).next_multiple_of(rows),
        };
        let size = size.clamp(FEW_WINDOWS, MOST_WINDOWS).min(windows);
        let panels = shape.m.div_ceil(columns);
        let blocks = windows.div_ceil(size);
        let parts = match threads.count() {
            1 => 1,
            _ => wanted.div_ceil(blocks).min(panels),
        };
        Grid {
            windows,
            size: windows.div_ceil(blocks),
            panels,
            parts,
        }
    }

    fn blocks(&self) -> usize {
        self.windows.div_ceil(self.size)
    }
}

/// The convolution.
pub(super) fn run(level: SimdLevel, threads: Threads, job: &Job<'_>, scratch: &mut [f32]) {
    let grid = Grid::new(level, threads, job.shape);
    let (tasks, part) = (grid.blocks() * grid.parts, scratch_len(job.shape));
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        run_tasks(level, job, &grid, tasks, part);
    });
}

simd_dispatch!(
    fn run_tasks(job: &Job<'_>, grid: &Grid, tasks: Tasks<'_>, part: &mut [f32]) = tasks_body
);

/// # Safety
/// Needs the instructions of `S`; no other worker has these tasks.
#[inline(always)]
unsafe fn tasks_body<S: Simd>(job: &Job<'_>, grid: &Grid, tasks: Tasks<'_>, part: &mut [f32]) {
    let shape = job.shape;
    let (zeros, addresses) = part.split_at_mut(zeros_len(shape));
    zeros.fill(0.0);
    let zeros = zeros.as_ptr();
    assert!(addresses.len() >= grid.size * shape.windows.taps() * ADDRESS);
    // Parts of scratch begin at multiples of 64 bytes.
    let addresses = addresses.as_mut_ptr().cast::<*const f32>();
    assert!(addresses.is_aligned());
    let mut known = None;
    for task in tasks {
        let (block, part) = (task / grid.parts, task % grid.parts);
        let first = block * grid.size;
        let count = grid.size.min(grid.windows - first);
        if known.replace(block) != Some(block) {
            address(job, first, count, zeros, addresses);
        }
        let panels = part * grid.panels / grid.parts..(part + 1) * grid.panels / grid.parts;
        // Where all weights stay near, all channels of a few windows follow each other.
        let step = match shape.k() * shape.m <= NEAR {
            true => S::TILE_ROWS,
            false => count,
        };
        for from in (0..count).step_by(step.max(1)) {
            let (count, addresses) = (
                step.min(count - from),
                addresses.add(from * shape.windows.taps()),
            );
            for panel in panels.clone() {
                run_panel::<S>(job, panel, first + from, count, addresses);
            }
        }
        finish::<S>(job, panels.start, panels.end, first, count);
    }
}

/// Writes where each tap of some windows reads: `[windows][taps]`.
///
/// # Safety
/// There is room for all of them.
#[inline(always)]
unsafe fn address(
    job: &Job<'_>,
    first: usize,
    count: usize,
    zeros: *const f32,
    mut to: *mut *const f32,
) {
    let w = &job.shape.windows;
    let [_, height, width] = w.out;
    let [_, tall, wide] = w.kernel;
    let [each, row_step, column_step] = job.strides;
    let (mut entry, mut row) = (first / (height * width), first / width % height);
    let mut col = first % width;
    for _ in 0..count {
        let x = job.x.as_ptr().wrapping_add(entry * each);
        // Before the first row and column, wrapped numbers are greater than all that are inside.
        let mut h = (row * w.stride[1]).wrapping_sub(w.pad[1]);
        let left = (col * w.stride[2]).wrapping_sub(w.pad[2]);
        for _ in 0..tall {
            let mut v = left;
            let mut from = x.wrapping_add(h.wrapping_mul(row_step));
            from = from.wrapping_add(v.wrapping_mul(column_step));
            for _ in 0..wide {
                let inside = h < w.sizes[1] && v < w.sizes[2];
                *to = if inside { from } else { zeros };
                to = to.add(1);
                v = v.wrapping_add(w.dilation[2]);
                from = from.wrapping_add(w.dilation[2].wrapping_mul(column_step));
            }
            h = h.wrapping_add(w.dilation[1]);
        }
        col += 1;
        if col == width {
            (col, row) = (0, row + 1);
        }
        if row == height {
            (row, entry) = (0, entry + 1);
        }
    }
}

/// The sums of a block of windows for a panel of channels.
///
/// # Safety
/// As [`tasks_body`].
#[inline(always)]
unsafe fn run_panel<S: Simd>(
    job: &Job<'_>,
    panel: usize,
    first: usize,
    count: usize,
    addresses: *const *const f32,
) {
    let shape = job.shape;
    let (nr, taps, channels) = (
        S::TILE_VECTORS * S::LANES,
        shape.windows.taps(),
        shape.channels,
    );
    let col = panel * nr;
    let cols = nr.min(shape.m - col);
    let vectors = cols.div_ceil(S::LANES);
    let mut start = [0.0; MOST_SUMS];
    if let Some(bias) = job.bias {
        start[..cols].copy_from_slice(&bias[col..][..cols]);
    }
    let weights = &job.weights[panel * taps * channels * nr..][..taps * channels * nr];
    let tiles = count.div_ceil(S::TILE_ROWS);
    // Several taps with all their channels, or some channels of one tap.
    let channel_step = channels
        .div_ceil(channels.div_ceil(gemm::CHAIN).max(1))
        .max(1);
    let chains = taps.div_ceil((gemm::CHAIN / channel_step).max(1)).max(1);
    let tap_step = match channel_step < channels {
        true => 1,
        false => taps.div_ceil(chains).max(1),
    };
    for tap in (0..taps).step_by(tap_step) {
        for channel in (0..channels.max(1)).step_by(channel_step) {
            let mut tile = Tile {
                rows: addresses.add(tap),
                row_step: taps,
                taps: tap_step.min(taps - tap),
                first: channel,
                channels: channel_step.min(channels - channel),
                weights: weights[(tap * channels + channel) * nr..].as_ptr(),
                y: job.y.ptr().add(first * shape.m + col),
                y_step: shape.m,
                start: start.as_ptr(),
                add: tap + channel > 0,
                last: cols - (vectors - 1) * S::LANES,
                bounds: None,
            };
            if tap + tile.taps == taps && channel + tile.channels == channels {
                tile.bounds = bounds(job);
            }
            for i in 0..tiles {
                let begin = i * count / tiles;
                let rows = (i + 1) * count / tiles - begin;
                (tile::function(S::LEVEL, rows, vectors))(&tile);
                tile.rows = tile.rows.add(rows * taps);
                tile.y = tile.y.add(rows * shape.m);
            }
        }
    }
}

/// What sums are kept within, where that is all that is done with them.
#[inline(always)]
fn bounds(job: &Job<'_>) -> Option<[f32; 2]> {
    match (job.epilogue.activation, job.epilogue.residual) {
        (Activation::Relu, None) => Some([0.0, f32::INFINITY]),
        (Activation::Relu6, None) => Some([0.0, 6.0]),
        (_, _) => None,
    }
}

/// Applies the function to the channels of some panels.
///
/// # Safety
/// As [`tasks_body`].
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Job<'_>, from: usize, to: usize, first: usize, count: usize) {
    if bounds(job).is_some() {
        return;
    }
    let (nr, m) = (S::TILE_VECTORS * S::LANES, job.shape.m);
    let cols = from * nr..m.min(to * nr);
    if cols.len() == m {
        let y = job.y.slice(first * m, count * m);
        return job.epilogue.apply::<S>(y, first, 0);
    }
    for window in first..first + count {
        let y = job.y.slice(window * m + cols.start, cols.len());
        job.epilogue.apply::<S>(y, window, cols.start);
    }
}
