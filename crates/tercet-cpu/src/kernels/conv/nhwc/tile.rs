//! Register micro-kernels of [`super::dense`]: sums of a few windows for a panel of channels, with
//! a separate address for each tap of each window.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

#[cfg(target_arch = "x86_64")]
use super::super::super::simd::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
use super::super::super::simd::Avx512;
#[cfg(target_arch = "aarch64")]
use super::super::super::simd::Neon;
use super::super::super::simd::{PortableSimd, Simd, SimdLevelKind};

/// Operands of one tile. Strides are in elements.
pub(super) struct NhwcConvTile {
    /// Address of the channels of each tap of each window: `[windows][row_step]`, with `taps` valid
    /// entries per row.
    pub(super) rows: *const *const f32,
    /// Stride between the address rows of two windows.
    pub(super) row_step: usize,
    /// Number of taps to sum.
    pub(super) taps: usize,
    /// First channel of each tap.
    pub(super) first: usize,
    /// Number of channels of each tap.
    pub(super) channels: usize,
    /// Weights as `[taps][channels][lanes of all vectors]`.
    pub(super) weights: *const f32,
    /// Output, one row per window.
    pub(super) y: *mut f32,
    /// Row stride of y.
    pub(super) y_step: usize,
    /// Initial value of the sums, per lane.
    pub(super) start: *const f32,
    /// If true, the sums start at zero and are added to y; otherwise they start at `start` and
    /// replace y.
    pub(super) add: bool,
    /// Valid lanes of the last vector.
    pub(super) last_lanes: usize,
    /// Bounds to clamp the finished sums to; `None` if further parts of the sums follow.
    pub(super) bounds: Option<[f32; 2]>,
}

/// Micro-kernel of `R` windows and `NV` vectors of channels.
///
/// # Safety
/// The machine has the level's instructions. Each address is valid for `first + channels` elements.
/// Weights, start values and y have the lengths that [`NhwcConvTile`] documents.
pub(super) type NhwcMicroKernel = unsafe fn(&NhwcConvTile);

/// Selects the kernel for `1 <= windows <= TILE_ROWS` and `1 <= vectors <= TILE_VECTORS`.
#[inline]
pub(super) fn function(level: SimdLevelKind, windows: usize, vectors: usize) -> NhwcMicroKernel {
    match level {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        SimdLevelKind::Avx512 => AVX512[windows - 1][vectors - 1],
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx2 => AVX2[windows - 1][vectors - 1],
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => NEON[windows - 1][vectors - 1],
        SimdLevelKind::Portable => PORTABLE[windows - 1][vectors - 1],
    }
}

/// `table!(f, 2, [1 2])` is `[[f::<1, 1>, f::<1, 2>], [f::<2, 1>, f::<2, 2>]]`: kernels indexed by
/// windows and vectors.
macro_rules! table {
    ($f:ident, 1, [$($r:literal)*]) => { [$([$f::<$r, 1>]),*] };
    ($f:ident, 2, [$($r:literal)*]) => { [$([$f::<$r, 1>, $f::<$r, 2>]),*] };
    ($f:ident, 3, [$($r:literal)*]) => { [$([$f::<$r, 1>, $f::<$r, 2>, $f::<$r, 3>]),*] };
}

#[cfg(all(target_arch = "x86_64", tercet_avx512))]
static AVX512: [[NhwcMicroKernel; Avx512::TILE_VECTORS]; Avx512::TILE_ROWS] =
    table!(avx512, 3, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
static AVX2: [[NhwcMicroKernel; Avx2::TILE_VECTORS]; Avx2::TILE_ROWS] =
    table!(avx2, 2, [1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
static NEON: [[NhwcMicroKernel; Neon::TILE_VECTORS]; Neon::TILE_ROWS] =
    table!(neon, 2, [1 2 3 4 5]);
static PORTABLE: [[NhwcMicroKernel; PortableSimd::TILE_VECTORS]; PortableSimd::TILE_ROWS] =
    table!(portable, 1, [1 2 3 4]);

/// # Safety
/// Same as [`NhwcMicroKernel`], on a processor with the instructions of the level.
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const R: usize, const NV: usize>(t: &NhwcConvTile) {
    tile::<Avx512, R, NV>(t);
}

/// # Safety
/// Same as [`NhwcMicroKernel`], on a processor with the instructions of the level.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const R: usize, const NV: usize>(t: &NhwcConvTile) {
    tile::<Avx2, R, NV>(t);
}

/// # Safety
/// Same as [`NhwcMicroKernel`].
#[cfg(target_arch = "aarch64")]
unsafe fn neon<const R: usize, const NV: usize>(t: &NhwcConvTile) {
    tile::<Neon, R, NV>(t);
}

/// # Safety
/// Same as [`NhwcMicroKernel`].
unsafe fn portable<const R: usize, const NV: usize>(t: &NhwcConvTile) {
    tile::<PortableSimd, R, NV>(t);
}

/// Prefetch distance of weights in bytes.
const AHEAD: usize = 2048;

/// # Safety
/// Same as [`NhwcMicroKernel`].
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const NV: usize>(t: &NhwcConvTile) {
    let nr = S::TILE_VECTORS * S::LANES;
    let mut start = [S::splat(0.0); NV];
    if !t.add {
        for v in 0..NV {
            start[v] = S::load(t.start.add(v * S::LANES));
        }
    }
    for i in 0..R {
        S::prefetch(t.y.wrapping_add(i * t.y_step).cast());
    }
    let mut acc = [start; R];
    let mut weights = t.weights;
    for tap in 0..t.taps {
        let mut rows = [std::ptr::null::<f32>(); R];
        for i in 0..R {
            rows[i] = (*t.rows.add(i * t.row_step + tap)).add(t.first);
        }
        for c in 0..t.channels {
            let mut columns = [S::splat(0.0); NV];
            for v in 0..NV {
                let from = weights.add(v * S::LANES);
                S::prefetch(from.cast::<u8>().wrapping_add(AHEAD));
                columns[v] = S::load(from);
            }
            for i in 0..R {
                let x = S::splat(*rows[i].add(c));
                for v in 0..NV {
                    acc[i][v] = S::fma(x, columns[v], acc[i][v]);
                }
            }
            weights = weights.wrapping_add(nr);
        }
    }
    let is_bound = t.bounds.is_some();
    let [lo, hi] = t.bounds.unwrap_or_default();
    let (lo, hi) = (S::splat(lo), S::splat(hi));
    for i in 0..R {
        for v in 0..NV {
            let to = t.y.add(i * t.y_step + v * S::LANES);
            let count = if v == NV - 1 { t.last_lanes } else { S::LANES };
            let mut sum = acc[i][v];
            if t.add {
                let before = match count == S::LANES {
                    true => S::load(to),
                    false => S::load_n(to, count),
                };
                sum = S::add(sum, before);
            }
            if is_bound {
                sum = S::clamp(sum, lo, hi);
            }
            match count == S::LANES {
                true => S::store(to, sum),
                false => S::store_n(to, sum, count),
            }
        }
    }
}
