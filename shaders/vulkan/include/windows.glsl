// B of gemm_coop.glsl as windows of x: line k is tap k % TAPS of channel k / TAPS, column n is window n. An
// invocation stages the same eight windows in every step, so it finds once where they begin, and which of
// their taps lie inside x; others are 0.
//
// Constraints: at most 64 taps. Place.b is the first element of x's channels, Place.residual that of the
// bias, which is added to whole rows; ld_residual is its stride.

layout(constant_id = 23) const uint GATHERS = 1; // 0: each window is one element, in order: B as it lies
layout(constant_id = 24) const uint KD = 1;
layout(constant_id = 25) const uint KH = 3;
layout(constant_id = 26) const uint KW = 3;

layout(set = 0, binding = 2) restrict readonly buffer B2 { uint16_t b_half[]; };

const uint TAPS = KD * KH * KW;

uint window_at[8];
uint taps_low[8];
uint taps_high[8];

// Marks the taps from `first` on, of which `row` has a bit each.
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

void find_windows(uint place, uint first) {
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint window = first + j;
        uint line = window / p.out_w;
        uint d = line / p.out_h * p.stride_d - p.pad_d;
        uint h = line % p.out_h * p.stride_h - p.pad_h;
        uint w = window % p.out_w * p.stride_w - p.pad_w;
        window_at[j] = place + d * p.x_deep + h * p.x_row + w * p.x_col;
        taps_low[j] = 0u;
        taps_high[j] = 0u;
        if (window >= p.n) {
            continue;
        }
        // Before the begin is beyond any end.
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

// Eight neighbours of line k; 0 from k_end on.
uvec4 windows_of(uint k, uint k_end) {
    uint tap = k % TAPS;
    uint step = k / TAPS * p.x_channel + tap / (KH * KW) * p.tap_d + tap / KW % KH * p.tap_h + tap % KW * p.tap_w;
    uvec4 found = uvec4(0u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint taps = TAPS > 32u && tap >= 32u ? taps_high[j] : taps_low[j];
        if (k < k_end && ((taps >> (tap & 31u)) & 1u) != 0u) {
            found[j >> 1] |= uint(b_half[window_at[j] + step]) << ((j & 1u) * 16u);
        }
    }
    return found;
}

// The bias of a row of C.
vec4 row_bias(uint first, uint line) {
    if (HAS_BIAS == 0u) {
        return vec4(0.0);
    }
    uint at = first + line * p.ld_residual;
    uint word = bias[BIAS_F32 != 0u ? at : at >> 1];
    return vec4(BIAS_F32 != 0u ? uintBitsToFloat(word) : ELEMENT_TO_F32((word >> ((at & 1u) * 16u)) & 0xffffu));
}
