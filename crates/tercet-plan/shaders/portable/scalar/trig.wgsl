// sin, cos and tan. x = quadrant pi / 2 + high + low, with `low` far below the last bit of `high`.
// Up to 256 the range reduction subtracts parts of pi / 2. Above 256 the range reduction uses the
// relevant bits of 2 / pi (Payne and Hanek, 1983).

struct Angle {
    high: f32,
    low: f32,
    quadrant: u32,
}

// Word i of the bits of 2 / pi; the first word is the integer part.
fn two_over_pi(i: u32) -> u32 {
    switch i {
        case 0u: { return 0u; }
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        default: { return 0xfe5163abu; }
    }
}

// 32 bits of 2 / pi, starting at `bit`.
fn two_over_pi_at(bit: u32) -> u32 {
    let word = bit >> 5u;
    let shift = bit & 31u;
    if (shift == 0u) {
        return two_over_pi(word);
    }
    return (two_over_pi(word) << shift) | (two_over_pi(word + 1u) >> (32u - shift));
}

// Range reduction for 2^-7 <= |x| < inf.
fn large_angle(x: f32) -> Angle {
    let size = magnitude(x);
    let digits = (size & 0x7fffffu) | 0x800000u;
    // |x| = digits 2^s. Bits of 2 / pi with a weight above 2^(1 - s) give whole turns. The next 96 bits give
    // |x| 2 / pi modulo 4 with 94 fraction bits.
    let s = i32(size >> 23u) - 150;
    let first = u32(s + 30);
    let a = wide_product(digits, two_over_pi_at(first + 64u));
    let b = wide_product(digits, two_over_pi_at(first + 32u));
    let middle = a.x + b.y;
    let top = digits * two_over_pi_at(first) + b.x + u32(middle < b.y);
    let fraction = vec2<u32>((top << 2u) | (middle >> 30u), (middle << 2u) | (a.y >> 30u));
    return angle_of(fraction, top >> 30u, x);
}

// quadrant + fraction / 2^64, in quarter turns, with the sign of x.
fn angle_of(fraction: vec2<u32>, quadrant: u32, x: f32) -> Angle {
    var f = fraction;
    var q = quadrant;
    var negative = bitcast<u32>(x) >= 0x80000000u;
    if (negative) {
        q = 0u - q;
    }
    if (f.x >= 0x80000000u) {
        f = vec2<u32>(~f.x + u32(f.y == 0u), ~f.y + 1u);
        q = select(q + 1u, q - 1u, negative);
        negative = !negative;
    }
    let up = min(countLeadingZeros(f.x), 31u);
    let word = (f.x << up) | select(0u, f.y >> (32u - max(up, 1u)), up > 0u);
    let below = f.y << up;
    // The scale 2^-(up + 32) for the next 24 + 32 bits.
    let scale = bitcast<f32>((127u - 32u - up) << 23u);
    let high = f32(word >> 8u) * 256.0;
    let low = f32(word & 0xffu) + f32(below >> 8u) * 5.9604644775390625e-8;
    let sum = pair_product(high, 1.57079637);
    let rest = sum.y + (low * 1.57079637 + high * -4.37113883e-8);
    let sign = select(scale, -scale, negative);
    return Angle(sum.x * sign, rest * sign, q & 3u);
}

fn small_angle(x: f32) -> Angle {
    let n = round(x * 0.636619747);
    // pi / 2 as a sum of 16, 16 and 24 bits.
    let a = x - n * 1.570770263671875;
    let high = trim(a - n * 2.6063062250614166e-5);
    let low = ((a - high) - n * 2.6063062250614166e-5) - n * 6.07710063e-11;
    return Angle(high, low, bitcast<u32>(i32(n)) & 3u);
}

fn angle(x: f32) -> Angle {
    if (magnitude(x) < 0x43800000u) {
        return small_angle(x);
    }
    return large_angle(x);
}

// sin(high + low) - high. The polynomial is (sin(r) / r - 1) / r^2, with an error below 2^-37.
fn sin_tail(t: Angle) -> f32 {
    let z = t.high * t.high;
    let p = -0.166666672 + z * (0.00833332911 + z * (-0.000198392343 + z * 2.71735871e-6));
    return t.low + t.high * z * p;
}

// cos(high + low) - 1. The polynomial is (cos(r) - 1 + r^2 / 2) / r^4, with an error below 2^-43.
fn cos_tail(t: Angle) -> f32 {
    let z = t.high * t.high;
    let p = 0.0416666679 + z * (-0.00138888834 + z * (2.47994139e-5 + z * -2.72013978e-7));
    return z * z * p - (0.5 * z + t.high * t.low);
}

fn sin_of(t: Angle, quadrant: u32) -> f32 {
    var y = t.high + sin_tail(t);
    if ((quadrant & 1u) == 1u) {
        y = 1.0 + cos_tail(t);
    }
    return select(y, -y, (quadrant & 2u) == 2u);
}

fn f_sin(x: f32) -> f32 {
    let size = magnitude(x);
    if (size >= 0x7f800000u) {
        return nan();
    }
    if (size < 0x39000000u) {
        return x;
    }
    let t = angle(x);
    return sin_of(t, t.quadrant);
}

fn f_cos(x: f32) -> f32 {
    if (magnitude(x) >= 0x7f800000u) {
        return nan();
    }
    let t = angle(x);
    return sin_of(t, t.quadrant + 1u);
}

fn f_tan(x: f32) -> f32 {
    let size = magnitude(x);
    if (size >= 0x7f800000u) {
        return nan();
    }
    if (size < 0x39000000u) {
        return x;
    }
    let t = angle(x);
    let sin = pair_sum(t.high, sin_tail(t));
    let cos = pair_sum(1.0, cos_tail(t));
    if ((t.quadrant & 1u) == 1u) {
        let q = pair_quotient(cos.x, cos.y, sin.x, sin.y);
        return -(q.x + q.y);
    }
    let q = pair_quotient(sin.x, sin.y, cos.x, cos.y);
    return q.x + q.y;
}
