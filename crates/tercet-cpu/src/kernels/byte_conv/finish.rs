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
        __m128i, __m256, __m256i, _mm_packus_epi16, _mm256_add_epi32, _mm256_add_ps,
        _mm256_and_si256, _mm256_castsi256_si128, _mm256_cvtepi32_ps, _mm256_cvtps_epi32,
        _mm256_extracti128_si256, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_packs_epi32,
        _mm256_set1_epi32, _mm256_set1_ps,
    };

    use super::{Channel, Finish};

    /// A [`Channel`] as vectors.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Vectors {
        scale: __m256,
        bias: __m256,
        lo: __m256,
        hi: __m256,
        zero: __m256i,
    }

    impl Vectors {
        /// # Safety
        /// The machine has AVX2.
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn new(channel: &Channel) -> Vectors {
            Vectors {
                scale: _mm256_set1_ps(channel.scale),
                bias: _mm256_set1_ps(channel.bias),
                lo: _mm256_set1_ps(channel.lo),
                hi: _mm256_set1_ps(channel.hi),
                zero: _mm256_set1_epi32(channel.zero),
            }
        }

        /// Those of channels in turns: see [`Vectors::turn`].
        ///
        /// # Safety
        /// The machine has AVX2.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn of(finish: &Finish<'_>) -> Vectors {
            Vectors {
                scale: _mm256_set1_ps(1.0),
                bias: _mm256_set1_ps(0.0),
                lo: _mm256_set1_ps((finish.lo - finish.zero) as f32),
                hi: _mm256_set1_ps((finish.hi - finish.zero) as f32),
                zero: _mm256_set1_epi32(finish.zero),
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

        /// Codes, their low bytes alone.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn codes(&self, sums: __m256i) -> __m256i {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), self.scale);
            let moved = _mm256_add_ps(scaled, self.bias);
            let bounded = _mm256_min_ps(_mm256_max_ps(moved, self.lo), self.hi);
            let codes = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), self.zero);
            _mm256_and_si256(codes, _mm256_set1_epi32(0xff))
        }

        /// The bytes of 16 sums, of which `low` has numbers 0 to 3 and 8 to 11, `high` the others.
        ///
        /// # Safety
        /// The machine has AVX2.
        #[target_feature(enable = "avx2")]
        pub(in super::super) unsafe fn bytes(&self, low: __m256i, high: __m256i) -> __m128i {
            let words = _mm256_packs_epi32(self.codes(low), self.codes(high));
            _mm_packus_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            )
        }
    }
}
