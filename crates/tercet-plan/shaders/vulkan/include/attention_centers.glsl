// Running row maxima ("centers") of attention on cooperative matrices.

// Updates the centers of all rows and rescales the accumulators, if a score exceeds its row's
// center by more than SLACK. Weights are therefore at most 2^SLACK, which F16 represents as
// precisely as smaller ones. `by` converts scores to the units of centers. `lift` is the base-2
// exponent of this step's weight scale.
void raise_centers(float by, float lift) {
    SUMS most[RF];
    bool far = false;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        most[i] = scores[i * KF];
        [[unroll]] for (uint e = 0u; e < most[i].length(); e++) {
            [[unroll]] for (uint j = 1u; j < KF; j++) {
                most[i][e] = max(most[i][e], scores[i * KF + j][e]);
            }
            far = far || most[i][e] * by + lift > centers[i][e] + SLACK / POWER;
        }
    }
    far = subgroupAny(far);
    uint at = P_AT + gl_SubgroupID * P_LEN;
    if (far) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            coopMatStore(most[i], tiles, at + i * SUM_LEN, SUM_STRIDE, ROWS);
        }
    }
    // All subgroups call subgroup_meets() equally often, because some drivers implement it as a
    // workgroup barrier.
    subgroup_meets();
    if (far) {
        for (uint row = gl_SubgroupInvocationID; row < WM; row += SUBGROUP) {
            vec4 x = vec4(minus_infinity());
            [[unroll]] for (uint w = 0u; w < FN / 4u; w++) {
                x = max(x, uintBitsToFloat(tiles[at + row * SUM_STRIDE + w]));
            }
            float before = NUMBER(own_row + row);
            float center = max(before, CENTER(max(max(x.x, x.y), max(x.z, x.w)) * by + lift));
            NUMBER(own_row + row) = center;
            NUMBER(BM + own_row + row) = exp2((before - center) * POWER);
        }
    }
    subgroup_meets();
    if (far) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            SUMS rescale;
            coopMatLoad(centers[i], numbers, (own_row + i * FM) / 4u, 0, COLUMNS);
            coopMatLoad(rescale, numbers, (BM + own_row + i * FM) / 4u, 0, COLUMNS);
            weights[i] = weights[i] * rescale;
            [[unroll]] for (uint d = 0u; d < VF; d++) {
                sums[i * VF + d] = sums[i * VF + d] * rescale;
            }
        }
    }
}
