//! Convolution of bytes: sums of products of 8-bit codes less their zero points, in I32, scaled and rounded to bytes again.
//!
//! Weights and codes are held as 16 bits, two neighbours along the depth in a word: one instruction multiplies both and adds the
//! products, and nothing saturates; or as bytes, four in a word, where weights are small enough for that (`quads`). With AVX2, windows of 3 x 3 of many channels are taken four at a time, with fewer products (`tiles`),
//! and those of few channels read rows of x that lie as words of two channels (`direct`). Otherwise windows are columns of a product
//! (`dense`), and of one channel a group, rows of it are read (`depthwise`, `halves`): from a slab (`slab`), the rows of x that some windows need,
//! with padding written out and elements that lie one stride apart side by side.
//!
//! Windows on three axes are not taken. Products of I32 with weights of bytes are made of the same words (`gemm`; where the weights are
//! evenly spread, `gemm_even`).

mod dense;
mod depthwise;
#[cfg(target_arch = "x86_64")]
mod direct;
mod finish;
#[cfg(target_arch = "x86_64")]
pub mod gemm;
#[cfg(target_arch = "x86_64")]
mod halves;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod quads;
mod slab;
#[cfg(target_arch = "x86_64")]
mod tiles;

use self::dense::Form;
use super::conv::{ConvShape, Windows};
use super::parallel::Threads;
use super::simd::{Level, SimdLevel};

/// Tasks of a thread, so that uneven threads even out.
const TASKS: usize = 4;
/// Taps of a depthwise window at most; more are taken as products.
const MOST_TAPS: usize = 64;

/// How bytes stand for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Whether bytes are I8 instead of U8.
    pub signed: bool,
    /// The code of 0.
    pub zero: i32,
}

impl Codes {
    /// What turns a byte into one without sign, in the same order.
    fn flip(self) -> u8 {
        if self.signed { 0x80 } else { 0 }
    }

    /// The byte of the zero point after [`Codes::flip`].
    fn flipped_zero(self) -> i16 {
        i16::from(self.zero as u8 ^ self.flip())
    }

    /// What a byte stands for.
    fn value(self, byte: u8) -> i16 {
        i16::from(byte ^ self.flip()) - self.flipped_zero()
    }
}

/// How sums become bytes: `clamp(round(sum scale[o] + bias[o]) + zero, lo, hi)`, its low byte.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// One for each channel of y.
    pub scale: &'a [f32],
    /// One for each channel of y.
    pub bias: &'a [f32],
    /// The zero point of y.
    pub zero: i32,
    /// The least code.
    pub lo: i32,
    /// The greatest code.
    pub hi: i32,
}

/// A convolution's operands.
#[derive(Clone, Copy, Debug)]
pub struct ByteCall<'a> {
    /// The sizes.
    pub shape: &'a ConvShape,
    /// `[batch, groups channels, ..]`.
    pub x: &'a [u8],
    /// What the bytes of x are.
    pub codes: Codes,
    /// What the bytes of the weights were.
    pub weights: Codes,
    /// How sums are finished.
    pub finish: Finish<'a>,
}

/// The kernel of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Depthwise,
    #[cfg(target_arch = "x86_64")]
    Tiles,
    #[cfg(target_arch = "x86_64")]
    Direct,
    #[cfg(target_arch = "x86_64")]
    Halves,
    Dense(Form),
}

impl Way {
    /// Sizes of x make no difference, so that weights are packed before they are known.
    fn of(level: SimdLevel, shape: &ConvShape, weights: Codes) -> Way {
        if shape.channels == 1 && shape.windows.taps() <= MOST_TAPS && shape.groups > 1 {
            #[cfg(target_arch = "x86_64")]
            if has_avx2(level) && halves::takes(shape, weights) {
                return Way::Halves;
            }
            return Way::Depthwise;
        }
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && tiles::takes(shape) {
            return Way::Tiles;
        }
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && direct::takes(shape) {
            return Way::Direct;
        }
        Way::Dense(Form::of(level, weights))
    }
}

/// Whether there is a kernel for these windows: on at most two axes.
pub fn takes(windows: &Windows) -> bool {
    let w = windows;
    (w.kernel[0], w.sizes[0], w.out[0], w.pad[0]) == (1, 1, 1, 0)
}

/// Words of packed weights.
pub fn packed_len(level: SimdLevel, shape: &ConvShape, weights: Codes) -> usize {
    match Way::of(level, shape, weights) {
        #[cfg(target_arch = "x86_64")]
        Way::Tiles => tiles::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Way::Direct => direct::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Way::Halves => halves::packed_len(shape),
        #[cfg(target_arch = "x86_64")]
        Way::Dense(Form::Quads) => quads::Channels::of(shape).packed_len(),
        Way::Depthwise | Way::Dense(Form::Pairs) => shape.groups * shape.m * shape.k().div_ceil(2),
    }
}

/// Two elements in a word.
fn pair(low: i16, high: i16) -> i32 {
    (i32::from(low) & 0xffff) | (i32::from(high) << 16)
}

/// Packs weights `[groups m, channels, taps]`; their sizes are all of the shape that counts.
///
/// # Panics
/// If `w` or `out` is shorter than the shape says.
pub fn pack(level: SimdLevel, shape: &ConvShape, codes: Codes, w: &[u8], out: &mut [i32]) {
    let way = Way::of(level, shape, codes);
    #[cfg(target_arch = "x86_64")]
    match way {
        Way::Tiles => return tiles::pack(shape, codes, w, out),
        Way::Direct => return direct::pack(shape, codes, w, out),
        Way::Halves => return halves::pack(shape, codes, w, out),
        Way::Dense(Form::Quads) => {
            return quads::pack(&quads::Channels::of(shape), codes, w, out);
        }
        Way::Depthwise | Way::Dense(Form::Pairs) => {}
    }
    let (k, pairs) = (shape.k(), shape.k().div_ceil(2));
    let at = |row: usize, i: usize| match i < k {
        true => codes.value(w[row * k + i]),
        false => 0,
    };
    let of = |row: usize, p: usize| pair(at(row, 2 * p), at(row, 2 * p + 1));
    let out = &mut out[..packed_len(level, shape, codes)];
    if way == Way::Depthwise {
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

/// Words of scratch memory for so many threads.
pub fn scratch_len(level: SimdLevel, threads: usize, shape: &ConvShape, weights: Codes) -> usize {
    if shape.batch * shape.groups * shape.m * shape.windows.count() == 0 {
        return 0;
    }
    let part = |threads: usize| match Way::of(level, shape, weights) {
        Way::Depthwise => depthwise::part_len(shape),
        #[cfg(target_arch = "x86_64")]
        Way::Halves => depthwise::part_len(shape),
        #[cfg(target_arch = "x86_64")]
        Way::Tiles => tiles::part_len(threads, shape),
        #[cfg(target_arch = "x86_64")]
        Way::Direct => direct::part_len(threads, shape),
        Way::Dense(form) => dense::part_len(form, shape),
    };
    // A run may have fewer threads, whose parts are larger.
    threads * (1..=threads).map(part).max().unwrap_or(0)
}

/// The convolution, from weights that [`pack`] wrote.
///
/// # Panics
/// If a slice has another length than the shape says, or `scratch` has no room for a thread.
pub fn byte_conv(
    level: SimdLevel,
    threads: Threads,
    call: &ByteCall<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let channels = shape.groups * shape.m;
    assert!(takes(&shape.windows), "windows on three axes");
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
    match Way::of(level, shape, call.weights) {
        Way::Depthwise => depthwise::run(level, threads, call, weights, y, scratch),
        #[cfg(target_arch = "x86_64")]
        Way::Halves => depthwise::run(level, threads, call, weights, y, scratch),
        #[cfg(target_arch = "x86_64")]
        Way::Tiles => tiles::run(threads, call, weights, y, scratch),
        #[cfg(target_arch = "x86_64")]
        Way::Direct => direct::run(threads, call, weights, y, scratch),
        Way::Dense(form) => dense::run((level, form), threads, call, weights, y, scratch),
    }
}

/// Whether kernels of AVX2 may be called.
fn has_avx2(level: SimdLevel) -> bool {
    match level.0 {
        Level::Portable => false,
        #[cfg(target_arch = "x86_64")]
        _ => true,
    }
}
