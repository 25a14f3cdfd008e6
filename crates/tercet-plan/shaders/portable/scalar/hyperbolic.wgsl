// sinh, cosh and tanh.
// uses prelude.wgsl: as_float, is_nan, magnitude
// uses scalar/base.wgsl: copy_sign, quotient, scaled
// uses scalar/exp.wgsl: f_exp, power

fn f_tanh(x: f32) -> f32 {
    let size = magnitude(x);
    if (size > 0x7f800000u || size < 0x39000000u) {
        return x;
    }
    let a = as_float(size);
    // (tanh(x) / x - 1) / x^2 as a polynomial in x^2 <= 0.4225, with an error below 2^-32.
    let z = a * a;
    let p = -0.053940542 + z * (0.0216662269 + z * (-0.00809167977 + z * 0.00206441153));
    var y = a + a * z * (-0.333333284 + z * (0.133331582 + z * p));
    if (a >= 0.625) {
        y = 1.0 - quotient(2.0, f_exp(2.0 * min(a, 10.0)) + 1.0);
    }
    return copy_sign(y, x);
}

// e^a / 2 for a >= 0, without overflow in the range of sinh.
fn half_exp(a: f32) -> f32 {
    let p = power(min(a, 110.0), 0.0);
    return scaled(1.0 + p.q, p.n - 1);
}

fn f_sinh(x: f32) -> f32 {
    let size = magnitude(x);
    if (size >= 0x7f800000u || size < 0x39000000u) {
        return x;
    }
    let a = as_float(size);
    // (sinh(x) / x - 1) / x^2 as a polynomial in x^2 <= 1, with an error below 2^-43.
    let z = a * a;
    let p = 0.000198412963 + z * (2.75520642e-6 + z * 2.552982e-8);
    var y = a + a * z * (0.166666672 + z * (0.00833333284 + z * p));
    if (a >= 1.0) {
        var e = half_exp(a);
        if (a < 20.0) {
            e = e - quotient(0.25, e);
        }
        y = e;
    }
    return copy_sign(y, x);
}

fn f_cosh(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    let a = as_float(magnitude(x));
    let e = half_exp(a);
    if (a >= 20.0) {
        return e;
    }
    return e + quotient(0.25, e);
}
