// Shared code of attention backward on matrices: the position of a workgroup, the range of streamed
// rows, and masked scores.

const float LOG2_E = 1.44269504;

float infinity() { return uintBitsToFloat(0x7f800000u); }

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Subgroup barrier: makes the subgroup's writes to shared memory visible to all its threads.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

#include "attention_seen.glsl"

// Position of the workgroup, whose stationary rows begin at `first_line`.
uint batch;
uint head;
uint first_line;
uint rows;
uint own_line; // first stationary row of the subgroup
int n; // number of keys of the batch entry

#include "attention_row.glsl"
#include "attention_order.glsl"

void take_place(uint flat_group) {
    uvec2 taken = take_tile(flat_group);
    batch = taken.x / p.kv_heads;
    head = taken.x % p.kv_heads;
    first_line = (OF_KEYS == 1 ? taken.y : p.tiles - 1u - taken.y) * BM;
    rows = p.queries * p.group;
    own_line = gl_SubgroupID * WM;
    n = keys_of(batch);
}

// Number of rows of the stationary operands.
uint own_lines() { return OF_KEYS == 1 ? uint(n) : rows; }

float capped(float x) {
    float t = tanh(clamp(x, -12.0, 12.0));
    return is_nan(x) ? x : t;
}

// Mask term of a score, as a base-2 exponent: -infinity for a masked pair. `row_at` is the offset
// of the row's mask.
float penalty_of(int key, uint row_at) {
    uint at = row_at + uint(key) * p.mask_key;
    if (MASK == 1u) {
        return ((mask[at >> 2] >> (at & 3u) * 8u) & 0xffu) != 0u ? 0.0 : -infinity();
    }
    return BIAS_AT(at) * LOG2_E;
}

// Masked score of a pair, as a base-2 exponent; -infinity for a masked pair.
float masked(float score, int key, uvec4 about) {
    if (key < int(about.x) || key >= int(about.y)) {
        return -infinity();
    }
    if (MASK == 0u) {
        return score;
    }
    float penalty = penalty_of(key, about.z);
    return penalty == -infinity() ? penalty : score + penalty;
}

// Range of the streamed rows, and the subrange of rows that are visible from all stationary rows.
void take_walk(out ivec2 walk, out ivec2 clear) {
    uint last = min(first_line + BM, own_lines());
#if OF_KEYS
    walk = ivec2(0, first_line < last ? int(rows) : 0);
    clear = walk;
    if (p.causal != 0u && first_line < last) {
        // Query i attends to the keys i + n - queries + 1 - window to i + n - queries.
        int shift = int(p.queries) - n;
        int group = int(p.group);
        int most = int(p.queries);
        walk.x = clamp(int(first_line) + shift, 0, most) * group;
        walk.y = clamp(min(int(last) - 1 + shift, most) + int(min(p.window, p.queries + p.keys)), 0, most) * group;
        clear.x = clamp(int(last) - 1 + shift, 0, most) * group;
        clear.y = clamp(min(int(first_line) + shift, most) + int(min(p.window, p.queries + p.keys)), 0, most) * group;
    }
#else
    walk = ivec2(0);
    clear = ivec2(0);
    if (first_line < last) {
        ivec2 of_first = seen_by(first_line, n);
        ivec2 of_last = seen_by(last - 1u, n);
        walk = ivec2(of_first.x, of_last.y);
        clear = ivec2(of_last.x, of_first.y);
    }
#endif
}
