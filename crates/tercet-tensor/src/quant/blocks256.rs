//! The K-quants: super-blocks of 256 weights. The sub-blocks of 16 or 32 weights have small integer
//! scales (and minima), which are scaled by f16 numbers.
//!
//! Low bits of 4-bit values: bytes `32 g .. 32 g + 32` hold sub-block `2 g` in their low nibbles
//! and `2 g + 1` in their high ones. Low bits of 2-bit values: bytes `32 h .. 32 h + 32` hold
//! elements `128 h + 32 s ..` in bits `2 s` and `2 s + 1`. High bits of the 3- and 5-bit values:
//! bit `i / 32` of byte `i % 32`.

use super::f16_at;

const LEN: usize = 256;

/// One quantized value for each element. Unpacking a whole block before scaling keeps both loops
/// free of index arithmetic, so that compilers vectorize them.
pub(super) type Codes256 = [u8; LEN];

/// The 2-bit values of 64 bytes.
pub(super) fn two_bits(qs: &[u8]) -> Codes256 {
    let mut codes = [0; LEN];
    for (codes, qs) in codes.chunks_exact_mut(128).zip(qs.chunks_exact(32)) {
        for (s, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, q) in codes.iter_mut().zip(qs) {
                *code = q >> (2 * s) & 3;
            }
        }
    }
    codes
}

/// The 4-bit values of 128 bytes. Each `lanes` bytes hold `lanes` values in their low nibbles and
/// the next `lanes` values in their high ones.
fn four_bits(qs: &[u8], lanes: usize) -> Codes256 {
    let mut codes = [0; LEN];
    for (codes, qs) in codes
        .chunks_exact_mut(2 * lanes)
        .zip(qs.chunks_exact(lanes))
    {
        let (low, high) = codes.split_at_mut(lanes);
        for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
            *low = q & 15;
            *high = q >> 4;
        }
    }
    codes
}

/// Sets bit `at` of every value from 32 bytes of high bits.
fn add_high_bits(codes: &mut Codes256, qh: &[u8], at: u8) {
    for (bit, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, q) in codes.iter_mut().zip(qh) {
            *code |= (q >> bit & 1) << at;
        }
    }
}

/// The 6-bit scale and minimum of sub-block `j < 8` of Q4_K and Q5_K.
///
/// The first four of each are the low 6 bits of bytes 0..4 (scales) and 4..8 (minima). For the last
/// four, bytes 8..12 hold the low nibbles (scale low, minimum high). The high bits of the last four
/// scales and minima are the top 2 bits of bytes 0..4 and 4..8.
pub fn scale_and_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    let i = j % 4;
    let (scale, min, rest) = (packed[i], packed[4 + i], packed[8 + i]);
    if j < 4 {
        (scale & 63, min & 63)
    } else {
        (rest & 15 | scale >> 6 << 4, rest >> 4 | min >> 6 << 4)
    }
}

/// Writes `f(scale(j), code)` for the elements of each sub-block `j` of `SUB` elements.
fn scaled<const SUB: usize, P: Copy>(
    out: &mut [f32; LEN],
    codes: &Codes256,
    scale: impl Fn(usize) -> P,
    f: impl Fn(P, f32) -> f32,
) {
    let (outs, _) = out.as_chunks_mut::<SUB>();
    let (codes, _) = codes.as_chunks::<SUB>();
    for (j, (out, codes)) in outs.iter_mut().zip(codes).enumerate() {
        let scale = scale(j);
        for (out, &q) in out.iter_mut().zip(codes) {
            *out = f(scale, f32::from(q));
        }
    }
}

/// Q2_K, `(d s) q - (m t)`: 16 bytes of 4-bit `s` (low) and `t` (high), 64 bytes of q, d, m.
pub(super) fn q2_k(b: &[u8; 84], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(b, 80), f16_at(b, 82));
    let scale = |j: usize| (d * f32::from(b[j] & 15), m * f32::from(b[j] >> 4));
    scaled::<16, _>(out, &two_bits(&b[16..80]), scale, |(d, m), q| d * q - m);
}

/// Q3_K, `(d (s - 32)) (q - 4)` with q of 3 bits: 32 bytes of high bits, 64 of low bits, 12 of
/// scales, d.
///
/// Scale `j` has its low nibble in byte `j % 8` (low half for `j < 8`) and its top 2 bits in byte
/// `8 + j % 4` at `2 (j / 4)`.
pub(super) fn q3_k(b: &[u8; 110], out: &mut [f32; LEN]) {
    let (high, low, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let d = f16_at(b, 108);
    let scale = |j: usize| {
        let nibble = scales[j % 8] >> (4 * (j / 8)) & 15;
        let top = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        d * (f32::from(nibble | top << 4) - 32.0)
    };
    let mut codes = two_bits(low);
    add_high_bits(&mut codes, high, 2);
    scaled::<16, _>(out, &codes, scale, |d, q| d * (q - 4.0));
}

/// `(d s) q - (m t)` for sub-blocks of 32.
fn scaled_32(b: &[u8], out: &mut [f32; LEN], codes: &Codes256) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let packed = b[4..16].as_chunks::<12>().0[0];
    let scale = |j: usize| {
        let (scale, min) = scale_and_min(&packed, j);
        (d * f32::from(scale), m * f32::from(min))
    };
    scaled::<32, _>(out, codes, scale, |(d, m), q| d * q - m);
}

/// Q4_K: d, m, 12 bytes of scales and minima, 128 bytes of 4-bit values.
pub(super) fn q4_k(b: &[u8; 144], out: &mut [f32; LEN]) {
    scaled_32(b, out, &four_bits(&b[16..], 32));
}

/// Q5_K: d, m, 12 bytes of scales and minima, 32 bytes of high bits, 128 bytes of low bits.
pub(super) fn q5_k(b: &[u8; 176], out: &mut [f32; LEN]) {
    let mut codes = four_bits(&b[48..], 32);
    add_high_bits(&mut codes, &b[16..48], 4);
    scaled_32(b, out, &codes);
}

/// Q6_K, `(d s) (q - 32)`: 128 bytes of low nibbles, 64 of high 2 bits, 16 signed scales, d.
///
/// Bytes `64 h .. 64 h + 64` of the nibbles hold elements `128 h ..` (low) and `128 h + 64 ..`
/// (high). The high bits have the layout of 2-bit values.
pub(super) fn q6_k(b: &[u8; 210], out: &mut [f32; LEN]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = f16_at(b, 208);
    let mut codes = four_bits(low, 64);
    for (code, high) in codes.iter_mut().zip(two_bits(high)) {
        *code |= high << 4;
    }
    let scale = |j: usize| d * f32::from(scales[j] as i8);
    scaled::<16, _>(out, &codes, scale, |d, q| d * (q - 32.0));
}
