// Intra-chunk matmuls of chunked state-space scans (SSD and delta rule), for chunk_walk.glsl. For
// each batch entry, head and chunk, with l the prefix sums of the log decays in the chunk:
//
//     mixes[t][j] = exp(l_t - l_j) (leave_t . enter_j) by_j for j <= t;
//     inverses = (I + A)^-1 diag(beta), with A[t][j] = beta_t exp(l_t - l_j) (enter_t . enter_j) for j < t (DELTA).
//
// `by` is dt for Mamba-2 and 1 for the delta rule. The matrices `mixes` and `inverses` are 16-bit;
// `mixes` is scaled by a power of two that brings the largest element near 2^10. The float results
// are: exp(l_t); exp(l_end - l_j) by_j times a power of two that brings the largest near 1;
// exp(l_end) times that power; its inverse; and the inverse of the scale of the mixes.
//
// Log decays are differences of prefix sums, which are negative for decaying states. A decay below
// 2^-200 is clamped to 2^-200. The clamped decay erases the state as well, and the prefix sums stay
// small enough for differences with an error of 2^-10.
//
// A workgroup of four subgroups processes one chunk of `each` heads that share their rows, 16 rows
// per subgroup. Products are computed once, and decays are applied per head. The inverse is
// computed by columns in F32, one column per thread, 16 rows per step (forward substitution; Yang
// et al., "Parallelizing Linear Transformers with the Delta Rule", 2024).

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
// dt or g; `a` per head, or beta.
layout(set = 0, binding = 3) readonly buffer Gates { uint gates[]; };
layout(set = 0, binding = 4) readonly buffer Others { uint others[]; };
layout(set = 0, binding = 5) writeonly buffer Mixes { uvec4 mixes[]; };
layout(set = 0, binding = 6) writeonly buffer Inverses { uint16_t inverses[]; };
layout(set = 0, binding = 7) writeonly buffer Factors { float factors[]; };

// Shared memory: first, some states of the rows of both operands, with `leave` at LEAVE_AT. Later
// the same memory contains a square matrix of floats with rows of SQUARE_STRIDE 16-byte words. The
// matrix contains leave . enter, later A below its diagonal and the transposed part of the inverse
// above it. The small size allows several resident workgroups.
const uint STAGE_BLOCKS = STATE_BLOCKS < 4 ? STATE_BLOCKS : 4;
const uint STAGE_WORDS = STAGE_BLOCKS * 2;
const uint ROW_STRIDE = STAGE_WORDS + 1;
const uint LEAVE_AT = CHUNK * ROW_STRIDE;
const uint SQUARE_STRIDE = CHUNK / 4 + 1;
const uint ROWS_LENGTH = 2 * LEAVE_AT;
const uint SQUARE_LENGTH = CHUNK * SQUARE_STRIDE;
shared uvec4 tiles[ROWS_LENGTH > SQUARE_LENGTH ? ROWS_LENGTH : SQUARE_LENGTH];
// Per step: the prefix sum of log decays, and dt or beta.
shared vec4 sums[CHUNK / 4];
shared vec4 weights[CHUNK / 4];
// Partial results per subgroup.
shared float parts[SUBGROUPS];
shared float most_mixes[SUBGROUPS];
shared float most_factors[SUBGROUPS];

const float LOG2_E = 1.44269504;
const float LEAST_LOG = -200.0;
// 16-byte words per thread: of a square of 16-bit numbers, and of rows. A thread's words of a
// square are in the same columns.
const uint LOADS = SQUARE_WORDS / THREADS;
const uint ROW_LOADS = (CHUNK * STAGE_WORDS + THREADS - 1) / THREADS;

float half_at(uint word, uint element) {
    vec2 two = two_of(word);
    return (element & 1u) == 0u ? two.x : two.y;
}

// This thread's step. Threads of a subgroup have consecutive steps.
uint own_step() { return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID; }

// Log decay and weight of this thread's step. Steps before `from` belong to the previous chunk,
// too, and do not change the state.
vec2 load_gates(uint first_gate, uint head, uint from) {
    uint t = own_step();
    uint at = first_gate + min(t, CHUNK - 1u) * p.heads;
    float gate = half_at(gates[at >> 1], at);
    uint other = DELTA == 1u ? at : head;
    float x = half_at(others[other >> 1], other);
    float decay = LOG2_E * (DELTA == 1u ? gate : gate * x);
    // The comparison preserves NaN.
    decay = decay < LEAST_LOG ? LEAST_LOG : decay;
    return t < from || t >= CHUNK ? vec2(0.0) : vec2(decay, DELTA == 1u ? x : gate);
}

// Stores the prefix sums of the log decays and the weights in shared memory.
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

// Loads `words` words of each row, from offset `base` on, into shared memory.
void load_rows(uint base, uint stride, uint words) {
    [[unroll]] for (uint i = 0u; i < ROW_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < CHUNK * STAGE_WORDS && at % STAGE_WORDS < words) {
            uint from = base + at / STAGE_WORDS * stride + at % STAGE_WORDS;
            uint to = at / STAGE_WORDS * ROW_STRIDE + at % STAGE_WORDS;
            tiles[to] = enter[from];
            tiles[LEAVE_AT + to] = leave[from];
        }
    }
}

SUMS mixed[BLOCKS];
SUMS own[BLOCKS];

// Products of the subgroup's rows with each other and with all earlier rows.
void multiply_rows(uint base, uint stride) {
    uint block = gl_SubgroupID;
    [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {
        mixed[j] = SUMS(0.0);
        own[j] = SUMS(0.0);
    }
    LEFT x;
    LEFT y;
    RIGHT z;
    for (uint first = 0u; first < STATE_BLOCKS; first += STAGE_BLOCKS) {
        uint blocks = min(STAGE_BLOCKS, STATE_BLOCKS - first);
        // All threads have read the previous contents.
        barrier();
        load_rows(base + first * 2u, stride, blocks * 2u);
        barrier();
        [[unroll]] for (uint h = 0u; h < STAGE_BLOCKS; h++) {
            if (h < blocks) {
                uint at = block * 16u * ROW_STRIDE + h * 2u;
                coopMatLoad(x, tiles, LEAVE_AT + at, ROW_STRIDE, ROWS);
                if (DELTA == 1u) {
                    coopMatLoad(y, tiles, at, ROW_STRIDE, ROWS);
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
        }
    }
}

// Stores the subgroup's products in shared memory, after all threads have read the previous
// contents.
#define PLACE_PRODUCTS(sums)                                                            \
    barrier();                                                                          \
    [[unroll]] for (uint j = 0u; j < BLOCKS; j++) {                                     \
        if (j <= gl_SubgroupID) {                                                       \
            coopMatStore(sums[j], tiles, gl_SubgroupID * 16u * SQUARE_STRIDE + j * 4u, SQUARE_STRIDE, ROWS); \
        }                                                                               \
    }                                                                                   \
    barrier();

// The products for this thread's mixes, four adjacent elements per vector, and the mixes of a head.
vec4 products[LOADS * 2];
vec4 made[LOADS * 2];

void take_products() {
    uint four = gl_LocalInvocationIndex % 8u * 2u;
    [[unroll]] for (uint i = 0u; i < LOADS * 2u; i++) {
        uint t = (gl_LocalInvocationIndex + i / 2u * THREADS) / 8u;
        products[i] = uintBitsToFloat(tiles[t * SQUARE_STRIDE + four + i % 2u]);
    }
}

// Applies the decays to the products, and returns the maximum of the subgroup. For the delta rule,
// A overwrites the products.
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
            uint to = t * SQUARE_STRIDE + four;
            vec4 own = uintBitsToFloat(tiles[to]) * decay * weights[t / 4u][t % 4u];
            tiles[to] = floatBitsToUint(mix(vec4(0.0), own, lessThan(j, uvec4(t))));
        }
        made[i] = mix(vec4(0.0), x, lessThanEqual(j, uvec4(t)));
        most = max(most, abs(made[i]));
    }
    return greatest_of(max(max(most.x, most.y), max(most.z, most.w)));
}

void store_mixes(uint square, float by) {
    [[unroll]] for (uint i = 0u; i < LOADS; i++) {
        vec4 a = made[2u * i] * by;
        vec4 b = made[2u * i + 1u] * by;
        mixes[square * SQUARE_WORDS + gl_LocalInvocationIndex + i * THREADS] =
            uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw));
    }
}

// Computes and stores the mixes and factors of a head.
void make(uint square) {
    uint t = own_step();
    float most = decay_products();
    float sum = sums[min(t, CHUNK - 1u) / 4u][t % 4u];
    float end = sums[CHUNK / 4u - 1u].w;
    float weight = 0.0;
    if (t < CHUNK) {
        weight = exp2(end - sum) * (DELTA == 1u ? 1.0 : weights[t / 4u][t % 4u]);
    }
    float most_weight = greatest_of(abs(weight));
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

// Computes a column of the inverse of I + A, 16 rows per step: first the contribution of earlier
// rows, then substitution within the step. The column is stored in the row with the same index,
// above the diagonal.
void invert(uint square) {
    uint column = gl_LocalInvocationIndex;
    float beta = weights[column / 4u][column % 4u];
    for (uint b = 0u; b < BLOCKS; b++) {
        float r[16];
        uint at = b * 16u * SQUARE_STRIDE;
        [[unroll]] for (uint i = 0u; i < 16u; i++) {
            r[i] = b * 16u + i == column ? 1.0 : 0.0;
        }
        for (uint four = 0u; four < 4u * b; four++) {
            uvec4 j = uvec4(4u * four) + uvec4(0u, 1u, 2u, 3u);
            vec4 known = uintBitsToFloat(tiles[column * SQUARE_STRIDE + four]);
            vec4 above = mix(vec4(equal(j, uvec4(column))), known, greaterThan(j, uvec4(column)));
            [[unroll]] for (uint i = 0u; i < 16u; i++) {
                r[i] -= dot(uintBitsToFloat(tiles[at + i * SQUARE_STRIDE + four]), above);
            }
        }
        // Completes four rows, then subtracts them from the rows below; these subtractions are
        // independent.
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
        [[unroll]] for (uint four = 0u; four < 4u; four++) {
            uint row = b * 16u + 4u * four;
            uint to = column * SQUARE_STRIDE + row / 4u;
            vec4 done = vec4(r[4u * four], r[4u * four + 1u], r[4u * four + 2u], r[4u * four + 3u]);
            if (row + 3u > column) {
                bvec4 is_known = greaterThan(uvec4(row) + uvec4(0u, 1u, 2u, 3u), uvec4(column));
                tiles[to] = floatBitsToUint(mix(uintBitsToFloat(tiles[to]), done, is_known));
            }
            [[unroll]] for (uint e = 0u; e < 4u; e++) {
                uint place = square * SQUARE_WORDS * 8u + (row + e) * CHUNK + column;
                inverses[place] = uint16_t(two_bits(vec2(done[e] * beta, 0.0)) & 0xffffu);
            }
        }
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
    multiply_rows((token * p.groups + group) * ROW_WORDS, p.groups * ROW_WORDS);
    PLACE_PRODUCTS(mixed)
    take_products();
    if (DELTA == 1u) {
        PLACE_PRODUCTS(own)
    }
    uint square = (row * p.heads + first_head) * p.chunks + chunk;
    for (uint i = 0u; i < p.each; i++) {
        place_gates(gate);
        uint next = first_head + min(i + 1u, p.each - 1u);
        gate = load_gates(token * p.heads + next, next, from);
        make(square + i * p.chunks);
    }
    if (DELTA == 1u && gl_LocalInvocationIndex < CHUNK) {
        invert(square);
    }
}
