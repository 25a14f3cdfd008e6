// Second result of attention on cooperative matrices: the log-sum-exp, or the row statistics for
// the split-KV reduction.

// Centers of the rows that this thread adds in finish_weights(), which overwrites them in shared
// memory.
const uint OWN_ROWS = (WM + SUBGROUP - 1) / SUBGROUP;
float kept_centers[OWN_ROWS];

void keep_centers() {
    [[unroll]] for (uint i = 0u; i < OWN_ROWS; i++) {
        kept_centers[i] = NUMBER(own_row + min(i * SUBGROUP + gl_SubgroupInvocationID, WM - 1u));
    }
}

#if IN_PARTS
// Stores the center and the sum of the weights of each row.
void store_stats() {
    [[unroll]] for (uint i = 0u; i < OWN_ROWS; i++) {
        uint own = i * SUBGROUP + gl_SubgroupInvocationID;
        if (own < WM) {
            stats[first_slot_row() + own_row + own] = vec2(kept_centers[i], NUMBER(own_row + own));
        }
    }
}
#else
// Stores the log-sum-exp of each row, by batch entry, query head and query.
void store_lse() {
    [[unroll]] for (uint i = 0u; i < OWN_ROWS; i++) {
        uint own = i * SUBGROUP + gl_SubgroupInvocationID;
        uint row = first_row + own_row + own;
        if (own < WM && row < rows) {
            float total = NUMBER(own_row + own);
            float sum = kept_centers[i] / UNIT + log2(total) / LOG2_E;
            uint query_head = (batch * p.kv_heads + head) * p.group + row % p.group;
            lse[query_head * p.queries + row / p.group] = total == 0.0 ? minus_infinity() : sum;
        }
    }
}
#endif
