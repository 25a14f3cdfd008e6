// Attention backward in split F16: computes the gradients of attention_grad.glsl for F32 operands
// on F16 cooperative matrices, with the accuracy of F32 sums. attention_halves.glsl describes the
// number format, the storage and the error of products. dy is split, too. If split F16 cannot
// represent one of the four operands, the kernel skips the KV head and flags it in `rest`, and a
// fallback kernel computes it.
//
// attention_grad.glsl describes the iteration, the operands, the products and the sums. This kernel
// differs from attention_grad.glsl as follows.
// - The stationary operands are loaded into fragments directly from global memory. The streamed
//   rows of a step share one scale.
// - The softmax weights are multiplied by 2^HEADROOM and split into two F16 numbers. The score
//   gradients ds are multiplied by `lift` before they are split: a power of two that keeps the
//   subgroup's values below 2^ROOM. `lift` decreases if ds grows, so that the error of split ds is
//   below 2^-30 of the largest ds so far.
// - Products with PART streamed rows are summed from zero, those with low halves first. The result
//   is then added to the F32 sums.
//
// With PIECES = 1, operands are BF16 and have only high halves. Weights and ds are then rounded to
// one F16 number as well.
//
// Constraints on constants: those of attention_grad.glsl. CHUNK is a multiple of BN and FM, and BN
// of PART. Result rows are multiples of a word. There is no bias.

#define ELEMENT float16_t
#ifndef PIECES
#define PIECES 2
#endif
#define BIAS_AT(at) 0.0

#include "attention_grad_setup.glsl"

#if OF_KEYS
layout(set = 0, binding = 11) writeonly buffer Rest { uint rest[]; };
#else
layout(set = 0, binding = 10) writeonly buffer Rest { uint rest[]; };
#endif

// Rows that share a scale, and words of that scale.
const uint CHUNK = 32;
const uint SCALE_LEN = 8;

// Numbers of fragments along the head dimension, as summed axis (HK, VK) and as columns (HN, VN),
// for queries and keys and for values. PART: streamed rows whose weights become left operands
// together; PK: the fragments of these left operands.
const uint HK = HEAD / FK;
const uint HN = HEAD / FN;
const uint VK = VALUE / FK;
const uint VN = VALUE / FN;
const uint PART = CONVERTS == 1 ? BN : FK > FN ? FK : FN;
const uint PK = PART / FK;

// Lengths in 16-byte words: 8 halves or 4 sums. Rows in shared memory have one word of padding.
const uint H_COLS = PIECES * HEAD / 8;
const uint V_COLS = PIECES * VALUE / 8;
const uint H_STRIDE = H_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint H_CHUNK = CHUNK * H_COLS + SCALE_LEN;
const uint V_CHUNK = CHUNK * V_COLS + SCALE_LEN;
const uint SECOND_AT = BN * H_STRIDE;
const uint STAGE_LEN = SECOND_AT + BN * V_STRIDE;
// On devices without matrix-use conversions, ds and then weights of a subgroup pass through this
// memory to become left operands.
const uint P_AT = 2 * STAGE_LEN;
const uint P_STRIDE = PIECES * PART / 8 + 1;
const uint P_LEN = FM * P_STRIDE;
const uint SUBGROUPS = BM / FM;
const uint STEPS_LEN = P_AT + (CONVERTS == 1 ? 0 : 2 * SUBGROUPS * P_LEN);
// At the end, the same memory contains YF result fragments of a strip.
const uint MOST = HN > VN ? HN : VN;
const uint YF = MOST < 4 || MOST > 8 ? MOST : 4;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
// The data of query rows starts after this memory.
const uint ROW_AT = STEPS_LEN > Y_LEN ? STEPS_LEN : Y_LEN;

// Largest and smallest scale of each operand.
shared uint greatest[4];
shared uint least[4];

// Base-2 exponents.
const float HEADROOM = 13.0;
const float ROOM = 15.0;
// Base-2 exponent by which `lift` is reduced, and the maximum number of reductions.
const float FALL = 8.0;
const uint FALLS = 16;

#include "attention_grad_place.glsl"
#include "attention_grad_rows.glsl"

uint chunks_of(uint count) { return (count + CHUNK - 1u) / CHUNK; }

// First word of the chunk that contains row `line` of an operand with `count` rows. Rows beyond the
// end are clamped to the last chunk.
uint chunk_at(uint line, uint count, uint len) {
    uint chunks = chunks_of(count);
    return ((batch * p.kv_heads + head) * chunks + min(line / CHUNK, chunks - 1u)) * len;
}

#if OF_KEYS
#define OWN_FIRST k
#define OWN_SECOND v
#define FIRST q
#define SECOND dy
#define OWN_COUNT p.keys
#define COUNT rows
#else
#define OWN_FIRST q
#define OWN_SECOND dy
#define FIRST k
#define SECOND v
#define OWN_COUNT rows
#define COUNT p.keys
#endif

// Scale of ds.
float lift;

// Updates the largest and smallest scale of an operand over its chunks.
#define LOOK(words, count, len, cols, operand)                                                  \
    for (uint at = gl_LocalInvocationIndex; at < chunks_of(count); at += THREADS) {             \
        uint bits = words[chunk_at(at * CHUNK, count, len) + CHUNK * (cols)].x;                 \
        atomicMax(greatest[operand], bits);                                                     \
        atomicMin(least[operand], bits);                                                        \
    }

int power_of(uint bits) { return int(bits >> 23) - 127; }

// False if split F16 cannot represent this head: a chunk is flagged, or ds or sums could overflow
// F32 with these scales.
bool are_fit() {
    if (gl_LocalInvocationIndex < 4u) {
        greatest[gl_LocalInvocationIndex] = 0u;
        least[gl_LocalInvocationIndex] = 0xffffffffu;
    }
    barrier();
    LOOK(q, rows, H_CHUNK, H_COLS, 0)
    LOOK(k, p.keys, H_CHUNK, H_COLS, 1)
    LOOK(v, p.keys, V_CHUNK, V_COLS, 2)
    LOOK(dy, rows, V_CHUNK, V_COLS, 3)
    barrier();
    bool fit = true;
    int together = 0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        fit = fit && greatest[i] != 0xffffffffu;
        together += power_of(greatest[i]);
    }
    int apart = power_of(greatest[2]) - power_of(least[2]) + power_of(greatest[3]) - power_of(least[3]);
    fit = fit && together < 90 && apart < 70;
    // `lift` starts with a value for the chunks with the smallest v and dy; fall() reduces it if ds
    // is larger.
    lift = uintBitsToFloat(greatest[2]) * uintBitsToFloat(greatest[3]) * exp2(5.0);
    if (first_line == 0u && gl_LocalInvocationIndex == 0u) {
        rest[batch * p.kv_heads + head] = fit ? 0u : 1u;
    }
    return fit;
}

const uint H_LOADS = (BN * H_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
uvec4 loaded_first[H_LOADS];
uvec4 loaded_second[V_LOADS];
// Scales of the loaded rows of both streamed operands.
float loaded_first_scale;
float loaded_second_scale;

// Loads the streamed rows of a step, from `line` on, from global memory into registers.
void load_step(int line) {
    uint chunk = chunk_at(uint(line), COUNT, H_CHUNK);
    uint from = chunk + uint(line) % CHUNK * H_COLS;
    [[unroll]] for (uint i = 0u; i < H_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * H_COLS % THREADS == 0u || at < BN * H_COLS) {
            loaded_first[i] = FIRST[from + at];
        }
    }
    loaded_first_scale = uintBitsToFloat(FIRST[chunk + CHUNK * H_COLS].x);
    chunk = chunk_at(uint(line), COUNT, V_CHUNK);
    from = chunk + uint(line) % CHUNK * V_COLS;
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * V_COLS % THREADS == 0u || at < BN * V_COLS) {
            loaded_second[i] = SECOND[from + at];
        }
    }
    loaded_second_scale = uintBitsToFloat(SECOND[chunk + CHUNK * V_COLS].x);
#if OF_KEYS
    if (gl_LocalInvocationIndex < BN) {
        load_row(uint(line) + gl_LocalInvocationIndex);
    }
#endif
}

// Scales of the current step's streamed rows, and of the stationary rows.
float first_scale;
float second_scale;
float own_first_scale;
float own_second_scale;

// Stores the loaded rows in one of the two stages, for the next step.
void store_step(uint stage) {
    [[unroll]] for (uint i = 0u; i < H_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * H_COLS % THREADS == 0u || at < BN * H_COLS) {
            tiles[stage * STAGE_LEN + at / H_COLS * H_STRIDE + at % H_COLS] = loaded_first[i];
        }
    }
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * V_COLS % THREADS == 0u || at < BN * V_COLS) {
            tiles[stage * STAGE_LEN + SECOND_AT + at / V_COLS * V_STRIDE + at % V_COLS] = loaded_second[i];
        }
    }
    first_scale = loaded_first_scale;
    second_scale = loaded_second_scale;
#if OF_KEYS
    if (gl_LocalInvocationIndex < BN) {
        store_row(stage * BN + gl_LocalInvocationIndex);
    }
#endif
}

// One fragment each: products of queries and keys, later weights; dp, later ds; -lse (`sums`) and
// -delta of the fragment's query rows.
SUMS products;
SUMS dp;
SUMS sums;
SUMS deltas;

LEFT own_first_high[HK];
LEFT own_second_high[VK];
#if PIECES == 2
LEFT own_first_low[HK];
LEFT own_second_low[VK];
#endif
SUMS first_sums[HN];
#if OF_KEYS
SUMS second_sums[VN];
#endif

// Loads the stationary operands into fragments, and computes loop invariants. Rows beyond the last
// chunk read other data; their sums are not stored.
void load_own() {
    uint line = first_line + own_line;
    uint chunk = chunk_at(line, OWN_COUNT, H_CHUNK);
    own_first_scale = uintBitsToFloat(OWN_FIRST[chunk + CHUNK * H_COLS].x);
    uint from = chunk + line % CHUNK * H_COLS;
    [[unroll]] for (uint h = 0u; h < HK; h++) {
        coopMatLoad(own_first_high[h], OWN_FIRST, from + h * FK / 8u, H_COLS, ROWS);
#if PIECES == 2
        coopMatLoad(own_first_low[h], OWN_FIRST, from + (HEAD + h * FK) / 8u, H_COLS, ROWS);
#endif
    }
    chunk = chunk_at(line, OWN_COUNT, V_CHUNK);
    own_second_scale = uintBitsToFloat(OWN_SECOND[chunk + CHUNK * V_COLS].x);
    from = chunk + line % CHUNK * V_COLS;
    [[unroll]] for (uint h = 0u; h < VK; h++) {
        coopMatLoad(own_second_high[h], OWN_SECOND, from + h * FK / 8u, V_COLS, ROWS);
#if PIECES == 2
        coopMatLoad(own_second_low[h], OWN_SECOND, from + (VALUE + h * FK) / 8u, V_COLS, ROWS);
#endif
    }
    store_index();
#if OF_KEYS
    [[unroll]] for (uint d = 0u; d < VN; d++) {
        second_sums[d] = SUMS(0.0);
    }
#else
    for (uint at = gl_LocalInvocationIndex; at < BM; at += THREADS) {
        load_row(first_line + at);
        store_row(at);
    }
    barrier();
    coopMatLoad(sums, numbers, own_line / 4u, 0, COLUMNS);
    coopMatLoad(deltas, numbers, (DELTA_AT + own_line) / 4u, 0, COLUMNS);
#endif
    [[unroll]] for (uint d = 0u; d < HN; d++) {
        first_sums[d] = SUMS(0.0);
    }
}

#include "attention_grad_pair_products.glsl"

// Processes a step of BN streamed rows, from `line` on.
void add_step(uint stage, int line, const bool guarded) {
    uint first_at = stage * STAGE_LEN;
    uint second_at = first_at + SECOND_AT;
    [[unroll]] for (uint part = 0u; part < BN; part += PART) {
#if CONVERTS
        if (guarded && is_hidden(own_line, line + int(part), stage * BN + part)) {
            continue;
        }
#else
        // All subgroups call subgroup_meets() equally often, because some drivers implement it as a
        // workgroup barrier.
        uint to = P_AT + 2u * gl_SubgroupID * P_LEN;
#endif
        LEFT weights_high[PK];
        LEFT scores_high[PK];
#if PIECES == 2
        LEFT weights_low[PK];
        LEFT scores_low[PK];
#endif
        is_far = false;
        [[unroll]] for (uint j = 0u; j < PART / FN; j++) {
            uint from = part + j * FN;
            MULTIPLY(products, own_first, HK, first_at + from * H_STRIDE, H_STRIDE, HEAD)
            MULTIPLY(dp, own_second, VK, second_at + from * V_STRIDE, V_STRIDE, VALUE)
#if OF_KEYS
            coopMatLoad(sums, numbers, (stage * BN + from) / 4u, 0, ROWS);
            coopMatLoad(deltas, numbers, (DELTA_AT + stage * BN + from) / 4u, 0, ROWS);
            weigh(stage * BN + from, line + int(from), guarded);
            TAKE(weights, products, j, to + P_LEN)
#else
            weigh(0u, line + int(from), guarded);
#endif
            part_ds[j] = dp;
        }
        fall();
        [[unroll]] for (uint j = 0u; j < PART / FN; j++) {
            TAKE(scores, part_ds[j], j, to)
        }
#if CONVERTS == 0
        subgroup_meets();
        TAKEN(scores, to)
#if OF_KEYS
        TAKEN(weights, to + P_LEN)
#endif
#endif
        float by = 1.0 / lift / first_scale;
        ADD(first_sums, HN, scores, first_at + part * H_STRIDE, H_STRIDE, HEAD, by)
#if OF_KEYS
        by = exp2(-HEADROOM) / second_scale;
        ADD(second_sums, VN, weights, second_at + part * V_STRIDE, V_STRIDE, VALUE, by)
#endif
#if CONVERTS == 0
        subgroup_meets();
#endif
    }
}

// Stores the gradients of the subgroup's stationary rows, multiplied by `by`, to a result, YF
// fragments per iteration. `place` is the offset of a result row.
#define STORE(name, of_sums, count, words, dim, by, place)                                         \
    void name() {                                                                                  \
        uint mine = gl_SubgroupID * FM * Y_STRIDE;                                                 \
        uint last = OF_KEYS == 1 ? p.keys : rows;                                                  \
        [[unroll]] for (uint from = 0u; from < count; from += YF) {                                \
            [[unroll]] for (uint d = 0u; d < YF; d++) {                                            \
                if (from + d < count) {                                                            \
                    coopMatStore(of_sums[from + d], tiles, mine + d * FN / 4u, Y_STRIDE, ROWS);    \
                }                                                                                  \
            }                                                                                      \
            subgroup_meets();                                                                      \
            for (uint at = gl_SubgroupInvocationID; at < FM * YF * FN / 4u; at += SUBGROUP) {      \
                uint line = first_line + own_line + at / (YF * FN / 4u);                           \
                uint col = from * FN / 4u + at % (YF * FN / 4u);                                   \
                if (line < last && col * 4u < dim) {                                               \
                    vec4 x = uintBitsToFloat(tiles[mine + at / (YF * FN / 4u) * Y_STRIDE + at % (YF * FN / 4u)]); \
                    words[(place) / 4u + col] = line < own_lines() ? floatBitsToUint(x * (by)) : uvec4(0u); \
                }                                                                                  \
            }                                                                                      \
            subgroup_meets();                                                                      \
        }                                                                                          \
    }

#if OF_KEYS
STORE(store_first, first_sums, HN, first, p.head_dim, p.scale,
    batch * p.first_batch + head * p.first_head + line * p.first_seq)
STORE(store_second, second_sums, VN, second, p.value_dim, 1.0,
    batch * p.second_batch + head * p.second_head + line * p.second_seq)
#else
STORE(store_first, first_sums, HN, first, p.head_dim, p.scale,
    row_of(line, 0u, p.first_batch, p.first_head, p.first_seq))
#endif

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    take_place(flat_group);
    if (!are_fit()) {
        return;
    }

    ivec2 walk;
    ivec2 clear;
    take_walk(walk, clear);
    base = OF_KEYS == 1 ? ivec2(first_line) : ivec2(walk.x, clear.y);
#if OF_KEYS
    // For keys beyond the end, unmasked ds would not be 0 and would reduce `lift`. All steps of
    // this workgroup therefore apply masks.
    clear = first_line + BM > own_lines() ? ivec2(0) : clear;
#endif
    // Steps must not cross chunks.
    walk.x = walk.x / int(BN) * int(BN);
    load_own();
    load_step(walk.x);
    store_step(0u);
    uint stage = 0u;
    barrier();
    for (int line = walk.x; line < walk.y; line += int(BN)) {
        load_step(line + int(BN));
        bool on_edge = line < clear.x || line + int(BN) > clear.y;
        if (MASK != 0u || on_edge) {
            add_step(stage, line, true);
        } else {
            add_step(stage, line, false);
        }
        stage = 1u - stage;
        store_step(stage);
        barrier();
    }
    store_first();
#if OF_KEYS
    store_second();
#endif
}
