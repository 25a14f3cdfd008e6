// F32 norm that also stores its result rounded to 16 bits. See norm_vectors.wgsl.
// uses halves.wgsl: two_bits

@group(0) @binding(5) var<storage, read_write> rounded: array<vec2<u32>>;

override ROUNDED: u32 = 1u;

fn write_also(at: u32, four: vec4<f32>) {
    rounded[at] = vec2<u32>(two_bits(four.xy, ROUNDED), two_bits(four.zw, ROUNDED));
}
