// States of chunk_walk.glsl: load, conversion to matmul operands, and store.

bool has_states(uint i) { return STATE_BLOCKS % 4u == 0u || block * DEEP + i < STATE_BLOCKS; }

uint state_at(uint i, uint j) { return STATES_AT + (block * DEEP + i) * 16u * STRIDE + word + j * 2u; }

// Computes the largest state of the subgroup, for `place_states`.
void keep_greatest() {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < DEEP * OWN; i++) {
        [[unroll]] for (uint e = 0u; e < states[i].length(); e++) {
            most = max(most, abs(states[i][e]));
        }
    }
    most = greatest_of(most);
    if (gl_SubgroupInvocationID == 0u) {
        greatest[gl_SubgroupID] = most;
    }
}

// Offset of the states of a fragment in memory, in floats; a row of states per column.
uint by_columns(uint head, uint first_column, uint i, uint j) {
    return (head * p.columns + first_column + word * 8u + j * 16u) * STATES + (block * DEEP + i) * 16u;
}

void begin_narrow_states(uint head, uint first_column) {
    uint of_head = head * STATES;
    [[unroll]] for (uint i = 0u; i < STATE_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (STATES * VALUE_WORDS % THREADS == 0u || at < STATES * VALUE_WORDS) {
            uvec4 x = uvec4(0u);
            if (INITIAL == 1u) {
                x = initial[((of_head + at / VALUE_WORDS) * p.columns + first_column) / 8u + at % VALUE_WORDS];
            }
            tiles[STATES_AT + at / VALUE_WORDS * STRIDE + at % VALUE_WORDS] = x;
        }
    }
    barrier();
    state_by = 1.0;
    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            states[i * OWN + j] = SUMS(0.0);
            if (INITIAL == 1u && has_states(i)) {
                states[i * OWN + j] = load_wide(state_at(i, j));
            }
        }
    }
}

// Stores the scaled 16-bit states in shared memory as matmul operands.
void place_states() {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i++) {
        most = max(most, greatest[i]);
    }
    state_by = power_for(most, 10, 60);
    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            if (has_states(i)) {
                store_narrow(states[i * OWN + j] * state_by, state_at(i, j));
            }
        }
    }
}

// Loads the initial F32 states, and stores them as matmul operands.
void begin_wide_states(uint head, uint first_column) {
    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            states[i * OWN + j] = SUMS(0.0);
            if (has_states(i)) {
                uint at = by_columns(head, first_column, i, j);
                coopMatLoad(states[i * OWN + j], initial, at / 4u, STATES / 4u, COLUMNS_FIRST);
            }
        }
    }
    keep_greatest();
    barrier();
    place_states();
}

void end_states(uint head, uint first_column) {
    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            if (has_states(i) && DELTA == 0u) {
                uint at = by_columns(head, first_column, i, j);
                coopMatStore(states[i * OWN + j], last, at / 4u, STATES / 4u, COLUMNS_FIRST);
            } else if (has_states(i)) {
                uint at = (head * STATES + (block * DEEP + i) * 16u) * p.columns + first_column + word * 8u + j * 16u;
                coopMatStore(states[i * OWN + j], last, at / 4u, p.columns / 4u, ROWS);
            }
        }
    }
}
