//! Convolution in f32, by three kernels: one channel of x for each channel of y (`depthwise`), channels side
//! by side over windows read in place (`direct`), and a product with columns for what is left (`columns`).
//! Which one runs follows from weights and attributes, not from sizes of x, so that constant weights are
//! packed once; `rows`, which takes long rows from `depthwise`, reads the same weights and makes the same bits.
//!
//! An element of y is a chain of `fma` over channels and then taps, in the blocks of its kernel; it depends on
//! the level, never on threads or on how windows are cut.

mod columns;
mod depthwise;
mod direct;
mod last;
mod rows;
mod slab;
mod sums;
mod tile;
mod windows;

use super::gemm::Activation;
use super::parallel::{SharedMut, Threads};
use super::simd::SimdLevel;
pub use last::{
    LastEnd, LastSource, conv_last, conv_last_scratch_len, pack_conv_last, packed_conv_last_len,
};
pub(crate) use last::{extreme_greater, extreme_lesser};
use slab::Blocks;
pub use windows::Windows;

/// Multiply-adds below which waking another thread costs more than it gains.
const SERIAL_WORK: usize = 1 << 16;
/// Tasks for each thread that keep all busy to the end.
const TASKS: usize = 6;

/// A convolution of `[batch, groups * channels, ..]` with `[groups * m, channels, ..]`.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Windows of a channel.
    pub windows: Windows,
    /// Entries of x.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of x in a group.
    pub channels: usize,
    /// Channels of y in a group.
    pub m: usize,
}

/// The kernel of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Depthwise,
    Direct,
    Columns,
}

impl ConvShape {
    /// Products of a sum.
    pub(crate) fn k(&self) -> usize {
        self.channels * self.windows.taps()
    }

    fn way(&self) -> Way {
        /// Channels that fill most of a vector.
        const MANY: usize = 12;
        match self.channels {
            _ if !self.windows.is_compact() => Way::Columns,
            1 if self.groups >= MANY || self.groups >= self.m => Way::Depthwise,
            // With one tap columns are elements of x: packing them costs less than transposing sums.
            1.. if self.m >= MANY && self.windows.taps() > 1 => Way::Direct,
            _ => Way::Columns,
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

/// The weights of a convolution.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// `[groups * m, channels, ..]`, dense and row-major.
    Plain(&'a [f32]),
    /// As [`pack_conv`] writes them.
    Packed(&'a [f32]),
}

/// Floats of packed weights; `None` where a convolution reads them as they are. Sizes of x make no
/// difference.
#[must_use]
pub fn packed_conv_len(level: SimdLevel, shape: &ConvShape) -> Option<usize> {
    match shape.way() {
        Way::Depthwise => Some(depthwise::packed_len(level, shape)),
        Way::Direct => Some(direct::packed_len(level, shape)),
        Way::Columns => None,
    }
}

/// Packs weights for a convolution of [`packed_conv_len`] floats.
///
/// # Panics
/// If `w` has another length than the shape says, or `out` is shorter than [`packed_conv_len`].
pub fn pack_conv(
    level: SimdLevel,
    threads: Threads,
    shape: &ConvShape,
    w: &[f32],
    out: &mut [f32],
) {
    assert_eq!(w.len(), shape.groups * shape.m * shape.k());
    match shape.way() {
        Way::Depthwise => depthwise::pack(level, shape, w, out),
        Way::Direct => direct::pack(level, threads, shape, w, out),
        Way::Columns => panic!("these weights are read as they are"),
    }
}

/// Floats of scratch that [`conv`] needs, with room for packed weights; it grows with the sizes of x.
#[must_use]
pub fn conv_scratch_len(level: SimdLevel, threads: usize, shape: &ConvShape) -> usize {
    let shape = &shape.flattened();
    let part = match shape.way() {
        Way::Depthwise => depthwise::scratch_len(level, shape),
        Way::Direct => direct::scratch_len(level, shape),
        Way::Columns => columns::scratch_len(level, shape),
    };
    threads * part + packed_conv_len(level, shape).unwrap_or(0)
}

/// `y = activation(x * w + bias)`; everything dense and row-major.
///
/// # Panics
/// If a slice has another length than the shape says, or `scratch` is shorter than
/// [`conv_scratch_len`] asks.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn conv(
    level: SimdLevel,
    threads: Threads,
    shape: &ConvShape,
    x: &[f32],
    w: Weights<'_>,
    bias: Option<&[f32]>,
    activation: Activation,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(x, bias, y);
    if y.is_empty() {
        return;
    }
    let threads = match y.len() * shape.k() < SERIAL_WORK {
        true => Threads::Serial,
        false => threads,
    };
    let call = Call {
        shape: &shape.flattened(),
        x,
        bias,
        activation,
        last: false,
    };
    let (packed, scratch) = match (packed_conv_len(level, shape), w) {
        (None, Weights::Plain(w)) => {
            return columns::run(level, threads, &call, w, y, scratch);
        }
        (None, Weights::Packed(_)) => panic!("these weights are read as they are"),
        (Some(_), Weights::Packed(packed)) => (packed, scratch),
        (Some(len), Weights::Plain(w)) => {
            let (packed, rest) = scratch.split_at_mut(len);
            pack_conv(level, threads, shape, w, packed);
            (&*packed, rest)
        }
    };
    match shape.way() {
        Way::Depthwise => depthwise::run(level, threads, &call, packed, y, scratch),
        Way::Direct | Way::Columns => direct::run(level, threads, &call, packed, y, scratch),
    }
}

/// The arguments that all tasks share.
struct Call<'a> {
    shape: &'a ConvShape,
    x: &'a [f32],
    bias: Option<&'a [f32]>,
    activation: Activation,
    /// Whether y has its channels last.
    last: bool,
}

/// What the tasks of a call share where they take blocks of windows.
struct Job<'a> {
    call: &'a Call<'a>,
    /// As the kernel packed them.
    weights: &'a [f32],
    blocks: Blocks,
    y: SharedMut<f32>,
}
