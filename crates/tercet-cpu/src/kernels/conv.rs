//! Convolution in f32: a product whose right side is packed from windows a few panels at a time, and a
//! direct kernel for one channel each (depthwise).
//!
//! For each batch entry and group, `y[m, windows] = w[m, k] columns[k, windows]`; a task makes the columns
//! of some windows as packed panels in its scratch, multiplies, and finishes its part of y while it is
//! hot. Windows of one element at each element are packed by the same copies as any other.
//!
//! Each element of a product is a chain of `fma` over channels and then taps, as in [`super::gemm`].

use std::ops::Range;

use super::gemm::{self, Activation, Epilogue, MatView, PackedB};
use super::parallel::{self, SharedMut, Threads};
use super::simd::{Simd, SimdLevel, simd_dispatch};

/// Floats of the columns that a task packs at a time, about: with its part of y they stay in the
/// second-level cache.
const BLOCK: usize = 48 << 10;
/// Multiply-adds of a task that make taking it negligible.
const TASK_WORK: usize = 1 << 16;

/// Windows on three spatial axes; missing ones have size 1.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// The sizes of a channel of x.
    pub sizes: [usize; 3],
    /// Taps of a window.
    pub kernel: [usize; 3],
    /// How many windows there are.
    pub out: [usize; 3],
    /// From one window to the next.
    pub stride: [usize; 3],
    /// From one tap to the next.
    pub dilation: [usize; 3],
    /// Zeros before each axis.
    pub pad: [usize; 3],
}

impl Windows {
    /// Taps of a window.
    #[must_use]
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Windows of a channel.
    #[must_use]
    pub fn count(&self) -> usize {
        self.out.iter().product()
    }

    /// Elements of a channel of x.
    #[must_use]
    pub fn plane(&self) -> usize {
        self.sizes.iter().product()
    }

    /// A tap by its number.
    #[must_use]
    pub fn tap(&self, t: usize) -> [usize; 3] {
        let [_, kh, kw] = self.kernel;
        [t / (kh * kw), t / kw % kh, t % kw]
    }

    /// The index that a tap of a window reads; `None` for padding.
    fn source(&self, axis: usize, out: usize, tap: usize) -> Option<usize> {
        let at = out * self.stride[axis] + tap * self.dilation[axis];
        at.checked_sub(self.pad[axis])
            .filter(|at| *at < self.sizes[axis])
    }

    /// The windows of a row, among `of`, whose tap is inside, and what the first of them reads.
    pub(crate) fn inside(&self, tap: usize, of: Range<usize>) -> (Range<usize>, usize) {
        let (stride, reach) = (self.stride[2], tap * self.dilation[2]);
        let before = self.pad[2].saturating_sub(reach).div_ceil(stride);
        let end = (self.sizes[2] + self.pad[2]).saturating_sub(reach);
        let start = before.clamp(of.start, of.end);
        let end = end.div_ceil(stride).clamp(start, of.end);
        let first = (start * stride + reach).saturating_sub(self.pad[2]);
        (start..end, first)
    }

    /// The row of a channel that a tap reads for the windows of row `row`; `None` for padding.
    pub(crate) fn row<'a, T>(
        &self,
        plane: &'a [T],
        row: usize,
        tap: [usize; 3],
    ) -> Option<&'a [T]> {
        let d = self.source(0, row / self.out[1], tap[0])?;
        let h = self.source(1, row % self.out[1], tap[1])?;
        let width = self.sizes[2];
        plane.get((d * self.sizes[1] + h) * width..)?.get(..width)
    }

    /// What a tap reads of a channel for windows `windows`, which may be of several rows; zeros for
    /// padding.
    #[inline(always)]
    pub(crate) fn gather<T: Copy + Default>(
        &self,
        plane: &[T],
        tap: [usize; 3],
        windows: Range<usize>,
        to: &mut [T],
    ) {
        let width = self.out[2];
        let mut at = windows.start;
        let mut to = &mut to[..windows.len()];
        while at < windows.end {
            let row = at / width;
            let of = at % width..width.min(at % width + windows.end - at);
            let (own, rest) = to.split_at_mut(of.len());
            to = rest;
            at += of.len();
            match self.row(plane, row, tap) {
                Some(from) => self.gather_row(from, tap[2], of, own),
                None => own.fill(T::default()),
            }
        }
    }

    #[inline(always)]
    fn gather_row<T: Copy + Default>(
        &self,
        from: &[T],
        tap: usize,
        of: Range<usize>,
        to: &mut [T],
    ) {
        let (inside, first) = self.inside(tap, of.clone());
        let (head, to) = to.split_at_mut(inside.start - of.start);
        let (to, tail) = to.split_at_mut(inside.len());
        head.fill(T::default());
        tail.fill(T::default());
        if to.is_empty() {
            return;
        }
        let from = &from[first..];
        match self.stride[2] {
            1 => to.copy_from_slice(&from[..to.len()]),
            stride => {
                for (y, x) in to.iter_mut().zip(from.iter().step_by(stride)) {
                    *y = *x;
                }
            }
        }
    }
}

/// A convolution of `[batch, groups * channels, ..]` with `[groups * m, channels, ..]`.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Windows of a channel.
    pub windows: Windows,
    /// Entries of x.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of x in a group.
    pub channels: usize,
    /// Channels of y in a group.
    pub m: usize,
}

impl ConvShape {
    /// Products of a sum.
    fn k(&self) -> usize {
        self.channels * self.windows.taps()
    }

    /// Windows of a task: whole panels, but for the last.
    fn step(&self, level: SimdLevel) -> usize {
        let nr = gemm::packed_b_len(level, 1, 1);
        let panels = BLOCK / (self.k() * nr).max(1);
        nr * panels.clamp(1, 8)
    }

    fn is_depthwise(&self) -> bool {
        self.channels == 1
    }

    fn check(&self, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &[f32]) {
        let planes = self.batch * self.groups;
        let windows = self.windows.count();
        assert_eq!(x.len(), planes * self.channels * self.windows.plane());
        assert_eq!(w.len(), self.groups * self.m * self.k());
        assert_eq!(y.len(), planes * self.m * windows);
        assert!(bias.is_none_or(|b| b.len() == self.groups * self.m));
    }
}

/// Floats of scratch that [`conv`] needs.
#[must_use]
pub fn conv_scratch_len(level: SimdLevel, threads: usize, shape: &ConvShape) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    threads * gemm::packed_b_len(level, shape.k(), shape.step(level))
}

/// `y = activation(x * w + bias)`; everything dense and row-major.
///
/// # Panics
/// If a slice has another length than the shape says, or `scratch` is shorter than
/// [`conv_scratch_len`] asks.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn conv(
    level: SimdLevel,
    threads: Threads,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    activation: Activation,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(x, w, bias, y);
    let windows = shape.windows.count();
    if y.is_empty() {
        return;
    }
    let call = Call {
        shape,
        x,
        w,
        bias,
        activation,
    };
    let entries = shape.batch * shape.groups;
    let work = y.len() * shape.k();
    let threads = match work < TASK_WORK {
        true => Threads::Serial,
        false => threads,
    };
    let out = SharedMut::new(y);
    if shape.is_depthwise() {
        let channels = entries * shape.m;
        let each = (TASK_WORK / (windows * shape.k()).max(1)).clamp(1, channels);
        parallel::for_each(threads, channels.div_ceil(each), |task| {
            for channel in task * each..channels.min((task + 1) * each) {
                // SAFETY: a channel is `windows` elements of y, and no other task has it.
                let y = unsafe { out.slice(channel * windows, windows) };
                depthwise(level, &call, channel, y);
            }
        });
        return;
    }
    let step = shape.step(level);
    let (blocks, part) = (
        windows.div_ceil(step),
        gemm::packed_b_len(level, shape.k(), step),
    );
    parallel::for_each_with_scratch(threads, entries * blocks, scratch, part, |task, panels| {
        let (entry, block) = (task / blocks, task % blocks);
        let columns = block * step..windows.min((block + 1) * step);
        pack(level, &call, entry, columns.clone(), panels);
        let b = PackedB::new(level, panels, shape.k(), columns.len());
        let group = entry % shape.groups;
        let w = &w[group * shape.m * shape.k()..][..shape.m * shape.k()];
        let a = MatView::row_major(w, shape.m, shape.k());
        // Tasks own disjoint columns of disjoint entries of y.
        let first = entry * shape.m * windows + columns.start;
        gemm::gemm_packed_columns(level, a, b, out, windows, first, &Epilogue::NONE);
        for row in 0..shape.m {
            // SAFETY: the columns of this task, inside the entry.
            let y = unsafe { out.slice(first + row * windows, columns.len()) };
            finish(level, &call, group * shape.m + row, y);
        }
    });
}

/// The arguments that all tasks share.
struct Call<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    activation: Activation,
}

simd_dispatch!(
    /// Packs the windows `columns` of an entry as panels.
    fn pack(call: &Call<'_>, entry: usize, columns: Range<usize>, panels: &mut [f32]) = pack_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn pack_body<S: Simd>(
    call: &Call<'_>,
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
    /// Adds the bias of a channel and applies the function.
    fn finish(call: &Call<'_>, channel: usize, y: &mut [f32]) = finish_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn finish_body<S: Simd>(call: &Call<'_>, channel: usize, y: &mut [f32]) {
    if let Some(bias) = call.bias {
        let bias = bias[channel];
        for y in y.iter_mut() {
            *y += bias;
        }
    }
    let epilogue = Epilogue {
        activation: call.activation,
        ..Epilogue::NONE
    };
    epilogue.apply::<S>(y, 0, 0);
}

simd_dispatch!(
    /// One channel of one entry of y, from one channel of x.
    fn depthwise(call: &Call<'_>, channel: usize, y: &mut [f32]) = depthwise_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn depthwise_body<S: Simd>(call: &Call<'_>, channel: usize, y: &mut [f32]) {
    let shape = call.shape;
    let windows = &shape.windows;
    let (taps, plane, width) = (windows.taps(), windows.plane(), windows.out[2]);
    let own = channel % (shape.groups * shape.m);
    let x = &call.x[channel / shape.m * plane..][..plane];
    let weights = &call.w[own * taps..][..taps];
    for (row, y) in y.chunks_exact_mut(width).enumerate() {
        y.fill(0.0);
        for (t, &w) in weights.iter().enumerate() {
            let tap = windows.tap(t);
            let Some(from) = windows.row(x, row, tap) else {
                continue;
            };
            let (inside, first) = windows.inside(tap[2], 0..width);
            if inside.is_empty() {
                continue;
            }
            let (y, from) = (&mut y[inside], &from[first..]);
            match windows.stride[2] {
                1 => {
                    for (y, x) in y.iter_mut().zip(from) {
                        *y = S::fmaf(w, *x, *y);
                    }
                }
                stride => {
                    for (y, x) in y.iter_mut().zip(from.iter().step_by(stride)) {
                        *y = S::fmaf(w, *x, *y);
                    }
                }
            }
        }
    }
    finish_body::<S>(call, own, y);
}
