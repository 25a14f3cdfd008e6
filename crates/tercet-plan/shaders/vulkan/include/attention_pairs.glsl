// Loads of split-F16 operands for attention_halves.glsl.

const uint K_LOADS = (BN * K_COLS + THREADS - 1) / THREADS;
const uint V_LOADS = (BN * V_COLS + THREADS - 1) / THREADS;
const uint LOADS = K_LOADS > V_LOADS ? K_LOADS : V_LOADS;

uvec4 loaded[LOADS];
// Scales of the loaded keys and values.
float key_scale;
float value_scale;

uint chunks_of(uint count) { return (count + CHUNK - 1u) / CHUNK; }

// First word of a chunk of a head's rows; chunk indices are clamped to the last of `chunks`.
uint chunk_at(uint chunk, uint chunks, uint len) {
    return ((batch * p.kv_heads + head) * chunks + min(chunk, chunks - 1u)) * len;
}

// Reads all scales of the head. Returns false if a chunk is flagged. Sets the scale of the sums to
// that of the largest values.
bool take_scales() {
    if (gl_LocalInvocationIndex == 0u) {
        is_unfit = 0u;
        least_scale = 0x7f7fffffu;
    }
    barrier();
    uint chunks = chunks_of(rows);
    for (uint at = gl_LocalInvocationIndex; at < chunks; at += THREADS) {
        if (q[chunk_at(at, chunks, K_CHUNK) + CHUNK * K_COLS].x == 0xffffffffu) {
            is_unfit = 1u;
        }
    }
    chunks = chunks_of(p.keys);
    for (uint at = gl_LocalInvocationIndex; at < chunks; at += THREADS) {
        uint of_values = v[chunk_at(at, chunks, V_CHUNK) + CHUNK * V_COLS].x;
        if (max(k[chunk_at(at, chunks, K_CHUNK) + CHUNK * K_COLS].x, of_values) == 0xffffffffu) {
            is_unfit = 1u;
        }
        atomicMin(least_scale, of_values);
    }
    barrier();
    if (first_row == 0u && IS_FIRST_PART && gl_LocalInvocationIndex == 0u) {
        rest[batch * p.kv_heads + head] = is_unfit;
    }
    sum_scale = uintBitsToFloat(least_scale);
    return is_unfit == 0u;
}

// Loads queries into fragments. Rows beyond the last chunk read other data; their results are not
// stored.
void load_queries() {
    uint first = first_row + own_row;
    uint base = chunk_at(first / CHUNK, chunks_of(rows), K_CHUNK);
    query_scale = uintBitsToFloat(q[base + CHUNK * K_COLS].x);
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        uint at = base + (first % CHUNK + i * FM) * K_COLS;
        [[unroll]] for (uint h = 0u; h < HF; h++) {
            coopMatLoad(queries_high[i * HF + h], q, at + h * FK / 8u, K_COLS, ROWS);
#if PIECES == 2
            coopMatLoad(queries_low[i * HF + h], q, at + (HEAD + h * FK) / 8u, K_COLS, ROWS);
#endif
        }
    }
}

// Loads BN rows of COLS words from global memory into registers, and stores them in shared memory.
#define LOAD(name, words, COLS, loads, scale)                                           \
    void name(int key) {                                                                \
        uint chunk = chunk_at(uint(key) / CHUNK, chunks_of(p.keys), CHUNK * COLS + SCALE_LEN); \
        uint base = chunk + uint(key) % CHUNK * COLS;                                   \
        [[unroll]] for (uint i = 0u; i < loads; i++) {                                  \
            uint at = gl_LocalInvocationIndex + i * THREADS;                            \
            if (BN * COLS % THREADS == 0u || at < BN * COLS) {                          \
                loaded[i] = words[base + at];                                           \
            }                                                                           \
        }                                                                               \
        scale = uintBitsToFloat(words[chunk + CHUNK * COLS].x);                         \
    }

#define STORE(name, first, COLS, loads)                                                 \
    void name() {                                                                       \
        [[unroll]] for (uint i = 0u; i < loads; i++) {                                  \
            uint at = gl_LocalInvocationIndex + i * THREADS;                            \
            if (BN * COLS % THREADS == 0u || at < BN * COLS) {                          \
                tiles[first + at / COLS * (COLS + 1u) + at % COLS] = loaded[i];         \
            }                                                                           \
        }                                                                               \
    }

LOAD(load_keys, k, K_COLS, K_LOADS, key_scale)
LOAD(load_values, v, V_COLS, V_LOADS, value_scale)
STORE(store_keys, 0u, K_COLS, K_LOADS)
STORE(store_values, V_AT, V_COLS, V_LOADS)
