// y = x, widened from the 16-bit float X_TYPE to F32. A thread reads one word.
// uses prelude.wgsl: flat_group, float_of

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> y_data: array<u32>;

override X_TYPE: u32 = 1u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, groups) * 256u + local;
    let i = word * 2u;
    if i >= p.count {
        return;
    }
    let bits = x_data[word];
    y_data[i] = bitcast<u32>(float_of(bits, 0u, X_TYPE));
    if i + 1u < p.count {
        y_data[i + 1u] = bitcast<u32>(float_of(bits, 1u, X_TYPE));
    }
}
