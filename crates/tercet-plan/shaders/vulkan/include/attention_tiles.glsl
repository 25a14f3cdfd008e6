// Loads of keys, values and queries for attention_coop.glsl, staged as rows of 16-byte words.

// Loads eight elements of a row of `dim` elements at offset `at`; elements beyond the end are 0.
#define FETCH(name, words, dim)                                                         \
    uvec4 name(uint at, uint col) {                                                     \
        return col * 8u < dim ? words[(at >> 3) + col] : uvec4(0u);                     \
    }

FETCH(fetch_q, q, p.head_dim)
FETCH(fetch_k, k, p.head_dim)
FETCH(fetch_v, v, p.value_dim)

uvec4 loaded[LOADS];

// Loads BN rows of COLS words, from `key` on and below `end`, from global memory into registers. If
// the threads of a workgroup cover whole rows, tiles inside the operand use incremental addresses.
#define LOAD(name, words, fetch, COLS, loads, dim)                                      \
    void name(uint base, uint seq, int key, int end) {                                  \
        if (THREADS % COLS == 0u && key + int(BN) <= end && dim == COLS * 8u) {         \
            uint line = uint(key) + gl_LocalInvocationIndex / COLS;                     \
            uint at = (base >> 3) + line * (seq >> 3) + gl_LocalInvocationIndex % COLS; \
            [[unroll]] for (uint i = 0u; i < loads; i++) {                              \
                if (BN % (THREADS / COLS) == 0u || gl_LocalInvocationIndex + i * THREADS < BN * COLS) { \
                    loaded[i] = words[at + i * (THREADS / COLS) * (seq >> 3)];          \
                }                                                                       \
            }                                                                           \
            return;                                                                     \
        }                                                                               \
        [[unroll]] for (uint i = 0u; i < loads; i++) {                                  \
            uint at = gl_LocalInvocationIndex + i * THREADS;                            \
            int line = key + int(at / COLS);                                            \
            loaded[i] = uvec4(0u);                                                      \
            if (at < BN * COLS && line < end) {                                         \
                loaded[i] = fetch(base + uint(line) * seq, at % COLS);                  \
            }                                                                           \
        }                                                                               \
    }

LOAD(load_keys, k, fetch_k, K_COLS, K_LOADS, p.head_dim)
LOAD(load_values, v, fetch_v, V_COLS, V_LOADS, p.value_dim)

// Stores the loaded keys in shared memory.
void store_keys() {
    [[unroll]] for (uint i = 0u; i < K_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * K_COLS % THREADS == 0u || at < BN * K_COLS) {
            tiles[at / K_COLS * K_STRIDE + at % K_COLS] = loaded[i];
        }
    }
}

void store_values(bool guarded, uint step) {
    [[unroll]] for (uint i = 0u; i < V_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BN * V_COLS % THREADS == 0u || at < BN * V_COLS) {
            tiles[V_AT + at / V_COLS * V_STRIDE + at % V_COLS] = loaded[i];
            if (guarded && ELEMENTS_ARE_SPECIAL(loaded[i])) {
                special_step = step;
            }
        }
    }
}

// Loads of the queries per thread, all in flight together.
const uint Q_LOADS = (BM * K_COLS + THREADS - 1) / THREADS;

// Loads queries through shared memory into fragments, and stages the visible key ranges. Queries
// are negated if the scale is negative, so that a greater product is a greater score.
void load_queries(int n) {
    uint sign = p.scale < 0.0 ? 0x80008000u : 0u;
    uvec4 own[Q_LOADS];
    [[unroll]] for (uint i = 0u; i < Q_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        uint row = first_row + at / K_COLS;
        own[i] = uvec4(0u);
        if ((BM * K_COLS % THREADS == 0u || at < BM * K_COLS) && row < rows) {
            own[i] = fetch_q(row_of(row, p.q_offset, p.q_batch, p.q_head, p.q_seq), at % K_COLS);
        }
    }
    stage_rows(n);
    [[unroll]] for (uint i = 0u; i < Q_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (BM * K_COLS % THREADS == 0u || at < BM * K_COLS) {
            tiles[at / K_COLS * K_STRIDE + at % K_COLS] = own[i] ^ sign;
        }
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint h = 0u; h < HF; h++) {
            uint at = (own_row + i * FM) * K_STRIDE + h * FK / 8u;
            coopMatLoad(queries[i * HF + h], tiles, at, K_STRIDE, ROWS);
        }
    }
    barrier();
}
