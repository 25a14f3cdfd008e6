// y = (lse, delta): pairs the statistics of each query for attention_grad.wgsl, so that the backward
// kernels bind at most eight buffers. A thread writes one pair.
// uses prelude.wgsl: flat_group

struct Params {
    numel: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> delta: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec2<f32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, count) * 256u + local;
    if (i < p.numel) {
        y[i] = vec2<f32>(lse[i], delta[i]);
    }
}
