//! Channels-last (NHWC) convolution: y is `[batch, windows, channels]`. x has the same layout,
//! except in a first layer.
//!
//! A few 1x1 windows form the rows of a GEMM with packed weights. Other windows are read tap by tap
//! through a pointer table ([`dense`]): nothing is copied, and padding is read from a buffer of
//! zeros. Depthwise convolutions are vectorized over channels ([`depthwise`]).
//!
//! An element of y is a chain of `fma` over taps and then channels, in blocks of at most
//! [`gemm::CHAIN`].

mod dense;
mod depthwise;
mod tile;

use super::super::gemm::{self, GemmActivation, GemmEpilogue, MatView, PackedB};
use super::super::parallel::{KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{ConvCall, ConvShape, SERIAL_WORK, direct};

/// Maximum number of rows that are computed as a plain GEMM.
const MIN_ROWS_FOR_GEMM: usize = 8;

/// Layout of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NhwcInputLayout {
    /// Dense `[batch, channels, ..]`; only for few channels, one group and compact windows.
    ChannelsFirst,
    /// Contiguous channels; strides of batch entries, rows and columns in elements.
    ChannelsLast([usize; 3]),
}

/// Algorithm of a convolution; depends only on weights and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NhwcConvAlgorithm {
    Depthwise,
    Dense,
}

fn way(shape: &ConvShape) -> NhwcConvAlgorithm {
    match shape.groups {
        1 => NhwcConvAlgorithm::Dense,
        _ => NhwcConvAlgorithm::Depthwise,
    }
}

/// Floats of packed weights; independent of the sizes of x.
#[must_use]
pub fn packed_nhwc_conv_len(level: SimdLevel, shape: &ConvShape) -> usize {
    match way(shape) {
        NhwcConvAlgorithm::Depthwise => shape.groups * shape.windows.taps(),
        NhwcConvAlgorithm::Dense => gemm::packed_b_len(level, shape.k(), shape.m),
    }
}

/// Packs weights `[groups * m, channels, ..]` into [`packed_nhwc_conv_len`] floats, for this layout
/// of x.
///
/// # Panics
/// If a length is wrong.
pub fn pack_nhwc_conv(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &ConvShape,
    is_first: bool,
    w: &[f32],
    out: &mut [f32],
) {
    assert_eq!(w.len(), shape.groups * shape.m * shape.k());
    let (taps, channels) = (shape.windows.taps(), shape.channels);
    match way(shape) {
        NhwcConvAlgorithm::Depthwise => depthwise::pack(level, shape, w, out),
        NhwcConvAlgorithm::Dense => {
            let w = MatView::row_major(w, shape.m, shape.k()).transposed();
            match is_first || taps == 1 || channels == 1 {
                true => gemm::pack_b(level, threads, w, out),
                false => gemm::pack_b_by_taps(level, threads, w, taps, out),
            }
        }
    }
}

/// Floats of scratch memory for [`nhwc_conv`]; monotonic in the sizes of x.
#[must_use]
pub fn nhwc_conv_scratch_len(
    level: SimdLevel,
    threads: usize,
    shape: &ConvShape,
    is_first: bool,
) -> usize {
    let part = match way(shape) {
        NhwcConvAlgorithm::Depthwise => depthwise::scratch_len(level, shape),
        NhwcConvAlgorithm::Dense if is_first => direct::scratch_len(level, shape),
        NhwcConvAlgorithm::Dense => dense::scratch_len(shape),
    };
    threads * part
}

/// Arguments of one convolution call, shared by its tasks.
struct NhwcConvTaskArgs<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    /// Strides of batch entries, rows and columns of x.
    strides: [usize; 3],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: GemmEpilogue<'a>,
    y: SharedMut<f32>,
}

/// Epilogue of an NHWC convolution.
#[derive(Clone, Copy, Debug)]
pub struct NhwcEpilogue<'a> {
    /// Activation of the sums and their bias.
    pub activation: GemmActivation,
    /// Residual of the size of y, added after the activation; dense kernels only.
    pub residual: Option<&'a [f32]>,
    /// Activation that is applied last.
    pub after: GemmActivation,
}

/// Computes `y = after(activation(x * w + bias) + residual)` with weights from [`pack_nhwc_conv`].
/// Windows have at most two axes. `x` is the whole input, from its first element.
///
/// # Panics
/// If a slice has the wrong length for the shape and layout, or `scratch` is shorter than
/// [`nhwc_conv_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn nhwc_conv(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &ConvShape,
    x: &[f32],
    source: NhwcInputLayout,
    packed: &[f32],
    bias: Option<&[f32]>,
    end: NhwcEpilogue<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let w = &shape.windows;
    let (rows, columns) = (shape.batch * w.count(), shape.groups * shape.m);
    assert!(w.kernel[0] == 1 && w.sizes[0] == 1 && w.out[0] == 1);
    assert_eq!(y.len(), rows * columns);
    assert!(bias.is_none_or(|b| b.len() == columns));
    assert!(packed.len() >= packed_nhwc_conv_len(level, shape));
    if y.is_empty() {
        return;
    }
    let threads = match y.len() * shape.k() < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let strides = match source {
        NhwcInputLayout::ChannelsFirst => {
            let call = ConvCall {
                shape,
                x,
                bias,
                activation: end.activation,
                is_nhwc: true,
            };
            assert!(end.residual.is_none() && end.after == GemmActivation::None);
            return direct::run(level, threads, &call, packed, y, scratch);
        }
        NhwcInputLayout::ChannelsLast(strides) => strides,
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
            .is_none_or(|r| r.len() == y.len() && way(shape) == NhwcConvAlgorithm::Dense)
    );
    let epilogue = GemmEpilogue {
        activation: end.activation,
        residual: end.residual.map(|r| MatView::row_major(r, rows, columns)),
        after: end.after,
        ..GemmEpilogue::NONE
    };
    if let Some(a) = as_rows(shape, x, strides, rows) {
        let b = PackedB::new(level, packed, shape.channels, shape.m);
        let epilogue = GemmEpilogue { bias, ..epilogue };
        return gemm::gemm_packed(level, threads, a, b, y, columns, &epilogue, &mut []);
    }
    let job = NhwcConvTaskArgs {
        shape,
        x,
        strides,
        weights: packed,
        bias,
        epilogue,
        y: SharedMut::new(y),
    };
    match way(shape) {
        NhwcConvAlgorithm::Depthwise => depthwise::run(level, threads, &job, scratch),
        NhwcConvAlgorithm::Dense => dense::run(level, threads, &job, scratch),
    }
}

/// The input as a matrix of `rows` rows, if the convolution is a GEMM with few rows. Such a GEMM is
/// limited by the bandwidth of reading weights, and the GEMM kernel reads them in several streams.
fn as_rows<'x>(
    shape: &ConvShape,
    x: &'x [f32],
    [entry, row, column]: [usize; 3],
    rows: usize,
) -> Option<MatView<'x>> {
    let w = &shape.windows;
    let even = rows <= MIN_ROWS_FOR_GEMM
        && (w.sizes[1] == 1 || row == w.sizes[2] * column)
        && (shape.batch == 1 || entry == w.sizes[1] * w.sizes[2] * column);
    let is_product =
        way(shape) == NhwcConvAlgorithm::Dense && w.is_identity() && even && shape.channels > 0;
    is_product.then_some(MatView {
        data: x,
        rows,
        cols: shape.channels,
        row_stride: column,
        col_stride: 1,
    })
}

simd_dispatch!(
    /// Elementwise maximum into `y`; NaN propagates.
    pub(crate) fn extreme_greater(y: &mut [f32], x: &[f32]) = greater_body
);
simd_dispatch!(
    /// Elementwise minimum into `y`; NaN propagates.
    pub(crate) fn extreme_lesser(y: &mut [f32], x: &[f32]) = lesser_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn greater_body<S: Simd>(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = if y.is_nan() || *y >= *x { *y } else { *x };
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn lesser_body<S: Simd>(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = if y.is_nan() || *y <= *x { *y } else { *x };
    }
}
