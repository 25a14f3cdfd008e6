// Elements of a float operand a, loaded by words. Elements outside the matrix are 0.

fn a_at(row: u32, k: u32) -> f32 {
    let inside = row < p.m && k < p.k;
    let at = select(0u, a_base + row * p.a_row + k * p.a_col, inside);
    return select(0.0, element_of(a_data[word_of(at, A_TYPE)], at, A_TYPE), inside);
}
