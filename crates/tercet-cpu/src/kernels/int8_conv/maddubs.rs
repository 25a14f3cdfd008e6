//! Int8 products with the AVX2 instruction `maddubs`: four elements of x per word, times four
//! weights.
//!
//! `pmaddubsw` multiplies unsigned by signed bytes and adds two products in 16 bits, with
//! saturation. There are two formats that avoid the saturation.
//!
//! Sign-flipped format: the unsigned operand is the magnitude of a weight, at most 128. The signed
//! operand is `e`, an element of x from -128 to 127. Two products are then between `-128 (128 +
//! 128)` and `127 (128 + 128)`. For a negative weight all bits of `e` are flipped, and the result
//! is `-e-1`. The product is then too small by the weight's magnitude; the sum of these magnitudes
//! is a constant per channel, added once. Compared with the plain format, each word costs one more
//! instruction and one more word of weights.
//!
//! Plain format: the unsigned operand is x, the signed operand a weight. Two products saturate only
//! if both weights have the same sign and their sum exceeds [`MAX_SIZE`]. If large weights are
//! rare, there are few such pairs. Both weights of such a pair are clipped to a sum that does not
//! saturate. The remainders (the excess) become an additional word for the channel, stored at the
//! end.
//!
//! The plain format may also combine two words. The limit of the weights' sum then applies to four
//! weights: two of a word, and the two at the same position of the next word. The products of both
//! words are added in 16 bits before widening, which saves one of six instructions.
//!
//! The packing step counts the additional words of excess that each block of channels would need,
//! and selects the format with the fewest instructions.

use std::ops::Range;

use super::dense::{Int8ChannelBlock, NR};
use super::{ConvShape, Int8ConvArgs, Int8Encoding};

/// Channels per tile.
pub(super) const ROWS: usize = 4;

/// True if every weight minus its zero point is at most 128 in magnitude.
pub(super) fn supports(weights: Int8Encoding) -> bool {
    let (least, most) = if weights.signed {
        (-128, 127)
    } else {
        (0, 255)
    };
    least - weights.zero >= -128 && most - weights.zero <= 128
}

/// Maximum sum of two weights of the same sign: `255 * 128` fits in 16 bits.
pub(super) const MAX_SIZE: i16 = 128;

/// Channels of a set of weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaddubsChannels {
    /// Number of groups of channels.
    pub(super) groups: usize,
    /// Channels per group.
    pub(super) m: usize,
    /// Weights per channel.
    pub(super) k: usize,
}

impl MaddubsChannels {
    /// Channels of a convolution.
    pub(super) fn new(shape: &ConvShape) -> MaddubsChannels {
        MaddubsChannels {
            groups: shape.groups,
            m: shape.m,
            k: shape.k(),
        }
    }

    fn count(&self) -> usize {
        self.groups * self.m
    }

    /// Words of columns per window.
    pub(super) fn steps(&self) -> usize {
        self.k.div_ceil(4)
    }

    /// Words of packed weights: two per step and channel, two sums per channel, and a head per
    /// block of channels.
    pub(super) fn packed_len(&self) -> usize {
        self.count() * (2 * self.steps() + 2) + self.groups * self.m.div_ceil(ROWS) * HEAD
    }
}

/// Words in the head of a block of channels: its [`MaddubsPacking`], then the number of excess
/// words of each channel.
const HEAD: usize = 1 + ROWS;

/// Packing format of a block of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum MaddubsPacking {
    /// Two words per four weights: their magnitudes, and the bits to flip in x.
    SignFlipped = 0,
    /// The weights as signed bytes.
    Plain = 1,
    /// The weights as signed bytes, clipped so that the products of two words can be added in 16
    /// bits.
    Twos = 2,
}

/// Number of weights in a group, which is searched for overflowing pairs at once.
const GROUP_WEIGHTS: usize = 32;

/// Magnitudes of some weights, the bits to flip for each, the sum of the weights, and the sum of
/// the negative weights.
#[inline(always)]
fn sizes(
    w: &[u8; GROUP_WEIGHTS],
    codes: Int8Encoding,
) -> ([u8; GROUP_WEIGHTS], [u8; GROUP_WEIGHTS], [i32; 2]) {
    let (mut sizes, mut turned) = ([0; GROUP_WEIGHTS], [0; GROUP_WEIGHTS]);
    let (mut sum, mut below) = (0i16, 0i16);
    for i in 0..GROUP_WEIGHTS {
        let w = codes.value(w[i]);
        sizes[i] = w.unsigned_abs() as u8;
        // Flipping bit 0x80 converts an unsigned byte of x to a signed byte.
        turned[i] = (w >> 15) as u8 ^ 0x80;
        // The sum of 32 weights is at most 4096.
        sum += w;
        below += w.min(0);
    }
    (sizes, turned, [i32::from(sum), i32::from(below)])
}

/// Packs weights `[groups m, k]` in blocks of [`ROWS`] channels.
pub(super) fn pack(shape: &MaddubsChannels, codes: Int8Encoding, w: &[u8], out: &mut [i32]) {
    pack_by(shape, codes, out, |rows, pack| {
        pack(&w[rows.start * shape.k..rows.end * shape.k]);
    });
}

/// Like [`pack`], with weights that `of` provides for a range of channels as `[channels, k]`. The
/// rows may include zeros that fill the last word.
pub(super) fn pack_by(
    shape: &MaddubsChannels,
    codes: Int8Encoding,
    out: &mut [i32],
    mut of: impl FnMut(Range<usize>, &mut dyn FnMut(&[u8])),
) {
    let (steps, rows) = (shape.steps(), shape.count());
    let (out, ends) = out[..shape.packed_len()].split_at_mut(rows * 2 * steps);
    let (sums, heads) = ends.split_at_mut(2 * rows);
    let blocks = shape.m.div_ceil(ROWS);
    for (i, head) in heads.chunks_exact_mut(HEAD).enumerate() {
        let first = i / blocks * shape.m + i % blocks * ROWS;
        let count = ROWS.min(shape.m - i % blocks * ROWS);
        let to = &mut out[first * 2 * steps..][..count * 2 * steps];
        let sums = &mut sums[2 * first..][..2 * count];
        of(first..first + count, &mut |w| {
            let k = w.len() / count;
            assert!(w.len() == k * count && k.div_ceil(4) == steps);
            MaddubsWeightRows { w, k, count, codes }.pack(to, sums, head);
        });
    }
}

/// Weights of a block of channels.
struct MaddubsWeightRows<'a> {
    w: &'a [u8],
    k: usize,
    count: usize,
    codes: Int8Encoding,
}

impl MaddubsWeightRows<'_> {
    fn pack(&self, to: &mut [i32], sums: &mut [i32], head: &mut [i32]) {
        let done = self.pack_plain::<2>(to, sums, head) || self.pack_plain::<1>(to, sums, head);
        if !done {
            head.fill(MaddubsPacking::SignFlipped as i32);
            self.pack_turned(to, sums);
        }
    }

    /// Packs words of weights step by step, then the excess weights of each channel, which would
    /// overflow the 16-bit sums: words, each with the offset of the columns that it multiplies.
    /// Returns false if the excess makes this format slower than the next one; `to` is then partly
    /// written.
    fn pack_plain<const TOGETHER: usize>(
        &self,
        to: &mut [i32],
        sums: &mut [i32],
        head: &mut [i32],
    ) -> bool {
        let (count, steps) = (self.count, self.k.div_ceil(4));
        let (words, rest) = to.split_at_mut(count * steps);
        // The format is slower with more than this number of excess words: one in 4 words of
        // weights, or one in 8 if words are added in pairs.
        let (kind, most) = match TOGETHER {
            2 => (MaddubsPacking::Twos, count * steps / 8),
            _ => (MaddubsPacking::Plain, count * steps / 4),
        };
        let mut rest = rest.chunks_exact_mut(2).take(most);
        head.fill(0);
        head[0] = kind as i32;
        for (own, w) in self.w.chunks_exact(self.k.max(1)).enumerate() {
            let mut sum = 0;
            let parts = words.chunks_mut(count * GROUP_WEIGHTS / 4);
            for (many, (w, words)) in w.chunks(GROUP_WEIGHTS).zip(parts).enumerate() {
                let mut look = MaddubsWeightGroup::at::<TOGETHER>(w, self.codes);
                sum += look.sum;
                if look.over {
                    let mut left = look.bytes.map(|w| self.codes.value(w));
                    look.words = split::<TOGETHER>(&mut left);
                    while left != [0; GROUP_WEIGHTS] {
                        let over = (many * GROUP_WEIGHTS / 4..).zip(split::<1>(&mut left));
                        for (step, word) in over.filter(|(_, word)| *word != 0) {
                            let Some(rest) = rest.next() else {
                                return false;
                            };
                            rest.copy_from_slice(&[word, (step * NR) as i32]);
                            head[1 + own] += 1;
                        }
                    }
                }
                for (words, word) in words.chunks_exact_mut(count).zip(look.words) {
                    words[own] = word;
                }
            }
            // In the plain formats, the kernel multiplies bytes of x from 0 to 255, instead of from
            // -128 to 127.
            sums[2 * own..][..2].copy_from_slice(&[sum, i32::wrapping_mul(sum, -128)]);
        }
        true
    }

    /// Packs two words per step and channel: magnitudes, and bits to flip.
    fn pack_turned(&self, to: &mut [i32], ends: &mut [i32]) {
        let count = self.count;
        for (own, w) in self.w.chunks_exact(self.k.max(1)).enumerate() {
            let mut sums = [0; 2];
            let parts = w.chunks(GROUP_WEIGHTS);
            for (w, to) in parts.zip(to.chunks_mut(2 * count * GROUP_WEIGHTS / 4)) {
                // The last group is padded with the zero point.
                let mut all = [self.codes.zero as u8; GROUP_WEIGHTS];
                all[..w.len()].copy_from_slice(w);
                let (sizes, turned, more) = sizes(&all, self.codes);
                let words = sizes.as_chunks::<4>().0.iter();
                let words = words.zip(turned.as_chunks::<4>().0);
                for (to, (sizes, turned)) in to.chunks_exact_mut(2 * count).zip(words) {
                    to[2 * own] = i32::from_le_bytes(*sizes);
                    to[2 * own + 1] = i32::from_le_bytes(*turned);
                }
                sums = [sums[0] + more[0], sums[1] + more[1]];
            }
            ends[2 * own..][..2].copy_from_slice(&[sums[0], -sums[1]]);
        }
    }
}

/// Packs four weights into a word.
pub(super) fn word(w: [i16; 4]) -> i32 {
    i32::from_le_bytes(w.map(|w| w as u8))
}

/// A group of weights that is searched for overflowing pairs at once, padded with zeros.
struct MaddubsWeightGroup {
    /// Bytes of the weights.
    bytes: [u8; GROUP_WEIGHTS],
    /// Words of the clipped weights.
    words: [i32; GROUP_WEIGHTS / 4],
    /// True if some words may need an excess word.
    over: bool,
    sum: i32,
}

impl MaddubsWeightGroup {
    fn at<const TOGETHER: usize>(w: &[u8], codes: Int8Encoding) -> MaddubsWeightGroup {
        let mut bytes = [codes.zero as u8; GROUP_WEIGHTS];
        match w.first_chunk() {
            Some(whole) => bytes = *whole,
            None => bytes[..w.len()].copy_from_slice(w),
        }
        let mut look = MaddubsWeightGroup {
            bytes,
            words: [0; GROUP_WEIGHTS / 4],
            over: true,
            sum: 0,
        };
        // Encodings whose bytes minus the zero point are signed bytes.
        let flip = match (codes.signed, codes.zero) {
            (true, 0) => Some(0),
            (false, 128) => Some(0x80),
            _ => None,
        };
        match flip {
            // SAFETY: words of four bytes are only used with AVX2.
            Some(flip) => unsafe { avx2::weight_group(&mut look, flip, TOGETHER == 2) },
            None => look.sum = bytes.iter().map(|w| i32::from(codes.value(*w))).sum(),
        }
        look
    }
}

/// Clips weights as [`split_overflow`] does, `TOGETHER` words per step, and returns the words. The excess
/// remains in `w`.
fn split<const TOGETHER: usize>(w: &mut [i16; GROUP_WEIGHTS]) -> [i32; GROUP_WEIGHTS / 4] {
    // SAFETY: words of four bytes are only used with AVX2.
    unsafe { avx2::split::<TOGETHER>(w) }
}

/// Splits `all` (one or two words) into the part whose products can be added in 16 bits, and the
/// excess.
///
/// The sum of products with unsigned bytes is between 255 times the sum of the negative weights and
/// 255 times that of the positive weights.
pub(super) fn split_overflow(all: &mut [[i16; 4]], over: &mut [[i16; 4]]) {
    for half in [0, 2] {
        for sign in [1, -1] {
            let mut room = MAX_SIZE;
            for (all, over) in all.iter_mut().zip(over.iter_mut()) {
                for (w, over) in all[half..half + 2]
                    .iter_mut()
                    .zip(&mut over[half..half + 2])
                {
                    let size = *w * sign;
                    if size <= 0 {
                        continue;
                    }
                    let kept = size.min(room).min(if sign > 0 { 127 } else { 128 });
                    room -= kept;
                    *w = kept * sign;
                    *over = (size - kept) * sign;
                }
            }
        }
    }
}

/// The trailer that [`pack`] wrote after the weights of all channels.
#[derive(Clone, Copy)]
pub(super) struct MaddubsTrailer<'a> {
    /// Two words per channel: the sum of its weights, and a further initial value of its sums.
    sums: &'a [i32],
    /// [`HEAD`] words per block.
    heads: &'a [i32],
}

impl<'a> MaddubsTrailer<'a> {
    /// Trailer of packed weights of this shape.
    pub(super) fn new(shape: &MaddubsChannels, weights: &'a [i32]) -> MaddubsTrailer<'a> {
        let rows = shape.count();
        let from = rows * 2 * shape.steps();
        let (sums, heads) = weights[from..shape.packed_len()].split_at(2 * rows);
        MaddubsTrailer { sums, heads }
    }

    /// Trailer of some channels of one group; the first channel must start a block.
    fn part(self, shape: &MaddubsChannels, channels: &Range<usize>) -> MaddubsTrailer<'a> {
        let (group, row) = (channels.start / shape.m, channels.start % shape.m);
        assert!(
            row.is_multiple_of(ROWS),
            "the first channel must start a block"
        );
        let block = group * shape.m.div_ceil(ROWS) + row / ROWS;
        let count = channels.len().div_ceil(ROWS);
        MaddubsTrailer {
            sums: &self.sums[2 * channels.start..2 * channels.end],
            heads: &self.heads[block * HEAD..][..count * HEAD],
        }
    }
}

/// Computes the output bytes of some channels for a panel of windows; `y` points to the first
/// window of the first channel.
///
/// # Safety
/// The machine has AVX2. `y` has room for the windows of all channels.
///
/// # Panics
/// If there are not two words of weights for each channel and step of the panel, or too few words
/// in the trailer.
pub(super) unsafe fn channels(
    call: &Int8ConvArgs<'_>,
    block: &Int8ChannelBlock<'_>,
    ends: MaddubsTrailer<'_>,
    y: *mut u8,
) {
    let end = block.channels.end;
    assert!(call.finish.scale.len() >= end && call.finish.bias.len() >= end);
    // The kernel uses unsigned elements of x minus 128, not minus their zero point.
    let more = 128 - i32::from(call.codes.flipped_zero());
    let of = MaddubsTile::new(&MaddubsChannels::new(call.shape), block, ends, more);
    let bytes = avx2::RequantizedBytes::new(call, block.channels.start, block.width, y);
    // The first column vector of this packing contains windows 0 to 3 and 8 to 11.
    tiles(&of, bytes, 4);
}

/// Computes the sums of tiles, with only as many column vectors as the windows need. The first
/// vector contains the windows below `half`.
///
/// # Safety
/// The machine has AVX2; the sink has room for channels and windows.
pub(super) unsafe fn tiles<S: ChannelSumSink>(of: &MaddubsTile, to: S, half: usize) {
    match of.width {
        0..=2 => avx2::channels::<S, 0>(of, to),
        width if width <= half => avx2::channels::<S, 1>(of, to),
        _ => avx2::channels::<S, 2>(of, to),
    }
}

/// Operands of the tiles of a panel.
pub(super) struct MaddubsTile {
    /// Two words per channel and step.
    a: *const i32,
    /// 16 words per step.
    b: *const i32,
    steps: usize,
    /// Two words per channel; the initial value of its sums is `more` times the first word, plus
    /// the second.
    sums: *const i32,
    more: i32,
    /// Heads of the blocks, see [`MaddubsTrailer`].
    heads: *const i32,
    /// Number of channels and of windows.
    count: usize,
    width: usize,
}

impl MaddubsTile {
    /// # Panics
    /// See [`channels`].
    pub(super) fn new(
        shape: &MaddubsChannels,
        block: &Int8ChannelBlock<'_>,
        ends: MaddubsTrailer<'_>,
        more: i32,
    ) -> MaddubsTile {
        let (count, steps) = (block.channels.len(), block.b.len() / NR);
        assert_eq!(block.a.len(), 2 * count * steps);
        assert!(block.width <= NR && steps == shape.steps());
        let ends = ends.part(shape, &block.channels);
        MaddubsTile {
            a: block.a.as_ptr(),
            b: block.b.as_ptr(),
            steps,
            sums: ends.sums.as_ptr(),
            heads: ends.heads.as_ptr(),
            more,
            count,
            width: block.width,
        }
    }
}

/// Interleaves `count` elements of four rows into words, in groups of 16 with distance `apart`.
/// Missing rows are zero.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If `to` has no room for the words.
pub(super) unsafe fn panels(
    rows: [Option<&[u8]>; 4],
    count: usize,
    codes: Int8Encoding,
    to: &mut [i32],
    apart: usize,
) {
    assert!(to.len() >= count.div_ceil(NR).saturating_sub(1) * apart + NR);
    let rows = rows.map(Option::unwrap_or_default);
    avx2::panels(rows, count, codes.flip(), to, apart);
}

/// Interleaves rows of 16 bytes into words, four rows per word.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If there are too few rows.
pub(super) unsafe fn interleave(stage: &[u8], codes: Int8Encoding, panel: &mut [i32]) {
    assert!(stage.len() >= 4 * panel.len());
    avx2::interleave(stage, codes.flip(), panel);
}

pub(super) use avx2::ChannelSumSink;

#[path = "maddubs_avx2.rs"]
mod avx2;
