//! Rows of two channels of x as words: one element of each channel per word, minus the zero point.

use super::super::conv::ConvWindowAxes;
use super::Int8Encoding;

/// Words past the end of a row that vectors may read or write.
pub(super) const SLACK: usize = 24;

/// The part of a padded row that some windows read: positions `begin..begin + count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaddedRowPart {
    /// First position.
    pub(super) begin: usize,
    /// Number of positions.
    pub(super) count: usize,
    /// Stride, 1 or 2. With stride 2, words at even positions (relative to the first) are stored
    /// before those at odd positions.
    pub(super) stride: usize,
    /// Words per phase (all positions, or with stride 2 the even or odd ones), including at least
    /// [`SLACK`] surplus words.
    pub(super) phase: usize,
}

/// Row `at` of x (in padded coordinates) of channel `2 p` and of the next channel, if it exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelPairRow<'a> {
    /// Channels of a batch entry; other data may follow.
    pub(super) x: &'a [u8],
    pub(super) channels: usize,
    pub(super) windows: &'a ConvWindowAxes,
    pub(super) codes: Int8Encoding,
}

impl ChannelPairRow<'_> {
    /// Writes the words of a part of row `at` of pair `p`.
    ///
    /// # Safety
    /// The machine has AVX2.
    pub(super) unsafe fn write(&self, p: usize, at: usize, part: PaddedRowPart, to: &mut [i32]) {
        let w = self.windows;
        let to = &mut to[..part.stride * part.phase];
        let Some(row) = at.checked_sub(w.pad[1]).filter(|row| *row < w.sizes[1]) else {
            return to.fill(0);
        };
        let (width, pad) = (w.sizes[2], w.pad[2]);
        // First position that is not padding, and its element.
        let place = pad.saturating_sub(part.begin);
        let first = (part.begin + place - pad).min(width);
        let place = place.min(part.count);
        let count = (width - first).min(part.count - place);
        let end = place + count;
        let of = |c: usize| &self.x[c * w.plane() + row * width + first..];
        let (low, high) = (of(2 * p), 2 * p + 1 < self.channels);
        let high = high.then(|| of(2 * p + 1));
        let codes = (self.codes.flip(), self.codes.flipped_zero());
        if part.stride == 1 {
            to[..place].fill(0);
            avx2::row(low, high, count, codes, &mut to[place..]);
            return to[end..].fill(0);
        }
        let (even, odd) = to.split_at_mut(part.phase);
        even[..place.div_ceil(2)].fill(0);
        odd[..place / 2].fill(0);
        let halves = match place % 2 {
            0 => [&mut even[place / 2..], &mut odd[place / 2..]],
            _ => [&mut odd[place / 2..], &mut even[place / 2 + 1..]],
        };
        avx2::deinterleave(low, high, count, codes, halves);
        even[end.div_ceil(2)..].fill(0);
        odd[end / 2..].fill(0);
    }
}

pub(super) use avx2::panels;

mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_set1_epi8, _mm_xor_si128, _mm256_blend_epi16,
        _mm256_cvtepu8_epi16, _mm256_permute2x128_si256, _mm256_set1_epi16, _mm256_setzero_si256,
        _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_sub_epi16,
        _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
    };

    /// Loads 16 bytes of a row from `at` on; zeros past its end.
    #[inline(always)]
    unsafe fn load(row: &[u8], at: usize) -> __m128i {
        if let Some(bytes) = row.get(at..at + 16) {
            return _mm_loadu_si128(bytes.as_ptr().cast());
        }
        let mut bytes = [0u8; 16];
        let rest = row.get(at..).unwrap_or_default();
        bytes[..rest.len()].copy_from_slice(rest);
        _mm_loadu_si128(bytes.as_ptr().cast())
    }

    /// Loads 16 values of both channels minus their zero point.
    #[inline(always)]
    unsafe fn both(
        low: &[u8],
        high: Option<&[u8]>,
        at: usize,
        flip: __m128i,
        zero: __m256i,
    ) -> [__m256i; 2] {
        let a = _mm256_cvtepu8_epi16(_mm_xor_si128(load(low, at), flip));
        let b = match high {
            Some(high) => {
                let b = _mm256_cvtepu8_epi16(_mm_xor_si128(load(high, at), flip));
                _mm256_sub_epi16(b, zero)
            }
            None => _mm256_setzero_si256(),
        };
        [_mm256_sub_epi16(a, zero), b]
    }

    /// Converts `count` elements of two channels to words.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If there is no room for 16 words more.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn row(
        low: &[u8],
        high: Option<&[u8]>,
        count: usize,
        (flip, zero): (u8, i16),
        to: &mut [i32],
    ) {
        assert!(to.len() >= count.next_multiple_of(16));
        let (flip, zero) = (_mm_set1_epi8(flip as i8), _mm256_set1_epi16(zero));
        for at in (0..count).step_by(16) {
            let [a, b] = both(low, high, at, flip, zero);
            // Unpacking works in 128-bit halves: `first` has elements 0 to 3 and 8 to 11, `last`
            // the others.
            let (first, last) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            let to = to.as_mut_ptr().add(at);
            let words = _mm256_permute2x128_si256::<0x20>(first, last);
            _mm256_storeu_si256(to.cast(), words);
            let words = _mm256_permute2x128_si256::<0x31>(first, last);
            _mm256_storeu_si256(to.add(8).cast(), words);
        }
    }

    /// Like [`row`], but writes groups of 16 words; the starts of two groups are `apart` words
    /// apart.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If the target has no room for all groups.
    #[target_feature(enable = "avx2")]
    pub(in super::super) unsafe fn panels(
        low: &[u8],
        high: Option<&[u8]>,
        count: usize,
        (flip, zero): (u8, i16),
        to: &mut [i32],
        apart: usize,
    ) {
        assert!(to.len() >= count.div_ceil(16).saturating_sub(1) * apart + 16);
        let (flip, zero) = (_mm_set1_epi8(flip as i8), _mm256_set1_epi16(zero));
        for i in 0..count.div_ceil(16) {
            let [a, b] = both(low, high, 16 * i, flip, zero);
            let (first, last) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            let to = to.as_mut_ptr().add(i * apart);
            let words = _mm256_permute2x128_si256::<0x20>(first, last);
            _mm256_storeu_si256(to.cast(), words);
            let words = _mm256_permute2x128_si256::<0x31>(first, last);
            _mm256_storeu_si256(to.add(8).cast(), words);
        }
    }

    /// Converts `count` elements of two channels to words: those at even positions, then those at
    /// odd positions.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If the target of the even or of the odd positions has less than 8 words of room after its
    /// words.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn deinterleave(
        low: &[u8],
        high: Option<&[u8]>,
        count: usize,
        (flip, zero): (u8, i16),
        [even, odd]: [&mut [i32]; 2],
    ) {
        assert!(even.len().min(odd.len()) >= count.div_ceil(2) + 8);
        let (flip, zero) = (_mm_set1_epi8(flip as i8), _mm256_set1_epi16(zero));
        for at in (0..count).step_by(16) {
            let [a, b] = both(low, high, at, flip, zero);
            let first = _mm256_blend_epi16::<0xaa>(a, _mm256_slli_epi32::<16>(b));
            let second = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(a), b);
            _mm256_storeu_si256(even.as_mut_ptr().add(at / 2).cast(), first);
            _mm256_storeu_si256(odd.as_mut_ptr().add(at / 2).cast(), second);
        }
    }
}
