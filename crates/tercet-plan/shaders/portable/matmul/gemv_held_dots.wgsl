// Integer-dot variant of `gemv_held.wgsl`: the activation row as fixed-point integers. The 64
// elements of a thread are multiples of a power of two below 2^-22 of the largest one (2^-14 with
// two limbs). Each integer has three signed 8-bit limbs, base 256. Four equal-weight limbs form a
// word, as do four quantized values, so that one instruction (dot4I8Packed) multiplies and adds
// four pairs. The integer sums are exact, so only float operations round. With DIGITS = 2 the third
// limb is 0. The TAKE weights of a thread are two pieces of two groups, which share scale data if
// possible.
//
// Threads with infinity or NaN among their elements use the float fallback.
// uses dequant/pieces.wgsl: PARTS, Raw, SECOND, code_bytes, code_offset, first_of, has_one_scale, no_bits, scale_codes, scale_units, scales
// uses matmul/operands.wgsl: p
// uses matmul/row_quads.wgsl: a_four

// Number of weights of a column that a thread multiplies at once.
const TAKE: u32 = 64u;
// Vectors in the shared tile per TAKE weights: words of limbs, and one vector with the fixed-point
// unit.
const WORD_VECTORS: u32 = 4u * DIGITS;
const HELD: u32 = WORD_VECTORS + 1u;

// Limbs of four elements per entry: high, middle, low.
var<private> digits: array<vec3<u32>, QUADS>;
// Value of the fixed-point unit of this thread's row elements; 0 selects the float fallback.
var<private> unit_size: f32;
// Initial values of the integer sums, per scale, and the factors of the minima.
var<private> starts: array<vec3<i32>, 4>;
var<private> least_sums: array<f32, 4>;

const INFINITE: u32 = 0x7f800000u;

fn greatest_of(words: vec4<u32>) -> u32 {
    return max(max(words.x, words.y), max(words.z, words.w));
}

// Exponent for the fixed-point scale of elements with the largest magnitude `size`. `size` is
// increased slightly, so that rounding cannot overflow the limbs. The lower bound makes the
// fixed-point unit a normal number.
fn exponent_for(size: u32) -> u32 {
    return max((size + 0x20000u) >> 23u, 23u);
}

// Packs the low bytes of four words.
fn low_bytes(words: vec4<u32>) -> u32 {
    let pairs = insertBits(words.xz, words.yw, 8u, 8u);
    return insertBits(pairs.x, pairs.y, 16u, 16u);
}

// Limbs of x * scale. The magnitude is below 2^23 - 2^15, or with two limbs below 2^15 - 2^7.
fn digits_of(x: vec4<f32>, scale: f32) -> vec3<u32> {
    // The low 24 bits are the rounded magnitude.
    let magnitudes = bitcast<vec4<u32>>(abs(x) * scale + vec4<f32>(8388608.0));
    let signs = bitcast<vec4<u32>>(bitcast<vec4<i32>>(x) >> vec4<u32>(31u));
    if DIGITS == 2u {
        let pairs = ((magnitudes ^ signs) - signs) + vec4<u32>(0x8080u);
        let two = vec2<u32>(low_bytes(pairs >> vec4<u32>(8u)), low_bytes(pairs)) ^ vec2<u32>(0x80808080u);
        return vec3<u32>(two, 0u);
    }
    // Adds 128 to each limb, so that the limbs are unsigned bytes.
    let bytes = ((magnitudes ^ signs) - signs) + vec4<u32>(0x808080u);
    let words = vec3<u32>(
        low_bytes(bytes >> vec4<u32>(16u)),
        low_bytes(bytes >> vec4<u32>(8u)),
        low_bytes(bytes),
    );
    return words ^ vec3<u32>(0x80808080u);
}

// Index of the vector that stores the largest magnitudes of four quads, including this quad, until
// the limbs overwrite it.
fn sizes_at(slice: u32, quad: u32) -> u32 {
    return QUADS / 4u * slice + quad / 4u;
}

// Stores the limbs of the loaded row elements in the tile, with the fixed-point unit beside them.
fn fill(local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < TAKE * SLICES {
            let spot = spot_of(at);
            let size = greatest_of(bitcast<vec4<u32>>(fetched[i]) & vec4<u32>(0x7fffffffu));
            memory[sizes_at(spot.x, spot.y)][spot.y % 4u] = bitcast<f32>(size);
        }
    }
    workgroupBarrier();
    var sizes: array<u32, FETCHED>;
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < TAKE * SLICES {
            let first = sizes_at(spot_of(at).x, 0u);
            var most = vec4<u32>();
            for (var j = 0u; j < QUADS / 4u; j += 1u) {
                most = max(most, bitcast<vec4<u32>>(memory[first + j]));
            }
            sizes[i] = greatest_of(most);
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < TAKE * SLICES {
            let spot = spot_of(at);
            let exponent = exponent_for(sizes[i]);
            let words = digits_of(fetched[i], bitcast<f32>((252u + 8u * DIGITS - exponent) << 23u));
            for (var d = 0u; d < DIGITS; d += 1u) {
                let word = DIGITS * spot.y + d;
                memory[word / 4u * TILE_ROW + spot.x][word % 4u] = bitcast<f32>(words[d]);
            }
            if spot.y == 0u {
                let size = select((exponent - 22u) << 23u, 0u, sizes[i] >= INFINITE);
                memory[WORD_VECTORS * TILE_ROW + spot.x].x = bitcast<f32>(size);
            }
        }
    }
    workgroupBarrier();
}

fn add_dots(sums: vec3<i32>, bytes: u32, quad: u32) -> vec3<i32> {
    let own = digits[quad];
    if DIGITS == 2u {
        return sums + vec3<i32>(dot4I8Packed(bytes, own.x), dot4I8Packed(bytes, own.y), 0);
    }
    return sums + vec3<i32>(dot4I8Packed(bytes, own.x), dot4I8Packed(bytes, own.y), dot4I8Packed(bytes, own.z));
}

// Index of the integer sum for a group of a piece. Groups with the same scale share a sum.
fn sum_at(which: u32, group: u32) -> u32 {
    if has_one_scale() {
        return which;
    }
    if SCHEME == Q4_K || SCHEME == Q5_K {
        return group;
    }
    return 2u * which + group;
}

// Quantized values of a word as signed bytes: those of `code_bytes` times `code_factor`, minus a
// constant. High nibbles with a separate scale then need no shift. If the compiler does not know
// the mask, extracting these nibbles takes one instruction.
fn signed_codes(raw: Raw, group: u32, i: u32) -> u32 {
    if SCHEME == Q4_K && group == 1u {
        return (raw.low[i] & (0xf0f0f0f0u | no_bits)) ^ 0x80808080u;
    }
    return code_bytes(raw, group, i);
}

// Factor of the signed bytes of a group, and the constant to add to each.
fn code_factor(group: u32) -> i32 {
    return select(1, 16, SCHEME == Q4_K && group == 1u);
}

fn code_start(group: u32) -> i32 {
    return select(-code_offset(), 128, SCHEME == Q4_K && group == 1u);
}

fn hold(slice: u32) {
    var words: array<u32, 4u * WORD_VECTORS>;
    for (var i = 0u; i < WORD_VECTORS; i += 1u) {
        let four = bitcast<vec4<u32>>(memory[i * TILE_ROW + slice]);
        for (var j = 0u; j < 4u; j += 1u) {
            words[4u * i + j] = four[j];
        }
    }
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        let first = DIGITS * quad;
        digits[quad] = vec3<u32>(words[first], words[first + 1u], select(0u, words[first + DIGITS - 1u], DIGITS == 3u));
    }
    unit_size = memory[WORD_VECTORS * TILE_ROW + slice].x;
    var sums: array<vec3<i32>, 4>;
    for (var i = 0u; i < 4u; i += 1u) {
        for (var quad = 4u * i; quad < 4u * i + 4u; quad += 1u) {
            sums[i] = add_dots(sums[i], 0x01010101u, quad);
        }
    }
    var whole: array<vec3<i32>, 4>;
    for (var i = 0u; i < 4u; i += 1u) {
        whole[sum_at(i / 2u, i % 2u)] += sums[i];
        starts[i] = vec3<i32>();
    }
    for (var i = 0u; i < 4u; i += 1u) {
        starts[sum_at(i / 2u, i % 2u)] += code_start(i % 2u) * sums[i];
        least_sums[i] = f32(dot(whole[i], vec3<i32>(65536, 256, 1)));
    }
}

// Does nothing at run time. The compiler must assume that it uses the weights in `queue`; otherwise
// it would delay their first loads until the row is loaded.
fn ask_for_queue() {
    for (var i = 0u; i < p.zero; i += 1u) {
        for (var j = 0u; j < DEPTH; j += 1u) {
            let raw = queue[j].raw;
            let bits = raw.low ^ raw.high ^ raw.head ^ queue[j].next.low ^ queue[j].next.high ^ queue[j].next.head;
            memory[i] = bitcast<vec4<f32>>(bits ^ vec4<u32>(raw.halves ^ queue[j].next.halves));
        }
    }
}

fn needs_floats() -> bool {
    return unit_size == 0.0;
}

// Reloads, as floats, the row elements of one piece of the thread's weights.
fn take_anew(take: u32, part: u32) {
    let piece = piece_of(take, part);
    let first = piece / PARTS * BLOCK_LEN + first_of(piece % PARTS);
    let squares = row_squares;
    for (var quad = 0u; quad < FLOAT_QUADS; quad += 1u) {
        let k = first + quad / 4u * SECOND + quad % 4u * 4u;
        x[quad] = prepared(a_four(k), k);
    }
    row_squares = squares;
    sum_up();
}

fn group_dots(start: vec3<i32>, raw: Raw, group: u32, quad: u32) -> vec3<i32> {
    var sums = start;
    for (var i = 0u; i < 4u; i += 1u) {
        sums = add_dots(sums, signed_codes(raw, group, i), quad + i);
    }
    return sums;
}

// Converts limb sums to a float. Compilers may reorder float additions, so all but the last
// addition are in integers if 32 bits suffice.
fn number_of(sums: vec3<i32>) -> f32 {
    if SCHEME == Q4_K || SCHEME == Q5_K || SCHEME == Q6_K {
        return f32(sums.x) * 65536.0 + (f32(sums.y) * 256.0 + f32(sums.z));
    }
    return f32(sums.x) * 65536.0 + f32(sums.y * 256 + sums.z);
}

// Sum of a piece with one scale.
fn sum_of_piece(raw: Raw, which: u32) -> f32 {
    let scale = scales(raw).xy;
    let sums = group_dots(starts[which], raw, 0u, 8u * which);
    let sum = scale.x * number_of(group_dots(sums, raw, 1u, 8u * which + 4u));
    if HAS_MIN == 1u {
        return sum + scale.y * least_sums[which];
    }
    return sum;
}

// Limb sums of two groups times their integer scales; the result is still an integer.
fn with_scales(first: vec3<i32>, second: vec3<i32>, codes: vec4<i32>) -> vec3<i32> {
    return first * (codes.x * code_factor(1u)) + second * codes.z;
}

fn least_of(codes: vec4<i32>, at: u32) -> f32 {
    // Integer to float for 0 <= x < 2^23 without a conversion instruction, which has low
    // throughput.
    let floats = bitcast<vec2<f32>>(vec2<u32>(codes.yw) | vec2<u32>(0x4b000000u)) - vec2<f32>(8388608.0);
    return floats.x * least_sums[at] + floats.y * least_sums[at + 1u];
}

fn sum_of_held(held: Held) -> f32 {
    if has_one_scale() {
        return unit_size * (sum_of_piece(held.raw, 0u) + sum_of_piece(held.next, 1u));
    }
    let size = scale_units(held.raw);
    let codes = scale_codes(held.raw);
    var first = group_dots(starts[0], held.raw, 0u, 0u);
    var second = group_dots(starts[1], held.raw, 1u, 4u);
    var least = least_of(codes, 0u);
    var sums: vec3<i32>;
    if SCHEME == Q4_K || SCHEME == Q5_K {
        first = group_dots(first, held.next, 0u, 8u);
        second = group_dots(second, held.next, 1u, 12u);
        sums = with_scales(first, second, codes);
    } else {
        let others = scale_codes(held.next);
        let third = group_dots(starts[2], held.next, 0u, 8u);
        let fourth = group_dots(starts[3], held.next, 1u, 12u);
        sums = with_scales(first, second, codes) + with_scales(third, fourth, others);
        least += least_of(others, 2u);
    }
    var sum = size.x * (number_of(sums) * (1.0 / f32(code_factor(1u))));
    if HAS_MIN == 1u {
        sum += size.y * least;
    }
    return sum * unit_size;
}
