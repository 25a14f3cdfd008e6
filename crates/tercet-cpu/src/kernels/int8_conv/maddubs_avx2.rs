//! AVX2 micro-kernels and packing for products with `maddubs`.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_extract_epi8, _mm_loadu_si128,
    _mm_madd_epi16, _mm_maddubs_epi16, _mm_set1_epi8, _mm_set1_epi16, _mm_set1_epi32,
    _mm_setzero_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm_xor_si128,
    _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_blend_epi32,
    _mm256_castsi256_si128, _mm256_cmpgt_epi16, _mm256_extracti128_si256, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_epi8, _mm256_max_epi16, _mm256_min_epi8,
    _mm256_min_epi16, _mm256_min_epi32, _mm256_or_si256, _mm256_packs_epi16,
    _mm256_permute4x64_epi64, _mm256_sad_epu8, _mm256_set_m128i, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_shuffle_epi32,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_sub_epi16, _mm256_sub_epi32,
    _mm256_testz_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16, _mm256_xor_si256,
};

use super::super::requantize::avx2::RequantizeVectors;
use super::{
    GROUP_WEIGHTS, HEAD, Int8ConvArgs, MAX_SIZE, MaddubsPacking, MaddubsTile, MaddubsWeightGroup,
    NR, ROWS,
};

/// Sink for the sums of channels.
pub(in super::super) trait ChannelSumSink: Copy {
    /// True if the packed columns contain at most two windows, stored one after the other, with
    /// each word repeated [`ROWS`] times.
    const ALONE: bool;

    /// Stores the sums of `R` channels from `row` on.
    ///
    /// # Safety
    /// The machine has AVX2, and the channels are among those of the sink.
    unsafe fn tile<const R: usize, const V: usize>(self, row: usize, sums: &[[__m256i; V]; R]);

    /// Stores the sums of [`ROWS`] channels from `row` on for one window.
    ///
    /// # Safety
    /// Same as [`ChannelSumSink::tile`].
    unsafe fn window(self, row: usize, window: usize, sums: [i32; ROWS]);
}

/// Computes channels for 16 windows; with `V` = 1 for 8 windows, with `V` = 0 for at most two.
///
/// # Safety
/// The machine has AVX2; the sink has room for channels and windows.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn channels<S: ChannelSumSink, const V: usize>(of: &MaddubsTile, to: S) {
    let whole = of.count / ROWS * ROWS;
    for row in (0..whole).step_by(ROWS) {
        if V == 0 {
            for window in 0..of.width {
                window_of_four(of, row, window, to);
            }
        } else {
            tile::<S, ROWS, V>(of, row, to);
        }
    }
    match (of.count - whole, V) {
        (0, _) => {}
        (1, 2) => tile::<S, 1, 2>(of, whole, to),
        (2, 2) => tile::<S, 2, 2>(of, whole, to),
        (_, 2) => tile::<S, 3, 2>(of, whole, to),
        (1, _) => tile::<S, 1, 1>(of, whole, to),
        (2, _) => tile::<S, 2, 1>(of, whole, to),
        _ => tile::<S, 3, 1>(of, whole, to),
    }
}

impl MaddubsTile {
    /// Packing format of a block, and the numbers of excess words of its channels.
    #[inline(always)]
    unsafe fn head(&self, row: usize) -> (i32, *const i32) {
        let head = self.heads.add(row / ROWS * HEAD);
        (*head, head.add(1))
    }

    /// Initial value of the sum of a channel, for any of its windows.
    #[inline(always)]
    unsafe fn begin(&self, channel: usize) -> i32 {
        let sums = self.sums.add(2 * channel);
        (*sums).wrapping_mul(self.more).wrapping_add(*sums.add(1))
    }
}

#[inline(always)]
unsafe fn columns<const V: usize>(b: *const i32) -> [__m256i; V] {
    let mut columns = [_mm256_setzero_si256(); V];
    for (v, columns) in columns.iter_mut().enumerate() {
        *columns = _mm256_loadu_si256(b.add(8 * v).cast());
    }
    columns
}

/// Adds pairs of 16-bit products to the 32-bit sums.
#[inline(always)]
unsafe fn add(sum: &mut __m256i, two: __m256i) {
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}

/// Computes the sums of `R` channels from `row` on.
#[inline(always)]
unsafe fn tile<S: ChannelSumSink, const R: usize, const V: usize>(
    of: &MaddubsTile,
    row: usize,
    to: S,
) {
    let mut sums = [[_mm256_setzero_si256(); V]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        *sums = [_mm256_set1_epi32(of.begin(row + r)); V];
    }
    let (mut a, mut b) = (of.a.add(2 * row * of.steps), of.b);
    let (kind, more) = of.head(row);
    if kind == MaddubsPacking::SignFlipped as i32 {
        for _ in 0..of.steps {
            let columns = columns::<V>(b);
            for (r, sums) in sums.iter_mut().enumerate() {
                let size = _mm256_set1_epi32(*a.add(2 * r));
                let turned = _mm256_set1_epi32(*a.add(2 * r + 1));
                for (sum, x) in sums.iter_mut().zip(&columns) {
                    add(
                        sum,
                        _mm256_maddubs_epi16(size, _mm256_xor_si256(*x, turned)),
                    );
                }
            }
            a = a.add(2 * R);
            b = b.add(NR);
        }
        return to.tile(row, &sums);
    }
    let mut left = of.steps;
    if kind == MaddubsPacking::Twos as i32 {
        while left >= 2 {
            let (first, second) = (columns::<V>(b), columns::<V>(b.add(NR)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = _mm256_set1_epi32(*a.add(r));
                let next = _mm256_set1_epi32(*a.add(R + r));
                for (v, sum) in sums.iter_mut().enumerate() {
                    let two = _mm256_maddubs_epi16(first[v], weight);
                    let more = _mm256_maddubs_epi16(second[v], next);
                    add(sum, _mm256_add_epi16(two, more));
                }
            }
            a = a.add(2 * R);
            b = b.add(2 * NR);
            left -= 2;
        }
    }
    for _ in 0..left {
        let columns = columns::<V>(b);
        for (r, sums) in sums.iter_mut().enumerate() {
            let weight = _mm256_set1_epi32(*a.add(r));
            for (sum, x) in sums.iter_mut().zip(&columns) {
                add(sum, _mm256_maddubs_epi16(*x, weight));
            }
        }
        a = a.add(R);
        b = b.add(NR);
    }
    for (r, sums) in sums.iter_mut().enumerate() {
        for _ in 0..*more.add(r) {
            let weight = _mm256_set1_epi32(*a);
            let columns = columns::<V>(of.b.add(*a.add(1) as usize));
            for (sum, x) in sums.iter_mut().zip(&columns) {
                add(sum, _mm256_maddubs_epi16(*x, weight));
            }
            a = a.add(2);
        }
    }
    to.tile(row, &sums);
}

/// Computes the sums of [`ROWS`] channels from `row` on for one window; the weights of a step form
/// a vector.
#[inline(always)]
unsafe fn window_of_four<S: ChannelSumSink>(of: &MaddubsTile, row: usize, window: usize, to: S) {
    let own = if S::ALONE { ROWS * of.steps } else { 1 };
    // Distance between the words of the window.
    let next = if S::ALONE { ROWS } else { NR };
    let (a, b) = (of.a.add(2 * row * of.steps), of.b.add(window * own));
    let (kind, more) = of.head(row);
    let mut all = [0i32; 2 * ROWS];
    // Lane distance between the sums of two channels.
    let mut apart = 1;
    if kind == MaddubsPacking::SignFlipped as i32 {
        apart = 2;
        // The contents of odd lanes are not used.
        let mut sums = _mm256_setzero_si256();
        for i in 0..of.steps {
            let words = _mm256_loadu_si256(a.add(i * 2 * ROWS).cast());
            let turned = _mm256_shuffle_epi32::<0b11_11_01_01>(words);
            let x = _mm256_xor_si256(_mm256_set1_epi32(*b.add(i * next)), turned);
            add(&mut sums, _mm256_maddubs_epi16(words, x));
        }
        _mm256_storeu_si256(all.as_mut_ptr().cast(), sums);
    } else {
        let ones = _mm_set1_epi16(1);
        let mut sums = _mm_setzero_si128();
        let mut first = 0;
        if S::ALONE {
            // Each of the two vectors of sums takes two steps per iteration.
            let mut twos = [_mm256_setzero_si256(); 2];
            while first + 4 <= of.steps {
                for (i, sums) in twos.iter_mut().enumerate() {
                    let at = (first + 2 * i) * ROWS;
                    let x = _mm256_loadu_si256(b.add(at).cast());
                    let weights = _mm256_loadu_si256(a.add(at).cast());
                    add(sums, _mm256_maddubs_epi16(x, weights));
                }
                first += 4;
            }
            let both = _mm256_add_epi32(twos[0], twos[1]);
            sums = _mm_add_epi32(
                _mm256_castsi256_si128(both),
                _mm256_extracti128_si256::<1>(both),
            );
        }
        for i in first..of.steps {
            let x = _mm_set1_epi32(*b.add(i * next));
            let two = _mm_maddubs_epi16(x, _mm_loadu_si128(a.add(i * ROWS).cast()));
            sums = _mm_add_epi32(sums, _mm_madd_epi16(two, ones));
        }
        _mm_storeu_si128(all.as_mut_ptr().cast(), sums);
        let mut a = a.add(ROWS * of.steps);
        for (r, sum) in all[..ROWS].iter_mut().enumerate() {
            for _ in 0..*more.add(r) {
                let x = _mm_set1_epi32(*b.add(*a.add(1) as usize / NR * next));
                let two = _mm_maddubs_epi16(x, _mm_set1_epi32(*a));
                *sum = sum.wrapping_add(_mm_cvtsi128_si32(_mm_madd_epi16(two, ones)));
                a = a.add(2);
            }
        }
    }
    let mut sums = [0; ROWS];
    for (r, sum) in sums.iter_mut().enumerate() {
        *sum = all[apart * r].wrapping_add(of.begin(row + r));
    }
    to.window(row, window, sums);
}

/// Sink that requantizes sums to bytes.
#[derive(Clone, Copy)]
pub(super) struct RequantizedBytes {
    /// First window of the first channel, and the channel stride.
    y: *mut u8,
    stride: usize,
    width: usize,
    scale: *const f32,
    bias: *const f32,
    vectors: RequantizeVectors,
}

impl RequantizedBytes {
    /// Sink for channels from `first` on.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn new(
        call: &Int8ConvArgs<'_>,
        first: usize,
        width: usize,
        y: *mut u8,
    ) -> RequantizedBytes {
        RequantizedBytes {
            y,
            stride: call.shape.windows.count(),
            width,
            scale: call.finish.scale.as_ptr().add(first),
            bias: call.finish.bias.as_ptr().add(first),
            vectors: RequantizeVectors::from_requantize(&call.finish),
        }
    }

    /// Requantization parameters of a channel.
    #[inline(always)]
    unsafe fn requantize_vectors(&self, channel: usize) -> RequantizeVectors {
        let (scale, bias) = (*self.scale.add(channel), *self.bias.add(channel));
        self.vectors.with(scale, bias)
    }

    /// Requantizes the sums of a channel to 16 bits.
    #[inline(always)]
    unsafe fn words<const V: usize>(&self, channel: usize, sums: &[__m256i; V]) -> __m256i {
        self.requantize_vectors(channel).words(sums[0], sums[V - 1])
    }
}

impl ChannelSumSink for RequantizedBytes {
    const ALONE: bool = false;

    /// Processes two channels per iteration.
    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(self, row: usize, sums: &[[__m256i; V]; R]) {
        for r in (0..R).step_by(2) {
            let other = (r + 1).min(R - 1);
            let words = [
                self.words(row + r, &sums[r]),
                self.words(row + other, &sums[other]),
            ];
            let rows = self.vectors.rows(words);
            for (r, bytes) in [r, other].into_iter().zip(rows) {
                let y = self.y.add((row + r) * self.stride);
                if V == 2 && self.width == NR {
                    _mm_storeu_si128(y.cast(), bytes);
                    continue;
                }
                let mut all = [0u8; NR];
                _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                y.copy_from_nonoverlapping(all.as_ptr(), self.width);
            }
        }
    }

    #[inline(always)]
    unsafe fn window(self, row: usize, window: usize, sums: [i32; ROWS]) {
        for (r, sum) in sums.into_iter().enumerate() {
            let sum = _mm256_set1_epi32(sum);
            let bytes = self.requantize_vectors(row + r).bytes(sum, sum);
            *self.y.add((row + r) * self.stride + window) = _mm_extract_epi8::<0>(bytes) as u8;
        }
    }
}

/// Converts weights to words, for encodings whose values minus the zero point are signed bytes
/// after XOR with `flip`. Also computes the sum of the weights, and whether a word may need an
/// excess word: see [`super::split_overflow`].
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn weight_group(look: &mut MaddubsWeightGroup, flip: u8, together: bool) {
    let bytes = _mm256_loadu_si256(look.bytes.as_ptr().cast());
    let bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(flip as i8));
    _mm256_storeu_si256(look.words.as_mut_ptr().cast(), bytes);
    let zero = _mm256_setzero_si256();
    let above = _mm256_max_epi8(bytes, zero);
    let below = _mm256_min_epi8(bytes, zero);
    let (mut above, mut below) = (
        _mm256_maddubs_epi16(_mm256_set1_epi8(1), above),
        _mm256_maddubs_epi16(_mm256_set1_epi8(1), below),
    );
    if together {
        // Swaps adjacent lanes.
        above = _mm256_add_epi16(above, _mm256_shuffle_epi32::<0b10_11_00_01>(above));
        below = _mm256_add_epi16(below, _mm256_shuffle_epi32::<0b10_11_00_01>(below));
    }
    let over = _mm256_or_si256(
        _mm256_cmpgt_epi16(above, _mm256_set1_epi16(MAX_SIZE)),
        _mm256_cmpgt_epi16(_mm256_set1_epi16(-MAX_SIZE), below),
    );
    look.over = _mm256_testz_si256(over, over) == 0;
    // Removes the 128 per byte that the conversion to unsigned bytes added.
    let moved = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    let mut sums = [0i64; 4];
    _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_sad_epu8(moved, zero));
    look.sum = sums.iter().sum::<i64>() as i32 - 128 * GROUP_WEIGHTS as i32;
}

/// Clips 16 weights like [`super::split_overflow`], `TOGETHER` words per step.
#[inline(always)]
unsafe fn kept<const TOGETHER: usize>(w: __m256i) -> __m256i {
    let zero = _mm256_setzero_si256();
    let all = _mm256_set1_epi32(MAX_SIZE.into());
    let mut kept = zero;
    for below in [false, true] {
        let (size, most) = match below {
            false => (w, 127),
            true => (_mm256_sub_epi16(zero, w), 128),
        };
        let size = _mm256_max_epi16(size, zero);
        let size = _mm256_min_epi16(size, _mm256_set1_epi16(most));
        // A 16-bit lane has one weight of each of the word's two pairs, which are limited
        // separately.
        let first = _mm256_and_si256(size, _mm256_set1_epi32(0xffff));
        let second = _mm256_srli_epi32::<16>(size);
        let in_room = |room: __m256i| {
            let first = _mm256_min_epi32(first, room);
            let second = _mm256_min_epi32(second, _mm256_sub_epi32(room, first));
            [first, second]
        };
        let mut own = in_room(all);
        if TOGETHER == 2 {
            // The second word of a pair is limited by what the first word has used, so the words
            // are swapped.
            let used = _mm256_add_epi32(own[0], own[1]);
            let used = _mm256_shuffle_epi32::<0b01_00_11_10>(used);
            let of_second = in_room(_mm256_sub_epi32(all, used));
            for (own, of_second) in own.iter_mut().zip(of_second) {
                *own = _mm256_blend_epi32::<0b1100_1100>(*own, of_second);
            }
        }
        let own = _mm256_or_si256(own[0], _mm256_slli_epi32::<16>(own[1]));
        kept = match below {
            false => _mm256_add_epi16(kept, own),
            true => _mm256_sub_epi16(kept, own),
        };
    }
    kept
}

/// Clips weights as [`super::split_overflow`] does, `TOGETHER` words per step, and returns the words. The
/// excess remains in `w`.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn split<const TOGETHER: usize>(
    w: &mut [i16; GROUP_WEIGHTS],
) -> [i32; GROUP_WEIGHTS / 4] {
    let mut halves = [_mm256_setzero_si256(); 2];
    for (half, w) in halves.iter_mut().zip(w.chunks_exact_mut(GROUP_WEIGHTS / 2)) {
        let all = _mm256_loadu_si256(w.as_ptr().cast());
        *half = kept::<TOGETHER>(all);
        _mm256_storeu_si256(w.as_mut_ptr().cast(), _mm256_sub_epi16(all, *half));
    }
    // `packs` interleaves the 128-bit halves of its operands.
    let bytes = _mm256_packs_epi16(halves[0], halves[1]);
    let mut words = [0; GROUP_WEIGHTS / 4];
    _mm256_storeu_si256(
        words.as_mut_ptr().cast(),
        _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes),
    );
    words
}

/// Loads 16 bytes of a row from `at` on; zeros past its end.
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

/// Interleaves 16 elements of four rows into 16 words, one byte per row: first the words of
/// elements 0 to 3 and 8 to 11, then the other words.
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
