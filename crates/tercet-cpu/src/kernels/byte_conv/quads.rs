//! Products of bytes with AVX2: four elements of x in a word, by four weights.
//!
//! `pmaddubsw` adds two products of a byte without sign and one with sign in 16 bits, where they saturate. They do not if the first
//! is the size of a weight, at most 128, and the second is `e`, an element of x between -128 and 127: two products are within
//! `-128 (128 + 128)` and `127 (128 + 128)`. Under a weight below zero all bits of `e` are turned, which makes it `-e - 1`; then
//! the size of the weight is to be added once, which is a number of the channel.

use std::ops::Range;

use super::dense::{Block, NR};
use super::{ByteCall, Codes, ConvShape};

/// Channels of a tile.
pub(super) const ROWS: usize = 4;

/// Whether weights are small enough.
pub(super) fn takes(weights: Codes) -> bool {
    let (least, most) = if weights.signed {
        (-128, 127)
    } else {
        (0, 255)
    };
    least - weights.zero >= -128 && most - weights.zero <= 128
}

/// Words of packed weights: sizes and bits to turn, and two sums of each channel at the end.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    shape.groups * shape.m * (2 * shape.k().div_ceil(4) + 2)
}

/// Weights that are looked at together.
const MANY: usize = 32;

/// The sizes of some weights, the bits to turn for each, their sum, and that of those below zero.
#[inline(always)]
fn sizes(w: &[u8; MANY], codes: Codes) -> ([u8; MANY], [u8; MANY], [i32; 2]) {
    let (mut sizes, mut turned) = ([0; MANY], [0; MANY]);
    let (mut sum, mut below) = (0i16, 0i16);
    for i in 0..MANY {
        let w = codes.value(w[i]);
        sizes[i] = w.unsigned_abs() as u8;
        turned[i] = (w >> 15) as u8;
        // 32 weights are at most 4096.
        sum += w;
        below += w.min(0);
    }
    (sizes, turned, [i32::from(sum), i32::from(below)])
}

/// Packs weights `[groups m, k]`: of each block of [`ROWS`] channels, both words of each channel, step by step.
pub(super) fn pack(shape: &ConvShape, codes: Codes, w: &[u8], out: &mut [i32]) {
    let (k, steps, rows) = (shape.k(), shape.k().div_ceil(4), shape.groups * shape.m);
    let (out, ends) = out[..packed_len(shape)].split_at_mut(rows * 2 * steps);
    for row in 0..rows {
        let (group, own) = (row / shape.m, row % shape.m);
        let block = own / ROWS * ROWS;
        let count = ROWS.min(shape.m - block);
        let to = &mut out[(group * shape.m + block) * 2 * steps..][..count * 2 * steps];
        let own = 2 * (own - block);
        let mut sums = [0; 2];
        let parts = w[row * k..][..k].chunks(MANY);
        for (w, to) in parts.zip(to.chunks_mut(2 * count * MANY / 4)) {
            // What stands for zero fills the last ones.
            let mut all = [codes.zero as u8; MANY];
            all[..w.len()].copy_from_slice(w);
            let (sizes, turned, more) = sizes(&all, codes);
            let words = sizes
                .as_chunks::<4>()
                .0
                .iter()
                .zip(turned.as_chunks::<4>().0);
            for (to, (sizes, turned)) in to.chunks_exact_mut(2 * count).zip(words) {
                to[own] = i32::from_le_bytes(*sizes);
                to[own + 1] = i32::from_le_bytes(*turned);
            }
            sums = [sums[0] + more[0], sums[1] + more[1]];
        }
        ends[2 * row..2 * row + 2].copy_from_slice(&[sums[0], -sums[1]]);
    }
}

/// What makes a byte of x one with a sign.
fn flip(codes: Codes) -> u8 {
    codes.flip() ^ 0x80
}

/// Channels of a panel, from weights and what all weights have at their end; `y` is the first window of the first channel.
///
/// # Safety
/// The machine has AVX2. In `y` are the windows of all channels.
///
/// # Panics
/// If there are not two words of weights for each channel and step of the panel, or two at their end.
pub(super) unsafe fn channels(call: &ByteCall<'_>, block: &Block<'_>, ends: &[i32], y: *mut u8) {
    let Range { start, end } = block.channels;
    assert_eq!(block.a.len() * NR, 2 * (end - start) * block.b.len());
    assert!(block.width <= NR && call.finish.scale.len() >= end && call.finish.bias.len() >= end);
    let ends = &ends[2 * start..2 * end];
    match block.width > 4 {
        true => avx2::channels::<2>(call, block, ends, y),
        false => avx2::channels::<1>(call, block, ends, y),
    }
}

/// `count` elements of four rows as words, 16 at a time, `apart` from each other; zeros for rows that are not there.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If `to` has no room for them.
pub(super) unsafe fn panels(
    rows: [Option<&[u8]>; 4],
    count: usize,
    codes: Codes,
    to: &mut [i32],
    apart: usize,
) {
    assert!(to.len() >= count.div_ceil(NR).saturating_sub(1) * apart + NR);
    let rows = rows.map(Option::unwrap_or_default);
    avx2::panels(rows, count, flip(codes), to, apart);
}

/// Rows of 16 bytes, four by four, as words.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If there are too few rows.
pub(super) unsafe fn interleave(stage: &[u8], codes: Codes, panel: &mut [i32]) {
    assert!(stage.len() >= 4 * panel.len());
    avx2::interleave(stage, flip(codes), panel);
}

mod avx2 {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_set1_epi8, _mm_storeu_si128, _mm_unpackhi_epi8,
        _mm_unpacklo_epi8, _mm_xor_si128, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set_m128i, _mm256_set1_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
        _mm256_xor_si256,
    };

    use super::super::finish::avx2::Vectors;
    use super::{Block, ByteCall, NR, ROWS};

    /// Channels for 16 windows, or with `V` = 1 for 4.
    ///
    /// # Safety
    /// As [`super::channels`], which has compared lengths.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn channels<const V: usize>(
        call: &ByteCall<'_>,
        block: &Block<'_>,
        ends: &[i32],
        y: *mut u8,
    ) {
        // Elements of x are codes less 128 or 0, not less their zero point.
        let more = if call.codes.signed { 0 } else { 128 } - call.codes.zero;
        let of = Tile {
            a: block.a.as_ptr(),
            b: block.b.as_ptr(),
            steps: block.b.len() / NR,
            ends: ends.as_ptr(),
            more,
            width: block.width,
            apart: call.shape.windows.count(),
            scale: call.finish.scale.as_ptr().add(block.channels.start),
            bias: call.finish.bias.as_ptr().add(block.channels.start),
            vectors: Vectors::of(&call.finish),
        };
        let count = block.channels.len();
        let whole = count / ROWS * ROWS;
        for row in (0..whole).step_by(ROWS) {
            tile::<ROWS, V>(&of, row, y);
        }
        match count - whole {
            0 => {}
            1 => tile::<1, V>(&of, whole, y),
            2 => tile::<2, V>(&of, whole, y),
            _ => tile::<3, V>(&of, whole, y),
        }
    }

    /// What tiles are made of.
    struct Tile {
        /// Two words for each channel and step.
        a: *const i32,
        /// 16 words for each step.
        b: *const i32,
        steps: usize,
        /// Two words for each channel, and what the first is multiplied by.
        ends: *const i32,
        more: i32,
        /// Windows, and from one channel of y to the next.
        width: usize,
        apart: usize,
        scale: *const f32,
        bias: *const f32,
        vectors: Vectors,
    }

    /// The bytes of `R` channels from `row` on.
    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(of: &Tile, row: usize, y: *mut u8) {
        let ones = _mm256_set1_epi16(1);
        let mut sums = [[_mm256_setzero_si256(); V]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            let ends = of.ends.add(2 * (row + r));
            let begin = (*ends).wrapping_mul(of.more).wrapping_add(*ends.add(1));
            *sums = [_mm256_set1_epi32(begin); V];
        }
        let (mut a, mut b) = (of.a.add(2 * row * of.steps), of.b);
        for _ in 0..of.steps {
            let mut columns = [_mm256_setzero_si256(); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = _mm256_loadu_si256(b.add(8 * v).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let size = _mm256_set1_epi32(*a.add(2 * r));
                let turned = _mm256_set1_epi32(*a.add(2 * r + 1));
                for (sum, columns) in sums.iter_mut().zip(&columns) {
                    let two = _mm256_maddubs_epi16(size, _mm256_xor_si256(*columns, turned));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(two, ones));
                }
            }
            a = a.add(2 * R);
            b = b.add(NR);
        }
        for (r, sums) in sums.iter().enumerate() {
            let channel = row + r;
            let vectors = of
                .vectors
                .with(*of.scale.add(channel), *of.bias.add(channel));
            let packed = vectors.bytes(sums[0], sums[V - 1]);
            let y = y.add(channel * of.apart);
            if V == 2 && of.width == NR {
                _mm_storeu_si128(y.cast(), packed);
                continue;
            }
            let mut all = [0u8; NR];
            _mm_storeu_si128(all.as_mut_ptr().cast(), packed);
            y.copy_from_nonoverlapping(all.as_ptr(), of.width);
        }
    }

    /// 16 bytes of a row from `at` on, zeros where it ends.
    #[inline(always)]
    unsafe fn load(row: &[u8], at: usize) -> __m128i {
        if let Some(bytes) = row.get(at..at + NR) {
            return _mm_loadu_si128(bytes.as_ptr().cast());
        }
        let mut bytes = [0u8; NR];
        let rest = row.get(at..).unwrap_or_default();
        bytes[..rest.len()].copy_from_slice(rest);
        _mm_loadu_si128(bytes.as_ptr().cast())
    }

    /// Words of 16 elements of each row: numbers 0 to 3 and 8 to 11, then the others.
    #[inline(always)]
    unsafe fn store([a, b, c, d]: [__m128i; 4], to: *mut i32) {
        let ab = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
        let cd = _mm256_set_m128i(_mm_unpackhi_epi8(c, d), _mm_unpacklo_epi8(c, d));
        _mm256_storeu_si256(to.cast(), _mm256_unpacklo_epi16(ab, cd));
        _mm256_storeu_si256(to.add(8).cast(), _mm256_unpackhi_epi16(ab, cd));
    }

    /// # Safety
    /// The machine has AVX2; `to` has room.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn panels(
        rows: [&[u8]; 4],
        count: usize,
        flip: u8,
        to: &mut [i32],
        apart: usize,
    ) {
        let flip = _mm_set1_epi8(flip as i8);
        for i in 0..count.div_ceil(NR) {
            let mut elements = [flip; 4];
            for (elements, row) in elements.iter_mut().zip(rows) {
                *elements = _mm_xor_si128(load(row, NR * i), flip);
            }
            store(elements, to.as_mut_ptr().add(i * apart));
        }
    }

    /// # Safety
    /// The machine has AVX2; there are four rows for each 16 words.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn interleave(stage: &[u8], flip: u8, panel: &mut [i32]) {
        let flip = _mm_set1_epi8(flip as i8);
        let rows = stage.chunks_exact(4 * NR);
        for (rows, to) in rows.zip(panel.chunks_exact_mut(NR)) {
            let mut elements = [flip; 4];
            for (i, elements) in elements.iter_mut().enumerate() {
                let row = _mm_loadu_si128(rows.as_ptr().add(NR * i).cast());
                *elements = _mm_xor_si128(row, flip);
            }
            store(elements, to.as_mut_ptr());
        }
    }
}
