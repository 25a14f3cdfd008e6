// Attention operands as views with arbitrary strides, read by words.
// uses attention_common.wgsl: DTYPE
// uses attention_halves.wgsl: halves
// uses prelude.wgsl: F32, float_of, lane_of, word_of

@group(0) @binding(1) var<storage, read> q: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<u32>;
@group(0) @binding(3) var<storage, read> v: array<u32>;

fn in_whole_words(at: u32, step: u32, count: u32) -> bool {
    return DTYPE != F32 && step == 1u && (at & 1u) == 0u && count >= 4u;
}

fn q_element(at: u32) -> f32 {
    return float_of(q[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

fn k_element(at: u32) -> f32 {
    return float_of(k[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

fn v_element(at: u32) -> f32 {
    return float_of(v[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

// Loads up to four elements of q with stride `step`; elements beyond `count` are 0.
fn q_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (in_whole_words(at, step, count)) {
        return halves(q[at / 2u], q[at / 2u + 1u]);
    }
    if (DTYPE == F32 && count >= 4u) {
        let low = vec2<u32>(q[at], q[at + step]);
        let high = vec2<u32>(q[at + 2u * step], q[at + 3u * step]);
        return bitcast<vec4<f32>>(vec4<u32>(low, high));
    }
    var out = vec4<f32>();
    if (count > 0u) { out.x = q_element(at); }
    if (count > 1u) { out.y = q_element(at + step); }
    if (count > 2u) { out.z = q_element(at + 2u * step); }
    if (count > 3u) { out.w = q_element(at + 3u * step); }
    return out;
}

fn k_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (in_whole_words(at, step, count)) {
        return halves(k[at / 2u], k[at / 2u + 1u]);
    }
    if (DTYPE == F32 && count >= 4u) {
        let low = vec2<u32>(k[at], k[at + step]);
        let high = vec2<u32>(k[at + 2u * step], k[at + 3u * step]);
        return bitcast<vec4<f32>>(vec4<u32>(low, high));
    }
    var out = vec4<f32>();
    if (count > 0u) { out.x = k_element(at); }
    if (count > 1u) { out.y = k_element(at + step); }
    if (count > 2u) { out.z = k_element(at + 2u * step); }
    if (count > 3u) { out.w = k_element(at + 3u * step); }
    return out;
}

fn v_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (in_whole_words(at, step, count)) {
        return halves(v[at / 2u], v[at / 2u + 1u]);
    }
    if (DTYPE == F32 && count >= 4u) {
        let low = vec2<u32>(v[at], v[at + step]);
        let high = vec2<u32>(v[at + 2u * step], v[at + 3u * step]);
        return bitcast<vec4<f32>>(vec4<u32>(low, high));
    }
    var out = vec4<f32>();
    if (count > 0u) { out.x = v_element(at); }
    if (count > 1u) { out.y = v_element(at + step); }
    if (count > 2u) { out.z = v_element(at + 2u * step); }
    if (count > 3u) { out.w = v_element(at + 3u * step); }
    return out;
}
