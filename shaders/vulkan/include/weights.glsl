// dw[o, (c, tap)] = sum over entries and windows of dy[entry, o, window] x[entry, c, window at tap], for gemm_coop.glsl: rows
// are channels of dy, columns channels of x and their taps, both of a group, whose batches groups are.
//
// Line k is window k % span of batch entry k / span, where span is the number of windows rounded up to whole steps: a step is
// of one entry, and lines beyond the windows are 0. Entries lie outer_a and outer_b apart. A is dy, whose rows are windows.
//
// GATHERS = 0: each window is one element, in order: rows of x are as those of dy, and B is transposed. Otherwise B is staged
// line by line: neighbouring invocations read neighbouring windows of one column, so that what they read at a time lies
// together, and each stores eight neighbouring columns of its window. An invocation has one window in each step, for which it
// finds which taps lie inside x; others are 0.
//
// Constraints: at most 64 taps; a step is BK lines, all of k whole steps; GATHERS: THREADS is a multiple of BK.
// ALIGNED_A: the number of windows, lda, offset_a and outer_a are multiples of 8, so is inner_a; ALIGNED_B likewise.

layout(constant_id = 24) const uint GATHERS = 1;
layout(constant_id = 25) const uint KD = 1;
layout(constant_id = 26) const uint KH = 3;
layout(constant_id = 27) const uint KW = 3;

layout(set = 0, binding = 2) restrict readonly buffer B2 { uint16_t b_half[]; };

const uint TAPS = KD * KH * KW;
// A tap that no window has.
const uint NO_TAP = 64;
// How often the workgroup loads eight columns of a line each.
const uint W_LOADS = (BK * (BN / 8) + THREADS - 1) / THREADS;
const uint W_PASS = THREADS / BK;

// Of each column of the tile, how far its element lies from the first of a window, and its tap.
shared uvec2 columns[BN];

// Where B begins in the group.
uint weights_at;
// What is loaded: of eight neighbours those at even and those at odd places.
uvec4 evens[W_LOADS];
uvec4 odds[W_LOADS];

// The line of a step that an invocation loads, and eight columns of it.
uvec2 own_columns(uint i) {
    uint at = gl_LocalInvocationIndex;
    return uvec2(at % BK, at / BK + i * W_PASS);
}

bool loads_columns(uint i) {
    return W_LOADS * W_PASS == BN / 8 || own_columns(i).y < BN / 8;
}

void find_columns(uint first) {
    if (GATHERS == 0u) {
        return;
    }
    for (uint at = gl_LocalInvocationIndex; at < BN; at += THREADS) {
        uint n = first + at;
        uint tap = n % TAPS;
        uint step = tap / (KH * KW) * p.tap_d + tap / KW % KH * p.tap_h + tap % KW * p.tap_w;
        columns[at] = uvec2(n / TAPS * p.x_channel + step, n < p.n ? tap : NO_TAP);
    }
    barrier();
}

// The first 32 taps and the others, a bit each.
uvec2 marked;

// Marks the taps from `first` on, of which `row` has a bit each.
void mark(uint first, uint row) {
    if (first < 32u) {
        marked.x |= row << first;
        if (first + KW > 32u) {
            marked.y |= row >> (32u - first);
        }
    } else {
        marked.y |= row << (first - 32u);
    }
}

bool is_marked(uint tap) {
    uint taps = TAPS > 32u && tap >= 32u ? marked.y : marked.x;
    return tap < TAPS && ((taps >> (tap & 31u)) & 1u) != 0u;
}

// Columns of the windows from `first` on of an entry.
void load_columns(uint entry, uint first) {
    uint window = first + own_columns(0u).x;
    uint line = window / p.out_w;
    uint plane = line / p.out_h;
    uint d = plane * p.stride_d - p.pad_d;
    uint h = (line - plane * p.out_h) * p.stride_h - p.pad_h;
    uint w = (window - line * p.out_w) * p.stride_w - p.pad_w;
    uint at = weights_at + entry * p.outer_b + d * p.x_deep + h * p.x_row + w * p.x_col;
    // Before the begin is beyond any end.
    marked = uvec2(0u);
    uint row = 0u;
    for (uint x = 0u; x < KW; x++) {
        row |= uint(window < p.windows && w + x * p.dilation_w < p.size_w) << x;
    }
    for (uint z = 0u; z < KD; z++) {
        for (uint y = 0u; y < KH; y++) {
            if (d + z * p.dilation_d < p.size_d && h + y * p.dilation_h < p.size_h) {
                mark((z * KH + y) * KW, row);
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        uint eight = own_columns(i).y * 8u;
        [[unroll]] for (uint j = 0u; j < 8u; j++) {
            uvec2 column = columns[loads_columns(i) ? eight + j : 0u];
            bool inside = loads_columns(i) && is_marked(column.y);
            uint found = inside ? uint(b_half[at + column.x]) : 0u;
            if (j % 2u == 0u) {
                evens[i][j / 2u] = found;
            } else {
                odds[i][j / 2u] = found;
            }
        }
    }
}

void keep_no_columns() {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        evens[i] = uvec4(0u);
        odds[i] = uvec4(0u);
    }
}

// Rows of staged lines begin at `first` and are `stride` words apart.
void store_columns(uint first, uint stride) {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        if (loads_columns(i)) {
            uvec2 own = own_columns(i);
            tiles[first + own.x * stride + own.y] = evens[i] | odds[i] << 16;
        }
    }
}

// Eight windows of an entry from `window` on of a row that begins at `at`; 0 from the last one on.
#define WEIGHT_ROW(name, words)                                  \
    uvec4 name##_row(uint at, uint window) {                     \
        return window < p.windows ? name(at + window, p.windows - window) : uvec4(0u); \
    }

WEIGHT_ROW(gather_a, a)
WEIGHT_ROW(gather_b, b)

// Both operands from k on, where a step begins.
void load_lines(Place place, uvec2 tile, uint k) {
    uint entry = k / p.span;
    uint first = k - entry * p.span;
    uint window = first + own_a().y * 8u;
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint line = tile.x + own_a().x + i * A_PASS;
        if (ALIGNED_A != 0u) {
            if (loads_a(i)) {
                uint at = first_a[i] + ((entry * p.outer_a + first) >> 3);
                next_a[i] = window < p.windows ? a_vec[at] : uvec4(0u);
            }
        } else {
            uint at = place.a + entry * p.outer_a + line * p.lda;
            next_a[i] = line < p.m ? gather_a_row(at, window) : uvec4(0u);
        }
    }
    if (GATHERS != 0u) {
        load_columns(entry, first);
        return;
    }
    window = first + own_b().y * 8u;
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint line = tile.y + own_b().x + i * B_PASS;
        if (ALIGNED_B != 0u) {
            if (loads_b(i)) {
                uint at = first_b[i] + ((entry * p.outer_b + first) >> 3);
                next_b[i] = window < p.windows ? b_vec[at] : uvec4(0u);
            }
        } else {
            uint at = place.b + entry * p.outer_b + line * p.ldb;
            next_b[i] = line < p.n ? gather_b_row(at, window) : uvec4(0u);
        }
    }
}
