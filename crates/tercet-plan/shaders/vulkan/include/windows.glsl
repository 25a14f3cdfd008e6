// Convolution as implicit GEMM: B of gemm_coop.glsl as windows of x. Column n is window n % windows
// of batch entry n / windows. B is staged window by window. Adjacent threads read adjacent windows
// of one line of k, which coalesces their loads, and each stores eight adjacent elements along k of
// its window. In every step along k,
// a thread stages elements of the same convolution windows. The thread computes the offsets of
// its windows, and which of their taps are inside x, only once. Taps outside x are 0.
//
// Line k is tap k % TAPS of channel k / TAPS, or with INNER channel k % channels of tap k /
// channels.
//
// SPREAD: windows of a transposed convolution, which collect the elements of x that contribute to a
// result. Element q contributes by tap t if q stride + t dilation equals the position of the result
// plus the padding. With that position as a stride + r, the taps with (t dilation) mod stride = r
// contribute, and read element a - t dilation / stride.
//
// Constraints: at most 64 taps. INNER requires that channels are a multiple of BK. Place.b is the
// first element of x's channels, Place.residual that of the bias, which is added to whole rows with
// stride ld_residual.

layout(constant_id = 24) const uint GATHERS = 1; // 0: each window is one element, in order, so B needs no gather
layout(constant_id = 25) const uint KD = 1;
layout(constant_id = 26) const uint KH = 3;
layout(constant_id = 27) const uint KW = 3;
layout(constant_id = 28) const uint INNER = 0;
layout(constant_id = 29) const uint SPREAD = 0;

layout(set = 0, binding = 2) restrict readonly buffer B2 { uint16_t b_half[]; };

const uint TAPS = KD * KH * KW;
// Loads of the workgroup, of eight elements of a window each, and number of windows per thread.
const uint W_LOADS = (BN * (BK / 8) + THREADS - 1) / THREADS;
const uint W_EACH = THREADS % BN == 0 ? 1 : BN % THREADS == 0 ? BN / THREADS : W_LOADS;

// Offsets of the taps relative to the first element of a window.
shared uint tap_steps[TAPS];

uint window_at[W_EACH];
uint taps_low[W_EACH];
uint taps_high[W_EACH];
// Loaded elements: the even and the odd ones of eight adjacent elements along k.
uvec4 evens[W_LOADS];
uvec4 odds[W_LOADS];

// Window of the tile, and index of the eight elements along k, of load i.
uvec2 own_eight(uint i) {
    uint at = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(at % BN, at / BN);
}

bool loads_window(uint i) {
    return W_LOADS * THREADS == BN * (BK / 8) || gl_LocalInvocationIndex + i * THREADS < BN * (BK / 8);
}

uint step_of(uint tap) {
    if (SPREAD != 0u) {
        uint d = tap / (KH * KW) * p.dilation_d / p.stride_d;
        uint h = tap / KW % KH * p.dilation_h / p.stride_h;
        uint w = tap % KW * p.dilation_w / p.stride_w;
        return 0u - (d * p.x_deep + h * p.x_row + w * p.x_col);
    }
    return tap / (KH * KW) * p.tap_d + tap / KW % KH * p.tap_h + tap % KW * p.tap_w;
}

void find_taps() {
    if (GATHERS == 0u || INNER != 0u) {
        return;
    }
    for (uint tap = gl_LocalInvocationIndex; tap < TAPS; tap += THREADS) {
        tap_steps[tap] = step_of(tap);
    }
    barrier();
}

// Sets the bits of the taps from `first` on; `row` has one bit per tap.
void mark(uint j, uint first, uint row) {
    if (first < 32u) {
        taps_low[j] |= row << first;
        if (first + KW > 32u) {
            taps_high[j] |= row >> (32u - first);
        }
    } else {
        taps_high[j] |= row << (first - 32u);
    }
}

bool is_marked(uint j, uint tap) {
    uint taps = TAPS > 32u && tap >= 32u ? taps_high[j] : taps_low[j];
    return ((taps >> (tap & 31u)) & 1u) != 0u;
}

// Position of a transposed-convolution result along an axis: quotient and remainder by the stride.
uvec2 place_along(uint at, uint pad, uint stride) {
    uint place = at + pad;
    return uvec2(place / stride, place % stride);
}

// True if a tap with this offset connects the position to an element of the axis.
bool reaches(uvec2 place, uint tap, uint stride, uint size) {
    return tap % stride == place.y && place.x - tap / stride < size;
}

void find_spread_windows(uint place, uint first) {
    [[unroll]] for (uint j = 0u; j < W_EACH; j++) {
        uint column = first + own_eight(j).x;
        uint entry = column / p.windows;
        uint window = column - entry * p.windows;
        uint line = window / p.out_w;
        uvec2 d = place_along(line / p.out_h, p.pad_d, p.stride_d);
        uvec2 h = place_along(line % p.out_h, p.pad_h, p.stride_h);
        uvec2 w = place_along(window % p.out_w, p.pad_w, p.stride_w);
        window_at[j] = place + entry * p.x_batch + d.x * p.x_deep + h.x * p.x_row + w.x * p.x_col;
        taps_low[j] = 0u;
        taps_high[j] = 0u;
        if (column >= p.n) {
            continue;
        }
        uint row = 0u;
        for (uint x = 0u; x < KW; x++) {
            row |= uint(reaches(w, x * p.dilation_w, p.stride_w, p.size_w)) << x;
        }
        for (uint z = 0u; z < KD; z++) {
            for (uint y = 0u; y < KH; y++) {
                bool inside = reaches(d, z * p.dilation_d, p.stride_d, p.size_d);
                if (inside && reaches(h, y * p.dilation_h, p.stride_h, p.size_h)) {
                    mark(j, (z * KH + y) * KW, row);
                }
            }
        }
    }
}

void find_windows(uint place, uint first) {
    if (SPREAD != 0u) {
        find_spread_windows(place, first);
        return;
    }
    [[unroll]] for (uint j = 0u; j < W_EACH; j++) {
        uint column = first + own_eight(j).x;
        uint entry = column / p.windows;
        uint window = column - entry * p.windows;
        uint line = window / p.out_w;
        uint d = line / p.out_h * p.stride_d - p.pad_d;
        uint h = line % p.out_h * p.stride_h - p.pad_h;
        uint w = window % p.out_w * p.stride_w - p.pad_w;
        window_at[j] = place + entry * p.x_batch + d * p.x_deep + h * p.x_row + w * p.x_col;
        taps_low[j] = 0u;
        taps_high[j] = 0u;
        if (column >= p.n) {
            continue;
        }
        // Indices before the start wrap to large numbers, and fail the bounds test.
        uint row = 0u;
        for (uint x = 0u; x < KW; x++) {
            row |= uint(w + x * p.dilation_w < p.size_w) << x;
        }
        for (uint z = 0u; z < KD; z++) {
            for (uint y = 0u; y < KH; y++) {
                if (d + z * p.dilation_d < p.size_d && h + y * p.dilation_h < p.size_h) {
                    mark(j, (z * KH + y) * KW, row);
                }
            }
        }
    }
}

// Loads a step at k that belongs to one tap.
void load_channels(uint k) {
    uint tap = k / p.channels;
    uint first = step_of(tap) + (k - tap * p.channels) * p.x_channel;
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        bool inside = loads_window(i) && is_marked(i % W_EACH, tap);
        uint at = window_at[i % W_EACH] + first + own_eight(i).y * 8u * p.x_channel;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            evens[i][j] = inside ? uint(b_half[at + 2u * j * p.x_channel]) : 0u;
            odds[i][j] = inside ? uint(b_half[at + (2u * j + 1u) * p.x_channel]) : 0u;
        }
    }
}

// Loads a step at k. If not `whole`, the step ends at k_end.
void load_taps(uint k, uint k_end, const bool whole) {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        uint first = k + own_eight(i).y * 8u;
        uint tap = first % TAPS;
        uint at = window_at[i % W_EACH] + first / TAPS * p.x_channel;
        [[unroll]] for (uint j = 0u; j < 8u; j++) {
            bool inside = loads_window(i) && (whole || first + j < k_end) && is_marked(i % W_EACH, tap);
            uint half_of_eight = inside ? uint(b_half[at + tap_steps[tap]]) : 0u;
            if (j % 2u == 0u) {
                evens[i][j / 2u] = half_of_eight;
            } else {
                odds[i][j / 2u] = half_of_eight;
            }
            bool last = tap == TAPS - 1u;
            tap = last ? 0u : tap + 1u;
            at += last ? p.x_channel : 0u;
        }
    }
}

void load_windows(uint k, uint k_end, const bool whole) {
    if (INNER != 0u) {
        load_channels(k);
    } else {
        load_taps(k, k_end, whole);
    }
}

void keep_no_windows() {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        evens[i] = uvec4(0u);
        odds[i] = uvec4(0u);
    }
}

// Stages the loaded windows. The staged rows begin at word `first` and are `stride` words apart.
void store_windows(uint first, uint stride) {
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        if (loads_window(i)) {
            uvec2 own = own_eight(i);
            tiles[first + own.x * stride + own.y] = evens[i] | odds[i] << 16;
        }
    }
}

// Bias of a row of C.
vec4 row_bias(uint first, uint line) {
    if (HAS_BIAS == 0u) {
        return vec4(0.0);
    }
    uint at = first + line * p.ld_residual;
    uint word = bias[BIAS_F32 != 0u ? at : at >> 1];
    return vec4(BIAS_F32 != 0u ? uintBitsToFloat(word) : ELEMENT_TO_F32((word >> ((at & 1u) * 16u)) & 0xffffu));
}
