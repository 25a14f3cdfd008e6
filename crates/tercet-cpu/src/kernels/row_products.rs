//! Products of a row by a matrix `[k, n]` in the row's own type: blocks of columns, whose sums stay
//! in registers while k passes. The terms of a sum are added in order, integers wrap.

use super::simd::{Simd, SimdLevel, simd_dispatch};

/// Columns of a block.
pub(crate) const COLUMNS: usize = 32;
/// Rows that are multiplied together, if there are as many: each element of B is then loaded once for
/// all of them. The sums are the same as those of single rows.
pub(crate) const ROWS: usize = 4;

/// Element type of the products.
pub(crate) trait RowProductElem: bytemuck::Pod + Send + Sync {
    /// Zero.
    const ZERO: Self;

    /// Computes `sum + a * b`.
    fn plus_product(sum: Self, a: Self, b: Self) -> Self;

    /// Computes columns `first..first + y.len()`, at most [`COLUMNS`], of the product of the row
    /// `a` by `b [k, n]`.
    ///
    /// # Panics
    /// If `b` is shorter than `k n`, or the columns are outside of it.
    fn row_product(
        level: SimdLevel,
        n: usize,
        first: usize,
        a: &[Self],
        b: &[Self],
        y: &mut [Self],
    );

    /// Computes [`COLUMNS`] columns of the products of several rows, as [`Self::row_product`] does.
    ///
    /// # Panics
    /// As [`Self::row_product`]; also if `a` does not have [`ROWS`] rows.
    fn row_block(
        level: SimdLevel,
        n: usize,
        first: usize,
        a: &[Self],
        b: &[Self],
        y: [&mut [Self]; ROWS],
    );
}

macro_rules! elements {
    ($($t:ty: $zero:expr, |$sum:ident, $a:ident, $b:ident| $with:expr;)*) => {$(impl RowProductElem for $t {
        const ZERO: $t = $zero;

        #[inline(always)]
        fn plus_product($sum: $t, $a: $t, $b: $t) -> $t { $with }

        fn row_product(level: SimdLevel, n: usize, first: usize, a: &[$t], b: &[$t], y: &mut [$t]) {
            simd_dispatch!(fn run(n: usize, first: usize, a: &[$t], b: &[$t], y: &mut [$t]) = row_product_body::<$t>);
            run(level, n, first, a, b, y);
        }

        fn row_block(level: SimdLevel, n: usize, first: usize, a: &[$t], b: &[$t], y: [&mut [$t]; ROWS]) {
            simd_dispatch!(fn run(n: usize, first: usize, a: &[$t], b: &[$t], y: [&mut [$t]; ROWS]) = row_block_body::<$t>);
            run(level, n, first, a, b, y);
        }
    })*};
}
elements! {
    f64: 0.0, |sum, a, b| sum + a * b;
    i64: 0, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b));
    i32: 0, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b));
    u32: 0, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b));
    i8: 0, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b));
    u8: 0, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b));
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn row_product_body<S: Simd, T: RowProductElem>(
    n: usize,
    first: usize,
    a: &[T],
    b: &[T],
    y: &mut [T],
) {
    let mut sums = [T::ZERO; COLUMNS];
    let width = y.len();
    if width == COLUMNS {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, b) in sums.iter_mut().zip(&b[first..first + COLUMNS]) {
                *sum = T::plus_product(*sum, *a, *b);
            }
        }
    } else {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, b) in sums.iter_mut().zip(&b[first..first + width]) {
                *sum = T::plus_product(*sum, *a, *b);
            }
        }
    }
    y.copy_from_slice(&sums[..width]);
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn row_block_body<S: Simd, T: RowProductElem>(
    n: usize,
    first: usize,
    a: &[T],
    b: &[T],
    y: [&mut [T]; ROWS],
) {
    // Two vectors of F64 for each row: the sums of all rows fit the registers.
    match S::LANES {
        16 => row_block_by::<T, 16>(n, first, a, b, y),
        8 => row_block_by::<T, 8>(n, first, a, b, y),
        _ => row_block_by::<T, 4>(n, first, a, b, y),
    }
}

/// Computes the block `W` columns at a time.
#[inline(always)]
fn row_block_by<T: RowProductElem, const W: usize>(
    n: usize,
    first: usize,
    a: &[T],
    b: &[T],
    mut y: [&mut [T]; ROWS],
) {
    let k = a.len() / ROWS;
    let rows: [&[T]; ROWS] = std::array::from_fn(|row| &a[row * k..][..k]);
    for from in (0..COLUMNS).step_by(W) {
        let mut sums = [[T::ZERO; W]; ROWS];
        for (i, b) in b.chunks_exact(n).take(k).enumerate() {
            let b = &b[first + from..][..W];
            for (sums, row) in sums.iter_mut().zip(rows) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = T::plus_product(*sum, row[i], *b);
                }
            }
        }
        for (y, sums) in y.iter_mut().zip(&sums) {
            y[from..from + W].copy_from_slice(sums);
        }
    }
}
