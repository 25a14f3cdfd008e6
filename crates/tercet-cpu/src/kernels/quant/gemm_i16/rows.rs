//! Activation rows in 16-bit fixed point.

use std::arch::x86_64::*;

use super::super::super::gemm::MatView;
use super::super::super::parallel::{self, KernelThreads, SharedMut};

/// Elements that share a scale, except at the end of a row.
pub(super) const CHUNK: usize = super::super::K_CHUNK;
/// Maximum magnitude of a rounded 16-bit activation.
const MAX: f32 = 32_767.0;

/// Rows in fixed point: element `p` of row `i` is `t[i, p] * scales[i, p / 256]`.
#[derive(Clone, Copy)]
pub(super) struct FixedPointRows<'a> {
    /// Number of rows.
    pub(super) m: usize,
    /// Elements per row, a multiple of 32.
    pub(super) k: usize,
    /// Rounded elements `[m, k]`; a 32-bit word has two adjacent elements.
    pub(super) t: &'a [i16],
    /// Scales `[m, k / 256]`, powers of two.
    pub(super) scales: &'a [f32],
    /// Sums of the 16 or 32 elements that share a weight offset: `[m, k / 16]` or `[m, k / 32]`.
    pub(super) sums: &'a [f32],
}

impl<'a> FixedPointRows<'a> {
    /// Scratch floats that `m` rows of `k` elements need.
    pub(super) fn len(m: usize, k: usize) -> usize {
        m * (k / 2 + k.div_ceil(CHUNK) + k.div_ceil(16))
    }

    /// Converts the rows `x`, whose columns are contiguous and a multiple of 32, in `scratch` of
    /// [`Self::len`] floats. `None` if an element is not finite.
    ///
    /// # Safety
    /// The machine has AVX2; `x` was checked; `sum_of` is 16 or 32.
    pub(super) unsafe fn new(
        threads: KernelThreads,
        x: &MatView<'_>,
        sum_of: usize,
        scratch: &'a mut [f32],
    ) -> Option<Self> {
        /// Rows per task.
        const STEP: usize = 4;
        let (m, k) = (x.rows, x.cols);
        let chunks = k.div_ceil(CHUNK);
        let (t, rest) = scratch.split_at_mut(m * k / 2);
        let (scales, rest) = rest.split_at_mut(m * chunks);
        let per_row = k / sum_of;
        let sums = &mut rest[..m * per_row];
        let finite = std::sync::atomic::AtomicBool::new(true);
        let out = (
            SharedMut::new(bytemuck::cast_slice_mut::<f32, i16>(t)),
            SharedMut::new(scales),
            SharedMut::new(sums),
        );
        parallel::for_each(threads, m.div_ceil(STEP), |task| {
            for i in task * STEP..m.min((task + 1) * STEP) {
                let x = &x.data[i * x.row_stride..][..k];
                // SAFETY: the requirements are those of this function; each row writes a separate
                // part of the results.
                let ok = unsafe {
                    let t = out.0.slice(i * k, k);
                    let scales = out.1.slice(i * chunks, chunks);
                    let sums = out.2.slice(i * per_row, per_row);
                    encode(x, t, scales, sums, sum_of)
                };
                if !ok {
                    finite.store(false, std::sync::atomic::Ordering::Relaxed);
                }
            }
        });
        finite.into_inner().then_some(Self {
            m,
            k,
            t: bytemuck::cast_slice(t),
            scales,
            sums,
        })
    }
}

/// Converts one row. Returns false if an element is not finite.
///
/// # Safety
/// The machine has AVX2; the slices are as long as [`FixedPointRows`] says.
#[target_feature(enable = "avx2")]
unsafe fn encode(
    x: &[f32],
    t: &mut [i16],
    scales: &mut [f32],
    sums: &mut [f32],
    each: usize,
) -> bool {
    let sums = sums.chunks_mut(CHUNK / each);
    let parts = x.chunks(CHUNK).zip(t.chunks_mut(CHUNK));
    for (((x, t), to), sums) in parts.zip(scales).zip(sums) {
        let Some((scale, inverse)) = scale_of(x) else {
            return false;
        };
        *to = scale;
        let inverse = _mm256_set1_ps(inverse);
        let mut halves = [0; CHUNK / 16];
        let (x, _) = x.as_chunks::<16>();
        let (t, _) = t.as_chunks_mut::<16>();
        for ((x, t), sum) in x.iter().zip(t).zip(&mut halves) {
            let part = |i: usize| {
                // SAFETY: the requirements are those of this function; there are 16 elements.
                unsafe {
                    let x = _mm256_loadu_ps(x.as_ptr().add(8 * i));
                    // Multiplication by a power of two is exact, so this rounds once.
                    _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse))
                }
            };
            let (low, high) = (part(0), part(1));
            // The pack instruction works within 128-bit halves, so the 64-bit quarters have the
            // order 0, 2, 1, 3; the permutation restores it.
            let both = _mm256_packs_epi32(low, high);
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
            _mm256_storeu_si256(t.as_mut_ptr().cast(), both);
            let mut lanes = [0i32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_add_epi32(low, high));
            *sum = lanes.iter().sum::<i32>();
        }
        // The magnitude of the sum is at most 32 * 2^15, which f32 represents exactly.
        for (sum, halves) in sums.iter_mut().zip(halves.chunks(each / 16)) {
            *sum = halves.iter().sum::<i32>() as f32 * scale;
        }
    }
    true
}

/// Smallest power-of-two scale for which all rounded elements are at most [`MAX`], and its inverse.
/// If all elements are zero, scale and inverse are zero. `None` if an element is not finite.
#[inline(always)]
fn scale_of(x: &[f32]) -> Option<(f32, f32)> {
    // Magnitudes are compared by their bits; the bits of NaN and infinity exceed those of all
    // finite numbers.
    let max = x
        .iter()
        .fold(0, |max, x| max.max(x.to_bits() & 0x7FFF_FFFF));
    let exponent = max >> 23;
    if exponent == 0xFF {
        return None;
    }
    if max == 0 {
        return Some((0.0, 0.0));
    }
    // The scale is the power of two of the maximum, divided by 2^14. The lower limit keeps the
    // scale normal and its inverse finite; a row with a maximum below 2^-112 keeps fewer bits.
    let mut exponent = exponent.max(15) - 14;
    if f32::from_bits(max) > MAX * f32::from_bits(exponent << 23) {
        exponent += 1;
    }
    let power = |e: u32| f32::from_bits(e << 23);
    Some((power(exponent), power(254 - exponent)))
}
