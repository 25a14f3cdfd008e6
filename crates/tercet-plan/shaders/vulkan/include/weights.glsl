// Weight gradient of a convolution, for gemm_coop.glsl: dw[o, (c, tap)] = sum over entries and
// windows of dy[entry, o, window] x[entry, c, window at tap]. Rows of C are channels of dy; columns
// are channels of x and their taps. Rows and columns belong to one group of the convolution, and
// each group is a batch of the GEMM.
//
// Line k is window k % span of batch entry k / span. span is the number of windows rounded up to
// whole steps, so that a step belongs to one entry; lines beyond the windows are 0. Entries have
// the strides outer_a and outer_b. A is dy, with windows as columns.
//
// GATHERS = 0: each window is one element, in order. Rows of x then have the layout of rows of dy,
// and B is transposed. With GATHERS = 1, B is staged line by line. Adjacent threads read adjacent
// windows of one column, which coalesces their loads, and each stores eight adjacent columns of its
// window. A thread has one window per step and computes which taps are inside x; the others are 0.
//
// Constraints: at most 64 taps. A step is BK lines, and k is a multiple of BK. GATHERS requires
// that THREADS is a multiple of BK. ALIGNED_A requires that the number of windows, lda, offset_a,
// outer_a and inner_a are multiples of 8; ALIGNED_B requires the same of B.

layout(constant_id = 24) const uint GATHERS = 1;
layout(constant_id = 25) const uint KD = 1;
layout(constant_id = 26) const uint KH = 3;
layout(constant_id = 27) const uint KW = 3;

layout(set = 0, binding = 2) restrict readonly buffer B2 { uint16_t b_half[]; };

const uint TAPS = KD * KH * KW;
// Marks a column without a tap.
const uint NO_TAP = 64;
// Loads per thread, of eight columns of a line each.
const uint W_LOADS = (BK * (BN / 8) + THREADS - 1) / THREADS;
const uint W_PASS = THREADS / BK;

// For each column of the tile: the offset of its element relative to the first element of a window,
// and its tap.
shared uvec2 columns[BN];

// Offset of B in the group.
uint weights_at;
// Loaded elements: the even and the odd ones of eight adjacent columns.
uvec4 evens[W_LOADS];
uvec4 odds[W_LOADS];

// Line of a step, and index of the eight columns, of this thread's load i.
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

// One bit per tap: the first 32 taps, then the others.
uvec2 marked;

// Sets the bits of the taps from `first` on; `row` has one bit per tap.
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

// Loads the columns for the windows from `first` on of an entry.
void load_columns(uint entry, uint first) {
    uint window = first + own_columns(0u).x;
    uint line = window / p.out_w;
    uint plane = line / p.out_h;
    uint d = plane * p.stride_d - p.pad_d;
    uint h = (line - plane * p.out_h) * p.stride_h - p.pad_h;
    uint w = (window - line * p.out_w) * p.stride_w - p.pad_w;
    uint at = weights_at + entry * p.outer_b + d * p.x_deep + h * p.x_row + w * p.x_col;
    // Indices before the start wrap to large numbers, and fail the bounds test.
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

// Stages the loaded columns. The staged rows begin at word `first` and are `stride` words apart.
void store_columns(uint first, uint stride) {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        if (loads_columns(i)) {
            uvec2 own = own_columns(i);
            tiles[first + own.x * stride + own.y] = evens[i] | odds[i] << 16;
        }
    }
}

// Loads eight windows of an entry from `window` on, of the row at `at`; windows beyond the last are
// 0.
#define WEIGHT_ROW(name, words)                                  \
    uvec4 name##_row(uint at, uint window) {                     \
        return window < p.windows ? name(at + window, p.windows - window) : uvec4(0u); \
    }

WEIGHT_ROW(gather_a, a)
WEIGHT_ROW(gather_b, b)

// Loads both operands from k on, where k is the start of a step.
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
