// Rows of whole 16-byte vectors, dense and aligned; used with halves.wgsl. A thread caches up to
// VECTORS vectors, every THREADS-th, and loads all of them before it uses one. A vector is PARTS
// times four floats.
// uses halves.wgsl: both_of, has_small, two_bits
// uses prelude.wgsl: F16, F32, NATIVE_HALVES

override DTYPE: u32 = 0u;
override VECTORS: u32 = 4u;
const PARTS: u32 = select(2u, 1u, DTYPE == F32);
// Maximum of VECTORS * PARTS.
const HELD: u32 = 16u;

var<private> held: array<vec4<f32>, HELD>;

// Unpacks four floats of a vector.
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

// Packs PARTS times four floats into a vector. `b` is ignored if PARTS is 1.
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

// Number of vectors in `elements` elements.
fn vectors_in(elements: u32) -> u32 {
    return elements / (4u * PARTS);
}

fn sum_of(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}
