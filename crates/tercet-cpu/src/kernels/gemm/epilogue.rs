//! GEMM epilogue, applied to a tile of C while it is in cache.

use std::ops::Range;

use super::super::parallel::SharedMut;
use super::super::simd::Simd;
use super::super::vmath::scalar;
use super::MatView;

/// Activation of an [`GemmEpilogue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmActivation {
    /// Identity.
    None,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `min(max(x, 0), 6)`; NaN stays NaN.
    Relu6,
    /// `x Phi(x)`.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
}

/// Epilogue `after(activation(acc + bias) + residual)`; each part is optional.
#[derive(Clone, Copy, Debug)]
pub struct GemmEpilogue<'a> {
    /// Bias `[n]`, added to each row.
    pub bias: Option<&'a [f32]>,
    /// Activation after the bias.
    pub activation: GemmActivation,
    /// Residual `[m, n]` with `col_stride` 1, added after the activation.
    pub residual: Option<MatView<'a>>,
    /// Activation that is applied last.
    pub after: GemmActivation,
}

impl GemmEpilogue<'_> {
    /// Empty epilogue: stores the unchanged product.
    pub const NONE: GemmEpilogue<'static> = GemmEpilogue {
        bias: None,
        activation: GemmActivation::None,
        residual: None,
        after: GemmActivation::None,
    };

    pub(crate) fn check(&self, m: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert!(
                bias.len() >= n,
                "bias has {} elements, n is {n}",
                bias.len()
            );
        }
        if let Some(r) = &self.residual {
            r.check();
            assert!(
                r.rows == m && r.cols == n && (r.col_stride == 1 || n <= 1),
                "the residual must be {m}x{n} with unit column stride"
            );
        }
    }

    /// True if the product is stored unchanged.
    fn is_none(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.activates_nothing()
    }

    fn activates_nothing(&self) -> bool {
        self.activation == GemmActivation::None && self.after == GemmActivation::None
    }

    /// Applies the epilogue to a rectangle of C.
    ///
    /// # Safety
    /// Requires the instructions of `S`; the rectangle is inside C, and no other task accesses it.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        c: SharedMut<f32>,
        c_stride: usize,
    ) {
        if self.is_none() {
            return;
        }
        for row in rows {
            let c = c.slice(row * c_stride + cols.start, cols.len());
            self.apply::<S>(c, row, cols.start);
        }
    }

    /// Applies the epilogue to `c`, the elements of row `row` starting at column `col`.
    ///
    /// # Safety
    /// Requires the instructions of `S`.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd>(&self, c: &mut [f32], row: usize, col: usize) {
        if let Some(bias) = self.bias {
            for (c, b) in c.iter_mut().zip(&bias[col..]) {
                *c += *b;
            }
        }
        activate::<S>(self.activation, c);
        if let Some(residual) = &self.residual {
            let start = row * residual.row_stride + col;
            for (c, r) in c.iter_mut().zip(&residual.data[start..]) {
                *c += *r;
            }
        }
        activate::<S>(self.after, c);
    }
}

/// Applies an activation to elements.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn activate<S: Simd>(activation: GemmActivation, c: &mut [f32]) {
    match activation {
        GemmActivation::None => {}
        GemmActivation::Relu => map(c, scalar::relu),
        GemmActivation::Relu6 => map(c, scalar::relu6),
        GemmActivation::Gelu => map(c, scalar::gelu::<S>),
        GemmActivation::GeluTanh => map(c, scalar::gelu_tanh::<S>),
        GemmActivation::Silu => map(c, scalar::silu::<S>),
        GemmActivation::Sigmoid => map(c, scalar::sigmoid::<S>),
        GemmActivation::Tanh => map(c, scalar::tanh::<S>),
    }
}

#[inline(always)]
fn map(c: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in c {
        *x = f(*x);
    }
}
