// What gradients of attention on matrices share: the place of a workgroup, what its lines walk over, scores with their masks.

const float LOG2_E = 1.44269504;

float infinity() { return uintBitsToFloat(0x7f800000u); }

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// What the invocations of a subgroup wrote to shared memory is seen by all of them.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

#include "attention_seen.glsl"

// The workgroup's place: lines of its own from `first_line` on.
uint batch;
uint head;
uint first_line;
uint rows;
uint own_line; // the subgroup's first
int n; // keys of the batch entry

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

// Lines of the own operands that there are.
uint own_lines() { return OF_KEYS == 1 ? uint(n) : rows; }

float capped(float x) {
    float t = tanh(clamp(x, -12.0, 12.0));
    return is_nan(x) ? x : t;
}

// What the mask adds to the score of a pair, in powers of two: -infinity where it is not seen. `row_at`: where its row begins.
float penalty_of(int key, uint row_at) {
    uint at = row_at + uint(key) * p.mask_key;
    if (MASK == 1u) {
        return ((mask[at >> 2] >> (at & 3u) * 8u) & 0xffu) != 0u ? 0.0 : -infinity();
    }
    return BIAS_AT(at) * LOG2_E;
}

// The score of a pair, in powers of two, with its mask; -infinity where it is not seen.
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

// The lines that are walked, and of these the ones of which every pair with an own line is seen.
void take_walk(out ivec2 walk, out ivec2 clear) {
    uint last = min(first_line + BM, own_lines());
#if OF_KEYS
    walk = ivec2(0, first_line < last ? int(rows) : 0);
    clear = walk;
    if (p.causal != 0u && first_line < last) {
        // Query i sees keys i + n - queries + 1 - window to i + n - queries.
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
