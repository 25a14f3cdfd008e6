// Square roots.

// sqrt(m) as (high, low) for 1 <= m < 4.
fn pair_root(m: f32) -> vec2<f32> {
    let y = trim(sqrt(m));
    let high = head(y);
    let rest = y - high;
    let left = ((m - high * high) - 2.0 * high * rest) - rest * rest;
    return vec2<f32>(y, 0.5 * left / y);
}

// Decomposes a positive finite x to m 4^e.
fn even_parts(x: f32) -> Parts {
    let p = parts(x);
    let odd = p.e & 1;
    return Parts(select(p.a, 2.0 * p.a, odd == 1), (p.e - odd) / 2);
}

fn f_sqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if (magnitude(x) == 0u || bits == 0x7f800000u || is_nan(x)) {
        return x;
    }
    if (bits >= 0x80000000u) {
        return nan();
    }
    let p = even_parts(x);
    let root = pair_root(p.a);
    return scaled(root.x + root.y, p.e);
}

fn f_rsqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if (magnitude(x) == 0u) {
        return as_float(bits | 0x7f800000u);
    }
    if (is_nan(x) || bits >= 0x80000000u) {
        return nan();
    }
    if (bits == 0x7f800000u) {
        return 0.0;
    }
    let p = even_parts(x);
    let root = pair_root(p.a);
    let q = pair_quotient(1.0, 0.0, root.x, root.y);
    return scaled(q.x + q.y, -p.e);
}
