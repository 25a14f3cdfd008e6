//! Repacked quantized weights: eight rows interleaved word by word (strips; llama.cpp calls this
//! repacking).
//!
//! A tile contains one block of each of eight rows: first all their first 32-bit words, then all
//! their second words, and so on. If a block is not a multiple of four bytes, the last two bytes of
//! each row follow. A strip is all tiles of eight rows along k. So a vector contains four quantized
//! values of each of eight rows, and a GEMV needs no additions across lanes
//! (`gemv_int_dot/strips.rs`).
//!
//! A strip has the same size and start address as its eight rows. Rows after the last whole strip
//! are not interleaved. Kernels for more than one activation row convert tiles back to rows
//! ([`QuantRowReader`], [`unpack_strip`]).

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{SimdLevel, SimdLevelKind};
use super::QuantView;

/// Rows per strip.
pub(super) const STRIP: usize = 8;
/// Maximum bytes of a tile, that of Q6_K.
const TILE_BYTES: usize = STRIP * 210;

/// Memory layout of quantized weight rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantRowLayout {
    /// Row by row.
    Rows,
    /// Eight rows interleaved by [`pack_strips`].
    Strips,
}

/// True if a GEMV with weights of this scheme is faster with [`QuantRowLayout::Strips`]. All other
/// matmuls then read that layout too.
#[must_use]
pub fn repack_is_profitable(level: SimdLevel, scheme: Scheme) -> bool {
    let has_kernels = match level.kind {
        SimdLevelKind::Portable => false,
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => level.dots,
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx2 => true,
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        SimdLevelKind::Avx512 => false,
    };
    has_kernels && matches!(scheme, Scheme::Q4K | Scheme::Q5K | Scheme::Q6K)
}

/// Additional scratch floats of matmuls with few rows if weights are repacked: one strip for each
/// of `threads`. [`quant_matmul`](super::quant_matmul) needs this memory in addition to the scratch
/// memory for weights that are not repacked.
#[must_use]
pub fn strips_scratch_len(scheme: Scheme, threads: usize, k: usize) -> usize {
    threads * strip_floats(k / scheme.block_len() * scheme.block_bytes())
}

/// Floats that hold the rows of a strip.
pub(super) fn strip_floats(row_bytes: usize) -> usize {
    (STRIP * row_bytes).div_ceil(4)
}

/// Repacks row-major weights as strips.
///
/// # Panics
/// If [`repack_is_profitable`] rejects the scheme or the weights are already repacked. Also panics
/// if the weights are too short for `n` rows of whole blocks, or `out` has the wrong length.
pub fn pack_strips(level: SimdLevel, threads: KernelThreads, w: &QuantView<'_>, out: &mut [u8]) {
    assert!(
        repack_is_profitable(level, w.scheme) && w.arrangement == QuantRowLayout::Rows,
        "these weights cannot be repacked"
    );
    w.check();
    let row_bytes = w.row_bytes();
    let bytes = &w.bytes[..w.n * row_bytes];
    assert_eq!(
        out.len(),
        bytes.len(),
        "repacked weights must have the same size as the rows"
    );
    let strip_bytes = STRIP * row_bytes;
    let strips = w.n / STRIP;
    let (_, rest) = bytes.split_at(strips * strip_bytes);
    out[strips * strip_bytes..].copy_from_slice(rest);
    let out = SharedMut::new(out);
    parallel::for_each(threads, strips, |strip| {
        let from = &bytes[strip * strip_bytes..][..strip_bytes];
        // SAFETY: strips are disjoint.
        let to = unsafe { out.slice(strip * strip_bytes, strip_bytes) };
        let block = w.scheme.block_bytes();
        for (i, tile) in to.chunks_exact_mut(STRIP * block).enumerate() {
            // SAFETY: the level has kernels for strips, so `turn` has its instructions. Source and target have
            // the bytes of eight blocks.
            unsafe {
                turn(
                    StripRuns::rows(from[i * block..].as_ptr().cast_mut(), row_bytes),
                    tile.as_mut_ptr(),
                    block,
                    StripTransposeSide::ToTile,
                );
            }
        }
    });
}

/// Unpacks the rows of strip `strip`, one after the other.
///
/// # Panics
/// If the weights are not repacked, or `out` is shorter than eight rows.
pub(super) fn unpack_strip(w: &QuantView<'_>, strip: usize, out: &mut [u8]) {
    assert!(
        w.arrangement == QuantRowLayout::Strips,
        "weights are not repacked"
    );
    let (block, row_bytes) = (w.scheme.block_bytes(), w.row_bytes());
    let from = &w.bytes[strip * STRIP * row_bytes..][..STRIP * row_bytes];
    let out = &mut out[..STRIP * row_bytes];
    for (i, tile) in from.chunks_exact(STRIP * block).enumerate() {
        // SAFETY: a level with strips has the instructions; the sizes are those of `pack_strips`.
        unsafe {
            turn(
                StripRuns::rows(out[i * block..].as_mut_ptr(), row_bytes),
                tile.as_ptr().cast_mut(),
                block,
                StripTransposeSide::ToRows,
            );
        }
    }
}

/// Reads rows of weights block by block in either layout. The reader caches the last tile, so
/// consecutive reads of the rows of one strip unpack it once.
pub(super) struct QuantRowReader<'w, 'a> {
    w: &'w QuantView<'a>,
    /// Byte offset of the tile whose blocks are in `blocks`.
    loaded_tile: Option<usize>,
    blocks: [u8; TILE_BYTES],
}

impl<'w, 'a> QuantRowReader<'w, 'a> {
    #[inline(always)]
    pub(super) fn new(w: &'w QuantView<'a>) -> Self {
        Self {
            w,
            loaded_tile: None,
            blocks: [0; TILE_BYTES],
        }
    }

    /// Returns the weights `ks` of a row: whole blocks, or exactly one block if the weights are
    /// repacked.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, ks: &Range<usize>) -> &[u8] {
        let (w, row_bytes) = (self.w, self.w.row_bytes());
        let (start, end) = (w.at(ks.start), w.at(ks.end));
        if w.arrangement == QuantRowLayout::Rows || row >= w.n / STRIP * STRIP {
            return &w.bytes[row * row_bytes + start..row * row_bytes + end];
        }
        let block = w.scheme.block_bytes();
        assert_eq!(
            end - start,
            block,
            "repacked weights are read one block per call"
        );
        let tile = row / STRIP * STRIP * row_bytes + STRIP * start;
        if self.loaded_tile != Some(tile) {
            self.fill(tile, block);
        }
        &self.blocks[row % STRIP * block..][..block]
    }

    #[inline(never)]
    fn fill(&mut self, tile: usize, block: usize) {
        let from = &self.w.bytes[tile..][..STRIP * block];
        let to = &mut self.blocks[..STRIP * block];
        // SAFETY: a level with strips has the instructions. Source and target have the bytes of eight
        // blocks.
        unsafe {
            turn(
                StripRuns::rows(to.as_mut_ptr(), block),
                from.as_ptr().cast_mut(),
                block,
                StripTransposeSide::ToRows,
            );
        }
        self.loaded_tile = Some(tile);
    }
}

/// Addresses of eight blocks with a constant distance.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(tercet_int_dot),
    expect(dead_code, reason = "`turn` reads the fields")
)]
struct StripRuns {
    at: *mut u8,
    stride: usize,
}

impl StripRuns {
    fn rows(at: *mut u8, stride: usize) -> Self {
        Self { at, stride }
    }
}

/// Direction of [`turn`].
#[derive(Clone, Copy)]
enum StripTransposeSide {
    ToTile,
    ToRows,
}

/// Transposes eight blocks of `block` bytes at `rows` into the tile at `tile`, or the tile into the
/// blocks.
///
/// # Safety
/// The machine has AVX2 or NEON. `rows` is valid for eight blocks and `tile` for their bytes, for reads or
/// writes according to `way`. A block has at least eight words.
#[cfg(tercet_int_dot)]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn turn(rows: StripRuns, tile: *mut u8, block: usize, way: StripTransposeSide) {
    let words = block / 4;
    let mut word = 0;
    while word < words {
        // If the number of words is not a multiple of eight, the last eight words overlap the
        // previous eight.
        let first = word.min(words - 8);
        let row = StripRuns::rows(rows.at.add(4 * first), rows.stride);
        let column = StripRuns::rows(tile.add(4 * STRIP * first), 4 * STRIP);
        match way {
            StripTransposeSide::ToTile => transpose8(row, column),
            StripTransposeSide::ToRows => transpose8(column, row),
        }
        word = first + 8;
    }
    let rest = block - 4 * words;
    for row in 0..STRIP {
        let a = rows.at.add(row * rows.stride + 4 * words);
        let b = tile.add(4 * words * STRIP + rest * row);
        match way {
            StripTransposeSide::ToTile => b.copy_from_nonoverlapping(a, rest),
            StripTransposeSide::ToRows => a.copy_from_nonoverlapping(b, rest),
        }
    }
}

#[cfg(not(tercet_int_dot))]
unsafe fn turn(_: StripRuns, _: *mut u8, _: usize, _: StripTransposeSide) {
    unreachable!("invariant: no level of this machine repacks weights")
}

/// Transposes eight rows of eight words.
///
/// # Safety
/// The machine has AVX2; `from` is valid for reads and `to` for writes of 32 bytes each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose8(from: StripRuns, to: StripRuns) {
    use std::arch::x86_64::*;
    // A register is loaded with halves of rows i and i + 4, so the transpose needs no exchange of
    // 128-bit halves.
    let pair = |i: usize, half: usize| {
        let low = _mm_loadu_ps(from.at.add(i * from.stride + 16 * half).cast());
        let high = _mm_loadu_ps(from.at.add((i + 4) * from.stride + 16 * half).cast());
        _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
    };
    for half in 0..2 {
        let (r0, r1, r2, r3) = (pair(0, half), pair(1, half), pair(2, half), pair(3, half));
        let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let out = [
            _mm256_shuffle_ps::<0x44>(t0, t2),
            _mm256_shuffle_ps::<0xEE>(t0, t2),
            _mm256_shuffle_ps::<0x44>(t1, t3),
            _mm256_shuffle_ps::<0xEE>(t1, t3),
        ];
        for (i, column) in out.into_iter().enumerate() {
            _mm256_storeu_ps(to.at.add((4 * half + i) * to.stride).cast(), column);
        }
    }
}

/// Transposes eight rows of eight words.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of 32 bytes each.
#[cfg(target_arch = "aarch64")]
unsafe fn transpose8(from: StripRuns, to: StripRuns) {
    use super::super::simd::neon::transpose4;
    for i in [0, 4] {
        for j in [0, 4] {
            let src = from.at.add(i * from.stride + 4 * j);
            let dst = to.at.add(j * to.stride + 4 * i);
            transpose4(src, from.stride, dst, to.stride);
        }
    }
}
