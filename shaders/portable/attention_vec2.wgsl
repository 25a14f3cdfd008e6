// Operands of attention whose rows are whole vectors: 8 bytes of F16 or BF16.
// uses attention_halves.wgsl: halves

@group(0) @binding(1) var<storage, read> q: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec2<u32>>;

// Four elements, or none.
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
