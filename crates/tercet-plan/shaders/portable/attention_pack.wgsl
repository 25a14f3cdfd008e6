// y = x, F32 to F16 or BF16: packs attention results whose rows share words. A thread writes one
// word.
// uses prelude.wgsl: flat_group, float_bits

struct Params {
    numel: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override OUT: u32 = 1u;

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
    var bits = float_bits(bitcast<f32>(x[word * 2u]), OUT);
    if (word * 2u + 1u < p.numel) {
        bits |= float_bits(bitcast<f32>(x[word * 2u + 1u]), OUT) << 16u;
    }
    y[word] = bits;
}
