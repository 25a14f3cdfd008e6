//! GEMM register micro-kernels: a tile of C in registers over a k block.
//!
//! There is one function per SIMD level, number of rows, number of vectors and kind of B. Each
//! micro-kernel is fully unrolled under its own target features; callers select one by
//! [`function`]. Per step of k a tile loads its vectors of B, broadcasts each element of A once
//! from memory, and does `rows * vectors` fused multiply-adds.
//!
//! The kernels are limited by the front end of the core, which a second hardware thread may halve.
//! So whole panels use a loop without any other instructions.

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

/// Operands of one tile. All strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct GemmMicroTile {
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    /// Row stride of A.
    pub(crate) a_row: usize,
    /// Column stride of A.
    pub(crate) a_step: usize,
    pub(crate) b: *const f32,
    /// Row stride of B.
    pub(crate) b_step: usize,
    pub(crate) c: *mut f32,
    pub(crate) c_row: usize,
    /// Valid lanes of the last vector.
    pub(crate) last_lanes: usize,
    /// Start of the memory to prefetch for later tiles, at any address. Null if there is nothing to
    /// prefetch.
    pub(crate) next: *const f32,
    pub(crate) prefetch: Prefetch,
    /// If true, the products are added to C; otherwise they replace the contents of C.
    pub(crate) add: bool,
    /// Bias that is added to each row at the end; null for none.
    pub(crate) bias: *const f32,
}

/// Prefetch rate of a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefetch {
    /// One cache line per step of k.
    Steps,
    /// One cache line per [`UNROLLED`] steps.
    EveryUnroll,
}

/// Micro-kernel of `R` rows and `NV` vectors.
///
/// # Safety
/// The machine has the level's instructions. A is valid for `R x k` elements. C is valid for `R`
/// rows of `last_lanes + LANES * (NV - 1)` columns. B is valid for `k` rows of that number of
/// columns, or of `NV * LANES` columns if it is padded.
pub(crate) type MicroKernel = unsafe fn(&GemmMicroTile);

/// Whether rows of B can be read to the end of the last vector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GemmColumnReads {
    /// Reading to the end of the last vector is allowed: B is a packed panel, padded with zeros.
    Padded,
    /// Only existing columns may be read: B is a caller's matrix.
    Exact,
}

/// Selects the kernel of a tile: `1 <= rows <= TILE_ROWS`, `1 <= vectors <= TILE_VECTORS`.
#[inline]
pub(crate) fn function(
    level: SimdLevelKind,
    rows: usize,
    vectors: usize,
    columns: GemmColumnReads,
) -> MicroKernel {
    let kind = usize::from(columns == GemmColumnReads::Exact);
    match level {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        SimdLevelKind::Avx512 => AVX512[kind][rows - 1][vectors - 1],
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx2 => AVX2[kind][rows - 1][vectors - 1],
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => NEON[kind][rows - 1][vectors - 1],
        SimdLevelKind::Portable => PORTABLE[kind][rows - 1][vectors - 1],
    }
}

/// `table!(f, 2, [1 2])` is `[[[f::<1, 1, false>, f::<1, 2, false>], ...], [...]]`: kernels indexed
/// by kind of B, rows and vectors.
macro_rules! table {
    ($f:ident, 1, [$($r:literal)*]) => {
        [[$([$f::<$r, 1, false>]),*], [$([$f::<$r, 1, true>]),*]]
    };
    ($f:ident, 2, [$($r:literal)*]) => {
        [
            [$([$f::<$r, 1, false>, $f::<$r, 2, false>]),*],
            [$([$f::<$r, 1, true>, $f::<$r, 2, true>]),*],
        ]
    };
    ($f:ident, 3, [$($r:literal)*]) => {
        [
            [$([$f::<$r, 1, false>, $f::<$r, 2, false>, $f::<$r, 3, false>]),*],
            [$([$f::<$r, 1, true>, $f::<$r, 2, true>, $f::<$r, 3, true>]),*],
        ]
    };
}

#[cfg(all(target_arch = "x86_64", tercet_avx512))]
static AVX512: [[[MicroKernel; Avx512::TILE_VECTORS]; Avx512::TILE_ROWS]; 2] =
    table!(avx512, 3, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
static AVX2: [[[MicroKernel; Avx2::TILE_VECTORS]; Avx2::TILE_ROWS]; 2] =
    table!(avx2, 2, [1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
static NEON: [[[MicroKernel; Neon::TILE_VECTORS]; Neon::TILE_ROWS]; 2] =
    table!(neon, 2, [1 2 3 4 5]);
static PORTABLE: [[[MicroKernel; PortableSimd::TILE_VECTORS]; PortableSimd::TILE_ROWS]; 2] =
    table!(portable, 1, [1 2 3 4]);

/// # Safety
/// Same as [`MicroKernel`], on a processor with the instructions of the level.
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const R: usize, const NV: usize, const EXACT: bool>(t: &GemmMicroTile) {
    tile::<Avx512, R, NV, EXACT>(t);
}

/// # Safety
/// Same as [`MicroKernel`], on a processor with the instructions of the level.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const R: usize, const NV: usize, const EXACT: bool>(t: &GemmMicroTile) {
    tile::<Avx2, R, NV, EXACT>(t);
}

/// # Safety
/// Same as [`MicroKernel`].
#[cfg(target_arch = "aarch64")]
unsafe fn neon<const R: usize, const NV: usize, const EXACT: bool>(t: &GemmMicroTile) {
    tile::<Neon, R, NV, EXACT>(t);
}

/// # Safety
/// Same as [`MicroKernel`].
unsafe fn portable<const R: usize, const NV: usize, const EXACT: bool>(t: &GemmMicroTile) {
    tile::<PortableSimd, R, NV, EXACT>(t);
}

/// Prefetch distance of B in bytes. The hardware prefetcher follows a panel too, but stops at each
/// page boundary.
const AHEAD: usize = 2048;

/// Floats per cache line.
pub(super) const LINE: usize = 16;

/// Unroll factor of the loop over k.
pub(super) const UNROLLED: usize = 4;

/// No prefetch.
const NOTHING: usize = usize::MAX;

/// Computes the first steps of k over a whole packed panel, in multiples of [`UNROLLED`], and
/// returns their number. Returns 0 if A is contiguous neither along k nor along the rows of the
/// tile, or if B is not a whole packed panel.
///
/// # Safety
/// Same as [`MicroKernel`]; `rows` are those of A.
#[inline(always)]
unsafe fn panel_steps<S: Simd, const R: usize, const NV: usize>(
    t: &GemmMicroTile,
    rows: &[*const f32; R],
    acc: &mut [[S::V; NV]; R],
) -> usize {
    if NV != S::TILE_VECTORS || t.b_step != NV * S::LANES {
        return 0;
    }
    let count = t.k / UNROLLED * UNROLLED;
    match (t.a_step, t.a_row, t.prefetch) {
        (1, _, _) if t.next.is_null() => steps::<S, R, NV, NOTHING, false>(count, rows, t, acc),
        (1, _, Prefetch::Steps) => steps::<S, R, NV, 1, false>(count, rows, t, acc),
        (1, _, Prefetch::EveryUnroll) => steps::<S, R, NV, UNROLLED, false>(count, rows, t, acc),
        (_, 1, _) if t.next.is_null() => steps::<S, R, NV, NOTHING, true>(count, rows, t, acc),
        (_, 1, Prefetch::Steps) => steps::<S, R, NV, 1, true>(count, rows, t, acc),
        (_, 1, Prefetch::EveryUnroll) => steps::<S, R, NV, UNROLLED, true>(count, rows, t, acc),
        _ => return 0,
    }
    count
}

/// Runs the unrolled loop over k, with a prefetch in every `EACH`th step. A is contiguous along the rows of
/// the tile if `ACROSS`, else along k.
///
/// # Safety
/// Same as [`panel_steps`].
#[inline(always)]
unsafe fn steps<S: Simd, const R: usize, const NV: usize, const EACH: usize, const ACROSS: bool>(
    count: usize,
    rows: &[*const f32; R],
    t: &GemmMicroTile,
    acc: &mut [[S::V; NV]; R],
) {
    let width = NV * S::LANES;
    for first in (0..count).step_by(UNROLLED) {
        for p in first..first + UNROLLED {
            let b = t.b.add(p * width);
            if EACH == 1 {
                for at in (0..width).step_by(LINE) {
                    S::prefetch(b.wrapping_add(at).cast::<u8>().wrapping_add(AHEAD));
                }
            }
            if EACH != NOTHING && (p - first) % EACH == 0 {
                S::prefetch_far(t.next.wrapping_add(p / EACH * LINE).cast());
            }
            let mut columns = [S::splat(0.0); NV];
            for v in 0..NV {
                columns[v] = S::load(b.add(v * S::LANES));
            }
            if ACROSS {
                S::add_outer(acc, t.a.add(p * t.a_step), &columns);
                continue;
            }
            for i in 0..R {
                let x = S::splat(*rows[i].add(p));
                for v in 0..NV {
                    acc[i][v] = S::fma(x, columns[v], acc[i][v]);
                }
            }
        }
    }
}

/// Runs a tile, inlined into the caller.
///
/// # Safety
/// Same as [`MicroKernel`]; requires the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, const R: usize, const NV: usize, const EXACT: bool>(
    t: &GemmMicroTile,
) {
    let mut acc = [[S::splat(0.0); NV]; R];
    // Prefetch C, which is needed at the end; its rows are often a page apart.
    for i in 0..R {
        for v in 0..NV {
            S::prefetch(t.c.wrapping_add(i * t.c_row + v * S::LANES).cast());
        }
    }
    let mut rows = [t.a; R];
    for i in 1..R {
        rows[i] = t.a.add(i * t.a_row);
    }
    let done = match EXACT {
        true => 0,
        false => panel_steps::<S, R, NV>(t, &rows, &mut acc),
    };
    let mut b = t.b.wrapping_add(done * t.b_step);
    let mut at = done * t.a_step;
    let mut next = if t.next.is_null() { t.b } else { t.next };
    next = next.wrapping_add(done * LINE);
    for _ in done..t.k {
        let mut columns = [S::splat(0.0); NV];
        for v in 0..NV {
            let p = b.add(v * S::LANES);
            if !EXACT {
                S::prefetch(p.cast::<u8>().wrapping_add(AHEAD));
            }
            columns[v] = if EXACT && v == NV - 1 {
                S::load_n(p, t.last_lanes)
            } else {
                S::load(p)
            };
        }
        for i in 0..R {
            let x = S::splat(*rows[i].add(at));
            for v in 0..NV {
                acc[i][v] = S::fma(x, columns[v], acc[i][v]);
            }
        }
        if !EXACT {
            S::prefetch_far(next.cast());
            next = next.wrapping_add(LINE);
        }
        b = b.wrapping_add(t.b_step);
        at += t.a_step;
    }
    // The loop below may index a copy in memory; the accumulators themselves stay in registers.
    let mut sums = [[S::splat(0.0); NV]; R];
    for i in 0..R {
        for v in 0..NV {
            sums[i][v] = acc[i][v];
        }
    }
    for i in 0..R {
        let c = t.c.add(i * t.c_row);
        for v in 0..NV {
            let (c, lanes) = (
                c.add(v * S::LANES),
                if v == NV - 1 { t.last_lanes } else { S::LANES },
            );
            let mut sum = sums[i][v];
            let bias = t.bias.wrapping_add(v * S::LANES);
            if lanes == S::LANES {
                if t.add {
                    sum = S::add(sum, S::load(c));
                }
                if !t.bias.is_null() {
                    sum = S::add(sum, S::load(bias));
                }
                S::store(c, sum);
            } else {
                if t.add {
                    sum = S::add(sum, S::load_n(c, lanes));
                }
                if !t.bias.is_null() {
                    sum = S::add(sum, S::load_n(bias, lanes));
                }
                S::store_n(c, sum, lanes);
            }
        }
    }
}
