// Norm of one operand with 16-byte vectors. See norm_vectors.wgsl.

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    eps: f32,
    // Row strides: x_row between rows, x_outer between groups of x_count rows.
    x_count: u32,
    x_outer: u32,
    y_panels: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> gamma: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> beta: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<u32>>;

override BETA: u32 = 0u;
