// Backward rasterization, initialization of each pixel: transmittance 1, and the dot product of the
// pixel's color and remaining transmittance with their cotangents. A thread processes one pixel.
// uses prelude.wgsl: flat_group

struct Params {
    pixels: u32,
    // Numbers per pixel: 2, or 4 with two counts.
    state: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> image: array<f32>;
@group(0) @binding(2) var<storage, read> left: array<f32>;
@group(0) @binding(3) var<storage, read> d_image: array<f32>;
@group(0) @binding(4) var<storage, read> d_left: array<f32>;
// Transmittance and remaining cotangent product of each pixel, and counts of splats.
@group(0) @binding(5) var<storage, read_write> pixels: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 256u + local;
    if i >= p.pixels {
        return;
    }
    var rest = left[i] * d_left[i];
    for (var c = 0u; c < 3u; c += 1u) {
        rest += image[3u * i + c] * d_image[3u * i + c];
    }
    pixels[p.state * i] = 1.0;
    pixels[p.state * i + 1u] = rest;
    for (var k = 2u; k < p.state; k += 1u) {
        pixels[p.state * i + k] = 0.0;
    }
}
