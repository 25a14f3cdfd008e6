// y = softmax(mask(cap(scale q k^T))) v on cooperative matrices, for many queries, without ever holding
// the scores (Dao et al., "FlashAttention", 2022).
//
// q, k, v, a bias and y hold ELEMENT (f16); products, sums and the softmax are f32, weights are rounded
// to ELEMENT before they meet the values. Query heads of one key head are taken together: row r of a key
// head is query r / group of query head head * group + r % group.
//
// A workgroup takes BM rows of one batch entry and key head, a subgroup WM of them, and walks the keys
// that any of the rows sees, BN at a time. K and V are staged in shared memory as rows of 16-byte words,
// each row one word longer than its data so that the rows of a fragment lie in different banks; queries,
// scores and sums stay in the fragments of the subgroup. While the scores are made, the loads of the
// values are under way into registers; while these are weighed, those of the next keys.
//
// Which element of a fragment lies where is not known, but the same for all accumulators. So:
// - The maximum of a row over the fragments of a step is taken element by element. What is left, one
//   fragment for each FM rows, goes through shared memory, where an invocation owns a row.
// - A number of each row, such as its maximum, becomes a fragment by a load with a stride of 0.
// - So do the numbers of rows and of columns, by which elements of masked steps find their pair.
// - Sums of weights stay one fragment for each FM rows, whose columns are added at the end.
//
// A pair that is not seen has the score -infinity and the weight -0, which no exponential gives. Values
// that no row sees are staged as 0. Where a value is NaN or infinite and some rows do not see it, the
// step's values are weighed one by one, and only where they are seen.
//
// The flat group is (batch * kv_heads + head) * tiles + (tiles - 1 - tile): groups side by side share
// keys, and under a causal mask the longest of a head come first.
//
// Constraints on constants: FK and FN multiples of 8; BM of WM, WM of FM, BN of FN and FK, HEAD of FK,
// VALUE of FN; BN at least 2 FN. Offsets and strides are multiples of 8, head_dim and value_dim as well,
// elements are 1 apart along the last axis, bindings at 16 bytes.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require // for the builtins: no operation is used

#include "half.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // SUBGROUP BM / WM
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // the device's fragment
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 128; // rows of the workgroup
layout(constant_id = 6) const uint WM = 32; // rows of a subgroup
layout(constant_id = 7) const uint BN = 64; // keys of a step
layout(constant_id = 8) const uint HEAD = 64; // head_dim and what is missing to fragments
layout(constant_id = 9) const uint VALUE = 64; // value_dim likewise
layout(constant_id = 10) const uint MASK = 0; // 1: keep, 2: bias
layout(constant_id = 11) const uint KEY_MASK = 0; // 1: the mask is the same for all rows of a batch entry
layout(constant_id = 12) const uint CAPPED = 0;

layout(set = 0, binding = 0) uniform Params {
    uint q_offset;
    uint q_batch;
    uint q_head;
    uint q_seq;
    uint k_offset;
    uint k_batch;
    uint k_head;
    uint k_seq;
    uint v_offset;
    uint v_batch;
    uint v_head;
    uint v_seq;
    uint mask_offset;
    uint mask_batch;
    uint mask_head;
    uint mask_query;
    uint mask_key;
    uint y_batch;
    uint y_head;
    uint y_seq;
    uint lens_offset;
    uint lens_stride;
    uint has_lens;
    uint causal;
    uint window;
    uint queries;
    uint keys;
    uint kv_heads;
    uint group;
    uint head_dim;
    uint value_dim;
    uint tiles;
    uint groups;
    float scale;
    float softcap;
} p;

layout(set = 0, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 2) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 3) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 4) readonly buffer Mask { uint mask[]; };
layout(set = 0, binding = 5) readonly buffer Lens { uint lens[]; };
layout(set = 0, binding = 6) writeonly buffer Y { uvec4 y[]; };

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define NARROW coopmat<ELEMENT, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS = gl_CooperativeMatrixLayoutColumnMajor;

// Fragments of a subgroup: rows, keys, parts of the head dim, columns of the values.
const uint RF = WM / FM;
const uint KF = BN / FN;
const uint HF = HEAD / FK;
const uint VF = VALUE / FN;
const uint SUBGROUPS = BM / WM;

// In words of 16 bytes: 8 elements, or 4 sums. A fragment of sums has rows of SUM_STRIDE.
const uint K_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint P_STRIDE = BN / 8 + 1;
const uint Y_STRIDE = VALUE / 4 + 1;
const uint SUM_STRIDE = FN / 4 + 1;
const uint SUM_LEN = FM * SUM_STRIDE;
// Keys, or a fragment of sums for each subgroup; values; weights; what rows see.
const uint K_LEN = BN * K_STRIDE > SUBGROUPS * SUM_LEN ? BN * K_STRIDE : SUBGROUPS * SUM_LEN;
const uint V_AT = K_LEN;
const uint P_AT = V_AT + BN * V_STRIDE;
const uint STEP_LEN = P_AT + BM * P_STRIDE;
// At the start the queries are there, at the end results.
const uint Q_LEN = BM * K_STRIDE;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
const uint ENDS_LEN = Q_LEN > Y_LEN ? Q_LEN : Y_LEN;
const uint ROW_AT = STEP_LEN > ENDS_LEN ? STEP_LEN : ENDS_LEN;
const uint LEN = ROW_AT + BM;
shared uvec4 tiles[LEN];

// Two numbers of each row, penalties of the keys of a step, and 0, 1, 2, ...
const uint PENALTY_AT = 2 * BM;
const uint INDEX_AT = PENALTY_AT + BN;
const uint INDEX_LEN = FM > FN ? FM : FN;
shared float numbers[INDEX_AT + INDEX_LEN];

// The last step, from 1 on, with a value that is not finite.
shared uint special_step;

const uint K_LOADS = (BN * K_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
const uint LOADS = K_LOADS > V_LOADS ? K_LOADS : V_LOADS;
// Rows of an invocation.
const uint OWN_ROWS = (WM + SUBGROUP - 1) / SUBGROUP;

const float LOG2_E = 1.44269504;

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// What the invocations of a subgroup wrote to shared memory is seen by all of them.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

// The number of keys of a batch entry.
int keys_of(uint batch) {
    if (p.has_lens == 0u) {
        return int(p.keys);
    }
    return clamp(int(lens[p.lens_offset + batch * p.lens_stride]), 0, int(p.keys));
}

// The first key that a row sees and the one after the last, before `keep` and `bias`; `n` keys.
ivec2 seen_by(uint row, int n) {
    if (p.causal == 0u) {
        return ivec2(0, n);
    }
    int end = n - int(p.queries) + int(row / p.group) + 1;
    return ivec2(max(end - int(p.window), 0), clamp(end, 0, n));
}

// Eight elements of a row of `dim`, which begins at `at`.
#define FETCH(name, words, cols, dim)                                                   \
    uvec4 name(uint at, uint col) {                                                     \
        return col * 8u < dim ? words[(at >> 3) + col] : uvec4(0u);                     \
    }

FETCH(fetch_q, q, K_COLS, p.head_dim)
FETCH(fetch_k, k, K_COLS, p.head_dim)
FETCH(fetch_v, v, V_COLS, p.value_dim)

// The workgroup's place.
uint batch;
uint head;
uint first_row;
uint rows;
// The subgroup's first row in the tile.
uint own_row;

uvec4 loaded[LOADS];

// Global memory to registers: BN keys from `key` on.
void load_keys(uint base, int key, int end) {
    [[unroll]] for (uint i = 0u; i < K_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        int line = key + int(at / K_COLS);
        loaded[i] = uvec4(0u);
        if (at < BN * K_COLS && line < end) {
            loaded[i] = fetch_k(base + uint(line) * p.k_seq, at % K_COLS);
        }
    }
}

void load_values(uint base, int key, int end) {
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        int line = key + int(at / V_COLS);
        loaded[i] = uvec4(0u);
        if (at < BN * V_COLS && line < end) {
            loaded[i] = fetch_v(base + uint(line) * p.v_seq, at % V_COLS);
        }
    }
}

// Registers to shared memory.
void store_keys() {
    [[unroll]] for (uint i = 0u; i < K_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < BN * K_COLS) {
            tiles[at / K_COLS * K_STRIDE + at % K_COLS] = loaded[i];
        }
    }
}

void store_values(bool guarded, uint step) {
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < BN * V_COLS) {
            tiles[V_AT + at / V_COLS * V_STRIDE + at % V_COLS] = loaded[i];
            if (guarded && ELEMENTS_ARE_SPECIAL(loaded[i])) {
                special_step = step;
            }
        }
    }
}

LEFT queries[RF * HF];
SUMS scores[RF * KF];
SUMS weights[RF];
SUMS sums[RF * VF];
// The greatest score of each row of this invocation.
float tops[OWN_ROWS];

// Where rows of this batch entry and key head begin.
uint row_of(uint row, uint offset, uint of_batch, uint of_head, uint of_seq) {
    uint query_head = head * p.group + row % p.group;
    return offset + batch * of_batch + query_head * of_head + row / p.group * of_seq;
}

// Queries through shared memory into fragments, and what each row sees.
void load_queries(int n) {
    for (uint at = gl_LocalInvocationIndex; at < BM * K_COLS; at += THREADS) {
        uint row = first_row + at / K_COLS;
        uvec4 x = uvec4(0u);
        if (row < rows) {
            x = fetch_q(row_of(row, p.q_offset, p.q_batch, p.q_head, p.q_seq), at % K_COLS);
        }
        tiles[at / K_COLS * K_STRIDE + at % K_COLS] = x;
    }
    for (uint at = gl_LocalInvocationIndex; at < BM; at += THREADS) {
        uint row = first_row + at;
        uvec4 about = uvec4(0u);
        if (row < rows) {
            about.xy = uvec2(seen_by(row, n));
            about.z = row_of(row, p.mask_offset, p.mask_batch, p.mask_head, p.mask_query);
        }
        tiles[ROW_AT + at] = about;
    }
    for (uint at = gl_LocalInvocationIndex; at < INDEX_LEN; at += THREADS) {
        numbers[INDEX_AT + at] = float(at);
    }
    if (gl_LocalInvocationIndex == 0u) {
        special_step = 0u;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint h = 0u; h < HF; h++) {
            uint at = (own_row + i * FM) * K_STRIDE + h * FK / 8u;
            coopMatLoad(queries[i * HF + h], tiles, at, K_STRIDE, ROWS);
        }
    }
    barrier();
}

// The products of the subgroup's queries with the staged keys.
void multiply_keys() {
    [[unroll]] for (uint i = 0u; i < RF * KF; i++) {
        scores[i] = SUMS(0.0);
    }
    RIGHT keys;
    [[unroll]] for (uint h = 0u; h < HF; h++) {
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            coopMatLoad(keys, tiles, j * FN * K_STRIDE + h * FK / 8u, K_STRIDE, COLUMNS);
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                scores[i * KF + j] = coopMatMulAdd(queries[i * HF + h], keys, scores[i * KF + j]);
            }
        }
    }
}

float capped(float x) {
    float t = tanh(clamp(x, -12.0, 12.0));
    return is_nan(x) ? x : t;
}

// Products to scores, in units of which the exponential takes powers of two, but for a bias: that may be
// the least number of a wide type.
void scale_scores() {
    const float unit = MASK == 2u ? 1.0 : LOG2_E;
    [[unroll]] for (uint i = 0u; i < RF * KF; i++) {
        if (CAPPED == 0u) {
            scores[i] = scores[i] * (p.scale * unit);
            continue;
        }
        scores[i] = scores[i] * (p.scale / p.softcap);
        [[unroll]] for (uint e = 0u; e < scores[i].length(); e++) {
            scores[i][e] = capped(scores[i][e]);
        }
        scores[i] = scores[i] * (p.softcap * unit);
    }
}

// What a mask adds to a score: -infinity where the pair is not seen.
float penalty_of(uint at) {
    if (MASK == 1u) {
        return ((mask[at >> 2] >> (at & 3u) * 8u) & 0xffu) != 0u ? 0.0 : minus_infinity();
    }
    return ELEMENT_TO_F32((mask[at >> 1] >> (at & 1u) * 16u) & 0xffffu);
}

float with_penalty(float score, float penalty) {
    // The score may be NaN.
    return penalty == minus_infinity() ? penalty : score + penalty;
}

// The penalties of the keys from `first` on.
void stage_penalties(int first, int end) {
    for (uint at = gl_LocalInvocationIndex; at < BN; at += THREADS) {
        int key = first + int(at);
        float penalty = minus_infinity();
        if (key < end) {
            penalty = penalty_of(p.mask_offset + batch * p.mask_batch + uint(key) * p.mask_key);
        }
        numbers[PENALTY_AT + at] = penalty;
    }
}

void mask_keys() {
    [[unroll]] for (uint j = 0u; j < KF; j++) {
        SUMS penalties;
        coopMatLoad(penalties, numbers, PENALTY_AT + j * FN, 0, ROWS);
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            [[unroll]] for (uint e = 0u; e < penalties.length(); e++) {
                scores[i * KF + j][e] = with_penalty(scores[i * KF + j][e], penalties[e]);
            }
        }
    }
}

float masked(float score, int key, uvec4 about) {
    if (key < int(about.x) || key >= int(about.y)) {
        return minus_infinity();
    }
    if (MASK == 0u) {
        return score;
    }
    return with_penalty(score, penalty_of(about.z + uint(key) * p.mask_key));
}

// Scores of pairs that are not seen become -infinity.
void mask_pairs(int first) {
    SUMS row_at;
    SUMS key_at;
    coopMatLoad(row_at, numbers, INDEX_AT, 0, COLUMNS);
    coopMatLoad(key_at, numbers, INDEX_AT, 0, ROWS);
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint e = 0u; e < row_at.length(); e++) {
            uvec4 about = tiles[ROW_AT + own_row + i * FM + uint(row_at[e])];
            int key = first + int(key_at[e]);
            [[unroll]] for (uint j = 0u; j < KF; j++) {
                scores[i * KF + j][e] = masked(scores[i * KF + j][e], key + int(j * FN), about);
            }
        }
    }
}

// The new maximum of each row: what is taken off its scores, and the factor of what was summed so far.
void find_tops() {
    uint at = P_AT + own_row * P_STRIDE;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        SUMS most = scores[i * KF];
        [[unroll]] for (uint j = 1u; j < KF; j++) {
            [[unroll]] for (uint e = 0u; e < most.length(); e++) {
                most[e] = max(most[e], scores[i * KF + j][e]);
            }
        }
        coopMatStore(most, tiles, at + i * SUM_LEN, SUM_STRIDE, ROWS);
    }
    subgroup_meets();
    [[unroll]] for (uint o = 0u; o < OWN_ROWS; o++) {
        uint row = gl_SubgroupInvocationID + o * SUBGROUP;
        if (row < WM) {
            vec4 most = vec4(minus_infinity());
            [[unroll]] for (uint w = 0u; w < FN / 4u; w++) {
                most = max(most, uintBitsToFloat(tiles[at + row * SUM_STRIDE + w]));
            }
            float top = max(tops[o], max(max(most.x, most.y), max(most.z, most.w)));
            float center = top == minus_infinity() ? 0.0 : top;
            numbers[own_row + row] = center;
            numbers[BM + own_row + row] = exp2((tops[o] - center) * (MASK == 2u ? LOG2_E : 1.0));
            tops[o] = top;
        }
    }
    subgroup_meets();
}

// Scores to weights, which go to shared memory; the sums so far are rescaled.
void weigh_scores(bool guarded) {
    uint to = P_AT + own_row * P_STRIDE;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        SUMS center;
        SUMS by;
        coopMatLoad(center, numbers, own_row + i * FM, 0, COLUMNS);
        coopMatLoad(by, numbers, BM + own_row + i * FM, 0, COLUMNS);
        weights[i] = weights[i] * by;
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            SUMS w = scores[i * KF + j] - center;
            if (MASK == 2u) {
                w = w * LOG2_E;
            }
            [[unroll]] for (uint e = 0u; e < w.length(); e++) {
                w[e] = exp2(w[e]);
            }
            if (guarded) {
                [[unroll]] for (uint e = 0u; e < w.length(); e++) {
                    w[e] = scores[i * KF + j][e] == minus_infinity() ? -0.0 : w[e];
                }
            }
            weights[i] = weights[i] + w;
            coopMatStore(NARROW(w), tiles, to + i * FM * P_STRIDE + j * FN / 8u, P_STRIDE, ROWS);
        }
        [[unroll]] for (uint d = 0u; d < VF; d++) {
            sums[i * VF + d] = sums[i * VF + d] * by;
        }
    }
}

// Adds the staged values with the subgroup's weights.
void add_values() {
    LEFT left[RF];
    RIGHT values;
    uint from = P_AT + own_row * P_STRIDE;
    [[unroll]] for (uint s = 0u; s < BN / FK; s++) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            coopMatLoad(left[i], tiles, from + i * FM * P_STRIDE + s * FK / 8u, P_STRIDE, ROWS);
        }
        [[unroll]] for (uint d = 0u; d < VF; d++) {
            coopMatLoad(values, tiles, V_AT + s * FK * V_STRIDE + d * FN / 8u, V_STRIDE, ROWS);
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                sums[i * VF + d] = coopMatMulAdd(left[i], values, sums[i * VF + d]);
            }
        }
    }
}

uint half_at(uint at, uint element) {
    return (tiles[at + element / 8u][element % 8u / 2u] >> (element & 1u) * 16u) & 0xffffu;
}

// The sum of one row and column, of what the row sees.
float seen_sum(uint row, uint column) {
    float sum = 0.0;
    for (uint key = 0u; key < BN; key++) {
        uint w = half_at(P_AT + row * P_STRIDE, key);
        if (w != 0x8000u) {
            sum += ELEMENT_TO_F32(w) * ELEMENT_TO_F32(half_at(V_AT + key * V_STRIDE, column));
        }
    }
    return sum;
}

// As add_values where some values are not finite: the sums of a fragment through the place of the keys.
void add_seen_values() {
    uint to = gl_SubgroupID * SUM_LEN;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint d = 0u; d < VF; d++) {
            for (uint at = gl_SubgroupInvocationID; at < FM * FN / 4u; at += SUBGROUP) {
                uint row = at / (FN / 4u);
                uint column = at % (FN / 4u) * 4u;
                vec4 x;
                for (uint c = 0u; c < 4u; c++) {
                    x[c] = seen_sum(own_row + i * FM + row, d * FN + column + c);
                }
                tiles[to + row * SUM_STRIDE + column / 4u] = floatBitsToUint(x);
            }
            subgroup_meets();
            SUMS more;
            coopMatLoad(more, tiles, to, SUM_STRIDE, ROWS);
            sums[i * VF + d] = sums[i * VF + d] + more;
            subgroup_meets();
        }
    }
    barrier();
}

// The sum of the weights of each row, from the columns of its fragment.
void finish_weights() {
    uint at = P_AT + own_row * P_STRIDE;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        coopMatStore(weights[i], tiles, at + i * SUM_LEN, SUM_STRIDE, ROWS);
    }
    subgroup_meets();
    for (uint row = gl_SubgroupInvocationID; row < WM; row += SUBGROUP) {
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint w = 0u; w < FN / 4u; w++) {
            sum += uintBitsToFloat(tiles[at + row * SUM_STRIDE + w]);
        }
        numbers[own_row + row] = (sum.x + sum.y) + (sum.z + sum.w);
    }
    barrier();
}

uvec4 to_elements(vec4 a, vec4 b) {
    uvec4 low = uvec4(F32_TO_ELEMENT(a.x), F32_TO_ELEMENT(a.z), F32_TO_ELEMENT(b.x), F32_TO_ELEMENT(b.z));
    uvec4 high = uvec4(F32_TO_ELEMENT(a.y), F32_TO_ELEMENT(a.w), F32_TO_ELEMENT(b.y), F32_TO_ELEMENT(b.w));
    return low | high << 16;
}

// One strip of FM rows after the other.
void store_results() {
    uint mine = gl_SubgroupID * FM * Y_STRIDE;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint d = 0u; d < VF; d++) {
            coopMatStore(sums[i * VF + d], tiles, mine + d * FN / 4u, Y_STRIDE, ROWS);
        }
        subgroup_meets();
        for (uint at = gl_SubgroupInvocationID; at < FM * V_COLS; at += SUBGROUP) {
            uint local = own_row + i * FM + at / V_COLS;
            uint col = at % V_COLS;
            uint row = first_row + local;
            if (row < rows && col * 8u < p.value_dim) {
                uint from = mine + at / V_COLS * Y_STRIDE + col * 2u;
                float total = numbers[local];
                vec4 a = uintBitsToFloat(tiles[from]) / total;
                vec4 b = uintBitsToFloat(tiles[from + 1u]) / total;
                uvec4 x = total == 0.0 ? uvec4(0u) : to_elements(a, b);
                y[(row_of(row, 0u, p.y_batch, p.y_head, p.y_seq) >> 3) + col] = x;
            }
        }
        subgroup_meets();
    }
}

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    batch = flat_group / p.tiles / p.kv_heads;
    head = flat_group / p.tiles % p.kv_heads;
    first_row = (p.tiles - 1u - flat_group % p.tiles) * BM;
    rows = p.queries * p.group;
    own_row = gl_SubgroupID * WM;

    // The keys that some row sees, and those that all see.
    int n = keys_of(batch);
    ivec2 first_seen = seen_by(first_row, n);
    ivec2 last_seen = seen_by(min(first_row + BM, rows) - 1u, n);
    int end = last_seen.y;
    uint base_k = p.k_offset + batch * p.k_batch + head * p.k_head;
    uint base_v = p.v_offset + batch * p.v_batch + head * p.v_head;

    [[unroll]] for (uint i = 0u; i < RF; i++) {
        weights[i] = SUMS(0.0);
    }
    [[unroll]] for (uint i = 0u; i < RF * VF; i++) {
        sums[i] = SUMS(0.0);
    }
    [[unroll]] for (uint o = 0u; o < OWN_ROWS; o++) {
        tops[o] = minus_infinity();
    }
    load_queries(n);
    load_keys(base_k, first_seen.x, end);
    store_keys();
    uint step = 0u;
    for (int key = first_seen.x; key < end; key += int(BN)) {
        step++;
        bool on_edge = key < last_seen.x || key + int(BN) > min(first_seen.y, end);
        bool guarded = MASK != 0u || on_edge;
        if (KEY_MASK != 0u) {
            stage_penalties(key, end);
        }
        barrier();
        load_values(base_v, key, end);
        multiply_keys();
        scale_scores();
        if (KEY_MASK != 0u) {
            mask_keys();
        }
        if (KEY_MASK == 0u && (MASK != 0u || on_edge)) {
            mask_pairs(key);
        }
        find_tops();
        weigh_scores(guarded);
        store_values(guarded, step);
        barrier();
        bool is_special = guarded && special_step == step;
        if (is_special) {
            add_seen_values();
        }
        load_keys(base_k, key + int(BN), end);
        if (!is_special) {
            add_values();
        }
        store_keys();
    }
    barrier();
    finish_weights();
    store_results();
}
