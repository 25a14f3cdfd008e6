//! AVX2 packing and micro-kernels of the GEMM with u8 weights.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_loadu_si128, _mm_madd_epi16, _mm_maddubs_epi16,
    _mm_set1_epi16, _mm_set1_epi32, _mm_storeu_si128, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_castsi256_si128, _mm256_cmpgt_epi16, _mm256_cvtepu8_epi16,
    _mm256_extracti128_si256, _mm256_hadd_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_max_epi16, _mm256_min_epi16, _mm256_or_si256,
    _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srli_epi16,
    _mm256_storeu_si256, _mm256_sub_epi16, _mm256_testz_si256,
};

use super::super::super::maddubs::{ChannelSumSink, MAX_SIZE, ROWS};
use super::super::NR;
use super::super::avx2::{LANES, LimbGemmRows};
use super::U8GemmStepFit;

/// The four bytes of each word as 16-bit values: each of the two vectors has two of them.
type I16Halves = [__m256i; 2];

/// Splits a word into 16-bit values minus `midst`.
#[inline(always)]
unsafe fn halves(x: __m256i, midst: __m256i) -> I16Halves {
    let low = _mm256_and_si256(x, _mm256_set1_epi16(0xff));
    [
        _mm256_sub_epi16(low, midst),
        _mm256_sub_epi16(_mm256_srli_epi16::<8>(x), midst),
    ]
}

/// Packs the low bytes of both vectors into words.
#[inline(always)]
unsafe fn bytes_of([low, high]: I16Halves) -> __m256i {
    let low = _mm256_and_si256(low, _mm256_set1_epi16(0xff));
    _mm256_or_si256(low, _mm256_slli_epi16::<8>(high))
}

/// Subtracts `midst` from the elements of one or two steps, unless they exceed the limit of the
/// 16-bit sums. Adds the original elements to `sums`.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn center(
    columns: &mut [i32],
    midst: i16,
    sums: &mut [i32; NR],
) -> U8GemmStepFit {
    let zero = _mm256_setzero_si256();
    let (most, least) = (_mm256_set1_epi16(MAX_SIZE), _mm256_set1_epi16(-MAX_SIZE));
    let greatest = _mm256_set1_epi16(i16::from(i8::MAX));
    let midst = _mm256_set1_epi16(midst);
    let mut words = [[zero; 2]; 2];
    let (mut over, mut over_both) = (zero, zero);
    for half in 0..2 {
        let (mut above, mut below) = (zero, zero);
        let mut sum = _mm256_loadu_si256(sums.as_ptr().add(LANES * half).cast());
        for (i, columns) in columns.chunks_exact(NR).enumerate() {
            let x = _mm256_loadu_si256(columns[LANES * half..][..LANES].as_ptr().cast());
            add(&mut sum, _mm256_maddubs_epi16(x, _mm256_set1_epi8(1)));
            let [low, high] = halves(x, midst);
            let up = _mm256_add_epi16(_mm256_max_epi16(low, zero), _mm256_max_epi16(high, zero));
            let down = _mm256_add_epi16(_mm256_min_epi16(low, zero), _mm256_min_epi16(high, zero));
            // A difference of 128 is not a signed byte.
            let large = _mm256_cmpgt_epi16(_mm256_max_epi16(low, high), greatest);
            let large = _mm256_or_si256(large, _mm256_cmpgt_epi16(up, most));
            let small = _mm256_cmpgt_epi16(least, down);
            over = _mm256_or_si256(over, _mm256_or_si256(large, small));
            (above, below) = (_mm256_add_epi16(above, up), _mm256_add_epi16(below, down));
            words[i][half] = bytes_of([low, high]);
        }
        _mm256_storeu_si256(sums.as_mut_ptr().add(LANES * half).cast(), sum);
        let large = _mm256_cmpgt_epi16(above, most);
        let small = _mm256_cmpgt_epi16(least, below);
        over_both = _mm256_or_si256(over_both, _mm256_or_si256(large, small));
    }
    if _mm256_testz_si256(over, over) == 0 {
        return U8GemmStepFit::Over;
    }
    for (columns, words) in columns.chunks_exact_mut(NR).zip(words) {
        for (to, word) in columns.chunks_exact_mut(LANES).zip(words) {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), word);
        }
    }
    match _mm256_testz_si256(over_both, over_both) {
        0 => U8GemmStepFit::Each,
        _ => U8GemmStepFit::Both,
    }
}

/// Subtracts `midst` from the elements of a step, and calls `part` with parts that satisfy the
/// limit of the 16-bit sums.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn split(columns: &[i32], midst: i16, mut part: impl FnMut(&[i32; NR])) {
    let zero = _mm256_setzero_si256();
    let most = _mm256_set1_epi16(MAX_SIZE);
    let greatest = _mm256_set1_epi16(i16::from(i8::MAX));
    let least = _mm256_set1_epi16(-MAX_SIZE);
    let mut over = [[zero; 2]; 2];
    for (half, over) in over.iter_mut().enumerate() {
        let x = _mm256_loadu_si256(columns[LANES * half..][..LANES].as_ptr().cast());
        *over = halves(x, _mm256_set1_epi16(midst));
    }
    loop {
        let (mut words, mut left) = ([0; NR], zero);
        for (over, to) in over.iter_mut().zip(words.chunks_exact_mut(LANES)) {
            let [low, high] = *over;
            let up = _mm256_min_epi16(_mm256_max_epi16(low, zero), greatest);
            let down = _mm256_max_epi16(_mm256_min_epi16(low, zero), least);
            let room = _mm256_min_epi16(_mm256_sub_epi16(most, up), greatest);
            let other_up = _mm256_min_epi16(_mm256_max_epi16(high, zero), room);
            let room = _mm256_sub_epi16(least, down);
            let other_down = _mm256_max_epi16(_mm256_min_epi16(high, zero), room);
            let kept = [
                _mm256_add_epi16(up, down),
                _mm256_add_epi16(other_up, other_down),
            ];
            _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes_of(kept));
            *over = [
                _mm256_sub_epi16(low, kept[0]),
                _mm256_sub_epi16(high, kept[1]),
            ];
            left = _mm256_or_si256(left, _mm256_or_si256(over[0], over[1]));
        }
        part(&words);
        if _mm256_testz_si256(left, left) != 0 {
            return;
        }
    }
}

/// The words of a panel of several rows, with the index of the step of each.
pub(super) struct U8GemmPanelWords<'a> {
    /// Words of pairs of steps, and the index of the first step of each pair.
    pub(super) pairs: (&'a [i32], &'a [i32]),
    pub(super) unpaired: (&'a [i32], &'a [i32]),
    /// For each row of the panel, a constant that is added to its sums.
    pub(super) rows: &'a [i32],
}

/// The packed words of a single row, for panels of few rows.
#[derive(Clone, Copy)]
pub(super) struct U8GemmRow<'a> {
    /// The word of each step, repeated [`ROWS`] times.
    pub(super) words: &'a [i32],
    /// Excess words, each with its step index.
    pub(super) over: &'a [i32],
    /// Constant that is added to the sums of the row.
    pub(super) more: i32,
}

/// A packed panel.
pub(super) enum U8GemmPanel<'a> {
    /// At most two rows.
    TwoRows([U8GemmRow<'a>; 2]),
    /// More than two rows.
    Listed(U8GemmPanelWords<'a>),
}

/// Computes `count` columns of C from `column` on (one tile); `begin` has the initial value of each
/// column's sums.
///
/// # Safety
/// The machine has AVX2; the weights `a` contain every listed step, and the tile is inside C.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn columns(
    of: &U8GemmPanel<'_>,
    a: &[i32],
    begin: [i32; ROWS],
    (column, count): (usize, usize),
    to: LimbGemmRows<false>,
) {
    match of {
        U8GemmPanel::TwoRows(rows) => {
            for (row, of) in rows[..to.width].iter().enumerate() {
                let sums = row_sums(of, a, begin);
                match count {
                    1 => to.store::<1>(row, column, sums),
                    2 => to.store::<2>(row, column, sums),
                    3 => to.store::<3>(row, column, sums),
                    _ => to.store::<ROWS>(row, column, sums),
                }
            }
        }
        U8GemmPanel::Listed(of) if to.width <= LANES => {
            put(to, column, count, listed_tile::<1>(of, a, begin));
        }
        U8GemmPanel::Listed(of) => put(to, column, count, listed_tile::<2>(of, a, begin)),
    }
}

/// Stores the existing columns of a tile.
#[inline(always)]
unsafe fn put<const V: usize>(
    to: LimbGemmRows<false>,
    column: usize,
    count: usize,
    sums: [[__m256i; V]; ROWS],
) {
    match count {
        1 => to.tile(column, &[sums[0]]),
        2 => to.tile(column, &[sums[0], sums[1]]),
        3 => to.tile(column, &[sums[0], sums[1], sums[2]]),
        _ => to.tile(column, &sums),
    }
}

/// Adds products of byte pairs, or sums of two such products, to the column sums.
#[inline(always)]
unsafe fn add(sum: &mut __m256i, two: __m256i) {
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}

#[inline(always)]
unsafe fn listed_tile<const V: usize>(
    of: &U8GemmPanelWords<'_>,
    a: &[i32],
    begin: [i32; ROWS],
) -> [[__m256i; V]; ROWS] {
    let mut sums = [[_mm256_setzero_si256(); V]; ROWS];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            let row = _mm256_loadu_si256(of.rows.as_ptr().add(LANES * v).cast());
            *sum = _mm256_add_epi32(row, _mm256_set1_epi32(begin[r]));
        }
    }
    let mut x = of.pairs.1.as_ptr();
    for step in of.pairs.0 {
        let a = a.as_ptr().add(*step as usize * ROWS);
        for (r, sums) in sums.iter_mut().enumerate() {
            let weight = _mm256_set1_epi32(*a.add(r));
            let next = _mm256_set1_epi32(*a.add(ROWS + r));
            for (v, sum) in sums.iter_mut().enumerate() {
                let first = _mm256_loadu_si256(x.add(LANES * v).cast());
                let second = _mm256_loadu_si256(x.add(NR + LANES * v).cast());
                let two = _mm256_maddubs_epi16(weight, first);
                add(
                    sum,
                    _mm256_add_epi16(two, _mm256_maddubs_epi16(next, second)),
                );
            }
        }
        x = x.add(2 * NR);
    }
    let mut x = of.unpaired.1.as_ptr();
    for step in of.unpaired.0 {
        let a = a.as_ptr().add(*step as usize * ROWS);
        for (r, sums) in sums.iter_mut().enumerate() {
            let weight = _mm256_set1_epi32(*a.add(r));
            for (v, sum) in sums.iter_mut().enumerate() {
                let first = _mm256_loadu_si256(x.add(LANES * v).cast());
                add(sum, _mm256_maddubs_epi16(weight, first));
            }
        }
        x = x.add(NR);
    }
    sums
}

/// Computes the columns of a tile for one row. The weights of one step form a 128-bit vector, those
/// of two steps a 256-bit vector.
#[inline(always)]
unsafe fn row_sums(of: &U8GemmRow<'_>, a: &[i32], begin: [i32; ROWS]) -> __m128i {
    let steps = of.words.len();
    assert!(a.len() == steps);
    let mut twos = [_mm256_setzero_si256(); 2];
    let whole = steps / (2 * LANES) * (2 * LANES);
    for at in (0..whole).step_by(2 * LANES) {
        for (i, sums) in twos.iter_mut().enumerate() {
            let x = _mm256_loadu_si256(of.words.as_ptr().add(at + LANES * i).cast());
            let weights = _mm256_loadu_si256(a.as_ptr().add(at + LANES * i).cast());
            add(sums, _mm256_maddubs_epi16(weights, x));
        }
    }
    let both = _mm256_add_epi32(twos[0], twos[1]);
    let mut sums = _mm_add_epi32(
        _mm256_castsi256_si128(both),
        _mm256_extracti128_si256::<1>(both),
    );
    for (a, x) in a[whole..]
        .chunks_exact(ROWS)
        .zip(of.words[whole..].iter().step_by(ROWS))
    {
        add_one(&mut sums, a, *x);
    }
    for over in of.over.chunks_exact(2) {
        add_one(&mut sums, &a[over[0] as usize * ROWS..][..ROWS], over[1]);
    }
    let begin = _mm_loadu_si128(begin.as_ptr().cast());
    _mm_add_epi32(sums, _mm_add_epi32(begin, _mm_set1_epi32(of.more)))
}

/// Adds the products of one step of one row.
#[inline(always)]
unsafe fn add_one(sums: &mut __m128i, weights: &[i32], x: i32) {
    let weights = _mm_loadu_si128(weights.as_ptr().cast());
    let two = _mm_maddubs_epi16(weights, _mm_set1_epi32(x));
    *sums = _mm_add_epi32(*sums, _mm_madd_epi16(two, _mm_set1_epi16(1)));
}

/// Column tiles per call of [`few`].
pub(super) const FEW_TILES: usize = 4;

/// Products of a row of 16-bit elements, four per step, by the columns of up to [`FEW_TILES`]
/// tiles.
///
/// # Safety
/// The machine has AVX2. `x` has four elements and each tile four words per step.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn few(x: &[i16], weights: &[i32], steps: usize) -> [[i32; ROWS]; FEW_TILES] {
    let mut sums = [_mm256_setzero_si256(); FEW_TILES];
    let (x, w, tiles) = (x.as_ptr(), weights.as_ptr(), weights.len() / (ROWS * steps));
    if tiles == FEW_TILES {
        for step in 0..steps {
            let x = _mm256_set1_epi64x(x.add(4 * step).cast::<i64>().read_unaligned());
            for (tile, sum) in sums.iter_mut().enumerate() {
                let w = _mm_loadu_si128(w.add((tile * steps + step) * ROWS).cast());
                let products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(w), x);
                *sum = _mm256_add_epi32(*sum, products);
            }
        }
    } else {
        for (tile, sum) in sums[..tiles].iter_mut().enumerate() {
            for step in 0..steps {
                let x = _mm256_set1_epi64x(x.add(4 * step).cast::<i64>().read_unaligned());
                let w = _mm_loadu_si128(w.add((tile * steps + step) * ROWS).cast());
                let products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(w), x);
                *sum = _mm256_add_epi32(*sum, products);
            }
        }
    }
    // Each column has two adjacent sums.
    sums.map(|sum| {
        let columns = _mm256_permute4x64_epi64::<0b10_00>(_mm256_hadd_epi32(sum, sum));
        let mut to = [0; ROWS];
        _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_castsi256_si128(columns));
        to
    })
}
