//! Convolution with channels last: y is `[batch, windows, channels]`, and x too, but for that of a first layer.
//!
//! A few windows of one element are rows of a product with packed weights. Other windows are rows whose parts lie where
//! addresses of each tap say ([`dense`]): nothing is copied, padding is read from zeros. One channel of x for each
//! of y is done by vectors of channels ([`depthwise`]).
//!
//! An element of y is a chain of `fma` over taps and then channels, in blocks of at most [`gemm::CHAIN`].

mod dense;
mod depthwise;
mod tile;

use super::super::gemm::{self, Activation, Epilogue, MatView, PackedB};
use super::super::parallel::{SharedMut, Threads};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{Call, ConvShape, SERIAL_WORK, direct};

/// Rows that are a product.
const FEW_ROWS: usize = 8;

/// How x lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSource {
    /// `[batch, channels, ..]`, dense: for few channels, of one group and windows that are compact.
    First,
    /// Channels side by side: elements from one entry, one row, one column to the next.
    Last([usize; 3]),
}

/// The kernel of a convolution; it follows from weights and attributes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Depthwise,
    Dense,
}

fn way(shape: &ConvShape) -> Way {
    match shape.groups {
        1 => Way::Dense,
        _ => Way::Depthwise,
    }
}

/// Floats of packed weights; sizes of x make no difference.
#[must_use]
pub fn packed_conv_last_len(level: SimdLevel, shape: &ConvShape) -> usize {
    match way(shape) {
        Way::Depthwise => shape.groups * shape.windows.taps(),
        Way::Dense => gemm::packed_b_len(level, shape.k(), shape.m),
    }
}

/// Packs weights `[groups * m, channels, ..]` into [`packed_conv_last_len`] floats, for x of this kind.
///
/// # Panics
/// If a length is wrong.
pub fn pack_conv_last(
    level: SimdLevel,
    threads: Threads,
    shape: &ConvShape,
    is_first: bool,
    w: &[f32],
    out: &mut [f32],
) {
    assert_eq!(w.len(), shape.groups * shape.m * shape.k());
    let (taps, channels) = (shape.windows.taps(), shape.channels);
    match way(shape) {
        Way::Depthwise => depthwise::pack(level, shape, w, out),
        Way::Dense => {
            let w = MatView::row_major(w, shape.m, shape.k()).transposed();
            match is_first || taps == 1 || channels == 1 {
                true => gemm::pack_b(level, threads, w, out),
                false => gemm::pack_b_by_taps(level, threads, w, taps, out),
            }
        }
    }
}

/// Floats of scratch that [`conv_last`] needs; it grows with the sizes of x.
#[must_use]
pub fn conv_last_scratch_len(
    level: SimdLevel,
    threads: usize,
    shape: &ConvShape,
    is_first: bool,
) -> usize {
    let part = match way(shape) {
        Way::Depthwise => depthwise::scratch_len(level, shape),
        Way::Dense if is_first => direct::scratch_len(level, shape),
        Way::Dense => dense::scratch_len(shape),
    };
    threads * part
}

/// The convolution of one call.
struct Job<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    /// From one entry, row, column of x to the next.
    strides: [usize; 3],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: Epilogue<'a>,
    y: SharedMut<f32>,
}

/// What a convolution does with its sums.
#[derive(Clone, Copy, Debug)]
pub struct LastEnd<'a> {
    /// Applied to sums with their bias.
    pub activation: Activation,
    /// As large as y, added after that; of dense kernels only.
    pub residual: Option<&'a [f32]>,
    /// Applied last.
    pub after: Activation,
}

/// `y = after(activation(x * w + bias) + residual)` with weights as [`pack_conv_last`] wrote them; windows have at most two axes. `x`
/// begins with the first element.
///
/// # Panics
/// If a slice has another length than shape and source say, or `scratch` is shorter than [`conv_last_scratch_len`] asks.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn conv_last(
    level: SimdLevel,
    threads: Threads,
    shape: &ConvShape,
    x: &[f32],
    source: LastSource,
    packed: &[f32],
    bias: Option<&[f32]>,
    end: LastEnd<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let w = &shape.windows;
    let (rows, columns) = (shape.batch * w.count(), shape.groups * shape.m);
    assert!(w.kernel[0] == 1 && w.sizes[0] == 1 && w.out[0] == 1);
    assert_eq!(y.len(), rows * columns);
    assert!(bias.is_none_or(|b| b.len() == columns));
    assert!(packed.len() >= packed_conv_last_len(level, shape));
    if y.is_empty() {
        return;
    }
    let threads = match y.len() * shape.k() < SERIAL_WORK {
        true => Threads::Serial,
        false => threads,
    };
    let strides = match source {
        LastSource::First => {
            let call = Call {
                shape,
                x,
                bias,
                activation: end.activation,
                last: true,
            };
            assert!(end.residual.is_none() && end.after == Activation::None);
            return direct::run(level, threads, &call, packed, y, scratch);
        }
        LastSource::Last(strides) => strides,
    };
    let ends = [shape.batch, w.sizes[1], w.sizes[2]];
    let far: usize = strides
        .iter()
        .zip(ends)
        .map(|(s, n)| s * (n.max(1) - 1))
        .sum();
    assert!(ends.contains(&0) || far + shape.groups * shape.channels <= x.len());
    assert!(
        end.residual
            .is_none_or(|r| r.len() == y.len() && way(shape) == Way::Dense)
    );
    let epilogue = Epilogue {
        activation: end.activation,
        residual: end.residual.map(|r| MatView::row_major(r, rows, columns)),
        after: end.after,
        ..Epilogue::NONE
    };
    if let Some(a) = as_rows(shape, x, strides, rows) {
        let b = PackedB::new(level, packed, shape.channels, shape.m);
        let epilogue = Epilogue { bias, ..epilogue };
        return gemm::gemm_packed(level, threads, a, b, y, columns, &epilogue, &mut []);
    }
    let job = Job {
        shape,
        x,
        strides,
        weights: packed,
        bias,
        epilogue,
        y: SharedMut::new(y),
    };
    match way(shape) {
        Way::Depthwise => depthwise::run(level, threads, &job, scratch),
        Way::Dense => dense::run(level, threads, &job, scratch),
    }
}

/// The operand of a convolution as a matrix of `rows` rows, where it is a product of few: these are bound by reading weights, which products
/// read in several streams.
fn as_rows<'x>(
    shape: &ConvShape,
    x: &'x [f32],
    [entry, row, column]: [usize; 3],
    rows: usize,
) -> Option<MatView<'x>> {
    let w = &shape.windows;
    let even = rows <= FEW_ROWS
        && (w.sizes[1] == 1 || row == w.sizes[2] * column)
        && (shape.batch == 1 || entry == w.sizes[1] * w.sizes[2] * column);
    let is_product = way(shape) == Way::Dense && w.is_identity() && even && shape.channels > 0;
    is_product.then_some(MatView {
        data: x,
        rows,
        cols: shape.channels,
        row_stride: column,
        col_stride: 1,
    })
}

simd_dispatch!(
    /// The greater of each pair, in `y`; NaN stays.
    pub(crate) fn extreme_greater(y: &mut [f32], x: &[f32]) = greater_body
);
simd_dispatch!(
    /// The lesser of each pair, in `y`; NaN stays.
    pub(crate) fn extreme_lesser(y: &mut [f32], x: &[f32]) = lesser_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn greater_body<S: Simd>(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = if y.is_nan() || *y >= *x { *y } else { *x };
    }
}

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn lesser_body<S: Simd>(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = if y.is_nan() || *y <= *x { *y } else { *x };
    }
}
