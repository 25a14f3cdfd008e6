// Final stores of attention_coop.glsl.

// Adds the columns of the weight fragments: the sum of the weights of each row.
void finish_weights() {
    uint at = P_AT + gl_SubgroupID * P_LEN;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        coopMatStore(weights[i], tiles, at + i * SUM_LEN, SUM_STRIDE, ROWS);
    }
    subgroup_meets();
    for (uint row = gl_SubgroupInvocationID; row < WM; row += SUBGROUP) {
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint w = 0u; w < FN / 4u; w++) {
            sum += uintBitsToFloat(tiles[at + row * SUM_STRIDE + w]);
        }
        NUMBER(own_row + row) = (sum.x + sum.y) + (sum.z + sum.w);
    }
    barrier();
}

// Stores strips of FM rows, YF fragments per iteration.
void store_results() {
    uint mine = gl_SubgroupID * FM * Y_STRIDE;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint first = 0u; first < VF; first += YF) {
            [[unroll]] for (uint d = 0u; d < YF; d++) {
                if (first + d < VF) {
                    coopMatStore(sums[i * VF + first + d], tiles, mine + d * FN / 4u, Y_STRIDE, ROWS);
                }
            }
            subgroup_meets();
            for (uint at = gl_SubgroupInvocationID; at < FM * Y_COLS; at += SUBGROUP) {
                uint local = own_row + i * FM + at / Y_COLS;
                uint col = first * FN / RESULT + at % Y_COLS;
                uint row = first_row + local;
                if (row < rows && col * RESULT < p.value_dim) {
                    uint from = mine + at / Y_COLS * Y_STRIDE + at % Y_COLS * (RESULT / 4u);
                    float total = NUMBER(local);
                    uvec4 x = total == 0.0 ? uvec4(0u) : results_of(from, total);
                    y[RESULT_AT(row, local) / RESULT + col] = x;
                }
            }
            subgroup_meets();
        }
    }
}
