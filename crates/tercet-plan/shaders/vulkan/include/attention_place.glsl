// Per-workgroup data of attention on cooperative matrices. The including shader defines the offsets
// in `tiles`.

shared uvec4 tiles[ROW_AT + BM];

// Contents of `numbers`: the center and the rescaling factor of each row, the mask terms of a step,
// the bounds of the visible keys, and index numbers from 0 on. The type is vec4, because fragments
// are loaded from here and an array of floats may be unaligned.
const uint PENALTY_AT = 2 * BM;
const uint FROM_AT = PENALTY_AT + BN;
const uint END_AT = FROM_AT + BM;
const uint INDEX_AT = END_AT + BM;
const uint INDEX_LEN = FM > FN ? FM : FN;
shared vec4 numbers[(INDEX_AT + INDEX_LEN) / 4];
#define NUMBER(at) numbers[(at) / 4u][(at) % 4u]

// Steps over blocks of keys, counted from 1: the last one whose V rows have an infinity or NaN, and
// the last one to whose scores a mask is added. 0 means none.
shared uint special_step;
shared uint masked_step;

const float LOG2_E = 1.44269504;
// Unit of the scores: base-2 exponents. With a bias, the unit is base e, because scaling a bias of
// minus the largest float would overflow.
const float UNIT = MASK == 2 ? 1.0 : LOG2_E;
const float POWER = MASK == 2 ? LOG2_E : 1.0;
// Initial center of a row.
const float LEAST = -3.40282347e38;

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Subgroup barrier: makes the subgroup's writes to shared memory visible to all its threads.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

#include "attention_seen.glsl"

// Position of the workgroup.
uint batch;
uint head;
uint first_row;
uint rows;
// First row of the subgroup in the tile.
uint own_row;
// Visible keys of the workgroup's first row. The key bounds of other rows are relative to these
// bounds, so that floats represent them exactly.
ivec2 base;

#if IN_PARTS
#define OF_HEAD (p.tiles * p.parts)
// Index of the part of the keys.
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

// Stages the visible key range of each row, and the index numbers. Rows beyond the end use the
// range of the last row. The caller must insert a barrier.
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
