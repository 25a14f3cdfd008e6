// First step of Fourier transforms whose length is known only at run time: copies the complex
// numbers of strided rows to dense F32 pairs. A thread copies one complex number.
// uses halves.wgsl: two_of
// uses prelude.wgsl: F32, flat_group
// uses strided.wgsl: row_start

// Sizes, strides and offset count complex numbers.
struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    stride: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<f32>>;

override DTYPE: u32 = 0u;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 128u + local;
    if i >= p.rows * p.n {
        return;
    }
    let at = row_start(i / p.n) + (i % p.n) * p.stride;
    if DTYPE == F32 {
        y[i] = vec2<f32>(bitcast<f32>(x[2u * at]), bitcast<f32>(x[2u * at + 1u]));
    } else {
        y[i] = two_of(x[at], DTYPE);
    }
}
