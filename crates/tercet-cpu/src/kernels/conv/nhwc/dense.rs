//! NHWC convolution of any windows as an indirect GEMM: the kernel reads each tap of each window
//! through a pointer table. The kernel multiplies the channels at each address with part of a
//! packed weight panel.
//!
//! A task computes a block of windows for some panels. If a sum has many terms, the
//! kernel adds it up in parts, with the partial sums in y; the epilogue runs after the last part.

use super::super::super::gemm::{self, GemmActivation};
use super::super::super::parallel::{self, ClaimedTasks, KernelThreads};
use super::super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::super::{ConvShape, TASKS};
use super::NhwcConvTaskArgs;
use super::tile::{self, NhwcConvTile};

/// Maximum windows of a block, and the minimum if there are enough windows.
const MAX_WINDOWS: usize = 256;
const MIN_TASK_WINDOWS: usize = 48;
/// Number of floats of weights that fit in the L1 cache, and number that fit in the L2 cache.
const NEAR: usize = 6 << 10;
const FAR: usize = 64 << 10;
/// Maximum panel width of any SIMD level.
const MAX_ACCUMULATORS: usize = 48;

/// Size of a pointer in floats.
const ADDRESS: usize = size_of::<*const f32>().div_ceil(size_of::<f32>());

/// Floats of zeros that padding is read from; monotonic in the sizes.
fn zeros_len(shape: &ConvShape) -> usize {
    shape.channels.next_multiple_of(16)
}

pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    let windows = (shape.batch * shape.windows.count()).min(MAX_WINDOWS);
    let addresses = windows * shape.windows.taps() * ADDRESS;
    zeros_len(shape) + addresses.next_multiple_of(16)
}

/// Partition of the work.
struct NhwcGrid {
    /// Total number of windows, and windows per block.
    windows: usize,
    size: usize,
    /// Total number of panels, and number of panel groups.
    panels: usize,
    parts: usize,
}

impl NhwcGrid {
    fn new(level: SimdLevel, threads: KernelThreads, shape: &ConvShape) -> NhwcGrid {
        let (rows, columns) = gemm::tile_shape(level);
        let windows = shape.batch * shape.windows.count();
        let wanted = TASKS * threads.count();
        // Weights larger than the L2 cache are read again for each block, so blocks have the
        // maximum number of windows.
        let size = match shape.k() * shape.m > FAR {
            true => MAX_WINDOWS,
            false => windows.div_ceil(wanted).next_multiple_of(rows),
        };
        let size = size.clamp(MIN_TASK_WINDOWS, MAX_WINDOWS).min(windows);
        let panels = shape.m.div_ceil(columns);
        let blocks = windows.div_ceil(size);
        let parts = match threads.count() {
            1 => 1,
            _ => wanted.div_ceil(blocks).min(panels),
        };
        NhwcGrid {
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

/// Runs the convolution.
pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    job: &NhwcConvTaskArgs<'_>,
    scratch: &mut [f32],
) {
    let grid = NhwcGrid::new(level, threads, job.shape);
    let (tasks, part) = (grid.blocks() * grid.parts, scratch_len(job.shape));
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        run_tasks(level, job, &grid, tasks, part);
    });
}

simd_dispatch!(
    fn run_tasks(job: &NhwcConvTaskArgs<'_>, grid: &NhwcGrid, tasks: ClaimedTasks<'_>, part: &mut [f32]) = tasks_body
);

/// # Safety
/// Requires the instructions of `S`; no other worker has these tasks.
#[inline(always)]
unsafe fn tasks_body<S: Simd>(
    job: &NhwcConvTaskArgs<'_>,
    grid: &NhwcGrid,
    tasks: ClaimedTasks<'_>,
    part: &mut [f32],
) {
    let shape = job.shape;
    let (zeros, addresses) = part.split_at_mut(zeros_len(shape));
    zeros.fill(0.0);
    let zeros = zeros.as_ptr();
    assert!(addresses.len() >= grid.size * shape.windows.taps() * ADDRESS);
    // Parts of the scratch memory are aligned to 64 bytes.
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
        // If all weights stay in the L1 cache, all channels of a few windows are computed together.
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

/// Writes the read address of each tap of each window: `[windows][taps]`.
///
/// # Safety
/// `to` has room for the addresses of all windows.
#[inline(always)]
unsafe fn address(
    job: &NhwcConvTaskArgs<'_>,
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
        // Coordinates before the first row or column wrap to large numbers, so one comparison
        // checks both borders.
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

/// Computes the sums of a block of windows for one panel of output channels.
///
/// # Safety
/// Same as [`tasks_body`].
#[inline(always)]
unsafe fn run_panel<S: Simd>(
    job: &NhwcConvTaskArgs<'_>,
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
    let mut start = [0.0; MAX_ACCUMULATORS];
    if let Some(bias) = job.bias {
        start[..cols].copy_from_slice(&bias[col..][..cols]);
    }
    let weights = &job.weights[panel * taps * channels * nr..][..taps * channels * nr];
    let tiles = count.div_ceil(S::TILE_ROWS);
    // A tile covers several taps with all their channels, or some channels of one tap.
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
            let mut tile = NhwcConvTile {
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
                last_lanes: cols - (vectors - 1) * S::LANES,
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

/// Clamp bounds of the epilogue, if the epilogue is only a clamp.
#[inline(always)]
fn bounds(job: &NhwcConvTaskArgs<'_>) -> Option<[f32; 2]> {
    match (job.epilogue.activation, job.epilogue.residual) {
        (GemmActivation::Relu, None) => Some([0.0, f32::INFINITY]),
        (GemmActivation::Relu6, None) => Some([0.0, 6.0]),
        (_, _) => None,
    }
}

/// Applies the activation to the channels of some panels.
///
/// # Safety
/// Same as [`tasks_body`].
#[inline(always)]
unsafe fn finish<S: Simd>(
    job: &NhwcConvTaskArgs<'_>,
    from: usize,
    to: usize,
    first: usize,
    count: usize,
) {
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
