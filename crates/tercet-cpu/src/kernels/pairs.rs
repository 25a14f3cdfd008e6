//! A function of two operands that are broadcast to the result: each row of an operand is
//! contiguous, or one element.
//!
//! One call computes many rows, so that short rows cost little more than their elements.

use tercet_ir::MAX_RANK;

use super::simd::{Simd, simd_dispatch};
use super::vmath::{VmathComparison, scalar};

/// An operand: its elements from the first one on, and its strides over the axes of the result.
#[derive(Clone, Copy, Debug)]
pub struct PairOperand<'a, T> {
    /// Elements.
    pub x: &'a [T],
    /// Strides in elements; that of the last axis is 0 or 1.
    pub strides: [usize; MAX_RANK],
}

/// The operands, and the axes of the result.
#[derive(Clone, Copy, Debug)]
pub struct PairRows<'a, T> {
    /// Operands.
    pub operands: [PairOperand<'a, T>; 2],
    /// Number of axes, at least one.
    pub rank: usize,
    /// Sizes of the axes.
    pub sizes: [usize; MAX_RANK],
}

/// Arithmetic function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "conventional names")]
pub enum PairFn {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

impl<T: Copy> PairRows<'_, T> {
    /// Computes the elements of the result from index `first` on.
    #[inline(always)]
    fn each<U: Copy>(&self, first: usize, out: &mut [U], f: impl Fn(T, T) -> U) {
        let last = self.rank - 1;
        let cols = self.sizes[last];
        let [a, b] = &self.operands;
        // Index of the row along the outer axes, and the places of its first elements.
        let mut index = [0; MAX_RANK];
        let (mut rest, mut places) = (first / cols, [0, 0]);
        for axis in (0..last).rev() {
            index[axis] = rest % self.sizes[axis];
            rest /= self.sizes[axis];
            places[0] += index[axis] * a.strides[axis];
            places[1] += index[axis] * b.strides[axis];
        }
        let mut col = first % cols;
        let mut out = out;
        while !out.is_empty() {
            let n = (cols - col).min(out.len());
            let (row, after) = out.split_at_mut(n);
            out = after;
            match (a.strides[last], b.strides[last]) {
                (0, 0) => row.fill(f(a.x[places[0]], b.x[places[1]])),
                (0, _) => {
                    let x = a.x[places[0]];
                    let b = &b.x[places[1] + col..][..n];
                    row.iter_mut().zip(b).for_each(|(y, b)| *y = f(x, *b));
                }
                (_, 0) => {
                    let x = b.x[places[1]];
                    let a = &a.x[places[0] + col..][..n];
                    row.iter_mut().zip(a).for_each(|(y, a)| *y = f(*a, x));
                }
                _ => {
                    let (a, b) = (&a.x[places[0] + col..][..n], &b.x[places[1] + col..][..n]);
                    let pairs = row.iter_mut().zip(a).zip(b);
                    pairs.for_each(|((y, a), b)| *y = f(*a, *b));
                }
            }
            col = 0;
            for axis in (0..last).rev() {
                index[axis] += 1;
                places[0] += a.strides[axis];
                places[1] += b.strides[axis];
                if index[axis] < self.sizes[axis] {
                    break;
                }
                places[0] -= self.sizes[axis] * a.strides[axis];
                places[1] -= self.sizes[axis] * b.strides[axis];
                index[axis] = 0;
            }
        }
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn floats_body<S: Simd>(f: PairFn, rows: &PairRows<'_, f32>, first: usize, out: &mut [f32]) {
    match f {
        PairFn::Add => rows.each(first, out, |a, b| a + b),
        PairFn::Sub => rows.each(first, out, |a, b| a - b),
        PairFn::Mul => rows.each(first, out, |a, b| a * b),
        PairFn::Div => rows.each(first, out, |a, b| a / b),
        PairFn::Max => rows.each(first, out, scalar::maximum),
        PairFn::Min => rows.each(first, out, scalar::minimum),
    }
}

/// Integer sums, differences, products and extremes; never called for quotients.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn words_body<S: Simd>(f: PairFn, rows: &PairRows<'_, i64>, first: usize, out: &mut [i64]) {
    match f {
        PairFn::Add => rows.each(first, out, i64::wrapping_add),
        PairFn::Sub => rows.each(first, out, i64::wrapping_sub),
        PairFn::Mul => rows.each(first, out, i64::wrapping_mul),
        PairFn::Max => rows.each(first, out, |a, b| if a > b { a } else { b }),
        PairFn::Min => rows.each(first, out, |a, b| if a < b { a } else { b }),
        PairFn::Div => unreachable!("invariant: quotients of integers have another kernel"),
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn compare_body<S: Simd, T: Copy + PartialOrd>(
    f: VmathComparison,
    rows: &PairRows<'_, T>,
    first: usize,
    out: &mut [u8],
) {
    match f {
        VmathComparison::Eq => rows.each(first, out, |a, b| u8::from(a == b)),
        VmathComparison::Ne => rows.each(first, out, |a, b| u8::from(a != b)),
        VmathComparison::Lt => rows.each(first, out, |a, b| u8::from(a < b)),
        VmathComparison::Le => rows.each(first, out, |a, b| u8::from(a <= b)),
        VmathComparison::Gt => rows.each(first, out, |a, b| u8::from(a > b)),
        VmathComparison::Ge => rows.each(first, out, |a, b| u8::from(a >= b)),
    }
}

simd_dispatch!(
    /// Computes elements of the result from index `first` on, as by [`super::vmath`].
    ///
    /// # Panics
    /// If an operand is shorter than the sizes require.
    pub fn floats(f: PairFn, rows: &PairRows<'_, f32>, first: usize, out: &mut [f32]) = floats_body
);
simd_dispatch!(
    /// As [`floats`], for integers that wrap.
    pub fn words(f: PairFn, rows: &PairRows<'_, i64>, first: usize, out: &mut [i64]) = words_body
);
simd_dispatch!(
    /// Comparisons of floats: 0 or 1.
    pub fn compare_floats(f: VmathComparison, rows: &PairRows<'_, f32>, first: usize, out: &mut [u8]) = compare_body::<f32>
);
simd_dispatch!(
    /// Comparisons of integers: 0 or 1.
    pub fn compare_words(f: VmathComparison, rows: &PairRows<'_, i64>, first: usize, out: &mut [u8]) = compare_body::<i64>
);
simd_dispatch!(
    /// Comparisons of bytes: 0 or 1.
    pub fn compare_bytes(f: VmathComparison, rows: &PairRows<'_, u8>, first: usize, out: &mut [u8]) = compare_body::<u8>
);
