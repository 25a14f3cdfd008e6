//! Sums as bytes.

use super::Finish;

/// What one channel's sums are finished with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    scale: f32,
    bias: f32,
    /// Bounds before the zero point is added.
    lo: f32,
    hi: f32,
    zero: i32,
}

impl Channel {
    pub(super) fn new(finish: &Finish<'_>, channel: usize) -> Channel {
        Channel {
            scale: finish.scale[channel],
            bias: finish.bias[channel],
            lo: (finish.lo - finish.zero) as f32,
            hi: (finish.hi - finish.zero) as f32,
            zero: finish.zero,
        }
    }

    /// The byte of a sum.
    #[inline(always)]
    pub(super) fn byte(&self, sum: i32) -> u8 {
        let scaled = (sum as f32 * self.scale + self.bias)
            .max(self.lo)
            .min(self.hi);
        (scaled.round_ties_even() as i32 + self.zero) as u8
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256, __m256i, _mm_max_epu8, _mm_packus_epi16, _mm_set1_epi8, _mm_xor_si128,
        _mm256_add_ps, _mm256_adds_epi16, _mm256_broadcastsi128_si256, _mm256_castsi256_si128,
        _mm256_cvtepi32_ps, _mm256_cvtps_epi32, _mm256_extracti128_si256, _mm256_max_epu8,
        _mm256_min_ps, _mm256_mul_ps, _mm256_packs_epi32, _mm256_packus_epi16,
        _mm256_permute4x64_epi64, _mm256_set1_epi16, _mm256_set1_ps, _mm256_xor_si256,
    };

    use super::{Channel, Finish};

    /// A [`Channel`] as vectors. Codes with a sign are counted from the least of all until they are bytes.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Vectors {
        scale: __m256,
        bias: __m256,
        hi: __m256,
        zero: __m256i,
        lo: __m128i,
        flip: __m128i,
    }

    impl Vectors {
        /// # Safety
        /// The machine has AVX2.
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn new(channel: &Channel) -> Vectors {
            let lo = channel.lo as i32 + channel.zero;
            Vectors {
                scale: _mm256_set1_ps(channel.scale),
                bias: _mm256_set1_ps(channel.bias),
                ..Vectors::bounds(lo, channel.hi, channel.zero)
            }
        }

        /// Those of channels in turns: see [`Vectors::turn`].
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn of(finish: &Finish<'_>) -> Vectors {
            Vectors::bounds(finish.lo, (finish.hi - finish.zero) as f32, finish.zero)
        }

        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn bounds(lo: i32, hi: f32, zero: i32) -> Vectors {
            let least = if lo < 0 { 128 } else { 0 };
            Vectors {
                scale: _mm256_set1_ps(1.0),
                bias: _mm256_set1_ps(0.0),
                hi: _mm256_set1_ps(hi),
                zero: _mm256_set1_epi16((zero + least) as i16),
                lo: _mm_set1_epi8((lo + least) as i8),
                flip: _mm_set1_epi8(least as i8),
            }
        }

        /// Those of a channel of this scale and bias.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn with(&self, scale: f32, bias: f32) -> Vectors {
            Vectors {
                scale: _mm256_set1_ps(scale),
                bias: _mm256_set1_ps(bias),
                ..*self
            }
        }

        /// Goes on to a channel.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn turn(&mut self, finish: &Finish<'_>, channel: usize) {
            self.scale = _mm256_set1_ps(finish.scale[channel]);
            self.bias = _mm256_set1_ps(finish.bias[channel]);
        }

        /// Numbers that are rounded, bounded above. What is far below or none becomes the least integer.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn rounded(&self, sums: __m256i) -> __m256i {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), self.scale);
            let moved = _mm256_add_ps(scaled, self.bias);
            // Of a number and none, the second operand is taken.
            _mm256_cvtps_epi32(_mm256_min_ps(self.hi, moved))
        }

        /// What 16 sums become in 16 bits, of which `low` has numbers 0 to 3 and 8 to 11, `high` the others. Both steps saturate:
        /// what is below the least code becomes that.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn words(&self, low: __m256i, high: __m256i) -> __m256i {
            let words = _mm256_packs_epi32(self.rounded(low), self.rounded(high));
            _mm256_adds_epi16(words, self.zero)
        }

        /// The bytes of two rows of [`Vectors::words`].
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn rows(&self, words: [__m256i; 2]) -> [__m128i; 2] {
            let bytes = _mm256_packus_epi16(words[0], words[1]);
            let (lo, flip) = (
                _mm256_broadcastsi128_si256(self.lo),
                _mm256_broadcastsi128_si256(self.flip),
            );
            let bytes = _mm256_xor_si256(_mm256_max_epu8(bytes, lo), flip);
            let rows = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
            [
                _mm256_castsi256_si128(rows),
                _mm256_extracti128_si256::<1>(rows),
            ]
        }

        /// The bytes of 16 sums, in the order of [`Vectors::words`].
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn bytes(&self, low: __m256i, high: __m256i) -> __m128i {
            let codes = self.words(low, high);
            let bytes = _mm_packus_epi16(
                _mm256_castsi256_si128(codes),
                _mm256_extracti128_si256::<1>(codes),
            );
            _mm_xor_si128(_mm_max_epu8(bytes, self.lo), self.flip)
        }
    }
}
