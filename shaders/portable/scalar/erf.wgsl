// The error function, and gelu.

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
    // erf(x) / x - 1 in x^2 <= 0.9025, within 2^-36.
    let z = a * a;
    let p = 0.00522198062 + z * (-0.000849996461 + z * (0.000113970855 + z * -1.0090348e-5));
    let q = 0.128379166 + z * (-0.376126379 + z * (0.112837866 + z * (-0.0268657189 + z * p)));
    if (a < 0.92) {
        return copy_sign(a + a * q, x);
    }
    // -ln(1 - erf(t)) / t on [0.9, 4.1], within 2^-32 in 1 - erf(t).
    let t = min(a, 4.1);
    let r = 0.00289248582 + t * (-3.61336298e-5 + t * (-4.81884053e-5 + t * 5.14972728e-6));
    let s = 1.12854493 + t * (0.635656416 + t * (0.105203174 + t * (-0.0226122998 + t * r)));
    return copy_sign(1.0 - f_exp(-t * s), x);
}

// x Phi(x) for 2^-60 <= |x| <= 4, and for zeros, without any division: Phi(-a) = e^(-a^2 / 2) R(a), R a polynomial
// in a - 1.8125 within 2^-25. Its leading 12 bits times those of a are exact, and so is the square of those.
fn gelu_near(x: f32) -> f32 {
    let a = as_float(magnitude(x));
    let high = head(a);
    let square = high * high;
    // e^(-w / 2) - 1 = q with w = a^2 + 2 n ln(2), n the last bits of `count`.
    let count = rounded(square * -0.72134752 + 12582912.0);
    let n = count - 12582912.0;
    // Exact, while nobody adds the rest to one of both first.
    let w = rounded(square + n * 1.38671875) + ((a - high) * (a + high) - n * 0.000424388889);
    let q = w * (-0.5 + w * (0.125 + w * (-0.0208331402 + w * (0.00260415301 + w * (-0.000261551904 + w * (2.17759389e-5))))));
    let v = a - 1.8125;
    let o = -3.05151252e-6 + v * (6.85723535e-7 + v * (-2.08021731e-7 + v * (5.69185374e-8 + v * (-6.96564761e-9))));
    let p = -0.000745098456 + v * (0.000204525335 + v * (-5.39498833e-5 + v * (1.3525153e-5 + v * o)));
    let s = v * (-0.0714933425 + v * (0.0255399197 + v * (-0.00840093568 + v * (0.00257829204 + v * p))));
    let r = head(0.18066147 + s);
    let rest = rounded(0.18066147 - r) + s;
    let y = high * r;
    let low = (a - high) * r + a * rest;
    let tail = bitcast<f32>(bitcast<u32>(y + (low + (y + low) * q)) + (bitcast<u32>(count) << 23u));
    return select(x, bitcast<f32>(0x80000000u), x < 0.0) - tail;
}

// x Phi(x). For x < 0 the tail Phi(-a) = e^(-a^2 / 2) R(a) keeps its relative accuracy.
fn f_gelu(x: f32) -> f32 {
    let size = magnitude(x);
    if (size - 0x21800000u <= 0x40800000u - 0x21800000u) {
        return gelu_near(x);
    }
    if (size == 0u || size > 0x41700000u) {
        return select(x, bitcast<f32>(0x80000000u), x < -1.0);
    }
    let own = parts(x);
    if (size < 0x3f000000u) {
        // (Phi(x) - 1/2) / x in x^2 <= 0.25, within 2^-35.
        let z = x * x;
        let q = 0.398942292 + z * (-0.0664903745 + z * (0.00997344684 + z * (-0.00118608703 + z * 0.000109702334)));
        return scaled(0.5 * own.a + (own.a * x) * q, own.e);
    }
    let a = as_float(size);
    // The square is split so that its rounding does not reach the exponential.
    let high = head(a);
    let e = power(-0.5 * high * high, -0.5 * (a - high) * (a + high));
    // R / u in u - 0.55, u = 4 / (a + 4), 0.48 <= a <= 14.6, within 2^-29.
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
