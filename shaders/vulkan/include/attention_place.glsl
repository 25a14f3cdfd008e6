// What the whole workgroup shares. Whoever includes this has said where in `tiles` things lie.

shared uvec4 tiles[ROW_AT + BM];

// The center of each row and the factor of its sums, penalties of the keys of a step, bounds of what each row sees, and numbers
// from 0 on. By 16 bytes, as fragments are loaded from here: an array of floats may begin anywhere.
const uint PENALTY_AT = 2 * BM;
const uint FROM_AT = PENALTY_AT + BN;
const uint END_AT = FROM_AT + BM;
const uint INDEX_AT = END_AT + BM;
const uint INDEX_LEN = FM > FN ? FM : FN;
shared vec4 numbers[(INDEX_AT + INDEX_LEN) / 4];
#define NUMBER(at) numbers[(at) / 4u][(at) % 4u]

// The last step, from 1 on, with a value that is not finite, and with a penalty.
shared uint special_step;
shared uint masked_step;

const float LOG2_E = 1.44269504;
// Scores are in units of which the exponential takes powers of two, but for a bias: that may be the least number
// of a wide type.
const float UNIT = MASK == 2 ? 1.0 : LOG2_E;
const float POWER = MASK == 2 ? LOG2_E : 1.0;
// The center of a row before its first score.
const float LEAST = -3.40282347e38;

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// What the invocations of a subgroup wrote to shared memory is seen by all of them.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

#include "attention_seen.glsl"

// The workgroup's place.
uint batch;
uint head;
uint first_row;
uint rows;
// The subgroup's first row in the tile.
uint own_row;
// What the workgroup's first row sees: bounds are told from there, which floats hold exactly.
ivec2 base;

#if IN_PARTS
#define OF_HEAD (p.tiles * p.parts)
// Which part of the keys it takes.
uint part;
#endif
#include "attention_order.glsl"

void take_place(uint flat_group) {
    uvec2 taken = take_tile(flat_group);
#if IN_PARTS
    part = taken.y % p.parts;
    taken.y /= p.parts;
#endif
    batch = taken.x / p.kv_heads;
    head = taken.x % p.kv_heads;
    first_row = (p.tiles - 1u - taken.y) * BM;
    rows = p.queries * p.group;
    own_row = gl_SubgroupID * WM;
}

#include "attention_row.glsl"

// What each row sees, and the numbers of a fragment. A row that does not exist sees what the last one does. A barrier comes after it.
void stage_rows(int n) {
    base = seen_by(first_row, n);
    for (uint at = gl_LocalInvocationIndex; at < BM; at += THREADS) {
        uint row = min(first_row + at, rows - 1u);
        uvec4 about = uvec4(uvec2(seen_by(row, n)), 0u, 0u);
        if (MASK != 0u) {
            about.z = row_of(row, p.mask_offset, p.mask_batch, p.mask_head, p.mask_query);
        }
        tiles[ROW_AT + at] = about;
        vec2 bounds = vec2(ivec2(about.xy) - base);
        NUMBER(FROM_AT + at) = bounds.x;
        NUMBER(END_AT + at) = bounds.y;
        NUMBER(at) = LEAST;
    }
    for (uint at = gl_LocalInvocationIndex; at < INDEX_LEN; at += THREADS) {
        NUMBER(INDEX_AT + at) = float(at);
    }
    if (gl_LocalInvocationIndex == 0u) {
        special_step = 0u;
        masked_step = 0u;
    }
}
