//! Weights stored as 16-bit floats: each is a separate block.

pub(super) fn f16(b: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::f16::from_le_bytes(*b).to_f32();
}

pub(super) fn bf16(b: &[u8; 2], out: &mut [f32; 1]) {
    // `half` is not used here, because it would quiet a signalling NaN.
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
}
