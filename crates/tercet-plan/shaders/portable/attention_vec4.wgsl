// Attention operands with 16-byte loads of F32. Rows are multiples of 16 bytes.

@group(0) @binding(1) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<u32>>;

// Loads four elements, or returns 0 if `count` is 0.
fn q_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(q[at / 4u]);
}

fn k_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(k[at / 4u]);
}

fn v_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(v[at / 4u]);
}
