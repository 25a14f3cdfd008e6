// Query-row data of attention backward on matrices: of the stationary rows if they are query rows,
// otherwise of two steps of streamed query rows. The numbers of a query row are stored in shared
// memory and become fragments by loads with stride 0, as do the indices of rows and columns.
//
// `tiles` from ROW_AT on contains, per row, the visible key range and the offset of its mask.

const uint ROW_LEN = OF_KEYS == 1 ? 2 * BN : BM;
// Offsets in `numbers`: -lse at 0, then -delta, the bounds of the visible keys, and index numbers
// from 0 on.
const uint DELTA_AT = ROW_LEN;
const uint FROM_AT = 2 * ROW_LEN;
const uint END_AT = 3 * ROW_LEN;
const uint INDEX_AT = 4 * ROW_LEN;
const uint INDEX_LEN = FM > FN ? FM : FN;
shared uvec4 tiles[ROW_AT + ROW_LEN];
shared vec4 numbers[(INDEX_AT + INDEX_LEN) / 4];
#define NUMBER(at) numbers[(at) / 4u][(at) % 4u]

uvec4 loaded_about;
vec2 loaded_numbers;

// Key indices that are subtracted from the bounds of the visible keys: the workgroup's first key,
// or the range of keys visible to its query rows.
ivec2 base;
// Limit that bounds are clamped to: farther than any key of the workgroup, and exact as a float.
const int FAR = 1 << 20;

// Loads the visible key range, log-sum-exp and delta of a query row. Rows beyond the end use the
// key range of the last row.
void load_row(uint row) {
    uint own = min(row, rows - 1u);
    loaded_about.xy = uvec2(seen_by(own, n));
    loaded_about.z = MASK == 0u ? 0u : row_of(own, p.mask_offset, p.mask_batch, p.mask_head, p.mask_query);
    loaded_numbers = vec2(-infinity(), 0.0);
    if (row < rows) {
        uint at = row_of(row, 0u, p.kv_heads * p.group * p.queries, p.queries, 1u);
        float sum = lse[at];
        // A row without visible keys must have weights of 0.
        loaded_numbers = -vec2(sum == -infinity() ? infinity() : sum * LOG2_E, delta[at]);
    }
}

void store_row(uint at) {
    tiles[ROW_AT + at] = loaded_about;
    vec2 bounds = vec2(clamp(ivec2(loaded_about.xy) - base, -FAR, FAR));
    NUMBER(at) = loaded_numbers.x;
    NUMBER(DELTA_AT + at) = loaded_numbers.y;
    NUMBER(FROM_AT + at) = bounds.x;
    NUMBER(END_AT + at) = bounds.y;
}

// Stores the integers from 0 on as floats, which give rows and columns of fragments their index.
void store_index() {
    for (uint at = gl_LocalInvocationIndex; at < INDEX_LEN; at += THREADS) {
        NUMBER(INDEX_AT + at) = float(at);
    }
}

// True if the key ranges mask all pairs of FM stationary rows from `own` on with PART streamed rows
// from `walked` on. If query rows are streamed, their data is staged from `at` on.
bool is_hidden(uint own, int walked, uint at) {
#if OF_KEYS
    int first = int(tiles[ROW_AT + at].x);
    int end = int(tiles[ROW_AT + at + PART - 1u].y);
    int key = int(first_line + own);
    return key + int(FM) <= first || key >= end;
#else
    int first = int(tiles[ROW_AT + own].x);
    int end = int(tiles[ROW_AT + own + FM - 1u].y);
    return walked + int(PART) <= first || walked >= end;
#endif
}

// Mask terms for pairs of stationary rows and the fragment of streamed rows from `walked` on, as
// base-2 exponents: -infinity for a masked pair.
SUMS penalties_of(uint own, int walked, uint at) {
    SUMS penalties;
    SUMS row_number;
    SUMS column_number;
    SUMS from;
    SUMS end;
    coopMatLoad(row_number, numbers, INDEX_AT / 4u, 0, COLUMNS);
    coopMatLoad(column_number, numbers, INDEX_AT / 4u, 0, ROWS);
#if OF_KEYS
    coopMatLoad(from, numbers, (FROM_AT + at) / 4u, 0, ROWS);
    coopMatLoad(end, numbers, (END_AT + at) / 4u, 0, ROWS);
    vec2 key = vec2(float(own));
#else
    coopMatLoad(from, numbers, (FROM_AT + own) / 4u, 0, COLUMNS);
    coopMatLoad(end, numbers, (END_AT + own) / 4u, 0, COLUMNS);
    vec2 key = vec2(ivec2(walked) - base);
#endif
    [[unroll]] for (uint e = 0u; e < penalties.length(); e++) {
#if OF_KEYS
        float more = row_number[e];
        uint row = at + uint(column_number[e]);
        int key_at = int(first_line + own + uint(more));
#else
        float more = column_number[e];
        uint row = own + uint(row_number[e]);
        int key_at = walked + int(more);
#endif
        penalties[e] = key.x + more < from[e] || key.y + more >= end[e] ? -infinity() : 0.0;
        if (MASK != 0u && penalties[e] == 0.0) {
            penalties[e] = penalty_of(key_at, tiles[ROW_AT + row].z);
        }
    }
    return penalties;
}
