//! Ternary weights -1, 0 and 1, times one f16 scale for 256 at the end of a block.

use super::f16_at;

const LEN: usize = 256;

/// The ternary digit for 3^`n` of a byte with five digits, most significant first. The byte is
/// `ceil(256 v / 243)` for the number `v` of these digits. Multiplying the byte by `3^n` modulo 256
/// therefore gives the fraction that begins with digit `n`.
fn digit(byte: u8, n: u32) -> u8 {
    let fraction = byte.wrapping_mul(3u8.pow(n));
    ((u16::from(fraction) * 3) >> 8) as u8
}

/// TQ1_0, `d (t - 1)`: 48 bytes of five digits each, 4 of four, d. Elements `32 n ..` of the first
/// 160 are the digits `n` of bytes 0 to 31. Elements `16 n ..` of the next 80 are the digits `n` of
/// bytes 32 to 47. Elements `4 n ..` of the last 16 are the digits `n` of bytes 48 to 51.
pub(super) fn tq1_0(b: &[u8; 54], out: &mut [f32; LEN]) {
    let d = f16_at(b, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (out, bytes) in [(first, &b[..32]), (second, &b[32..48]), (third, &b[48..52])] {
        for (n, out) in out.chunks_exact_mut(bytes.len()).enumerate() {
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = d * (f32::from(digit(byte, n as u32)) - 1.0);
            }
        }
    }
}

/// TQ2_0, `d (q - 1)`: 64 bytes of 2-bit values in the layout of the K-quants, d.
pub(super) fn tq2_0(b: &[u8; 66], out: &mut [f32; LEN]) {
    let d = f16_at(b, 64);
    let codes = super::blocks256::two_bits(&b[..64]);
    for (out, q) in out.iter_mut().zip(codes) {
        *out = d * (f32::from(q) - 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_back() {
        for v in 0..243u16 {
            let digits = [v / 81, v / 27 % 3, v / 9 % 3, v / 3 % 3, v % 3];
            let byte = (v * 256).div_ceil(243) as u8;
            let back = [0, 1, 2, 3, 4].map(|n| u16::from(digit(byte, n)));
            assert_eq!(back, digits);
        }
    }

    #[test]
    fn places_of_elements() {
        let mut b = [0u8; 54];
        (b[52], b[53]) = (0x00, 0x38); // 0.5
        // The digits 2, 1, 0, 1, 2 are 194; 194 * 256 / 243 rounded up is 205.
        b[3] = 205;
        b[33] = 205;
        b[50] = 205;
        let mut out = [9.0; LEN];
        tq1_0(&b, &mut out);
        let want = [0.5, 0.0, -0.5, 0.0, 0.5];
        for (n, want) in want.into_iter().enumerate() {
            assert_eq!(out[32 * n + 3], want);
            assert_eq!(out[160 + 16 * n + 1], want);
            // The last bytes contain four digits.
            assert!(n == 4 || out[240 + 4 * n + 2] == want);
        }
        assert_eq!(out[0], -0.5);
    }
}
