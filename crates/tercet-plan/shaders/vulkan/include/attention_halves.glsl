// FlashAttention in split F16: y = softmax(mask(softcap(scale q k^T))) v of F32 operands on F16
// cooperative matrices, with the accuracy of F32 sums. Each number x is s^-1 (high + low). `high`
// is s x rounded to F16 and `low` is the remainder (Markidis et al., "NVIDIA Tensor Core
// Programmability, Performance & Precision", 2018; Ootomo and Yokota, "Recovering single precision
// accuracy from Tensor Cores", 2022). A product is high high + high low + low high. The omitted
// product low low is below 2^-22 of the full product, with either sign.
//
// attention_split.wgsl converts the operands. For each batch entry and KV head, that kernel stores
// chunks of CHUNK rows. A chunk has the high and the low halves of each row, then its scale s, a
// power of two. The query rows of a KV head have the same order as in the tiles of this kernel. A
// scale with all bits set marks a chunk that split F16 represents less precisely than F32. The
// kernel then skips the whole head and flags it in `rest`, and a fallback kernel computes it.
//
// attention_coop.glsl describes the iteration over keys, the centers and the fragments. This kernel
// differs from attention_coop.glsl in three points. Centers are integers, so that subtracting them
// from scores is exact.
// - The values of each step may have a different scale, which the weights compensate: they are
//   powers of two of score plus `lift` minus center. Sums of weights exclude `lift`.
// - Matrix units truncate each addition. The products of a step are therefore summed from zero,
//   those with low halves first, and then added to the F32 sums.
//
// With PIECES = 1, operands are BF16 and have only high halves. Weights are then rounded to one F16
// number as well.
//
// Constraints on constants: those of attention_coop.glsl. CHUNK is a multiple of BN and of WM.
// Result rows are multiples of a word.

#define ELEMENT float16_t
#ifndef PIECES
#define PIECES 2
#endif
#define BIAS_AT(at) uintBitsToFloat(mask[at])

#define LSE_AT 8
#define STATS_AT 8

#include "attention_setup.glsl"

layout(set = 0, binding = 7) writeonly buffer Rest { uint rest[]; };

// Rows that share a scale, and words of that scale.
const uint CHUNK = 32;
const uint SCALE_LEN = 8;

// Lengths in 16-byte words: 8 halves or 4 sums. A fragment of sums has rows of SUM_STRIDE words.
const uint K_COLS = PIECES * HEAD / 8;
const uint V_COLS = PIECES * VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint P_STRIDE = PIECES * BN / 8 + 1;
const uint K_CHUNK = CHUNK * K_COLS + SCALE_LEN;
const uint V_CHUNK = CHUNK * V_COLS + SCALE_LEN;
// Results per word.
const uint RESULT = 4;
// Number of fragments of a strip that are stored together. If a strip has more than 8, all are
// stored together, which keeps the code short.
const uint YF = VF < 4 || VF > 8 ? VF : 4;
const uint Y_COLS = YF * FN / RESULT;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint SUM_STRIDE = FN / 4 + 1;
const uint SUM_LEN = FM * SUM_STRIDE;
// Shared memory of a step: keys, values, weights or maxima per subgroup. At the end, the same
// memory stores results.
const uint V_AT = BN * K_STRIDE;
const uint P_AT = V_AT + BN * V_STRIDE;
const uint P_ROWS = CONVERTS == 1 ? 0 : RF * FM * P_STRIDE;
const uint P_LEN = P_ROWS > RF * SUM_LEN ? P_ROWS : RF * SUM_LEN;
const uint STEP_LEN = P_AT + SUBGROUPS * P_LEN;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
// Visible key ranges of the rows.
const uint ROW_AT = STEP_LEN > Y_LEN ? STEP_LEN : Y_LEN;

// Limit by which a score may exceed its row's center, as a base-2 exponent. In F16, weights are
// additionally scaled by 2^HEADROOM.
const float SLACK = 6.0;
const float HEADROOM = 9.0;
#define CENTER(x) ceil(x)
#define FACTOR factor

#include "attention_place.glsl"

// Factor from products of halves to scores.
float factor;
// Scale of the sums, and scale of the queries.
float sum_scale;
float query_scale;

shared uint is_unfit;
shared uint least_scale;

LEFT queries_high[RF * HF];
#if PIECES == 2
LEFT queries_low[RF * HF];
#endif
SUMS scores[RF * KF];
SUMS centers[RF];
SUMS weights[RF];
SUMS sums[RF * VF];

#include "attention_parts.glsl"
#include "attention_pairs.glsl"
#include "attention_masks.glsl"
#include "attention_centers.glsl"
#include "attention_pair_products.glsl"

// Packs four results.
uvec4 results_of(uint from, float total) {
    return floatBitsToUint(uintBitsToFloat(tiles[from]) / total / (sum_scale * exp2(HEADROOM)));
}

#include "attention_results.glsl"
#if KEEPS_LSE || IN_PARTS
#include "attention_kept.glsl"
#endif

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
    int end = last_seen.y;
    // Steps must not cross chunks.
    int first = first_seen.x / int(BN) * int(BN);
#if IN_PARTS
    take_part(first, end);
#endif

    stage_rows(n);
    if (!take_scales()) {
        return;
    }
    load_queries();
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        centers[i] = SUMS(LEAST);
        weights[i] = SUMS(0.0);
    }
    [[unroll]] for (uint i = 0u; i < RF * VF; i++) {
        sums[i] = SUMS(0.0);
    }
    load_keys(first);
    store_keys();
    uint step = 0u;
    for (int key = first; key < end; key += int(BN)) {
        step++;
        bool on_edge = key < last_seen.x || key + int(BN) > min(first_seen.y, end);
        bool guarded = MASK != 0u || on_edge;
        factor = abs(p.scale) / (query_scale * key_scale);
        // The keys are staged; all threads have read the values and mask terms of the previous
        // step.
        barrier();
        load_values(key);
        if (KEY_MASK != 0u) {
            stage_penalties(key, end, step);
        }
        multiply_keys();
        store_values();
        // The values are staged; all threads have read the keys.
        barrier();
        load_keys(key + int(BN));
        // A mask shared by all rows may leave all keys of a step visible.
        if (KEY_MASK != 0u && masked_step != step) {
            guarded = false;
        }
        float by = factor * UNIT;
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
        float lift = log2(sum_scale / value_scale);
        lift = floor(lift + 0.5);
        raise_centers(by, lift / POWER);
        add_values(by, lift);
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
