// Cotangents of the results of attention with 16-byte loads of F32. Rows are multiples of 16 bytes.

@group(0) @binding(7) var<storage, read> dy: array<vec4<u32>>;

// Loads four elements, or returns 0 if `count` is 0.
fn dy_four(at: u32, step: u32, count: u32) -> vec4<f32> {
    if (count == 0u) {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(dy[at / 4u]);
}
