// 32-bit integer arithmetic. Callers wrap the results of narrower types.

fn i_neg(x: i32) -> i32 {
    return bitcast<i32>(0u - bitcast<u32>(x));
}

fn i_abs(x: i32) -> i32 {
    return select(x, i_neg(x), x < 0);
}

fn i_sign(x: i32) -> i32 {
    return select(select(0, 1, x > 0), -1, x < 0);
}

fn i_add(a: i32, b: i32) -> i32 {
    return bitcast<i32>(bitcast<u32>(a) + bitcast<u32>(b));
}

fn i_sub(a: i32, b: i32) -> i32 {
    return bitcast<i32>(bitcast<u32>(a) - bitcast<u32>(b));
}

fn i_mul(a: i32, b: i32) -> i32 {
    return bitcast<i32>(bitcast<u32>(a) * bitcast<u32>(b));
}

fn i_fma(a: i32, b: i32, c: i32) -> i32 {
    return i_add(i_mul(a, b), c);
}

// x / 0 = x. The quotient of the smallest integer and -1 is the smallest integer, because
// magnitudes are unsigned.
fn i_div(a: i32, b: i32) -> i32 {
    if (b == 0) {
        return a;
    }
    let q = bitcast<i32>(bitcast<u32>(i_abs(a)) / bitcast<u32>(i_abs(b)));
    return select(q, i_neg(q), (a < 0) != (b < 0));
}

fn u_div(a: u32, b: u32) -> u32 {
    if (b == 0u) {
        return a;
    }
    return a / b;
}

fn i_rem(a: i32, b: i32) -> i32 {
    if (b == 0) {
        return 0;
    }
    let r = bitcast<i32>(bitcast<u32>(i_abs(a)) % bitcast<u32>(i_abs(b)));
    return select(r, i_neg(r), a < 0);
}

fn u_rem(a: u32, b: u32) -> u32 {
    if (b == 0u) {
        return 0u;
    }
    return a % b;
}

fn u_pow(a: u32, b: u32) -> u32 {
    var base = a;
    var exponent = b;
    var power = 1u;
    while (exponent != 0u) {
        if ((exponent & 1u) == 1u) {
            power *= base;
        }
        base *= base;
        exponent >>= 1u;
    }
    return power;
}

// Integer power. A negative exponent gives the power truncated toward zero; 0 to a negative power
// is 0.
fn i_pow(a: i32, b: i32) -> i32 {
    if (b < 0) {
        let odd = (b & 1) == 1;
        return select(0, select(1, a, odd), a == 1 || a == -1);
    }
    return bitcast<i32>(u_pow(bitcast<u32>(a), bitcast<u32>(b)));
}
