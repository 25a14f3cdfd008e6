// y = x, rounded from F32 to the 16-bit float Y_TYPE. A thread writes one word.
// uses prelude.wgsl: flat_group, float_bits

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> y_data: array<u32>;

override Y_TYPE: u32 = 1u;

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
    var bits = float_bits(bitcast<f32>(x_data[i]), Y_TYPE);
    if i + 1u < p.count {
        bits |= float_bits(bitcast<f32>(x_data[i + 1u]), Y_TYPE) << 16u;
    }
    y_data[word] = bits;
}
