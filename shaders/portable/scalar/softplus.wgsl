// ln(1 + e^x)
fn f_softplus(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    let tail = f_log1p(f_exp(-as_float(magnitude(x))));
    if (bitcast<u32>(x) >= 0x80000000u) {
        return tail;
    }
    return x + tail;
}
