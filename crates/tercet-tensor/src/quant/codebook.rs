//! The IQ formats. Most store indices of codebook rows (`grids.rs`), signs, and 3- to 6-bit scales
//! for 16 or 32 weights, which are scaled by an f16 number per 256. The others store 4-bit indices
//! of nonuniform levels.
//!
//! Signs are a byte for 8 weights: bit `i` is set if weight `i` is negative. If the number of minus
//! signs is always even, 7 bits encode a byte of signs. Every product is exact in F32.

use super::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, iq4_levels};
use super::{f16_at, scales};

const LEN: usize = 256;

/// Decodes 7 bits to 8 signs with an even number of minus signs.
fn even_signs(bits: u32) -> u8 {
    let bits = bits as u8 & 0x7f;
    bits | (bits.count_ones() as u8 & 1) << 7
}

fn u16_at(b: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([b[at], b[at + 1]]))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u16_at(b, at) | u16_at(b, at + 2) << 16
}

/// Nibble `i`, low halves first.
fn nibble(b: &[u8], i: usize) -> f32 {
    f32::from(b[i / 2] >> (4 * (i % 2)) & 15)
}

/// Writes the magnitudes of a row with their signs, times a scale.
fn signed(out: &mut [f32], row: &[i8], signs: u8, scale: f32) {
    for (i, (out, &size)) in out.iter_mut().zip(row).enumerate() {
        let value = scale * f32::from(size);
        *out = if signs >> i & 1 == 1 { -value } else { value };
    }
}

/// IQ2_XXS, `d (s + 1/2) / 4` times a row of 8: d; for each 32 weights four indices and a word. The
/// word holds four 7-bit sign fields below 4 bits of s.
pub(super) fn iq2_xxs(b: &[u8; 66], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (b, out) in b[2..].chunks_exact(8).zip(out.chunks_exact_mut(32)) {
        let word = u32_at(b, 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let row = &IQ2_XXS[usize::from(b[i])];
            signed(out, row, even_signs(word >> (7 * i)), scale);
        }
    }
}

/// IQ2_XS, `d (s + 1/2) / 4` times a row of 8: d, 32 times 9 bits of index below 7 of signs, a
/// nibble of s for each 16 weights.
pub(super) fn iq2_xs(b: &[u8; 74], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let both = u16_at(b, 2 + 2 * i);
        let scale = d * (0.5 + nibble(&b[66..], i / 2)) * 0.25;
        let row = &IQ2_XS[both as usize & 511];
        signed(out, row, even_signs(both >> 9), scale);
    }
}

/// IQ2_S, `d (s + 1/2) / 4` times a row of 8: d, low 8 bits of 32 indices, 32 bytes of signs, high
/// 2 bits of the indices, a nibble of s for each 16 weights.
pub(super) fn iq2_s(b: &[u8; 82], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(b[66 + i / 4] >> (2 * (i % 4)) & 3);
        let scale = d * (0.5 + nibble(&b[74..], i / 2)) * 0.25;
        let row = &IQ2_S[usize::from(b[2 + i]) | high << 8];
        signed(out, row, b[34 + i], scale);
    }
}

/// IQ3_XXS, `d (s + 1/2) / 2` times a row of 4: d, 64 indices; for each 32 weights a word. The word
/// holds four 7-bit sign fields below 4 bits of s.
pub(super) fn iq3_xxs(b: &[u8; 98], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u32_at(b, 66 + 4 * (i / 4));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = even_signs(word >> (7 * (i % 4)));
        let (low, high) = out.split_at_mut(4);
        signed(low, &IQ3_XXS[usize::from(b[2 + 2 * i])], signs, scale);
        signed(high, &IQ3_XXS[usize::from(b[3 + 2 * i])], signs >> 4, scale);
    }
}

/// IQ3_S, `d (2 s + 1)` times a row of 4: d, low 8 bits of 64 indices, their ninth bits, 32 bytes
/// of signs, a nibble of s for each 32 weights.
pub(super) fn iq3_s(b: &[u8; 110], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        let ninth = usize::from(b[66 + i / 8] >> (i % 8) & 1);
        let scale = d * (1.0 + 2.0 * nibble(&b[106..], i / 8));
        let row = &IQ3_S[usize::from(b[2 + i]) | ninth << 8];
        signed(out, row, b[74 + i / 2] >> (4 * (i % 2)), scale);
    }
}

/// A row of -1, 0 and 1 with 1/8 added to each element, or subtracted if `down` is set.
fn shifted(out: &mut [f32], row: &[i8; 8], down: bool, scale: f32) {
    let shift = if down { -0.125 } else { 0.125 };
    for (out, &t) in out.iter_mut().zip(row) {
        *out = scale * (f32::from(t) + shift);
    }
}

/// IQ1_S, `d (2 s + 1)` times a shifted row of 8: d, low 8 bits of 32 indices; for each 32 weights
/// a 16-bit field. The field holds four times 3 high bits of an index, 3 bits of s and whether the
/// shift is down.
pub(super) fn iq1_s(b: &[u8; 50], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let both = u16_at(b, 34 + 2 * (i / 4));
        let high = both as usize >> (3 * (i % 4)) & 7;
        let scale = d * (2.0 * (both >> 12 & 7) as f32 + 1.0);
        let row = &IQ1[usize::from(b[2 + i]) | high << 8];
        shifted(out, row, both >> 15 == 1, scale);
    }
}

/// IQ1_M, `d (2 s + 1)` times a shifted row of 8: low 8 bits of 32 indices, then a nibble for each
/// index with its 3 high bits and whether the shift is down. Four `u16` follow with four times 3
/// bits of s, for 16 weights each; their top nibbles are d.
pub(super) fn iq1_m(b: &[u8; 56], out: &mut [f32; LEN]) {
    let d = half::f16::from_bits(scales::nibbles16(&b[48..])).to_f32();
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let both = b[32 + i / 2] >> (4 * (i % 2));
        let s = u16_at(b, 48 + 2 * (i / 8)) >> (3 * (i / 2 % 4)) & 7;
        let scale = d * (2.0 * s as f32 + 1.0);
        let row = &IQ1[usize::from(b[i]) | usize::from(both & 7) << 8];
        shifted(out, row, both & 8 != 0, scale);
    }
}

/// Writes the levels of nibbles: low halves, then high ones.
fn levels(qs: &[u8], scale: f32, out: &mut [f32]) {
    const LEVELS: [i8; 16] = iq4_levels();
    let level = |q: u8| scale * f32::from(LEVELS[usize::from(q)]);
    let (low, high) = out.split_at_mut(qs.len());
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        *low = level(q & 15);
        *high = level(q >> 4);
    }
}

/// IQ4_NL, `d v`: d, 16 bytes of nibbles, each the index of a level v.
pub(super) fn iq4_nl(b: &[u8; 18], out: &mut [f32; 32]) {
    levels(&b[2..], f16_at(b, 0), out);
}

/// IQ4_XS, `d (s - 32) v`: d, eight times 2 high bits of s, eight nibbles of s, 16 bytes of nibbles
/// for each 32 weights.
pub(super) fn iq4_xs(b: &[u8; 136], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    let parts = b[8..].chunks_exact(16).zip(out.chunks_exact_mut(32));
    for (i, (qs, out)) in parts.enumerate() {
        let high = u16_at(b, 2) >> (2 * i) & 3;
        let s = nibble(&b[4..], i) + 16.0 * high as f32;
        levels(qs, d * (s - 32.0), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_bits_have_an_even_number_of_signs() {
        for bits in 0..128 {
            let signs = even_signs(bits);
            assert_eq!((signs & 0x7f, signs.count_ones() % 2), (bits as u8, 0));
        }
    }

    #[test]
    fn blocks_by_hand() {
        let mut out = [0.0; LEN];
        // d = 1. The last 8 weights: row 0, first and last negative, s = 3.
        let mut b = [0u8; 66];
        b[1] = 0x3c;
        b[62..].copy_from_slice(&(3u32 << 28 | 1 << 21).to_le_bytes());
        iq2_xxs(&b, &mut out);
        let unit = 3.5 * 0.25;
        assert_eq!(IQ2_XXS[0], [8; 8]);
        let want = [-8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, -8.0].map(|w| w * unit);
        assert_eq!(out[248..], want);
        assert_eq!(out[0], 8.0 * 0.5 * 0.25);
        // d = 2, stored in nibbles. Weights 8 to 15: row 0, shifted down; s = 5 for the first 16.
        let mut b = [0u8; 56];
        (b[55], b[48], b[32]) = (0x40, 5, 0x80);
        iq1_m(&b, &mut out);
        assert_eq!(IQ1[0], [-1; 8]);
        assert_eq!((out[0], out[8]), (22.0 * -0.875, 22.0 * -1.125));
        assert_eq!(out[16], 2.0 * -0.875);
        // d = 1; s of the last 32 weights is 16 * 2 + 5.
        let mut b = [0u8; 136];
        (b[1], b[3], b[7], b[135]) = (0x3c, 0x80, 0x50, 0xf8);
        iq4_xs(&b, &mut out);
        assert_eq!((out[239], out[255]), (5.0, 5.0 * 113.0));
        assert_eq!(out[0], -32.0 * -127.0);
    }
}
