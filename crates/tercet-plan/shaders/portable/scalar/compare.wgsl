// Float comparisons that handle subnormal numbers. 0 equals -0; all comparisons with NaN are false.

fn rank(x: f32) -> i32 {
    let i = bitcast<i32>(x);
    return select(i, bitcast<i32>(0x80000000u - bitcast<u32>(i)), i < 0);
}

fn ordered(a: f32, b: f32) -> bool {
    return !is_nan(a) && !is_nan(b);
}

fn f_eq(a: f32, b: f32) -> bool {
    return ordered(a, b) && rank(a) == rank(b);
}

fn f_ne(a: f32, b: f32) -> bool {
    return !f_eq(a, b);
}

fn f_lt(a: f32, b: f32) -> bool {
    return ordered(a, b) && rank(a) < rank(b);
}

fn f_le(a: f32, b: f32) -> bool {
    return ordered(a, b) && rank(a) <= rank(b);
}

fn f_gt(a: f32, b: f32) -> bool {
    return f_lt(b, a);
}

fn f_ge(a: f32, b: f32) -> bool {
    return f_le(b, a);
}
