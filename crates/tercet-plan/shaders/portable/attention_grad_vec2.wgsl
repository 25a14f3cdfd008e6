// Cotangents of the results of attention with 8-byte loads of F16 or BF16. Rows are multiples of 8
// bytes.
// uses attention_halves.wgsl: halves

@group(0) @binding(7) var<storage, read> dy: array<vec2<u32>>;

// Loads four elements, or returns 0 if `count` is 0.
fn dy_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    let words = dy[at / 4u];
    return halves(words.x, words.y);
}
