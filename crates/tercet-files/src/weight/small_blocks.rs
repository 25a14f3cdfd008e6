//! Conversion of the one-bit and two-bit formats Q1_0 and Q2_0 to Q4_0.
//!
//! All three store an F16 scale and small integers: a weight is `scale * integer`. The integers of
//! Q1_0 (-1 and 1) and of Q2_0 (-1 to 2) are among those of Q4_0 (-8 to 7), so each weight keeps its
//! bits. Q4_0 takes 4.5 bits per weight instead of 1.125 and 2.25, and has kernels on every device.

/// Weights per Q4_0 block.
const LEN: usize = 32;
/// The number that Q4_0 adds to its integers.
const OFFSET: u8 = 8;

/// Appends the four Q4_0 blocks of a Q1_0 block: a scale, and 128 bits from the lowest.
pub(super) fn q1_0(block: &[u8], out: &mut Vec<u8>) {
    let codes = &block[2..];
    repack(block, 128, out, |at| match codes[at / 8] >> (at % 8) & 1 {
        0 => OFFSET - 1,
        _ => OFFSET + 1,
    });
}

/// Appends the two Q4_0 blocks of a Q2_0 block: a scale, and 64 pairs of bits from the lowest. A
/// pair `c` is the integer `c - 1`.
pub(super) fn q2_0(block: &[u8], out: &mut Vec<u8>) {
    let codes = &block[2..];
    repack(block, 64, out, |at| {
        (codes[at / 4] >> (at % 4 * 2) & 3) + OFFSET - 1
    });
}

/// Appends Q4_0 blocks with the scale of `block`; `code` is the Q4_0 code of a weight.
fn repack(block: &[u8], weights: usize, out: &mut Vec<u8>, code: impl Fn(usize) -> u8) {
    for first in (0..weights).step_by(LEN) {
        out.extend_from_slice(&block[..2]);
        // Byte `i` of a Q4_0 block has weight `i` in its low bits and weight `i + 16` in its high
        // bits.
        let half = LEN / 2;
        out.extend((first..first + half).map(|at| code(at) | code(at + half) << 4));
    }
}
