// Dequantization of integer block formats: weight j of a block is scale.x * code + scale.y. A group
// of 16 weights shares a scale. j is a multiple of 4 for codes, or any index of the group for
// scales. Blocks begin at even bytes. Follows `fields.wgsl`.
//
// scale.x * code is exact in F32 for all formats with a minimum: F16 times a small integer. So
// scale.x * code + scale.y rounds once, with or without contraction to an FMA.

const Q4_0: u32 = 0u;
const Q4_1: u32 = 1u;
const Q5_0: u32 = 2u;
const Q5_1: u32 = 3u;
const Q8_0: u32 = 4u;
const Q2_K: u32 = 5u;
const Q3_K: u32 = 6u;
const Q4_K: u32 = 7u;
const Q5_K: u32 = 8u;
const Q6_K: u32 = 9u;
const INT8: u32 = 10u;
const INT8_ASYM: u32 = 11u;
const INT4: u32 = 12u;
const INT4_ASYM: u32 = 13u;
const TQ2_0: u32 = 14u;

// The fifth bits of 4 weights, from the u32 at byte i.
fn fifth_bits(i: u32, j: u32) -> vec4<u32> {
    return (vec4<u32>(quad_at(i) >> j) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
}

// Scale and minimum of sub-block s of Q4_K and Q5_K, 6 bits each. Sub-blocks 0 to 3 use the low 6
// bits of bytes 0 to 3 (scales) and 4 to 7 (minima). Sub-blocks 4 to 7 use the nibbles of bytes 8
// to 11 (low: scale, high: minimum), and the top 2 bits of bytes 0 to 7.
fn scale_and_min(packed: u32, s: u32) -> vec2<f32> {
    let i = packed + s % 4u;
    let scale = byte_at(i);
    let least = byte_at(i + 4u);
    if s < 4u {
        return vec2<f32>(f32(scale & 63u), f32(least & 63u));
    }
    let rest = byte_at(i + 8u);
    return vec2<f32>(f32((rest & 15u) | ((scale >> 6u) << 4u)), f32((rest >> 4u) | ((least >> 6u) << 4u)));
}

fn scale_of(block: Block, j: u32) -> vec2<f32> {
    let packed = field(SCALES, block);
    let halves = field(HALVES, block);
    switch SCHEME {
        case Q4_1, Q5_1: {
            return vec2<f32>(half_at(halves), half_at(halves + 2u));
        }
        case Q2_K: {
            let both = byte_at(packed + j / 16u);
            let d = half_at(halves);
            let m = half_at(halves + 2u);
            return vec2<f32>(d * f32(both & 15u), -(m * f32(both >> 4u)));
        }
        case Q3_K: {
            // Scale s: low nibble in byte s % 8, top 2 bits in byte 8 + s % 4.
            let s = j / 16u;
            let low = (byte_at(packed + s % 8u) >> (4u * (s / 8u))) & 15u;
            let high = (byte_at(packed + 8u + s % 4u) >> (2u * (s / 4u))) & 3u;
            return vec2<f32>(half_at(halves) * (f32(low | (high << 4u)) - 32.0), 0.0);
        }
        case Q4_K, Q5_K: {
            // The F16 scale and minimum precede the packed ones.
            let s = scale_and_min(packed + 4u, j / 32u);
            return vec2<f32>(half_at(packed) * s.x, -(half_at(packed + 2u) * s.y));
        }
        case Q6_K: {
            let s = sign_extend8(byte_at(packed + j / 16u));
            return vec2<f32>(half_at(halves) * f32(s), 0.0);
        }
        case INT8, INT4: {
            return vec2<f32>(half_at(halves + j / 32u * 2u), 0.0);
        }
        // These formats have a zero point; codes are centered by subtracting the middle of their
        // range.
        case INT8_ASYM: {
            let d = half_at(halves + j / 32u * 2u);
            return vec2<f32>(d, d * (128.0 - f32(byte_at(packed + j / 32u))));
        }
        case INT4_ASYM: {
            let d = half_at(halves + j / 32u * 2u);
            return vec2<f32>(d, d * (8.0 - f32(byte_at(packed + j / 32u) & 15u)));
        }
        default: {
            return vec2<f32>(half_at(halves), 0.0);
        }
    }
}

fn codes_of(block: Block, j: u32) -> vec4<f32> {
    let low = field(LOW, block);
    let high = field(HIGH, block);
    switch SCHEME {
        case Q4_0: {
            return vec4<f32>(nibbles_of(quad_at(low + j % 16u), j >= 16u)) - vec4<f32>(8.0);
        }
        case Q4_1: {
            return vec4<f32>(nibbles_of(quad_at(low + j % 16u), j >= 16u));
        }
        case Q5_0: {
            let four = nibbles_of(quad_at(low + j % 16u), j >= 16u);
            return vec4<f32>(four | (fifth_bits(high, j) << vec4<u32>(4u))) - vec4<f32>(16.0);
        }
        case Q5_1: {
            let four = nibbles_of(quad_at(low + j % 16u), j >= 16u);
            return vec4<f32>(four | (fifth_bits(high, j) << vec4<u32>(4u)));
        }
        case Q8_0, INT8: {
            let quad = vec4<u32>(quad_at(low + j));
            return vec4<f32>(bitcast<vec4<i32>>(quad << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
        }
        case INT8_ASYM: {
            return vec4<f32>(bytes_of(quad_at(low + j))) - vec4<f32>(128.0);
        }
        case INT4, INT4_ASYM: {
            return vec4<f32>(nibbles_of(quad_at(low + j / 32u * 16u + j % 16u), j % 32u >= 16u)) - vec4<f32>(8.0);
        }
        case TQ2_0: {
            let quad = quad_at(low + 32u * (j / 128u) + j % 32u);
            return vec4<f32>(two_bits_of(quad, (j / 32u) % 4u)) - vec4<f32>(1.0);
        }
        case Q2_K: {
            let quad = quad_at(low + 32u * (j / 128u) + j % 32u);
            return vec4<f32>(two_bits_of(quad, (j / 32u) % 4u));
        }
        case Q3_K: {
            let two = two_bits_of(quad_at(low + 32u * (j / 128u) + j % 32u), (j / 32u) % 4u);
            let third = one_bit_of(quad_at(high + j % 32u), j / 32u);
            return vec4<f32>(two | (third << vec4<u32>(2u))) - vec4<f32>(4.0);
        }
        case Q4_K: {
            let quad = quad_at(low + 32u * (j / 64u) + j % 32u);
            return vec4<f32>(nibbles_of(quad, (j / 32u) % 2u == 1u));
        }
        case Q5_K: {
            let four = nibbles_of(quad_at(low + 32u * (j / 64u) + j % 32u), (j / 32u) % 2u == 1u);
            let fifth = one_bit_of(quad_at(high + j % 32u), j / 32u);
            return vec4<f32>(four | (fifth << vec4<u32>(4u)));
        }
        default: {
            let four = nibbles_of(quad_at(low + 64u * (j / 128u) + j % 64u), (j / 64u) % 2u == 1u);
            let two = two_bits_of(quad_at(high + 32u * (j / 128u) + j % 32u), (j / 32u) % 4u);
            return vec4<f32>(four | (two << vec4<u32>(4u))) - vec4<f32>(32.0);
        }
    }
}

// Dequantizes weights j to j + 3.
fn weights(block: Block, j: u32) -> vec4<f32> {
    let scale = scale_of(block, j);
    let values = scale.x * codes_of(block, j);
    if HAS_MIN == 1u {
        return values + vec4<f32>(scale.y);
    }
    return values;
}
