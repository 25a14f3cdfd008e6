//! The K family: super-blocks of 256, whose sub-blocks of 16 or 32 have small integer scales (and
//! minima) that are themselves scaled by f16 numbers.
//!
//! Low bits of 4-bit codes: bytes `32 g .. 32 g + 32` hold sub-block `2 g` in their low nibbles and
//! `2 g + 1` in their high ones. Low bits of 2-bit codes: bytes `32 h .. 32 h + 32` hold elements
//! `128 h + 32 s ..` in bits `2 s` and `2 s + 1`. High bits of the 3- and 5-bit codes: bit `i / 32`
//! of byte `i % 32`.

use super::f16_at;

const LEN: usize = 256;

/// The 2-bit code of element `i`.
fn two_bits(qs: &[u8], i: usize) -> u8 {
    let (half, shift, lane) = (i / 128, i / 32 % 4, i % 32);
    qs[half * 32 + lane] >> (2 * shift) & 3
}

/// The 4-bit code of element `i`.
fn four_bits(qs: &[u8], i: usize) -> u8 {
    let (group, nibble, lane) = (i / 64, i / 32 % 2, i % 32);
    qs[group * 32 + lane] >> (4 * nibble) & 15
}

/// The high bit of element `i`.
fn high_bit(qh: &[u8], i: usize) -> u8 {
    qh[i % 32] >> (i / 32) & 1
}

/// The 6-bit scale and minimum of sub-block `j < 8` of Q4_K and Q5_K.
///
/// The first four of each are the low 6 bits of bytes 0..4 (scales) and 4..8 (minima); of the last
/// four, bytes 8..12 hold the low nibbles (scale low, minimum high) and the top 2 bits of bytes
/// 0..4 and 4..8 the rest.
pub fn scale_and_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    let i = j % 4;
    let (scale, min, rest) = (packed[i], packed[4 + i], packed[8 + i]);
    if j < 4 {
        (scale & 63, min & 63)
    } else {
        (rest & 15 | scale >> 6 << 4, rest >> 4 | min >> 6 << 4)
    }
}

/// `(d s) q - (m t)`: 16 bytes of 4-bit `s` (low) and `t` (high), 64 bytes of codes, d, m.
pub(super) fn q2_k(b: &[u8; 84], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(b, 80), f16_at(b, 82));
    for (j, (out, &scale)) in out.chunks_exact_mut(16).zip(&b[..16]).enumerate() {
        let (d, m) = (d * f32::from(scale & 15), m * f32::from(scale >> 4));
        for (l, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(two_bits(&b[16..80], j * 16 + l)) - m;
        }
    }
}

/// `(d (s - 32)) (q - 4)` with q of 3 bits: 32 bytes of high bits, 64 of low bits, 12 of scales, d.
///
/// Scale `j` has its low nibble in byte `j % 8` (low half for `j < 8`) and its top 2 bits in byte
/// `8 + j % 4` at `2 (j / 4)`.
pub(super) fn q3_k(b: &[u8; 110], out: &mut [f32; LEN]) {
    let (high, low, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let d = f16_at(b, 108);
    for (j, out) in out.chunks_exact_mut(16).enumerate() {
        let nibble = scales[j % 8] >> (4 * (j / 8)) & 15;
        let top = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        let d = d * (f32::from(nibble | top << 4) - 32.0);
        for (l, out) in out.iter_mut().enumerate() {
            let i = j * 16 + l;
            *out = d * (f32::from(two_bits(low, i) | high_bit(high, i) << 2) - 4.0);
        }
    }
}

/// `(d s) q - (m t)` for sub-blocks of 32, with `q` the code of an element.
fn scaled_32(b: &[u8], out: &mut [f32; LEN], q: impl Fn(usize) -> u8) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let packed = b[4..16].as_chunks::<12>().0[0];
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&packed, j);
        let (d, m) = (d * f32::from(scale), m * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(q(j * 32 + l)) - m;
        }
    }
}

/// d, m, 12 bytes of scales and minima, 128 bytes of codes.
pub(super) fn q4_k(b: &[u8; 144], out: &mut [f32; LEN]) {
    scaled_32(b, out, |i| four_bits(&b[16..], i));
}

/// d, m, 12 bytes of scales and minima, 32 bytes of high bits, 128 bytes of low bits.
pub(super) fn q5_k(b: &[u8; 176], out: &mut [f32; LEN]) {
    scaled_32(b, out, |i| {
        four_bits(&b[48..], i) | high_bit(&b[16..48], i) << 4
    });
}

/// `(d s) (q - 32)`: 128 bytes of low nibbles, 64 of high 2 bits, 16 signed scales, d.
///
/// Bytes `64 h .. 64 h + 64` of the nibbles hold elements `128 h ..` (low) and `128 h + 64 ..`
/// (high); the high bits are laid out as 2-bit codes.
pub(super) fn q6_k(b: &[u8; 210], out: &mut [f32; LEN]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = f16_at(b, 208);
    for (j, (out, &scale)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let d = d * f32::from(scale as i8);
        for (l, out) in out.iter_mut().enumerate() {
            let i = j * 16 + l;
            let (half, nibble, lane) = (i / 128, i / 64 % 2, i % 64);
            let q = low[half * 64 + lane] >> (4 * nibble) & 15 | two_bits(high, i) << 4;
            *out = d * (f32::from(q) - 32.0);
        }
    }
}
