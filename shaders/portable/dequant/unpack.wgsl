// y = the f32 values of packed blocks, one after the other. One invocation writes 4 values.

struct Params {
    count: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> y_data: array<u32>;

fn packed_word(i: u32) -> u32 {
    return x_data[i];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (flat_group(group, groups) * 256u + local) * 4u;
    if i >= p.count {
        return;
    }
    let bits = bitcast<vec4<u32>>(weights(p.offset + (i / BLOCK_LEN) * BLOCK_BYTES, i % BLOCK_LEN));
    y_data[i] = bits.x;
    y_data[i + 1u] = bits.y;
    y_data[i + 2u] = bits.z;
    y_data[i + 3u] = bits.w;
}
