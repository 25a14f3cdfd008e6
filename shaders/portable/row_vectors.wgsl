// With halves.wgsl: rows of whole vectors of 16 bytes, dense and aligned: an invocation keeps up to VECTORS of them, every
// THREADS-th, and reads all before it uses one. A vector is PARTS times four floats.
// uses halves.wgsl: both_of, has_small, two_bits
// uses prelude.wgsl: F16, F32, NATIVE_HALVES

override DTYPE: u32 = 0u;
override VECTORS: u32 = 4u;
const PARTS: u32 = select(2u, 1u, DTYPE == F32);
// The most that VECTORS * PARTS is.
const HELD: u32 = 16u;

var<private> held: array<vec4<f32>, HELD>;

// Four floats of a vector.
fn floats(words: vec4<u32>, part: u32) -> vec4<f32> {
    if DTYPE == F32 {
        return bitcast<vec4<f32>>(words);
    }
    let two = select(words.xy, words.zw, part == 1u);
    if DTYPE == F16 && (NATIVE_HALVES || (!has_small(two.x) && !has_small(two.y))) {
        return vec4<f32>(unpack2x16float(two.x), unpack2x16float(two.y));
    }
    return vec4<f32>(both_of(two.x, DTYPE), both_of(two.y, DTYPE));
}

// The vector of PARTS times four floats; `b` is of no use where there is one.
fn words_of(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    if DTYPE == F32 {
        return bitcast<vec4<u32>>(a);
    }
    return vec4<u32>(
        two_bits(a.xy, DTYPE),
        two_bits(a.zw, DTYPE),
        two_bits(b.xy, DTYPE),
        two_bits(b.zw, DTYPE),
    );
}

// Vectors in this many elements.
fn vectors_in(elements: u32) -> u32 {
    return elements / (4u * PARTS);
}

fn sum_of(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}
