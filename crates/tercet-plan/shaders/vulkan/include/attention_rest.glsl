// Attention F32 fallback: shared code of the kernels for KV heads that split F16 cannot represent.
// `rest` flags these heads; other heads are skipped. A workgroup keeps LINES stationary rows and
// iterates over streamed rows, LINES per step (see attention_grad.glsl), with one thread per pair
// (THREADS = LINES^2). The stationary and the
// streamed rows are copied to shared memory before threads compute with them. Head sizes are multiples of four.

#define BIAS_AT(at) 0.0
#define RESULT float
#include "attention_grad_setup.glsl"

#if OF_KEYS
layout(set = 0, binding = 11) readonly buffer Rest { uint rest[]; };
#else
layout(set = 0, binding = 10) readonly buffer Rest { uint rest[]; };
#endif

const uint LINES = 16;
// Row pitch with one float of padding against bank conflicts.
const uint H_STRIDE = HEAD + 1;
const uint V_STRIDE = VALUE + 1;

const uint PART = LINES;
#include "attention_grad_place.glsl"

// Indices of this thread's row among the LINES stationary rows, and among the LINES streamed rows.
uint own;
uint other;

// Stages LINES rows of an operand, from `first_of` on, in shared memory; missing rows are 0.
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

// True if a fast kernel flagged the KV head of this workgroup. A workgroup processes every
// p.tiles-th tile of a KV head, from `first_line` on.
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

// Number of result rows: of keys, or of query rows.
uint lines() { return OF_KEYS == 1 ? p.keys : rows; }

// Score of a staged query row and a staged key, as a base-2 exponent or -infinity, and its
// derivative by q . k.
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

// Index of a query row in `lse` and `delta`.
uint number_at(uint row) {
    return ((batch * p.kv_heads + head) * p.group + row % p.group) * p.queries + row / p.group;
}
