//! Register micro-kernels of [`super::direct`] and [`super::depthwise`]: sums of a few windows for
//! the channels of a panel.
//!
//! These micro-kernels are like those of the GEMM ([`super::super::gemm`]), except for the address
//! of an element of A. The address of an element is the base of its window plus the offset of its
//! tap.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

#[cfg(target_arch = "x86_64")]
use super::super::simd::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
use super::super::simd::Avx512;
#[cfg(target_arch = "aarch64")]
use super::super::simd::Neon;
use super::super::simd::{PortableSimd, Simd, SimdLevelKind};

/// Maximum windows of a tile at any SIMD level.
pub(super) const MAX_ROWS: usize = 8;

/// Operands of one tile. Strides are in elements.
pub(super) struct ConvTile<'a> {
    /// Base address of each window.
    pub(super) rows: [*const f32; MAX_ROWS],
    /// Offset of each tap of the first channel from the base.
    pub(super) taps: &'a [usize],
    /// Number of channels of x.
    pub(super) channels: usize,
    /// Stride between channels.
    pub(super) plane: usize,
    /// Weights as `[channels][taps][nr]`, where `nr` is the number of lanes of all vectors.
    pub(super) weights: *const f32,
    /// Sums as `[windows][nr]`.
    pub(super) sums: *mut f32,
    /// Initial values of the sums, one per lane of all vectors.
    pub(super) start: *const f32,
    /// If true, adds to the existing sums; the new ones start at zero.
    pub(super) add: bool,
}

/// Micro-kernel of `R` windows and `NV` vectors of channels.
///
/// # Safety
/// The machine has the level's instructions. Each tap of each channel is inside x for the first `R`
/// windows. Weights and sums have the lengths that [`ConvTile`] documents.
pub(super) type ConvMicroKernel = unsafe fn(&ConvTile<'_>);

/// Selects the kernel for `1 <= windows <= TILE_ROWS` and `1 <= vectors <= TILE_VECTORS`.
pub(super) type SelectMicroKernel = fn(SimdLevelKind, usize, usize) -> ConvMicroKernel;

/// Kernels of the direct convolution: they sum over channels, and each element of x is broadcast to
/// all channels of y.
#[inline]
pub(super) fn dense(level: SimdLevelKind, windows: usize, vectors: usize) -> ConvMicroKernel {
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

/// Depthwise kernels: each element of x is a vector of channels.
#[inline]
pub(super) fn depthwise(level: SimdLevelKind, windows: usize, _: usize) -> ConvMicroKernel {
    match level {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        SimdLevelKind::Avx512 => AVX512[windows - 1][Avx512::TILE_VECTORS],
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx2 => AVX2[windows - 1][Avx2::TILE_VECTORS],
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => NEON[windows - 1][Neon::TILE_VECTORS],
        SimdLevelKind::Portable => PORTABLE[windows - 1][PortableSimd::TILE_VECTORS],
    }
}

/// `table!(f, [1 2], [rows...])` is `[[f::<1, 1, false>, f::<1, 2, false>, f::<1, 1, true>], ...]`:
/// kernels indexed by rows and vectors, with the depthwise one last.
macro_rules! table {
    ($f:ident, 1, [$($r:literal)*]) => {
        [$([$f::<$r, 1, false>, $f::<$r, 1, true>]),*]
    };
    ($f:ident, 2, [$($r:literal)*]) => {
        [$([$f::<$r, 1, false>, $f::<$r, 2, false>, $f::<$r, 1, true>]),*]
    };
    ($f:ident, 3, [$($r:literal)*]) => {
        [$([$f::<$r, 1, false>, $f::<$r, 2, false>, $f::<$r, 3, false>, $f::<$r, 1, true>]),*]
    };
}

#[cfg(all(target_arch = "x86_64", tercet_avx512))]
static AVX512: [[ConvMicroKernel; Avx512::TILE_VECTORS + 1]; Avx512::TILE_ROWS] =
    table!(avx512, 3, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
static AVX2: [[ConvMicroKernel; Avx2::TILE_VECTORS + 1]; Avx2::TILE_ROWS] =
    table!(avx2, 2, [1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
static NEON: [[ConvMicroKernel; Neon::TILE_VECTORS + 1]; Neon::TILE_ROWS] =
    table!(neon, 2, [1 2 3 4 5]);
static PORTABLE: [[ConvMicroKernel; PortableSimd::TILE_VECTORS + 1]; PortableSimd::TILE_ROWS] =
    table!(portable, 1, [1 2 3 4]);

/// # Safety
/// Same as [`ConvMicroKernel`], on a processor with the instructions of the level.
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const R: usize, const NV: usize, const EACH: bool>(t: &ConvTile<'_>) {
    tile::<Avx512, R, NV, EACH>(t);
}

/// # Safety
/// Same as [`ConvMicroKernel`], on a processor with the instructions of the level.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const R: usize, const NV: usize, const EACH: bool>(t: &ConvTile<'_>) {
    tile::<Avx2, R, NV, EACH>(t);
}

/// # Safety
/// Same as [`ConvMicroKernel`].
#[cfg(target_arch = "aarch64")]
unsafe fn neon<const R: usize, const NV: usize, const EACH: bool>(t: &ConvTile<'_>) {
    tile::<Neon, R, NV, EACH>(t);
}

/// # Safety
/// Same as [`ConvMicroKernel`].
unsafe fn portable<const R: usize, const NV: usize, const EACH: bool>(t: &ConvTile<'_>) {
    tile::<PortableSimd, R, NV, EACH>(t);
}

/// # Safety
/// Same as [`ConvMicroKernel`].
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const NV: usize, const EACH: bool>(t: &ConvTile<'_>) {
    let nr = if EACH {
        S::LANES
    } else {
        S::TILE_VECTORS * S::LANES
    };
    let mut start = [S::splat(0.0); NV];
    if !t.add {
        for v in 0..NV {
            start[v] = S::load(t.start.add(v * S::LANES));
        }
    }
    let mut acc = [start; R];
    let mut rows = [t.rows[0]; R];
    rows.copy_from_slice(&t.rows[..R]);
    let (mut weights, mut plane) = (t.weights, 0);
    for _ in 0..t.channels {
        for tap in t.taps {
            let at = plane + tap;
            let mut columns = [S::splat(0.0); NV];
            for v in 0..NV {
                columns[v] = S::load(weights.add(v * S::LANES));
            }
            for i in 0..R {
                let x = rows[i].add(at);
                let x = if EACH { S::load(x) } else { S::splat(*x) };
                for v in 0..NV {
                    acc[i][v] = S::fma(x, columns[v], acc[i][v]);
                }
            }
            weights = weights.add(nr);
        }
        plane += t.plane;
    }
    for i in 0..R {
        for v in 0..NV {
            let to = t.sums.add(i * nr + v * S::LANES);
            let sum = match t.add {
                true => S::add(acc[i][v], S::load(to)),
                false => acc[i][v],
            };
            S::store(to, sum);
        }
    }
}
