// Dequantization to F32: y = the values of rows of quantized blocks. A thread writes 4 values.
// uses prelude.wgsl: flat_group

struct Params {
    count: u32,
    offset: u32,
    row_len: u32,
    row_stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> y_data: array<u32>;

fn packed_word(i: u32) -> u32 {
    return x_data[i];
}

fn row_blocks() -> u32 {
    return p.row_len / BLOCK_LEN;
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
    let j = i % p.row_len;
    let block = Block(p.offset + i / p.row_len * p.row_stride, j / BLOCK_LEN);
    let bits = bitcast<vec4<u32>>(weights(block, j % BLOCK_LEN));
    y_data[i] = bits.x;
    y_data[i + 1u] = bits.y;
    y_data[i + 2u] = bits.z;
    y_data[i + 3u] = bits.w;
}
