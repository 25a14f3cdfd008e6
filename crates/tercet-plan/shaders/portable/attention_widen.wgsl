// y = x, BF16 to F32: widens the operands of split-F16 attention. A thread reads one word.
// uses prelude.wgsl: flat_group

struct Params {
    numel: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    if (word * 2u >= p.numel) {
        return;
    }
    let bits = x[word];
    y[word * 2u] = bits << 16u;
    if (word * 2u + 1u < p.numel) {
        y[word * 2u + 1u] = bits & 0xffff0000u;
    }
}
