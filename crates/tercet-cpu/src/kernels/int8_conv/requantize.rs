//! Requantization of I32 sums to bytes.

use super::Requantize;

/// Requantization parameters of one channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequantizeChannel {
    scale: f32,
    bias: f32,
    /// Bounds before the zero point is added.
    lo: f32,
    hi: f32,
    zero: i32,
}

impl RequantizeChannel {
    pub(super) fn new(finish: &Requantize<'_>, channel: usize) -> RequantizeChannel {
        RequantizeChannel {
            scale: finish.scale[channel],
            bias: finish.bias[channel],
            lo: (finish.lo - finish.zero) as f32,
            hi: (finish.hi - finish.zero) as f32,
            zero: finish.zero,
        }
    }

    /// Requantizes a sum.
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

    use super::{Requantize, RequantizeChannel};

    /// A [`RequantizeChannel`] in vectors. Signed values are offset to unsigned until the last step.
    #[derive(Clone, Copy)]
    pub(in super::super) struct RequantizeVectors {
        scale: __m256,
        bias: __m256,
        hi: __m256,
        zero: __m256i,
        lo: __m128i,
        flip: __m128i,
    }

    impl RequantizeVectors {
        /// # Safety
        /// The machine has AVX2.
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn new(channel: &RequantizeChannel) -> RequantizeVectors {
            let lo = channel.lo as i32 + channel.zero;
            RequantizeVectors {
                scale: _mm256_set1_ps(channel.scale),
                bias: _mm256_set1_ps(channel.bias),
                ..RequantizeVectors::bounds(lo, channel.hi, channel.zero)
            }
        }

        /// Parameters for several channels; [`RequantizeVectors::set_channel`] selects the channel.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn from_requantize(
            finish: &Requantize<'_>,
        ) -> RequantizeVectors {
            RequantizeVectors::bounds(finish.lo, (finish.hi - finish.zero) as f32, finish.zero)
        }

        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn bounds(lo: i32, hi: f32, zero: i32) -> RequantizeVectors {
            let least = if lo < 0 { 128 } else { 0 };
            RequantizeVectors {
                scale: _mm256_set1_ps(1.0),
                bias: _mm256_set1_ps(0.0),
                hi: _mm256_set1_ps(hi),
                zero: _mm256_set1_epi16((zero + least) as i16),
                lo: _mm_set1_epi8((lo + least) as i8),
                flip: _mm_set1_epi8(least as i8),
            }
        }

        /// The same parameters with another scale and bias.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn with(&self, scale: f32, bias: f32) -> RequantizeVectors {
            RequantizeVectors {
                scale: _mm256_set1_ps(scale),
                bias: _mm256_set1_ps(bias),
                ..*self
            }
        }

        /// Selects a channel.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn set_channel(
            &mut self,
            finish: &Requantize<'_>,
            channel: usize,
        ) {
            self.scale = _mm256_set1_ps(finish.scale[channel]);
            self.bias = _mm256_set1_ps(finish.bias[channel]);
        }

        /// Scales the sums, adds the bias, limits them to the maximum and rounds. Values below the
        /// I32 range and NaN become `i32::MIN`.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn rounded(&self, sums: __m256i) -> __m256i {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), self.scale);
            let moved = _mm256_add_ps(scaled, self.bias);
            // `minps` returns its second operand if one operand is NaN.
            _mm256_cvtps_epi32(_mm256_min_ps(self.hi, moved))
        }

        /// Requantizes 16 sums to 16 bits. `low` contains elements 0 to 3 and 8 to 11, `high` the
        /// others. Packing to 16 bits and adding the zero point saturate, so values below the
        /// minimum become the minimum.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn words(&self, low: __m256i, high: __m256i) -> __m256i {
            let words = _mm256_packs_epi32(self.rounded(low), self.rounded(high));
            _mm256_adds_epi16(words, self.zero)
        }

        /// Bytes of two rows of [`RequantizeVectors::words`].
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

        /// Bytes of 16 sums, in the order of [`RequantizeVectors::words`].
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
