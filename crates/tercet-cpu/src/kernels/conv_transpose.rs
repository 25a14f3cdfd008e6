//! Transposed convolution with a stride.
//!
//! A product of the weights with the elements gives the contribution of each tap; the contributions of an output
//! channel are then added. With few channels per group, the taps are multiplied while they are added. A row of the
//! result has one phase per residue modulo the stride: all elements of a phase come from contiguous elements, so
//! additions run along a phase, and the phases are interleaved at the end.

use super::gemm::{GemmEpilogue, MatView, PackedB, gemm_packed, pack_b, packed_b_len};
use super::parallel::{KernelThreads, SharedMut, for_each_with_scratch};
use super::simd::{Simd, SimdLevel, simd_dispatch};

/// Channels of a group up to which taps are multiplied while they are added.
const MAX_DIRECT_CHANNELS: usize = 4;
/// Approximate floats of the contributions that a task holds.
const TASK: usize = 1 << 17;

/// Sizes of a transposed convolution on three spatial axes; missing axes have size 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransposedConvShape {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Channels of x and of the result in a group.
    pub(crate) channels: usize,
    pub(crate) own: usize,
    pub(crate) sizes: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) out: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pub(crate) pad: [usize; 3],
}

impl TransposedConvShape {
    fn plane(&self) -> usize {
        self.sizes.iter().product()
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    fn is_direct(&self) -> bool {
        self.channels <= MAX_DIRECT_CHANNELS
    }

    /// Elements of a phase of a row.
    fn phase(&self) -> usize {
        self.out[2].div_ceil(self.stride[2])
    }

    /// Output channels per task of the product.
    fn block(&self) -> usize {
        let fit = TASK / (self.taps() * self.plane()).max(1);
        fit.clamp(1, self.own.max(1))
    }

    /// Scratch floats of a task.
    fn part_len(&self) -> usize {
        let columns = match self.is_direct() {
            true => 0,
            false => self.block() * self.taps() * self.plane(),
        };
        columns + self.stride[2] * self.phase()
    }

    /// Scratch floats for this many threads.
    pub(crate) fn scratch_len(&self, level: SimdLevel, threads: usize) -> usize {
        let packed = match self.is_direct() {
            true => 0,
            false => packed_b_len(level, self.channels, self.plane()).next_multiple_of(16),
        };
        packed + threads.max(1) * self.part_len()
    }
}

/// The sources of the contributions to an output channel.
#[derive(Clone, Copy)]
enum TapSource<'a> {
    /// `[taps, plane]`.
    Columns(&'a [f32]),
    /// The channels of the group, and their weights: tap `t` of channel `c` is at `c * step + t`.
    Elements {
        x: &'a [f32],
        w: &'a [f32],
        step: usize,
    },
}

/// Computes `y` from `x [batch, groups * channels, ..]` and `w [groups * channels, own, ..]`.
///
/// # Panics
/// If a slice is shorter than the shape requires.
#[allow(clippy::too_many_arguments, reason = "operands, output, scratch")]
pub(crate) fn conv_transpose(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &TransposedConvShape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let &TransposedConvShape {
        batch,
        groups,
        channels,
        own,
        ..
    } = shape;
    let (plane, taps) = (shape.plane(), shape.taps());
    let whole: usize = shape.out.iter().product();
    let (of_x, of_w) = (channels * plane, channels * own * taps);
    let bias_of = |channel: usize| bias.map_or(0.0, |bias| bias[channel]);
    assert_eq!(y.len(), batch * groups * own * whole, "y has another size");
    let y = SharedMut::new(y);
    if shape.is_direct() {
        for_each_with_scratch(
            threads,
            batch * groups * own,
            scratch,
            shape.part_len(),
            |task, phases| {
                let (entry, o) = (task / own, task % own);
                let group = entry % groups;
                let source = TapSource::Elements {
                    x: &x[entry * of_x..][..of_x],
                    w: &w[group * of_w + o * taps..(group + 1) * of_w],
                    step: own * taps,
                };
                // SAFETY: each output channel belongs to one task.
                let y = unsafe { y.slice(task * whole, whole) };
                add_taps(level, shape, source, bias_of(group * own + o), phases, y);
            },
        );
        return;
    }
    let len = packed_b_len(level, channels, plane).next_multiple_of(16);
    let (packed, scratch) = scratch.split_at_mut(len);
    let block = shape.block();
    for entry in 0..batch * groups {
        let group = entry % groups;
        let b = MatView::row_major(&x[entry * of_x..][..of_x], channels, plane);
        pack_b(level, threads, b, packed);
        let b = PackedB::new(level, packed, channels, plane);
        for_each_with_scratch(
            threads,
            own.div_ceil(block),
            scratch,
            shape.part_len(),
            |task, part| {
                let first = task * block;
                let count = block.min(own - first);
                let (columns, phases) = part.split_at_mut(block * taps * plane);
                let a = MatView {
                    data: &w[group * of_w + first * taps..(group + 1) * of_w],
                    rows: count * taps,
                    cols: channels,
                    row_stride: 1,
                    col_stride: own * taps,
                };
                let none = &GemmEpilogue::NONE;
                gemm_packed(
                    level,
                    KernelThreads::Serial,
                    a,
                    b,
                    columns,
                    plane,
                    none,
                    &mut [],
                );
                for i in 0..count {
                    let columns = &columns[i * taps * plane..(i + 1) * taps * plane];
                    let o = first + i;
                    // SAFETY: each output channel belongs to one task.
                    let y = unsafe { y.slice((entry * own + o) * whole, whole) };
                    let source = TapSource::Columns(columns);
                    add_taps(level, shape, source, bias_of(group * own + o), phases, y);
                }
            },
        );
    }
}

simd_dispatch!(
    fn add_taps(shape: &TransposedConvShape, source: TapSource<'_>, bias: f32, phases: &mut [f32], y: &mut [f32]) = add_taps_body
);

/// Adds the contributions to an output channel.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn add_taps_body<S: Simd>(
    shape: &TransposedConvShape,
    source: TapSource<'_>,
    bias: f32,
    phases: &mut [f32],
    y: &mut [f32],
) {
    let (stride, phase) = (shape.stride[2], shape.phase());
    let phases = &mut phases[..stride * phase];
    for (row, y) in y.chunks_exact_mut(shape.out[2].max(1)).enumerate() {
        phases.fill(bias);
        let at = [row / shape.out[1], row % shape.out[1]];
        for tz in 0..shape.kernel[0] {
            let Some(z) = element(shape, 0, at[0], tz) else {
                continue;
            };
            for ty in 0..shape.kernel[1] {
                let Some(line) = element(shape, 1, at[1], ty) else {
                    continue;
                };
                let from = (z * shape.sizes[1] + line) * shape.sizes[2];
                let first = (tz * shape.kernel[1] + ty) * shape.kernel[2];
                for tx in 0..shape.kernel[2] {
                    add_row::<S>(shape, source, (first + tx, tx), from, phases);
                }
            }
        }
        match stride {
            1 => y.copy_from_slice(phases),
            2 => {
                let (even, odd) = phases.split_at(phase);
                let (pairs, rest) = y.as_chunks_mut::<2>();
                for (pair, (a, b)) in pairs.iter_mut().zip(even.iter().zip(odd)) {
                    *pair = [*a, *b];
                }
                if let [last] = rest {
                    *last = even[phase - 1];
                }
            }
            _ => {
                for (r, phase) in phases.chunks_exact(phase).enumerate() {
                    let to = y.iter_mut().skip(r).step_by(stride);
                    to.zip(phase).for_each(|(y, x)| *y = *x);
                }
            }
        }
    }
}

/// The element along an axis whose tap `t` contributes to result `at`.
#[inline(always)]
fn element(shape: &TransposedConvShape, axis: usize, at: usize, t: usize) -> Option<usize> {
    let from = (at + shape.pad[axis]).checked_sub(t * shape.dilation[axis])?;
    let found = from
        .is_multiple_of(shape.stride[axis])
        .then(|| from / shape.stride[axis]);
    found.filter(|i| *i < shape.sizes[axis])
}

/// Adds tap `t`, with position `tx` along the row, of the row of elements at `from` to its phase.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn add_row<S: Simd>(
    shape: &TransposedConvShape,
    source: TapSource<'_>,
    (t, tx): (usize, usize),
    from: usize,
    phases: &mut [f32],
) {
    let (stride, phase) = (shape.stride[2] as isize, shape.phase() as isize);
    let place = (tx * shape.dilation[2]) as isize - shape.pad[2] as isize;
    let (residue, shift) = (place.rem_euclid(stride), place.div_euclid(stride));
    // Element `j` contributes to `j + shift` of the phase.
    let first = (-shift).max(0);
    let end = (shape.sizes[2] as isize).min(phase - shift);
    if end <= first {
        return;
    }
    let count = (end - first) as usize;
    let to = &mut phases[(residue * phase + first + shift) as usize..][..count];
    let from = from + first as usize;
    let plane = shape.plane();
    match source {
        TapSource::Columns(columns) => {
            let row = &columns[t * plane + from..][..count];
            to.iter_mut().zip(row).for_each(|(y, x)| *y += x);
        }
        TapSource::Elements { x, w, step } => {
            for c in 0..shape.channels {
                let (factor, row) = (w[c * step + t], &x[c * plane + from..][..count]);
                to.iter_mut()
                    .zip(row)
                    .for_each(|(y, x)| *y = S::fmaf(factor, *x, *y));
            }
        }
    }
}
