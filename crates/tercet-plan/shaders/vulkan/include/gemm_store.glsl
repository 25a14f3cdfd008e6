// Stores of C from fragments: one strip of FM rows of a subgroup's part per iteration, through
// shared memory.

#include "gemm_finish.glsl"

#ifdef GROUPED
// The lines of a tile of sorted rows have their own places in C.
#define LINES tile_rows
#define ROW_OF_C(line) row_of_line(line)
#else
#define LINES p.m
#define ROW_OF_C(line) (line)
#endif

// Stores one 16-bit result. The other half of the result's word belongs to another row, or is
// padding after the last element of the tensor.
void store_half(uint h, uint at) {
    if ((at & 1u) == 0u && at + 1u == p.len_c) {
        c[at >> 1] = h;
    } else {
        c_half[at] = uint16_t(h);
    }
}

// Stores four results from element `at` of C, of which `valid` exist.
void store_four(vec4 x, uint at, uint valid) {
    if (OUT_F32 != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (i < valid) {
                c[at + i] = floatBitsToUint(x[i]);
            }
        }
        return;
    }
    uvec2 pairs = halves(x);
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        bool both = 2u * i + 1u < valid;
        if (both && (at & 1u) == 0u) {
            c[(at >> 1) + i] = pairs[i];
            continue;
        }
        if (2u * i < valid) {
            store_half(pairs[i] & 0xffffu, at + 2u * i);
        }
        if (both) {
            store_half(pairs[i] >> 16, at + 2u * i + 1u);
        }
    }
}

// Stores eight existing results at a 16-byte aligned offset.
void store_eight(vec4 low, vec4 high, uint at) {
    if (OUT_F32 != 0u) {
        c_vec[at >> 2] = floatBitsToUint(low);
        c_vec[(at >> 2) + 1u] = floatBitsToUint(high);
    } else {
        c_vec[at >> 3] = uvec4(halves(low), halves(high));
    }
}

#ifdef WINDOWS
// Stores eight results of a row, from window `window` of a batch entry on; window 0 is at offset
// `at`. Of the results, `valid` exist. Windows after the last one of an entry belong to the next
// entry.
void store_windows_of(vec4 low, vec4 high, uint at, uint window, uint valid) {
    // With word-aligned entries, pairs of results stay together.
    if (OUT_F32 == 0u && ((p.windows | p.c_entry | at) & 1u) == 0u) {
        uvec4 pairs = uvec4(halves(low), halves(high));
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (2u * i < valid) {
                c[(at + window) >> 1] = pairs[i];
                window += 2u;
                if (window == p.windows) {
                    window = 0u;
                    at += p.c_entry;
                }
            }
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        if (i < valid) {
            float x = i < 4u ? low[i] : high[i - 4u];
            if (OUT_F32 != 0u) {
                c[at + window] = floatBitsToUint(x);
            } else {
                store_half(F32_TO_ELEMENT(x), at + window);
            }
            window++;
            if (window == p.windows) {
                window = 0u;
                at += p.c_entry;
            }
        }
    }
}
#endif

// Subgroup barrier: a strip belongs to one subgroup.
void strip_barrier() {
    controlBarrier(
        gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease
    );
}

// Stores F32 fragments that need no epilogue. The part of C is inside the matrix and begins at
// element `at`.
void store_fragments(uint at) {
    [[unroll]] for (uint i = 0u; i < CM; i++) {
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            uint first = at + i * FM * p.ldc + j * FN;
            coopMatStore(sums[i * CN + j], c_float, first, p.ldc, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

#ifdef NATIVE_PAIR
// Stores sums that include their bias, as ELEMENT, one strip per iteration through shared memory.
void store_narrow(Place place, uint row, uint col) {
    const uint STRIDE = WN / 8u + 1u;
    uint strip = gl_SubgroupID * FM * STRIDE;
    uint lane_row = gl_SubgroupInvocationID / ROW_LANES;
    lane_row = lane_row < SUBGROUP / ROW_LANES ? lane_row : FM;
    uint lane_col = gl_SubgroupInvocationID % ROW_LANES;
    bool inside = col + lane_col * 8u < p.n;
    [[dont_unroll]] for (uint i = 0u; i < CM; i++) {
        coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> own[CN];
        [[unroll]] for (uint of = 0u; of < CM; of++) {
            if (of == i) {
                [[unroll]] for (uint j = 0u; j < CN; j++) {
                    own[j] = sums[of * CN + j];
                }
            }
        }
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            if (ACTIVATION != 0u) {
                [[unroll]] for (uint e = 0u; e < own[j].length(); e++) {
                    own[j][e] = activate_narrow(ACTIVATION, own[j][e]);
                }
            }
            coopmat<ELEMENT, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> narrow =
                coopmat<ELEMENT, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>(own[j]);
            coopMatStore(narrow, tiles, strip + j * FN / 8u, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        strip_barrier();
        [[unroll]] for (uint r = lane_row; r < FM; r += SUBGROUP / ROW_LANES) {
            uint line = row + i * FM + r;
            if (line < LINES && inside) {
                c_vec[((place.c + ROW_OF_C(line) * p.ldc + col) >> 3) + lane_col] = tiles[strip + r * STRIDE + lane_col];
            }
        }
        strip_barrier();
    }
}

// Initializes the sums with the bias, through shared memory that is unused at this point.
void begin_with_bias(uint tile_col, uint col) {
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < BN / 4u; at += THREADS) {
        tiles[at] = floatBitsToUint(bias_four(tile_col + at * 4u));
    }
    barrier();
    [[unroll]] for (uint j = 0u; j < CN; j++) {
        coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> own;
        coopMatLoad(own, tiles, (col + j * FN) / 4u, 0u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = 0u; i < CM; i++) {
            sums[i * CN + j] = own;
        }
    }
    barrier();
}
#endif

// Stores the subgroup's part of C, which begins at (row, col).
void store_sums(Place place, uint row, uint col) {
#ifdef NATIVE_PAIR
    if (IS_NARROW) {
        store_narrow(place, row, col);
        return;
    }
#endif
    const bool AS_THEY_ARE = OUT_F32 != 0u && ALIGNED_C != 0u && HAS_BIAS + HAS_RESIDUAL + ACTIVATION == 0u;
#ifndef GROUPED
    if (AS_THEY_ARE && row + WM <= p.m && col + WN <= p.n) {
        store_fragments(place.c + row * p.ldc + col);
        return;
    }
#endif
    uint strip = gl_SubgroupID * FM * SUM_STRIDE;
    // Excess threads have no row.
    uint lane_row = gl_SubgroupInvocationID / ROW_LANES;
    lane_row = lane_row < SUBGROUP / ROW_LANES ? lane_row : FM;
    uint lane_col = gl_SubgroupInvocationID % ROW_LANES * 8u;
    uint swap = (gl_SubgroupInvocationID >> 2) & 1u;
    uint first = col + lane_col;
    // Aligned rows end with whole words.
    uint valid = first < p.n ? (ALIGNED_C != 0u ? 8u : p.n - first) : 0u;
#ifndef WINDOWS
    vec4 bias_low = bias_four(first);
    vec4 bias_high = bias_four(first + 4u);
    uint column = first;
#else
    uint entry = first / p.windows;
    uint window = first - entry * p.windows;
    uint column = entry * p.c_entry + window;
#endif
    [[dont_unroll]] for (uint i = 0u; i < CM; i++) {
        [[unroll]] for (uint of = 0u; of < CM; of++) {
            if (of == i) {
                [[unroll]] for (uint j = 0u; j < CN; j++) {
                    uint at = strip + j * FN / 4u;
                    coopMatStore(sums[of * CN + j], tiles, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        strip_barrier();
        [[dont_unroll]] for (uint r = lane_row; r < FM; r += SUBGROUP / ROW_LANES) {
            uint line = row + i * FM + r;
            if (line >= LINES || valid == 0u) {
                break;
            }
            uint from = strip + r * SUM_STRIDE + lane_col / 4u;
#ifdef WINDOWS
            vec4 bias_low = row_bias(place.residual, line);
            vec4 bias_high = bias_low;
#endif
            uint residual_at = place.residual + line * p.ld_residual + first;
            // Half of the adjacent threads read the high vector first, so that eight accesses use
            // different banks.
            vec4 one = uintBitsToFloat(tiles[from + swap]);
            vec4 other = uintBitsToFloat(tiles[from + 1u - swap]);
            vec4 low = finish(swap != 0u ? other : one, bias_low, residual_at, valid);
            uint rest = valid > 4u ? valid - 4u : 0u;
            vec4 high = finish(swap != 0u ? one : other, bias_high, residual_at + 4u, rest);
            uint at = place.c + ROW_OF_C(line) * p.ldc + column;
            if (ALIGNED_C != 0u) {
                store_eight(low, high, at);
            } else {
#ifdef WINDOWS
                store_windows_of(low, high, at - window, window, valid);
#else
                store_four(low, at, valid);
                if (rest > 0u) {
                    store_four(high, at + 4u, rest);
                }
#endif
            }
        }
        strip_barrier();
    }
}
