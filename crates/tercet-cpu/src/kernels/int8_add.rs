//! Quantized addition (QLinearAdd): dequantizes two byte arrays, adds them and requantizes, 32
//! elements at once in registers.

use super::simd::{SimdLevel, SimdLevelKind};

/// One step of the epilogue: an operation on the sum in F32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Int8AddEpilogue {
    /// Adds a constant.
    Add(f32),
    /// Multiplies by a constant.
    Mul(f32),
    /// Divides by a constant.
    Div(f32),
    /// Maximum with a constant.
    Max(f32),
    /// Minimum with a constant.
    Min(f32),
    /// Rounds to the nearest integer, half to even.
    Round,
}

/// Quantized addition: the sum of two bytes, each dequantized as `(code - zero) scale`, followed by
/// an epilogue.
#[derive(Clone, Debug)]
pub struct Int8Add {
    /// True if the operands are I8, false for U8.
    pub signed: bool,
    /// Zero point and scale of each operand.
    pub operands: [[f32; 2]; 2],
    /// Epilogue actions in order. The final value must be an integer in the range of the result's
    /// type.
    pub actions: Vec<Int8AddEpilogue>,
    /// True if the result is I8, false for U8.
    pub signed_result: bool,
}

impl Int8Add {
    fn number(&self, i: usize, byte: u8) -> f32 {
        let code = match self.signed {
            true => f32::from(byte as i8),
            false => f32::from(byte),
        };
        (code - self.operands[i][0]) * self.operands[i][1]
    }

    fn byte(&self, a: u8, b: u8) -> u8 {
        let mut x = self.number(0, a) + self.number(1, b);
        for action in &self.actions {
            x = match *action {
                Int8AddEpilogue::Add(c) => x + c,
                Int8AddEpilogue::Mul(c) => x * c,
                Int8AddEpilogue::Div(c) => x / c,
                Int8AddEpilogue::Max(c) => x.max(c),
                Int8AddEpilogue::Min(c) => x.min(c),
                Int8AddEpilogue::Round => x.round_ties_even(),
            };
        }
        x as i32 as u8
    }
}

/// Computes `y[i]` from `a[i]` and `b[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn int8_add(level: SimdLevel, of: &Int8Add, a: &[u8], b: &[u8], y: &mut [u8]) {
    assert!(a.len() == y.len() && b.len() == y.len());
    let done = match level.kind {
        SimdLevelKind::Portable => 0,
        // The compiler vectorizes the plain code.
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => 0,
        #[cfg(target_arch = "x86_64")]
        _ => {
            // SAFETY: the level has AVX2; lengths are equal.
            unsafe { avx2::sums(of, a, b, y) };
            y.len() / 32 * 32
        }
    };
    let rest = y[done..].iter_mut().zip(&a[done..]).zip(&b[done..]);
    rest.for_each(|((y, a), b)| *y = of.byte(*a, *b));
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_loadl_epi64, _mm256_add_ps,
        _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtps_epi32,
        _mm256_div_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_packs_epi16,
        _mm256_packs_epi32, _mm256_packus_epi16, _mm256_permutevar8x32_epi32, _mm256_round_ps,
        _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_storeu_si256, _mm256_sub_ps,
    };

    use super::{Int8Add, Int8AddEpilogue};

    #[inline(always)]
    unsafe fn numbers<const SIGNED: bool>(from: *const u8, zero: __m256, scale: __m256) -> __m256 {
        let bytes = _mm_loadl_epi64(from.cast());
        let codes = match SIGNED {
            true => _mm256_cvtepi8_epi32(bytes),
            false => _mm256_cvtepu8_epi32(bytes),
        };
        _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(codes), zero), scale)
    }

    /// Processes all elements except the last `len % 32`.
    ///
    /// # Safety
    /// The machine has AVX2, and lengths are equal.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sums(of: &Int8Add, a: &[u8], b: &[u8], y: &mut [u8]) {
        match of.signed {
            true => typed::<true>(of, a, b, y),
            false => typed::<false>(of, a, b, y),
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn typed<const SIGNED: bool>(of: &Int8Add, a: &[u8], b: &[u8], y: &mut [u8]) {
        let [[zero_a, scale_a], [zero_b, scale_b]] = of.operands;
        let (zero_a, scale_a) = (_mm256_set1_ps(zero_a), _mm256_set1_ps(scale_a));
        let (zero_b, scale_b) = (_mm256_set1_ps(zero_b), _mm256_set1_ps(scale_b));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        for at in (0..y.len() / 32 * 32).step_by(32) {
            let (a, b) = (a.as_ptr().add(at), b.as_ptr().add(at));
            let mut x = [_mm256_setzero_ps(); 4];
            for (i, x) in x.iter_mut().enumerate() {
                let first = numbers::<SIGNED>(a.add(8 * i), zero_a, scale_a);
                let second = numbers::<SIGNED>(b.add(8 * i), zero_b, scale_b);
                *x = _mm256_add_ps(first, second);
            }
            for action in &of.actions {
                x = apply(*action, x);
            }
            let [c, d, e, f] = x;
            let low = _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
            let high = _mm256_packs_epi32(_mm256_cvtps_epi32(e), _mm256_cvtps_epi32(f));
            let bytes = match of.signed_result {
                true => _mm256_packs_epi16(low, high),
                false => _mm256_packus_epi16(low, high),
            };
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(y.as_mut_ptr().add(at).cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn apply(action: Int8AddEpilogue, [a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
        macro_rules! each {
            ($f:ident, $by:expr) => {{
                let by = _mm256_set1_ps($by);
                [$f(a, by), $f(b, by), $f(c, by), $f(d, by)]
            }};
        }
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        match action {
            Int8AddEpilogue::Add(by) => each!(_mm256_add_ps, by),
            Int8AddEpilogue::Mul(by) => each!(_mm256_mul_ps, by),
            Int8AddEpilogue::Div(by) => each!(_mm256_div_ps, by),
            Int8AddEpilogue::Max(by) => each!(_mm256_max_ps, by),
            Int8AddEpilogue::Min(by) => each!(_mm256_min_ps, by),
            Int8AddEpilogue::Round => [
                _mm256_round_ps::<NEAREST>(a),
                _mm256_round_ps::<NEAREST>(b),
                _mm256_round_ps::<NEAREST>(c),
                _mm256_round_ps::<NEAREST>(d),
            ],
        }
    }
}
