// y = x, F32 rounded to 16-bit floats, or 32-bit integers truncated to 8 bits. A thread writes one
// word.
// uses prelude.wgsl: BF16, flat_group, float_bits, int_bits, lanes

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
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let word = flat_group(group, groups) * 256u + index;
    let per = lanes(OUT);
    if word * per >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < p.numel {
            var bits = x[i];
            if OUT <= BF16 {
                bits = float_bits(bitcast<f32>(bits), OUT);
            } else {
                bits = int_bits(bitcast<i32>(bits), OUT);
            }
            out |= bits << ((32u / per) * lane);
        }
    }
    y[word] = out;
}
