#version 460
// Flash decoding: y = softmax(mask(scale q k^T)) v of one query per batch entry, on cooperative
// matrices, in one pass over the keys.
//
// q, k, v and y are F16. Products, sums and the softmax are F32. Weights are rounded to F16 before
// the multiplication by the values. The query heads of one KV head are processed together as
// columns of fragments of FN; columns from GROUP on are unused.
//
// A workgroup processes a piece of PIECE keys of one batch entry and KV head, and each subgroup
// KEYS of them. A thread issues the loads of all its keys and values at the start. Through the
// shared memory of the subgroup, STAGED keys per step become left operands of the scores [keys,
// queries]. Values become left operands, in column order, of the sums [columns, queries]. The
// workgroup subtracts one common maximum per query from the scores, which needs a single barrier.
//
// With several pieces, each workgroup stores its sums, maximum and sum of weights in memory. The
// last workgroup of a head, found with a counter, combines them in order and resets the counter to
// 0. The counter's atomic operations make the stored data available to the last workgroup. Pieces
// without visible keys are skipped.
//
// The flat group is (piece * batch + batch entry) * KEY_HEADS + head.
//
// Constraints on constants: STAGED is a multiple of FM and FK, HEAD of FK, VALUE of FM. HEAD and
// VALUE are powers of two of at least 32, and GROUP is at most FN. Offsets and strides of q, k and
// v are multiples of 8, those of y multiples of 4. The last axis has unit stride.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model

#include "half.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // fragment size of the device
layout(constant_id = 3) const uint FN = 8;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint STEPS = 1; // staging steps per subgroup
layout(constant_id = 6) const uint HEAD = 128;
layout(constant_id = 7) const uint VALUE = 128;
layout(constant_id = 8) const uint GROUP = 4; // query heads per KV head
layout(constant_id = 9) const uint KEY_HEADS = 8;

layout(set = 0, binding = 0) uniform Params {
    uint q_offset;
    uint q_batch;
    uint q_head;
    uint k_offset;
    uint k_batch;
    uint k_head;
    uint k_seq;
    uint v_offset;
    uint v_batch;
    uint v_head;
    uint v_seq;
    uint y_batch;
    uint y_head;
    uint lens_offset;
    uint lens_stride;
    uint has_lens;
    uint window;
    uint keys;
    uint batch;
    uint pieces; // maximum number of pieces
    uint groups;
    float scale;
} p;

layout(set = 0, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 2) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 3) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 4) readonly buffer Lens { uint lens[]; };
layout(set = 0, binding = 5) writeonly buffer Y { uvec2 y[]; };
// Per piece: the sums of the columns by query head, then the maxima and the sums of the weights.
layout(set = 0, binding = 6) queuefamilycoherent buffer Sums { vec4 sums[]; };
layout(set = 0, binding = 7) queuefamilycoherent buffer Stats { vec2 stats[]; };
// Number of finished pieces per batch entry and KV head.
layout(set = 0, binding = 8) queuefamilycoherent buffer Counts { uint counts[]; };

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS = gl_CooperativeMatrixLayoutColumnMajor;

const uint STAGED = 16;
const uint SUBGROUPS = THREADS / SUBGROUP;
const uint KEYS = STAGED * STEPS;
const uint PIECE = KEYS * SUBGROUPS;

// Numbers of fragments: head dimension, value columns, staged keys as rows, staged keys as summed
// axis.
const uint HF = HEAD / FK;
const uint VF = VALUE / FM;
const uint KF = STAGED / FM;
const uint PF = STAGED / FK;

// Lengths in 16-byte words of 8 F16 or 4 F32 elements. Rows have one word of padding, so that the
// rows of a fragment are in different banks.
const uint K_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
// Loads of staged keys per thread, loads per row if a row exceeds a subgroup, and rows per load
// otherwise.
const uint K_LOADS = STAGED * K_COLS / SUBGROUP;
const uint V_LOADS = STAGED * V_COLS / SUBGROUP;
const uint K_TURNS = K_COLS > SUBGROUP ? K_COLS / SUBGROUP : 1;
const uint V_TURNS = V_COLS > SUBGROUP ? V_COLS / SUBGROUP : 1;
const uint K_ROWS = SUBGROUP > K_COLS ? SUBGROUP / K_COLS : 1;
const uint V_ROWS = SUBGROUP > V_COLS ? SUBGROUP / V_COLS : 1;
const uint Q_LOADS = (GROUP * K_COLS + THREADS - 1) / THREADS;
// Row pitches of sums, scores and weights; there is a row per query.
const uint SUM_STRIDE = VALUE / 4 + 1;
const uint SCORE_STRIDE = KEYS / 4 + 1;
const uint WEIGHT_STRIDE = KEYS / 8 + 1;
// Shared memory of a subgroup: keys, then scores, then values, then sums share one region. Weights,
// and later the fragment of their sums, use another region.
const uint STAGE_LEN = STAGED * (K_STRIDE > V_STRIDE ? K_STRIDE : V_STRIDE);
const uint OWN_LEN = STAGE_LEN > FN * SUM_STRIDE ? STAGE_LEN : FN * SUM_STRIDE;
const uint WEIGHT_LEN = FN * WEIGHT_STRIDE > FM * FN / 4 ? FN * WEIGHT_STRIDE : FM * FN / 4;
const uint WEIGHTS_AT = SUBGROUPS * OWN_LEN;
const uint QUERIES_AT = WEIGHTS_AT + SUBGROUPS * WEIGHT_LEN;
shared uvec4 tiles[QUERIES_AT + FN * K_STRIDE];
// Maximum score of each query, as an ordered integer.
shared int tops[GROUP];
shared uint is_last;

// A thread handles four keys of a query, then four columns of a query.
const uint KEY_QUADS = KEYS / 4;
const uint SCORES = (GROUP * KEY_QUADS + SUBGROUP - 1) / SUBGROUP;
const uint QUADS = VALUE / 4;

// Scores are in base-2 exponents, so that weights are powers of two.
const float LOG2_E = 1.44269504;
// Weights are scaled by 2^SCALED, so that few become subnormal in F16.
const float SCALED = 8.0;
// Pieces combined per iteration.
const uint AT_ONCE = 16;

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

int ordered(float x) {
    int bits = floatBitsToInt(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

float float_at(int key) { return intBitsToFloat(key < 0 ? key ^ 0x7fffffff : key); }

// Value subtracted from the scores, computed from their maximum.
float center_of(float top) { return top == minus_infinity() ? 0.0 : top; }

// Subgroup barrier: makes the subgroup's writes to shared memory visible to all its threads.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// Workgroup barrier for buffer and shared memory.
void workgroup_meets() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

// Position of the workgroup, the range of visible keys, and the first key of the subgroup.
uint batch;
uint head;
uint begin;
uint end;
uint first;
uint lane;
uint own_at; // offset of the subgroup's words

uvec4 keys[STEPS * K_LOADS];
uvec4 values[STEPS * V_LOADS];
SUMS sum[VF];
SUMS total;

// Row and column of a load, in a form with little arithmetic per load.
uint key_row(uint i) { return i / K_TURNS * K_ROWS + lane / K_COLS; }
uint key_column(uint i) { return i % K_TURNS * SUBGROUP + lane % K_COLS; }
uint value_row(uint i) { return i / V_TURNS * V_ROWS + lane / V_COLS; }
uint value_column(uint i) { return i % V_TURNS * SUBGROUP + lane % V_COLS; }

// Issues all loads, and stores the queries in shared memory. Unused query columns stay
// uninitialized.
void load() {
    uint local = gl_LocalInvocationIndex;
    uint q_at = (p.q_offset + batch * p.q_batch + head * GROUP * p.q_head) / 8u;
    uint k_at = (p.k_offset + batch * p.k_batch + head * p.k_head) / 8u;
    uint v_at = (p.v_offset + batch * p.v_batch + head * p.v_head) / 8u;
    uvec4 own[Q_LOADS];
    [[unroll]] for (uint i = 0u; i < Q_LOADS; i++) {
        uint at = min(i * THREADS + local, GROUP * K_COLS - 1u);
        own[i] = q[q_at + at / K_COLS * (p.q_head / 8u) + at % K_COLS];
    }
    [[unroll]] for (uint i = 0u; i < STEPS * K_LOADS; i++) {
        keys[i] = k[k_at + min(first + key_row(i), p.keys - 1u) * (p.k_seq / 8u) + key_column(i)];
    }
    [[unroll]] for (uint i = 0u; i < STEPS * V_LOADS; i++) {
        values[i] = v[v_at + min(first + value_row(i), p.keys - 1u) * (p.v_seq / 8u) + value_column(i)];
    }
    [[unroll]] for (uint i = 0u; i < Q_LOADS; i++) {
        uint at = i * THREADS + local;
        if (at < GROUP * K_COLS) {
            tiles[QUERIES_AT + at / K_COLS * K_STRIDE + at % K_COLS] = own[i];
        }
    }
    [[unroll]] for (uint query = local; query < GROUP; query += THREADS) {
        tops[query] = ordered(minus_infinity());
    }
}

// q k^T of the subgroup's keys, stored in shared memory.
void multiply_keys() {
    RIGHT queries[HF];
    [[unroll]] for (uint h = 0u; h < HF; h++) {
        coopMatLoad(queries[h], tiles, QUERIES_AT + h * FK / 8u, K_STRIDE, COLUMNS);
    }
    SUMS scores[STEPS * KF];
    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
        [[unroll]] for (uint i = 0u; i < K_LOADS; i++) {
            tiles[own_at + key_row(i) * K_STRIDE + key_column(i)] = keys[s * K_LOADS + i];
        }
        subgroup_meets();
        [[unroll]] for (uint f = 0u; f < KF; f++) {
            uint at = s * KF + f;
            scores[at] = SUMS(0.0);
            LEFT part;
            [[unroll]] for (uint h = 0u; h < HF; h++) {
                coopMatLoad(part, tiles, own_at + f * FM * K_STRIDE + h * FK / 8u, K_STRIDE, ROWS);
                scores[at] = coopMatMulAdd(part, queries[h], scores[at]);
            }
        }
        // After this barrier, all threads have read the keys.
        subgroup_meets();
    }
    [[unroll]] for (uint i = 0u; i < STEPS * KF; i++) {
        coopMatStore(scores[i], tiles, own_at + i * FM / 4u, SCORE_STRIDE, COLUMNS);
    }
    subgroup_meets();
}

// Converts products to weights, relative to the maximum of the workgroup.
void weigh() {
    uint to = gl_SubgroupID * WEIGHT_LEN + WEIGHTS_AT;
    vec4 scores[SCORES];
    [[unroll]] for (uint i = 0u; i < SCORES; i++) {
        uint at = i * SUBGROUP + lane;
        if (at < GROUP * KEY_QUADS) {
            uint query = at / KEY_QUADS;
            uint quad = at % KEY_QUADS;
            vec4 x = uintBitsToFloat(tiles[own_at + query * SCORE_STRIDE + quad]) * (p.scale * LOG2_E);
            uvec4 key = first + quad * 4u + uvec4(0u, 1u, 2u, 3u);
            scores[i] = mix(x, vec4(minus_infinity()), greaterThanEqual(key - begin, uvec4(end - begin)));
            float most = max(max(scores[i].x, scores[i].y), max(scores[i].z, scores[i].w));
            atomicMax(tops[query], ordered(most));
        }
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < SCORES; i++) {
        uint at = i * SUBGROUP + lane;
        if (at < GROUP * KEY_QUADS) {
            uint query = at / KEY_QUADS;
            uint quad = at % KEY_QUADS;
            vec4 w = exp2(scores[i] - (center_of(float_at(tops[query])) - SCALED));
            uvec2 bits = uvec2(packHalf2x16(w.xy), packHalf2x16(w.zw));
            uint word = to + query * WEIGHT_STRIDE + quad / 2u;
            if (quad % 2u == 0u) {
                tiles[word].xy = bits;
            } else {
                tiles[word].zw = bits;
            }
        }
    }
}

// Adds the subgroup's values times their weights, and the weights. Masked values may be NaN, so
// they are replaced by 0.
void add_values() {
    uint own = gl_SubgroupID * WEIGHT_LEN + WEIGHTS_AT;
    total = SUMS(0.0);
    [[unroll]] for (uint c = 0u; c < VF; c++) {
        sum[c] = SUMS(0.0);
    }
    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
        [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
            bool is_seen = first + s * STAGED + value_row(i) - begin < end - begin;
            uvec4 x = values[s * V_LOADS + i];
            tiles[own_at + value_row(i) * V_STRIDE + value_column(i)] = is_seen ? x : uvec4(0u);
        }
        // After this barrier, the staged values and the weights of the subgroup are complete.
        subgroup_meets();
        [[unroll]] for (uint f = 0u; f < PF; f++) {
            RIGHT weights;
            LEFT part;
            coopMatLoad(weights, tiles, own + (s * STAGED + f * FK) / 8u, WEIGHT_STRIDE, COLUMNS);
            total = coopMatMulAdd(LEFT(1.0), weights, total);
            [[unroll]] for (uint c = 0u; c < VF; c++) {
                coopMatLoad(part, tiles, own_at + f * FK * V_STRIDE + c * FM / 8u, V_STRIDE, COLUMNS);
                sum[c] = coopMatMulAdd(part, weights, sum[c]);
            }
        }
        subgroup_meets();
    }
    coopMatStore(total, tiles, own, FM / 4u, COLUMNS);
    [[unroll]] for (uint c = 0u; c < VF; c++) {
        coopMatStore(sum[c], tiles, own_at + c * FM / 4u, SUM_STRIDE, COLUMNS);
    }
}

// Four columns of a query, summed over all subgroups.
vec4 sum_of(uint query, uint quad) {
    vec4 all = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
        all += uintBitsToFloat(tiles[s * OWN_LEN + query * SUM_STRIDE + quad]);
    }
    return all;
}

float weights_of(uint query) {
    float all = 0.0;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
        all += uintBitsToFloat(tiles[WEIGHTS_AT + s * WEIGHT_LEN + query * (FM / 4u)].x);
    }
    return all;
}

void store(uint query, uint quad, vec4 all, float weights) {
    vec4 x = weights == 0.0 ? vec4(0.0) : all / weights;
    uvec4 h = uvec4(f32_to_f16(x.x), f32_to_f16(x.y), f32_to_f16(x.z), f32_to_f16(x.w));
    uint at = batch * p.y_batch + (head * GROUP + query) * p.y_head;
    y[at / 4u + quad] = h.xz | h.yw << 16;
}

// Combines the pieces from `at` on.
void put_together(uint at, uint count) {
    [[unroll]] for (uint own = gl_LocalInvocationIndex; own < GROUP * QUADS; own += THREADS) {
        uint query = own / QUADS;
        float top = minus_infinity();
        float weights = 0.0;
        vec4 all = vec4(0.0);
        for (uint i = 0u; i < count; i += AT_ONCE) {
            vec4 x[AT_ONCE];
            vec2 about[AT_ONCE];
            float before = top;
            [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) {
                uint piece = at + min(i + j, count - 1u);
                about[j] = stats[piece * GROUP + query];
                x[j] = sums[piece * (GROUP * QUADS) + own];
            }
            [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) {
                top = max(top, about[j].x);
            }
            float center = center_of(top);
            float by = exp2(before - center);
            all *= by;
            weights *= by;
            [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) {
                by = i + j < count ? exp2(about[j].x - center) : 0.0;
                all += by * x[j];
                weights += by * about[j].y;
            }
        }
        store(query, own % QUADS, all, weights);
    }
}

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    head = flat_group % KEY_HEADS;
    uint piece = flat_group / KEY_HEADS;
    batch = 0u;
    // Skips the division for one batch entry: divisions by values unknown to the compiler are slow.
    if (p.batch != 1u) {
        batch = piece % p.batch;
        piece /= p.batch;
    }
    end = p.keys;
    if (p.has_lens != 0u) {
        end = uint(clamp(int(lens[p.lens_offset + batch * p.lens_stride]), 0, int(p.keys)));
    }
    begin = end - min(end, p.window);
    uint from = begin / PIECE;
    uint count = (end + PIECE - 1u) / PIECE - from;
    uint local = gl_LocalInvocationIndex;
    // If no key is visible, the first workgroup writes the result.
    if (end == begin && piece == 0u) {
        for (uint own = local; own < GROUP * QUADS; own += THREADS) {
            store(own / QUADS, own % QUADS, vec4(0.0), 0.0);
        }
    }
    if (end == begin || piece - from >= count) {
        return;
    }
    lane = gl_SubgroupInvocationID;
    first = piece * PIECE + gl_SubgroupID * KEYS;
    own_at = gl_SubgroupID * OWN_LEN;
    load();
    barrier();
    multiply_keys();
    weigh();
    add_values();
    barrier();

    uint entry = batch * KEY_HEADS + head;
    uint place = entry * p.pieces + piece;
    [[unroll]] for (uint own = local; own < GROUP * QUADS; own += THREADS) {
        uint query = own / QUADS;
        vec4 all = sum_of(query, own % QUADS);
        if (count == 1u) {
            store(query, own % QUADS, all, weights_of(query));
        } else {
            sums[place * (GROUP * QUADS) + own] = all;
            if (own % QUADS == 0u) {
                stats[place * GROUP + query] = vec2(float_at(tops[query]), weights_of(query));
            }
        }
    }
    if (count == 1u) {
        return;
    }
    workgroup_meets();
    if (local == 0u) {
        uint before = atomicAdd(counts[entry], 1u, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer,
            gl_SemanticsAcquireRelease);
        is_last = uint(before == count - 1u);
        if (before == count - 1u) {
            atomicStore(counts[entry], 0u, gl_ScopeQueueFamily, 0, gl_SemanticsRelaxed);
        }
    }
    workgroup_meets();
    if (is_last != 0u) {
        put_together(entry * p.pieces + from, count);
    }
}
