// What the rows of a chunk of a scan over states make of each other, for chunk_walk.glsl: for each entry of the batch,
// head and chunk, with l the running sums of the logarithms of decays in the chunk,
//
//     mixes[t][j] = exp(l_t - l_j) (leave_t . enter_j) by_j for j <= t,
//     inverses = (I + A)^-1 diag(beta), A[t][j] = beta_t exp(l_t - l_j) (enter_t . enter_j) for j < t (DELTA),
//
// where by is dt for Mamba-2 and 1 for the delta rule, in 16 bits: the mixes times a power of two that brings the
// greatest near 2^10. And as floats exp(l_t); exp(l_end - l_j) by_j times a power of two that brings the greatest
// near 1; then exp(l_end) times that power, its inverse, and the inverse of that of the mixes.
//
// Logarithms are differences of sums below 0 where states decay. A decay below 2^-200 counts as 2^-200, which leaves
// nothing of a state either, and keeps the sums so small that their differences are good to 2^-10.
//
// A workgroup of four subgroups makes one chunk of `each` heads that share their rows, a block of 16 rows a subgroup: the
// products once, what decays for each head. The inverse is made column by column in F32, an invocation each, 16 rows
// at a time (forward substitution; Yang et al., "Parallelizing Linear Transformers
// with the Delta Rule", 2024).

#include "chunk_common.glsl"

layout(set = 0, binding = 0) uniform Params {
    uint steps;
    uint chunks;
    uint heads;
    uint groups;
    uint each;
    uint count;
} p;

layout(set = 0, binding = 1) readonly buffer Enter { uvec4 enter[]; };
layout(set = 0, binding = 2) readonly buffer Leave { uvec4 leave[]; };
// dt or g; a for each head, or beta.
layout(set = 0, binding = 3) readonly buffer Gates { uint gates[]; };
layout(set = 0, binding = 4) readonly buffer Others { uint others[]; };
layout(set = 0, binding = 5) writeonly buffer Mixes { uvec4 mixes[]; };
layout(set = 0, binding = 6) writeonly buffer Inverses { uvec4 inverses[]; };
layout(set = 0, binding = 7) writeonly buffer Factors { float factors[]; };

// Rows of both operands, from LEAVE_AT on those of `leave`; then squares of floats, rows of SQUARE_STRIDE words of 16
// bytes: leave . enter, later the inverse; enter . enter, then A.
const uint ROW_STRIDE = ROW_WORDS + 1;
const uint LEAVE_AT = CHUNK * ROW_STRIDE;
const uint SQUARE_STRIDE = CHUNK / 4 + 1;
const uint OWN_AT = CHUNK * SQUARE_STRIDE;
const uint ROWS_LENGTH = 2 * LEAVE_AT;
const uint SQUARES_LENGTH = OWN_AT * (1 + DELTA);
shared uvec4 tiles[ROWS_LENGTH > SQUARES_LENGTH ? ROWS_LENGTH : SQUARES_LENGTH];
// Of each step the sum of logarithms, and dt or beta.
shared vec4 sums[CHUNK / 4];
shared vec4 weights[CHUNK / 4];
// Of each subgroup.
shared float parts[SUBGROUPS];
shared float most_mixes[SUBGROUPS];
shared float most_factors[SUBGROUPS];

const float LOG2_E = 1.44269504;
const float LEAST_LOG = -200.0;
// Words of a square of 16-bit numbers, and of rows, of an invocation. Those of a square have the same columns.
const uint LOADS = SQUARE_WORDS / THREADS;
const uint ROW_LOADS = (CHUNK * ROW_WORDS + THREADS - 1) / THREADS;

float half_at(uint word, uint element) {
    vec2 two = two_of(word);
    return (element & 1u) == 0u ? two.x : two.y;
}

float float_at(uint at) { return uintBitsToFloat(tiles[at / 4u][at % 4u]); }

// An invocation's step: those of a subgroup follow each other.
uint own_step() { return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID; }

// The logarithm of the decay, and the weight, of the invocation's step; steps before `from` change nothing.
vec2 load_gates(uint first_gate, uint head, uint from) {
    uint t = own_step();
    uint at = first_gate + min(t, CHUNK - 1u) * p.heads;
    float gate = half_at(gates[at >> 1], at);
    uint other = DELTA == 1u ? at : head;
    float x = half_at(others[other >> 1], other);
    float decay = LOG2_E * (DELTA == 1u ? gate : gate * x);
    // NaN stays.
    decay = decay < LEAST_LOG ? LEAST_LOG : decay;
    return t < from || t >= CHUNK ? vec2(0.0) : vec2(decay, DELTA == 1u ? x : gate);
}

// Sums of logarithms and weights to shared memory.
void place_gates(vec2 own) {
    uint t = own_step();
    float sum = subgroupInclusiveAdd(own.x);
    if (gl_SubgroupInvocationID == SUBGROUP - 1u) {
        parts[gl_SubgroupID] = sum;
    }
    barrier();
    for (uint i = 0u; i < gl_SubgroupID; i++) {
        sum += parts[i];
    }
    if (t < CHUNK) {
        sums[t / 4u][t % 4u] = sum;
        weights[t / 4u][t % 4u] = own.y;
    }
    barrier();
}

void load_rows(uint base, uint stride) {
    [[unroll]] for (uint i = 0u; i < ROW_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (CHUNK * ROW_WORDS % THREADS == 0u || at < CHUNK * ROW_WORDS) {
            uint from = base + at / ROW_WORDS * stride + at % ROW_WORDS;
            uint to = at / ROW_WORDS * ROW_STRIDE + at % ROW_WORDS;
            tiles[to] = enter[from];
            tiles[LEAVE_AT + to] = leave[from];
        }
    }
}

// The products of the subgroup's rows with those up to them, in the place of the rows.
void multiply_rows() {
    uint block = gl_SubgroupID;
    SUMS mixed[BLOCKS];
    SUMS own[BLOCKS];
    [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
        mixed[j] = SUMS(0.0);
        own[j] = SUMS(0.0);
    }
    LEFT x;
    LEFT y;
    RIGHT z;
    [[unroll]] for (uint h = 0u; h < STATE_BLOCKS; h++) {
        coopMatLoad(x, tiles, LEAVE_AT + block * 16u * ROW_STRIDE + h * 2u, ROW_STRIDE, ROWS);
        if (DELTA == 1u) {
            coopMatLoad(y, tiles, block * 16u * ROW_STRIDE + h * 2u, ROW_STRIDE, ROWS);
        }
        [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
            if (j <= block) {
                coopMatLoad(z, tiles, j * 16u * ROW_STRIDE + h * 2u, ROW_STRIDE, COLUMNS_FIRST);
                mixed[j] = coopMatMulAdd(x, z, mixed[j]);
                if (DELTA == 1u) {
                    own[j] = coopMatMulAdd(y, z, own[j]);
                }
            }
        }
    }
    barrier();
    [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
        uint at = block * 16u * SQUARE_STRIDE + j * 4u;
        if (j <= block) {
            coopMatStore(mixed[j], tiles, at, SQUARE_STRIDE, ROWS);
            if (DELTA == 1u) {
                coopMatStore(own[j], tiles, OWN_AT + at, SQUARE_STRIDE, ROWS);
            }
        }
    }
    barrier();
}

// The products that become an invocation's mixes, four neighbours each, and the mixes of a head.
vec4 products[LOADS * 2];
vec4 made[LOADS * 2];

void take_products() {
    uint four = gl_LocalInvocationIndex % 8u * 2u;
    [[unroll]] for (uint i = 0u; i < LOADS * 2u; i++) {
        uint t = (gl_LocalInvocationIndex + i / 2u * THREADS) / 8u;
        products[i] = uintBitsToFloat(tiles[t * SQUARE_STRIDE + four + i % 2u]);
    }
}

// Decays the products of rows; the greatest of the subgroup. A is made in its place.
float decay_products() {
    vec4 most = vec4(0.0);
    uint first_four = gl_LocalInvocationIndex % 8u * 2u;
    [[unroll]] for (uint i = 0u; i < LOADS * 2u; i++) {
        uint t = (gl_LocalInvocationIndex + i / 2u * THREADS) / 8u;
        uint four = first_four + i % 2u;
        uvec4 j = uvec4(4u * four) + uvec4(0u, 1u, 2u, 3u);
        vec4 decay = exp2(vec4(sums[t / 4u][t % 4u]) - sums[four]);
        vec4 x = products[i] * decay;
        if (DELTA == 0u) {
            x *= weights[four];
        } else {
            uint to = OWN_AT + t * SQUARE_STRIDE + four;
            vec4 own = uintBitsToFloat(tiles[to]) * decay * weights[t / 4u][t % 4u];
            tiles[to] = floatBitsToUint(mix(vec4(0.0), own, lessThan(j, uvec4(t))));
        }
        made[i] = mix(vec4(0.0), x, lessThanEqual(j, uvec4(t)));
        most = max(most, abs(made[i]));
    }
    return subgroupMax(max(max(most.x, most.y), max(most.z, most.w)));
}

void store_mixes(uint square, float by) {
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        vec4 a = made[2u * i] * by;
        vec4 b = made[2u * i + 1u] * by;
        mixes[square * SQUARE_WORDS + gl_LocalInvocationIndex + i * THREADS] =
            uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw));
    }
}

// Mixes and factors of a head, of which all gates are there.
void make(uint square) {
    uint t = own_step();
    float most = decay_products();
    float sum = sums[min(t, CHUNK - 1u) / 4u][t % 4u];
    float end = sums[CHUNK / 4u - 1u].w;
    float weight = 0.0;
    if (t < CHUNK) {
        weight = exp2(end - sum) * (DELTA == 1u ? 1.0 : weights[t / 4u][t % 4u]);
    }
    float most_weight = subgroupMax(abs(weight));
    if (gl_SubgroupInvocationID == 0u) {
        most_mixes[gl_SubgroupID] = most;
        most_factors[gl_SubgroupID] = most_weight;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i++) {
        most = max(most, most_mixes[i]);
        most_weight = max(most_weight, most_factors[i]);
    }
    float mix_by = power_for(most, 10, 40);
    float weight_by = power_for(most_weight, 0, 24);
    store_mixes(square, mix_by);
    uint to = square * FACTORS;
    if (t < CHUNK) {
        factors[to + t] = exp2(sum);
        factors[to + CHUNK + t] = weight * weight_by;
    }
    if (t == 0u) {
        factors[to + ABOUT] = exp2(end) * weight_by;
        factors[to + ABOUT + 1u] = inverse_power(weight_by);
        factors[to + ABOUT + 2u] = inverse_power(mix_by);
        factors[to + ABOUT + 3u] = 0.0;
    }
}

// A column of the inverse of I + A, 16 rows at a time: what the rows before leave of the unit vector, then within.
void invert() {
    uint column = gl_LocalInvocationIndex;
    for (uint b = 0u; b < BLOCKS; b++) {
        float r[16];
        uint at = OWN_AT + b * 16u * SQUARE_STRIDE;
        [[unroll]] for (uint i = 0u; i < 16u; i++) {
            r[i] = b * 16u + i == column ? 1.0 : 0.0;
        }
        for (uint four = 0u; four < 4u * b; four++) {
            vec4 above;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                above[i] = float_at((4u * four + i) * SQUARE_STRIDE * 4u + column);
            }
            [[unroll]] for (uint i = 0u; i < 16u; i++) {
                r[i] -= dot(uintBitsToFloat(tiles[at + i * SQUARE_STRIDE + four]), above);
            }
        }
        // Four rows are done, then taken off those below: these do not wait for each other.
        [[unroll]] for (uint four = 0u; four < 4u; four++) {
            [[unroll]] for (uint i = 1u; i < 4u; i++) {
                vec4 a = uintBitsToFloat(tiles[at + (4u * four + i) * SQUARE_STRIDE + 4u * b + four]);
                [[unroll]] for (uint e = 0u; e < i; e++) {
                    r[4u * four + i] -= a[e] * r[4u * four + e];
                }
            }
            vec4 done = vec4(r[4u * four], r[4u * four + 1u], r[4u * four + 2u], r[4u * four + 3u]);
            [[unroll]] for (uint i = 4u * four + 4u; i < 16u; i++) {
                r[i] -= dot(uintBitsToFloat(tiles[at + i * SQUARE_STRIDE + 4u * b + four]), done);
            }
        }
        [[unroll]] for (uint i = 0u; i < 16u; i++) {
            uint to = (b * 16u + i) * SQUARE_STRIDE * 4u + column;
            tiles[to / 4u][to % 4u] = floatBitsToUint(r[i]);
        }
    }
}

void store_inverses(uint square) {
    uint four = gl_LocalInvocationIndex % 8u * 2u;
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        uint from = at / 8u * SQUARE_STRIDE + four;
        vec4 a = uintBitsToFloat(tiles[from]) * weights[four];
        vec4 b = uintBitsToFloat(tiles[from + 1u]) * weights[four + 1u];
        inverses[square * SQUARE_WORDS + at] = uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw));
    }
}

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.count) {
        return;
    }
    uint chunk = flat_group % p.chunks;
    uint bundles = p.heads / p.each;
    uint first_head = flat_group / p.chunks % bundles * p.each;
    uint row = flat_group / p.chunks / bundles;
    uint group = first_head / (p.heads / p.groups);
    uint first = first_of(chunk, p.steps);
    uint from = chunk * CHUNK - first;
    uint token = row * p.steps + first;
    vec2 gate = load_gates(token * p.heads + first_head, first_head, from);
    load_rows((token * p.groups + group) * ROW_WORDS, p.groups * ROW_WORDS);
    barrier();
    multiply_rows();
    take_products();
    uint square = (row * p.heads + first_head) * p.chunks + chunk;
    for (uint i = 0u; i < p.each; i++) {
        place_gates(gate);
        uint next = first_head + min(i + 1u, p.each - 1u);
        gate = load_gates(token * p.heads + next, next, from);
        make(square + i * p.chunks);
    }
    if (DELTA == 1u) {
        if (gl_LocalInvocationIndex < CHUNK) {
            invert();
        }
        barrier();
        store_inverses(square);
    }
}
