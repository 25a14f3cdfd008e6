//! The rows of some channels of x that some windows read.
//!
//! A row lies in as many phases as the stride: phase `p` has the elements `p`, `p + stride`, .. of the padded row, so that what one
//! tap reads for neighbouring windows lies side by side.

use super::super::conv::Windows;

/// Elements after the last row that vectors may read.
pub(super) const SLACK: usize = 32;

/// Where the elements of a slab lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    /// The first row, counted with padding.
    first: usize,
    /// Rows of a channel.
    rows: usize,
    /// Elements of a phase of a row.
    phase: usize,
    stride: usize,
}

impl Slab {
    /// The slab of rows of windows `first..end`.
    pub(super) fn new(w: &Windows, first: usize, end: usize) -> Slab {
        let reach = |axis: usize| (w.kernel[axis].max(1) - 1) * w.dilation[axis];
        let width = (w.out[2].max(1) - 1) * w.stride[2] + reach(2) + 1;
        Slab {
            first: first * w.stride[1],
            rows: (end.max(first + 1) - first - 1) * w.stride[1] + reach(1) + 1,
            phase: width.div_ceil(w.stride[2]),
            stride: w.stride[2],
        }
    }

    /// Elements of a row.
    pub(super) fn row(&self) -> usize {
        self.phase * self.stride
    }

    /// Elements of a channel.
    pub(super) fn channel(&self) -> usize {
        self.rows * self.row()
    }

    /// Where the window at `(row, 0)` of the first row of windows begins.
    pub(super) fn window_row(&self, w: &Windows, row: usize) -> usize {
        (row * w.stride[1] - self.first) * self.row()
    }

    /// How far what a tap reads lies from where its window begins.
    pub(super) fn tap(&self, w: &Windows, ty: usize, tx: usize) -> usize {
        let x = tx * w.dilation[2];
        ty * w.dilation[1] * self.row() + x % self.stride * self.phase + x / self.stride
    }

    /// Writes the rows of one channel; `pad` is what padding holds, `f` what an element becomes.
    #[inline(always)]
    pub(super) fn fill<T: Copy>(
        &self,
        w: &Windows,
        plane: &[u8],
        pad: T,
        to: &mut [T],
        f: impl Fn(u8) -> T,
    ) {
        let (width, before) = (w.sizes[2], w.pad[2]);
        let rows = to[..self.channel()].chunks_exact_mut(self.row());
        for (i, to) in rows.enumerate() {
            let row = (self.first + i)
                .checked_sub(w.pad[1])
                .filter(|row| *row < w.sizes[1]);
            let Some(row) = row else {
                to.fill(pad);
                continue;
            };
            let from = &plane[row * width..][..width];
            for (p, to) in to.chunks_exact_mut(self.phase).enumerate() {
                // Element `j` of the phase is element `p + j stride - before` of the row.
                let start = before.saturating_sub(p).div_ceil(self.stride).min(to.len());
                let end = (width + before).saturating_sub(p).div_ceil(self.stride);
                let end = end.clamp(start, to.len());
                let (head, rest) = to.split_at_mut(start);
                let (inside, tail) = rest.split_at_mut(end - start);
                head.fill(pad);
                tail.fill(pad);
                if inside.is_empty() {
                    continue;
                }
                let from = &from[p + start * self.stride - before..];
                match self.stride {
                    1 => inside.iter_mut().zip(from).for_each(|(y, x)| *y = f(*x)),
                    2 => {
                        let last = inside.len() - 1;
                        let (most, rest) = inside.split_at_mut(last);
                        let pairs = most.iter_mut().zip(from.chunks_exact(2));
                        pairs.for_each(|(y, x)| *y = f(x[0]));
                        rest[0] = f(from[2 * last]);
                    }
                    stride => {
                        let pairs = inside.iter_mut().zip(from.iter().step_by(stride));
                        pairs.for_each(|(y, x)| *y = f(*x));
                    }
                }
            }
        }
    }
}
