// Fast GELU for zeros and 2^-60 <= |x| <= 4; other values set `doubt`.

fn q_gelu(x: f32) -> f32 {
    let size = magnitude(x);
    doubt = doubt | (!is_near(size) & (size != 0u));
    return gelu_near(x);
}
