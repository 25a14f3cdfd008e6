// Sigmoid, SiLU and tanh-GELU.
// uses prelude.wgsl: as_float, is_nan, magnitude
// uses scalar/base.wgsl: exact, pair_product, pair_quotient, pair_sum, parts, rounded, scaled
// uses scalar/exp.wgsl: power
// uses scalar/tail.wgsl: is_near, less_tail

// x / (1 + e^-(z + low)) for a finite nonzero x and z of the same sign, |z| < 400.
fn gated(x: f32, z: f32, low: f32) -> f32 {
    let x_parts = parts(x);
    let p = power(-abs(z), select(-low, low, z < 0.0));
    let e = pair_sum(1.0, p.q);
    let tail = scaled(e.x, p.n);
    let below = pair_sum(1.0, tail);
    var above = vec2<f32>(x_parts.a, 0.0);
    var n = x_parts.e;
    if (z < 0.0) {
        above = pair_product(x_parts.a, e.x);
        above.y += x_parts.a * e.y;
        n += p.n;
    }
    let rest = below.y + select(0.0, scaled(e.y, p.n), p.n > -60);
    let q = pair_quotient(above.x, above.y, below.x, rest);
    return scaled(q.x + q.y, n);
}

fn f_sigmoid(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    return gated(1.0, clamp(x, -120.0, 120.0), 0.0);
}

// x times a gate that rounds to 0 or 1. The function also handles zeros, infinity and NaN.
fn gate_limit(x: f32) -> f32 {
    return select(x, bitcast<f32>(0x80000000u), x < -1.0);
}

fn f_silu(x: f32) -> f32 {
    let size = magnitude(x);
    if (size == 0u || size > 0x43200000u) {
        return gate_limit(x);
    }
    return gated(x, x, 0.0);
}

// Exponent of the gate 0.5 (1 + tanh(y)) = sigmoid(2 y). 2 y = x (c + d x^2) reaches 100, so it is
// returned as (high, low).
fn gelu_tanh_gate(x: f32) -> vec2<f32> {
    let square = pair_product(x, x);
    let cubic = pair_product(square.x, 0.0713548139);
    let inner = pair_sum(max(cubic.x, 1.59576917), min(cubic.x, 1.59576917));
    let rest = square.x * 2.39883247e-9 - exact(4.53406805e-8, x);
    let low = inner.y + (cubic.y + square.y * 0.0713548139 + rest);
    let z = pair_product(x, inner.x);
    return vec2<f32>(z.x, z.y + x * low);
}

// x sigmoid(2 y) for zeros and for magnitudes that `is_near` accepts. The polynomial is
// ln(sigmoid(-2 y)) + 0.59375 a^2 + 1.03856166 in a - 1.375, with an error below 2^-24.
fn gelu_tanh_near(x: f32) -> f32 {
    let a = as_float(magnitude(x));
    let v = a - 1.375;
    let u = -1.0890894e-5 + v * (3.0614021e-6 + v * (3.670914e-7 + v * (-2.1763907e-7 + v * 2.2718947e-8)));
    let o = 0.00029335835 + v * (0.00014881344 + v * (-2.7534841e-5 + v * u));
    let p = -0.025030142 + v * (-0.00416495 + v * (-0.0019416927 + v * o));
    let l = -0.30709922 + v * (-0.19815989 + v * (0.16916624 + v * p));
    return less_tail(x, a, l, rounded(8388609.0 + a * (0.7910156 + a * 0.7167969)));
}

fn f_gelu_tanh(x: f32) -> f32 {
    let size = magnitude(x);
    if (is_near(size)) {
        return gelu_tanh_near(x);
    }
    if (size == 0u || size > 0x41800000u) {
        return gate_limit(x);
    }
    let z = gelu_tanh_gate(x);
    return gated(x, z.x, z.y);
}
