//! The vector levels and the small vector type that the hand-written kernels
//! share. `Simd` has one implementation per level; a kernel body is written
//! once, generic over it and `#[inline(always)]`, and instantiated under the
//! level's `#[target_feature]` by [`simd_dispatch`].

use std::sync::OnceLock;

/// A set of vector instructions that this machine is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimdLevel(pub(super) Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", tercet_avx512))]
    Avx512,
}

impl SimdLevel {
    /// The best level of this machine; detected once.
    #[must_use]
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// Plain code, vectorised by the compiler for the build's target.
    #[must_use]
    pub fn portable() -> Self {
        Self(Level::Portable)
    }

    /// Every level of this machine, best first.
    #[must_use]
    pub fn available() -> &'static [Self] {
        static LEVELS: OnceLock<Vec<SimdLevel>> = OnceLock::new();
        LEVELS.get_or_init(|| {
            let mut levels = Vec::new();
            #[cfg(target_arch = "x86_64")]
            {
                let avx2 = is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c");
                #[cfg(tercet_avx512)]
                if avx2
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    levels.push(Self(Level::Avx512));
                }
                if avx2 {
                    levels.push(Self(Level::Avx2));
                }
            }
            levels.push(Self(Level::Portable));
            levels
        })
    }

    /// A name for tables and error reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", tercet_avx512))]
            Level::Avx512 => "avx512",
        }
    }
}

/// One vector of `f32` lanes.
///
/// # Safety
/// Every function needs the instructions of its level; pointers must be valid
/// for the lanes that the name says (`n <= LANES` lanes for `*_n`).
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    const LANES: usize;
    /// Whether `mul_add` is one instruction.
    const FMA: bool;
    /// Rows of the register tile of a matrix product.
    const TILE_ROWS: usize;
    /// Vectors per row of that tile.
    const TILE_VECTORS: usize;
    type V: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    /// The first `n` lanes; the others are 0.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes, as a tree of halves.
    unsafe fn sum(v: Self::V) -> f32;
    /// `LANES` signed bytes as floats.
    unsafe fn from_i8(p: *const i8) -> Self::V;
    /// `LANES` halves as floats.
    unsafe fn from_f16(p: *const u16) -> Self::V;
    /// `LANES` bfloat16 values as floats.
    unsafe fn from_bf16(p: *const u16) -> Self::V;
    /// The low (`HIGH = false`) or high four bits of `LANES` bytes as floats.
    unsafe fn from_nibbles<const HIGH: bool>(p: *const u8) -> Self::V;
    /// Scalar `a * b + c` with the rounding of this level.
    #[inline(always)]
    fn fmaf(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
    /// As [`Self::fmaf`] in double precision.
    #[inline(always)]
    fn fmad(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
}

/// Eight lanes in plain code: SSE2 on x86-64, NEON on aarch64.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const P: usize = 8;

/// Applies `f` to each lane.
#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; P] {
    std::array::from_fn(f)
}

#[rustfmt::skip]
impl Simd for Portable {
    const LANES: usize = P;
    const FMA: bool = cfg!(target_arch = "aarch64");
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;
    type V = [f32; P];
    #[inline(always)] unsafe fn splat(x: f32) -> [f32; P] { [x; P] }
    #[inline(always)] unsafe fn load(p: *const f32) -> [f32; P] { p.cast::<[f32; P]>().read_unaligned() }
    #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> [f32; P] {
        let mut v = [0.0; P];
        std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(P));
        v
    }
    #[inline(always)] unsafe fn store(p: *mut f32, v: [f32; P]) { p.cast::<[f32; P]>().write_unaligned(v); }
    #[inline(always)] unsafe fn store_n(p: *mut f32, v: [f32; P], n: usize) {
        std::ptr::copy_nonoverlapping(v.as_ptr(), p, n.min(P));
    }
    #[inline(always)] unsafe fn add(a: [f32; P], b: [f32; P]) -> [f32; P] { lanes(|i| a[i] + b[i]) }
    #[inline(always)] unsafe fn mul(a: [f32; P], b: [f32; P]) -> [f32; P] { lanes(|i| a[i] * b[i]) }
    #[inline(always)] unsafe fn fma(a: [f32; P], b: [f32; P], c: [f32; P]) -> [f32; P] { lanes(|i| Self::fmaf(a[i], b[i], c[i])) }
    #[inline(always)] unsafe fn sum(v: [f32; P]) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)] unsafe fn from_i8(p: *const i8) -> [f32; P] { lanes(|i| f32::from(*p.add(i))) }
    #[inline(always)] unsafe fn from_f16(p: *const u16) -> [f32; P] { lanes(|i| super::convert::f16_bits_to_f32(p.add(i).read_unaligned())) }
    #[inline(always)] unsafe fn from_bf16(p: *const u16) -> [f32; P] { lanes(|i| f32::from_bits(u32::from(p.add(i).read_unaligned()) << 16)) }
    #[inline(always)] unsafe fn from_nibbles<const HIGH: bool>(p: *const u8) -> [f32; P] {
        lanes(|i| f32::from(if HIGH { *p.add(i) >> 4 } else { *p.add(i) & 15 }))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
pub(crate) use x86::Avx512;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// Eight lanes; needs AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// A lane mask for `maskload`: the first `n` lanes set.
    #[inline(always)]
    unsafe fn mask8(n: usize) -> __m256i {
        const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        _mm256_loadu_si256(BITS.as_ptr().add(8 - n.min(8)).cast())
    }

    impl Simd for Avx2 {
        const LANES: usize = 8;
        const FMA: bool = true;
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 2;
        type V = __m256;
        #[inline(always)] unsafe fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        #[inline(always)] unsafe fn load(p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
        #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> __m256 { _mm256_maskload_ps(p, mask8(n)) }
        #[inline(always)] unsafe fn store(p: *mut f32, v: __m256) { _mm256_storeu_ps(p, v) }
        #[inline(always)] unsafe fn store_n(p: *mut f32, v: __m256, n: usize) { _mm256_maskstore_ps(p, mask8(n), v) }
        #[inline(always)] unsafe fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        #[inline(always)] unsafe fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        #[inline(always)] unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        #[inline(always)] unsafe fn sum(v: __m256) -> f32 {
            let h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let q = _mm_add_ps(h, _mm_movehl_ps(h, h));
            _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps::<1>(q, q)))
        }
        #[inline(always)] unsafe fn from_i8(p: *const i8) -> __m256 { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
        #[inline(always)] unsafe fn from_f16(p: *const u16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        #[inline(always)] unsafe fn from_bf16(p: *const u16) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
        }
        #[inline(always)] unsafe fn from_nibbles<const HIGH: bool>(p: *const u8) -> __m256 {
            let b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            _mm256_cvtepi32_ps(if HIGH { _mm256_srli_epi32::<4>(b) } else { _mm256_and_si256(b, _mm256_set1_epi32(15)) })
        }
    }

    /// Sixteen lanes; needs AVX-512 F, BW, DQ and VL.
    #[cfg(tercet_avx512)]
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    #[cfg(tercet_avx512)]
    #[inline(always)]
    fn mask16(n: usize) -> __mmask16 { ((1u32 << n.min(16)) - 1) as __mmask16 }

    #[cfg(tercet_avx512)]
    impl Simd for Avx512 {
        const LANES: usize = 16;
        const FMA: bool = true;
        const TILE_ROWS: usize = 14;
        const TILE_VECTORS: usize = 2;
        type V = __m512;
        #[inline(always)] unsafe fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        #[inline(always)] unsafe fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> __m512 { _mm512_maskz_loadu_ps(mask16(n), p) }
        #[inline(always)] unsafe fn store(p: *mut f32, v: __m512) { _mm512_storeu_ps(p, v) }
        #[inline(always)] unsafe fn store_n(p: *mut f32, v: __m512, n: usize) { _mm512_mask_storeu_ps(p, mask16(n), v) }
        #[inline(always)] unsafe fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        #[inline(always)] unsafe fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        #[inline(always)] unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        #[inline(always)] unsafe fn sum(v: __m512) -> f32 {
            let hi = _mm512_extractf32x8_ps::<1>(v);
            Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), hi))
        }
        #[inline(always)] unsafe fn from_i8(p: *const i8) -> __m512 { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
        #[inline(always)] unsafe fn from_f16(p: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        #[inline(always)] unsafe fn from_bf16(p: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
        #[inline(always)] unsafe fn from_nibbles<const HIGH: bool>(p: *const u8) -> __m512 {
            let b = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            _mm512_cvtepi32_ps(if HIGH { _mm512_srli_epi32::<4>(b) } else { _mm512_and_si512(b, _mm512_set1_epi32(15)) })
        }
    }
}

/// Declares a function that runs a body generic over [`Simd`] at the level
/// passed first.
///
/// `simd_dispatch!(pub fn sum(x: &[f32]) -> f32 = sum_body);` expands to
/// `pub fn sum(level: SimdLevel, x: &[f32]) -> f32`, a match over the level
/// whose arms call `sum_body::<S>(x)` inlined into a `#[target_feature]`
/// function. The body is an `unsafe fn` whose only requirement is the level.
macro_rules! simd_dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(::<$($extra:ty),+>)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take plain sizes and slices")]
        $vis fn $name(level: $crate::kernels::SimdLevel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(all(target_arch = "x86_64", tercet_avx512))]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "as the outer function")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::kernels::simd::Avx512 $(, $($extra),+)?>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "as the outer function")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::kernels::simd::Avx2 $(, $($extra),+)?>($($arg),*)
            }
            // SAFETY: a `SimdLevel` exists only where the machine has its
            // instructions, which is all that the body asks for.
            unsafe {
                match level.0 {
                    #[cfg(all(target_arch = "x86_64", tercet_avx512))]
                    $crate::kernels::simd::Level::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::kernels::simd::Level::Avx2 => avx2($($arg),*),
                    $crate::kernels::simd::Level::Portable => {
                        $body::<$crate::kernels::simd::Portable $(, $($extra),+)?>($($arg),*)
                    }
                }
            }
        }
    };
}
pub(super) use simd_dispatch;
