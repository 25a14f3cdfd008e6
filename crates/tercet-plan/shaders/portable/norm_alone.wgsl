// Single-output norm: stores one result. See norm_vectors.wgsl.

fn write_also(at: u32, four: vec4<f32>) {}
