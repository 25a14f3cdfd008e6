//! Slabs: the part of x that a block of windows reads, copied with its padding. Kernels then read
//! the slab without border checks.

use super::super::simd::Simd;
use super::ConvWindowAxes;

/// Minimum columns of a block, if the row has that many.
const MIN_BLOCK_COLUMNS: usize = 16;
/// Floats that filling may write past the end of a slab.
pub(super) const SLACK: usize = 8 * 16;

/// Partition of a channel's windows into blocks of whole rows, or of parts of one row.
///
/// The slab of a block is `[taps of depth][rows][columns]` of x for a channel. Blocks are numbered
/// in the order of y.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvWindowBlocks {
    /// Rows and columns of windows.
    out: [usize; 2],
    /// Number of blocks of a channel along each axis.
    grid: [usize; 3],
    /// Rows and columns of the slab of the largest block.
    height: usize,
    pitch: usize,
    depth: usize,
}

/// A block of windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvWindowBlock {
    /// First window: depth, row, column.
    pub(super) first: [usize; 3],
    /// Rows and columns of windows.
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl ConvWindowBlock {
    /// Number of windows of the block; they are contiguous in y.
    pub(super) fn windows(&self) -> usize {
        self.rows * self.cols
    }

    /// Index of its first window.
    pub(super) fn start(&self, w: &ConvWindowAxes) -> usize {
        let [d, h, col] = self.first;
        (d * w.out[1] + h) * w.out[2] + col
    }
}

/// Sources of a slab row: zeros, then `count` elements of x from `at` on, then zeros.
struct SlabColumnParts {
    zeros_before: usize,
    at: usize,
    count: usize,
}

/// Elements of x along an axis that `windows` windows cover.
fn span(w: &ConvWindowAxes, axis: usize, windows: usize) -> usize {
    windows.saturating_sub(1) * w.stride[axis] + w.extent(axis)
}

impl ConvWindowBlocks {
    /// Partitions windows into blocks of at most `most` windows and about `area` slab elements per
    /// depth tap. A block of a few columns of one row may have more windows. Rows that must be
    /// split are split into a multiple of `threads` parts, if the parts stay long enough.
    pub(super) fn new(
        w: &ConvWindowAxes,
        area: usize,
        most: usize,
        threads: usize,
    ) -> ConvWindowBlocks {
        let [depth, height, width] = w.out;
        let tall = w.extent(1);
        let cols = match width <= most && span(w, 2, width) * tall <= area {
            true => width,
            false => {
                let room = (area / tall).saturating_sub(w.extent(2)) / w.stride[2] + 1;
                let parts = width.div_ceil(room.min(most).max(MIN_BLOCK_COLUMNS));
                let even = width.div_ceil(parts.next_multiple_of(threads));
                match even >= MIN_BLOCK_COLUMNS {
                    true => even,
                    false => width.div_ceil(parts),
                }
            }
        };
        let rows = match cols < width {
            true => 1,
            false => {
                let room = (area / span(w, 2, cols)).saturating_sub(tall) / w.stride[1] + 1;
                let rows = room.min(most / width.max(1)).max(1);
                height.div_ceil(height.div_ceil(rows).max(1))
            }
        };
        ConvWindowBlocks {
            out: [height, width],
            grid: [
                depth,
                height.div_ceil(rows.max(1)),
                width.div_ceil(cols.max(1)),
            ],
            height: span(w, 1, rows),
            pitch: span(w, 2, cols),
            depth: w.kernel[0],
        }
    }

    /// Upper bound of [`Self::plane`] for windows up to these sizes; monotonic in the sizes.
    pub(super) fn plane_bound(w: &ConvWindowAxes, area: usize) -> usize {
        let few = w.extent(1) * span(w, 2, w.out[2].min(MIN_BLOCK_COLUMNS));
        let all = span(w, 1, w.out[1]) * span(w, 2, w.out[2]);
        w.kernel[0] * area.max(few).min(all)
    }

    /// Number of blocks of a channel.
    pub(super) fn count(&self) -> usize {
        self.grid.iter().product()
    }

    /// Row stride of a slab.
    pub(super) fn pitch(&self) -> usize {
        self.pitch
    }

    /// Elements of a channel in a slab.
    pub(super) fn plane(&self) -> usize {
        self.depth * self.height * self.pitch
    }

    /// Block `i` in the order of y. Block sizes differ by at most one row or column.
    pub(super) fn get(&self, i: usize) -> ConvWindowBlock {
        let ([_, tall, wide], [height, width]) = (self.grid, self.out);
        let (row, col) = (i / wide % tall, i % wide);
        let (top, left) = (row * height / tall, col * width / wide);
        ConvWindowBlock {
            first: [i / (tall * wide), top, left],
            rows: (row + 1) * height / tall - top,
            cols: (col + 1) * width / wide - left,
        }
    }

    /// Strides in the slab between a window and the window below it, and between adjacent windows.
    pub(super) fn steps(&self, w: &ConvWindowAxes) -> [usize; 2] {
        [w.stride[1] * self.pitch, w.stride[2]]
    }

    /// Offset of a tap of the first window within a channel of a slab.
    pub(super) fn tap(&self, w: &ConvWindowAxes, [d, h, col]: [usize; 3]) -> usize {
        (d * self.height + h * w.dilation[1]) * self.pitch + col * w.dilation[2]
    }

    /// The row of channel `x` that is row `i` of a channel's slab; `None` for padding.
    #[inline(always)]
    fn source<'a>(
        &self,
        w: &ConvWindowAxes,
        block: &ConvWindowBlock,
        x: &'a [f32],
        i: usize,
    ) -> Option<&'a [f32]> {
        let (d, h) = (i / self.height, i % self.height);
        let d = block.first[0] * w.stride[0] + d * w.dilation[0];
        w.row_at(x, d, block.first[1] * w.stride[1] + h)
    }

    /// Sources of the rows of a block's slab.
    fn parts(&self, w: &ConvWindowAxes, block: &ConvWindowBlock) -> SlabColumnParts {
        let start = block.first[2] * w.stride[2];
        let before = w.pad[2].saturating_sub(start).min(self.pitch);
        let at = (start + before).saturating_sub(w.pad[2]);
        SlabColumnParts {
            zeros_before: before,
            at,
            count: w.sizes[2].saturating_sub(at).min(self.pitch - before),
        }
    }

    /// Copies the part of the channels `x` that a block reads, as `[channels][plane]`.
    ///
    /// # Safety
    /// Requires the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn fill<S: Simd>(
        &self,
        w: &ConvWindowAxes,
        block: &ConvWindowBlock,
        x: &[f32],
        channels: usize,
        slab: &mut [f32],
    ) {
        let parts = self.parts(w, block);
        assert!(slab.len() >= channels * self.plane() + SLACK);
        let [first_d, first_h] = [0, 1].map(|axis| block.first[axis] * w.stride[axis]);
        let mut to = slab.as_mut_ptr();
        for channel in 0..channels {
            let x = &x[channel * w.plane()..][..w.plane()];
            for d in 0..self.depth {
                for h in 0..self.height {
                    match w.row_at(x, first_d + d * w.dilation[0], first_h + h) {
                        Some(from) => fill_row::<S>(&parts, from, to, self.pitch),
                        None => zero::<S>(to, self.pitch),
                    }
                    to = to.add(self.pitch);
                }
            }
        }
    }

    /// Copies the part of the channels `x` that a block reads, as `[plane][lanes]`. There are at
    /// most as many channels as lanes.
    ///
    /// # Safety
    /// Requires the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn fill_lanes<S: Simd>(
        &self,
        w: &ConvWindowAxes,
        block: &ConvWindowBlock,
        x: &[f32],
        slab: &mut [f32],
    ) {
        let parts = self.parts(w, block);
        let (plane, pitch) = (w.plane(), self.pitch);
        let channels = x.len().checked_div(plane).unwrap_or(0);
        assert!(slab.len() >= self.plane() * S::LANES + SLACK);
        if channels < S::LANES {
            slab[..self.plane() * S::LANES].fill(0.0);
        }
        for i in 0..self.depth * self.height {
            let to = slab.as_mut_ptr().add(i * pitch * S::LANES);
            let Some(from) = self.source(w, block, x, i).filter(|_| channels > 0) else {
                zero::<S>(to, pitch * S::LANES);
                continue;
            };
            let SlabColumnParts {
                zeros_before: before,
                at,
                count,
            } = parts;
            zero::<S>(to, before * S::LANES);
            let first = from.as_ptr().offset_from_unsigned(x.as_ptr()) + at;
            // Always copy eight columns if memory allows; surplus columns are overwritten later.
            let cols = match first + (channels - 1) * plane + 8 <= x.len() {
                true => count.max(8),
                false => count,
            };
            let inside = to.add(before * S::LANES);
            transpose::<S>(&x[first..], plane, [channels, cols], inside, S::LANES);
            let end = before + count;
            zero::<S>(to.add(end * S::LANES), (pitch - end) * S::LANES);
        }
    }
}

impl ConvWindowBlocks {
    /// Copies what a block reads of `vectors` channel vectors. The vectors are adjacent in `x`,
    /// which has the row and column strides `steps`. Each vector gets its own slab
    /// `[rows][columns][lanes]`; slabs have a distance of `own` floats.
    ///
    /// # Safety
    /// Requires the instructions of `S`; windows have one tap of depth.
    #[inline(always)]
    #[allow(
        clippy::too_many_arguments,
        reason = "operand and slabs with their strides"
    )]
    pub(super) unsafe fn fill_vectors<S: Simd>(
        &self,
        w: &ConvWindowAxes,
        block: &ConvWindowBlock,
        x: &[f32],
        steps: [usize; 2],
        vectors: usize,
        slabs: &mut [f32],
        own: usize,
    ) {
        let SlabColumnParts {
            zeros_before: before,
            at,
            count,
        } = self.parts(w, block);
        assert!(self.depth == 1 && own >= self.plane() * S::LANES);
        assert!(slabs.len() >= vectors * own);
        let after = self.pitch - before - count;
        for i in 0..self.height {
            let to = slabs.as_mut_ptr().add(i * self.pitch * S::LANES);
            let row = (block.first[1] * w.stride[1] + i).wrapping_sub(w.pad[1]);
            let is_inside = row < w.sizes[1] && count > 0;
            for v in 0..vectors {
                let to = to.add(v * own);
                if is_inside {
                    zero::<S>(to, before * S::LANES);
                    zero::<S>(to.add((before + count) * S::LANES), after * S::LANES);
                } else {
                    zero::<S>(to, self.pitch * S::LANES);
                }
            }
            if !is_inside {
                continue;
            }
            let first = row * steps[0] + at * steps[1];
            assert!(first + (count - 1) * steps[1] + vectors * S::LANES <= x.len());
            let (mut from, mut to) = (x.as_ptr().add(first), to.add(before * S::LANES));
            for _ in 0..count {
                for v in 0..vectors {
                    S::store(to.add(v * own), S::load(from.add(v * S::LANES)));
                }
                from = from.wrapping_add(steps[1]);
                to = to.wrapping_add(S::LANES);
            }
        }
    }
}

/// Writes `len` zeros, and up to one vector more.
///
/// # Safety
/// Requires the instructions of `S`, and `to` valid for what is written.
#[inline(always)]
unsafe fn zero<S: Simd>(to: *mut f32, len: usize) {
    for i in (0..len).step_by(S::LANES) {
        S::store(to.add(i), S::splat(0.0));
    }
}

/// Writes a row of `len` elements, and up to one vector more. Rows must therefore be filled in
/// order: the next row overwrites the surplus.
///
/// # Safety
/// Requires the instructions of `S`, `to` valid for what is written, and the range that `parts`
/// names inside `from`.
#[inline(always)]
unsafe fn fill_row<S: Simd>(parts: &SlabColumnParts, from: &[f32], to: *mut f32, len: usize) {
    zero::<S>(to, parts.zeros_before);
    let from = from.as_ptr().wrapping_add(parts.at);
    let inside = to.add(parts.zeros_before);
    let mut i = 0;
    while i + S::LANES <= parts.count {
        S::store(inside.add(i), S::load(from.add(i)));
        i += S::LANES;
    }
    if i < parts.count {
        S::store(inside.add(i), S::load_n(from.add(i), parts.count - i));
        i += S::LANES;
    }
    zero::<S>(
        inside.wrapping_add(i),
        len.saturating_sub(parts.zeros_before + i),
    );
}

/// Computes `to[j * to_step + i] = from[i * from_step + j]` for `rows` x `cols` elements.
///
/// # Safety
/// Requires the instructions of `S`; `from` and `to` have these elements.
#[inline(always)]
pub(super) unsafe fn transpose<S: Simd>(
    from: &[f32],
    from_step: usize,
    [rows, cols]: [usize; 2],
    to: *mut f32,
    to_step: usize,
) {
    debug_assert!(rows * cols == 0 || (rows - 1) * from_step + cols <= from.len());
    let src = from.as_ptr();
    if rows < 8 || cols < 8 {
        for i in 0..rows {
            for j in 0..cols {
                *to.add(j * to_step + i) = *src.add(i * from_step + j);
            }
        }
        return;
    }
    // The last eight rows or columns may overlap those that are already done.
    for i in (0..rows).step_by(8).map(|i| i.min(rows - 8)) {
        for j in (0..cols).step_by(8).map(|j| j.min(cols - 8)) {
            let to = to.add(j * to_step + i);
            S::transpose8(src.add(i * from_step + j), from_step, to, to_step);
        }
    }
}
