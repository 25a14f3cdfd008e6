// f_gelu where its short way takes x: 2^-60 <= |x| <= 4 and zeros. A doubt elsewhere.

fn q_gelu(x: f32) -> f32 {
    let size = magnitude(x);
    doubt = doubt | (!is_near(size) & (size != 0u));
    return gelu_near(x);
}
