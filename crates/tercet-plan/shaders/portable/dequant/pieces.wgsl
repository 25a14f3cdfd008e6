// Dequantization in 16-byte units (pieces). A piece contains the low bits of one or two groups of
// 16 weights, plus their scales and other data. A group has one scale. `raw_of` loads a piece
// without decoding it, so that loads overlap with the arithmetic on earlier pieces. `codes` and
// `scales` decode the piece later.
//
// The second group of a piece begins SECOND weights after the first. `blocks.wgsl` defines the
// formats. The including shader defines load_quad (16 bytes) and load_word (4 bytes).
// uses dequant/packed_quads.wgsl or dequant/packed_words.wgsl: load_quad, load_word, packed_word
// uses prelude.wgsl: NATIVE_HALVES, sign_extend8

override GROUPS: u32 = 2u;
override SECOND: u32 = 16u;

// Pieces per block.
const PARTS: u32 = BLOCK_LEN / (16u * GROUPS);

struct Raw {
    // 16 bytes of low bits, and the 16 bytes that contain the high bits.
    low: vec4<u32>,
    high: vec4<u32>,
    // Packed scales and zero points, or the fifth bits of Q5_0 and Q5_1.
    head: vec4<u32>,
    // The word with the F16 scale, in some formats also with the F16 minimum. `below` is the number
    // of bits below the scale. The shift is done when the scale is used, so that no thread waits
    // for the load.
    halves: u32,
    below: u32,
    part: u32,
}

// Position of weight j of a block: vec2(piece, index of its vec4 in the piece).
fn spot_in(block: u32, j: u32) -> vec2<u32> {
    if GROUPS == 1u {
        return vec2<u32>(block * PARTS + j / 16u, j % 16u / 4u);
    }
    let rest = j / (2u * SECOND) * SECOND + j % SECOND;
    return vec2<u32>(block * PARTS + rest / 16u, (j / SECOND) % 2u * 4u + rest % 16u / 4u);
}

// Index of a piece's first weight in its block.
fn first_of(part: u32) -> u32 {
    if GROUPS == 1u {
        return part * 16u;
    }
    let rest = part * 16u;
    return rest / SECOND * (2u * SECOND) + rest % SECOND;
}

// Byte offsets in their fields: the low bits of a piece, and the 16 bytes with its high bits.
fn low_at(part: u32) -> u32 {
    switch SCHEME {
        case Q2_K, Q3_K, TQ2_0: { return 32u * (part / 4u) + 16u * (part % 2u); }
        default: { return 16u * part; }
    }
}

fn high_at(part: u32) -> u32 {
    switch SCHEME {
        case Q3_K, Q5_K: { return 16u * (part % 2u); }
        default: { return 32u * (part / 4u) + 16u * (part % 2u); }
    }
}

fn head_of(block: Block, part: u32) -> vec4<u32> {
    switch SCHEME {
        case Q5_0, Q5_1: {
            return vec4<u32>(load_word(field(HIGH, block)), 0u, 0u, 0u);
        }
        // The zero points.
        case INT8_ASYM, INT4_ASYM: {
            return vec4<u32>(load_word(field(SCALES, block)), 0u, 0u, 0u);
        }
        // Scales of groups 32 weights apart are 2 bytes apart, in one word.
        case Q2_K: {
            return vec4<u32>(load_word(field(SCALES, block) + first_of(part) / 64u * 4u), 0u, 0u, 0u);
        }
        // The low nibbles of the scales, and the top bits of all scales.
        case Q3_K: {
            let packed = field(SCALES, block);
            return vec4<u32>(load_word(packed + part / 2u % 2u * 4u), load_word(packed + 8u), 0u, 0u);
        }
        // Scales of groups 64 weights apart are in adjacent words.
        case Q6_K: {
            let packed = field(SCALES, block) + first_of(part) / 128u * 8u;
            return vec4<u32>(load_word(packed), load_word(packed + 4u), 0u, 0u);
        }
        case Q4_K, Q5_K: {
            return load_quad(field(SCALES, block));
        }
        default: {
            return vec4<u32>();
        }
    }
}

// Index of the piece's F16 scale in its block.
fn half_of(part: u32) -> u32 {
    switch SCHEME {
        case INT8, INT8_ASYM: { return part / 2u; }
        case INT4, INT4_ASYM: { return part; }
        default: { return 0u; }
    }
}

// Byte offset of the piece's F16 scale.
fn half_place(block: Block, part: u32) -> u32 {
    return field(HALVES, block) + 2u * half_of(part);
}

fn raw_of(block: Block, part: u32) -> Raw {
    var raw = Raw();
    raw.low = load_quad(field(LOW, block) + low_at(part));
    if SCHEME == Q3_K || SCHEME == Q5_K || SCHEME == Q6_K {
        raw.high = load_quad(field(HIGH, block) + high_at(part));
    }
    raw.head = head_of(block, part);
    if SCHEME == Q4_1 || SCHEME == Q5_1 || SCHEME == Q2_K {
        raw.halves = load_word(field(HALVES, block));
    } else if SCHEME != Q4_K && SCHEME != Q5_K {
        let at = half_place(block, part);
        raw.halves = packed_word(at / 4u);
        raw.below = 8u * (at & 2u);
    }
    raw.part = part;
    return raw;
}

// Always 0. If a kernel sets `no_bits` to a 0 that the compiler does not know, one instruction
// applies mask and exponent; that instruction cannot take two constants.
var<private> no_bits: u32;

// `zero` must be 0 at run time but unknown to the compiler.
fn hide_constants(zero: u32) {
    no_bits = zero;
}

// Converts 4 bytes to floats without conversion instructions. The masked bits of each byte (`mask
// << low`) become mantissa bits of a power of two. Subtracting this power and `offset` gives the
// exact number.
fn four(bytes: u32, low: u32, mask: u32, offset: f32) -> vec4<f32> {
    let even = (150u - low) << 23u;
    let odd = (142u - low) << 23u;
    let words = vec4<u32>(bytes, bytes, bytes >> 16u, bytes >> 16u);
    let bits = (words & vec4<u32>(mask << low, mask << (low + 8u), mask << low, mask << (low + 8u)))
        | (vec4<u32>(even, odd, even, odd) + vec4<u32>(no_bits));
    let base = vec2<f32>(bitcast<f32>(even) + offset, bitcast<f32>(odd) + offset);
    return bitcast<vec4<f32>>(bits) - base.xyxy;
}

fn nibbles(word: u32, group: u32) -> u32 {
    return (word >> (4u * group)) & 0x0f0f0f0fu;
}

// Fifth bits j to j + 3 of Q5_0 and Q5_1, each as bit 4 of a byte.
fn fifths(bits: u32, j: u32) -> u32 {
    return ((((bits >> j) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
}

// Quantized values of word i of a group, weights 4 i to 4 i + 3, as bytes without the format's
// offset.
fn code_bytes(raw: Raw, group: u32, i: u32) -> u32 {
    let low = raw.low[i];
    switch SCHEME {
        case Q4_0, Q4_1, Q4_K, INT4, INT4_ASYM: {
            return nibbles(low, group);
        }
        case Q5_0, Q5_1: {
            return nibbles(low, group) | fifths(raw.head.x, 16u * group + 4u * i);
        }
        case Q2_K, TQ2_0: {
            return (low >> (raw.part / 2u % 2u * 4u + 2u * group)) & 0x03030303u;
        }
        case Q3_K: {
            let two = (low >> (raw.part / 2u % 2u * 4u + 2u * group)) & 0x03030303u;
            let third = (raw.high[i] >> (raw.part / 2u * 2u + group)) & 0x01010101u;
            return two | (third << 2u);
        }
        case Q5_K: {
            let fifth = (raw.high[i] >> (raw.part / 2u * 2u + group)) & 0x01010101u;
            return nibbles(low, group) | (fifth << 4u);
        }
        default: {
            // The top two bits of a value are bits 0 and 1, or 2 and 3, of a byte for the first
            // group. For the second group, these bits are 4 bits higher. The shift below moves them
            // to bits 4 and 5.
            let at = raw.part / 2u % 2u * 2u;
            var high = raw.high[i] >> at;
            if group == 0u {
                high = raw.high[i] << (4u - at);
            }
            return nibbles(low, group) | (high & 0x30303030u);
        }
    }
}

// Offset that is subtracted from the stored byte to obtain the quantized value.
fn code_offset() -> i32 {
    switch SCHEME {
        case TQ2_0: { return 1; }
        case Q3_K: { return 4; }
        case Q4_0, INT4, INT4_ASYM: { return 8; }
        case Q5_0: { return 16; }
        case Q6_K: { return 32; }
        default: { return 0; }
    }
}

// True if both groups of a piece share a scale.
fn has_one_scale() -> bool {
    return SCHEME <= Q8_0 || SCHEME >= INT8;
}

// Quantized values of word i of a group, as floats.
fn codes(raw: Raw, group: u32, i: u32) -> vec4<f32> {
    let low = raw.low[i];
    switch SCHEME {
        case Q4_0, INT4, INT4_ASYM: {
            return four(low, 4u * group, 15u, 8.0);
        }
        case Q4_1, Q4_K: {
            return four(low, 4u * group, 15u, 0.0);
        }
        case INT8_ASYM: {
            return four(low, 0u, 255u, 128.0);
        }
        case Q8_0, INT8: {
            return four(low ^ 0x80808080u, 0u, 255u, 128.0);
        }
        case Q2_K: {
            return four(low >> (raw.part / 2u % 2u * 4u + 2u * group), 0u, 3u, 0.0);
        }
        case TQ2_0: {
            return four(low >> (raw.part / 2u % 2u * 4u + 2u * group), 0u, 3u, 1.0);
        }
        case Q3_K: {
            return four(code_bytes(raw, group, i), 0u, 7u, 4.0);
        }
        case Q5_0: {
            return four(code_bytes(raw, group, i), 0u, 31u, 16.0);
        }
        case Q5_1, Q5_K: {
            return four(code_bytes(raw, group, i), 0u, 31u, 0.0);
        }
        default: {
            return four(code_bytes(raw, group, i), 0u, 63u, 32.0);
        }
    }
}

// The two F16 numbers of a word. Devices may flush subnormal F16 numbers, which scales often are.
// Subnormal F16 numbers are multiples of 2^-24; their bits are decoded here as mantissa bits of
// 2^23.
fn halves(word: u32) -> vec2<f32> {
    if NATIVE_HALVES {
        return unpack2x16float(word);
    }
    let bits = vec2<u32>(word, word >> 16u);
    let tiny = bitcast<vec2<f32>>((bits & vec2<u32>(0x3ffu)) | vec2<u32>(0x4b000000u)) - vec2<f32>(8388608.0);
    let small = select(tiny, -tiny, (bits & vec2<u32>(0x8000u)) != vec2<u32>()) * 5.9604644775390625e-8;
    return select(unpack2x16float(word), small, (bits & vec2<u32>(0x7c00u)) == vec2<u32>());
}

// The F16 scale of a piece with one scale.
fn own_half(raw: Raw) -> f32 {
    return halves(raw.halves >> raw.below).x;
}

fn byte_in(word: u32, i: u32) -> u32 {
    return (word >> (8u * i)) & 255u;
}

// 6-bit scales of both groups of Q4_K and Q5_K, then their minima, one per byte. The two groups of
// a piece belong to adjacent sub-blocks. Sub-blocks 0 to 3 use the low 6 bits of bytes 0 to 3 and 4
// to 7. Sub-blocks 4 to 7 use the nibbles of bytes 8 to 11 and the top 2 bits of bytes 0 to 7.
fn six_bits(raw: Raw) -> u32 {
    let pair = raw.part / 2u;
    let shift = 16u * (pair % 2u);
    let late = pair >= 2u;
    let own = select(0x3f3fu, 0x0f0fu, late);
    let top = select(0u, 0x3030u, late);
    let scale = (select(raw.head.y, raw.head.w, late) >> shift) & own;
    let least = (select(raw.head.z, raw.head.w, late) >> (shift + select(0u, 4u, late))) & own;
    let scales = scale | ((raw.head.y >> (shift + 2u)) & top);
    let minima = least | ((raw.head.z >> (shift + 2u)) & top);
    return scales | (minima << 16u);
}

fn scales_and_minima(raw: Raw) -> vec4<f32> {
    let dm = halves(raw.head.x) * vec2<f32>(1.0, -1.0);
    return dm.xyxy * four(six_bits(raw), 0u, 63u, 0.0).xzyw;
}

// Scales of both groups of Q3_K plus 32, 16 bits each.
fn third_scales(raw: Raw) -> u32 {
    let low = (raw.head.x >> (8u * (raw.part % 2u) + 4u * (raw.part / 4u))) & 0x000f000fu;
    let high = (raw.head.y >> (8u * (raw.part % 2u) + 2u * (raw.part / 2u))) & 0x00030003u;
    return low | (high << 4u);
}

// Scale and minimum of the first group, then of the second.
fn scales(raw: Raw) -> vec4<f32> {
    switch SCHEME {
        case Q4_1, Q5_1: {
            return halves(raw.halves).xyxy;
        }
        case Q2_K: {
            let dm = halves(raw.halves) * vec2<f32>(1.0, -1.0);
            let first = byte_in(raw.head.x, raw.part % 2u);
            let second = byte_in(raw.head.x, raw.part % 2u + 2u);
            return dm.xyxy * vec4<f32>(f32(first & 15u), f32(first >> 4u), f32(second & 15u), f32(second >> 4u));
        }
        case Q3_K: {
            let both = third_scales(raw);
            let d = own_half(raw);
            return d * vec4<f32>(f32(both & 63u) - 32.0, 0.0, f32(both >> 16u) - 32.0, 0.0);
        }
        case INT8_ASYM: {
            let d = own_half(raw);
            let least = d * (128.0 - f32(byte_in(raw.head.x, raw.part / 2u)));
            return vec4<f32>(d, least, d, least);
        }
        case INT4_ASYM: {
            let d = own_half(raw);
            let least = d * (8.0 - f32(byte_in(raw.head.x, raw.part) & 15u));
            return vec4<f32>(d, least, d, least);
        }
        case Q4_K, Q5_K: {
            return scales_and_minima(raw);
        }
        case Q6_K: {
            let d = own_half(raw);
            let first = f32(sign_extend8(byte_in(raw.head.x, raw.part % 4u)));
            let second = f32(sign_extend8(byte_in(raw.head.y, raw.part % 4u)));
            return vec4<f32>(d * first, 0.0, d * second, 0.0);
        }
        default: {
            let d = own_half(raw);
            return vec4<f32>(d, 0.0, d, 0.0);
        }
    }
}

// Integer scales and minima in units of `scale_units`, for formats with a separate scale per group.
fn scale_codes(raw: Raw) -> vec4<i32> {
    switch SCHEME {
        case Q2_K: {
            let first = byte_in(raw.head.x, raw.part % 2u);
            let second = byte_in(raw.head.x, raw.part % 2u + 2u);
            return vec4<i32>(vec4<u32>(first & 15u, first >> 4u, second & 15u, second >> 4u));
        }
        case Q3_K: {
            let both = third_scales(raw);
            return vec4<i32>(i32(both & 63u) - 32, 0, i32(both >> 16u) - 32, 0);
        }
        case Q6_K: {
            let first = sign_extend8(byte_in(raw.head.x, raw.part % 4u));
            let second = sign_extend8(byte_in(raw.head.y, raw.part % 4u));
            return vec4<i32>(first, 0, second, 0);
        }
        default: {
            let all = six_bits(raw);
            return vec4<i32>(bytes_of(all).xzyw);
        }
    }
}

// The values of an integer scale of 1 and of an integer minimum of 1.
fn scale_units(raw: Raw) -> vec2<f32> {
    switch SCHEME {
        case Q2_K: { return halves(raw.halves) * vec2<f32>(1.0, -1.0); }
        case Q4_K, Q5_K: { return halves(raw.head.x) * vec2<f32>(1.0, -1.0); }
        default: { return vec2<f32>(own_half(raw), 0.0); }
    }
}
