//! Window geometry on three spatial axes, and the elements that each tap reads.

use std::ops::Range;

/// Windows on three spatial axes; missing axes have size 1.
#[derive(Clone, Copy, Debug)]
pub struct ConvWindowAxes {
    /// Sizes of a channel of x.
    pub sizes: [usize; 3],
    /// Taps along each axis.
    pub kernel: [usize; 3],
    /// Number of windows along each axis.
    pub out: [usize; 3],
    /// Stride between windows.
    pub stride: [usize; 3],
    /// Stride between taps.
    pub dilation: [usize; 3],
    /// Zero padding before each axis.
    pub pad: [usize; 3],
}

impl ConvWindowAxes {
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

    /// Coordinates of a tap by its index.
    #[must_use]
    pub fn tap(&self, t: usize) -> [usize; 3] {
        let [_, kh, kw] = self.kernel;
        [t / (kh * kw), t / kw % kh, t % kw]
    }

    /// Elements of an axis from the first to the last tap of a window.
    pub(crate) fn extent(&self, axis: usize) -> usize {
        self.kernel[axis].saturating_sub(1) * self.dilation[axis] + 1
    }

    /// True if adjacent windows read adjacent elements: neither large dilations nor large strides.
    pub(crate) fn is_compact(&self) -> bool {
        const WIDE: usize = 64;
        (0..3).all(|axis| {
            let extent = self.extent(axis);
            self.stride[axis] <= 2 * extent && (self.dilation[axis] == 1 || extent <= WIDE)
        })
    }

    /// True if the windows are the elements of x, in the same order.
    pub(super) fn is_identity(&self) -> bool {
        self.taps() == 1 && self.stride == [1; 3] && self.out == self.sizes
    }

    /// The equivalent windows with the fewest rows: one row if the windows are the elements of x.
    pub(super) fn flattened(self) -> ConvWindowAxes {
        match self.is_identity() {
            true => ConvWindowAxes {
                sizes: [1, 1, self.plane()],
                out: [1, 1, self.count()],
                ..self
            },
            false => self,
        }
    }

    /// Windows of a row within `of` whose tap is inside x, and the index of the first element that
    /// they read.
    pub(crate) fn inside(&self, tap: usize, of: Range<usize>) -> (Range<usize>, usize) {
        let (stride, reach) = (self.stride[2], tap * self.dilation[2]);
        let before = self.pad[2].saturating_sub(reach).div_ceil(stride);
        let end = (self.sizes[2] + self.pad[2]).saturating_sub(reach);
        let start = before.clamp(of.start, of.end);
        let end = end.div_ceil(stride).clamp(start, of.end);
        let first = (start * stride + reach).saturating_sub(self.pad[2]);
        (start..end, first)
    }

    /// Row of a channel that a tap reads for the windows of row `row`; `None` for padding.
    pub(crate) fn row<'a, T>(
        &self,
        plane: &'a [T],
        row: usize,
        tap: [usize; 3],
    ) -> Option<&'a [T]> {
        let at =
            |axis: usize, out: usize| out * self.stride[axis] + tap[axis] * self.dilation[axis];
        let (d, h) = (row / self.out[1], row % self.out[1]);
        self.row_at(plane, at(0, d), at(1, h))
    }

    /// Row of a channel at padded coordinates; `None` for padding.
    #[inline(always)]
    pub(super) fn row_at<'a, T>(&self, plane: &'a [T], d: usize, h: usize) -> Option<&'a [T]> {
        let inside = |axis: usize, at: usize| {
            at.checked_sub(self.pad[axis])
                .filter(|at| *at < self.sizes[axis])
        };
        let (d, h) = (inside(0, d)?, inside(1, h)?);
        let width = self.sizes[2];
        plane.get((d * self.sizes[1] + h) * width..)?.get(..width)
    }

    /// Gathers the elements of a channel that a tap reads for `windows`, which may span several
    /// rows. Padding gives zeros.
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
