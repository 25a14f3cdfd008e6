#version 460
// FlashAttention on register fragments: y = softmax(scale q k^T) v of F16 heads of 64 elements (Dao
// et al., 2022). Threads fill the matrix fragments directly from global memory. The kernel needs
// neither shared memory nor barriers.
//
// Filling fragments requires a known register layout, which `fragment_layout.rs` probes. Lane l
// owns row or column g = l / 4 and the elements of t = l % 4. A subgroup processes WM rows in
// strips of 16. The subgroup iterates over the keys that any of these rows attends to, 16 per step.
// Subgroups of a workgroup share keys and values through the L1 cache. Products, sums and the
// softmax are F32. Weights are rounded to F16 before the multiplication by the values. The query
// heads of one KV head are processed together: row r is query r / group of query head head * group
// + r % group.
//
// Each load fetches 16 bytes of a row:
// - The sum over the head dimension may use any order. The four elements of a lane in two fragments
//   are therefore 8 adjacent elements, in queries and in keys.
// - The scores of two fragments of 8 keys become, as weights, one left fragment of 16 keys. Columns
//   2 c and 2 c + 1 of a fragment are its keys c and c + 4. A lane then owns the keys t, t + 4, t +
//   8 and t + 12 of the step.
// - Column g of value fragment f is element 8 g + f. A lane then loads 8 adjacent elements of each
//   of its four keys, and pairs them over keys. The results of a lane are 16 adjacent elements of
//   each of its rows: elements 16 t + f and 16 t + 8 + f.
//
// Weights are powers of two of the scores minus the row's center. If a score exceeds the center by
// SLACK, the whole subgroup updates its centers (see attention_coop.glsl). Most steps need neither
// an update nor a mask and use a shorter code path. A masked pair has the weight -0, which no
// exponential yields. If a value is NaN or infinite and masked for some row, the values of the step
// are added key by key, only to the rows that attend to them.
//
// Register use limits the number of resident subgroups, and so the latency hiding. Keys are
// therefore prefetched one step ahead, and values at the start of their step.
//
// Queries, keys and values may be stored in panels of 32 columns, as gemm_laid_f16.comp writes
// them. half_stride is the distance of the two halves of a head, 32 for contiguous heads. Results
// may be written in panels.
//
// attention_order.glsl defines the order of workgroups.
//
// Constraints: no mask operand, only key ranges; no softcap; HEAD and VALUE 64; subgroups of 32; FM
// 16, FN 8, FK 16; BN 16; WM a multiple of 16. Offsets and strides are multiples of 8; the last
// axis has unit stride; bindings are 16-byte aligned.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define KEEPS_LSE 0
#define IN_PARTS 0
#define PANELS
#include "attention_f16.glsl"
#include "attention_setup.glsl"
#include "attention_seen.glsl"

uint batch;
uint head;

#include "attention_order.glsl"
#include "attention_row.glsl"

const float LOG2_E = 1.44269504;
// Limit by which a score may exceed its row's center, as a base-2 exponent, and the initial center.
const float SLACK = 8.0;
const float LEAST = -3.40282347e38;

// Strips of rows; groups of 32 elements of a head; fragments of 8 keys; fragments of 8 value
// columns.
const uint STRIPS = WM / 16u;
const uint BLOCKS = HEAD / 32u;
const uint KEYS = 16u;
const uint KEY_PARTS = 2u;
const uint COLUMNS_OF_VALUES = VALUE / 8u;

// Fragments of a strip are contiguous. A lane stores the centers and its partial sums of weights
// for rows g and g + 8 of each strip. Arrays are flat because compilers may not unroll a loop
// nested in two others; the arrays that it indexes would then be in memory instead of registers.
const uint PARTS = 2u * BLOCKS;
const uint ROWS_OF_LANE = 2u * STRIPS;
LEFT queries[STRIPS * PARTS];
SUMS scores[STRIPS * KEY_PARTS];
SUMS sums[STRIPS * COLUMNS_OF_VALUES];
float centers[ROWS_OF_LANE];
float totals[ROWS_OF_LANE];
// Operands of a step: 16-byte words of this lane's key in each fragment, and of its four values.
uvec4 keys[KEY_PARTS * BLOCKS];
uvec4 values[4];
// Offsets of the next keys and values in 16-byte words, and of the last key.
uint at_k[KEY_PARTS];
uint at_v[4];
uint last_k;
uint last_v;

// The row or column g of fragments that this lane owns, and its element index t.
uint g;
uint t;
// Offset of the values of this head, in 16-byte words, and the end of the key range.
uint base_v;
int stop;

f16vec2 pair_of(uint word) { return unpackFloat2x16(word); }

// Fills a left fragment from registers, in the order of the hardware instruction.
LEFT left_of(uvec4 words) {
    LEFT left;
    [[unroll]] for (uint pair = 0u; pair < 2u; pair++) {
        [[unroll]] for (uint side = 0u; side < 2u; side++) {
            f16vec2 both = pair_of(words[2u * pair + side]);
            left[4u * side + 2u * pair] = both.x;
            left[4u * side + 2u * pair + 1u] = both.y;
        }
    }
    return left;
}

RIGHT right_of(uint first, uint second) {
    RIGHT right;
    right[0] = pair_of(first).x;
    right[1] = pair_of(first).y;
    right[2] = pair_of(second).x;
    right[3] = pair_of(second).y;
    return right;
}

// Maximum over the four lanes of a row. `sum_of_row` is the sum.
float greatest_of_row(float x) {
    x = max(x, subgroupShuffleXor(x, 1u));
    return max(x, subgroupShuffleXor(x, 2u));
}

float sum_of_row(float x) {
    x += subgroupShuffleXor(x, 1u);
    return x + subgroupShuffleXor(x, 2u);
}

// Distance of the two halves of a head, in 16-byte words.
uint half_apart() { return p.half_stride / 8u; }

// Loads the queries. Queries are negated if the scale is negative, so that a greater product is a
// greater score.
void load_queries(uint first_row, uint rows) {
    uint sign = p.scale < 0.0 ? 0x80008000u : 0u;
    uvec4 words[ROWS_OF_LANE * BLOCKS];
    [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
        uint row = min(first_row + 8u * r + g, rows - 1u);
        uint at = row_of(row, p.q_offset, p.q_batch, p.q_head, p.q_seq) / 8u + t;
        [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
            words[r * BLOCKS + b] = q[at + b * half_apart()] ^ sign;
        }
        centers[r] = LEAST;
        totals[r] = 0.0;
    }
    [[unroll]] for (uint x = 0u; x < STRIPS * BLOCKS; x++) {
        uint i = x / BLOCKS;
        uint b = x % BLOCKS;
        uvec4 low = words[2u * i * BLOCKS + b];
        uvec4 high = words[(2u * i + 1u) * BLOCKS + b];
        queries[i * PARTS + 2u * b] = left_of(uvec4(low.x, high.x, low.y, high.y));
        queries[i * PARTS + 2u * b + 1u] = left_of(uvec4(low.z, high.z, low.w, high.w));
    }
    [[unroll]] for (uint x = 0u; x < STRIPS * COLUMNS_OF_VALUES; x++) {
        sums[x] = SUMS(0.0);
    }
}

// Sets the offsets of this lane's words in the first step. Offsets of keys beyond the end are
// clamped to the last key.
void begin_keys(uint key, uint base_k) {
    uint k_apart = p.k_seq / 8u;
    uint v_apart = p.v_seq / 8u;
    uint k_words = base_k + t;
    uint v_words = base_v + g / 4u * half_apart() + g % 4u;
    last_k = k_words + uint(stop - 1) * k_apart;
    last_v = v_words + uint(stop - 1) * v_apart;
    [[unroll]] for (uint j = 0u; j < KEY_PARTS; j++) {
        at_k[j] = min(k_words + (key + 8u * j + g / 2u + g % 2u * 4u) * k_apart, last_k);
    }
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        at_v[r] = min(v_words + (key + t + 4u * r) * v_apart, last_v);
    }
}

void load_keys() {
    [[unroll]] for (uint j = 0u; j < KEY_PARTS; j++) {
        [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
            keys[j * BLOCKS + b] = k[at_k[j] + b * half_apart()];
        }
        at_k[j] = min(at_k[j] + KEYS * (p.k_seq / 8u), last_k);
    }
}

void load_values() {
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        values[r] = v[at_v[r]];
        at_v[r] = min(at_v[r] + KEYS * (p.v_seq / 8u), last_v);
    }
}

void multiply_keys() {
    [[unroll]] for (uint x = 0u; x < STRIPS * KEY_PARTS; x++) {
        scores[x] = SUMS(0.0);
    }
    [[unroll]] for (uint x = 0u; x < KEY_PARTS * PARTS; x++) {
        // Interleaves independent accumulators, because consecutive products of one accumulator
        // would stall.
        uint part = x / KEY_PARTS;
        uint j = x % KEY_PARTS;
        uvec4 words = keys[j * BLOCKS + part / 2u];
        RIGHT right = right_of(words[part % 2u * 2u], words[part % 2u * 2u + 1u]);
        [[unroll]] for (uint i = 0u; i < STRIPS; i++) {
            scores[i * KEY_PARTS + j] = coopMatMulAdd(queries[i * PARTS + part], right, scores[i * KEY_PARTS + j]);
        }
    }
}

// Sets the scores of masked pairs to -infinity.
void mask_scores(int key, uint first_row, uint rows, int n) {
    ivec2 seen[ROWS_OF_LANE];
    [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
        seen[r] = seen_by(min(first_row + 8u * r + g, rows - 1u), n);
    }
    [[unroll]] for (uint x = 0u; x < STRIPS * KEY_PARTS; x++) {
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            int at = key + int(x % KEY_PARTS * 8u + t + e % 2u * 4u);
            ivec2 bounds = seen[x / KEY_PARTS * 2u + e / 2u];
            bool is_seen = at >= bounds.x && at < bounds.y;
            scores[x][e] = is_seen ? scores[x][e] : uintBitsToFloat(0xff800000u);
        }
    }
}

// This lane's scores of a row.
vec4 scores_of(const uint r) {
    uint x = r / 2u * KEY_PARTS;
    uint e = r % 2u * 2u;
    return vec4(scores[x][e], scores[x][e + 1u], scores[x + 1u][e], scores[x + 1u][e + 1u]);
}

float greatest(vec4 own) { return max(max(own.x, own.y), max(own.z, own.w)); }

// True if a score of this lane exceeds its row's center by more than SLACK.
bool is_far(float by) {
    bool far = false;
    [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
        far = far || greatest(scores_of(r)) * by > centers[r] + SLACK;
    }
    return far;
}

// Updates the centers, and rescales the accumulators.
void raise_centers(float by) {
    float rescale[ROWS_OF_LANE];
    [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
        float center = max(centers[r], greatest_of_row(greatest(scores_of(r))) * by);
        rescale[r] = exp2(centers[r] - center);
        centers[r] = center;
        totals[r] *= rescale[r];
    }
    [[unroll]] for (uint x = 0u; x < STRIPS * COLUMNS_OF_VALUES; x++) {
        uint r = x / COLUMNS_OF_VALUES * 2u;
        sums[x][0] *= rescale[r];
        sums[x][1] *= rescale[r];
        sums[x][2] *= rescale[r + 1u];
        sums[x][3] *= rescale[r + 1u];
    }
}

// Converts scores to weights, and adds them to the row sums.
void weigh(float by, const bool guarded) {
    [[unroll]] for (uint x = 0u; x < STRIPS * KEY_PARTS; x++) {
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            uint r = x / KEY_PARTS * 2u + e / 2u;
            float score = scores[x][e];
            float w = exp2(fma(score, by, -centers[r]));
            if (guarded) {
                w = floatBitsToUint(score) == 0xff800000u ? -0.0 : w;
            }
            scores[x][e] = w;
            totals[r] += w;
        }
    }
}

void add_values() {
    LEFT weights[STRIPS];
    [[unroll]] for (uint i = 0u; i < STRIPS; i++) {
        vec4 low = scores_of(2u * i);
        vec4 high = scores_of(2u * i + 1u);
        weights[i] = left_of(uvec4(
            packHalf2x16(low.xy), packHalf2x16(high.xy), packHalf2x16(low.zw), packHalf2x16(high.zw)
        ));
    }
    [[unroll]] for (uint f = 0u; f < COLUMNS_OF_VALUES; f++) {
        RIGHT right;
        [[unroll]] for (uint r = 0u; r < 4u; r++) {
            right[r] = pair_of(values[r][f / 2u])[f % 2u];
        }
        [[unroll]] for (uint i = 0u; i < STRIPS; i++) {
            uint x = i * COLUMNS_OF_VALUES + f;
            sums[x] = coopMatMulAdd(weights[i], right, sums[x]);
        }
    }
}

// Variant of add_values for non-finite values: adds each key only to the rows that attend to it.
// The code is rarely executed, so it is not unrolled.
void add_seen_values(int key) {
    [[dont_unroll]] for (uint at = 0u; at < KEYS; at++) {
        int line = min(key + int(at), stop - 1);
        uint from = base_v + uint(line) * (p.v_seq / 8u) + t / 2u * half_apart() + t % 2u * 2u;
        uvec4 low = v[from];
        uvec4 high = v[from + 1u];
        uint weights[ROWS_OF_LANE];
        [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
            vec4 own = scores_of(r);
            vec2 both = at < 8u ? own.xy : own.zw;
            float weight = subgroupShuffle(at % 8u < 4u ? both.x : both.y, 4u * g + at % 4u);
            weights[r] = packHalf2x16(vec2(weight, 0.0));
        }
        [[unroll]] for (uint x = 0u; x < STRIPS * COLUMNS_OF_VALUES; x++) {
            uint f = x % COLUMNS_OF_VALUES;
            vec2 own = vec2(unpackHalf2x16(low[f / 2u])[f % 2u], unpackHalf2x16(high[f / 2u])[f % 2u]);
            [[unroll]] for (uint side = 0u; side < 2u; side++) {
                uint w = weights[x / COLUMNS_OF_VALUES * 2u + side];
                if (w != 0x8000u) {
                    sums[x][2u * side] += unpackHalf2x16(w).x * own.x;
                    sums[x][2u * side + 1u] += unpackHalf2x16(w).x * own.y;
                }
            }
        }
    }
}

// Eight results of a row, one from each fragment, starting at fragment `x`.
uvec4 results_of(const uint x, const uint e, float by) {
    return uvec4(
        packHalf2x16(vec2(sums[x][e], sums[x + 1u][e]) * by),
        packHalf2x16(vec2(sums[x + 2u][e], sums[x + 3u][e]) * by),
        packHalf2x16(vec2(sums[x + 4u][e], sums[x + 5u][e]) * by),
        packHalf2x16(vec2(sums[x + 6u][e], sums[x + 7u][e]) * by)
    );
}

// This lane's first word in a row of results.
uint place_of(uint row) {
    if (p.y_panels != 0u) {
        uint first = row_of(row, 0u, p.queries * 4u, p.rows * 8u, 4u);
        return first + t / 2u * (p.rows * 4u) + t % 2u * 2u;
    }
    return row_of(row, 0u, p.y_batch, p.y_head, p.y_seq) / 8u + 2u * t;
}

void store_results(uint first_row, uint rows) {
    [[unroll]] for (uint r = 0u; r < ROWS_OF_LANE; r++) {
        uint row = first_row + 8u * r + g;
        float total = sum_of_row(totals[r]);
        // A row without visible keys has total 0.
        float by = total == 0.0 ? 0.0 : 1.0 / total;
        uvec4 low = results_of(r / 2u * COLUMNS_OF_VALUES, r % 2u * 2u, by);
        uvec4 high = results_of(r / 2u * COLUMNS_OF_VALUES, r % 2u * 2u + 1u, by);
        if (row < rows) {
            uint at = place_of(row);
            y[at] = low;
            y[at + 1u] = high;
        }
    }
}

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.groups) {
        return;
    }
    uvec2 taken = take_tile(flat_group);
    batch = taken.x / p.kv_heads;
    head = taken.x % p.kv_heads;
    uint rows = p.queries * p.group;
    uint first_row = (p.tiles - 1u - taken.y) * BM + gl_SubgroupID * WM;
    if (first_row >= rows) {
        return;
    }
    g = gl_SubgroupInvocationID / 4u;
    t = gl_SubgroupInvocationID % 4u;
    uint base_k = (p.k_offset + batch * p.k_batch + head * p.k_head) / 8u;
    base_v = (p.v_offset + batch * p.v_batch + head * p.v_head) / 8u;
    int n = keys_of(batch);
    ivec2 first_seen = seen_by(first_row, n);
    ivec2 last_seen = seen_by(min(first_row + WM, rows) - 1u, n);
    stop = last_seen.y;
    int key = first_seen.x;
    if (key < stop) {
        begin_keys(uint(key), base_k);
        load_keys();
    }
    load_queries(first_row, rows);
    float by = abs(p.scale) * LOG2_E;
    [[dont_unroll]] for (; key < stop; key += int(KEYS)) {
        bool guarded = key < last_seen.x || key + int(KEYS) > min(first_seen.y, stop);
        load_values();
        multiply_keys();
        load_keys();
        if (!guarded && !subgroupAny(is_far(by))) {
            weigh(by, false);
            add_values();
        } else {
            bool special = false;
            if (guarded) {
                mask_scores(key, first_row, rows, n);
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    special = special || ELEMENTS_ARE_SPECIAL(values[r]);
                }
            }
            if (subgroupAny(is_far(by))) {
                raise_centers(by);
            }
            weigh(by, true);
            if (subgroupAny(special)) {
                add_seen_values(key);
            } else {
                add_values();
            }
        }
    }
    store_results(first_row, rows);
}
