// Scores as order-preserving integers, and the softmax weights and scale factors that follow from
// their maximum. Shared by the attention kernels.
// uses prelude.wgsl: as_float, is_nan, nan, order

// Score of a masked key. Scores and maxima are stored as order-preserving integers (`order`);
// UNSEEN is below all of them.
const UNSEEN: i32 = -2147483648;
const MINUS_INF: i32 = -2139095041;
const PLUS_INF: i32 = 0x7f800000;

// The inverse of `order`.
fn float_at(key: i32) -> f32 {
    return bitcast<f32>(select(key, key ^ 0x7fffffff, key < 0));
}

// Order-preserving integer of a float, as `order` computes it, but with every NaN above infinity.
fn key_of(x: f32) -> i32 {
    return select(order(x), 0x7fc00000, is_nan(x));
}

fn keys_in_order(x: vec4<f32>) -> vec4<i32> {
    let bits = bitcast<vec4<i32>>(x);
    let ordered = select(bits, bits ^ vec4<i32>(0x7fffffff), bits < vec4<i32>());
    let size = bits & vec4<i32>(0x7fffffff);
    return select(ordered, vec4<i32>(0x7fc00000), size > vec4<i32>(0x7f800000));
}

// Value that is subtracted from the scores before the exponential, computed from their maximum.
fn center_of(top: i32) -> f32 {
    return select(float_at(top), 0.0, top <= MINUS_INF);
}

// exp(score - center). Returns -0 for a masked key, which no exponential yields.
fn weight(key: i32, center: f32) -> f32 {
    if (key == UNSEEN) {
        return as_float(0x80000000u);
    }
    // exp(x) rounds to 0 in F32 for x < -104.
    return select(exp(max(float_at(key) - center, -104.0)), 0.0, key == MINUS_INF);
}

// Scale factor for sums that used the earlier maximum `before`, after a change of the row's center.
fn rescale(before: i32, center: f32) -> f32 {
    return select(exp(max(float_at(before) - center, -104.0)), 0.0, before <= MINUS_INF);
}

// Softmax result: sum / weights. The result is 0 if no score is above -inf, and NaN if a score is
// NaN or +inf.
fn normalized(sum: vec4<f32>, weights: f32, top: i32) -> vec4<f32> {
    if (top <= MINUS_INF) {
        return vec4<f32>();
    }
    if (top >= PLUS_INF) {
        return vec4<f32>(nan());
    }
    return sum / weights;
}
