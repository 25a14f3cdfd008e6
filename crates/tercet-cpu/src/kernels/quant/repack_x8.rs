//! Packed weights as strips: eight rows side by side, word by word.
//!
//! A tile is a block of each of eight rows: their first words of 32 bits, then their second ones, and so on; what is left of a block after
//! whole words is two bytes of each row. A strip is the tiles of eight rows along k. So a vector holds four codes of each
//! of eight rows, and sums of products with one row of activations need no addition across lanes (`dots/strips.rs`). Strips take the room
//! of their rows and begin where the first of them would; rows that are left at the end stay rows.
//!
//! Kernels for other numbers of rows turn tiles back ([`Reader`], [`unpack_strip`]).

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::SimdLevel;
use super::QuantView;

/// Rows of a strip.
pub(super) const STRIP: usize = 8;
/// Bytes of a tile at most: of Q6_K.
const TILE_BYTES: usize = STRIP * 210;

/// How rows of packed weights lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// One after the other.
    Rows,
    /// Eight side by side, as [`pack_strips`] makes them.
    Strips,
}

/// Whether one row times weights of this scheme is faster with [`Arrangement::Strips`], which other products then read, too.
#[must_use]
pub fn strips_pay(level: SimdLevel, scheme: Scheme) -> bool {
    #[cfg(target_arch = "x86_64")]
    return level.0 == super::super::simd::Level::Avx2
        && matches!(scheme, Scheme::Q4K | Scheme::Q5K | Scheme::Q6K);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (level, scheme);
        false
    }
}

/// Floats of scratch that products of few rows with strips need besides those of [`quant_matmul`](super::quant_matmul):
/// a strip for each of `threads`.
#[must_use]
pub fn strips_scratch_len(scheme: Scheme, threads: usize, k: usize) -> usize {
    threads * strip_floats(k / scheme.block_len() * scheme.block_bytes())
}

/// Floats that hold the rows of a strip.
pub(super) fn strip_floats(row_bytes: usize) -> usize {
    (STRIP * row_bytes).div_ceil(4)
}

/// Writes the weights, which lie as rows, as strips.
///
/// # Panics
/// If [`strips_pay`] says no, the weights are strips already, too short for `n` rows of whole blocks, or `out` has another length.
pub fn pack_strips(level: SimdLevel, threads: Threads, w: &QuantView<'_>, out: &mut [u8]) {
    assert!(
        strips_pay(level, w.scheme) && w.arrangement == Arrangement::Rows,
        "weights that do not become strips"
    );
    w.check();
    let row_bytes = w.row_bytes();
    let bytes = &w.bytes[..w.n * row_bytes];
    assert_eq!(out.len(), bytes.len(), "strips take the room of rows");
    let strip_bytes = STRIP * row_bytes;
    let strips = w.n / STRIP;
    let (_, rest) = bytes.split_at(strips * strip_bytes);
    out[strips * strip_bytes..].copy_from_slice(rest);
    let out = SharedMut::new(out);
    parallel::for_each(threads, strips, |strip| {
        let from = &bytes[strip * strip_bytes..][..strip_bytes];
        // SAFETY: strips are apart.
        let to = unsafe { out.slice(strip * strip_bytes, strip_bytes) };
        let block = w.scheme.block_bytes();
        for (i, tile) in to.chunks_exact_mut(STRIP * block).enumerate() {
            // SAFETY: a level that strips pay at has AVX2; the blocks of eight rows, and a tile of as many bytes.
            unsafe {
                turn(
                    Side::rows(from[i * block..].as_ptr().cast_mut(), row_bytes),
                    tile.as_mut_ptr(),
                    block,
                    Way::ToTile,
                );
            }
        }
    });
}

/// The rows of strip `strip`, one after the other.
///
/// # Panics
/// If the weights are no strips, or `out` is shorter than eight rows.
pub(super) fn unpack_strip(w: &QuantView<'_>, strip: usize, out: &mut [u8]) {
    assert!(w.arrangement == Arrangement::Strips, "weights are rows");
    let (block, row_bytes) = (w.scheme.block_bytes(), w.row_bytes());
    let from = &w.bytes[strip * STRIP * row_bytes..][..STRIP * row_bytes];
    let out = &mut out[..STRIP * row_bytes];
    for (i, tile) in from.chunks_exact(STRIP * block).enumerate() {
        // SAFETY: only levels with AVX2 have strips; sizes are those of `pack_strips`.
        unsafe {
            turn(
                Side::rows(out[i * block..].as_mut_ptr(), row_bytes),
                tile.as_ptr().cast_mut(),
                block,
                Way::ToRows,
            );
        }
    }
}

/// Reads rows of weights a block at a time, however they lie: those of one strip by turns.
pub(super) struct Reader<'w, 'a> {
    w: &'w QuantView<'a>,
    /// The tile whose blocks are in `blocks`, by its place in bytes.
    held: Option<usize>,
    blocks: [u8; TILE_BYTES],
}

impl<'w, 'a> Reader<'w, 'a> {
    #[inline(always)]
    pub(super) fn new(w: &'w QuantView<'a>) -> Self {
        Self {
            w,
            held: None,
            blocks: [0; TILE_BYTES],
        }
    }

    /// The weights `ks` of a row: whole blocks, of strips one.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, ks: &Range<usize>) -> &[u8] {
        let (w, row_bytes) = (self.w, self.w.row_bytes());
        let (start, end) = (w.at(ks.start), w.at(ks.end));
        if w.arrangement == Arrangement::Rows || row >= w.n / STRIP * STRIP {
            return &w.bytes[row * row_bytes + start..row * row_bytes + end];
        }
        let block = w.scheme.block_bytes();
        assert_eq!(end - start, block, "strips are read a block at a time");
        let tile = row / STRIP * STRIP * row_bytes + STRIP * start;
        if self.held != Some(tile) {
            self.fill(tile, block);
        }
        &self.blocks[row % STRIP * block..][..block]
    }

    #[inline(never)]
    fn fill(&mut self, tile: usize, block: usize) {
        let from = &self.w.bytes[tile..][..STRIP * block];
        let to = &mut self.blocks[..STRIP * block];
        // SAFETY: only levels with AVX2 have strips; both have the bytes of eight blocks.
        unsafe {
            turn(
                Side::rows(to.as_mut_ptr(), block),
                from.as_ptr().cast_mut(),
                block,
                Way::ToRows,
            );
        }
        self.held = Some(tile);
    }
}

/// Eight runs of bytes at equal distances.
#[derive(Clone, Copy)]
struct Side {
    at: *mut u8,
    stride: usize,
}

impl Side {
    fn rows(at: *mut u8, stride: usize) -> Self {
        Self { at, stride }
    }
}

/// Which side of [`turn`] is written.
#[derive(Clone, Copy)]
enum Way {
    ToTile,
    ToRows,
}

/// Turns eight blocks of `block` bytes at `rows` into the tile at `tile`, or back.
///
/// # Safety
/// The machine has AVX2; `rows` is valid for eight blocks, `tile` for their bytes, each for what the way does to it; a block has at
/// least eight words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn turn(rows: Side, tile: *mut u8, block: usize, way: Way) {
    let words = block / 4;
    let mut word = 0;
    while word < words {
        // The last eight words overlap those before.
        let first = word.min(words - 8);
        let row = Side::rows(rows.at.add(4 * first), rows.stride);
        let column = Side::rows(tile.add(4 * STRIP * first), 4 * STRIP);
        match way {
            Way::ToTile => transpose8(row, column),
            Way::ToRows => transpose8(column, row),
        }
        word = first + 8;
    }
    let rest = block - 4 * words;
    for row in 0..STRIP {
        let a = rows.at.add(row * rows.stride + 4 * words);
        let b = tile.add(4 * words * STRIP + rest * row);
        match way {
            Way::ToTile => b.copy_from_nonoverlapping(a, rest),
            Way::ToRows => a.copy_from_nonoverlapping(b, rest),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn turn(_: Side, _: *mut u8, _: usize, _: Way) {
    unreachable!("invariant: no other machine has strips")
}

/// Eight rows of eight words as columns.
///
/// # Safety
/// The machine has AVX2; `from` is valid for reads and `to` for writes of 32 bytes each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose8(from: Side, to: Side) {
    use std::arch::x86_64::*;
    // Halves of rows i and i + 4 share a register, so that halves are swapped while loading.
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
