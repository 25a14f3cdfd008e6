// erf and GELU.
// uses prelude.wgsl: as_float, magnitude
// uses scalar/base.wgsl: copy_sign, head, pair_product, pair_quotient, pair_sum, parts, rounded, scaled
// uses scalar/exp.wgsl: f_exp, power
// uses scalar/tail.wgsl: is_near, less_tail

fn f_erf(x: f32) -> f32 {
    let size = magnitude(x);
    if (size > 0x7f800000u || size == 0u) {
        return x;
    }
    if (size < 0x10000000u) {
        let p = parts(x);
        return scaled(1.12837923 * p.a, p.e);
    }
    let a = as_float(size);
    // erf(x) / x - 1 as a polynomial in x^2 <= 0.9025, with an error below 2^-36.
    let z = a * a;
    let p = 0.00522198062 + z * (-0.000849996461 + z * (0.000113970855 + z * -1.0090348e-5));
    let q = 0.128379166 + z * (-0.376126379 + z * (0.112837866 + z * (-0.0268657189 + z * p)));
    if (a < 0.92) {
        return copy_sign(a + a * q, x);
    }
    // -ln(1 - erf(t)) / t on [0.9, 4.1]. The error of 1 - erf(t) is below 2^-32.
    let t = min(a, 4.1);
    let r = 0.00289248582 + t * (-3.61336298e-5 + t * (-4.81884053e-5 + t * 5.14972728e-6));
    let s = 1.12854493 + t * (0.635656416 + t * (0.105203174 + t * (-0.0226122998 + t * r)));
    return copy_sign(1.0 - f_exp(-t * s), x);
}

// x Phi(x) for zeros and for magnitudes that `is_near` accepts. The polynomial is ln(Phi(-a)) +
// 0.59375 a^2 + 1.03856166 in a - 1.25, with an error below 2^-25.
fn gelu_near(x: f32) -> f32 {
    let a = as_float(magnitude(x));
    let v = a - 1.25;
    let o = 2.509088e-5 + v * (5.3269664e-6 + v * (-2.3229522e-6 + v * (3.9991147e-7 + v * -2.8404855e-8)));
    let p = -0.016438551 + v * (0.0028076458 + v * (-0.0003773568 + v * o));
    let l = -0.28132963 + v * (-0.24444163 + v * (0.17985672 + v * p));
    return less_tail(x, a, l, rounded(8388609.0 + a * (0.9921875 + a * 0.6230469)));
}

// GELU: x Phi(x). For x < 0 the tail Phi(-a) = e^(-a^2 / 2) R(a) preserves the relative accuracy.
fn f_gelu(x: f32) -> f32 {
    let size = magnitude(x);
    if (is_near(size)) {
        return gelu_near(x);
    }
    if (size == 0u || size > 0x41700000u) {
        return select(x, bitcast<f32>(0x80000000u), x < -1.0);
    }
    let own = parts(x);
    if (size < 0x21800000u) {
        return scaled(0.5 * own.a, own.e);
    }
    let a = as_float(size);
    // The square is split, so that its rounding error does not enter the exponent.
    let high = head(a);
    let e = power(-0.5 * high * high, -0.5 * (a - high) * (a + high));
    // R / u as a polynomial in u - 0.55 with u = 4 / (a + 4), a <= 14.6; the error is below 2^-29.
    let below = pair_sum(max(a, 4.0), min(a, 4.0));
    let u = pair_quotient(4.0, 0.0, below.x, below.y);
    let v = (u.x - 0.55) + u.y;
    let p = 0.254346132 + v * (0.0409425236 + v * (-0.0728007779 + v * (-0.0457134545 + v * (0.0189637057 + v * 0.0227074362))));
    let r = 0.205034703 + v * (0.345582455 + v * (0.446787715 + v * (0.422718912 + v * p)));
    if (x > 0.0) {
        let tail = (u.x + u.y) * r;
        return x * (1.0 - scaled(tail + tail * e.q, e.n));
    }
    let scale = pair_product(own.a, u.x);
    let y = pair_product(scale.x, r);
    let low = y.y + (scale.y + own.a * u.y) * r;
    return scaled(y.x + (low + (y.x + low) * e.q), own.e + e.n);
}
