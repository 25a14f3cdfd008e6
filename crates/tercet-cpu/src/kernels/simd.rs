//! SIMD levels, and the vector abstraction that the hand-written kernels share.
//!
//! `Simd` has one implementation per level. A kernel body is written once, generic over `Simd` and
//! `#[inline(always)]`. [`simd_dispatch`] instantiates the body under the level's
//! `#[target_feature]`.

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

use std::cell::Cell;
use std::sync::OnceLock;

/// A SIMD instruction set that this machine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimdLevel {
    pub(crate) kind: SimdLevelKind,
    /// True if kernels may use dot products of bytes: AVX-512 VNNI, AVX-VNNI with AVX2, `dotprod` with
    /// NEON.
    pub(crate) dots: bool,
    /// True if kernels may use the byte matrix products of `i8mm`. Then `dots` is true, too.
    pub(crate) matrices: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimdLevelKind {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", tercet_avx512))]
    Avx512,
}

thread_local! {
    /// The level that a switch selects for the program under construction.
    static SELECTED: Cell<Option<SimdLevel>> = const { Cell::new(None) };
}

impl SimdLevel {
    /// The level that new programs use: that of the enclosing `scope` on this thread, or else the best
    /// of this machine, which is detected once.
    #[must_use]
    pub fn detect() -> Self {
        SELECTED.get().unwrap_or(Self::available()[0])
    }

    /// Runs `work`, in which [`SimdLevel::detect`] returns this level on this thread.
    pub(crate) fn scope<R>(self, work: impl FnOnce() -> R) -> R {
        /// Restores the level, also if `work` panics.
        struct Restored(Option<SimdLevel>);
        impl Drop for Restored {
            fn drop(&mut self) {
                SELECTED.set(self.0);
            }
        }
        let _restored = Restored(SELECTED.replace(Some(self)));
        work()
    }

    /// This level without dot products of bytes.
    #[must_use]
    pub fn without_dots(self) -> Self {
        Self::of(self.kind)
    }

    pub(crate) fn of(kind: SimdLevelKind) -> Self {
        Self {
            kind,
            dots: false,
            matrices: false,
        }
    }

    /// This level with dot products of bytes.
    #[cfg(any(target_arch = "aarch64", all(target_arch = "x86_64", tercet_avx512)))]
    fn with_dots(self, dots: bool) -> Self {
        Self { dots, ..self }
    }

    /// Plain code that the compiler vectorizes for the build target.
    #[must_use]
    pub fn portable() -> Self {
        Self::of(SimdLevelKind::Portable)
    }

    /// All levels of this machine, best first.
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
                    let dots = is_x86_feature_detected!("avx512vnni");
                    levels.push(Self::of(SimdLevelKind::Avx512).with_dots(dots));
                }
                #[cfg(tercet_avx512)]
                if avx2 && is_x86_feature_detected!("avxvnni") {
                    levels.push(Self::of(SimdLevelKind::Avx2).with_dots(true));
                }
                if avx2 {
                    levels.push(Self::of(SimdLevelKind::Avx2));
                }
            }
            #[cfg(target_arch = "aarch64")]
            {
                let neon = Self::of(SimdLevelKind::Neon);
                if std::arch::is_aarch64_feature_detected!("dotprod") {
                    if std::arch::is_aarch64_feature_detected!("i8mm") {
                        levels.push(Self {
                            matrices: true,
                            ..neon.with_dots(true)
                        });
                    }
                    levels.push(neon.with_dots(true));
                }
                levels.push(neon);
            }
            levels.push(Self::of(SimdLevelKind::Portable));
            levels
        })
    }

    /// Floats per vector.
    pub(crate) fn lanes(self) -> usize {
        match self.kind {
            SimdLevelKind::Portable => PortableSimd::LANES,
            #[cfg(target_arch = "aarch64")]
            SimdLevelKind::Neon => Neon::LANES,
            #[cfg(target_arch = "x86_64")]
            SimdLevelKind::Avx2 => Avx2::LANES,
            #[cfg(all(target_arch = "x86_64", tercet_avx512))]
            SimdLevelKind::Avx512 => Avx512::LANES,
        }
    }

    /// Name for tables and error reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.kind {
            SimdLevelKind::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            SimdLevelKind::Neon if self.matrices => "i8mm",
            #[cfg(target_arch = "aarch64")]
            SimdLevelKind::Neon if self.dots => "dotprod",
            #[cfg(target_arch = "aarch64")]
            SimdLevelKind::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            SimdLevelKind::Avx2 if self.dots => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            SimdLevelKind::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", tercet_avx512))]
            SimdLevelKind::Avx512 => "avx512",
        }
    }
}

/// A vector of `f32` lanes.
///
/// # Safety
/// Every function requires the instructions of its level. Pointers must be valid for the lanes that
/// the function accesses (`n <= LANES` lanes for `*_n`).
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    const LANES: usize;
    /// True if `mul_add` is a single instruction.
    const FMA: bool;
    const LEVEL: SimdLevelKind;
    /// Rows of the GEMM register tile, and vectors per row (`TILE_VECTORS`). The accumulators leave
    /// enough registers for the operands.
    const TILE_ROWS: usize;
    const TILE_VECTORS: usize;
    /// Activation rows per pass over quantized weights.
    const DOT_ROWS: usize;
    type V: Copy;
    /// Lookup table of `scale * code + offset` for the 16 codes below 16, in the format that this
    /// level decodes fastest.
    type Table: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    /// Loads the first `n` lanes; the others are 0.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Adds the outer product of `R` adjacent floats at `a` and `columns` to `acc`.
    #[inline(always)]
    unsafe fn add_outer<const R: usize, const NV: usize>(
        acc: &mut [[Self::V; NV]; R],
        a: *const f32,
        columns: &[Self::V; NV],
    ) {
        for (i, acc) in acc.iter_mut().enumerate() {
            let x = Self::splat(*a.add(i));
            for (acc, column) in acc.iter_mut().zip(columns) {
                *acc = Self::fma(x, *column, *acc);
            }
        }
    }
    /// Maximum per lane; if `a` is NaN, the lane of `b`.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The largest lane of a vector; no lane may be NaN.
    unsafe fn greatest(v: Self::V) -> f32;
    /// Computes `2^n` for lanes of the form `1.5 * 2^23 + n`, with an integer `n` from -126 to 127;
    /// 0 for -127.
    unsafe fn power_of_two(v: Self::V) -> Self::V;
    /// Clamps each lane of `v` between the lanes of `lo` and `hi`; NaN stays NaN.
    unsafe fn clamp(v: Self::V, lo: Self::V, hi: Self::V) -> Self::V;
    /// Sum of the lanes, added as a tree of halves.
    unsafe fn sum(v: Self::V) -> f32;
    /// Converts `LANES` signed bytes to floats.
    unsafe fn from_i8(p: *const i8) -> Self::V;
    /// Converts `LANES` F16 values to floats.
    unsafe fn from_f16(p: *const u16) -> Self::V;
    /// Converts `LANES` BF16 values to floats.
    unsafe fn from_bf16(p: *const u16) -> Self::V;
    unsafe fn table(scale: f32, offset: f32) -> Self::Table;
    /// Looks up the low and the high four bits of `LANES` bytes in the tables.
    unsafe fn decode(p: *const u8, low: Self::Table, high: Self::Table) -> (Self::V, Self::V);
    /// Converts the two little-endian F16 values in the four bytes at `p`.
    unsafe fn halves(p: *const u8) -> (f32, f32);
    /// Computes `factor * codes[i]`.
    unsafe fn scale8(codes: [i8; 8], factor: f32) -> [f32; 8];
    /// Sums of the lanes of four vectors.
    unsafe fn sum4(v: [Self::V; 4]) -> [f32; 4];
    /// Prefetches the cache line of `p`, which may be any address.
    unsafe fn prefetch(p: *const u8);
    /// Like [`Self::prefetch`], into the L2 cache only.
    unsafe fn prefetch_far(p: *const u8);
    /// Transposes an 8 x 8 block with these strides: `dst[j][i] = src[i][j]`.
    unsafe fn transpose8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize);
    /// Scalar `a * b + c` with the rounding of this level.
    #[inline(always)]
    fn fmaf(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
    /// Same as [`Self::fmaf`] in double precision.
    #[inline(always)]
    fn fmad(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
}

/// Eight lanes in plain code, which the compiler vectorizes with the target's instructions.
#[derive(Clone, Copy)]
pub(crate) struct PortableSimd;

const P: usize = 8;

/// Applies `f` to each lane.
#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; P] {
    std::array::from_fn(f)
}

#[rustfmt::skip]
impl Simd for PortableSimd {
    const LANES: usize = P;
    const FMA: bool = cfg!(target_arch = "aarch64");
    const LEVEL: SimdLevelKind = SimdLevelKind::Portable;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;
    const DOT_ROWS: usize = 2;
    type V = [f32; P];
    type Table = (f32, f32);
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
    #[inline(always)] unsafe fn max(a: [f32; P], b: [f32; P]) -> [f32; P] { lanes(|i| if a[i] > b[i] { a[i] } else { b[i] }) }
    #[inline(always)] unsafe fn greatest(v: [f32; P]) -> f32 { v.into_iter().fold(f32::NEG_INFINITY, f32::max) }
    #[inline(always)] unsafe fn power_of_two(v: [f32; P]) -> [f32; P] {
        lanes(|i| f32::from_bits((v[i].to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)] unsafe fn clamp(v: [f32; P], lo: [f32; P], hi: [f32; P]) -> [f32; P] {
        lanes(|i| {
            let low = if v[i] < lo[i] { lo[i] } else { v[i] };
            if low > hi[i] { hi[i] } else { low }
        })
    }
    #[inline(always)] unsafe fn sum(v: [f32; P]) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)] unsafe fn from_i8(p: *const i8) -> [f32; P] { lanes(|i| f32::from(*p.add(i))) }
    #[inline(always)] unsafe fn from_f16(p: *const u16) -> [f32; P] { lanes(|i| super::convert::f16_bits_to_f32(p.add(i).read_unaligned())) }
    #[inline(always)] unsafe fn from_bf16(p: *const u16) -> [f32; P] { lanes(|i| f32::from_bits(u32::from(p.add(i).read_unaligned()) << 16)) }
    #[inline(always)] unsafe fn table(scale: f32, offset: f32) -> (f32, f32) { (scale, offset) }
    #[inline(always)] unsafe fn decode(p: *const u8, low: (f32, f32), high: (f32, f32)) -> ([f32; P], [f32; P]) {
        (
            lanes(|i| Self::fmaf(f32::from(*p.add(i) & 15), low.0, low.1)),
            lanes(|i| Self::fmaf(f32::from(*p.add(i) >> 4), high.0, high.1)),
        )
    }
    #[inline(always)] unsafe fn halves(p: *const u8) -> (f32, f32) {
        let [a, b, c, d] = *p.cast::<[u8; 4]>();
        let widen = super::convert::f16_bits_to_f32;
        (widen(u16::from_le_bytes([a, b])), widen(u16::from_le_bytes([c, d])))
    }
    #[inline(always)] unsafe fn scale8(codes: [i8; 8], factor: f32) -> [f32; 8] { codes.map(|c| factor * f32::from(c)) }
    #[inline(always)] unsafe fn sum4(v: [[f32; P]; 4]) -> [f32; 4] {
        // SAFETY: plain code.
        v.map(|v| unsafe { Self::sum(v) })
    }
    #[inline(always)] unsafe fn prefetch(_: *const u8) {}
    #[inline(always)] unsafe fn prefetch_far(_: *const u8) {}
    #[inline(always)] unsafe fn transpose8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        for i in 0..8 {
            for j in 0..8 {
                *dst.add(j * dst_stride + i) = *src.add(i * src_stride + j);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
pub(crate) use x86::Avx512;

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
mod x86 {
    use super::{SimdLevelKind, Simd};
    use std::arch::x86_64::*;

    /// Eight lanes; requires AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// Lane mask for `maskload`: the first `n` lanes are set.
    #[inline(always)]
    unsafe fn mask8(n: usize) -> __m256i {
        const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        _mm256_loadu_si256(BITS.as_ptr().add(8 - n.min(8)).cast())
    }

    impl Simd for Avx2 {
        const LANES: usize = 8;
        const FMA: bool = true;
        const LEVEL: SimdLevelKind = SimdLevelKind::Avx2;
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 2;
        const DOT_ROWS: usize = 4;
        type V = __m256;
        type Table = (__m256, __m256);
        #[inline(always)] unsafe fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        #[inline(always)] unsafe fn load(p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
        #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> __m256 { _mm256_maskload_ps(p, mask8(n)) }
        #[inline(always)] unsafe fn store(p: *mut f32, v: __m256) { _mm256_storeu_ps(p, v) }
        #[inline(always)] unsafe fn store_n(p: *mut f32, v: __m256, n: usize) { _mm256_maskstore_ps(p, mask8(n), v) }
        #[inline(always)] unsafe fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        #[inline(always)] unsafe fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        #[inline(always)] unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        // `maxps` returns the second operand if one is NaN.
        #[inline(always)] unsafe fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        #[inline(always)] unsafe fn greatest(v: __m256) -> f32 {
            let h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let q = _mm_max_ps(h, _mm_movehl_ps(h, h));
            _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps::<1>(q, q)))
        }
        #[inline(always)] unsafe fn power_of_two(v: __m256) -> __m256 {
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
            _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(127 << 23)))
        }
        #[inline(always)] unsafe fn clamp(v: __m256, lo: __m256, hi: __m256) -> __m256 { _mm256_min_ps(hi, _mm256_max_ps(lo, v)) }
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
        #[inline(always)] unsafe fn table(scale: f32, offset: f32) -> (__m256, __m256) { (_mm256_set1_ps(scale), _mm256_set1_ps(offset)) }
        #[inline(always)] unsafe fn decode(p: *const u8, low: (__m256, __m256), high: (__m256, __m256)) -> (__m256, __m256) {
            let b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let l = _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
            let h = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(b));
            (_mm256_fmadd_ps(l, low.0, low.1), _mm256_fmadd_ps(h, high.0, high.1))
        }
        #[inline(always)] unsafe fn halves(p: *const u8) -> (f32, f32) {
            // Loaded through a general-purpose register. For a direct load of the low half,
            // compilers emit an insertion into a vector register, which makes each block depend on
            // the previous one.
            let mut bits = p.cast::<u32>().read_unaligned();
            std::arch::asm!("/* {0:e} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags));
            let both = _mm_cvtph_ps(_mm_cvtsi32_si128(bits as i32));
            (_mm_cvtss_f32(both), _mm_cvtss_f32(_mm_movehdup_ps(both)))
        }
        #[inline(always)] unsafe fn scale8(codes: [i8; 8], factor: f32) -> [f32; 8] {
            let codes = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_ne_bytes(codes.map(|c| c as u8))));
            let mut out = [0.0; 8];
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(factor)));
            out
        }
        #[inline(always)] unsafe fn sum4(v: [__m256; 4]) -> [f32; 4] {
            let ab = _mm256_hadd_ps(v[0], v[1]);
            let cd = _mm256_hadd_ps(v[2], v[3]);
            let all = _mm256_hadd_ps(ab, cd);
            let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
        #[inline(always)] unsafe fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        #[inline(always)] unsafe fn prefetch_far(p: *const u8) { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        #[inline(always)] unsafe fn transpose8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            // A register is loaded with halves of rows i and i + 4, so the transpose needs no
            // exchange of 128-bit halves.
            let pair = |i: usize, half: usize| {
                let low = _mm_loadu_ps(src.add(i * src_stride + 4 * half));
                let high = _mm_loadu_ps(src.add((i + 4) * src_stride + 4 * half));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
            };
            for half in 0..2 {
                let (r0, r1, r2, r3) = (pair(0, half), pair(1, half), pair(2, half), pair(3, half));
                let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
                let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
                let dst = dst.add(4 * half * dst_stride);
                _mm256_storeu_ps(dst, _mm256_shuffle_ps::<0x44>(t0, t2));
                _mm256_storeu_ps(dst.add(dst_stride), _mm256_shuffle_ps::<0xEE>(t0, t2));
                _mm256_storeu_ps(dst.add(2 * dst_stride), _mm256_shuffle_ps::<0x44>(t1, t3));
                _mm256_storeu_ps(dst.add(3 * dst_stride), _mm256_shuffle_ps::<0xEE>(t1, t3));
            }
        }
    }

    /// Sixteen lanes; requires AVX-512 F, BW, DQ and VL.
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
        const LEVEL: SimdLevelKind = SimdLevelKind::Avx512;
        const TILE_ROWS: usize = 8;
        const TILE_VECTORS: usize = 3;
        const DOT_ROWS: usize = 4;
        type V = __m512;
        type Table = __m512;
        #[inline(always)] unsafe fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        #[inline(always)] unsafe fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> __m512 { _mm512_maskz_loadu_ps(mask16(n), p) }
        #[inline(always)] unsafe fn store(p: *mut f32, v: __m512) { _mm512_storeu_ps(p, v) }
        #[inline(always)] unsafe fn store_n(p: *mut f32, v: __m512, n: usize) { _mm512_mask_storeu_ps(p, mask16(n), v) }
        #[inline(always)] unsafe fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        #[inline(always)] unsafe fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        #[inline(always)] unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        #[inline(always)] unsafe fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        #[inline(always)] unsafe fn greatest(v: __m512) -> f32 {
            let hi = _mm512_extractf32x8_ps::<1>(v);
            Avx2::greatest(_mm256_max_ps(_mm512_castps512_ps256(v), hi))
        }
        #[inline(always)] unsafe fn power_of_two(v: __m512) -> __m512 {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
            _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(127 << 23)))
        }
        #[inline(always)] unsafe fn clamp(v: __m512, lo: __m512, hi: __m512) -> __m512 { _mm512_min_ps(hi, _mm512_max_ps(lo, v)) }
        #[inline(always)] unsafe fn sum(v: __m512) -> f32 {
            let hi = _mm512_extractf32x8_ps::<1>(v);
            Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), hi))
        }
        #[inline(always)] unsafe fn from_i8(p: *const i8) -> __m512 { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
        #[inline(always)] unsafe fn from_f16(p: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        #[inline(always)] unsafe fn from_bf16(p: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
        #[inline(always)] unsafe fn table(scale: f32, offset: f32) -> __m512 {
            let codes = _mm512_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0);
            _mm512_fmadd_ps(codes, _mm512_set1_ps(scale), _mm512_set1_ps(offset))
        }
        #[inline(always)] unsafe fn decode(p: *const u8, low: __m512, high: __m512) -> (__m512, __m512) {
            // The permutation only uses the low four bits of each index.
            let b = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            (_mm512_permutexvar_ps(b, low), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(b), high))
        }
        #[inline(always)] unsafe fn halves(p: *const u8) -> (f32, f32) { Avx2::halves(p) }
        #[inline(always)] unsafe fn scale8(codes: [i8; 8], factor: f32) -> [f32; 8] { Avx2::scale8(codes, factor) }
        #[inline(always)] unsafe fn sum4(v: [__m512; 4]) -> [f32; 4] {
            // SAFETY: the caller guarantees the instructions.
            Avx2::sum4(v.map(|v| unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }))
        }
        #[inline(always)] unsafe fn prefetch(p: *const u8) { Avx2::prefetch(p) }
        #[inline(always)] unsafe fn prefetch_far(p: *const u8) { Avx2::prefetch_far(p) }
        #[inline(always)] unsafe fn transpose8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            Avx2::transpose8(src, src_stride, dst, dst_stride)
        }
    }
}

/// Declares a function that dispatches a body generic over [`Simd`] to the level of its first
/// argument.
///
/// `simd_dispatch!(pub fn sum(x: &[f32]) -> f32 = sum_body);` expands to `pub fn sum(level:
/// SimdLevel, x: &[f32]) -> f32`. The generated function matches the level and calls
/// `sum_body::<S>(x)`, inlined into a `#[target_feature]` function. The body is an `unsafe fn`
/// whose only requirement is the level.
macro_rules! simd_dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(::<$($extra:ty),+>)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take plain sizes and slices")]
        $vis fn $name(level: $crate::kernels::SimdLevel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(all(target_arch = "x86_64", tercet_avx512))]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "same as the outer function")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::kernels::simd::Avx512 $(, $($extra),+)?>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "same as the outer function")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::kernels::simd::Avx2 $(, $($extra),+)?>($($arg),*)
            }
            // SAFETY: a `SimdLevel` exists only if the machine has its instructions, which is the
            // only requirement of the body.
            unsafe {
                match level.kind {
                    #[cfg(all(target_arch = "x86_64", tercet_avx512))]
                    $crate::kernels::simd::SimdLevelKind::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::kernels::simd::SimdLevelKind::Avx2 => avx2($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::kernels::simd::SimdLevelKind::Neon => {
                        $body::<$crate::kernels::simd::Neon $(, $($extra),+)?>($($arg),*)
                    }
                    $crate::kernels::simd::SimdLevelKind::Portable => {
                        $body::<$crate::kernels::simd::PortableSimd $(, $($extra),+)?>($($arg),*)
                    }
                }
            }
        }
    };
}
pub(super) use simd_dispatch;
