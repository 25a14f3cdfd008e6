// The row as integers, after `gemv_held.wgsl`: the 32 elements of an invocation are multiples of a power of two
// less than 2^-22 of the greatest, with three digits from -128 to 127 of base 256. Four digits of a place are
// a word, and so are four codes: the device multiplies and adds them in one instruction. Sums of codes times
// digits are exact, so that rounding is that of floats. Pieces have two groups.
//
// Invocations with an infinity or NaN among their elements take floats.

// The digits of four elements: the high ones, the middle ones, the low ones.
var<private> digits: array<vec3<u32>, QUADS>;
// What a multiple of 1 is; 0 where floats are taken.
var<private> unit_size: f32;
// What the sums of both groups begin with.
var<private> starts: array<vec3<i32>, 2>;

const INFINITE: u32 = 0x7f800000u;

fn greatest_of(words: vec4<u32>) -> u32 {
    return max(max(words.x, words.y), max(words.z, words.w));
}

// The exponent of a magnitude that is a little greater, so that rounding cannot leave the three digits; at least
// the one with which sizes of units are normal numbers.
fn exponent_for(size: u32) -> u32 {
    return max((size + 0x20000u) >> 23u, 23u);
}

// The low bytes of four words.
fn low_bytes(words: vec4<u32>) -> u32 {
    let pairs = insertBits(words.xz, words.yw, 8u, 8u);
    return insertBits(pairs.x, pairs.y, 16u, 16u);
}

// The digits of x * scale, which is less than 2^23 - 2^15.
fn digits_of(x: vec4<f32>, scale: f32) -> vec3<u32> {
    // The low 24 bits are the rounded magnitude.
    let magnitudes = bitcast<vec4<u32>>(abs(x) * scale + vec4<f32>(8388608.0));
    let signs = bitcast<vec4<u32>>(bitcast<vec4<i32>>(x) >> vec4<u32>(31u));
    // Bytes of a number with 128 added to each digit.
    let bytes = ((magnitudes ^ signs) - signs) + vec4<u32>(0x808080u);
    let words = vec3<u32>(
        low_bytes(bytes >> vec4<u32>(16u)),
        low_bytes(bytes >> vec4<u32>(8u)),
        low_bytes(bytes),
    );
    return words ^ vec3<u32>(0x80808080u);
}

// Puts the digits of what was fetched where the slices take them, with the size of a unit beside them.
fn fill(local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < 32u * SLICES {
            let spot = spot_of(at);
            let size = greatest_of(bitcast<vec4<u32>>(fetched[i]) & vec4<u32>(0x7fffffffu));
            memory[2u * spot.x + spot.y / 4u][spot.y % 4u] = bitcast<f32>(size);
        }
    }
    workgroupBarrier();
    var sizes: array<u32, FETCHED>;
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < 32u * SLICES {
            let slice = spot_of(at).x;
            let first = bitcast<vec4<u32>>(memory[2u * slice]);
            let second = bitcast<vec4<u32>>(memory[2u * slice + 1u]);
            sizes[i] = greatest_of(max(first, second));
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < 32u * SLICES {
            let spot = spot_of(at);
            let exponent = exponent_for(sizes[i]);
            let words = digits_of(fetched[i], bitcast<f32>((276u - exponent) << 23u));
            let size = select((exponent - 22u) << 23u, 0u, sizes[i] >= INFINITE);
            memory[spot.y * TILE_ROW + spot.x] = bitcast<vec4<f32>>(vec4<u32>(words, size));
        }
    }
    workgroupBarrier();
}

fn add_dots(sums: vec3<i32>, bytes: u32, quad: u32) -> vec3<i32> {
    let own = digits[quad];
    return sums + vec3<i32>(dot4I8Packed(bytes, own.x), dot4I8Packed(bytes, own.y), dot4I8Packed(bytes, own.z));
}

fn hold(slice: u32) {
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        let words = bitcast<vec4<u32>>(memory[quad * TILE_ROW + slice]);
        digits[quad] = words.xyz;
        unit_size = bitcast<f32>(words.w);
    }
    var sums: array<vec3<i32>, 2>;
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        sums[quad / 4u] = add_dots(sums[quad / 4u], 0x01010101u, quad);
    }
    if HAS_MIN == 1u {
        let places = vec3<i32>(65536, 256, 1);
        x_sums = vec2<f32>(f32(dot(sums[0], places)), f32(dot(sums[1], places)));
    }
    if has_one_scale() {
        sums[0] += sums[1];
    }
    starts[0] = -code_offset() * sums[0];
    starts[1] = -code_offset() * sums[1];
}

// Takes the elements anew as floats where there must be floats.
fn takes_floats(take: u32) -> bool {
    if unit_size != 0.0 {
        return false;
    }
    let first = take / TAKES * BLOCK_LEN + first_of(take % TAKES * TWINS);
    let squares = row_squares;
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        let k = first + quad / 4u * SECOND + quad % 4u * 4u;
        x[quad] = prepared(a_four(k), k);
    }
    row_squares = squares;
    sum_up();
    return true;
}

fn group_dots(start: vec3<i32>, raw: Raw, group: u32, quad: u32) -> vec3<i32> {
    var sums = start;
    for (var i = 0u; i < 4u; i += 1u) {
        sums = add_dots(sums, code_bytes(raw, group, i), quad + i);
    }
    return sums;
}

// The number with these digits. Compilers order sums of floats as they like: all but the last are of integers, as long
// as 32 bits hold them.
fn number_of(sums: vec3<i32>) -> f32 {
    if SCHEME == Q6_K {
        return f32(sums.x) * 65536.0 + (f32(sums.y) * 256.0 + f32(sums.z));
    }
    return f32(sums.x) * 65536.0 + f32(sums.y * 256 + sums.z);
}

fn sum_of_held(held: Held) -> f32 {
    let first = group_dots(starts[0], held.raw, 0u, 0u);
    var sum: f32;
    if has_one_scale() {
        let scale = scales(held.raw).xy;
        sum = scale.x * number_of(group_dots(first, held.raw, 1u, 4u));
        if HAS_MIN == 1u {
            sum += scale.y * (x_sums.x + x_sums.y);
        }
    } else {
        // Sums times scales are still integers.
        let codes = scale_codes(held.raw);
        let size = scale_units(held.raw);
        let second = group_dots(starts[1], held.raw, 1u, 4u);
        sum = size.x * number_of(first * codes.x + second * codes.z);
        if HAS_MIN == 1u {
            sum += size.y * (f32(codes.y) * x_sums.x + f32(codes.w) * x_sums.y);
        }
    }
    return sum * unit_size;
}
