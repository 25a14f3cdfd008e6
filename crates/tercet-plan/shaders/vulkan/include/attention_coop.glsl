// FlashAttention on cooperative matrices for many queries (Dao et al., 2022): y =
// softmax(mask(softcap(scale q k^T))) v. The scores are never stored in global memory.
//
// q, k, v, a bias and y are ELEMENT (F16). Products, sums and the softmax are F32. Weights are
// rounded to ELEMENT before the multiplication by the values. The query heads of one KV head are
// processed together: row r of a KV head is query r / group of query head head * group + r % group.
//
// A workgroup processes BM rows of one batch entry and KV head, and a subgroup WM of them. The
// workgroup iterates over the keys that any of these rows attends to, BN per step. K and V are
// staged in shared memory as rows of 16-byte words, with one word of padding per row against bank
// conflicts. Queries, scores and sums stay in the subgroup's fragments. The values are loaded into
// registers during q k^T, and the next keys during the multiplication by the values.
//
// Weights are powers of two of the scores minus the row's center. The center is the row maximum at
// the time of its last update. If a score exceeds its center by SLACK, the whole subgroup updates
// its centers, which is rare after the first step. Weights are at most 2^SLACK, so nothing
// overflows, and most steps need no rescaling.
//
// The register layout of a fragment is unknown, but the same for all accumulators. The kernel is
// therefore written as follows.
// - The maximum of a row over the fragments of a step is computed element by element and compared
//   with the center in this form. Only an update of the centers moves one fragment per FM rows
//   through shared memory.
// - A per-row number, such as the center, becomes a fragment by a load with stride 0.
// - Elements of masked steps find their row and column in fragments of index numbers.
// - Sums of weights stay one fragment per FM rows, whose columns are added at the end.
// - Weights become left operands through shared memory, or by a conversion if the device CONVERTS.
//
// A masked pair has the score -infinity and the weight -0, which no exponential yields. Values that
// no row attends to are staged as 0. If a value is NaN or infinite and masked for some rows, the
// values of the step are added one by one, only to the rows that attend to them.
//
// attention_order.glsl defines the order of workgroups. Workgroups that use the same keys run close
// together in time, so that they share cached keys.
//
// Constraints on constants: FK and FN are multiples of 8; BM of WM, WM of FM, BN of FN and FK, HEAD
// of FK, VALUE of FN. BN is at least 2 FN. FK equals FN if CONVERTS. Offsets, strides, head_dim and
// value_dim are multiples of 8. The last axis has unit stride; bindings are 16-byte aligned.

#include "attention_setup.glsl"

// Results per word: split-KV stores floats.
#if IN_PARTS
const uint RESULT = 4;
#else
const uint RESULT = 8;
#endif
// Lengths in 16-byte words: 8 elements or 4 sums. A fragment of sums has rows of SUM_STRIDE words.
const uint K_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint P_STRIDE = BN / 8 + 1;
// Number of fragments of a strip that are stored together. If a strip has more than 8, all are
// stored together, which keeps the code short.
const uint YF = VF < 4 || VF > 8 ? VF : 4;
const uint Y_COLS = YF * FN / RESULT;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint SUM_STRIDE = FN / 4 + 1;
const uint SUM_LEN = FM * SUM_STRIDE;
// Shared memory of a step: keys, or a fragment of sums per subgroup; values; weights or maxima per
// subgroup.
const uint K_LEN = BN * K_STRIDE > SUBGROUPS * SUM_LEN ? BN * K_STRIDE : SUBGROUPS * SUM_LEN;
const uint V_AT = K_LEN;
const uint P_AT = V_AT + BN * V_STRIDE;
const uint P_STRIPS = CONVERTS == 1 ? 1 : RF;
const uint P_ROWS = P_STRIPS * FM * P_STRIDE;
const uint P_LEN = P_ROWS > RF * SUM_LEN ? P_ROWS : RF * SUM_LEN;
const uint STEP_LEN = P_AT + SUBGROUPS * P_LEN;
// The memory of the steps also contains the queries at the start and the results at the end.
const uint Q_LEN = BM * K_STRIDE;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
const uint ENDS_LEN = Q_LEN > Y_LEN ? Q_LEN : Y_LEN;
// Visible key ranges of the rows.
const uint ROW_AT = STEP_LEN > ENDS_LEN ? STEP_LEN : ENDS_LEN;

// Limit by which a score may exceed its row's center, as a base-2 exponent.
const float SLACK = 8.0;
#define CENTER(x) (x)
#define FACTOR abs(p.scale)

#include "attention_place.glsl"

const uint K_LOADS = (BN * K_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
const uint LOADS = K_LOADS > V_LOADS ? K_LOADS : V_LOADS;

LEFT queries[RF * HF];
SUMS scores[RF * KF];
SUMS centers[RF];
LEFT left[RF];
SUMS weights[RF];
SUMS sums[RF * VF];

#include "attention_parts.glsl"
#include "attention_tiles.glsl"
#include "attention_masks.glsl"
#include "attention_centers.glsl"
#include "attention_weights.glsl"

#if IN_PARTS
// Packs four results.
uvec4 results_of(uint from, float total) {
    return floatBitsToUint(uintBitsToFloat(tiles[from]) / total);
}
#else
#include "to_elements.glsl"

// Packs eight results.
uvec4 results_of(uint from, float total) {
    return to_elements(uintBitsToFloat(tiles[from]) / total, uintBitsToFloat(tiles[from + 1u]) / total);
}
#endif

#include "attention_results.glsl"

#if KEEPS_LSE || IN_PARTS
#include "attention_kept.glsl"
#endif

// q k^T of the subgroup's queries and the staged keys.
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

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    take_place(flat_group);

    // The keys that at least one row attends to, and those that all rows attend to.
    int n = keys_of(batch);
    ivec2 first_seen = seen_by(first_row, n);
    ivec2 last_seen = seen_by(min(first_row + BM, rows) - 1u, n);
    int first = first_seen.x;
    int end = last_seen.y;
#if IN_PARTS
    take_part(first, end);
#endif
    uint base_k = p.k_offset + batch * p.k_batch + head * p.k_head;
    uint base_v = p.v_offset + batch * p.v_batch + head * p.v_head;

    // Keys and queries are loaded together.
    load_keys(base_k, p.k_seq, first, end);
    load_queries(n);
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        centers[i] = SUMS(LEAST);
        weights[i] = SUMS(0.0);
    }
    [[unroll]] for (uint i = 0u; i < RF * VF; i++) {
        sums[i] = SUMS(0.0);
    }
    store_keys();
    uint step = 0u;
    for (int key = first; key < end; key += int(BN)) {
        step++;
        bool on_edge = key < last_seen.x || key + int(BN) > min(first_seen.y, end);
        bool guarded = MASK != 0u || on_edge;
        // The keys are staged; all threads have read the values and mask terms of the previous
        // step.
        barrier();
        load_values(base_v, p.v_seq, key, end);
        if (KEY_MASK != 0u) {
            stage_penalties(key, end, step);
        }
        multiply_keys();
        store_values(guarded, step);
        // The values are staged; all threads have read the keys.
        barrier();
        load_keys(base_k, p.k_seq, key + int(BN), end);
        // A mask shared by all rows may leave all keys of a step visible.
        if (KEY_MASK != 0u && masked_step != step) {
            guarded = false;
        }
        float by = FACTOR * UNIT;
        // With a bias, centers are in units of scores.
        if (CAPPED != 0u || MASK == 2u || guarded) {
            scale_scores();
            by = 1.0;
        }
        if (guarded && KEY_MASK != 0u) {
            mask_keys();
        } else if (guarded) {
            mask_pairs(key);
        }
        raise_centers(by, 0.0);
        if (guarded && special_step == step) {
            add_seen_values(by, uint(min(end - key, int(BN))));
        } else if (guarded) {
            add_values(by, true);
        } else {
            add_values(by, false);
        }
        store_keys();
    }
    barrier();
#if KEEPS_LSE
    keep_centers();
    finish_weights();
    store_lse();
#elif IN_PARTS
    keep_centers();
    finish_weights();
    store_stats();
#else
    finish_weights();
#endif
    store_results();
}
