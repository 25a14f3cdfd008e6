//! Convolution in f32 with three kernels.
//!
//! - `depthwise`: one channel of x per channel of y. `rows` is its variant for long rows, with the
//!   same packed weights and the same bits.
//! - `direct`: vectorized over output channels, windows read in place.
//! - `columns`: GEMM with im2col, for all other cases.
//!
//! The choice depends on weights and attributes, not on sizes of x, so constant weights are packed
//! once.
//!
//! An element of y is a chain of `fma` over channels and then taps; each kernel splits the chain
//! into blocks in a fixed way. So the value depends on the SIMD level, but never on threads or on
//! the partition of windows into tasks.

mod columns;
mod depthwise;
mod direct;
mod nhwc;
mod rows;
mod slab;
mod sums;
mod tile;
mod windows;

use super::gemm::GemmActivation;
use super::parallel::{KernelThreads, SharedMut};
use super::simd::SimdLevel;
pub use nhwc::{
    NhwcEpilogue, NhwcInputLayout, nhwc_conv, nhwc_conv_scratch_len, pack_nhwc_conv,
    packed_nhwc_conv_len,
};
pub(crate) use nhwc::{extreme_greater, extreme_lesser};
use slab::ConvWindowBlocks;
pub use windows::ConvWindowAxes;

/// Multiply-adds below which waking another thread is not profitable.
const SERIAL_WORK: usize = 1 << 16;
/// Tasks per thread, for load balancing.
const TASKS: usize = 6;

/// Sizes of a convolution of `[batch, groups * channels, ..]` with `[groups * m, channels, ..]`.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Windows of a channel.
    pub windows: ConvWindowAxes,
    /// Number of batch entries of x.
    pub batch: usize,
    /// Number of channel groups.
    pub groups: usize,
    /// Channels of x per group.
    pub channels: usize,
    /// Channels of y per group.
    pub m: usize,
}

/// Convolution algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvAlgorithm {
    Depthwise,
    Direct,
    Columns,
}

impl ConvShape {
    /// Number of products in the sum of one element of y.
    pub(crate) fn k(&self) -> usize {
        self.channels * self.windows.taps()
    }

    fn way(&self) -> ConvAlgorithm {
        /// Number of channels that fill most of a vector.
        const MANY: usize = 12;
        match self.channels {
            _ if !self.windows.is_compact() => ConvAlgorithm::Columns,
            1 if self.groups >= MANY || self.groups >= self.m => ConvAlgorithm::Depthwise,
            // With one tap, the im2col columns are elements of x. Packing the columns costs less
            // than the transpose of the sums that `direct` needs.
            1.. if self.m >= MANY && self.windows.taps() > 1 => ConvAlgorithm::Direct,
            _ => ConvAlgorithm::Columns,
        }
    }

    fn flattened(&self) -> ConvShape {
        ConvShape {
            windows: self.windows.flattened(),
            ..*self
        }
    }

    fn check(&self, x: &[f32], bias: Option<&[f32]>, y: &[f32]) {
        let planes = self.batch * self.groups;
        let windows = self.windows.count();
        assert_eq!(x.len(), planes * self.channels * self.windows.plane());
        assert_eq!(y.len(), planes * self.m * windows);
        assert!(bias.is_none_or(|b| b.len() == self.groups * self.m));
    }
}

/// Weights of a convolution.
#[derive(Clone, Copy, Debug)]
pub enum ConvWeights<'a> {
    /// Dense row-major `[groups * m, channels, ..]`.
    Plain(&'a [f32]),
    /// Packed by [`pack_conv`].
    Packed(&'a [f32]),
}

/// Number of floats that the packed weights take; `None` if the algorithm reads unpacked weights.
/// It does not depend on the sizes of x.
#[must_use]
pub fn packed_conv_len(level: SimdLevel, shape: &ConvShape) -> Option<usize> {
    match shape.way() {
        ConvAlgorithm::Depthwise => Some(depthwise::packed_len(level, shape)),
        ConvAlgorithm::Direct => Some(direct::packed_len(level, shape)),
        ConvAlgorithm::Columns => None,
    }
}

/// Packs weights into [`packed_conv_len`] floats.
///
/// # Panics
/// If `w` does not have the length of the shape, or `out` is shorter than [`packed_conv_len`].
pub fn pack_conv(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &ConvShape,
    w: &[f32],
    out: &mut [f32],
) {
    assert_eq!(w.len(), shape.groups * shape.m * shape.k());
    match shape.way() {
        ConvAlgorithm::Depthwise => depthwise::pack(level, shape, w, out),
        ConvAlgorithm::Direct => direct::pack(level, threads, shape, w, out),
        ConvAlgorithm::Columns => panic!("this convolution takes unpacked weights"),
    }
}

/// Floats of scratch memory for [`conv`], including room for packed weights; monotonic in the sizes
/// of x.
#[must_use]
pub fn conv_scratch_len(level: SimdLevel, threads: usize, shape: &ConvShape) -> usize {
    let shape = &shape.flattened();
    let part = match shape.way() {
        ConvAlgorithm::Depthwise => depthwise::scratch_len(level, shape),
        ConvAlgorithm::Direct => direct::scratch_len(level, shape),
        ConvAlgorithm::Columns => columns::scratch_len(level, shape),
    };
    threads * part + packed_conv_len(level, shape).unwrap_or(0)
}

/// Computes `y = activation(x * w + bias)`; all operands are dense and row-major.
///
/// # Panics
/// If a slice does not have the length of the shape, or `scratch` is shorter than
/// [`conv_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn conv(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &ConvShape,
    x: &[f32],
    w: ConvWeights<'_>,
    bias: Option<&[f32]>,
    activation: GemmActivation,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(x, bias, y);
    if y.is_empty() {
        return;
    }
    let threads = match y.len() * shape.k() < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let call = ConvCall {
        shape: &shape.flattened(),
        x,
        bias,
        activation,
        is_nhwc: false,
    };
    let (packed, scratch) = match (packed_conv_len(level, shape), w) {
        (None, ConvWeights::Plain(w)) => {
            return columns::run(level, threads, &call, w, y, scratch);
        }
        (None, ConvWeights::Packed(_)) => panic!("this convolution takes unpacked weights"),
        (Some(_), ConvWeights::Packed(packed)) => (packed, scratch),
        (Some(len), ConvWeights::Plain(w)) => {
            let (packed, rest) = scratch.split_at_mut(len);
            pack_conv(level, threads, shape, w, packed);
            (&*packed, rest)
        }
    };
    match shape.way() {
        ConvAlgorithm::Depthwise => depthwise::run(level, threads, &call, packed, y, scratch),
        ConvAlgorithm::Direct | ConvAlgorithm::Columns => {
            direct::run(level, threads, &call, packed, y, scratch)
        }
    }
}

/// Arguments shared by all tasks.
struct ConvCall<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    bias: Option<&'a [f32]>,
    activation: GemmActivation,
    /// True if y is channels-last.
    is_nhwc: bool,
}

/// Arguments shared by the tasks of algorithms that process blocks of windows.
struct ConvTaskArgs<'a> {
    call: &'a ConvCall<'a>,
    /// Weights as packed by the algorithm.
    weights: &'a [f32],
    blocks: ConvWindowBlocks,
    y: SharedMut<f32>,
}
