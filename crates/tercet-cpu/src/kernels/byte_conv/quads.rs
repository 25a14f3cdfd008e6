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
//! at the end. Which of both forms a block of channels takes is counted when its weights are packed.

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
const MOST_SIZE: i16 = 128;

/// Words of packed weights: two for each step of a channel, two sums of each channel, and a head of each block of channels.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    let rows = shape.groups * shape.m;
    rows * (2 * shape.k().div_ceil(4) + 2) + shape.groups * shape.m.div_ceil(ROWS) * HEAD
}

/// Words that say how a block is packed: whether it is [`Tile::plain`](avx2), then how many words each channel has at its end.
const HEAD: usize = 1 + ROWS;

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
pub(super) fn pack(shape: &ConvShape, codes: Codes, w: &[u8], out: &mut [i32]) {
    let (k, steps, rows) = (shape.k(), shape.k().div_ceil(4), shape.groups * shape.m);
    let (out, ends) = out[..packed_len(shape)].split_at_mut(rows * 2 * steps);
    let (sums, heads) = ends.split_at_mut(2 * rows);
    let blocks = shape.m.div_ceil(ROWS);
    for (i, head) in heads.chunks_exact_mut(HEAD).enumerate() {
        let first = i / blocks * shape.m + i % blocks * ROWS;
        let count = ROWS.min(shape.m - i % blocks * ROWS);
        let block = Rows {
            w: &w[first * k..(first + count) * k],
            k,
            count,
            codes,
        };
        let to = &mut out[first * 2 * steps..][..count * 2 * steps];
        let sums = &mut sums[2 * first..][..2 * count];
        head.fill(0);
        if !block.pack_plain(to, sums, head) {
            head.fill(0);
            block.pack_turned(to, sums);
        }
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
    /// Packs words of weights step by step, then what is left of pairs, channel by channel: a word and where its columns begin.
    /// False if that is more than turning bits costs, with `to` half written.
    fn pack_plain(&self, to: &mut [i32], sums: &mut [i32], head: &mut [i32]) -> bool {
        let (count, steps) = (self.count, self.k.div_ceil(4));
        let (words, mut rest) = to.split_at_mut(count * steps);
        // A word for one channel costs what three words of a block save.
        let mut left = count * steps / 4;
        head[0] = 1;
        for (own, w) in self.w.chunks_exact(self.k.max(1)).enumerate() {
            let mut sum = 0;
            for (step, w) in w.chunks(4).enumerate() {
                let value = |i: usize| w.get(i).map_or(0, |w| self.codes.value(*w));
                let values: [i16; 4] = std::array::from_fn(value);
                sum += values.iter().map(|w| i32::from(*w)).sum::<i32>();
                let [a, b, c, d] = values;
                let [(a, ra), (b, rb)] = part(a, b);
                let [(c, rc), (d, rd)] = part(c, d);
                words[step * count + own] = i32::from_le_bytes([a, b, c, d].map(|w| w as u8));
                let more = [ra, rb, rc, rd];
                if more == [0; 4] {
                    continue;
                }
                let Some(fewer) = left.checked_sub(1) else {
                    return false;
                };
                left = fewer;
                let (own_rest, others) = rest.split_at_mut(2);
                own_rest[0] = i32::from_le_bytes(more.map(|w| w as u8));
                own_rest[1] = (step * NR) as i32;
                rest = others;
                head[1 + own] += 1;
            }
            // Bytes of x without sign are counted from 0, not from 128.
            sums[2 * own..][..2].copy_from_slice(&[sum, -128 * sum]);
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

/// Of two weights what may be multiplied together, and what is left of each, which may be as well.
fn part(a: i16, b: i16) -> [(i16, i16); 2] {
    const MOST: i16 = i8::MAX as i16;
    let (mut x, mut y) = (a.min(MOST), b.min(MOST));
    let over = (x + y).abs() - MOST_SIZE;
    if over > 0 && x.signum() == y.signum() {
        let larger = if x.abs() >= y.abs() { &mut x } else { &mut y };
        *larger -= over * larger.signum();
    }
    [(x, a - x), (y, b - y)]
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
    pub(super) fn of(shape: &ConvShape, weights: &'a [i32]) -> Ends<'a> {
        let rows = shape.groups * shape.m;
        let from = rows * 2 * shape.k().div_ceil(4);
        let (sums, heads) = weights[from..packed_len(shape)].split_at(2 * rows);
        Ends { sums, heads }
    }

    /// Those of some channels of one group, the first of which begins a block.
    fn part(self, shape: &ConvShape, channels: &Range<usize>) -> Ends<'a> {
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

/// Channels of a panel, from weights and what lies behind all weights; `y` is the first window of the first channel.
///
/// # Safety
/// The machine has AVX2. In `y` are the windows of all channels.
///
/// # Panics
/// If there are not two words of weights for each channel and step of the panel, or too few words behind them.
pub(super) unsafe fn channels(call: &ByteCall<'_>, block: &Block<'_>, ends: Ends<'_>, y: *mut u8) {
    let Range { start, end } = block.channels;
    assert_eq!(block.a.len() * NR, 2 * (end - start) * block.b.len());
    assert!(block.width <= NR && call.finish.scale.len() >= end && call.finish.bias.len() >= end);
    let ends = ends.part(call.shape, &block.channels);
    match block.width {
        0..=2 => avx2::channels::<0>(call, block, ends, y),
        3..=4 => avx2::channels::<1>(call, block, ends, y),
        _ => avx2::channels::<2>(call, block, ends, y),
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

#[path = "quads_avx2.rs"]
mod avx2;
