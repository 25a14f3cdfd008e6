// Split-K reduction: y[i, j] = f(sum_s part_sums[s, i, j] + bias[i, j]). A thread computes four
// adjacent elements of a row; n is a multiple of 4. y may have additional columns.
// uses matmul/activated.wgsl or matmul/plain.wgsl: begin
// uses matmul/floats.wgsl: Y_TYPE, finish
// uses prelude.wgsl: F32, flat_group, float_bits

struct Params {
    quads: u32,
    m: u32,
    n: u32,
    bias_offset: u32,
    bias_row: u32,
    bias_stride: u32,
    // Offset of the result and row pitch of y, in vectors of four.
    first: u32,
    row_quads: u32,
    zero: u32,
}

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;
override PARTS: u32 = 2u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> part_sums: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> y_data: array<u32>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let i = flat_group(group, groups) * 128u + local;
    if i >= p.quads {
        return;
    }
    var sum = part_sums[i];
    for (var part = 1u; part < PARTS; part += 1u) {
        sum += part_sums[part * p.quads + i];
    }
    let row = i * 4u / p.n % p.m;
    let col = i * 4u % p.n;
    let at = p.first + i * 4u / p.n * p.row_quads + col / 4u;
    // Only one place in the code applies the activation f, because compilers inline its long code
    // at every call.
    for (var lane = 0u; lane < 4u; lane += 1u) {
        sum = vec4<f32>(sum.yzw, finish(sum.x, row, col + lane));
    }
    if Y_TYPE == F32 {
        for (var lane = 0u; lane < 4u; lane += 1u) {
            y_data[at * 4u + lane] = bitcast<u32>(sum[lane]);
        }
        return;
    }
    y_data[at * 2u] = float_bits(sum.x, Y_TYPE) | (float_bits(sum.y, Y_TYPE) << 16u);
    y_data[at * 2u + 1u] = float_bits(sum.z, Y_TYPE) | (float_bits(sum.w, Y_TYPE) << 16u);
}
