//! The rows of some channels of x that some windows read.
//!
//! A row lies in as many phases as the stride: phase `p` has the elements `p`, `p + stride`, .. of the padded row, so that what one
//! tap reads for neighbouring windows lies side by side.

use super::super::conv::Windows;
#[cfg(target_arch = "x86_64")]
use super::Codes;

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

    /// Whether rows lie in one phase or two: [`Slab::fill_words`] takes no more.
    pub(super) fn is_narrow(&self) -> bool {
        self.stride <= 2
    }

    /// As [`Slab::fill`] with codes less their zero point. `from` may go on behind the channel; what follows the slab in `to`
    /// is written, too.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If `to` ends less than [`SLACK`] elements behind the slab.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn fill_words(&self, w: &Windows, from: &[u8], codes: Codes, to: &mut [i16]) {
        assert!(self.is_narrow() && to.len() >= self.channel() + SLACK);
        to[..self.channel()].fill(0);
        let (width, before) = (w.sizes[2], w.pad[2]);
        for i in 0..self.rows {
            let row = (self.first + i).checked_sub(w.pad[1]);
            let Some(row) = row.filter(|row| *row < w.sizes[1]) else {
                continue;
            };
            let from = &from[row * width..];
            // Phases in their order: what is too much of one is overwritten by the next.
            for p in 0..self.stride {
                let start = before.saturating_sub(p).div_ceil(self.stride);
                let end = (width + before).saturating_sub(p).div_ceil(self.stride);
                let start = start.min(self.phase);
                let count = end.clamp(start, self.phase) - start;
                if count == 0 {
                    continue;
                }
                let from = &from[p + start * self.stride - before..];
                let to = &mut to[i * self.row() + p * self.phase + start..];
                avx2::words(from, self.stride == 2, count, codes, to);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_set1_epi8, _mm_xor_si128, _mm256_and_si256,
        _mm256_cmpgt_epi16, _mm256_cvtepu8_epi16, _mm256_loadu_si256, _mm256_set1_epi8,
        _mm256_set1_epi16, _mm256_setr_epi16, _mm256_storeu_si256, _mm256_sub_epi16,
        _mm256_xor_si256,
    };

    use super::Codes;

    /// 16 bytes, zeros behind the end.
    #[inline(always)]
    unsafe fn sixteen(from: &[u8], at: usize) -> __m128i {
        if let Some(bytes) = from.get(at..at + 16) {
            return _mm_loadu_si128(bytes.as_ptr().cast());
        }
        let mut bytes = [0u8; 16];
        let rest = from.get(at..).unwrap_or_default();
        bytes[..rest.len()].copy_from_slice(rest);
        _mm_loadu_si128(bytes.as_ptr().cast())
    }

    /// 32 bytes, zeros behind the end.
    #[inline(always)]
    unsafe fn thirty_two(from: &[u8], at: usize) -> __m256i {
        if let Some(bytes) = from.get(at..at + 32) {
            return _mm256_loadu_si256(bytes.as_ptr().cast());
        }
        let mut bytes = [0u8; 32];
        let rest = from.get(at..).unwrap_or_default();
        bytes[..rest.len()].copy_from_slice(rest);
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }

    /// `count` codes, or every second one of twice as many, less their zero point; zeros behind them, to a whole vector.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn words(
        from: &[u8],
        second: bool,
        count: usize,
        codes: Codes,
        to: &mut [i16],
    ) {
        assert!(to.len() >= count.next_multiple_of(16));
        let (flip, low) = (codes.flip() as i8, _mm256_set1_epi16(0xff));
        let zero = _mm256_set1_epi16(codes.flipped_zero());
        let order = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for at in (0..count).step_by(16) {
            let wide = match second {
                false => {
                    let bytes = _mm_xor_si128(sixteen(from, at), _mm_set1_epi8(flip));
                    _mm256_cvtepu8_epi16(bytes)
                }
                true => {
                    let bytes = _mm256_xor_si256(thirty_two(from, 2 * at), _mm256_set1_epi8(flip));
                    _mm256_and_si256(bytes, low)
                }
            };
            let mut values = _mm256_sub_epi16(wide, zero);
            if count - at < 16 {
                let inside = _mm256_cmpgt_epi16(_mm256_set1_epi16((count - at) as i16), order);
                values = _mm256_and_si256(values, inside);
            }
            _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), values);
        }
    }
}
