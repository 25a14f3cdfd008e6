// GEMV with N-major weights: b is contiguous along n. A thread reads every SLICES-th row of b, PER
// columns of it. PER = 2 loads both elements of a word and requires 16-bit elements, stride 1 and
// word-aligned rows. Four rows are loaded before the first is used.
// uses matmul/b_words.wgsl: b_data
// uses prelude.wgsl: word_of

override B_TYPE: u32 = 0u;
override PER: u32 = 1u;

const ACROSS: u32 = 1u;

fn piece(col: u32, k: u32) -> vec2<f32> {
    let inside = k < p.k;
    let at = select(0u, b_base + k * p.b_row + col * p.b_col, inside);
    let word = b_data[word_of(at, B_TYPE)];
    if PER == 2u {
        return select(vec2<f32>(), pair_of(word, B_TYPE), inside);
    }
    return vec2<f32>(select(0.0, element_of(word, at, B_TYPE), inside), 0.0);
}

fn take(weights: vec2<f32>, k: u32) {
    let low = low_rows(k);
    first_low += weights.x * low;
    if PER == 2u {
        second_low += weights.y * low;
    }
    if ROWS == 8u {
        let high = high_rows(k);
        first_high += weights.x * high;
        if PER == 2u {
            second_high += weights.y * high;
        }
    }
}

fn accumulate(col: u32, slice: u32, local: u32, fresh: bool) {
    for (var k = slice; k < p.k; k += 4u * SLICES) {
        let w0 = piece(col, k);
        let w1 = piece(col, k + SLICES);
        let w2 = piece(col, k + 2u * SLICES);
        let w3 = piece(col, k + 3u * SLICES);
        take(w0, k);
        take(w1, k + SLICES);
        take(w2, k + 2u * SLICES);
        take(w3, k + 3u * SLICES);
    }
}
