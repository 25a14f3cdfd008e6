// x rounded to F16. The runtime zero prevents compilers from removing the conversion to F16 and
// back.
fn half_rounded(x: f32) -> f32 {
    if (NATIVE_HALVES) {
        return unpack2x16float(pack2x16float(vec2<f32>(x, 0.0)) | opaque_zero).x;
    }
    return rounded_to_half(x);
}
