// The one row of a, and the norm gains, loaded as vectors from global memory. Offsets are multiples
// of a vector.
// uses matmul/floats.wgsl: A_TYPE, pair_of
// uses matmul/operands.wgsl: a_base
// uses prelude.wgsl: F32

@group(0) @binding(1) var<storage, read> a_data: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y_data: array<u32>;
@group(0) @binding(5) var<storage, read> gains: array<vec4<u32>>;

fn four_floats(words: vec2<u32>, dtype: u32) -> vec4<f32> {
    return vec4<f32>(pair_of(words.x, dtype), pair_of(words.y, dtype));
}

// Loads four elements of the row from k on.
fn a_four(k: u32) -> vec4<f32> {
    let at = a_base + k;
    if A_TYPE == F32 {
        return bitcast<vec4<f32>>(a_data[at / 4u]);
    }
    let words = a_data[at / 8u];
    return four_floats(select(words.xy, words.zw, (at & 4u) != 0u), A_TYPE);
}

fn a_at(row: u32, k: u32) -> f32 {
    return a_four(k & ~3u)[k & 3u];
}

fn gain_four(k: u32) -> vec4<f32> {
    if A_TYPE == F32 {
        return bitcast<vec4<f32>>(gains[k / 4u]);
    }
    let words = gains[k / 8u];
    return four_floats(select(words.xy, words.zw, (k & 4u) != 0u), A_TYPE);
}
