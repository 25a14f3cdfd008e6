// Attention operands with 8-byte loads of F16 or BF16. Rows are multiples of 8 bytes.
// uses attention_halves.wgsl: halves

@group(0) @binding(1) var<storage, read> q: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec2<u32>>;

// Loads four elements, or returns 0 if `count` is 0.
fn q_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    let words = q[at / 4u];
    return halves(words.x, words.y);
}

fn k_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    let words = k[at / 4u];
    return halves(words.x, words.y);
}

fn v_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    let words = v[at / 4u];
    return halves(words.x, words.y);
}
