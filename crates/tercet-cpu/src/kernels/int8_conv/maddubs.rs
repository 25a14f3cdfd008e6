//! Products of bytes with AVX2: four elements of x in a word, by four weights.
//!
//! `pmaddubsw` adds two products of a byte without sign and one with sign in 16 bits, where they saturate. They do not if the first
//! is the size of a weight, at most 128, and the second is `e`, an element of x between -128 and 127: two products are within
//! `-128 (128 + 128)` and `127 (128 + 128)`. Under a weight below zero all bits of `e` are turned, which makes it `-e - 1`; then
//! the size of the weight is to be added once, which is a number of the channel.
//!
//! That costs an instruction and a word of weights for each word. Without it the byte without sign is one of x and the one with sign a
//! weight, and two products saturate where both weights have one sign and add up to more than [`MOST_SIZE`]. Of weights with
//! few large ones that are few pairs: such a pair keeps what fits, and what is left of it is a word of its own, for its channel alone,
//! at the end. Where even four weights, two of a word and those of the next word in their place, add up to no more on either side of zero, the
//! products of both words are added in 16 bits before they are widened, which saves an instruction in six.
//! Which of these forms a block of channels takes is counted when its weights are packed.

use std::ops::Range;

use super::dense::{Block, NR};
use super::{ByteCall, Codes, ConvShape};

/// Channels of a tile.
pub(super) const ROWS: usize = 4;

/// Whether weights are small enough.
pub(super) fn takes(weights: Codes) -> bool {
    let (least, most) = if weights.signed {
        (-128, 127)
    } else {
        (0, 255)
    };
    least - weights.zero >= -128 && most - weights.zero <= 128
}

/// What two weights of one sign add up to at most: `255 * 128` fits 16 bits.
pub(super) const MOST_SIZE: i16 = 128;

/// The channels that weights are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    /// Groups of channels.
    pub(super) groups: usize,
    /// Channels of a group.
    pub(super) m: usize,
    /// Weights of a channel.
    pub(super) k: usize,
}

impl Channels {
    /// Those of a convolution.
    pub(super) fn of(shape: &ConvShape) -> Channels {
        Channels {
            groups: shape.groups,
            m: shape.m,
            k: shape.k(),
        }
    }

    fn count(&self) -> usize {
        self.groups * self.m
    }

    /// Words of columns of a window.
    pub(super) fn steps(&self) -> usize {
        self.k.div_ceil(4)
    }

    /// Words of packed weights: two for each step of a channel, two sums of each channel, and a head of each block of channels.
    pub(super) fn packed_len(&self) -> usize {
        self.count() * (2 * self.steps() + 2) + self.groups * self.m.div_ceil(ROWS) * HEAD
    }
}

/// Words that say how a block is packed: its [`Kind`], then how many words each channel has at its end.
const HEAD: usize = 1 + ROWS;

/// How a block of channels is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Kind {
    /// Sizes, and bits to turn.
    Turned = 0,
    /// Weights as they are.
    Plain = 1,
    /// Likewise, with two words whose products may be added in 16 bits.
    Twos = 2,
}

/// Weights that are looked at together.
const MANY: usize = 32;

/// The sizes of some weights, the bits to turn for each, their sum, and that of those below zero.
#[inline(always)]
fn sizes(w: &[u8; MANY], codes: Codes) -> ([u8; MANY], [u8; MANY], [i32; 2]) {
    let (mut sizes, mut turned) = ([0; MANY], [0; MANY]);
    let (mut sum, mut below) = (0i16, 0i16);
    for i in 0..MANY {
        let w = codes.value(w[i]);
        sizes[i] = w.unsigned_abs() as u8;
        // Bytes of x without sign become ones with sign on the way.
        turned[i] = (w >> 15) as u8 ^ 0x80;
        // 32 weights are at most 4096.
        sum += w;
        below += w.min(0);
    }
    (sizes, turned, [i32::from(sum), i32::from(below)])
}

/// Packs weights `[groups m, k]`, by blocks of [`ROWS`] channels.
pub(super) fn pack(shape: &Channels, codes: Codes, w: &[u8], out: &mut [i32]) {
    pack_by(shape, codes, out, |rows, pack| {
        pack(&w[rows.start * shape.k..rows.end * shape.k]);
    });
}

/// As [`pack`], of weights that `of` hands on for some channels `[channels, k]`, or with zeros that fill the last word.
pub(super) fn pack_by(
    shape: &Channels,
    codes: Codes,
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
            Rows { w, k, count, codes }.pack(to, sums, head);
        });
    }
}

/// Weights of a block of channels.
struct Rows<'a> {
    w: &'a [u8],
    k: usize,
    count: usize,
    codes: Codes,
}

impl Rows<'_> {
    fn pack(&self, to: &mut [i32], sums: &mut [i32], head: &mut [i32]) {
        let done = self.pack_plain::<2>(to, sums, head) || self.pack_plain::<1>(to, sums, head);
        if !done {
            head.fill(Kind::Turned as i32);
            self.pack_turned(to, sums);
        }
    }

    /// Packs words of weights step by step, then what is left of them, channel by channel: a word and where its columns begin.
    /// False if that is more than the next kind costs, with `to` half written.
    fn pack_plain<const TOGETHER: usize>(
        &self,
        to: &mut [i32],
        sums: &mut [i32],
        head: &mut [i32],
    ) -> bool {
        let (count, steps) = (self.count, self.k.div_ceil(4));
        let (words, rest) = to.split_at_mut(count * steps);
        // A word for one channel costs what three words of a block save, or what eight save that are added two by two.
        let (kind, most) = match TOGETHER {
            2 => (Kind::Twos, count * steps / 8),
            _ => (Kind::Plain, count * steps / 4),
        };
        let mut rest = rest.chunks_exact_mut(2).take(most);
        head.fill(0);
        head[0] = kind as i32;
        for (own, w) in self.w.chunks_exact(self.k.max(1)).enumerate() {
            let mut sum = 0;
            let parts = words.chunks_mut(count * MANY / 4);
            for (many, (w, words)) in w.chunks(MANY).zip(parts).enumerate() {
                let mut look = Look::at::<TOGETHER>(w, self.codes);
                sum += look.sum;
                if look.over {
                    let mut left = look.bytes.map(|w| self.codes.value(w));
                    look.words = split::<TOGETHER>(&mut left);
                    while left != [0; MANY] {
                        let over = (many * MANY / 4..).zip(split::<1>(&mut left));
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
            // Bytes of x without sign are counted from 0, not from 128.
            sums[2 * own..][..2].copy_from_slice(&[sum, i32::wrapping_mul(sum, -128)]);
        }
        true
    }

    /// Packs both words of each channel, sizes and bits to turn, step by step.
    fn pack_turned(&self, to: &mut [i32], ends: &mut [i32]) {
        let count = self.count;
        for (own, w) in self.w.chunks_exact(self.k.max(1)).enumerate() {
            let mut sums = [0; 2];
            let parts = w.chunks(MANY);
            for (w, to) in parts.zip(to.chunks_mut(2 * count * MANY / 4)) {
                // What stands for zero fills the last ones.
                let mut all = [self.codes.zero as u8; MANY];
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

/// Four weights as a word.
pub(super) fn word(w: [i16; 4]) -> i32 {
    i32::from_le_bytes(w.map(|w| w as u8))
}

/// Weights that are looked at together, and zeros where there are fewer.
struct Look {
    /// The weights.
    bytes: [u8; MANY],
    /// Likewise, as words, of what is kept.
    words: [i32; MANY / 4],
    /// Whether something may be left of a word.
    over: bool,
    sum: i32,
}

impl Look {
    fn at<const TOGETHER: usize>(w: &[u8], codes: Codes) -> Look {
        let mut bytes = [codes.zero as u8; MANY];
        match w.first_chunk() {
            Some(whole) => bytes = *whole,
            None => bytes[..w.len()].copy_from_slice(w),
        }
        let mut look = Look {
            bytes,
            words: [0; MANY / 4],
            over: true,
            sum: 0,
        };
        // Codes that are bytes with sign, less their zero point.
        let flip = match (codes.signed, codes.zero) {
            (true, 0) => Some(0),
            (false, 128) => Some(0x80),
            _ => None,
        };
        match flip {
            // SAFETY: there is AVX2 where words have four bytes.
            Some(flip) => unsafe { avx2::look(&mut look, flip, TOGETHER == 2) },
            None => look.sum = bytes.iter().map(|w| i32::from(codes.value(*w))).sum(),
        }
        look
    }
}

/// Words of what [`keep`] keeps of weights, `TOGETHER` words at a time; what is over stays.
fn split<const TOGETHER: usize>(w: &mut [i16; MANY]) -> [i32; MANY / 4] {
    // SAFETY: there is AVX2 where words have four bytes.
    unsafe { avx2::split::<TOGETHER>(w) }
}

/// Splits `all`, one word or two, in what their products may be added of in 16 bits, and what is over.
///
/// Products of bytes without sign are between 255 times the sum of the weights below zero and 255 times that of the others.
pub(super) fn keep(all: &mut [[i16; 4]], over: &mut [[i16; 4]]) {
    for half in [0, 2] {
        for sign in [1, -1] {
            let mut room = MOST_SIZE;
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

/// What [`pack`] wrote behind the weights of all channels.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    /// Two words for each channel: the sum of its weights, and what else its sums begin with.
    sums: &'a [i32],
    /// [`HEAD`] words for each block.
    heads: &'a [i32],
}

impl<'a> Ends<'a> {
    /// Of the weights of a shape.
    pub(super) fn of(shape: &Channels, weights: &'a [i32]) -> Ends<'a> {
        let rows = shape.count();
        let from = rows * 2 * shape.steps();
        let (sums, heads) = weights[from..shape.packed_len()].split_at(2 * rows);
        Ends { sums, heads }
    }

    /// Those of some channels of one group, the first of which begins a block.
    fn part(self, shape: &Channels, channels: &Range<usize>) -> Ends<'a> {
        let (group, row) = (channels.start / shape.m, channels.start % shape.m);
        assert!(row.is_multiple_of(ROWS), "channels begin with a block");
        let block = group * shape.m.div_ceil(ROWS) + row / ROWS;
        let count = channels.len().div_ceil(ROWS);
        Ends {
            sums: &self.sums[2 * channels.start..2 * channels.end],
            heads: &self.heads[block * HEAD..][..count * HEAD],
        }
    }
}

/// Channels of a panel as bytes, from weights and what lies behind all weights; `y` is the first window of the first channel.
///
/// # Safety
/// The machine has AVX2. In `y` are the windows of all channels.
///
/// # Panics
/// If there are not two words of weights for each channel and step of the panel, or too few words behind them.
pub(super) unsafe fn channels(call: &ByteCall<'_>, block: &Block<'_>, ends: Ends<'_>, y: *mut u8) {
    let end = block.channels.end;
    assert!(call.finish.scale.len() >= end && call.finish.bias.len() >= end);
    // Elements of x are codes without sign less 128, not less their zero point.
    let more = 128 - i32::from(call.codes.flipped_zero());
    let of = Tile::new(&Channels::of(call.shape), block, ends, more);
    let bytes = avx2::Bytes::new(call, block.channels.start, block.width, y);
    // Of the order of columns, the first vector has numbers 0 to 3.
    tiles(&of, bytes, 4);
}

/// The sums of tiles, by vectors of the columns as wide as windows need; the first holds those below `half`.
///
/// # Safety
/// The machine has AVX2; the sink has room for channels and windows.
pub(super) unsafe fn tiles<S: Sink>(of: &Tile, to: S, half: usize) {
    match of.width {
        0..=2 => avx2::channels::<S, 0>(of, to),
        width if width <= half => avx2::channels::<S, 1>(of, to),
        _ => avx2::channels::<S, 2>(of, to),
    }
}

/// What tiles are made of.
pub(super) struct Tile {
    /// Two words for each channel and step.
    a: *const i32,
    /// 16 words for each step.
    b: *const i32,
    steps: usize,
    /// Two words for each channel, and what the first is multiplied by.
    sums: *const i32,
    more: i32,
    /// See [`Ends`].
    heads: *const i32,
    /// Channels and windows.
    count: usize,
    width: usize,
}

impl Tile {
    /// # Panics
    /// See [`channels`].
    pub(super) fn new(shape: &Channels, block: &Block<'_>, ends: Ends<'_>, more: i32) -> Tile {
        let (count, steps) = (block.channels.len(), block.b.len() / NR);
        assert_eq!(block.a.len(), 2 * count * steps);
        assert!(block.width <= NR && steps == shape.steps());
        let ends = ends.part(shape, &block.channels);
        Tile {
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

/// `count` elements of four rows as words, 16 at a time, `apart` from each other; zeros for rows that are not there.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If `to` has no room for them.
pub(super) unsafe fn panels(
    rows: [Option<&[u8]>; 4],
    count: usize,
    codes: Codes,
    to: &mut [i32],
    apart: usize,
) {
    assert!(to.len() >= count.div_ceil(NR).saturating_sub(1) * apart + NR);
    let rows = rows.map(Option::unwrap_or_default);
    avx2::panels(rows, count, codes.flip(), to, apart);
}

/// Rows of 16 bytes, four by four, as words.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If there are too few rows.
pub(super) unsafe fn interleave(stage: &[u8], codes: Codes, panel: &mut [i32]) {
    assert!(stage.len() >= 4 * panel.len());
    avx2::interleave(stage, codes.flip(), panel);
}

pub(super) use avx2::Sink;

#[path = "quads_avx2.rs"]
mod avx2;
