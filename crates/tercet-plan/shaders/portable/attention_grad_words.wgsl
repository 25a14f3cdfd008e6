// Cotangents of the results of attention as a view with arbitrary strides, read by words.
// uses attention_common.wgsl: DTYPE
// uses attention_halves.wgsl: halves
// uses attention_words.wgsl: in_whole_words
// uses prelude.wgsl: float_of, lane_of, word_of

@group(0) @binding(7) var<storage, read> dy: array<u32>;

fn dy_element(at: u32) -> f32 {
    return float_of(dy[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

// Loads up to four elements of dy with stride `step`; elements beyond `count` are 0.
fn dy_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (in_whole_words(at, step, count)) {
        return halves(dy[at / 2u], dy[at / 2u + 1u]);
    }
    var out = vec4<f32>();
    if (count > 0u) { out.x = dy_element(at); }
    if (count > 1u) { out.y = dy_element(at + step); }
    if (count > 2u) { out.z = dy_element(at + 2u * step); }
    if (count > 3u) { out.w = dy_element(at + 3u * step); }
    return out;
}
