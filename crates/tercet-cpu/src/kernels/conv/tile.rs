//! The register kernels of [`super::direct`] and [`super::depthwise`]: sums of a few windows for the channels
//! of a panel.
//!
//! As those of products ([`super::super::gemm`]), but for where an element of the left side lies: at the
//! place of its window plus the offset of its tap.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

#[cfg(target_arch = "x86_64")]
use super::super::simd::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
use super::super::simd::Avx512;
use super::super::simd::{Level, Portable, Simd};

/// Windows of a tile at any level.
pub(super) const MOST_ROWS: usize = 8;

/// Operands of one tile. Distances are in elements.
pub(super) struct Tile<'a> {
    /// Where each window begins.
    pub(super) rows: [*const f32; MOST_ROWS],
    /// From there to each tap of the first channel.
    pub(super) taps: &'a [usize],
    /// Channels of x.
    pub(super) channels: usize,
    /// From one channel to the next.
    pub(super) plane: usize,
    /// `[channels][taps][nr]`, where `nr` are the lanes of all vectors.
    pub(super) weights: *const f32,
    /// `[windows][nr]`.
    pub(super) sums: *mut f32,
    /// Where sums begin, one for each lane of all vectors.
    pub(super) start: *const f32,
    /// Adds to the sums instead, from zero.
    pub(super) add: bool,
}

/// A kernel of `R` windows and `NV` vectors of channels.
///
/// # Safety
/// The machine has the level's instructions; each tap of each channel lies inside x for the first `R` windows,
/// and weights and sums are as long as [`Tile`] says.
pub(super) type TileFn = unsafe fn(&Tile<'_>);

/// The kernel for `1 <= windows <= TILE_ROWS` and `1 <= vectors <= TILE_VECTORS`.
pub(super) type Pick = fn(Level, usize, usize) -> TileFn;

/// Sums over channels: an element of x counts for all channels of y.
#[inline]
pub(super) fn dense(level: Level, windows: usize, vectors: usize) -> TileFn {
    match level {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        Level::Avx512 => AVX512[windows - 1][vectors - 1],
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => AVX2[windows - 1][vectors - 1],
        Level::Portable => PORTABLE[windows - 1][vectors - 1],
    }
}

/// A channel of x for each channel of y: an element of x is a vector, of as many channels.
#[inline]
pub(super) fn depthwise(level: Level, windows: usize, _: usize) -> TileFn {
    match level {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        Level::Avx512 => AVX512[windows - 1][Avx512::TILE_VECTORS],
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => AVX2[windows - 1][Avx2::TILE_VECTORS],
        Level::Portable => PORTABLE[windows - 1][Portable::TILE_VECTORS],
    }
}

/// `table!(f, [1 2], [rows...])` is `[[f::<1, 1, false>, f::<1, 2, false>, f::<1, 1, true>], ...]`:
/// kernels by rows and vectors, the depthwise one last.
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
static AVX512: [[TileFn; Avx512::TILE_VECTORS + 1]; Avx512::TILE_ROWS] =
    table!(avx512, 3, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
static AVX2: [[TileFn; Avx2::TILE_VECTORS + 1]; Avx2::TILE_ROWS] = table!(avx2, 2, [1 2 3 4 5 6]);
static PORTABLE: [[TileFn; Portable::TILE_VECTORS + 1]; Portable::TILE_ROWS] =
    table!(portable, 1, [1 2 3 4]);

/// # Safety
/// As [`TileFn`], on a processor with the instructions of the level.
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const R: usize, const NV: usize, const EACH: bool>(t: &Tile<'_>) {
    tile::<Avx512, R, NV, EACH>(t);
}

/// # Safety
/// As [`TileFn`], on a processor with the instructions of the level.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const R: usize, const NV: usize, const EACH: bool>(t: &Tile<'_>) {
    tile::<Avx2, R, NV, EACH>(t);
}

/// # Safety
/// As [`TileFn`].
unsafe fn portable<const R: usize, const NV: usize, const EACH: bool>(t: &Tile<'_>) {
    tile::<Portable, R, NV, EACH>(t);
}

/// # Safety
/// As [`TileFn`].
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const NV: usize, const EACH: bool>(t: &Tile<'_>) {
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
