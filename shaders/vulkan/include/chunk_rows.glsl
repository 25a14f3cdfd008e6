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
// A workgroup of four subgroups makes one chunk, each a block of 16 rows. The inverse is made column by column in
// F32, an invocation each, 16 rows at a time (forward substitution; Yang et al., "Parallelizing Linear Transformers
// with the Delta Rule", 2024).

#include "chunk_common.glsl"

layout(set = 0, binding = 0) uniform Params {
    uint steps;
    uint chunks;
    uint heads;
    uint groups;
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

// Squares of floats, rows of SQUARE_STRIDE words of 16 bytes: leave . enter, later the inverse; enter . enter, then A.
const uint SQUARE_STRIDE = CHUNK / 4 + 1;
const uint OWN_AT = CHUNK * SQUARE_STRIDE;
shared uvec4 tiles[OWN_AT * (1 + DELTA)];
shared float logs[CHUNK];
shared float sums[CHUNK];
// dt or beta.
shared float weights[CHUNK];
shared float most_mixes[SUBGROUPS];
shared float most_factors[SUBGROUPS];

const float LOG2_E = 1.44269504;
const float LEAST_LOG = -200.0;
const uint LOADS = SQUARE_WORDS / THREADS;

float half_at(uint word, uint element) {
    vec2 two = two_of(word);
    return (element & 1u) == 0u ? two.x : two.y;
}

float float_at(uint at) { return uintBitsToFloat(tiles[at / 4u][at % 4u]); }

// The decays and weights of the steps, of which those before `from` change nothing.
void load_gates(uint first_gate, uint head, uint from) {
    uint t = gl_LocalInvocationIndex;
    if (t < CHUNK) {
        uint at = first_gate + t * p.heads;
        float gate = half_at(gates[at >> 1], at);
        uint other = DELTA == 1u ? at : head;
        float x = half_at(others[other >> 1], other);
        float decay = LOG2_E * (DELTA == 1u ? gate : gate * x);
        // NaN stays.
        decay = decay < LEAST_LOG ? LEAST_LOG : decay;
        logs[t] = t < from ? 0.0 : decay;
        weights[t] = t < from ? 0.0 : (DELTA == 1u ? x : gate);
    }
}

// The products of the subgroup's rows with those up to them, into `tiles`.
void multiply_rows(uint base, uint stride) {
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
        coopMatLoad(x, leave, base + block * 16u * stride + h * 2u, stride, ROWS);
        if (DELTA == 1u) {
            coopMatLoad(y, enter, base + block * 16u * stride + h * 2u, stride, ROWS);
        }
        [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
            if (j <= block) {
                coopMatLoad(z, enter, base + j * 16u * stride + h * 2u, stride, COLUMNS_FIRST);
                mixed[j] = coopMatMulAdd(x, z, mixed[j]);
                if (DELTA == 1u) {
                    own[j] = coopMatMulAdd(y, z, own[j]);
                }
            }
        }
    }
    [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
        uint at = block * 16u * SQUARE_STRIDE + j * 4u;
        if (j <= block) {
            coopMatStore(mixed[j], tiles, at, SQUARE_STRIDE, ROWS);
            if (DELTA == 1u) {
                coopMatStore(own[j], tiles, OWN_AT + at, SQUARE_STRIDE, ROWS);
            }
        }
    }
}

// Eight mixes of an invocation in each of its words.
float made[LOADS * 8];

// Decays the products of rows; the greatest of the subgroup.
float decay_products() {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        uint t = at / 8u;
        float sum = sums[t];
        [[unroll]] for (uint e = 0u; e < 8u; e++) {
            uint j = at % 8u * 8u + e;
            uint place = t * SQUARE_STRIDE * 4u + j;
            float decay = exp2(sum - sums[j]);
            float x = 0.0;
            if (j <= t) {
                x = float_at(place) * decay * (DELTA == 1u ? 1.0 : weights[j]);
            }
            made[i * 8u + e] = x;
            most = max(most, abs(x));
            if (DELTA == 1u) {
                float own = 0.0;
                if (j < t) {
                    own = float_at(OWN_AT * 4u + place) * decay * weights[t];
                }
                uint to = OWN_AT * 4u + place;
                tiles[to / 4u][to % 4u] = floatBitsToUint(own);
            }
        }
    }
    return subgroupMax(most);
}

void store_mixes(uint square, float by) {
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        uvec4 word;
        [[unroll]] for (uint w = 0u; w < 4u; w++) {
            word[w] = two_bits(vec2(made[i * 8u + 2u * w], made[i * 8u + 2u * w + 1u]) * by);
        }
        mixes[square * SQUARE_WORDS + gl_LocalInvocationIndex + i * THREADS] = word;
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
        [[unroll]] for (uint i = 0u; i < 16u; i++) {
            [[unroll]] for (uint four = 0u; four < 4u; four++) {
                if (4u * four < i) {
                    vec4 a = uintBitsToFloat(tiles[at + i * SQUARE_STRIDE + 4u * b + four]);
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        if (4u * four + e < i) {
                            r[i] -= a[e] * r[4u * four + e];
                        }
                    }
                }
            }
            uint to = (b * 16u + i) * SQUARE_STRIDE * 4u + column;
            tiles[to / 4u][to % 4u] = floatBitsToUint(r[i]);
        }
    }
}

void store_inverses(uint square) {
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        uvec4 word;
        [[unroll]] for (uint w = 0u; w < 4u; w++) {
            uint j = at % 8u * 8u + 2u * w;
            uint from = at / 8u * SQUARE_STRIDE * 4u + j;
            word[w] = two_bits(vec2(float_at(from) * weights[j], float_at(from + 1u) * weights[j + 1u]));
        }
        inverses[square * SQUARE_WORDS + at] = word;
    }
}

void main() {
    uint square = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (square >= p.count) {
        return;
    }
    uint chunk = square % p.chunks;
    uint head = square / p.chunks % p.heads;
    uint row = square / p.chunks / p.heads;
    uint group = head / (p.heads / p.groups);
    uint first = first_of(chunk, p.steps);
    uint token = row * p.steps + first;
    uint t = gl_LocalInvocationIndex;
    load_gates(token * p.heads + head, head, chunk * CHUNK - first);
    multiply_rows((token * p.groups + group) * ROW_WORDS, p.groups * ROW_WORDS);
    barrier();
    if (t < CHUNK) {
        float sum = 0.0;
        for (uint j = 0u; j < CHUNK; j++) {
            sum += j <= t ? logs[j] : 0.0;
        }
        sums[t] = sum;
    }
    barrier();
    float most = decay_products();
    float weight = 0.0;
    if (t < CHUNK) {
        weight = exp2(sums[CHUNK - 1u] - sums[t]) * (DELTA == 1u ? 1.0 : weights[t]);
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
        factors[to + t] = exp2(sums[t]);
        factors[to + CHUNK + t] = weight * weight_by;
    }
    if (t == 0u) {
        factors[to + ABOUT] = exp2(sums[CHUNK - 1u]) * weight_by;
        factors[to + ABOUT + 1u] = inverse_power(weight_by);
        factors[to + ABOUT + 2u] = inverse_power(mix_by);
        factors[to + ABOUT + 3u] = 0.0;
    }
    if (DELTA == 1u) {
        if (t < CHUNK) {
            invert();
        }
        barrier();
        store_inverses(square);
    }
}
