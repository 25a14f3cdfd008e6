// Shared base of all portable kernels: access to tensors as words, dtype conversions, and NaN and
// infinity constants.
//
// A tensor is an array<u32>, dense and little-endian: 1, 2 or 4 elements per word. Conversions,
// comparisons and signs use integer operations, because devices treat subnormal numbers, NaN and
// infinities differently.

const F32: u32 = 0u;
const F16: u32 = 1u;
const BF16: u32 = 2u;
const I32: u32 = 3u;
const U32: u32 = 4u;
const I8: u32 = 5u;
const U8: u32 = 6u;
const BOOL: u32 = 7u;

// Base-2 logarithm of the number of elements per word.
fn lane_shift(dtype: u32) -> u32 {
    return select(select(0u, 1u, dtype == F16 || dtype == BF16), 2u, dtype >= I8);
}

// Number of elements per word.
fn lanes(dtype: u32) -> u32 {
    return 1u << lane_shift(dtype);
}

// Index of the word that contains element i.
fn word_of(i: u32, dtype: u32) -> u32 {
    return i >> lane_shift(dtype);
}

// Position of element i in its word.
fn lane_of(i: u32, dtype: u32) -> u32 {
    return i & (lanes(dtype) - 1u);
}

// Bits of one lane of a word; a lane has 1, 2 or 4 bytes.
fn bits_of(word: u32, lane: u32, bytes: u32) -> u32 {
    return (word >> (8u * bytes * lane)) & (0xffffffffu >> (32u - 8u * bytes));
}

fn sign_extend8(x: u32) -> i32 {
    return bitcast<i32>(x << 24u) >> 24u;
}

// Bitcast of a runtime value. WGSL rejects bitcasts of constant expressions to NaN or infinity.
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

// Returns x, but hides its value from the compiler; `zero` must be 0 at run time. A product hidden
// this way is not contracted to an FMA. In a + b - a, a hidden sum keeps its rounding error.
fn opaque(x: f32, zero: u32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) | zero);
}

// True for devices whose native F16 conversions are correct, including subnormal numbers.
// `native_ops.rs` sets this constant and enables the lines marked as native. Other devices may lack
// the native functions.
const NATIVE_HALVES: bool = false;

// F16 to F32.
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

// BF16 to F32.
fn from_brain(b: u32) -> f32 {
    return bitcast<f32>(b << 16u);
}

// bits >> count, rounded to nearest even; 1 <= count <= 31.
fn shift_to_even(bits: u32, count: u32) -> u32 {
    let below = (1u << (count - 1u)) - 1u;
    return (bits + below + ((bits >> count) & 1u)) >> count;
}

// F32 to F16, rounded to nearest even.
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

// F32 to BF16, rounded to nearest even.
fn to_brain(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (is_nan(x)) {
        return (bits >> 16u) | 0x40u;
    }
    return shift_to_even(bits & 0x7fffffffu, 16u) | ((bits >> 16u) & 0x8000u);
}

// One lane of a word as a float. `dtype` is a float dtype.
fn float_of(word: u32, lane: u32, dtype: u32) -> f32 {
    if (dtype == F16) {
        return from_half(bits_of(word, lane, 2u));
    }
    if (dtype == BF16) {
        return from_brain(bits_of(word, lane, 2u));
    }
    return bitcast<f32>(word);
}

// One lane of a word as I32. `dtype` is I32, I8, U8 or BOOL.
fn int_of(word: u32, lane: u32, dtype: u32) -> i32 {
    if (dtype == I8) {
        return sign_extend8(word >> (8u * lane));
    }
    if (dtype == U8 || dtype == BOOL) {
        return bitcast<i32>(bits_of(word, lane, 1u));
    }
    return bitcast<i32>(word);
}

// One lane of a word as U32. `dtype` is U32, U8 or BOOL.
fn uint_of(word: u32, lane: u32, dtype: u32) -> u32 {
    if (dtype == U8 || dtype == BOOL) {
        return bits_of(word, lane, 1u);
    }
    return word;
}

// Bits of x as a float dtype, in the low bits of the word.
fn float_bits(x: f32, dtype: u32) -> u32 {
    if (dtype == F16) {
        return to_half(x);
    }
    if (dtype == BF16) {
        return to_brain(x);
    }
    return bitcast<u32>(x);
}

// Bits of x as an integer dtype or BOOL (which must be 0 or 1), in the low bits of the word.
fn int_bits(x: i32, dtype: u32) -> u32 {
    return select(bitcast<u32>(x), bitcast<u32>(x) & 0xffu, dtype >= I8);
}

// x rounded to F16, always with integer operations: compilers remove a conversion to F16 and back.
// Next to 0.5, one unit in the last place of F32 is 2^-24, the spacing of subnormal F16 numbers.
fn rounded_to_half(x: f32) -> f32 {
    let size = magnitude(x);
    let count = bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u;
    let small = bitcast<u32>(f32(count) * 5.9604644775390625e-8);
    let normal = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
    let finite = select(normal, small, size < 0x38800000u);
    // Magnitudes from 65520 become infinite; NaN is preserved.
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

// Order-preserving integer of a float; -0 is below 0.
fn order(x: f32) -> i32 {
    let i = bitcast<i32>(x);
    return select(i, i ^ 0x7fffffff, i < 0);
}

// IEEE 754-2019 maximum: NaN if either operand is NaN, 0 > -0.
fn fmax(a: f32, b: f32) -> f32 {
    if (is_nan(a)) {
        return a;
    }
    return select(b, a, !is_nan(b) && order(a) >= order(b));
}

// IEEE 754-2019 minimum: NaN if either operand is NaN, -0 < 0.
fn fmin(a: f32, b: f32) -> f32 {
    if (is_nan(a)) {
        return a;
    }
    return select(b, a, !is_nan(b) && order(a) <= order(b));
}

// Flat workgroup index of a grid that is folded into x and y.
fn flat_group(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}
