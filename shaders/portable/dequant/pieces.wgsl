// Blocks in pieces: 16 bytes that hold the low bits of one or two groups of 16 weights, which have a scale
// each, with what else belongs to them. A piece is loaded as it lies (`raw_of`), so that loads can be under
// way while others are used; `codes` and `scales` then make numbers of it.
//
// The second group of a piece lies SECOND weights after the first. `blocks.wgsl` describes the formats; the
// code that includes this has packed_word, window, window_end and is_odd.

override GROUPS: u32 = 2u;
override SECOND: u32 = 16u;

// Pieces of a block.
const PARTS: u32 = BLOCK_LEN / (16u * GROUPS);

struct Raw {
    // 16 bytes of low bits, and 16 that have the high bits among others: 5 words each.
    low: vec4<u32>,
    low_end: u32,
    high: vec4<u32>,
    high_end: u32,
    // What the scales are made of.
    head: vec4<u32>,
    block: u32,
    part: u32,
}

// Where weight j of a block is: vec2(piece, quad of its 4 neighbours).
fn spot_in(block: u32, j: u32) -> vec2<u32> {
    if GROUPS == 1u {
        return vec2<u32>(block * PARTS + j / 16u, j % 16u / 4u);
    }
    let rest = j / (2u * SECOND) * SECOND + j % SECOND;
    return vec2<u32>(block * PARTS + rest / 16u, (j / SECOND) % 2u * 4u + rest % 16u / 4u);
}

// The first weight of a piece within its block.
fn first_of(part: u32) -> u32 {
    if GROUPS == 1u {
        return part * 16u;
    }
    let rest = part * 16u;
    return rest / SECOND * (2u * SECOND) + rest % SECOND;
}

// The byte of a block where the low bits of a piece begin.
fn low_at(part: u32) -> u32 {
    switch SCHEME {
        case Q4_0: { return 2u; }
        case Q4_1: { return 4u; }
        case Q5_0: { return 6u; }
        case Q5_1: { return 8u; }
        case Q8_0: { return 2u + 16u * part; }
        case Q2_K: { return 16u + 32u * (part / 4u) + 16u * (part % 2u); }
        case Q3_K: { return 32u + 32u * (part / 4u) + 16u * (part % 2u); }
        case Q4_K: { return 16u + 16u * part; }
        case Q5_K: { return 48u + 16u * part; }
        default: { return 16u * part; }
    }
}

const HAS_HIGH: bool = SCHEME == Q3_K || SCHEME == Q5_K || SCHEME == Q6_K;

fn high_at(part: u32) -> u32 {
    switch SCHEME {
        case Q3_K: { return 16u * (part % 2u); }
        case Q5_K: { return 16u + 16u * (part % 2u); }
        default: { return 128u + 32u * (part / 4u) + 16u * (part % 2u); }
    }
}

fn head_of(block: u32, part: u32) -> vec4<u32> {
    switch SCHEME {
        case Q2_K, Q3_K: {
            let j = first_of(part);
            return bitcast<vec4<u32>>(vec4<f32>(scale_of(block, j), scale_of(block, j + SECOND)));
        }
        case Q6_K: {
            let scale = block + 192u + first_of(part) / 16u;
            return vec4<u32>(packed_word(scale / 4u), packed_word((scale + 4u) / 4u), packed_word((block + 208u) / 4u), 0u);
        }
        default: {
            return window(block);
        }
    }
}

fn raw_of(block: u32, part: u32) -> Raw {
    var raw = Raw();
    let low = block + low_at(part);
    raw.low = window(low);
    raw.low_end = window_end(low);
    if HAS_HIGH {
        let high = block + high_at(part);
        raw.high = window(high);
        raw.high_end = window_end(high);
    }
    raw.head = head_of(block, part);
    raw.block = block;
    raw.part = part;
    return raw;
}

// The 4 bytes where a word begins, or two bytes on.
fn aligned(word: u32, next: u32, odd: bool) -> u32 {
    return select(word, (word >> 16u) | (next << 16u), odd);
}

fn low_word(raw: Raw, i: u32) -> u32 {
    var next = raw.low_end;
    if i < 3u {
        next = raw.low[(i + 1u) % 4u];
    }
    return aligned(raw.low[i], next, is_odd(raw.block + low_at(raw.part)));
}

fn high_word(raw: Raw, i: u32) -> u32 {
    var next = raw.high_end;
    if i < 3u {
        next = raw.high[(i + 1u) % 4u];
    }
    return aligned(raw.high[i], next, is_odd(raw.block + high_at(raw.part)));
}

// Bytes as floats without a conversion: bits of each of the 4 bytes (`mask` << `low`) become bits of the
// fraction of a power of two. Less that power and an offset they are the number, exactly.
fn four(bytes: u32, low: u32, mask: u32, offset: f32) -> vec4<f32> {
    let even = (150u - low) << 23u;
    let odd = (142u - low) << 23u;
    let words = vec4<u32>(bytes, bytes, bytes >> 16u, bytes >> 16u);
    let bits = (words & vec4<u32>(mask << low, mask << (low + 8u), mask << low, mask << (low + 8u)))
        | vec4<u32>(even, odd, even, odd);
    let base = vec2<f32>(bitcast<f32>(even) + offset, bitcast<f32>(odd) + offset);
    return bitcast<vec4<f32>>(bits) - base.xyxy;
}

// The codes of word i of a group: weights 4 i to 4 i + 3.
fn codes(raw: Raw, group: u32, i: u32) -> vec4<f32> {
    let low = low_word(raw, i);
    switch SCHEME {
        case Q4_0: {
            return four(low, 4u * group, 15u, 8.0);
        }
        case Q4_1, Q4_K: {
            return four(low, 4u * group, 15u, 0.0);
        }
        case Q8_0: {
            return four(low ^ 0x80808080u, 0u, 255u, 128.0);
        }
        case Q5_0: {
            return four(nibbles(low, group) | fifths(raw, 16u * group + 4u * i), 0u, 31u, 16.0);
        }
        case Q5_1: {
            return four(nibbles(low, group) | fifths(raw, 16u * group + 4u * i), 0u, 31u, 0.0);
        }
        case Q2_K: {
            return four(low >> (raw.part / 2u % 2u * 4u + 2u * group), 0u, 3u, 0.0);
        }
        case Q3_K: {
            let two = (low >> (raw.part / 2u % 2u * 4u + 2u * group)) & 0x03030303u;
            let third = (high_word(raw, i) >> (raw.part / 2u * 2u + group)) & 0x01010101u;
            return four(two | (third << 2u), 0u, 7u, 4.0);
        }
        case Q5_K: {
            let fifth = (high_word(raw, i) >> (raw.part / 2u * 2u + group)) & 0x01010101u;
            return four(nibbles(low, group) | (fifth << 4u), 0u, 31u, 0.0);
        }
        default: {
            let high = (high_word(raw, i) >> (raw.part / 2u % 2u * 2u + 4u * group)) & 0x03030303u;
            return four(nibbles(low, group) | (high << 4u), 0u, 63u, 32.0);
        }
    }
}

// The two halves of a word. Devices may take subnormal halves, which scales often are, for 0.
fn halves(word: u32) -> vec2<f32> {
    if (word & 0x7c00u) == 0u || (word & 0x7c000000u) == 0u {
        return vec2<f32>(from_half(word & 0xffffu), from_half(word >> 16u));
    }
    return unpack2x16float(word);
}

// The half in the low end of a word.
fn low_half(word: u32) -> f32 {
    if (word & 0x7c00u) == 0u {
        return from_half(word & 0xffffu);
    }
    return unpack2x16float(word).x;
}

fn nibbles(word: u32, group: u32) -> u32 {
    return (word >> (4u * group)) & 0x0f0f0f0fu;
}

// The words at the start of a block, which is even.
fn start_of(raw: Raw) -> vec2<u32> {
    let odd = is_odd(raw.block);
    return vec2<u32>(aligned(raw.head.x, raw.head.y, odd), aligned(raw.head.y, raw.head.z, odd));
}

// Bits j to j + 3 of the fifth bits of Q5_0 and Q5_1, each as bit 4 of a byte.
fn fifths(raw: Raw, j: u32) -> u32 {
    let start = start_of(raw);
    var bits = start.y;
    if SCHEME == Q5_0 {
        bits = (start.x >> 16u) | (start.y << 16u);
    }
    return ((((bits >> j) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
}

// The scale and the minimum of both groups, which are neighbours among the sub-blocks of Q4_K and Q5_K.
// Scales and minima of sub-blocks 0 to 3 are 6 bits of bytes 0 to 3 and 4 to 7; of sub-blocks 4 to 7,
// bytes 8 to 11 have the low nibbles, bytes 0 to 7 the top 2 bits.
fn scales_and_minima(raw: Raw) -> vec4<f32> {
    var head = raw.head;
    let odd = is_odd(raw.block);
    if odd {
        // 16 bytes from an odd half: the fifth word is the first of what follows.
        let end = packed_word((raw.block + 14u) / 4u);
        head = vec4<u32>(aligned(head.x, head.y, true), aligned(head.y, head.z, true), aligned(head.z, head.w, true), aligned(head.w, end, true));
    }
    let pair = raw.part / 2u;
    let shift = 16u * (pair % 2u);
    let first = head.y >> shift;
    let second = head.z >> shift;
    let third = head.w >> shift;
    let late = pair >= 2u;
    let scale = select(first & 0x3f3fu, (third & 0x0f0fu) | ((first >> 2u) & 0x3030u), late);
    let least = select(second & 0x3f3fu, ((third >> 4u) & 0x0f0fu) | ((second >> 2u) & 0x3030u), late);
    let dm = halves(head.x) * vec2<f32>(1.0, -1.0);
    return dm.xyxy * vec4<f32>(f32(scale & 255u), f32(least & 255u), f32((scale >> 8u) & 255u), f32((least >> 8u) & 255u));
}

fn byte_in(word: u32, i: u32) -> u32 {
    return (word >> (8u * (i % 4u))) & 255u;
}

// Scale and minimum of the first group, and of the second.
fn scales(raw: Raw) -> vec4<f32> {
    switch SCHEME {
        case Q2_K, Q3_K: {
            return bitcast<vec4<f32>>(raw.head);
        }
        case Q4_K, Q5_K: {
            return scales_and_minima(raw);
        }
        case Q6_K: {
            let at = raw.block + first_of(raw.part) / 16u;
            let d = low_half(raw.head.z >> (8u * (raw.block & 2u)));
            let first = f32(sign_extend8(byte_in(raw.head.x, at)));
            let second = f32(sign_extend8(byte_in(raw.head.y, at)));
            return vec4<f32>(d * first, 0.0, d * second, 0.0);
        }
        case Q4_1, Q5_1: {
            return halves(start_of(raw).x).xyxy;
        }
        default: {
            let d = low_half(start_of(raw).x);
            return vec4<f32>(d, 0.0, d, 0.0);
        }
    }
}
