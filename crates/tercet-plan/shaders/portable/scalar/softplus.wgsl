// ln(1 + e^x)
// uses prelude.wgsl: as_float, is_nan, magnitude
// uses scalar/exp.wgsl: f_exp
// uses scalar/log.wgsl: f_log1p
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
