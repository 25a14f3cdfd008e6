//! Int8 convolution: sums of products of 8-bit values minus their zero points in I32, requantized
//! to bytes.
//!
//! Weights and activations are packed into words. The usual format is two 16-bit neighbours along
//! the depth: one instruction multiplies both and adds the products, without saturation. If weights
//! are small enough, a word contains four bytes (`maddubs`).
//!
//! Algorithms:
//!
//! - `winograd`: for 3 x 3 windows with many channels (AVX2).
//! - `direct`: few channels; windows read rows of x in place, two channels per word (AVX2).
//! - `dense`: GEMM with im2col; on aarch64 by `sdot` or `smmla`, if all weights are signed bytes.
//! - `depthwise` and `depthwise_stride2`: one channel per group.
//!
//! A slab (`slab`) is a copy of the rows of x that some windows need. A slab includes the padding,
//! and elements with a distance of one stride are adjacent in it.
//!
//! Windows on three axes are not supported. The same packing also serves I32 GEMMs with i8 weights
//! (`gemm`; `gemm_u8_weights` if many weights are large).

#[cfg(target_arch = "x86_64")]
mod channel_pairs;
mod dense;
mod depthwise;
#[cfg(target_arch = "x86_64")]
mod depthwise_stride2;
#[cfg(target_arch = "x86_64")]
mod direct;
#[cfg(target_arch = "x86_64")]
pub mod gemm;
#[cfg(target_arch = "x86_64")]
mod maddubs;
mod requantize;
mod slab;
#[cfg(target_arch = "x86_64")]
mod winograd;

use self::dense::Int8WordFormat;
use super::conv::{ConvShape, ConvWindowAxes};
use super::parallel::KernelThreads;
use super::simd::{SimdLevel, SimdLevelKind};

/// Tasks per thread, for load balancing.
const TASKS: usize = 4;
/// Maximum taps of a depthwise window; larger ones use the GEMM.
const MAX_TAPS: usize = 64;

/// Encoding of numbers as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8Encoding {
    /// True for I8, false for U8.
    pub signed: bool,
    /// Zero point.
    pub zero: i32,
}

impl Int8Encoding {
    /// XOR mask that makes a byte unsigned and preserves the order.
    fn flip(self) -> u8 {
        if self.signed { 0x80 } else { 0 }
    }

    /// Zero point after applying [`Int8Encoding::flip`].
    fn flipped_zero(self) -> i16 {
        i16::from(self.zero as u8 ^ self.flip())
    }

    /// Value of a byte minus the zero point.
    fn value(self, byte: u8) -> i16 {
        i16::from(byte ^ self.flip()) - self.flipped_zero()
    }
}

/// Requantization of sums: the low byte of `clamp(round(sum scale[o] + bias[o]) + zero, lo, hi)`.
#[derive(Clone, Copy, Debug)]
pub struct Requantize<'a> {
    /// Scale per channel of y.
    pub scale: &'a [f32],
    /// Bias per channel of y.
    pub bias: &'a [f32],
    /// Zero point of y.
    pub zero: i32,
    /// Minimum output value.
    pub lo: i32,
    /// Maximum output value.
    pub hi: i32,
}

/// Operands of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Int8ConvArgs<'a> {
    /// Sizes of the convolution.
    pub shape: &'a ConvShape,
    /// Input `[batch, groups channels, ..]`.
    pub x: &'a [u8],
    /// Encoding of x.
    pub codes: Int8Encoding,
    /// Encoding of the original weights.
    pub weights: Int8Encoding,
    /// Requantization of the sums.
    pub finish: Requantize<'a>,
}

/// Int8 convolution algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Int8ConvAlgorithm {
    Depthwise,
    #[cfg(target_arch = "x86_64")]
    Tiles,
    #[cfg(target_arch = "x86_64")]
    Direct,
    #[cfg(target_arch = "x86_64")]
    DepthwiseStride2,
    Dense(Int8WordFormat),
}

impl Int8ConvAlgorithm {
    /// Independent of the sizes of x, so that weights can be packed before those are known.
    fn select(level: SimdLevel, shape: &ConvShape, weights: Int8Encoding) -> Int8ConvAlgorithm {
        if shape.channels == 1 && shape.windows.taps() <= MAX_TAPS && shape.groups > 1 {
            #[cfg(target_arch = "x86_64")]
            if has_avx2(level) && depthwise_stride2::supports(shape, weights) {
                return Int8ConvAlgorithm::DepthwiseStride2;
            }
            return Int8ConvAlgorithm::Depthwise;
        }
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && winograd::supports(shape) {
            return Int8ConvAlgorithm::Tiles;
        }
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && direct::supports(shape) {
            return Int8ConvAlgorithm::Direct;
        }
        Int8ConvAlgorithm::Dense(Int8WordFormat::select(level, weights))
    }
}

/// True if there is a kernel for these windows: at most two axes.
pub fn supports(windows: &ConvWindowAxes) -> bool {
    let w = windows;
    (w.kernel[0], w.sizes[0], w.out[0], w.pad[0]) == (1, 1, 1, 0)
}

/// Words of packed weights.
pub fn packed_len(level: SimdLevel, shape: &ConvShape, weights: Int8Encoding) -> usize {
    match Int8ConvAlgorithm::select(level, shape, weights) {
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::Tiles => winograd::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::Direct => direct::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::DepthwiseStride2 => depthwise_stride2::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::Dense(Int8WordFormat::Quads) => {
            maddubs::MaddubsChannels::new(shape).packed_len()
        }
        #[cfg(target_arch = "aarch64")]
        Int8ConvAlgorithm::Dense(Int8WordFormat::Bytes) => {
            shape.groups * shape.m * Int8WordFormat::Bytes.weight_words(shape)
        }
        Int8ConvAlgorithm::Depthwise | Int8ConvAlgorithm::Dense(Int8WordFormat::Pairs) => {
            shape.groups * shape.m * shape.k().div_ceil(2)
        }
    }
}

/// Packs two elements into a word.
fn pair(low: i16, high: i16) -> i32 {
    (i32::from(low) & 0xffff) | (i32::from(high) << 16)
}

/// Packs weights `[groups m, channels, taps]`. Of the shape, only the sizes of the weights are
/// used.
///
/// # Panics
/// If `w` or `out` is shorter than the shape requires.
pub fn pack(level: SimdLevel, shape: &ConvShape, codes: Int8Encoding, w: &[u8], out: &mut [i32]) {
    let way = Int8ConvAlgorithm::select(level, shape, codes);
    #[cfg(target_arch = "x86_64")]
    match way {
        Int8ConvAlgorithm::Tiles => return winograd::pack(shape, codes, w, out),
        Int8ConvAlgorithm::Direct => return direct::pack(shape, codes, w, out),
        Int8ConvAlgorithm::DepthwiseStride2 => {
            return depthwise_stride2::pack(shape, codes, w, out);
        }
        Int8ConvAlgorithm::Dense(Int8WordFormat::Quads) => {
            return maddubs::pack(&maddubs::MaddubsChannels::new(shape), codes, w, out);
        }
        Int8ConvAlgorithm::Depthwise | Int8ConvAlgorithm::Dense(Int8WordFormat::Pairs) => {}
    }
    #[cfg(target_arch = "aarch64")]
    if way == Int8ConvAlgorithm::Dense(Int8WordFormat::Bytes) {
        let words = Int8WordFormat::Bytes.weight_words(shape);
        let out = &mut out[..packed_len(level, shape, codes)];
        out.fill(0);
        let rows = w.chunks_exact(shape.k().max(1));
        for (row, out) in rows.zip(out.chunks_exact_mut(words)) {
            let (out, sum) = out.split_at_mut(words - 1);
            let bytes: &mut [i8] = bytemuck::cast_slice_mut(out);
            for (to, code) in bytes.iter_mut().zip(row) {
                *to = codes.value(*code) as i8;
            }
            sum[0] = bytes.iter().map(|byte| i32::from(*byte)).sum();
        }
        return;
    }
    let (k, pairs) = (shape.k(), shape.k().div_ceil(2));
    let at = |row: usize, i: usize| match i < k {
        true => codes.value(w[row * k + i]),
        false => 0,
    };
    let of = |row: usize, p: usize| pair(at(row, 2 * p), at(row, 2 * p + 1));
    let out = &mut out[..packed_len(level, shape, codes)];
    if way == Int8ConvAlgorithm::Depthwise {
        for (i, out) in out.iter_mut().enumerate() {
            *out = of(i / pairs, i % pairs);
        }
        return;
    }
    for group in 0..shape.groups {
        let out = &mut out[group * shape.m * pairs..][..shape.m * pairs];
        for (block, out) in out.chunks_mut((dense::MR * pairs).max(1)).enumerate() {
            let rows = (shape.m - block * dense::MR).min(dense::MR);
            for (i, out) in out.iter_mut().enumerate() {
                *out = of(group * shape.m + block * dense::MR + i % rows, i / rows);
            }
        }
    }
}

/// Words of scratch memory for at most `threads` threads.
pub fn scratch_len(
    level: SimdLevel,
    threads: usize,
    shape: &ConvShape,
    weights: Int8Encoding,
) -> usize {
    if shape.batch * shape.groups * shape.m * shape.windows.count() == 0 {
        return 0;
    }
    let algorithm = Int8ConvAlgorithm::select(level, shape, weights);
    // Some algorithms divide their windows by the number of threads.
    let part = |count: usize| match (algorithm, count) {
        (Int8ConvAlgorithm::Depthwise, _) => depthwise::part_len(shape),
        #[cfg(target_arch = "x86_64")]
        (Int8ConvAlgorithm::DepthwiseStride2, _) => depthwise::part_len(shape),
        #[cfg(target_arch = "x86_64")]
        (Int8ConvAlgorithm::Tiles, count) => winograd::part_len(count, shape),
        #[cfg(target_arch = "x86_64")]
        (Int8ConvAlgorithm::Direct, count) => direct::part_len(count, shape),
        (Int8ConvAlgorithm::Dense(form), _) => dense::part_len(form, shape),
    };
    // A run may use fewer threads; each thread then needs more scratch memory.
    threads * (1..=threads).map(part).max().unwrap_or(0)
}

/// Runs the convolution with weights packed by [`pack`].
///
/// # Panics
/// If a slice does not have the length of the shape, or `scratch` has no room for a single thread.
pub fn int8_conv(
    level: SimdLevel,
    threads: KernelThreads,
    call: &Int8ConvArgs<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let channels = shape.groups * shape.m;
    assert!(
        supports(&shape.windows),
        "windows on three axes are not supported"
    );
    assert_eq!(y.len(), shape.batch * channels * shape.windows.count());
    assert_eq!(
        call.x.len(),
        shape.batch * shape.groups * shape.channels * shape.windows.plane()
    );
    assert!(call.finish.scale.len() == channels && call.finish.bias.len() == channels);
    assert!(weights.len() >= packed_len(level, shape, call.weights));
    if y.is_empty() {
        return;
    }
    match Int8ConvAlgorithm::select(level, shape, call.weights) {
        Int8ConvAlgorithm::Depthwise => depthwise::run(level, threads, call, weights, y, scratch),
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::DepthwiseStride2 => {
            depthwise::run(level, threads, call, weights, y, scratch)
        }
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::Tiles => winograd::run(threads, call, weights, y, scratch),
        #[cfg(target_arch = "x86_64")]
        Int8ConvAlgorithm::Direct => direct::run(threads, call, weights, y, scratch),
        Int8ConvAlgorithm::Dense(form) => {
            dense::run((level, form), threads, call, weights, y, scratch)
        }
    }
}

/// True if AVX2 kernels may be called.
fn has_avx2(level: SimdLevel) -> bool {
    match level.kind {
        SimdLevelKind::Portable => false,
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => false,
        #[cfg(target_arch = "x86_64")]
        _ => true,
    }
}
