//! What happens to a tile of C while it is hot.

use std::ops::Range;

use super::super::parallel::SharedMut;
use super::super::simd::Simd;
use super::super::vmath::scalar;
use super::MatView;

/// The activation of an [`Epilogue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    None,
    /// `max(x, 0)`, NaN stays NaN.
    Relu,
    /// `min(max(x, 0), 6)`, NaN stays NaN.
    Relu6,
    /// `x Phi(x)`.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
}

/// `after(activation(acc + bias) + residual)`, each optional.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// `[n]`, added to each row.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Activation,
    /// `[m, n]` with `col_stride` 1, added last.
    pub residual: Option<MatView<'a>>,
    /// Applied to all of that.
    pub after: Activation,
}

impl Epilogue<'_> {
    /// Stores the product itself.
    pub const NONE: Epilogue<'static> = Epilogue {
        bias: None,
        activation: Activation::None,
        residual: None,
        after: Activation::None,
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

    /// Whether the product is stored unchanged.
    fn is_none(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.activates_nothing()
    }

    fn activates_nothing(&self) -> bool {
        self.activation == Activation::None && self.after == Activation::None
    }

    /// Applies itself to a rectangle of C.
    ///
    /// # Safety
    /// Needs the instructions of `S`; C has the rectangle, which no other task touches.
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

    /// Applies itself to `c`, the elements of row `row` from column `col`.
    ///
    /// # Safety
    /// Needs the instructions of `S`.
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

/// Applies a function to elements.
///
/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn activate<S: Simd>(activation: Activation, c: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Relu => map(c, scalar::relu),
        Activation::Relu6 => map(c, scalar::relu6),
        Activation::Gelu => map(c, scalar::gelu::<S>),
        Activation::GeluTanh => map(c, scalar::gelu_tanh::<S>),
        Activation::Silu => map(c, scalar::silu::<S>),
        Activation::Sigmoid => map(c, scalar::sigmoid::<S>),
        Activation::Tanh => map(c, scalar::tanh::<S>),
    }
}

#[inline(always)]
fn map(c: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in c {
        *x = f(*x);
    }
}
