//! Slab: a copy of the rows of x that some windows of some channels read.
//!
//! A row is stored in phases, one per stride position. Phase `p` contains the elements `p`, `p +
//! stride`, ... of the padded row. So the elements that one tap reads for adjacent windows are
//! contiguous.

use super::super::conv::ConvWindowAxes;
#[cfg(target_arch = "x86_64")]
use super::Int8Encoding;

/// Elements after the last row that vectors may read.
pub(super) const SLACK: usize = 32;

/// Layout of a slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Int8Slab {
    /// First row, in padded coordinates.
    first: usize,
    /// Rows per channel.
    rows: usize,
    /// Number of elements of one phase of a row.
    phase: usize,
    stride: usize,
}

impl Int8Slab {
    /// Slab for the window rows `first..end`.
    pub(super) fn new(w: &ConvWindowAxes, first: usize, end: usize) -> Int8Slab {
        let reach = |axis: usize| (w.kernel[axis].max(1) - 1) * w.dilation[axis];
        let width = (w.out[2].max(1) - 1) * w.stride[2] + reach(2) + 1;
        Int8Slab {
            first: first * w.stride[1],
            rows: (end.max(first + 1) - first - 1) * w.stride[1] + reach(1) + 1,
            phase: width.div_ceil(w.stride[2]),
            stride: w.stride[2],
        }
    }

    /// Elements per row.
    pub(super) fn row(&self) -> usize {
        self.phase * self.stride
    }

    /// Elements per channel.
    pub(super) fn channel(&self) -> usize {
        self.rows * self.row()
    }

    /// Offset of window `(row, 0)`.
    pub(super) fn window_row(&self, w: &ConvWindowAxes, row: usize) -> usize {
        (row * w.stride[1] - self.first) * self.row()
    }

    /// Offset of a tap from the start of its window.
    pub(super) fn tap(&self, w: &ConvWindowAxes, ty: usize, tx: usize) -> usize {
        let x = tx * w.dilation[2];
        ty * w.dilation[1] * self.row() + x % self.stride * self.phase + x / self.stride
    }

    /// Writes the rows of one channel. `pad` is the padding value; `f` converts an element.
    #[inline(always)]
    pub(super) fn fill<T: Copy>(
        &self,
        w: &ConvWindowAxes,
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

    /// True if rows have at most two phases, as [`Int8Slab::fill_words`] requires.
    pub(super) fn is_narrow(&self) -> bool {
        self.stride <= 2
    }

    /// Like [`Int8Slab::fill`] for unchanged bytes and stride 2. Other data may follow the channel in
    /// `from`.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn fill_stride2(
        &self,
        w: &ConvWindowAxes,
        from: &[u8],
        pad: u8,
        to: &mut [u8],
    ) {
        assert!(self.stride == 2);
        to[..self.channel()].fill(pad);
        let (width, before) = (w.sizes[2], w.pad[2]);
        for i in 0..self.rows {
            let row = (self.first + i).checked_sub(w.pad[1]);
            let Some(row) = row.filter(|row| *row < w.sizes[1]) else {
                continue;
            };
            let (at, count) = self.places(width, before);
            let to = &mut to[i * self.row()..][..self.row()];
            avx2::deinterleave_bytes(&from[row * width..], count, at, to);
        }
    }

    /// Offsets and counts of the elements at even and at odd positions of a row without its
    /// padding.
    #[cfg(target_arch = "x86_64")]
    fn places(&self, width: usize, before: usize) -> ([usize; 2], [usize; 2]) {
        let at = [before, before + 1].map(|q| (q % 2 * self.phase, (q / 2).min(self.phase)));
        let of = [width.div_ceil(2), width / 2];
        let count = [0, 1].map(|half| of[half].min(self.phase - at[half].1));
        (at.map(|(phase, start)| phase + start), count)
    }

    /// Like [`Int8Slab::fill`] for values minus their zero point. Other data may follow the channel in
    /// `from`; elements after the slab in `to` are overwritten.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If `to` ends less than [`SLACK`] elements after the slab.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn fill_words(
        &self,
        w: &ConvWindowAxes,
        from: &[u8],
        codes: Int8Encoding,
        to: &mut [i16],
    ) {
        assert!(self.is_narrow() && to.len() >= self.channel() + SLACK);
        to[..self.channel()].fill(0);
        let (width, before) = (w.sizes[2], w.pad[2]);
        for i in 0..self.rows {
            let row = (self.first + i).checked_sub(w.pad[1]);
            let Some(row) = row.filter(|row| *row < w.sizes[1]) else {
                continue;
            };
            let from = &from[row * width..];
            let to = &mut to[i * self.row()..];
            if self.stride == 1 {
                let start = before.min(self.phase);
                let count = width.min(self.phase - start);
                avx2::words(from, count, codes, &mut to[start..]);
                continue;
            }
            let (at, count) = self.places(width, before);
            avx2::deinterleave(from, count, codes, at, to);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_set1_epi8, _mm_xor_si128, _mm256_and_si256,
        _mm256_cmpgt_epi16, _mm256_cvtepu8_epi16, _mm256_loadu_si256, _mm256_packus_epi16,
        _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setr_epi16,
        _mm256_srli_epi16, _mm256_storeu_si256, _mm256_sub_epi16, _mm256_xor_si256,
    };

    use super::Int8Encoding;

    /// Loads 16 bytes; zeros past the end.
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

    /// Loads 32 bytes; zeros past the end.
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

    /// Subtracts the zero point; elements from index `count` on become zero.
    #[inline(always)]
    unsafe fn less(wide: __m256i, zero: __m256i, count: usize) -> __m256i {
        let values = _mm256_sub_epi16(wide, zero);
        if count >= 16 {
            return values;
        }
        let order = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let inside = _mm256_cmpgt_epi16(_mm256_set1_epi16(count as i16), order);
        _mm256_and_si256(values, inside)
    }

    /// Converts `count` bytes to values minus their zero point, followed by zeros up to a whole
    /// vector.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn words(from: &[u8], count: usize, codes: Int8Encoding, to: &mut [i16]) {
        assert!(to.len() >= count.next_multiple_of(16));
        let flip = _mm_set1_epi8(codes.flip() as i8);
        let zero = _mm256_set1_epi16(codes.flipped_zero());
        for at in (0..count).step_by(16) {
            let wide = _mm256_cvtepu8_epi16(_mm_xor_si128(sixteen(from, at), flip));
            let values = less(wide, zero, count - at);
            _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), values);
        }
    }

    /// Copies the bytes at even positions, `count[0]` of them, to `to[at[0]..]`, and those at odd
    /// positions to `to[at[1]..]`.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn deinterleave_bytes(
        from: &[u8],
        count: [usize; 2],
        at: [usize; 2],
        to: &mut [u8],
    ) {
        let low = _mm256_set1_epi16(0xff);
        for i in (0..count[0].max(count[1])).step_by(16) {
            let bytes = thirty_two(from, 2 * i);
            let (even, odd) = (_mm256_and_si256(bytes, low), _mm256_srli_epi16::<8>(bytes));
            // `packus` works within 128-bit halves, so the quarters are reordered.
            let both = _mm256_permute4x64_epi64::<0b1101_1000>(_mm256_packus_epi16(even, odd));
            let mut all = [[0u8; 16]; 2];
            _mm256_storeu_si256(all.as_mut_ptr().cast(), both);
            for half in 0..2 {
                let left = count[half].saturating_sub(i).min(16);
                let to = &mut to[at[half] + i.min(count[half])..];
                match to.first_chunk_mut::<16>() {
                    Some(to) if left == 16 => *to = all[half],
                    _ => to[..left].copy_from_slice(&all[half][..left]),
                }
            }
        }
    }

    /// Copies the values at even positions minus their zero point, `count[0]` of them, to
    /// `to[at[0]..]`. The values at odd positions go to `to[at[1]..]`.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn deinterleave(
        from: &[u8],
        count: [usize; 2],
        codes: Int8Encoding,
        at: [usize; 2],
        to: &mut [i16],
    ) {
        let (flip, low) = (
            _mm256_set1_epi8(codes.flip() as i8),
            _mm256_set1_epi16(0xff),
        );
        let zero = _mm256_set1_epi16(codes.flipped_zero());
        for i in (0..count[0].max(count[1])).step_by(16) {
            let bytes = _mm256_xor_si256(thirty_two(from, 2 * i), flip);
            let wide = [_mm256_and_si256(bytes, low), _mm256_srli_epi16::<8>(bytes)];
            for half in 0..2 {
                let left = count[half].saturating_sub(i);
                let values = _mm256_sub_epi16(wide[half], zero);
                let to = &mut to[at[half] + i.min(count[half])..];
                if left >= 16 {
                    assert!(to.len() >= 16);
                    _mm256_storeu_si256(to.as_mut_ptr().cast(), values);
                    continue;
                }
                // The odd phase follows without a gap, so of the last vector only the existing
                // values are stored.
                let mut all = [0i16; 16];
                _mm256_storeu_si256(all.as_mut_ptr().cast(), values);
                to[..left].copy_from_slice(&all[..left]);
            }
        }
    }
}
