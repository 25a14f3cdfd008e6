//! Tiles and columns of products of bytes with AVX2.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_extract_epi8, _mm_loadu_si128,
    _mm_madd_epi16, _mm_maddubs_epi16, _mm_set1_epi8, _mm_set1_epi16, _mm_set1_epi32,
    _mm_setzero_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm_xor_si128,
    _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set_m128i, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_shuffle_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
    _mm256_xor_si256,
};

use super::super::finish::avx2::Vectors;
use super::{Block, ByteCall, Ends, HEAD, NR, ROWS};

/// Channels for 16 windows, with `V` = 1 for 4, with 0 for two at most.
///
/// # Safety
/// As [`super::channels`], which has compared lengths.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn channels<const V: usize>(
    call: &ByteCall<'_>,
    block: &Block<'_>,
    ends: Ends<'_>,
    y: *mut u8,
) {
    // Elements of x are codes without sign less 128, not less their zero point.
    let more = 128 - i32::from(call.codes.flipped_zero());
    let of = Tile {
        a: block.a.as_ptr(),
        b: block.b.as_ptr(),
        steps: block.b.len() / NR,
        sums: ends.sums.as_ptr(),
        heads: ends.heads.as_ptr(),
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
        if V == 0 {
            for window in 0..block.width {
                window_of_four(&of, row, window, y);
            }
        } else {
            tile::<ROWS, V>(&of, row, y);
        }
    }
    match (count - whole, V) {
        (0, _) => {}
        (1, 2) => tile::<1, 2>(&of, whole, y),
        (2, 2) => tile::<2, 2>(&of, whole, y),
        (_, 2) => tile::<3, 2>(&of, whole, y),
        (1, _) => tile::<1, 1>(&of, whole, y),
        (2, _) => tile::<2, 1>(&of, whole, y),
        _ => tile::<3, 1>(&of, whole, y),
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
    sums: *const i32,
    more: i32,
    /// See [`Ends`].
    heads: *const i32,
    /// Windows, and from one channel of y to the next.
    width: usize,
    apart: usize,
    scale: *const f32,
    bias: *const f32,
    vectors: Vectors,
}

impl Tile {
    /// Whether the bits of a block's columns are as they are, and how many words its channels have at their end.
    #[inline(always)]
    unsafe fn head(&self, row: usize) -> (bool, *const i32) {
        let head = self.heads.add(row / ROWS * HEAD);
        (*head != 0, head.add(1))
    }

    /// What the sums of a channel begin with.
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

/// Adds to each pair of a sum's bytes of x by weights.
#[inline(always)]
unsafe fn add(sum: &mut __m256i, two: __m256i) {
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}

/// The bytes of `R` channels from `row` on.
#[inline(always)]
unsafe fn tile<const R: usize, const V: usize>(of: &Tile, row: usize, y: *mut u8) {
    let mut sums = [[_mm256_setzero_si256(); V]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        *sums = [_mm256_set1_epi32(of.begin(row + r)); V];
    }
    let (mut a, mut b) = (of.a.add(2 * row * of.steps), of.b);
    let (plain, more) = of.head(row);
    if !plain {
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
        return finish(of, row, &sums, y);
    }
    for _ in 0..of.steps {
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
    finish(of, row, &sums, y);
}

/// What the sums of a channel become in 16 bits.
#[inline(always)]
unsafe fn words<const V: usize>(of: &Tile, channel: usize, sums: &[__m256i; V]) -> __m256i {
    let (scale, bias) = (*of.scale.add(channel), *of.bias.add(channel));
    let vectors = of.vectors.with(scale, bias);
    vectors.words(sums[0], sums[V - 1])
}

/// Writes the bytes of `R` channels, two at a time.
#[inline(always)]
unsafe fn finish<const R: usize, const V: usize>(
    of: &Tile,
    row: usize,
    sums: &[[__m256i; V]; R],
    y: *mut u8,
) {
    for r in (0..R).step_by(2) {
        let other = (r + 1).min(R - 1);
        let words = [
            words(of, row + r, &sums[r]),
            words(of, row + other, &sums[other]),
        ];
        let rows = of.vectors.rows(words);
        for (r, bytes) in [r, other].into_iter().zip(rows) {
            let y = y.add((row + r) * of.apart);
            if V == 2 && of.width == NR {
                _mm_storeu_si128(y.cast(), bytes);
                continue;
            }
            let mut all = [0u8; NR];
            _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
            y.copy_from_nonoverlapping(all.as_ptr(), of.width);
        }
    }
}

/// The bytes of [`ROWS`] channels from `row` on of one window, whose weights of a step are a vector.
#[inline(always)]
unsafe fn window_of_four(of: &Tile, row: usize, window: usize, y: *mut u8) {
    let (a, b) = (of.a.add(2 * row * of.steps), of.b.add(window));
    let (plain, more) = of.head(row);
    let mut all = [0i32; 2 * ROWS];
    // Where the sum of each channel lies among lanes.
    let apart = if plain { 1 } else { 2 };
    if plain {
        let ones = _mm_set1_epi16(1);
        let mut sums = _mm_setzero_si128();
        for i in 0..of.steps {
            let x = _mm_set1_epi32(*b.add(i * NR));
            let two = _mm_maddubs_epi16(x, _mm_loadu_si128(a.add(i * ROWS).cast()));
            sums = _mm_add_epi32(sums, _mm_madd_epi16(two, ones));
        }
        _mm_storeu_si128(all.as_mut_ptr().cast(), sums);
        let mut a = a.add(ROWS * of.steps);
        for (r, sum) in all[..ROWS].iter_mut().enumerate() {
            for _ in 0..*more.add(r) {
                let x = _mm_set1_epi32(*b.add(*a.add(1) as usize));
                let two = _mm_maddubs_epi16(x, _mm_set1_epi32(*a));
                *sum = sum.wrapping_add(_mm_cvtsi128_si32(_mm_madd_epi16(two, ones)));
                a = a.add(2);
            }
        }
    } else {
        // Numbers of odd lanes mean nothing.
        let mut sums = _mm256_setzero_si256();
        for i in 0..of.steps {
            let words = _mm256_loadu_si256(a.add(i * 2 * ROWS).cast());
            let turned = _mm256_shuffle_epi32::<0b11_11_01_01>(words);
            let x = _mm256_xor_si256(_mm256_set1_epi32(*b.add(i * NR)), turned);
            add(&mut sums, _mm256_maddubs_epi16(words, x));
        }
        _mm256_storeu_si256(all.as_mut_ptr().cast(), sums);
    }
    for r in 0..ROWS {
        let channel = row + r;
        let sum = _mm256_set1_epi32(all[apart * r].wrapping_add(of.begin(channel)));
        let vectors = of
            .vectors
            .with(*of.scale.add(channel), *of.bias.add(channel));
        let bytes = vectors.bytes(sum, sum);
        *y.add(channel * of.apart + window) = _mm_extract_epi8::<0>(bytes) as u8;
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
