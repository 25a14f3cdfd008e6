// Attention backward on cooperative matrices (Dao et al., "FlashAttention", 2022). The scores are
// never stored in global memory.
//
// Inputs are q, k, v and dy in ELEMENT (F16), and two numbers per query row: lse, the log-sum-exp
// of its scores, and delta = dy . y. Let p = exp(s - lse), dp = dy vT, and ds = p (dp - delta) s'.
// Here s' is the derivative of the score s by the product of query and key. The gradients are:
//
//     dq = ds k;        dk = dsT q;        dv = pT dy.
//
// Sums are F32; p and ds are rounded to ELEMENT before they are multiplied. The query heads of one
// KV head are processed together, as in attention_coop.glsl: row r of a KV head is query r / group
// of query head head * group + r % group. Sums over a group are then sums over rows.
//
// This file compiles to two kernels. With OF_KEYS = 0, a workgroup computes dq of BM query rows and
// iterates over the keys that they attend to. With OF_KEYS = 1, a workgroup computes dk and dv of
// BM keys and iterates over the query rows that attend to them. Two operands are stationary
// (own_*): their rows stay in fragments, WM per subgroup. The other two are streamed, BN rows per
// step, double-buffered in shared memory with one barrier per step. The next step is loaded during
// the computation. A streamed fragment is loaded once for all strips of FM stationary rows of a
// subgroup. In this code, a line is a row of any operand: a query row or a key.
//
//     OF_KEYS    stationary streamed   products                sums;
//     0          q, dy      k, v       q kT, dy vT             ds k;
//     1          k, v       q, dy      k qT, v dyT             dsT q, pT dy.
//
// A fragment of products has stationary rows as its rows and streamed rows as its columns. The
// numbers of a query row (log-sum-exp, delta, bounds of the visible keys) and the indices of rows
// and columns become fragments by loads with stride 0. Query rows that do not exist or have no
// visible key have lse = infinity, so their weights are 0. Missing keys are staged as 0, and their
// sums are not stored. Only steps at the edge of a causal or window mask, and all steps with a mask
// operand, evaluate mask terms.
//
// attention_order.glsl defines the order of workgroups.
//
// Constraints on constants: FK and FN are multiples of 8, and one is a multiple of the other. BM is
// a multiple of WM, WM of FM, BN of FN and FK, HEAD and VALUE of FK and FN. FK equals FN if
// CONVERTS. Offsets, strides, head_dim and value_dim are multiples of 8. The last axis has unit
// stride; bindings are 16-byte aligned. lse, delta and results are dense.

#include "attention_grad_setup.glsl"

// Numbers of fragments along the head dimension, as summed axis (HK, VK) and as columns (HN, VN),
// for queries and keys and for values. PART: streamed rows whose weights become left operands
// together.
const uint HK = HEAD / FK;
const uint HN = HEAD / FN;
const uint VK = VALUE / FK;
const uint VN = VALUE / FN;
const uint PART = FK > FN ? FK : FN;

// Lengths in 16-byte words: 8 elements or 4 sums. Rows have one word of padding against bank
// conflicts. A stage contains the rows of the first streamed operand, then those of the second.
const uint H_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint H_STRIDE = H_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint SECOND_AT = BN * H_STRIDE;
const uint STAGE_LEN = SECOND_AT + BN * V_STRIDE;
// On devices without matrix-use conversions, weights and ds of a subgroup pass through this memory
// to become left operands.
const uint P_AT = 2 * STAGE_LEN;
const uint P_STRIDE = PART / 8 + 1;
const uint P_LEN = WM * P_STRIDE;
const uint STRIPS = WM / FM;
const uint SUBGROUPS = BM / WM;
const uint STEPS_LEN = P_AT + (CONVERTS == 1 ? 0 : 2 * SUBGROUPS * P_LEN);
// The memory of the steps also contains one stationary operand at the start, and YF result
// fragments of a strip at the end.
const uint Q_LEN = BM * (H_STRIDE > V_STRIDE ? H_STRIDE : V_STRIDE);
const uint MOST = HN > VN ? HN : VN;
const uint YF = MOST < 4 || MOST > 8 ? MOST : 4;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
const uint ENDS_LEN = Q_LEN > Y_LEN ? Q_LEN : Y_LEN;
// The data of query rows starts after this memory.
const uint ROW_AT = STEPS_LEN > ENDS_LEN ? STEPS_LEN : ENDS_LEN;

#include "attention_grad_place.glsl"
#include "attention_grad_rows.glsl"

#include "attention_grad_loads.glsl"

const uint H_LOADS = (BN * H_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
uvec4 loaded_first[H_LOADS];
uvec4 loaded_second[V_LOADS];
// Loads the streamed rows from `line` on, below `end`, from global memory into registers.
void load_step(int line, int end) {
    LOAD_WALKED(loaded_first, loaded_second, BN, line, end)
#if OF_KEYS
    if (gl_LocalInvocationIndex < BN) {
        load_row(uint(line) + gl_LocalInvocationIndex);
    }
#endif
}

// Stores the loaded rows in one of the two stages.
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
#if OF_KEYS
    if (gl_LocalInvocationIndex < BN) {
        store_row(stage * BN + gl_LocalInvocationIndex);
    }
#endif
}

// Fragments of each strip: products of queries and keys, and dp - delta, whose sum starts with
// -delta. Fragments of one strip: weights w, ds and -lse. With stationary query rows, each strip
// also has -lse and -delta.
SUMS products[STRIPS];
SUMS dp[STRIPS];
SUMS w;
SUMS ds;
SUMS minus_lse;
#if OF_KEYS == 0
SUMS of_lse[STRIPS];
SUMS of_delta[STRIPS];
#endif

LEFT own_first[STRIPS * HK];
LEFT own_second[STRIPS * VK];
SUMS first_sums[STRIPS * HN];
#if OF_KEYS
SUMS second_sums[STRIPS * VN];
#endif

// Moves a stationary operand through shared memory into fragments.
#define TAKE_OWN(own, count, loaded, cols, stride)                                                  \
    [[unroll]] for (uint i = 0u; i < (BM * cols + THREADS - 1) / THREADS; i++) {                    \
        uint at = gl_LocalInvocationIndex + i * THREADS;                                            \
        if (BM * cols % THREADS == 0u || at < BM * cols) {                                          \
            tiles[at / cols * stride + at % cols] = loaded[i];                                      \
        }                                                                                           \
    }                                                                                               \
    barrier();                                                                                      \
    [[unroll]] for (uint s = 0u; s < STRIPS; s++) {                                                 \
        [[unroll]] for (uint h = 0u; h < count; h++) {                                              \
            coopMatLoad(own[s * count + h], tiles, (own_line + s * FM) * stride + h * FK / 8u, stride, ROWS); \
        }                                                                                           \
    }                                                                                               \
    barrier();

// Loads the stationary operands and the first step, and computes loop invariants.
void begin(ivec2 walk) {
    uvec4 of_first[(BM * H_COLS + THREADS - 1) / THREADS];
    uvec4 of_second[(BM * V_COLS + THREADS - 1) / THREADS];
    LOAD_OWN(of_first, of_second, BM, first_line, own_lines())
    load_step(walk.x, walk.y);
    store_index();
#if OF_KEYS == 0
    for (uint at = gl_LocalInvocationIndex; at < BM; at += THREADS) {
        load_row(first_line + at);
        store_row(at);
    }
#endif
    TAKE_OWN(own_first, HK, of_first, H_COLS, H_STRIDE)
    TAKE_OWN(own_second, VK, of_second, V_COLS, V_STRIDE)
    store_step(0u);
#if OF_KEYS == 0
    [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
        coopMatLoad(of_lse[s], numbers, (own_line + s * FM) / 4u, 0, COLUMNS);
        coopMatLoad(of_delta[s], numbers, (DELTA_AT + own_line + s * FM) / 4u, 0, COLUMNS);
    }
#else
    [[unroll]] for (uint d = 0u; d < STRIPS * VN; d++) {
        second_sums[d] = SUMS(0.0);
    }
#endif
    [[unroll]] for (uint d = 0u; d < STRIPS * HN; d++) {
        first_sums[d] = SUMS(0.0);
    }
    barrier();
}

// Computes weights and ds from the products and dp, for stationary rows from `own` on and streamed
// rows from `walked` on. The numbers of streamed query rows are staged at `at`.
void weigh(uint own, int walked, uint at, const bool guarded) {
    SUMS penalties;
    if (guarded) {
        penalties = penalties_of(own, walked, at);
    }
    float by = p.scale * LOG2_E;
    [[unroll]] for (uint e = 0u; e < w.length(); e++) {
        float x = w[e] * by;
        float slope = p.scale;
        if (CAPPED != 0u) {
            float t = capped(w[e] * p.scale / p.softcap);
            slope *= 1.0 - t * t;
            x = t * p.softcap * LOG2_E;
        }
        x += minus_lse[e];
        if (guarded) {
            x += penalties[e];
        }
        bool is_seen = !guarded || penalties[e] != -infinity();
        float weight = exp2(x);
        w[e] = is_seen ? weight : 0.0;
        ds[e] = is_seen ? weight * ds[e] * slope : 0.0;
    }
}

// Adds PART columns of ds or of the weights, as left operands, times the streamed rows staged at
// `at`.
#define ADD(to_sums, count, factors, at, stride)                                       \
    [[unroll]] for (uint d = 0u; d < count; d++) {                                  \
        RIGHT lines;                                                                \
        coopMatLoad(lines, tiles, (at) + d * FN / 8u, stride, ROWS);                \
        [[unroll]] for (uint s = 0u; s < STRIPS; s++) {                             \
            to_sums[s * count + d] = coopMatMulAdd(factors[s], lines, to_sums[s * count + d]); \
        }                                                                           \
    }

// Products of the stationary rows and the fragment of streamed rows staged at `at`.
#define MULTIPLY(to, own, count, at, stride)                                        \
    [[unroll]] for (uint h = 0u; h < count; h++) {                                  \
        RIGHT lines;                                                                \
        coopMatLoad(lines, tiles, (at) + h * FK / 8u, stride, COLUMNS);             \
        [[unroll]] for (uint s = 0u; s < STRIPS; s++) {                             \
            to[s] = coopMatMulAdd(own[s * count + h], lines, to[s]);                \
        }                                                                           \
    }

// Computes q kT and dp - delta for the fragment of streamed rows that starts at row `j` of the
// step.
void multiply(uint stage, uint j) {
    [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
        products[s] = SUMS(0.0);
#if OF_KEYS
        coopMatLoad(dp[s], numbers, (DELTA_AT + stage * BN + j) / 4u, 0, ROWS);
#else
        dp[s] = of_delta[s];
#endif
    }
    MULTIPLY(products, own_first, HK, stage * STAGE_LEN + j * H_STRIDE, H_STRIDE)
    MULTIPLY(dp, own_second, VK, stage * STAGE_LEN + SECOND_AT + j * V_STRIDE, V_STRIDE)
}

// Computes weights and ds of a strip of stationary rows.
void take(uint strip, uint stage, int line, uint j, const bool guarded) {
    w = products[strip];
    ds = dp[strip];
#if OF_KEYS
    coopMatLoad(minus_lse, numbers, (stage * BN + j) / 4u, 0, ROWS);
#else
    minus_lse = of_lse[strip];
#endif
    weigh(own_line + strip * FM, line + int(j), stage * BN + j, guarded);
}

// Processes a step of BN streamed rows, from `line` on.
void add_step(uint stage, int line, const bool guarded) {
    uint first_at = stage * STAGE_LEN;
    uint second_at = first_at + SECOND_AT;
    LEFT weights[STRIPS];
    LEFT of_scores[STRIPS];
    [[unroll]] for (uint part = 0u; part < BN; part += PART) {
#if CONVERTS
        if (guarded) {
            bool all_hidden = true;
            [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
                all_hidden = all_hidden && is_hidden(own_line + s * FM, line + int(part), stage * BN + part);
            }
            if (all_hidden) {
                continue;
            }
        }
        multiply(stage, part);
        [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
            take(s, stage, line, part, guarded);
            of_scores[s] = LEFT(NARROW(ds));
#if OF_KEYS
            weights[s] = LEFT(NARROW(w));
#endif
        }
#else
        // All subgroups call subgroup_meets() equally often, because some drivers implement it as a
        // workgroup barrier.
        uint to = P_AT + 2u * gl_SubgroupID * P_LEN;
        [[unroll]] for (uint j = part; j < part + PART; j += FN) {
            multiply(stage, j);
            [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
                take(s, stage, line, j, guarded);
                uint at = to + s * FM * P_STRIDE + (j - part) / 8u;
                coopMatStore(NARROW(ds), tiles, at, P_STRIDE, ROWS);
#if OF_KEYS
                coopMatStore(NARROW(w), tiles, at + P_LEN, P_STRIDE, ROWS);
#endif
            }
        }
        subgroup_meets();
#endif
        [[unroll]] for (uint k = part; k < part + PART; k += FK) {
#if CONVERTS == 0
            [[unroll]] for (uint s = 0u; s < STRIPS; s++) {
                uint at = to + s * FM * P_STRIDE + (k - part) / 8u;
                coopMatLoad(of_scores[s], tiles, at, P_STRIDE, ROWS);
#if OF_KEYS
                coopMatLoad(weights[s], tiles, at + P_LEN, P_STRIDE, ROWS);
#endif
            }
#endif
            ADD(first_sums, HN, of_scores, first_at + k * H_STRIDE, H_STRIDE)
#if OF_KEYS
            ADD(second_sums, VN, weights, second_at + k * V_STRIDE, V_STRIDE)
#endif
        }
#if CONVERTS == 0
        subgroup_meets();
#endif
    }
}

#include "to_elements.glsl"

// Stores the gradients of the subgroup's stationary rows to a result, YF fragments of a strip per
// iteration. A single loop runs over strips and fragments, because compilers do not unroll three
// nested loops. `place` is the offset of a result row.
#define STORE(name, of_sums, count, words, dim, place)                                                \
    void name() {                                                                                  \
        uint mine = gl_SubgroupID * FM * Y_STRIDE;                                                 \
        uint last = OF_KEYS == 1 ? p.keys : rows;                                                  \
        [[unroll]] for (uint part = 0u; part < STRIPS * PARTS(count); part++) {                    \
            uint strip = part / PARTS(count);                                                      \
            uint from = part % PARTS(count) * YF;                                                  \
            [[unroll]] for (uint d = 0u; d < YF; d++) {                                            \
                if (from + d < count) {                                                            \
                    coopMatStore(of_sums[strip * count + from + d], tiles, mine + d * FN / 4u, Y_STRIDE, ROWS); \
                }                                                                                  \
            }                                                                                      \
            subgroup_meets();                                                                      \
            for (uint at = gl_SubgroupInvocationID; at < FM * YF * FN / 8u; at += SUBGROUP) {      \
                uint line = first_line + own_line + strip * FM + at / (YF * FN / 8u);              \
                uint col = from * FN / 8u + at % (YF * FN / 8u);                                   \
                if (line < last && col * 8u < dim) {                                               \
                    uint word = mine + at / (YF * FN / 8u) * Y_STRIDE + at % (YF * FN / 8u) * 2u;  \
                    vec4 a = uintBitsToFloat(tiles[word]);                                         \
                    vec4 b = uintBitsToFloat(tiles[word + 1u]);                                    \
                    uvec4 x = line < own_lines() ? to_elements(a, b) : uvec4(0u);                  \
                    words[(place) / 8u + col] = x;                                                 \
                }                                                                                  \
            }                                                                                      \
            subgroup_meets();                                                                      \
        }                                                                                          \
    }
#define PARTS(count) ((count + YF - 1) / YF)

#if OF_KEYS
STORE(store_first, first_sums, HN, first, p.head_dim,
    batch * p.first_batch + head * p.first_head + line * p.first_seq)
STORE(store_second, second_sums, VN, second, p.value_dim,
    batch * p.second_batch + head * p.second_head + line * p.second_seq)
#else
STORE(store_first, first_sums, HN, first, p.head_dim,
    row_of(line, 0u, p.first_batch, p.first_head, p.first_seq))
#endif

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    take_place(flat_group);

    ivec2 walk;
    ivec2 clear;
    take_walk(walk, clear);
    base = OF_KEYS == 1 ? ivec2(first_line) : ivec2(walk.x, clear.y);
    begin(walk);
    uint stage = 0u;
    for (int line = walk.x; line < walk.y; line += int(BN)) {
        load_step(line + int(BN), walk.y);
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
