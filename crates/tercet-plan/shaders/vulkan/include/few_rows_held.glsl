// Skinny GEMM with A in registers. The including shader includes few_rows_common.glsl and defines
// the weight format:
//
//     WORDS                             type of a lane's words of a row of W in a step;
//     HEAD                              type of its scales in a slice;
//     words_at(row, slice)              offset of its words, in units of them; `row` is a byte or element offset;
//     load_words(place, step, row)      loads the words of row 0 or 1 of the place;
//     load_head(place, row)             loads the scales of that row;
//     x_at(step, t), X_NEXT             index in a slice of the first four elements of A in a step, and the
//                                       distance to the next four;
//     X_FIRST, X_SECOND                 the two pairs of a lane in four elements;
//     take_step(step, u, v, slice)      adds the products of a step.
//
// A subgroup processes SLICE of k in 8 steps. The subgroup keeps these elements of A in registers
// and iterates over the TILES of its workgroup, prefetching the words of the next tile. The THREADS
// / 32 subgroups process adjacent slices, ROUNDS times. Shared memory reduces the sums of the
// subgroups, PASS tiles together. Groups are flat over x and y.

// Steps of weights in flight.
const uint AHEAD = 4;

const uint SUBGROUPS = THREADS / 32;
// Row pitch of the partial sums of a tile, padded against bank conflicts; there is a row per row of
// A.
const uint SHARE_ROW = 20;
const uint SHARE = 8 * SHARE_ROW;
// Results of a tile per row, and results per word.
const uint RESULTS = 16 / (1 + GATED);
const uint TOGETHER = Y_TYPE == F32 ? 1 : 2;

shared float shares[SUBGROUPS * PASS * SHARE];

WORDS words_u[STEPS];
WORDS words_v[STEPS];

Place place_of(uint tile, uint slice) {
    uint half_n = p.n / 2u;
    uvec2 column = GATED == 1u ? min(uvec2(tile * 8u + g), uvec2(half_n - 1u)) + uvec2(0u, half_n)
                               : min(uvec2(tile * 16u + g) + uvec2(0u, 8u), uvec2(p.n - 1u));
    uvec2 rows = p.b_offset + column * p.b_col;
    return Place(uvec2(words_at(rows.x, slice), words_at(rows.y, slice)), rows, slice);
}

// Loads four elements of this lane's row of A, from k on.
vec4 x_four(uint k) {
    uint row = ROWS == 4u ? g & 3u : g;
    bool is_some = row < p.m && (WHOLE == 1u || k < p.k);
    uint at = (p.a_offset + (is_some ? row * p.a_row + k : 0u)) / 4u;
    vec4 x;
    if (A_TYPE == F32) {
        x = uintBitsToFloat(a_vec[at]);
    } else {
        uvec2 words = a_pair[at];
        x = A_TYPE == F16 ? vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y))
                          : uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
    }
    return is_some ? x : vec4(0.0);
}

// Fills matrix `at` with two pairs of elements.
void keep(const uint at, vec2 x, vec2 next, bool is_finite) {
    bool is_second = HAS_LOW_ROWS && g >= 4u;
    f16vec2 u = is_second ? second_of(x, is_finite) : f16vec2(A_TYPE == F32 ? first_of(x) : x);
    f16vec2 v = is_second ? second_of(next, is_finite) : f16vec2(A_TYPE == F32 ? first_of(next) : next);
    high[at][0] = u.x;
    high[at][1] = u.y;
    high[at][2] = v.x;
    high[at][3] = v.y;
    if (HAS_LOW) {
        u = second_of(x, is_finite);
        v = second_of(next, is_finite);
        low[at][0] = u.x;
        low[at][1] = u.y;
        low[at][2] = v.x;
        low[at][3] = v.y;
    }
}

// Bits of the largest magnitude of this lane's row in a slice.
uint size_of(uint slice) {
    uvec4 most = uvec4(0u);
    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
        uint k = slice * SLICE + x_at(s, t);
        most = max(most, floatBitsToUint(x_four(k)) & 0x7fffffffu);
        most = max(most, floatBitsToUint(x_four(k + X_NEXT)) & 0x7fffffffu);
    }
    uint size = max(max(most.x, most.y), max(most.z, most.w));
    size = max(size, subgroupShuffleXor(size, 1u));
    return max(size, subgroupShuffleXor(size, 2u));
}

// Loads a slice of A into registers. With one round, the slice is loaded twice, for the largest
// magnitude and for the scaled elements, because registers cannot keep all unscaled elements.
void hold(uint slice) {
    float scale = 1.0;
    float unit = 1.0;
    bool is_finite = true;
    if (A_TYPE != F16) {
        uint size = size_of(slice);
        is_finite = size < 0x7f800000u;
        uint exponent = max(size >> 23, 15u);
        scale = uintBitsToFloat((268u - exponent) << 23);
        unit = uintBitsToFloat((exponent - 14u) << 23);
    }
    uint first = 2u * t % ROWS;
    units = vec2(subgroupShuffle(unit, first * 4u), subgroupShuffle(unit, first * 4u + 4u));
    // `hidden` hides from compilers that size_of() loaded the same elements, and serializes the
    // loads of the steps. Without it, compilers would keep all elements in registers.
    uint hidden = ROUNDS == 1u ? p.zero : 0u;
    uint from = slice * SLICE + hidden;
    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
        vec4 x = x_four(from + x_at(s, t)) * scale;
        vec4 next = x_four(from + x_at(s, t) + X_NEXT) * scale;
        keep(2u * s, x.X_FIRST, x.X_SECOND, is_finite);
        keep(2u * s + 1u, next.X_FIRST, next.X_SECOND, is_finite);
        from += floatBitsToUint(next.w) & hidden;
    }
}

float element_of(uint word, uint at, uint type) {
    if (type == F32) {
        return uintBitsToFloat(word);
    }
    uint bits = (at & 1u) == 0u ? word & 0xffffu : word >> 16;
    return type == F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Sum of row `row` of A and column `column` of a tile, over all subgroups.
float sum_of(uint tile, uint row, uint column) {
    float sum = 0.0;
    uint from = tile * SHARE + row * SHARE_ROW + column;
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i++) {
        sum += shares[i * PASS * SHARE + from];
        if (HAS_LOW_ROWS) {
            sum += shares[i * PASS * SHARE + from + 4u * SHARE_ROW];
        }
    }
    return sum;
}

float result_of(uint tile, uint row, uint column, uint n) {
    float sum = sum_of(tile, row, column);
    if (GATED == 1u) {
        return activate(ACTIVATION, sum) * sum_of(tile, row, column + 8u);
    }
    if (BIAS == 1u) {
        uint at = p.bias_offset + row * p.bias_row + n * p.bias_stride;
        sum += element_of(bias[A_TYPE == F32 ? at : at / 2u], at, A_TYPE);
    }
    return activate(ACTIVATION, sum);
}

// Stores the results of `tiles` tiles from tile `first` on.
void store(uint first, uint tiles) {
    const uint words = RESULTS / TOGETHER;
    uint columns = p.n / (1u + GATED);
    for (uint i = gl_LocalInvocationIndex; i < tiles * words * ROWS; i += THREADS) {
        uint column = i % words * TOGETHER;
        uint row = i / words % ROWS;
        uint tile = i / words / ROWS;
        uint n = (first + tile) * RESULTS + column;
        if (row >= p.m || n >= columns) {
            continue;
        }
        float result = result_of(tile, row, column, n);
        uint word = floatBitsToUint(result);
        if (Y_TYPE != F32) {
            float next = result_of(tile, row, column + 1u, n + 1u);
            word = Y_TYPE == F16 ? f32_to_f16(result) | f32_to_f16(next) << 16
                                 : f32_to_bf16(result) | f32_to_bf16(next) << 16;
        }
        y[(row * columns + n) / TOGETHER] = word;
    }
}

// Stores the sums of a tile, added to those of earlier rounds.
void share(uint tile, uint round) {
    uint to = (gl_SubgroupID * PASS + tile) * SHARE + 2u * t * SHARE_ROW + g;
    vec4 own = sums * units.xyxy;
    if (round > 0u) {
        own += vec4(shares[to], shares[to + SHARE_ROW], shares[to + 8u], shares[to + SHARE_ROW + 8u]);
    }
    shares[to] = own.x;
    shares[to + SHARE_ROW] = own.y;
    shares[to + 8u] = own.z;
    shares[to + SHARE_ROW + 8u] = own.w;
}

// Computes the sums of a tile and slice. The first weights of the next tile or slice, `next`, are
// loaded during the computation.
void take_slice(Place place, Place next) {
    sums = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
        WORDS u = words_u[s % AHEAD];
        WORDS v = words_v[s % AHEAD];
        if (s + AHEAD < STEPS) {
            words_u[s % AHEAD] = load_words(place, s + AHEAD, 0u);
            words_v[s % AHEAD] = load_words(place, s + AHEAD, 1u);
        } else {
            words_u[s % AHEAD] = load_words(next, s + AHEAD - STEPS, 0u);
            words_v[s % AHEAD] = load_words(next, s + AHEAD - STEPS, 1u);
        }
        take_step(s, u, v, place.slice);
    }
}

void main() {
    g = gl_SubgroupInvocationID / 4u;
    t = gl_SubgroupInvocationID % 4u;
    uint first_tile = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * TILES;
    if (first_tile * 16u >= p.n) {
        return;
    }
    Place place = place_of(first_tile, gl_SubgroupID);
    HEAD next_u = load_head(place, 0u);
    HEAD next_v = load_head(place, 1u);
    [[unroll]] for (uint s = 0u; s < AHEAD; s++) {
        words_u[s] = load_words(place, s, 0u);
        words_v[s] = load_words(place, s, 1u);
    }
    if (ROUNDS == 1u) {
        hold(gl_SubgroupID);
    }
    for (uint first = 0u; first < TILES; first += PASS) {
        uint tiles = min(PASS, TILES - first);
        for (uint round = 0u; round < ROUNDS; round++) {
            if (ROUNDS > 1u) {
                hold(place.slice);
            }
            for (uint tile = 0u; tile < tiles; tile++) {
                bool is_last = tile + 1u == tiles;
                bool turns = is_last && round + 1u == ROUNDS;
                uint next_tile = turns ? min(first + tiles, TILES - 1u) : first + (is_last ? 0u : tile + 1u);
                uint next_round = turns ? 0u : is_last ? round + 1u : round;
                Place next = place_of(first_tile + next_tile, gl_SubgroupID + SUBGROUPS * next_round);
                head_u = next_u;
                head_v = next_v;
                next_u = load_head(next, 0u);
                next_v = load_head(next, 1u);
                take_slice(place, next);
                share(tile, round);
                place = next;
            }
        }
        barrier();
        store(first_tile + first, tiles);
        barrier();
    }
}
