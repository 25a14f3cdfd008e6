// What every portable kernel may use: tensors as words, conversions, the numbers WGSL leaves open.
//
// A tensor is an array<u32>, dense and little-endian: 1, 2 or 4 elements a word. Nothing here depends
// on how a device treats subnormal numbers, NaN or infinities: conversions, comparisons and signs are
// made of integer operations.

const F32: u32 = 0u;
const F16: u32 = 1u;
const BF16: u32 = 2u;
const I32: u32 = 3u;
const U32: u32 = 4u;
const I8: u32 = 5u;
const U8: u32 = 6u;
const BOOL: u32 = 7u;

// The power of two of the elements in a word.
fn lane_shift(dtype: u32) -> u32 {
    return select(select(0u, 1u, dtype == F16 || dtype == BF16), 2u, dtype >= I8);
}

// The elements in a word.
fn lanes(dtype: u32) -> u32 {
    return 1u << lane_shift(dtype);
}

// The word that holds element i.
fn word_of(i: u32, dtype: u32) -> u32 {
    return i >> lane_shift(dtype);
}

// The place of element i in its word.
fn lane_of(i: u32, dtype: u32) -> u32 {
    return i & (lanes(dtype) - 1u);
}

// The bits of a lane of 1, 2 or 4 bytes.
fn bits_of(word: u32, lane: u32, bytes: u32) -> u32 {
    return (word >> (8u * bytes * lane)) & (0xffffffffu >> (32u - 8u * bytes));
}

fn sign_extend8(x: u32) -> i32 {
    return bitcast<i32>(x << 24u) >> 24u;
}

// A float by its bits. (A bitcast of a constant NaN or infinity would be refused.)
fn as_float(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}

fn inf() -> f32 {
    return as_float(0x7f800000u);
}

fn nan() -> f32 {
    return as_float(0x7fc00000u);
}

fn magnitude(x: f32) -> u32 {
    return bitcast<u32>(x) & 0x7fffffffu;
}

fn is_nan(x: f32) -> bool {
    return magnitude(x) > 0x7f800000u;
}

// A value that the compiler does not know to be x: with zero = 0 at run time it is x, so that a * b + c
// with an opaque product keeps both roundings and a + b - a with an opaque sum keeps its error.
fn opaque(x: f32, zero: u32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) | zero);
}

// True for devices whose own conversions of F16 are right, subnormal numbers among them: this and the lines that begin
// with `native` are changed for them (`natives.rs`). Others may lack the functions altogether.
const NATIVE_HALVES: bool = false;

// F16 to f32.
fn from_half(h: u32) -> f32 {
    // native: if (true) { return unpack2x16float(h).x; }
    let size = h & 0x7fffu;
    var bits = (size << 13u) + 0x38000000u;
    if (size < 0x400u) {
        bits = bitcast<u32>(f32(size) * 5.9604644775390625e-8);
    } else if (size >= 0x7c00u) {
        bits = (size << 13u) | 0x7f800000u;
    }
    return bitcast<f32>(bits | ((h & 0x8000u) << 16u));
}

// BF16 to f32.
fn from_brain(b: u32) -> f32 {
    return bitcast<f32>(b << 16u);
}

// bits >> count, to nearest even; 1 <= count <= 31.
fn shift_to_even(bits: u32, count: u32) -> u32 {
    let below = (1u << (count - 1u)) - 1u;
    return (bits + below + ((bits >> count) & 1u)) >> count;
}

// f32 to F16, to nearest even.
fn to_half(x: f32) -> u32 {
    // native: if (true) { return pack2x16float(vec2<f32>(x, 0.0)); }
    let size = magnitude(x);
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (size >= 0x38800000u) {
        return sign | shift_to_even(size - 0x38000000u, 13u);
    }
    if (size <= 0x33000000u) {
        return sign;
    }
    return sign | shift_to_even((size & 0x7fffffu) | 0x800000u, 126u - (size >> 23u));
}

// f32 to BF16, to nearest even.
fn to_brain(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (is_nan(x)) {
        return (bits >> 16u) | 0x40u;
    }
    return shift_to_even(bits & 0x7fffffffu, 16u) | ((bits >> 16u) & 0x8000u);
}

// A lane of a float dtype.
fn float_of(word: u32, lane: u32, dtype: u32) -> f32 {
    if (dtype == F16) {
        return from_half(bits_of(word, lane, 2u));
    }
    if (dtype == BF16) {
        return from_brain(bits_of(word, lane, 2u));
    }
    return bitcast<f32>(word);
}

// A lane of I32, I8, U8 or BOOL.
fn int_of(word: u32, lane: u32, dtype: u32) -> i32 {
    if (dtype == I8) {
        return sign_extend8(word >> (8u * lane));
    }
    if (dtype == U8 || dtype == BOOL) {
        return bitcast<i32>(bits_of(word, lane, 1u));
    }
    return bitcast<i32>(word);
}

// A lane of U32, U8 or BOOL.
fn uint_of(word: u32, lane: u32, dtype: u32) -> u32 {
    if (dtype == U8 || dtype == BOOL) {
        return bits_of(word, lane, 1u);
    }
    return word;
}

// The bits of x as a float dtype, in the low end; shifted to its lane they are or-ed into a word.
fn float_bits(x: f32, dtype: u32) -> u32 {
    if (dtype == F16) {
        return to_half(x);
    }
    if (dtype == BF16) {
        return to_brain(x);
    }
    return bitcast<u32>(x);
}

// The bits of x as an integer dtype or BOOL (which must be 0 or 1), in the low end.
fn int_bits(x: i32, dtype: u32) -> u32 {
    return select(bitcast<u32>(x), bitcast<u32>(x) & 0xffu, dtype >= I8);
}

// x rounded to F16. By integers on every device: compilers take conversions there and back for nothing. Beside 0.5
// the last place of a float is that of subnormal F16, 2^-24.
fn rounded_to_half(x: f32) -> f32 {
    let size = magnitude(x);
    let count = bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u;
    let small = bitcast<u32>(f32(count) * 5.9604644775390625e-8);
    let normal = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
    let finite = select(normal, small, size < 0x38800000u);
    // 65520 and more are infinite; NaN stays.
    let all = select(finite, max(size, 0x7f800000u), size >= 0x477ff000u);
    return bitcast<f32>(all | (bitcast<u32>(x) & 0x80000000u));
}

// x rounded to a float dtype.
fn round_to(x: f32, dtype: u32) -> f32 {
    if (dtype == F16) {
        return rounded_to_half(x);
    }
    if (dtype == BF16) {
        return from_brain(to_brain(x));
    }
    return x;
}

// Floats in order as integers; -0 is below 0.
fn order(x: f32) -> i32 {
    let i = bitcast<i32>(x);
    return select(i, i ^ 0x7fffffff, i < 0);
}

// IEEE 754-2019 maximum: NaN if either is NaN, 0 > -0.
fn fmax(a: f32, b: f32) -> f32 {
    if (is_nan(a)) {
        return a;
    }
    return select(b, a, !is_nan(b) && order(a) >= order(b));
}

// IEEE 754-2019 minimum.
fn fmin(a: f32, b: f32) -> f32 {
    if (is_nan(a)) {
        return a;
    }
    return select(b, a, !is_nan(b) && order(a) <= order(b));
}

// The number of a workgroup where a flat grid is split over x and y.
fn flat_group(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}
