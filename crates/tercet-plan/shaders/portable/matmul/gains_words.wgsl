// Norm weights (gains), loaded by words. The units of a workgroup share the row: each loads a part.
// uses matmul/gemv_tile.wgsl: UNITS
// uses prelude.wgsl: word_of

@group(0) @binding(5) var<storage, read> gains: array<u32>;

const SQUARE_UNITS: u32 = UNITS;

fn gain_at(k: u32) -> f32 {
    return element_of(gains[word_of(k, A_TYPE)], k, A_TYPE);
}

fn gain_four(k: u32) -> vec4<f32> {
    return vec4<f32>(gain_at(k), gain_at(k + 1u), gain_at(k + 2u), gain_at(k + 3u));
}
