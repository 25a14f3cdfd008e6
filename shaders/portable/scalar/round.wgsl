// x rounded to F16. The zero keeps compilers from taking the conversions there and back for nothing.
fn half_rounded(x: f32) -> f32 {
    if (NATIVE_HALVES) {
        return unpack2x16float(pack2x16float(vec2<f32>(x, 0.0)) | opaque_zero).x;
    }
    return rounded_to_half(x);
}
