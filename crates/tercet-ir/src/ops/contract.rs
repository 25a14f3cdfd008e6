//! The sum of products that the reference evaluation of every contraction uses.

use tercet_tensor::{DType, Tensor, row_major_strides};

use crate::ops::util::for_each_index;
use crate::scalar::Scalar;

/// The index structure of a contraction. The axes of the result are the batch, the left
/// row and the right column. An element is the sum of products over the axes `summed`. The offset of an element in an
/// operand is the sum of its offsets for these indices, in elements.
pub(crate) struct Contraction {
    /// Offsets of each batch in the left and the right operand.
    pub(crate) batch: Vec<(usize, usize)>,
    /// Offsets of the left operand's free axes.
    pub(crate) left: Vec<usize>,
    /// Offsets of the right operand's free axes.
    pub(crate) right: Vec<usize>,
    /// Offsets of the summed axes in the left and the right operand.
    pub(crate) summed: Vec<(usize, usize)>,
}

impl Contraction {
    /// The matmul of a left operand of `rows` rows of length `k` with a right operand. The right
    /// operand's element in row `k` and column `n` has the offset `k * strides.0 + n * strides.1`.
    pub(crate) fn matrix(rows: usize, k: usize, n: usize, strides: (usize, usize)) -> Contraction {
        Contraction {
            batch: vec![(0, 0)],
            left: (0..rows).map(|m| m * k).collect(),
            right: (0..n).map(|n| n * strides.1).collect(),
            summed: (0..k).map(|k| (k, k * strides.0)).collect(),
        }
    }

    /// Contracts two tensors of one dtype. Float sums are `f64` and not yet rounded; integer sums
    /// wrap.
    pub(crate) fn eval(&self, left: &Tensor, right: &Tensor) -> Vec<Scalar> {
        let d = left.dtype();
        match d.is_float() {
            true => self.eval_floats(&left.to_f64s(), &right.to_f64s()),
            false => self.eval_ints(d, &left.to_i64s(), &right.to_i64s()),
        }
    }

    /// Contracts in `f64`.
    pub(crate) fn eval_floats(&self, left: &[f64], right: &[f64]) -> Vec<Scalar> {
        self.each(|l, r| {
            let products = self.summed.iter().map(|&(i, j)| left[l + i] * right[r + j]);
            Scalar::F(products.fold(0.0, |sum, p| sum + p))
        })
    }

    fn eval_ints(&self, d: DType, left: &[i64], right: &[i64]) -> Vec<Scalar> {
        self.each(|l, r| {
            let products = self
                .summed
                .iter()
                .map(|&(i, j)| left[l + i].wrapping_mul(right[r + j]));
            Scalar::I(d.wrap_i64(products.fold(0, i64::wrapping_add)))
        })
    }

    fn each(&self, sum: impl Fn(usize, usize) -> Scalar) -> Vec<Scalar> {
        let mut sums = Vec::with_capacity(self.batch.len() * self.left.len() * self.right.len());
        for &(lb, rb) in &self.batch {
            for &l in &self.left {
                sums.extend(self.right.iter().map(|&r| sum(lb + l, rb + r)));
            }
        }
        sums
    }
}

/// The flat offsets of all positions along `axes` of a dense tensor, the last axis fastest.
pub(crate) fn offsets(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    let strides = row_major_strides(shape);
    let sizes: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
    let mut flat = Vec::with_capacity(sizes.iter().product());
    for_each_index(&sizes, |index| {
        flat.push(index.iter().zip(axes).map(|(&i, &a)| i * strides[a]).sum());
    });
    flat
}
