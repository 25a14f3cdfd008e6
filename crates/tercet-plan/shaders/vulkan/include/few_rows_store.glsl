// Final stores of a workgroup's tiles, for few_rows_streamed.glsl and few_rows_laid.glsl. The
// including shader defines
//
//     STORED_ROWS                       rows that are stored at once;
//     row_of(i)                         the row of A of stored row i;
//     sum_of(tile, i, column)           a sum over all parts of k.

// Results of a tile per row, and results per word.
const uint RESULTS = 16 / (1 + GATED);
const uint TOGETHER = Y_TYPE == F32 ? 1 : 2;

float element_of(uint word, uint at, uint type) {
    if (type == F32) {
        return uintBitsToFloat(word);
    }
    uint bits = (at & 1u) == 0u ? word & 0xffffu : word >> 16;
    return type == F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

float result_of(uint tile, uint i, uint column, uint n) {
    float sum = sum_of(tile, i, column);
    if (GATED == 1u) {
        return activate(ACTIVATION, sum) * sum_of(tile, i, column + 8u);
    }
    if (BIAS == 1u) {
        uint at = p.bias_offset + row_of(i) * p.bias_row + n * p.bias_stride;
        sum += element_of(bias[A_TYPE == F32 ? at : at / 2u], at, A_TYPE);
    }
    return activate(ACTIVATION, sum);
}

// Stores the results of the tiles; `from` is the offset of the first row in words.
void store(uint first, uint from) {
    const uint words = RESULTS / TOGETHER;
    uint columns = p.n / (1u + GATED);
    for (uint i = gl_LocalInvocationIndex; i < TILES * words * STORED_ROWS; i += THREADS) {
        uint column = i % words * TOGETHER;
        uint row = i / words % STORED_ROWS;
        uint tile = i / words / STORED_ROWS;
        uint n = (first + tile) * RESULTS + column;
        if (row_of(row) >= p.m || n >= columns) {
            continue;
        }
        float result = result_of(tile, row, column, n);
        uint word = floatBitsToUint(result);
        if (Y_TYPE != F32) {
            float next = result_of(tile, row, column + 1u, n + 1u);
            word = Y_TYPE == F16 ? f32_to_f16(result) | f32_to_f16(next) << 16
                                 : f32_to_bf16(result) | f32_to_bf16(next) << 16;
        }
        y[from + (row_of(row) * columns + n) / TOGETHER] = word;
    }
}
