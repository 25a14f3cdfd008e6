// Final stores of a workgroup's tiles, for few_rows_streamed.glsl and few_rows_laid.glsl. The
// including shader defines
//
//     FIRST_ROW                         its first row of A;
//     sum_of(tile, row, column)         a sum over all parts of k.

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

float result_of(uint tile, uint row, uint column, uint n) {
    float sum = sum_of(tile, row, column);
    if (GATED == 1u) {
        return activate(ACTIVATION, sum) * sum_of(tile, row, column + 8u);
    }
    if (BIAS == 1u) {
        uint at = p.bias_offset + (FIRST_ROW + row) * p.bias_row + n * p.bias_stride;
        sum += element_of(bias[A_TYPE == F32 ? at : at / 2u], at, A_TYPE);
    }
    return activate(ACTIVATION, sum);
}

// Stores the results of the tiles.
void store(uint first) {
    const uint words = RESULTS / TOGETHER;
    uint columns = p.n / (1u + GATED);
    for (uint i = gl_LocalInvocationIndex; i < TILES * words * ROWS; i += THREADS) {
        uint column = i % words * TOGETHER;
        uint row = i / words % ROWS;
        uint tile = i / words / ROWS;
        uint n = (first + tile) * RESULTS + column;
        if (FIRST_ROW + row >= p.m || n >= columns) {
            continue;
        }
        float result = result_of(tile, row, column, n);
        uint word = floatBitsToUint(result);
        if (Y_TYPE != F32) {
            float next = result_of(tile, row, column + 1u, n + 1u);
            word = Y_TYPE == F16 ? f32_to_f16(result) | f32_to_f16(next) << 16
                                 : f32_to_bf16(result) | f32_to_bf16(next) << 16;
        }
        y[((FIRST_ROW + row) * columns + n) / TOGETHER] = word;
    }
}
