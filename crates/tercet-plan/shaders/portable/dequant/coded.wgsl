// Dequantization of codebook and small-float formats, 4 weights per call: FP8, FP4, non-uniform
// levels, packed ternary digits, and grids. Blocks begin at even bytes; MXFP4 blocks begin at any
// byte. Follows `fields.wgsl`. The including shader defines `grid`: two grid rows per word, each 8
// elements of 2 bits or 4 elements of 3 bits. Only SCHEMEs with a codebook grid read `grid`.
//
// All multiplications are exact in F32, except by the F32 scales of FP8, which round once.

const MXFP4: u32 = 16u;
const NVFP4: u32 = 17u;
const FP8_E4M3: u32 = 18u;
const FP8_E5M2: u32 = 19u;
const TQ1_0: u32 = 20u;
const IQ4_NL: u32 = 21u;
const IQ4_XS: u32 = 22u;
const IQ2_XXS: u32 = 23u;
const IQ2_XS: u32 = 24u;
const IQ2_S: u32 = 25u;
const IQ3_XXS: u32 = 26u;
const IQ3_S: u32 = 27u;
const IQ1_S: u32 = 28u;
const IQ1_M: u32 = 29u;

// Loads 4 bytes from any byte offset.
fn any_quad(i: u32) -> u32 {
    let shift = 8u * (i % 4u);
    let low = packed_word(i / 4u) >> shift;
    if shift == 0u {
        return low;
    }
    return low | (packed_word(i / 4u + 1u) << (32u - shift));
}

// Loads 2 bytes from byte i, which is even.
fn pair_at(i: u32) -> u32 {
    return (packed_word(i / 4u) >> (8u * (i & 2u))) & 0xffffu;
}

fn from_halves(bits: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(from_half(bits.x), from_half(bits.y), from_half(bits.z), from_half(bits.w));
}

// Twice the values of FP4 (e2m1) codes: 0, 1, 2, 3, 4, 6, 8, 12.
fn small_floats(codes: vec4<u32>) -> vec4<f32> {
    let size = codes & vec4<u32>(7u);
    let above = vec4<u32>(2u) + (size & vec4<u32>(1u));
    let large = above << (max(size >> vec4<u32>(1u), vec4<u32>(1u)) - vec4<u32>(1u));
    let value = vec4<i32>(select(large, size, size < vec4<u32>(4u)));
    return vec4<f32>(select(value, -value, (codes & vec4<u32>(8u)) != vec4<u32>()));
}

fn mxfp4(block: Block, j: u32) -> vec4<f32> {
    let codes = nibbles_of(any_quad(field(LOW, block) + j % 16u), j >= 16u);
    let e = byte_at(field(SCALES, block));
    // 2^(e - 128); subnormal for the two smallest exponents.
    var bits = 0x00200000u << e;
    if e >= 2u {
        bits = (e - 1u) << 23u;
    }
    return as_float(bits) * small_floats(codes);
}

fn nvfp4(block: Block, j: u32) -> vec4<f32> {
    let codes = nibbles_of(any_quad(field(LOW, block) + j / 16u * 8u + j % 8u), j % 16u >= 8u);
    let byte = byte_at(field(SCALES, block) + j / 16u);
    // The E4M3 scale is decoded as the top bits of an F16, whose exponent bias is 8 larger. The
    // scale is halved because the code values are doubled.
    let scale = from_half((byte & 127u) << 7u) * 128.0;
    return select(scale, 0.0, byte == 127u) * small_floats(codes);
}

fn fp8(block: Block, j: u32) -> vec4<f32> {
    let d = as_float(any_quad(field(SCALES, block)));
    let bytes = bytes_of(any_quad(field(LOW, block) + j));
    if SCHEME == FP8_E5M2 {
        return d * from_halves(bytes << vec4<u32>(8u));
    }
    let size = bytes & vec4<u32>(127u);
    let bits = ((bytes & vec4<u32>(128u)) << vec4<u32>(8u)) | (size << vec4<u32>(7u));
    let value = select(from_halves(bits) * 256.0, vec4<f32>(nan()), size == vec4<u32>(127u));
    return d * value;
}

// Ternary digit n of bytes that encode five base-3 digits as a fraction of 256, minus 1.
fn digits(bytes: vec4<u32>, n: u32) -> vec4<f32> {
    let power = select((0x1b090301u >> (8u * n)) & 255u, 81u, n == 4u);
    let fraction = (bytes * power) & vec4<u32>(255u);
    return vec4<f32>((fraction * 3u) >> vec4<u32>(8u)) - vec4<f32>(1.0);
}

fn tq1_0(block: Block, j: u32) -> vec4<f32> {
    let low = field(LOW, block);
    let d = half_at(field(HALVES, block));
    if j < 160u {
        return d * digits(bytes_of(any_quad(low + j % 32u)), j / 32u);
    }
    if j < 240u {
        return d * digits(bytes_of(any_quad(low + 32u + j % 16u)), (j - 160u) / 16u);
    }
    return d * digits(bytes_of(any_quad(field(HIGH, block))), (j - 240u) / 4u);
}

// Level `code` of the 16 levels of IQ4_NL and IQ4_XS.
fn level(code: u32) -> f32 {
    let is_odd = (code & 4u) != 0u;
    let least = select(0xbfad9881u, 0xf6eaddcfu, is_odd);
    let most = select(0x26190d01u, 0x71594535u, is_odd);
    let word = select(least, most, (code & 8u) != 0u);
    return f32(sign_extend8(word >> (8u * (code & 3u))));
}

fn levels(codes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(level(codes.x), level(codes.y), level(codes.z), level(codes.w));
}

fn iq4(block: Block, j: u32) -> vec4<f32> {
    let sub = j / 32u;
    let codes = nibbles_of(any_quad(field(LOW, block) + 16u * sub + j % 16u), j % 32u >= 16u);
    var scale = half_at(field(HALVES, block));
    if SCHEME == IQ4_XS {
        // The 2 high bits of all eight scales, followed by the low nibbles.
        let packed = field(SCALES, block);
        let high = (byte_at(packed + sub / 4u) >> (2u * (sub % 4u))) & 3u;
        let low = (byte_at(packed + 2u + sub / 2u) >> (4u * (sub % 2u))) & 15u;
        scale *= f32(low | (high << 4u)) - 32.0;
    }
    return scale * levels(codes);
}

fn row_of(index: u32) -> u32 {
    return (grid[index / 2u] >> (16u * (index % 2u))) & 0xffffu;
}

// Four of the 8 elements of a grid row.
fn eighths(row: u32, j: u32) -> vec4<u32> {
    return (vec4<u32>(row >> (2u * (j & 4u))) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
}

// The elements of a grid row of 4.
fn quarters(row: u32) -> vec4<u32> {
    return (vec4<u32>(row) >> vec4<u32>(0u, 3u, 6u, 9u)) & vec4<u32>(7u);
}

// Expands 7 sign bits to 8: the number of minus signs is even.
fn even_signs(bits: u32) -> u32 {
    let seven = bits & 127u;
    return seven | ((countOneBits(seven) & 1u) << 7u);
}

// Applies 8 sign bits to 4 magnitudes.
fn with_signs(size: vec4<u32>, signs: u32, j: u32) -> vec4<f32> {
    let minus = (vec4<u32>(signs >> (j & 4u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    let value = vec4<f32>(size);
    return select(value, -value, minus != vec4<u32>());
}

// Nibble i of the bytes from `first`.
fn nibble_at(first: u32, i: u32) -> u32 {
    return (byte_at(first + i / 2u) >> (4u * (i % 2u))) & 15u;
}

fn iq2(block: Block, j: u32) -> vec4<f32> {
    let low = field(LOW, block);
    let i = j / 8u;
    var index = 0u;
    var signs = 0u;
    var s = 0u;
    if SCHEME == IQ2_XXS {
        let word = quad_at(low + 8u * (j / 32u) + 4u);
        index = byte_at(low + 8u * (j / 32u) + i % 4u);
        signs = even_signs(word >> (7u * (i % 4u)));
        s = word >> 28u;
    } else if SCHEME == IQ2_XS {
        let both = pair_at(low + 2u * i);
        index = both & 511u;
        signs = even_signs(both >> 9u);
        s = nibble_at(field(SCALES, block), i / 2u);
    } else {
        let high = (byte_at(field(HIGH, block) + i / 4u) >> (2u * (i % 4u))) & 3u;
        index = byte_at(low + i) | (high << 8u);
        signs = byte_at(low + 32u + i);
        s = nibble_at(field(SCALES, block), i / 2u);
    }
    // The 2-bit codes stand for 8, 25 and 43.
    let row = eighths(row_of(index), j);
    let size = vec4<u32>(8u) + 17u * row + (row >> vec4<u32>(1u));
    let scale = half_at(field(HALVES, block)) * (0.5 + f32(s)) * 0.25;
    return scale * with_signs(size, signs, j);
}

fn iq3(block: Block, j: u32) -> vec4<f32> {
    let low = field(LOW, block);
    let high = field(HIGH, block);
    let d = half_at(field(HALVES, block));
    let i = j / 4u;
    if SCHEME == IQ3_XXS {
        let word = quad_at(high + 4u * (j / 32u));
        let signs = even_signs(word >> (7u * (j / 8u % 4u)));
        // The 3-bit codes stand for 4, 12, 20, 28, 36, 44, 52 and 62.
        let row = quarters(row_of(byte_at(low + i)));
        let size = vec4<u32>(4u) + 8u * row + select(vec4<u32>(), vec4<u32>(2u), row == vec4<u32>(7u));
        return d * (0.5 + f32(word >> 28u)) * 0.5 * with_signs(size, signs, j);
    }
    let ninth = (byte_at(high + i / 8u) >> (i % 8u)) & 1u;
    let row = quarters(row_of(byte_at(low + i) | (ninth << 8u)));
    let signs = byte_at(high + 8u + j / 8u);
    let s = nibble_at(field(SCALES, block), j / 32u);
    return d * f32(2u * s + 1u) * with_signs(2u * row + vec4<u32>(1u), signs, j);
}

fn iq1(block: Block, j: u32) -> vec4<f32> {
    let packed = field(SCALES, block);
    let i = j / 8u;
    var index = byte_at(field(LOW, block) + i);
    var d = 0.0;
    var s = 0u;
    var is_down = false;
    if SCHEME == IQ1_S {
        let both = pair_at(field(HIGH, block) + 2u * (i / 4u));
        index |= ((both >> (3u * (i % 4u))) & 7u) << 8u;
        d = half_at(field(HALVES, block));
        s = (both >> 12u) & 7u;
        is_down = both >= 0x8000u;
    } else {
        let both = nibble_at(field(HIGH, block), i);
        index |= (both & 7u) << 8u;
        // The top nibbles of the four scale words form the F16 number d.
        let first = quad_at(packed);
        let second = quad_at(packed + 4u);
        let early = ((first >> 12u) & 15u) | ((first >> 24u) & 0xf0u);
        let late = ((second >> 12u) & 15u) | ((second >> 24u) & 0xf0u);
        d = from_half(early | (late << 8u));
        s = (pair_at(packed + 2u * (i / 8u)) >> (3u * (i / 2u % 4u))) & 7u;
        is_down = both >= 8u;
    }
    let shift = select(0.125, -0.125, is_down) - 1.0;
    return d * f32(2u * s + 1u) * (vec4<f32>(eighths(row_of(index), j)) + vec4<f32>(shift));
}

// Dequantizes weights j to j + 3 of a block.
fn weights(block: Block, j: u32) -> vec4<f32> {
    switch SCHEME {
        case MXFP4: { return mxfp4(block, j); }
        case NVFP4: { return nvfp4(block, j); }
        case FP8_E4M3, FP8_E5M2: { return fp8(block, j); }
        case TQ1_0: { return tq1_0(block, j); }
        case IQ4_NL, IQ4_XS: { return iq4(block, j); }
        case IQ2_XXS, IQ2_XS, IQ2_S: { return iq2(block, j); }
        case IQ3_XXS, IQ3_S: { return iq3(block, j); }
        default: { return iq1(block, j); }
    }
}
