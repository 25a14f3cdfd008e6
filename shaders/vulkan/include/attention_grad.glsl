// Gradients of attention on cooperative matrices, without ever holding the scores (Dao et al., "FlashAttention", 2022).
//
// From q, k, v and dy in ELEMENT (f16), and of each row of queries lse, the logarithm of the sum of the exponentials of
// its scores, and delta = dy . y: with p = exp(s - lse) and ds = p (dp - delta) s', where s' is the derivative of the score s by the
// product of query and key and dp = dy vT,
//
//     dq = ds k        dk = dsT q        dv = pT dy
//
// Sums are f32, p and ds are rounded to ELEMENT before they are factors. Query heads of one key head are taken together,
// as in attention_coop.glsl: row r of a key head is query r / group of query head head * group + r % group, so that the sums
// over a group are those over rows.
//
// Two kernels of one text. OF_KEYS 0: a workgroup has BM rows of queries and walks the keys that they see, for dq.
// OF_KEYS 1: it has BM keys and walks the rows that see them, for dk and dv. Both hold two operands of their own in
// fragments, one strip of FM lines in each subgroup, and walk two others, BN lines at a time, which are staged in shared
// memory twice in turn, so that there is one barrier a step. Loads of the next step are under way meanwhile.
//
//     OF_KEYS    own        walked     products                sums
//     0          q, dy      k, v       q kT, dy vT             ds k
//     1          k, v       q, dy      k qT, v dyT             dsT q, pT dy
//
// A fragment of products has lines of its own as rows and walked ones as columns. Numbers of rows of queries, log-sum-exp
// and delta, become fragments by loads with a stride of 0; elements of masked steps find their pair by a fragment of
// numbers, row FN + column. Rows that do not exist, or see nothing, have an lse of infinity and so weights of 0; keys that do not
// exist are staged as 0, and their sums are not stored.
//
// The order of workgroups: attention_order.glsl.
//
// Constraints on constants: FK and FN multiples of 8, each a multiple of the other or its divisor; BM of FM, BN of FN and FK,
// HEAD and VALUE of FK and FN; FK is FN where CONVERTS. Offsets and strides are multiples of 8, head_dim and value_dim
// as well, elements are 1 apart along the last axis, bindings at 16 bytes; lse, delta and results are dense.

#include "attention_grad_setup.glsl"

// Fragments along the head dim as a summed axis and as columns, of queries and keys, of values; lines that become
// factors together.
const uint HK = HEAD / FK;
const uint HN = HEAD / FN;
const uint VK = VALUE / FK;
const uint VN = VALUE / FN;
const uint PART = FK > FN ? FK : FN;

// In words of 16 bytes: 8 elements, or 4 sums. Each row is one word longer than its data, so that the rows of a fragment lie
// in different banks. A stage: lines of the first operand, then of the second.
const uint H_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint H_STRIDE = H_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint SECOND_AT = BN * H_STRIDE;
const uint STAGE_LEN = SECOND_AT + BN * V_STRIDE;
// Weights and ds of a subgroup on their way to factors, where they are not converted.
const uint P_AT = 2 * STAGE_LEN;
const uint P_STRIDE = PART / 8 + 1;
const uint P_LEN = FM * P_STRIDE;
const uint SUBGROUPS = BM / FM;
const uint STEPS_LEN = P_AT + (CONVERTS == 1 ? 0 : 2 * SUBGROUPS * P_LEN);
// At the start one of the own operands is there, at the end results, YF fragments of a strip at a time.
const uint Q_LEN = BM * (H_STRIDE > V_STRIDE ? H_STRIDE : V_STRIDE);
const uint MOST = HN > VN ? HN : VN;
const uint YF = MOST < 4 || MOST > 8 ? MOST : 4;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
const uint ENDS_LEN = Q_LEN > Y_LEN ? Q_LEN : Y_LEN;
// What rows of queries see, of the own lines or of two steps, and a fragment that holds row FN + column.
const uint ROW_AT = STEPS_LEN > ENDS_LEN ? STEPS_LEN : ENDS_LEN;
const uint ROW_LEN = OF_KEYS == 1 ? 2 * BN : BM;
const uint INDEX_AT = ROW_AT + ROW_LEN;
shared uvec4 tiles[INDEX_AT + FM * FN / 4];
// Log-sum-exp and delta of the same rows, by 16 bytes: fragments are loaded from here.
shared vec4 numbers[2 * ROW_LEN / 4];
#define NUMBER(at) numbers[(at) / 4u][(at) % 4u]
const uint DELTA_AT = ROW_LEN;

#include "attention_grad_place.glsl"

// Eight elements of the operands' lines; 0 beyond.
#define FETCH(name, words, dim, place)                                       \
    uvec4 name(uint line, uint col) {                                        \
        return col * 8u < dim ? words[((place) >> 3) + col] : uvec4(0u);     \
    }

FETCH(fetch_q, q, p.head_dim, row_of(line, p.q_offset, p.q_batch, p.q_head, p.q_seq))
FETCH(fetch_dy, dy, p.value_dim, row_of(line, p.dy_offset, p.dy_batch, p.dy_head, p.dy_seq))
FETCH(fetch_k, k, p.head_dim, p.k_offset + batch * p.k_batch + head * p.k_head + line * p.k_seq)
FETCH(fetch_v, v, p.value_dim, p.v_offset + batch * p.v_batch + head * p.v_head + line * p.v_seq)

#if OF_KEYS
#define FETCH_OWN_FIRST fetch_k
#define FETCH_OWN_SECOND fetch_v
#define FETCH_FIRST fetch_q
#define FETCH_SECOND fetch_dy
#else
#define FETCH_OWN_FIRST fetch_q
#define FETCH_OWN_SECOND fetch_dy
#define FETCH_FIRST fetch_k
#define FETCH_SECOND fetch_v
#endif

const uint H_LOADS = (BN * H_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
uvec4 loaded_first[H_LOADS];
uvec4 loaded_second[V_LOADS];
// What is known of a row of queries that this invocation stages: what it sees, where its mask begins; numbers.
uvec4 loaded_about;
vec2 loaded_numbers;

// What a row sees, and its log-sum-exp and delta.
void load_row(uint row) {
    loaded_about = uvec4(0u);
    loaded_numbers = vec2(infinity(), 0.0);
    if (row < rows) {
        loaded_about.xy = uvec2(seen_by(row, n));
        loaded_about.z = row_of(row, p.mask_offset, p.mask_batch, p.mask_head, p.mask_query);
        uint at = ((batch * p.kv_heads + head) * p.group + row % p.group) * p.queries + row / p.group;
        float sum = lse[at];
        // Of a row that sees nothing no weight counts.
        loaded_numbers = vec2(sum == -infinity() ? infinity() : sum * LOG2_E, delta[at]);
    }
}

void store_row(uint at) {
    tiles[ROW_AT + at] = loaded_about;
    NUMBER(at) = loaded_numbers.x;
    NUMBER(DELTA_AT + at) = loaded_numbers.y;
}

// Global memory to registers: lines from `line` on, those before `end`.
void load_step(int line, int end) {
    [[unroll]] for (uint i = 0u; i < H_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        int own = line + int(at / H_COLS);
        loaded_first[i] = uvec4(0u);
        if ((BN * H_COLS % THREADS == 0u || at < BN * H_COLS) && own < end) {
            loaded_first[i] = FETCH_FIRST(uint(own), at % H_COLS);
        }
    }
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        int own = line + int(at / V_COLS);
        loaded_second[i] = uvec4(0u);
        if ((BN * V_COLS % THREADS == 0u || at < BN * V_COLS) && own < end) {
            loaded_second[i] = FETCH_SECOND(uint(own), at % V_COLS);
        }
    }
#if OF_KEYS
    if (gl_LocalInvocationIndex < BN) {
        load_row(uint(line) + gl_LocalInvocationIndex);
    }
#endif
}

// Registers to one of the two stages.
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

// A fragment: products of queries and keys, which become weights; dp, which becomes ds; lse and delta of its rows of queries.
SUMS products;
SUMS dp;
SUMS sums;
SUMS deltas;

LEFT own_first[HK];
LEFT own_second[VK];
SUMS first_sums[HN];
#if OF_KEYS
SUMS second_sums[VN];
#endif

// The own operands through shared memory into fragments, and what stays for the whole walk.
void load_own() {
    for (uint at = gl_LocalInvocationIndex; at < BM * H_COLS; at += THREADS) {
        uint line = first_line + at / H_COLS;
        uvec4 x = line < own_lines() ? FETCH_OWN_FIRST(line, at % H_COLS) : uvec4(0u);
        tiles[at / H_COLS * H_STRIDE + at % H_COLS] = x;
    }
    barrier();
    [[unroll]] for (uint h = 0u; h < HK; h++) {
        coopMatLoad(own_first[h], tiles, own_line * H_STRIDE + h * FK / 8u, H_STRIDE, ROWS);
    }
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < BM * V_COLS; at += THREADS) {
        uint line = first_line + at / V_COLS;
        uvec4 x = line < own_lines() ? FETCH_OWN_SECOND(line, at % V_COLS) : uvec4(0u);
        tiles[at / V_COLS * V_STRIDE + at % V_COLS] = x;
    }
    for (uint at = gl_LocalInvocationIndex; at < FM * FN / 4u; at += THREADS) {
        tiles[INDEX_AT + at] = floatBitsToUint(vec4(4u * at) + vec4(0.0, 1.0, 2.0, 3.0));
    }
#if OF_KEYS == 0
    for (uint at = gl_LocalInvocationIndex; at < BM; at += THREADS) {
        load_row(first_line + at);
        store_row(at);
    }
#endif
    barrier();
    [[unroll]] for (uint h = 0u; h < VK; h++) {
        coopMatLoad(own_second[h], tiles, own_line * V_STRIDE + h * FK / 8u, V_STRIDE, ROWS);
    }
#if OF_KEYS == 0
    coopMatLoad(sums, numbers, own_line / 4u, 0, COLUMNS);
    coopMatLoad(deltas, numbers, (DELTA_AT + own_line) / 4u, 0, COLUMNS);
#else
    [[unroll]] for (uint d = 0u; d < VN; d++) {
        second_sums[d] = SUMS(0.0);
    }
#endif
    [[unroll]] for (uint d = 0u; d < HN; d++) {
        first_sums[d] = SUMS(0.0);
    }
    barrier();
}

// Weights and ds. `row_at` is the fragment's first walked line among the rows that are staged, `walked` its place in the operand.
void weigh(uint row_at, int walked, const bool guarded) {
    SUMS index;
    if (guarded) {
        coopMatLoad(index, tiles, INDEX_AT, FN / 4, ROWS);
    }
    [[unroll]] for (uint e = 0u; e < products.length(); e++) {
        float x = products[e] * p.scale;
        float slope = p.scale;
        if (CAPPED != 0u) {
            float t = capped(x / p.softcap);
            x = t * p.softcap;
            slope *= 1.0 - t * t;
        }
        x *= LOG2_E;
        if (guarded) {
            uint own = uint(index[e]) / FN;
            uint other = uint(index[e]) % FN;
#if OF_KEYS
            x = masked(x, int(first_line + own_line + own), tiles[ROW_AT + row_at + other]);
#else
            x = masked(x, walked + int(other), tiles[ROW_AT + own_line + own]);
#endif
        }
        float w = exp2(x - sums[e]);
        float ds = w * (dp[e] - deltas[e]) * slope;
        products[e] = w;
        dp[e] = guarded && x == -infinity() ? 0.0 : ds;
    }
}

// Adds a part of ds as factors, times the walked lines from `key` on, and of weights.
#define ADD(to_sums, count, factors, at, stride)                                       \
    [[unroll]] for (uint d = 0u; d < count; d++) {                                  \
        RIGHT lines;                                                                \
        coopMatLoad(lines, tiles, (at) + d * FN / 8u, stride, ROWS);                \
        to_sums[d] = coopMatMulAdd(factors, lines, to_sums[d]);                     \
    }

// The products of a step: BN walked lines, from `line` on.
void add_step(uint stage, int line, const bool guarded) {
    uint first_at = stage * STAGE_LEN;
    uint second_at = first_at + SECOND_AT;
    [[unroll]] for (uint part = 0u; part < BN; part += PART) {
#if CONVERTS
        if (guarded && is_hidden(line + int(part))) {
            continue;
        }
#else
        // Subgroups meet as often as each other: a driver may take it for a barrier of the workgroup.
        uint to = P_AT + 2u * gl_SubgroupID * P_LEN;
#endif
        LEFT weights;
        LEFT of_scores;
        [[unroll]] for (uint j = part; j < part + PART; j += FN) {
            products = SUMS(0.0);
            dp = SUMS(0.0);
            RIGHT lines;
            [[unroll]] for (uint h = 0u; h < HK; h++) {
                coopMatLoad(lines, tiles, first_at + j * H_STRIDE + h * FK / 8u, H_STRIDE, COLUMNS);
                products = coopMatMulAdd(own_first[h], lines, products);
            }
            [[unroll]] for (uint h = 0u; h < VK; h++) {
                coopMatLoad(lines, tiles, second_at + j * V_STRIDE + h * FK / 8u, V_STRIDE, COLUMNS);
                dp = coopMatMulAdd(own_second[h], lines, dp);
            }
#if OF_KEYS
            coopMatLoad(sums, numbers, (stage * BN + j) / 4u, 0, ROWS);
            coopMatLoad(deltas, numbers, (DELTA_AT + stage * BN + j) / 4u, 0, ROWS);
            weigh(stage * BN + j, line + int(j), guarded);
#else
            weigh(0u, line + int(j), guarded);
#endif
#if CONVERTS
            of_scores = LEFT(NARROW(dp));
#if OF_KEYS
            weights = LEFT(NARROW(products));
#endif
#else
            coopMatStore(NARROW(dp), tiles, to + (j - part) / 8u, P_STRIDE, ROWS);
#if OF_KEYS
            coopMatStore(NARROW(products), tiles, to + P_LEN + (j - part) / 8u, P_STRIDE, ROWS);
#endif
#endif
        }
#if CONVERTS == 0
        subgroup_meets();
#endif
        [[unroll]] for (uint s = part; s < part + PART; s += FK) {
#if CONVERTS == 0
            coopMatLoad(of_scores, tiles, to + (s - part) / 8u, P_STRIDE, ROWS);
#if OF_KEYS
            coopMatLoad(weights, tiles, to + P_LEN + (s - part) / 8u, P_STRIDE, ROWS);
#endif
#endif
            ADD(first_sums, HN, of_scores, first_at + s * H_STRIDE, H_STRIDE)
#if OF_KEYS
            ADD(second_sums, VN, weights, second_at + s * V_STRIDE, V_STRIDE)
#endif
        }
#if CONVERTS == 0
        subgroup_meets();
#endif
    }
}

#include "to_elements.glsl"

// Sums of the subgroup's lines to one of the results, YF fragments at a time; `place` is where the line begins.
#define STORE(name, of_sums, count, words, dim, place)                                                \
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
            for (uint at = gl_SubgroupInvocationID; at < FM * YF * FN / 8u; at += SUBGROUP) {      \
                uint line = first_line + own_line + at / (YF * FN / 8u);                           \
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
    load_own();
    load_step(walk.x, walk.y);
    store_step(0u);
    uint stage = 0u;
    barrier();
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
