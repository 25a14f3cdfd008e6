// asin, acos, atan and atan2.

// asin(s) - s for s^2 <= 1/4. The polynomial is (asin(s) / s - 1) / s^2 with an error below 2^-31.
fn asin_tail(s: f32, z: f32) -> f32 {
    let p = 0.0318176188 + z * (0.0144025721 + z * 0.0375652611);
    return s * z * (0.166666597 + z * (0.0750051066 + z * (0.0445157215 + z * p)));
}

// asin(sqrt(z)) as (high, low) for 0 <= z <= 1/4.
fn asin_of_root(z: f32) -> vec2<f32> {
    if (z == 0.0) {
        return vec2<f32>(0.0, 0.0);
    }
    let p = even_parts(z);
    let root = pair_root(p.a);
    let s = scaled(root.x, p.e);
    let high = head(s);
    return vec2<f32>(high, (s - high) + (scaled(root.y, p.e) + asin_tail(s, z)));
}

fn f_asin(x: f32) -> f32 {
    let size = magnitude(x);
    if (size < 0x39000000u) {
        return x;
    }
    if (size > 0x3f800000u) {
        return nan();
    }
    let a = as_float(size);
    if (a <= 0.5) {
        return copy_sign(a + asin_tail(a, a * a), x);
    }
    let half = asin_of_root(0.5 * (1.0 - a));
    // pi / 2 - 2 half
    return copy_sign((1.57079637 - 2.0 * half.x) - (2.0 * half.y + exact(4.37113883e-8, a)), x);
}

fn f_acos(x: f32) -> f32 {
    let size = magnitude(x);
    if (size > 0x3f800000u) {
        return nan();
    }
    let a = as_float(size);
    if (a <= 0.5) {
        let y = pair_sum(1.57079637, -x);
        return y.x + (y.y - (asin_tail(x, x * x) + exact(4.37113883e-8, x)));
    }
    let half = asin_of_root(0.5 * (1.0 - a));
    if (x > 0.0) {
        return 2.0 * (half.x + half.y);
    }
    return (3.14159274 - 2.0 * half.x) - (2.0 * half.y + exact(8.74227766e-8, a));
}

// atan(a / b) as (high, low), for positive a <= b.
fn atan_of_quotient(a: f32, b: f32) -> vec2<f32> {
    // Above tan(pi / 8): pi / 4 + atan((a - b) / (a + b)).
    let upper = a > 0.414213568 * b;
    var above = vec2<f32>(a, 0.0);
    var below = vec2<f32>(b, 0.0);
    var base = vec2<f32>(0.0, 0.0);
    if (upper) {
        above = pair_sum(-b, a);
        below = pair_sum(b, a);
        base = vec2<f32>(0.785398185, exact(-2.18556941e-8, a));
    }
    let t = pair_quotient(above.x, above.y, below.x, below.y);
    // (atan(t) / t - 1) / t^2 as a polynomial in t^2 <= 0.1716, with an error below 2^-30.
    let z = t.x * t.x;
    let p = 0.199984878 + z * (-0.142438307 + z * (0.105958633 + z * -0.0608308464));
    let tail = t.y + t.x * z * (-0.333333164 + z * p);
    let sum = pair_sum(base.x, t.x);
    return vec2<f32>(select(t.x, sum.x, upper), select(tail, sum.y + (tail + base.y), upper));
}

fn f_atan(x: f32) -> f32 {
    let size = magnitude(x);
    if (size > 0x7f800000u || size < 0x39000000u) {
        return x;
    }
    let a = min(as_float(size), 1.0e12);
    if (a <= 1.0) {
        let y = atan_of_quotient(a, 1.0);
        return copy_sign(y.x + y.y, x);
    }
    let y = atan_of_quotient(1.0, a);
    let sum = pair_sum(1.57079637, -y.x);
    return copy_sign(sum.x + (sum.y - (y.y + exact(4.37113883e-8, a))), x);
}

// atan2(y, x) for 0 <= y and any x, both not NaN.
fn angle_of_point(y: f32, x: f32) -> f32 {
    let x_size = magnitude(x);
    let y_size = magnitude(y);
    let left = bitcast<u32>(x) >= 0x80000000u;
    if (y_size == 0u) {
        return select(0.0, 3.14159274, left);
    }
    if (x_size == 0u) {
        return 1.57079637;
    }
    if (max(x_size, y_size) == 0x7f800000u) {
        if (x_size == y_size) {
            return select(0.785398185, 2.3561945, left);
        }
        let flat = select(0.0, 3.14159274, left);
        return select(1.57079637, flat, x_size == 0x7f800000u);
    }
    let p = parts(as_float(x_size));
    let q = parts(y);
    let e = q.e - p.e;
    if (e < -40) {
        if (left) {
            return 3.14159274;
        }
        return scaled(quotient(q.a, p.a), e);
    }
    if (e > 40) {
        return 1.57079637;
    }
    // Exponents are separated first: a common power of two does not change the quotient.
    let b = p.a;
    let a = scaled(q.a, e);
    let steep = a > b;
    let t = atan_of_quotient(min(a, b), max(a, b));
    // The four cases: t, pi / 2 - t, pi - t, pi / 2 + t.
    if (!steep && !left) {
        return t.x + t.y;
    }
    let base = select(vec2<f32>(3.14159274, -8.74227766e-8), vec2<f32>(1.57079637, -4.37113883e-8), steep);
    let minus = steep != left;
    let sum = pair_sum(base.x, select(t.x, -t.x, minus));
    return sum.x + (sum.y + (select(t.y, -t.y, minus) + exact(base.y, a)));
}

fn f_atan2(y: f32, x: f32) -> f32 {
    if (is_nan(y) || is_nan(x)) {
        return nan();
    }
    return copy_sign(angle_of_point(as_float(magnitude(y)), x), y);
}
