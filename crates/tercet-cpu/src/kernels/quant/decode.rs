//! Decodes the weights of a block into float vectors, in order, for a [`WeightSink`].
//!
//! Formats of plain nibbles use a 16-entry lookup table per scale. Other formats are first
//! assembled as signed bytes, in loops that compilers vectorize, and then widened and scaled.
//! Layouts: `tercet_ir::quant`.

use tercet_ir::Scheme;

use super::super::simd::Simd;

/// Receives `LANES` weights from element `at` of the block on. A sink is a trait, not a closure,
/// because its body must be inlined into the function with the level's target features.
pub(super) trait WeightSink<S: Simd> {
    /// Receives `LANES` weights. `chain` (0 or 1, a constant after inlining) selects one of two
    /// independent sums, for instruction-level parallelism.
    ///
    /// # Safety
    /// Requires the instructions of `S`; `at + LANES` is at most the block's length.
    unsafe fn put(&mut self, at: usize, chain: usize, weights: S::V);

    /// Receives `n` weights, in the first lanes of `weights`.
    ///
    /// # Safety
    /// Same as [`Self::put`].
    unsafe fn put_n(&mut self, at: usize, n: usize, weights: S::V);

    /// Advances by `len` weights.
    ///
    /// # Safety
    /// The block that was just decoded has `len` weights.
    unsafe fn advance(&mut self, len: usize);
}

/// Block format of quantized weights.
pub(super) trait QuantBlockFormat {
    /// Weights per block.
    const LEN: usize;
    /// Bytes per block.
    const BYTES: usize;

    /// # Safety
    /// Requires the instructions of `S`; `b` is valid for `BYTES`.
    unsafe fn decode<S: Simd>(b: *const u8, sink: &mut impl WeightSink<S>);
}

/// Declares a format. `blocks! { Name[LEN, BYTES] = |S, b, sink| body; }` gives a type and its
/// [`QuantBlockFormat`] implementation, with `b: *const u8`.
macro_rules! blocks {
    ($($(#[$meta:meta])* $name:ident[$len:literal, $bytes:literal] = |$s:ident, $b:ident, $sink:ident| $body:block)*) => {$(
        $(#[$meta])*
        pub(super) struct $name;

        impl QuantBlockFormat for $name {
            const LEN: usize = $len;
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn decode<$s: Simd>($b: *const u8, $sink: &mut impl WeightSink<$s>) $body
        }
    )*};
}

blocks! {
    F16[32, 64] = |S, b, sink| {
        for i in (0..32).step_by(S::LANES) {
            sink.put(i, i / S::LANES % 2, S::from_f16(b.add(2 * i).cast()));
        }
    }
    BF16[32, 64] = |S, b, sink| {
        for i in (0..32).step_by(S::LANES) {
            sink.put(i, i / S::LANES % 2, S::from_bf16(b.add(2 * i).cast()));
        }
    }
    /// `d q`.
    Q8_0[32, 34] = |S, b, sink| {
        let scale = S::splat(S::halves(b).0);
        for i in (0..32).step_by(S::LANES) {
            sink.put(i, i / S::LANES % 2, S::mul(S::from_i8(b.add(2 + i).cast()), scale));
        }
    }
    /// `d (q - 8)`.
    Q4_0[32, 18] = |S, b, sink| {
        let (d, _) = S::halves(b);
        nibbles::<S, 16>(b.add(2), S::table(d, -8.0 * d), S::table(d, -8.0 * d), 0, sink);
    }
    /// `d q + m`.
    Q4_1[32, 20] = |S, b, sink| {
        let (d, m) = S::halves(b);
        let table = S::table(d, m);
        nibbles::<S, 16>(b.add(4), table, table, 0, sink);
    }
    /// `d (q - 16)`.
    Q5_0[32, 22] = |S, b, sink| {
        let codes = five_bits(b.add(2), b.add(6), -16);
        groups::<S, 32, 32, 1>(&codes, &[S::halves(b).0], &[0.0], sink);
    }
    /// `d q + m`.
    Q5_1[32, 24] = |S, b, sink| {
        let codes = five_bits(b.add(4), b.add(8), 0);
        let (d, m) = S::halves(b);
        groups::<S, 32, 32, 1>(&codes, &[d], &[m], sink);
    }
    /// `(d s) q - (m t)`, in sub-blocks of 32.
    Q4K[256, 144] = |S, b, sink| {
        let (scales, offsets) = scales_and_offsets::<S>(b);
        for pair in 0..4 {
            let low = S::table(scales[2 * pair], offsets[2 * pair]);
            let high = S::table(scales[2 * pair + 1], offsets[2 * pair + 1]);
            nibbles::<S, 32>(b.add(16 + 32 * pair), low, high, 64 * pair, sink);
        }
    }
    /// Like Q4_K, but each `q` has a fifth bit.
    Q5K[256, 176] = |S, b, sink| {
        let (scales, offsets) = scales_and_offsets::<S>(b);
        let high = &*b.add(16).cast::<[u8; 32]>();
        let low = &*b.add(48).cast::<[[u8; 32]; 4]>();
        let mut codes = [0i8; 256];
        let (parts, _) = codes.as_chunks_mut::<32>();
        for pair in 0..4 {
            for i in 0..32 {
                parts[2 * pair][i] = ((low[pair][i] & 15) | ((high[i] >> (2 * pair) & 1) << 4)) as i8;
                parts[2 * pair + 1][i] =
                    ((low[pair][i] >> 4) | ((high[i] >> (2 * pair + 1) & 1) << 4)) as i8;
            }
        }
        groups::<S, 256, 32, 8>(&codes, &scales, &offsets, sink);
    }
    /// `(d s) q - (m t)`, in sub-blocks of 16.
    Q2K[256, 84] = |S, b, sink| {
        let (d, m) = S::halves(b.add(80));
        let packed = &*b.cast::<[u8; 16]>();
        let scales = scale16::<S>(&packed.map(|p| (p & 15) as i8), d);
        let offsets = scale16::<S>(&packed.map(|p| (p >> 4) as i8), -m);
        let low = &*b.add(16).cast::<[[u8; 32]; 2]>();
        let mut codes = [0i8; 256];
        let (parts, _) = codes.as_chunks_mut::<32>();
        for (j, part) in parts.iter_mut().enumerate() {
            for i in 0..32 {
                part[i] = (low[j / 4][i] >> (2 * (j % 4)) & 3) as i8;
            }
        }
        groups::<S, 256, 16, 16>(&codes, &scales, &offsets, sink);
    }
    /// `(d (s - 32)) (q - 4)`, in sub-blocks of 16.
    Q3K[256, 110] = |S, b, sink| {
        let (_, d) = S::halves(b.add(106));
        let high = &*b.cast::<[u8; 32]>();
        let low = &*b.add(32).cast::<[[u8; 32]; 2]>();
        let scales = scale16::<S>(&q3_k_scales(b.add(96)), d);
        let mut codes = [0i8; 256];
        let (parts, _) = codes.as_chunks_mut::<32>();
        for (j, part) in parts.iter_mut().enumerate() {
            for i in 0..32 {
                let code = (low[j / 4][i] >> (2 * (j % 4)) & 3) | ((high[i] >> j & 1) << 2);
                part[i] = code as i8 - 4;
            }
        }
        groups::<S, 256, 16, 16>(&codes, &scales, &[0.0; 16], sink);
    }
    /// `(d s) (q - 32)`, in sub-blocks of 16.
    Q6K[256, 210] = |S, b, sink| {
        let (_, d) = S::halves(b.add(206));
        let packed = &*b.add(192).cast::<[i8; 16]>();
        let scales = scale16::<S>(packed, d);
        let low = &*b.cast::<[[u8; 32]; 4]>();
        let high = &*b.add(128).cast::<[[u8; 32]; 2]>();
        let mut codes = [0i8; 256];
        let (parts, _) = codes.as_chunks_mut::<32>();
        for half in 0..2 {
            let (l0, l1, h) = (&low[2 * half], &low[2 * half + 1], &high[half]);
            let parts = &mut parts[4 * half..4 * half + 4];
            for i in 0..32 {
                parts[0][i] = ((l0[i] & 15) | ((h[i] & 3) << 4)) as i8 - 32;
                parts[1][i] = ((l1[i] & 15) | ((h[i] >> 2 & 3) << 4)) as i8 - 32;
                parts[2][i] = ((l0[i] >> 4) | ((h[i] >> 4 & 3) << 4)) as i8 - 32;
                parts[3][i] = ((l1[i] >> 4) | ((h[i] >> 6) << 4)) as i8 - 32;
            }
        }
        groups::<S, 256, 16, 16>(&codes, &scales, &[0.0; 16], sink);
    }
    /// `d q`, in groups of 32.
    Int8[128, 136] = |S, b, sink| {
        let codes = &*b.add(8).cast::<[i8; 128]>();
        groups::<S, 128, 32, 4>(codes, &four_halves::<S>(b), &[0.0; 4], sink);
    }
    /// `d (q - z)` in groups of 32, computed as `d (q - 128) + d (128 - z)`, exactly.
    Int8Asym[128, 140] = |S, b, sink| {
        let packed = &*b.add(12).cast::<[u8; 128]>();
        let codes = packed.map(|q| (q ^ 0x80) as i8);
        let (scales, zeros) = (four_halves::<S>(b), &*b.add(8).cast::<[u8; 4]>());
        let offset = |g: usize| scales[g] * (128.0 - f32::from(zeros[g]));
        groups::<S, 128, 32, 4>(&codes, &scales, &[offset(0), offset(1), offset(2), offset(3)], sink);
    }
    /// `d (q - 8)`, in groups of 32.
    Int4[128, 72] = |S, b, sink| {
        let scales = four_halves::<S>(b);
        for (g, d) in scales.into_iter().enumerate() {
            let table = S::table(d, -8.0 * d);
            nibbles::<S, 16>(b.add(8 + 16 * g), table, table, 32 * g, sink);
        }
    }
    /// `d (q - z)`, in groups of 32.
    Int4Asym[128, 76] = |S, b, sink| {
        let (scales, zeros) = (four_halves::<S>(b), &*b.add(8).cast::<[u8; 4]>());
        for (g, d) in scales.into_iter().enumerate() {
            let table = S::table(d, -f32::from(zeros[g] & 15) * d);
            nibbles::<S, 16>(b.add(12 + 16 * g), table, table, 32 * g, sink);
        }
    }
}

/// Converts the four f16 scales in the first 8 bytes of a block.
///
/// # Safety
/// Requires the instructions of `S`; `b` is valid for 8 bytes.
#[inline(always)]
pub(super) unsafe fn four_halves<S: Simd>(b: *const u8) -> [f32; 4] {
    let ((a, b), (c, d)) = (S::halves(b), S::halves(b.add(4)));
    [a, b, c, d]
}

/// Decodes `N` bytes: their low nibbles are the elements from `at` on, their high nibbles the next
/// `N`.
///
/// # Safety
/// Requires the instructions of `S`; `q` is valid for `N` bytes.
#[inline(always)]
unsafe fn nibbles<S: Simd, const N: usize>(
    q: *const u8,
    low: S::Table,
    high: S::Table,
    at: usize,
    sink: &mut impl WeightSink<S>,
) {
    for i in (0..N).step_by(S::LANES) {
        let (l, h) = S::decode(q.add(i), low, high);
        sink.put(at + i, 0, l);
        sink.put(at + N + i, 1, h);
    }
}

/// Passes `scale q + offset` to the sink for groups of `G` quantized values `q`, with one scale and
/// offset per group.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn groups<S: Simd, const LEN: usize, const G: usize, const N: usize>(
    codes: &[i8; LEN],
    scales: &[f32; N],
    offsets: &[f32; N],
    sink: &mut impl WeightSink<S>,
) {
    // SAFETY: the requirements are those of this function.
    let part = |j: usize| unsafe { (S::splat(scales[j]), S::splat(offsets[j])) };
    // SAFETY: the requirements are those of this function; `j < N` and `i + LANES <= G`.
    let mut one = |j: usize, i: usize, chain: usize, (scale, offset): (S::V, S::V)| unsafe {
        let q = S::from_i8(codes.as_ptr().add(j * G + i));
        sink.put(j * G + i, chain, S::fma(q, scale, offset));
    };
    for j in (0..N / 2 * 2).step_by(2) {
        let (even, odd) = (part(j), part(j + 1));
        for i in (0..G).step_by(S::LANES) {
            one(j, i, 0, even);
            one(j + 1, i, 1, odd);
        }
    }
    if N % 2 == 1 {
        for i in (0..G).step_by(S::LANES) {
            one(N - 1, i, i / S::LANES % 2, part(N - 1));
        }
    }
}

/// Decodes 32 5-bit values and adds `offset`: the low four bits are nibbles at `low`, the fifth
/// bits are at `fifth`.
///
/// # Safety
/// `fifth` is valid for 4 bytes, `low` for 16.
#[inline(always)]
unsafe fn five_bits(fifth: *const u8, low: *const u8, offset: i8) -> [i8; 32] {
    let fifth = u32::from_le_bytes(*fifth.cast());
    let low = &*low.cast::<[u8; 16]>();
    let mut codes = [0i8; 32];
    for i in 0..16 {
        let bits = [fifth >> i & 1, fifth >> (i + 16) & 1];
        codes[i] = ((low[i] & 15) | (bits[0] << 4) as u8) as i8 + offset;
        codes[i + 16] = ((low[i] >> 4) | (bits[1] << 4) as u8) as i8 + offset;
    }
    codes
}

/// Scales `d s` and offsets `-m t` of the eight sub-blocks of Q4_K and Q5_K. `b` points to `d` and
/// `m` (f16), then to the 6-bit `s` and `t`, which are decoded four at once in 32-bit words.
///
/// # Safety
/// Requires the instructions of `S`; `b` is valid for 16 bytes.
#[inline(always)]
unsafe fn scales_and_offsets<S: Simd>(b: *const u8) -> ([f32; 8], [f32; 8]) {
    let (d, s, offsets) = scales_apart::<S>(b);
    (S::scale8(s.to_le_bytes().map(|s| s as i8), d), offsets)
}

/// Like [`scales_and_offsets`], but returns `d` and the eight bytes of `s` (lowest byte first)
/// separately.
///
/// # Safety
/// Same as [`scales_and_offsets`].
#[inline(always)]
pub(super) unsafe fn scales_apart<S: Simd>(b: *const u8) -> (f32, u64, [f32; 8]) {
    let (d, m) = S::halves(b);
    // SAFETY: the three words are inside the 16 bytes.
    let word = |i: usize| unsafe { b.add(4 + 4 * i).cast::<u32>().read_unaligned() };
    let (scale, min, rest) = (word(0).to_le(), word(1).to_le(), word(2).to_le());
    let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let s = both(
        scale & 0x3F3F_3F3F,
        (rest & 0x0F0F_0F0F) | ((scale >> 2) & 0x3030_3030),
    );
    let t = both(
        min & 0x3F3F_3F3F,
        ((rest >> 4) & 0x0F0F_0F0F) | ((min >> 2) & 0x3030_3030),
    );
    (d, s, S::scale8(t.to_le_bytes().map(|t| t as i8), -m))
}

/// The 6-bit scales of Q3_K, minus 32.
///
/// # Safety
/// `packed` is valid for 12 bytes.
#[inline(always)]
pub(super) unsafe fn q3_k_scales(packed: *const u8) -> [i8; 16] {
    let packed = &*packed.cast::<[u8; 12]>();
    let mut scales = [0i8; 16];
    for j in 0..4 {
        for part in 0..4 {
            // The low four bits of scale `4 part + j` are in byte j if `part` is even, else in byte
            // 4 + j; parts 0 and 1 use the low half of the byte.
            let nibble = packed[4 * (part % 2) + j] >> (4 * (part / 2)) & 15;
            let top = packed[8 + j] >> (2 * part) & 3;
            scales[4 * part + j] = (nibble | top << 4) as i8 - 32;
        }
    }
    scales
}

/// Computes `factor * codes[i]`.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn scale16<S: Simd>(codes: &[i8; 16], factor: f32) -> [f32; 16] {
    let (halves, _) = codes.as_chunks::<8>();
    let mut out = [0.0; 16];
    out[..8].copy_from_slice(&S::scale8(halves[0], factor));
    out[8..].copy_from_slice(&S::scale8(halves[1], factor));
    out
}

/// Decodes the `k` weights in `bytes` and passes them to `sink`.
///
/// # Safety
/// Requires the instructions of `S`; `sink` takes `k` weights.
#[inline(always)]
pub(super) unsafe fn visit<S: Simd>(
    scheme: Scheme,
    bytes: &[u8],
    k: usize,
    sink: &mut impl WeightSink<S>,
) {
    match scheme {
        Scheme::F16 => {
            blocks::<S, F16>(bytes, sink);
            // SAFETY: the requirements are those of this function.
            tail::<S>(bytes, k, |p| unsafe { S::from_f16(p) }, sink);
        }
        Scheme::BF16 => {
            blocks::<S, BF16>(bytes, sink);
            // SAFETY: the requirements are those of this function.
            tail::<S>(bytes, k, |p| unsafe { S::from_bf16(p) }, sink);
        }
        Scheme::Q8_0 => blocks::<S, Q8_0>(bytes, sink),
        Scheme::Q4_0 => blocks::<S, Q4_0>(bytes, sink),
        Scheme::Q4_1 => blocks::<S, Q4_1>(bytes, sink),
        Scheme::Q5_0 => blocks::<S, Q5_0>(bytes, sink),
        Scheme::Q5_1 => blocks::<S, Q5_1>(bytes, sink),
        Scheme::Q2K => blocks::<S, Q2K>(bytes, sink),
        Scheme::Q3K => blocks::<S, Q3K>(bytes, sink),
        Scheme::Q4K => blocks::<S, Q4K>(bytes, sink),
        Scheme::Q5K => blocks::<S, Q5K>(bytes, sink),
        Scheme::Q6K => blocks::<S, Q6K>(bytes, sink),
        Scheme::Int8 => blocks::<S, Int8>(bytes, sink),
        Scheme::Int8Asym => blocks::<S, Int8Asym>(bytes, sink),
        Scheme::Int4 => blocks::<S, Int4>(bytes, sink),
        Scheme::Int4Asym => blocks::<S, Int4Asym>(bytes, sink),
        Scheme::Iq2Xxs
        | Scheme::Iq2Xs
        | Scheme::Iq2S
        | Scheme::Iq3Xxs
        | Scheme::Iq3S
        | Scheme::Iq1S
        | Scheme::Iq1M
        | Scheme::Iq4Nl
        | Scheme::Iq4Xs
        | Scheme::Tq1_0
        | Scheme::Tq2_0
        | Scheme::Mxfp4
        | Scheme::Nvfp4
        | Scheme::Fp8E4m3
        | Scheme::Fp8E5m2 => plain_blocks::<S>(scheme, bytes, sink),
    }
}

/// Fallback for formats without a vector decoder: decodes by the format's definition, one block per
/// step.
///
/// # Safety
/// Same as [`visit`].
#[inline(always)]
unsafe fn plain_blocks<S: Simd>(scheme: Scheme, bytes: &[u8], sink: &mut impl WeightSink<S>) {
    let len = scheme.block_len();
    let mut values = [0f32; super::K_CHUNK];
    for block in bytes.chunks_exact(scheme.block_bytes()) {
        scheme.dequantize_block(block, &mut values[..len]);
        for i in (0..len).step_by(S::LANES) {
            sink.put(i, i / S::LANES % 2, S::load(values.as_ptr().add(i)));
        }
        sink.advance(len);
    }
}

/// # Safety
/// Same as [`visit`], for the whole blocks of `bytes`.
#[inline(always)]
unsafe fn blocks<S: Simd, B: QuantBlockFormat>(bytes: &[u8], sink: &mut impl WeightSink<S>) {
    let p = bytes.as_ptr();
    for i in 0..bytes.len() / B::BYTES {
        let b = p.add(i * B::BYTES);
        for line in 0..B::BYTES.div_ceil(64) {
            S::prefetch(b.wrapping_add(super::AHEAD + 64 * line));
        }
        B::decode::<S>(b, sink);
        sink.advance(B::LEN);
    }
}

/// Decodes the two-byte weights after the last whole block.
///
/// # Safety
/// Same as [`visit`].
#[inline(always)]
unsafe fn tail<S: Simd>(
    bytes: &[u8],
    k: usize,
    widen: impl Fn(*const u16) -> S::V,
    sink: &mut impl WeightSink<S>,
) {
    let rest = k % F16::LEN;
    let mut padded = [0u16; F16::LEN];
    std::ptr::copy_nonoverlapping(
        bytes.as_ptr().add(2 * (k - rest)),
        padded.as_mut_ptr().cast(),
        2 * rest,
    );
    for at in (0..rest).step_by(S::LANES) {
        sink.put_n(at, S::LANES.min(rest - at), widen(padded.as_ptr().add(at)));
    }
}
