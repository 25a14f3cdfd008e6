// Rows of whole vectors of 16 bytes, dense and aligned: an invocation keeps up to VECTORS of them, every
// THREADS-th, and reads all before it uses one. A vector is PARTS times four floats.

override DTYPE: u32 = 0u;
override VECTORS: u32 = 4u;
const PARTS: u32 = select(2u, 1u, DTYPE == F32);
// The most that VECTORS * PARTS is.
const HELD: u32 = 16u;

var<private> held: array<vec4<f32>, HELD>;

// True if a half of the word is below the normal numbers of an f16, where devices may differ.
fn has_small(word: u32) -> bool {
    return (word & 0x7c00u) == 0u || (word & 0x7c000000u) == 0u;
}

// Four floats of a vector.
fn floats(words: vec4<u32>, part: u32) -> vec4<f32> {
    if DTYPE == F32 {
        return bitcast<vec4<f32>>(words);
    }
    let two = select(words.xy, words.zw, part == 1u);
    if DTYPE == F16 && (NATIVE_HALVES || !has_small(two.x) && !has_small(two.y)) {
        return vec4<f32>(unpack2x16float(two.x), unpack2x16float(two.y));
    }
    return vec4<f32>(
        float_of(two.x, 0u, DTYPE),
        float_of(two.x, 1u, DTYPE),
        float_of(two.y, 0u, DTYPE),
        float_of(two.y, 1u, DTYPE),
    );
}

// True if x rounds to a normal number of an f16.
fn is_plain(x: f32) -> bool {
    return magnitude(x) - 0x38800000u < 0x477ff000u - 0x38800000u;
}

// x rounded to an f16, to nearest even, where it is plain: devices may round otherwise.
fn nearest_half(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>((bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u);
}

fn pair(a: f32, b: f32) -> u32 {
    if DTYPE == F16 && NATIVE_HALVES {
        return pack2x16float(vec2<f32>(a, b));
    }
    if DTYPE == F16 && is_plain(a) && is_plain(b) {
        return pack2x16float(vec2<f32>(nearest_half(a), nearest_half(b)));
    }
    return float_bits(a, DTYPE) | (float_bits(b, DTYPE) << 16u);
}

// The vector of PARTS times four floats; `b` is of no use where there is one.
fn words_of(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    if DTYPE == F32 {
        return bitcast<vec4<u32>>(a);
    }
    return vec4<u32>(pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w));
}

// Vectors in this many elements.
fn vectors_in(elements: u32) -> u32 {
    return elements / (4u * PARTS);
}

fn sum_of(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}
