// Loads of operand rows (queries, keys, values, dy) for attention_grad.glsl.

// Loads eight elements of an operand row; elements beyond the end of the row are 0.
#define FETCH(name, words, dim, place)                                       \
    uvec4 name(uint line, uint col) {                                        \
        return col * 8u < dim ? words[((place) >> 3) + col] : uvec4(0u);     \
    }

FETCH(fetch_k, k, p.head_dim, p.k_offset + batch * p.k_batch + head * p.k_head + line * p.k_seq)
FETCH(fetch_v, v, p.value_dim, p.v_offset + batch * p.v_batch + head * p.v_head + line * p.v_seq)
FETCH(fetch_q, q, p.head_dim, row_of(line, p.q_offset, p.q_batch, p.q_head, p.q_seq))
FETCH(fetch_dy, dy, p.value_dim, row_of(line, p.dy_offset, p.dy_batch, p.dy_head, p.dy_seq))
// Variants of fetch_q and fetch_dy for one query head per KV head, which need no division.
FETCH(fetch_q_alone, q, p.head_dim, p.q_offset + batch * p.q_batch + head * p.q_head + line * p.q_seq)
FETCH(fetch_dy_alone, dy, p.value_dim, p.dy_offset + batch * p.dy_batch + head * p.dy_head + line * p.dy_seq)

// Loads `count` rows of an operand from `from` on, below `end`, with all threads. All loads are in
// flight together.
#define LOAD(loaded, count, cols, fetch, from, end)                                                 \
    [[unroll]] for (uint i = 0u; i < ((count) * (cols) + THREADS - 1) / THREADS; i++) {             \
        uint at = gl_LocalInvocationIndex + i * THREADS;                                            \
        int line = int(from) + int(at / (cols));                                                    \
        loaded[i] = uvec4(0u);                                                                      \
        if (((count) * (cols) % THREADS == 0u || at < (count) * (cols)) && line < int(end)) {       \
            loaded[i] = fetch(uint(line), at % (cols));                                             \
        }                                                                                           \
    }

// Loads rows of two operands: of keys and values, or of queries and dy.
#define LOAD_KEYS(first, second, count, from, end)                                                  \
    LOAD(first, count, H_COLS, fetch_k, from, end)                                                  \
    LOAD(second, count, V_COLS, fetch_v, from, end)
#define LOAD_ROWS(first, second, count, from, end)                                                  \
    if (p.group == 1u) {                                                                            \
        LOAD(first, count, H_COLS, fetch_q_alone, from, end)                                        \
        LOAD(second, count, V_COLS, fetch_dy_alone, from, end)                                      \
    } else {                                                                                        \
        LOAD(first, count, H_COLS, fetch_q, from, end)                                              \
        LOAD(second, count, V_COLS, fetch_dy, from, end)                                            \
    }
#if OF_KEYS
#define LOAD_OWN LOAD_KEYS
#define LOAD_WALKED LOAD_ROWS
#else
#define LOAD_OWN LOAD_ROWS
#define LOAD_WALKED LOAD_KEYS
#endif
