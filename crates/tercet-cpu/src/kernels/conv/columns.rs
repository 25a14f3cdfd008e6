//! Convolution as a GEMM with im2col, a few panels at once.
//!
//! For each batch entry and group, the GEMM computes `y[m, windows] = w[m, k] columns[k, windows]`.
//! A task packs the columns of some windows into panels in its scratch memory. The task then
//! multiplies the panels by the weights, and applies the epilogue while that block of y is in cache.
//! It supports any window. This algorithm is used for few channels and for large dilations, which
//! [`super::direct`] does not support.

use std::ops::Range;

use super::super::gemm::{self, GemmActivation, GemmEpilogue, MatView, PackedB};
use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::super::vmath::scalar;
use super::{ConvCall, ConvShape, TASKS};

/// Approximate floats of columns that a task packs at once. These columns and the task's part of y
/// stay in the L2 cache.
const BLOCK: usize = 48 << 10;

/// Windows per task: whole panels, except for the last task.
fn step(level: SimdLevel, shape: &ConvShape) -> usize {
    let nr = gemm::packed_b_len(level, 1, 1);
    let panels = BLOCK / (shape.k() * nr).max(1);
    nr * panels.clamp(1, 8)
}

/// True if the im2col columns are rows of x and too few tiles read them for packing to be
/// profitable.
fn reads_in_place(level: SimdLevel, shape: &ConvShape) -> bool {
    /// Maximum number of row tiles for reading x in place.
    const FEW: usize = 3;
    let few = shape.m <= FEW * gemm::tile_shape(level).0;
    few && shape.windows.is_identity() && shape.k() <= gemm::CHAIN
}

/// Scratch floats per thread.
pub(super) fn scratch_len(level: SimdLevel, shape: &ConvShape) -> usize {
    gemm::packed_b_len(level, shape.k(), step(level, shape))
}

/// Runs the convolution with unpacked weights.
pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    call: &ConvCall<'_>,
    w: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = call.shape;
    let windows = shape.windows.count();
    let (entries, nr) = (shape.batch * shape.groups, gemm::packed_b_len(level, 1, 1));
    let even = (entries * windows).div_ceil(TASKS * threads.count() * nr) * nr;
    let step = step(level, shape).min(even);
    let (blocks, part) = (windows.div_ceil(step), scratch_len(level, shape));
    let tasks = entries * blocks;
    let out = SharedMut::new(y);
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, panels| {
        let (entry, block) = (task / blocks, task % blocks);
        let columns = block * step..windows.min((block + 1) * step);
        let group = entry % shape.groups;
        let w = &w[group * shape.m * shape.k()..][..shape.m * shape.k()];
        let a = MatView::row_major(w, shape.m, shape.k());
        // Tasks have disjoint columns of y, or different batch entries.
        let first = entry * shape.m * windows + columns.start;
        match reads_in_place(level, shape) {
            true => {
                let x = &call.x[entry * shape.k() * windows..][..shape.k() * windows];
                let b = MatView::row_major(x, shape.k(), windows);
                let columns = columns.clone();
                gemm::gemm_columns_in_place(level, a, b, columns, out, windows, first);
            }
            false => {
                pack(level, call, entry, columns.clone(), panels);
                let b = PackedB::new(level, panels, shape.k(), columns.len());
                gemm::gemm_packed_columns(level, a, b, out, windows, first, &GemmEpilogue::NONE);
            }
        }
        for row in 0..shape.m {
            // SAFETY: the columns of this task, inside the batch entry.
            let y = unsafe { out.slice(first + row * windows, columns.len()) };
            finish(level, call, group * shape.m + row, y);
        }
    });
}

simd_dispatch!(
    /// Packs the windows `columns` of a batch entry as panels.
    fn pack(call: &ConvCall<'_>, entry: usize, columns: Range<usize>, panels: &mut [f32]) = pack_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn pack_body<S: Simd>(
    call: &ConvCall<'_>,
    entry: usize,
    columns: Range<usize>,
    panels: &mut [f32],
) {
    let nr = S::TILE_VECTORS * S::LANES;
    let windows = &call.shape.windows;
    let (taps, plane, k) = (windows.taps(), windows.plane(), call.shape.k());
    if k == 0 {
        return;
    }
    let x = &call.x[entry * call.shape.channels * plane..][..call.shape.channels * plane];
    if windows.is_identity() {
        let b = MatView::row_major(x, k, plane);
        for (panel, to) in panels.chunks_exact_mut(k * nr).enumerate() {
            let first = columns.start + panel * nr;
            if first < columns.end {
                gemm::pack_panel::<S>(&b, first, to);
            }
        }
        return;
    }
    for (panel, to) in panels.chunks_exact_mut(k * nr).enumerate() {
        let first = columns.start + panel * nr;
        if first >= columns.end {
            return;
        }
        let of = first..columns.end.min(first + nr);
        for (i, to) in to.chunks_exact_mut(nr).enumerate() {
            let plane = &x[i / taps * plane..][..plane];
            windows.gather(plane, windows.tap(i % taps), of.clone(), to);
            to[of.len()..].fill(0.0);
        }
    }
}

simd_dispatch!(
    /// Adds the bias of a channel and applies the activation.
    fn finish(call: &ConvCall<'_>, channel: usize, y: &mut [f32]) = finish_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn finish_body<S: Simd>(call: &ConvCall<'_>, channel: usize, y: &mut [f32]) {
    let bias = call.bias.map_or(0.0, |bias| bias[channel]);
    match call.activation {
        // The bias and this activation need only a single pass over y.
        GemmActivation::Relu => return map(y, |y| scalar::relu(y + bias)),
        GemmActivation::Relu6 => return map(y, |y| scalar::relu6(y + bias)),
        _ if call.bias.is_some() => map(y, |y| y + bias),
        _ => {}
    }
    let epilogue = GemmEpilogue {
        activation: call.activation,
        ..GemmEpilogue::NONE
    };
    epilogue.apply::<S>(y, 0, 0);
}

#[inline(always)]
fn map(y: &mut [f32], f: impl Fn(f32) -> f32) {
    for y in y {
        *y = f(*y);
    }
}
