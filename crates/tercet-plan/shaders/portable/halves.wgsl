// F16 and BF16 pack and unpack, two elements per word. All devices convert normal F16 numbers
// alike, and fast. Other F16 values, and all BF16 values, use the integer conversions of
// prelude.wgsl.
// uses prelude.wgsl: F16, NATIVE_HALVES, float_bits, float_of, magnitude

// True if a half of the word is subnormal in F16: device conversions differ there.
fn has_small(word: u32) -> bool {
    return (word & 0x7c00u) == 0u || (word & 0x7c000000u) == 0u;
}

fn both_of(word: u32, dtype: u32) -> vec2<f32> {
    return vec2<f32>(float_of(word, 0u, dtype), float_of(word, 1u, dtype));
}

// Unpacks the two floats of a word.
fn two_of(word: u32, dtype: u32) -> vec2<f32> {
    if dtype == F16 && (NATIVE_HALVES || !has_small(word)) {
        return unpack2x16float(word);
    }
    return both_of(word, dtype);
}

// Unpacks one 16-bit float of a word.
fn half_of(word: u32, lane: u32, dtype: u32) -> f32 {
    let half = word >> (16u * lane);
    if dtype == F16 && (NATIVE_HALVES || (half & 0x7c00u) != 0u) {
        return unpack2x16float(half).x;
    }
    return float_of(half, 0u, dtype);
}

// True if x rounds to a normal F16 number.
fn is_plain(x: f32) -> bool {
    return magnitude(x) - 0x38800000u < 0x477ff000u - 0x38800000u;
}

// x rounded to F16, to nearest even, if it is a normal number. Device conversions may round
// differently.
fn nearest_half(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>((bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u);
}

// Packs two floats into a word.
fn two_bits(two: vec2<f32>, dtype: u32) -> u32 {
    if dtype == F16 && NATIVE_HALVES {
        return pack2x16float(two);
    }
    if dtype == F16 && is_plain(two.x) && is_plain(two.y) {
        return pack2x16float(vec2<f32>(nearest_half(two.x), nearest_half(two.y)));
    }
    return float_bits(two.x, dtype) | (float_bits(two.y, dtype) << 16u);
}
