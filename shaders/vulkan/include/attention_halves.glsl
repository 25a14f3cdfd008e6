// y = softmax(mask(cap(scale q k^T))) v of f32 operands by f16 cooperative matrices, as exact as sums of f32: each
// number x is s^-1 (high + low), where high is s x rounded to f16 and low what is left of it (Markidis et al.,
// "NVIDIA Tensor Core Programmability, Performance & Precision", 2018; Ootomo and Yokota, "Recovering single precision
// accuracy from Tensor Cores", 2022). A product is high high + high low + low high; low low is below 2^-22 of it and of
// either sign.
//
// attention_split.wgsl has made the pairs: of each batch entry and key head, rows in chunks of CHUNK, row by row the
// high halves and the low ones, then the chunk's scale s, a power of two. Rows of queries are those of tiles. A scale
// with all bits set is that of a chunk that halves do not hold as well as f32 does. Then nothing is made of the whole
// head, and `rest` says so to the kernel that comes after.
//
// How workgroups walk over keys, what centers are, and where things lie in fragments: attention_coop.glsl. Other than
// there, centers are whole numbers, so that scores lose nothing by them, and
// - values of a step may have another scale than those of the step before. The weights make up for it: they are powers
//   of two of scores, `lift` and less the center, of which sums of weights are counted without the lift.
// - Sums of matrices lose low bits at each addition (they are cut, not rounded). So products of a step are summed from
//   zero, those with low halves first, and added to the sums of f32 afterwards.
//
// PIECES 1: of bf16 operands the high halves are all there is. Weights are rounded to one as well.
//
// Constraints on constants: as there; CHUNK is a multiple of BN and of WM. Rows of the results are whole words.

#define ELEMENT float16_t
#ifndef PIECES
#define PIECES 2
#endif
#define BIAS_AT(at) uintBitsToFloat(mask[at])

#define LSE_AT 8
#define STATS_AT 8

#include "attention_setup.glsl"

layout(set = 0, binding = 7) writeonly buffer Rest { uint rest[]; };

// Rows with one scale, and the words that it takes.
const uint CHUNK = 32;
const uint SCALE_LEN = 8;

// In words of 16 bytes: 8 halves, or 4 sums. A fragment of sums has rows of SUM_STRIDE.
const uint K_COLS = PIECES * HEAD / 8;
const uint V_COLS = PIECES * VALUE / 8;
const uint K_STRIDE = K_COLS + 1;
const uint V_STRIDE = V_COLS + 1;
const uint P_STRIDE = PIECES * BN / 8 + 1;
const uint K_CHUNK = CHUNK * K_COLS + SCALE_LEN;
const uint V_CHUNK = CHUNK * V_COLS + SCALE_LEN;
// Results of a word.
const uint RESULT = 4;
// Fragments of a strip of results that go out together: all where they are many, for less code.
const uint YF = VF < 4 || VF > 8 ? VF : 4;
const uint Y_COLS = YF * FN / RESULT;
const uint Y_STRIDE = YF * FN / 4 + 1;
const uint SUM_STRIDE = FN / 4 + 1;
const uint SUM_LEN = FM * SUM_STRIDE;
// A step: keys, values, weights or maxima of each subgroup. At the end results.
const uint V_AT = BN * K_STRIDE;
const uint P_AT = V_AT + BN * V_STRIDE;
const uint P_ROWS = CONVERTS == 1 ? 0 : RF * FM * P_STRIDE;
const uint P_LEN = P_ROWS > RF * SUM_LEN ? P_ROWS : RF * SUM_LEN;
const uint STEP_LEN = P_AT + SUBGROUPS * P_LEN;
const uint Y_LEN = SUBGROUPS * FM * Y_STRIDE;
// What each row sees.
const uint ROW_AT = STEP_LEN > Y_LEN ? STEP_LEN : Y_LEN;

// What a score may exceed its center by, as a power of two; weights are 2^HEADROOM times greater as halves.
const float SLACK = 6.0;
const float HEADROOM = 9.0;
#define CENTER(x) ceil(x)
#define FACTOR factor

#include "attention_place.glsl"

// Products of halves to products.
float factor;
// The scale of the sums, and that of the queries.
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

// Four sums on their way out.
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

    // The keys that some row sees, and those that all see.
    int n = keys_of(batch);
    ivec2 first_seen = seen_by(first_row, n);
    ivec2 last_seen = seen_by(min(first_row + BM, rows) - 1u, n);
    int end = last_seen.y;
    // Steps lie within chunks.
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
        // The keys are there; nobody reads the values and penalties of the step before.
        barrier();
        load_values(key);
        if (KEY_MASK != 0u) {
            stage_penalties(key, end, step);
        }
        multiply_keys();
        store_values();
        // The values are there; nobody reads the keys.
        barrier();
        load_keys(key + int(BN));
        // A mask that the rows share may leave all keys of a step as they are.
        if (KEY_MASK != 0u && masked_step != step) {
            guarded = false;
        }
        float by = factor * UNIT;
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
