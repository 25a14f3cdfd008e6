// What kernels share that compute in f32 what pairs of halves do not hold: tiles of LINES own lines times as many walked ones, a
// pair for each of the THREADS = LINES^2 invocations. Key heads that `rest` does not name are left alone. Lines are staged in
// shared memory; heads are of any size in whole vectors of four.

#define BIAS_AT(at) 0.0
#define RESULT float
#include "attention_grad_setup.glsl"

#if OF_KEYS
layout(set = 0, binding = 11) readonly buffer Rest { uint rest[]; };
#else
layout(set = 0, binding = 10) readonly buffer Rest { uint rest[]; };
#endif

const uint LINES = 16;
// One float longer than the data: lines begin in different banks.
const uint H_STRIDE = HEAD + 1;
const uint V_STRIDE = VALUE + 1;

const uint PART = LINES;
#include "attention_grad_place.glsl"

// The invocation's own line in the tile and its walked one.
uint own;
uint other;

// LINES lines from `line` on to shared memory; 0 where there is none.
#define STAGE(name, to, words, dim, stride, place)                                          \
    void name(uint first_of, uint end) {                                                    \
        uint columns = dim / 4u;                                                            \
        for (uint at = gl_LocalInvocationIndex; at < LINES * columns; at += THREADS) {      \
            uint line = first_of + at / columns;                                            \
            uint col = at % columns;                                                        \
            vec4 x = vec4(0.0);                                                             \
            if (line < end) {                                                               \
                x = uintBitsToFloat(words[((place) >> 2) + col]);                           \
            }                                                                               \
            uint into = at / columns * (stride) + col * 4u;                                 \
            to[into] = x.x;                                                                 \
            to[into + 1u] = x.y;                                                            \
            to[into + 2u] = x.z;                                                            \
            to[into + 3u] = x.w;                                                            \
        }                                                                                   \
    }

shared float queries[LINES * H_STRIDE];
shared float keys[LINES * H_STRIDE];
STAGE(stage_queries, queries, q, p.head_dim, H_STRIDE, row_of(line, p.q_offset, p.q_batch, p.q_head, p.q_seq))
STAGE(stage_keys, keys, k, p.head_dim, H_STRIDE, p.k_offset + batch * p.k_batch + head * p.k_head + line * p.k_seq)

// True if the workgroup has something to do: of a key head's tiles each p.tiles-th, from `first_line` on.
bool take_rest() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return false;
    }
    take_place(flat_group);
    own_line = 0u;
    own = gl_LocalInvocationIndex / LINES;
    other = gl_LocalInvocationIndex % LINES;
    return rest[batch * p.kv_heads + head] != 0u;
}

// The lines of the results.
uint lines() { return OF_KEYS == 1 ? p.keys : rows; }

// The score of a row of queries and a key that are staged, in powers of two, or -infinity, and its derivative by their product.
vec2 score_of(uint row, uint key, uint staged_row, uint staged_key) {
    if (row >= rows) {
        return vec2(-infinity(), 0.0);
    }
    float x = 0.0;
    for (uint h = 0u; h < p.head_dim; h++) {
        x = fma(queries[staged_row * H_STRIDE + h], keys[staged_key * H_STRIDE + h], x);
    }
    x *= p.scale;
    float slope = p.scale;
    if (CAPPED != 0u) {
        float t = capped(x / p.softcap);
        x = t * p.softcap;
        slope *= 1.0 - t * t;
    }
    uint mask_at = row_of(row, p.mask_offset, p.mask_batch, p.mask_head, p.mask_query);
    uvec4 about = uvec4(uvec2(seen_by(row, n)), mask_at, 0u);
    return vec2(masked(x * LOG2_E, int(key), about), slope);
}

// Where numbers of a row of queries are.
uint number_at(uint row) {
    return ((batch * p.kv_heads + head) * p.group + row % p.group) * p.queries + row / p.group;
}
