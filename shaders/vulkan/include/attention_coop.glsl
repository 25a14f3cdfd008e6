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
// scores and sums stay in the fragments of the subgroup. While the scores are made, the loads of the values are
// under way into registers; while the values are weighed, those of the next keys.
//
// Weights are powers of two of scores less the center of their row. It is the greatest score only when it was
// set: it follows when some score exceeds it by SLACK, for the whole subgroup at once, which is seldom after
// the first step. Weights are at most 2^SLACK, so nothing overflows, and sums need no rescaling meanwhile.
//
// Which element of a fragment lies where is not known, but the same for all accumulators. So:
// - The maximum of a row over the fragments of a step is taken element by element, and compared so with the
//   center. Where that must follow, one fragment for each FM rows goes through shared memory.
// - A number of each row, such as its center, becomes a fragment by a load with a stride of 0.
// - Elements of masked steps find their row and column by fragments of numbers.
// - Sums of weights stay one fragment for each FM rows, whose columns are added at the end.
// - Weights become left factors by a trip through shared memory, or by a conversion where the device CONVERTS.
//
// A pair that is not seen has the score -infinity and the weight -0, which no exponential gives. Values
// that no row sees are staged as 0. Where a value is NaN or infinite and some rows do not see it, the
// step's values are weighed one by one, and only where they are seen.
//
// The order of workgroups: attention_order.glsl. Groups side by side share keys, or the next of the same head do.
//
// Constraints on constants: FK and FN multiples of 8; BM of WM, WM of FM, BN of FN and FK, HEAD of FK,
// VALUE of FN; BN at least 2 FN; FK is FN where CONVERTS. Offsets and strides are multiples of 8, head_dim and
// value_dim as well, elements are 1 apart along the last axis, bindings at 16 bytes.

#include "attention_setup.glsl"

// Results of a word: those of parts are floats.
#if IN_PARTS
const uint RESULT = 4;
#else
const uint RESULT = 8;
#endif
// In words of 16 bytes: 8 elements, or 4 sums. A fragment of sums has rows of SUM_STRIDE.
const uint K_COLS = HEAD / 8;
const uint V_COLS = VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint P_STRIDE = BN / 8 + 1;
// Fragments of a strip of results that go out together: all where they are many, for less code.
const uint YF = VF < 4 || VF > 8 ? VF : 4;
const uint Y_COLS = YF * FN / RESULT;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint SUM_STRIDE = FN / 4 + 1;
const uint SUM_LEN = FM * SUM_STRIDE;
// A step: keys, or a fragment of sums for each subgroup; values; weights of each subgroup, or its maxima.
const uint K_LEN = BN * K_STRIDE > SUBGROUPS * SUM_LEN ? BN * K_STRIDE : SUBGROUPS * SUM_LEN;
const uint V_AT = K_LEN;
const uint P_AT = V_AT + BN * V_STRIDE;
const uint P_STRIPS = CONVERTS == 1 ? 1 : RF;
const uint P_ROWS = P_STRIPS * FM * P_STRIDE;
const uint P_LEN = P_ROWS > RF * SUM_LEN ? P_ROWS : RF * SUM_LEN;
const uint STEP_LEN = P_AT + SUBGROUPS * P_LEN;
// At the start the queries are there, at the end results.
const uint Q_LEN = BM * K_STRIDE;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
const uint ENDS_LEN = Q_LEN > Y_LEN ? Q_LEN : Y_LEN;
// What each row sees.
const uint ROW_AT = STEP_LEN > ENDS_LEN ? STEP_LEN : ENDS_LEN;

// What a score may exceed its center by, as a power of two.
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
// Four sums on their way out.
uvec4 results_of(uint from, float total) {
    return floatBitsToUint(uintBitsToFloat(tiles[from]) / total);
}
#else
#include "to_elements.glsl"

// Eight sums on their way out.
uvec4 results_of(uint from, float total) {
    return to_elements(uintBitsToFloat(tiles[from]) / total, uintBitsToFloat(tiles[from + 1u]) / total);
}
#endif

#include "attention_results.glsl"

#if KEEPS_LSE || IN_PARTS
#include "attention_kept.glsl"
#endif

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

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    take_place(flat_group);

    // The keys that some row sees, and those that all see.
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

    // Keys and queries are under way together.
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
        // The keys are there; nobody reads the values and penalties of the step before.
        barrier();
        load_values(base_v, p.v_seq, key, end);
        if (KEY_MASK != 0u) {
            stage_penalties(key, end, step);
        }
        multiply_keys();
        store_values(guarded, step);
        // The values are there; nobody reads the keys.
        barrier();
        load_keys(base_k, p.k_seq, key + int(BN), end);
        // A mask that the rows share may leave all keys of a step as they are.
        if (KEY_MASK != 0u && masked_step != step) {
            guarded = false;
        }
        float by = FACTOR * UNIT;
        // Centers of biased scores are scores.
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
