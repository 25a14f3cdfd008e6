// GEMV with K-major weights: b has stride 1 along k. A thread reads every SLICES-th piece of its
// column. A piece is a word of two elements if B_WORDS is 1 (16-bit elements and word-aligned
// columns), otherwise one element. Four pieces are loaded before the first is used.
// uses matmul/b_words.wgsl: b_data
// uses prelude.wgsl: word_of

override B_TYPE: u32 = 0u;
override B_WORDS: u32 = 0u;

const ACROSS: u32 = 0u;
const PER: u32 = 1u;

fn piece(column: u32, k: u32) -> vec2<f32> {
    let inside = k < p.k;
    let at = select(0u, column + k * p.b_row, inside);
    let word = b_data[word_of(at, B_TYPE)];
    if B_WORDS == 1u {
        let pair = pair_of(word, B_TYPE);
        return select(vec2<f32>(), pair, vec2<bool>(inside, k + 1u < p.k));
    }
    return vec2<f32>(select(0.0, element_of(word, at, B_TYPE), inside), 0.0);
}

fn take(weights: vec2<f32>, k: u32) {
    first_low += weights.x * low_rows(k);
    if B_WORDS == 1u {
        first_low += weights.y * low_rows(k + 1u);
    }
    if ROWS == 8u {
        first_high += weights.x * high_rows(k);
        if B_WORDS == 1u {
            first_high += weights.y * high_rows(k + 1u);
        }
    }
}

fn accumulate(col: u32, slice: u32, local: u32, fresh: bool) {
    let column = b_base + col * p.b_col;
    let step = SLICES * (1u + B_WORDS);
    for (var k = slice * (1u + B_WORDS); k < p.k; k += 4u * step) {
        let w0 = piece(column, k);
        let w1 = piece(column, k + step);
        let w2 = piece(column, k + 2u * step);
        let w3 = piece(column, k + 3u * step);
        take(w0, k);
        take(w1, k + step);
        take(w2, k + 2u * step);
        take(w3, k + 3u * step);
    }
}
