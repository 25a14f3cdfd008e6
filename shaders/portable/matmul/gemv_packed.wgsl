// Columns of b are rows of packed blocks: an invocation takes every SLICES-th group of 16 weights, which
// have one scale in every scheme. b_col is in bytes.

const ACROSS: u32 = 0u;
const PER: u32 = 1u;

fn packed_word(i: u32) -> u32 {
    return b_data[i];
}

fn four_of(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(a_at(row, k), a_at(row, k + 1u), a_at(row, k + 2u), a_at(row, k + 3u));
}

// Per row: the sum of codes times elements in x, of the elements in y.
fn add(sums: vec2<f32>, codes: vec4<f32>, row: u32, k: u32) -> vec2<f32> {
    let x = four_of(row, k);
    return sums + vec2<f32>(dot(codes, x), select(0.0, (x.x + x.y) + (x.z + x.w), HAS_MIN == 1u));
}

fn one_row(block: u32, j: u32, k: u32, scale: vec2<f32>) {
    var sums = vec2<f32>();
    for (var i = 0u; i < 16u; i += 4u) {
        sums = add(sums, codes_of(block, j + i), 0u, k + i);
    }
    first_low.x += scale.x * sums.x + scale.y * sums.y;
}

fn eight_rows(block: u32, j: u32, k: u32, scale: vec2<f32>) {
    for (var i = 0u; i < 16u; i += 4u) {
        let w = scale.x * codes_of(block, j + i) + vec4<f32>(scale.y);
        let at = k + i;
        first_low += vec4<f32>(dot(w, four_of(0u, at)), dot(w, four_of(1u, at)), dot(w, four_of(2u, at)), dot(w, four_of(3u, at)));
        first_high += vec4<f32>(dot(w, four_of(4u, at)), dot(w, four_of(5u, at)), dot(w, four_of(6u, at)), dot(w, four_of(7u, at)));
    }
}

fn accumulate(col: u32, slice: u32) {
    let column = b_base + col * p.b_col;
    for (var k = slice * 16u; k < p.k; k += SLICES * 16u) {
        let block = column + (k / BLOCK_LEN) * BLOCK_BYTES;
        let j = k % BLOCK_LEN;
        let scale = scale_of(block, j);
        if ROWS == 1u {
            one_row(block, j, k, scale);
        } else {
            eight_rows(block, j, k, scale);
        }
    }
}
